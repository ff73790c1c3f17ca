"""How much memory and arithmetic a training step takes, found without taking either.

The step is carried out on the device ``meta``, whose tensors have shapes and no content, while
every piece of memory is counted from its first to its last use, and every product.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from idode.nets.config import CustomNetConfig
from idode.runs.config import Config
from idode.runs.run import diffusion_ode
from idode.training.memory_check import optimiser_bytes, shapes_of, weight_bytes
from idode.training.objective import Objective, build_density

__all__ = ["StepMemory", "in_units", "memory_lines", "step_memory"]

HEADROOM = 1.1  # of a GPU's memory: workspaces of convolutions, and gaps between blocks
GPUS = (24, 40, 48, 80)  # gigabytes of common ones
PROCESSES = (1, 8, 64)
FEWEST = 8  # images of a process worth a line
GIGA = 2**30
BYTES = {"GB": GIGA, "MB": 2**20, "KB": 2**10}
TIMES = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}
RATE = 1e14  # operations a second of all GPUs together, for which a time is printed
SAMPLE = 16  # images of the step that is counted; so many that gradients of weights matter little


@dataclass(frozen=True)
class StepMemory:
    """Bytes that a training step takes on one device, and its arithmetic."""

    weights: int  # with their gradients, averages and what the optimiser keeps
    image: int  # for each image that is computed with others
    flops: int = 0  # floating-point operations of products for each image

    def needed(self, images: int) -> float:
        """Bytes for so many images at once."""
        return HEADROOM * (self.weights + images * self.image)

    def fitting(self, memory: float) -> int:
        """Images at once that fit into so many bytes; 0 where not even one does."""
        return max(0, int((memory / HEADROOM - self.weights) // self.image))

    def pieces(self, images: int, memory: float) -> int | None:
        """The least ``train.accumulate`` for the images of one process; ``None`` if none fits."""
        most = self.fitting(memory)
        return next(
            (n for n in range(1, images + 1) if not images % n and images // n <= most), None
        )


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up what is alive of all memory that operations give out, and their products."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive = self.peak = self.flops = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> Any:  # noqa: ANN401  whatever the operation gives
        found = func(*args, **(kwargs or {}))
        products = flop_registry.get(getattr(func, "overloadpacket", None))
        if products is not None:
            self.flops += products(*args, **(kwargs or {}), out_val=found)
        for leaf in tree_leaves(found):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage())
        return found

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known or storage.device.type != "meta":
            return
        self._known.add(key)
        self.alive += size
        self.peak = max(self.peak, self.alive)
        weakref.finalize(storage, self._freed, key, size)

    def _freed(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.alive -= size


def step_memory(config: Config, net: nn.Module | None = None) -> StepMemory:
    """The memory of one training step, for the shape of data the configuration has.

    Args:
        config: Settings.
        net: The network where it is custom; it is not changed.
    """
    built = shapes_of(config, net).train().requires_grad_()
    model = diffusion_ode(built, config)
    density = build_density(config.objective.density, model)
    objective = Objective(config.objective, density, config.simulation, config.path.bits)
    levels, shape = config.model.levels, config.model.shape

    images, place = SAMPLE, torch.device("meta")
    samples = torch.zeros(images, *shape).to(torch.float32 if levels is None else torch.int32)
    drawn = objective.draw(samples, levels, torch.Generator().manual_seed(0))

    def step() -> None:
        part = drawn.part(slice(0, images), place)
        losses = objective.losses(model, part)
        total = losses.total(config.objective.ratio).double() / part.times.density
        total.mean().backward()  # type: ignore[no-untyped-call]

    with _Counter() as counter:
        step()
    weights = dict(built.named_parameters())
    kept = weight_bytes(config, weights) + optimiser_bytes(config, weights)
    return StepMemory(kept, math.ceil(counter.peak / images), counter.flops // images)


def in_units(value: float, units: Mapping[str, float]) -> str:
    """Three digits, or all before the point, in the largest of falling units that fits."""
    name = next((name for name in units if value >= units[name]), [*units][-1])
    count = value / units[name]
    return f"{count:.3g} {name}" if count < 100 else f"{count:,.0f} {name}"


def memory_lines(config: Config) -> list[str]:
    """What GPUs need for a configuration, and what to set where they have less; for people."""
    if isinstance(config.net, CustomNetConfig):
        return []
    found, train = step_memory(config), config.train
    share = f"{in_units(found.weights, BYTES)} for weights and optimiser"
    total = found.flops * train.batch_size * train.steps / RATE
    spent = "less than a second" if total < 1 else in_units(total, TIMES)
    lines = [
        f"memory of a GPU, estimated: {share}, {in_units(found.image, BYTES)} for each image",
        f"arithmetic: {found.flops / 1e9:.3g} GFLOP for each image; all steps take "
        f"{spent} where all GPUs together reach {RATE / 1e12:.0f} TFLOP/s",
    ]
    for count in PROCESSES:
        images = train.batch_size // count
        if train.batch_size % count or images % train.accumulate or images < FEWEST:
            continue
        once = images // train.accumulate
        needed = found.needed(once) / GIGA
        text = (
            f"{count} GPU{'s' if count > 1 else ''}: {once} images at once, "
            f"{in_units(found.needed(once), BYTES)} each"
        )
        advice = [
            f"{size} GB: "
            + ("net.checkpointing=true" if pieces is None else f"train.accumulate={pieces}")
            for size in GPUS
            if size < needed
            for pieces in [found.pieces(images, size * GIGA)]
        ]
        lines.append("; ".join([text, *advice]))
    return lines
