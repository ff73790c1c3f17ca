"""Optimisers, the learning rate, and the moving average of the weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from idode.errors import InputError, choose
from idode.runs.config import TrainConfig
from idode.training.matrices import Combined
from idode.training.muon import Muon
from idode.training.soap import Soap

__all__ = [
    "DECAYS",
    "OPTIMIZERS",
    "Average",
    "adam",
    "exponential_rate",
    "learning_rate",
    "moments",
    "muon",
    "soap",
]

DECAYS: dict[str, Callable[[float], float]] = {
    "constant": lambda share: 1.0,
    "linear": lambda share: 1 - share,
    "cosine": lambda share: (1 + math.cos(math.pi * share)) / 2,
}
FUSED = ("cpu", "cuda")  # devices that have it since torch 2.4


# Layers between data and hidden states, by their names in our networks: their matrices have a
# meaning of their own, and Adam's steps suit them better.
ENDS = {"conv_in", "conv_out", "dense_in", "dense_out"}


def learning_rate(config: TrainConfig, step: int, peak: float | None = None) -> float:
    """At step 0, 1, 2, ...: linear warm-up to ``peak``, by default ``lr``, times the decay."""
    decay = choose("decay", config.decay, DECAYS)(min(1.0, step / config.steps))
    return (
        (config.lr if peak is None else peak)
        * min(1.0, (step + 1) / max(1, config.warmup))
        * decay
    )


def adam(named: Iterable[tuple[str, nn.Parameter]], config: TrainConfig) -> torch.optim.AdamW:
    """AdamW that decays everything but biases, as the authors' does; scales are decayed too.

    Its moments exist from the start, so that a checkpoint of step 0 has the same tensors as any.
    """
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in named:
        groups[not name.endswith("bias")].append(parameter)
    parameters = (*groups[True], *groups[False])
    fused = all(p.device.type in FUSED for p in parameters)
    optimiser = torch.optim.AdamW(
        [
            {"params": groups[True], "weight_decay": config.weight_decay, "peak": config.lr},
            {"params": groups[False], "weight_decay": 0.0, "peak": config.lr},
        ],
        lr=config.lr,
        betas=(config.betas[0], config.betas[1]),
        eps=config.eps,
        # One call for all. It reads memory in order: gradients need the layout of their
        # parameters, which autograd gives them and an assignment to `.grad` may not.
        fused=fused,
    )
    for parameter in parameters:
        device = parameter.device if fused else None
        optimiser.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=device),
            "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
        }
    return optimiser


def _split(
    named: Iterable[tuple[str, nn.Parameter]], optimizer: str
) -> tuple[list[nn.Parameter], list[tuple[str, nn.Parameter]]]:
    """The kernels of hidden layers, and everything else by name."""
    every = list(named)
    hidden = {name for name, p in every if p.ndim > 1 and not ENDS & set(name.split("."))}
    if not hidden:
        raise InputError(f"{optimizer} needs matrices, and the network has none: choose adamw")
    kernels = [p for name, p in every if name in hidden]
    return kernels, [(name, p) for name, p in every if name not in hidden]


def _with_adam(
    matrices: torch.optim.Optimizer,
    peak: float,
    rest: list[tuple[str, nn.Parameter]],
    config: TrainConfig,
) -> Combined:
    """An optimiser of kernels with its own learning rate, and AdamW for the rest."""
    for group in matrices.param_groups:
        group["peak"] = peak
    return Combined(matrices, *([adam(rest, config)] if rest else []))


def muon(named: Iterable[tuple[str, nn.Parameter]], config: TrainConfig) -> Combined:
    """Muon for the kernels of hidden layers, AdamW for all else."""
    kernels, rest = _split(named, "muon")
    matrices = Muon(kernels, config.matrix_lr, config.momentum, config.weight_decay)
    return _with_adam(matrices, config.matrix_lr, rest, config)


def soap(named: Iterable[tuple[str, nn.Parameter]], config: TrainConfig) -> Combined:
    """SOAP for the kernels of hidden layers, AdamW for all else, both at ``lr``."""
    kernels, rest = _split(named, "soap")
    betas = config.betas[0], config.betas[1]
    matrices = Soap(kernels, config.lr, betas, config.eps, config.weight_decay)
    return _with_adam(matrices, config.lr, rest, config)


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer | Combined]] = {
    "adamw": adam,
    "muon": muon,
    "soap": soap,
}


def moments(
    optimiser: torch.optim.Optimizer | Combined, named: Iterable[tuple[str, nn.Parameter]]
) -> dict[str, Tensor]:
    """The optimiser's own tensors by name of the parameter; writing to them restores it."""
    return {
        f"{kind}/{name}": value
        for name, parameter in named
        for kind, value in optimiser.state[parameter].items()
    }


def exponential_rate(config: TrainConfig) -> Callable[[int], float]:
    """Share of the old average kept after step 0, 1, 2, ..."""
    if config.ema_warmup:
        return lambda step: min(config.ema, (1 + step) / (10 + step))
    return lambda step: config.ema


class Average:
    """Moving average of a network's weights, itself a network.

    Args:
        net: The network; it is copied.
        rate: Share of the old average kept after step 0, 1, 2, ...
    """

    def __init__(self, net: nn.Module, rate: Callable[[int], float]) -> None:
        self.net = copy.deepcopy(net).eval().requires_grad_(False)
        self.rate = rate

    @torch.no_grad()
    def update(self, net: nn.Module, step: int) -> None:
        """Move the weights towards those of ``net``; buffers are copied."""
        old: list[Tensor] = list(self.net.parameters())
        new: list[Tensor] = list(net.parameters())
        torch._foreach_lerp_(old, new, 1 - self.rate(step))
        for kept, buffer in zip(self.net.buffers(), net.buffers(), strict=True):
            kept.copy_(buffer)
