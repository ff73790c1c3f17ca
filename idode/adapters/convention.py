"""What an adapter finds out about a network."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from idode.diffusion.clocks import Clock, StraightTime
from idode.diffusion.paths import PathSchedule, PathTime
from idode.diffusion.predictors import Predictor
from idode.diffusion.schedules import SCHEDULES, Schedule
from idode.diffusion.wrapping import DataRange
from idode.errors import InputError

__all__ = [
    "Convention",
    "Named",
    "flow_path",
    "pair",
    "refuse_time_table",
    "signature",
    "without_variances",
]

CLASSES = re.compile(r"class|label|(^|[._])y_")  # in names of embeddings


@dataclass(frozen=True)
class Convention:
    """A network, and how it is to be called and read; arguments of :func:`idode.wrap`."""

    source: str  # the library and the class, for the line that is printed
    net: nn.Module
    predicts: str | Predictor
    schedule: str | Schedule
    clock: str | Clock
    levels: int | None = None
    data_range: DataRange = "bin-centres"
    shape: tuple[int, ...] | None = None
    gamma_min: float | None = None
    gamma_max: float | None = None
    gaussian_path: bool = True
    remarks: tuple[str, ...] = ()  # what else was understood


class Named(nn.Module):
    """A network called in its own way, with labels under its own name for them.

    Args:
        net: The network.
        call: Maps it, the state ``(B, *)``, the time ``(B,)`` and the condition to a prediction.
        names: The network's names of conditions that have another name here.
    """

    def __init__(
        self,
        net: Any,  # noqa: ANN401  a network of any kind
        call: Callable[..., Tensor],
        names: dict[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.net, self._call, self._names = net, call, names or {}

    def forward(self, x: Tensor, time: Tensor, **condition: Tensor) -> Tensor:
        """The prediction."""
        given = {self._names.get(name, name): value for name, value in condition.items()}
        return self._call(self.net, x, time, **given)


def pair(thing: object) -> tuple[Any, Any] | None:
    """The two parts of a pair whose first can be called, or ``None``."""
    if isinstance(thing, tuple | list) and len(thing) == 2 and callable(thing[0]):
        return thing[0], thing[1]
    return None


def signature(net: Any) -> list[str]:  # noqa: ANN401
    """Names of a network's positional arguments."""
    function = net.forward if isinstance(net, nn.Module) else net
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [parameter.name for parameter in found if parameter.kind in kinds]


def refuse_time_table(net: Any, steps: int) -> None:  # noqa: ANN401
    """Refuse a network with one learned vector for each of its integer times.

    ImageNet has as many classes as most diffusions have steps: tables of classes go by their name.
    """
    for name, module in net.named_modules() if isinstance(net, nn.Module) else ():
        table = isinstance(module, nn.Embedding) and module.num_embeddings == steps
        if table and not CLASSES.search(name):
            raise InputError(
                f"the network looks its {steps} times up in a learned table ({name}), which says "
                "nothing between integers: a diffusion ODE needs a network of continuous time"
            )


def without_variances(said: Tensor, x: Tensor) -> Tensor:
    """The prediction of a network whose second half of the channels are learned variances."""
    return said.chunk(2, dim=1)[0] if said.shape[1] == 2 * x.shape[1] else said


def flow_path(
    alpha: Callable[[Tensor], Tensor], sigma: Callable[[Tensor], Tensor]
) -> tuple[str | Schedule, Clock]:
    """Schedule and clock of a path with the data at time one; in closed form where there is one.

    Args:
        alpha: Scale of the data at times ``(*)``.
        sigma: Scale of the noise.
    """
    times = torch.linspace(0, 1, 33, dtype=torch.float64)
    a, s = alpha(times).double(), sigma(times).double()
    if torch.allclose(a, times) and torch.allclose(s, 1 - times):
        return "sp", StraightTime(data_at_one=True)
    clock = PathTime(lambda t: alpha(t).to(t), lambda t: sigma(t).to(t))
    if torch.allclose(a + s, torch.ones_like(a)):
        return SCHEDULES["sp"], clock
    if torch.allclose(a**2 + s**2, torch.ones_like(a)):
        return SCHEDULES["vp"], clock
    return PathSchedule(clock), clock
