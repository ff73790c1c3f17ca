r"""Modules around networks trained elsewhere: checks, and the change to our units.

See :mod:`idode.diffusion.wrapping` for what they are used for.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from idode.diffusion.model import DiffusionODE, Network
from idode.diffusion.predictors import DATA, NOISE
from idode.diffusion.schedules import Schedule
from idode.errors import InputError
from idode.numerics import like

__all__ = ["CheckedNetwork", "OwnUnits"]


class CheckedNetwork(nn.Module):
    """A foreign network that answers with a tensor like its input, or with a sentence why not.

    It is called in the dtype of its own parameters.

    Args:
        net: Called as ``net(x, t, **condition)``.
    """

    def __init__(self, net: Network) -> None:
        super().__init__()
        _check_network(net)
        self.net = net

    def forward(self, x: Tensor, time: Tensor, **condition: Tensor) -> Tensor:
        """The network's prediction, in the dtype of ``x``."""
        dtype = next((p.dtype for p in _parameters(self.net)), x.dtype)
        try:
            said = self.net(x.to(dtype), time.to(dtype), **condition)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError, IndexError) as error:
            raise InputError(
                f"the network failed on a batch of shape {tuple(x.shape)} with "
                f"{_named(condition)}: {error}. It is called as net(x, t) with batches of any "
                "size, and t of shape (B,); what belongs to each sample, such as its label, is "
                "passed as a keyword argument of bits_per_dim, log_prob or sample, not kept in "
                "the network"
            ) from error
        if not isinstance(said, Tensor):
            raise InputError(
                f"the network returned a {type(said).__name__}, not a tensor: wrap a function "
                "that picks the prediction out of it, such as lambda x, t: net(x, t).sample"
            )
        if said.shape != x.shape:
            raise InputError(
                f"the network returned shape {tuple(said.shape)} for states of shape "
                f"{tuple(x.shape)}: a prediction has the shape of the state; of a network that "
                "also predicts variances, pass on the first half of the channels"
            )
        return said.to(x.dtype)


class OwnUnits(nn.Module):
    r"""A model on another scale, or of a shorter clock, as a noise network on the clock gamma.

    Below the least noise the network knows it is held at its last time: :math:`\hat x_0` is taken
    from there, and the noise is what is then left of the state.

    Args:
        inner: The network in its own units.
        schedule: Of the states in our units.
        scale: The :math:`a` of :math:`y_0 = a x_0 + b`.
        shift: The :math:`b`.
        least: Least gamma of ours at which the network is asked.
    """

    def __init__(
        self, inner: DiffusionODE, schedule: Schedule, scale: float, shift: float, least: float
    ) -> None:
        super().__init__()
        self.inner, self.schedule = inner, schedule
        self.scale, self.shift, self.least = scale, shift, least

    def forward(self, x: Tensor, gamma: Tensor, **condition: Tensor) -> Tensor:
        """Noise of states ``(B, *)`` in our units at ``gamma``, ``(B,)``."""
        gamma = gamma.double()
        asked = gamma.clamp_min(self.least)
        theirs = asked + 2 * math.log(self.scale)
        alpha = self.inner.schedule.alpha(theirs)
        stretch = alpha * self.scale / self.schedule.alpha(gamma)
        y = like(stretch, x) * x + like(alpha * self.shift, x)
        # Rounding of the clock to the state's dtype is no step below the least noise.
        if bool((gamma >= self.least - 1e-5).all()):
            return self.inner.predict(y, theirs, NOISE, **condition)
        x0 = (self.inner.predict(y, theirs, DATA, **condition) - self.shift) / self.scale
        clean = like(self.schedule.alpha(gamma), x) * x0
        return (x - clean) / like(self.schedule.sigma(gamma), x)


def _parameters(net: Network) -> list[Tensor]:
    return list(net.parameters()) if isinstance(net, nn.Module) else []


def _check_network(net: Network) -> None:
    """Refuse a network whose values would change from call to call, or be too coarse."""
    for parameter in _parameters(net):
        if parameter.dtype in (torch.float16, torch.bfloat16):
            raise InputError(
                f"the network's parameters are {parameter.dtype}, too coarse for a likelihood: "
                "pass net.float()"
            )
    for module in net.modules() if isinstance(net, nn.Module) else ():
        changing = isinstance(module, nn.modules.batchnorm._BatchNorm) or (
            isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
        )
        if changing and module.training:
            raise InputError(
                f"the network is in training mode and has a {type(module).__name__} layer, so "
                "its values would change from call to call: pass net.eval()"
            )


def _named(condition: dict[str, Tensor]) -> str:
    given = [f"{name} of shape {tuple(value.shape)}" for name, value in condition.items()]
    return ", ".join(given) or "no condition"
