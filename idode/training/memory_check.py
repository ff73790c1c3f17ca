"""Whether a training fits into memory, found out before any of it is allocated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from idode.errors import InputError, choose
from idode.runs.config import Config
from idode.runs.memory import available_bytes
from idode.runs.run import build_net
from idode.training.optimisation import OPTIMIZERS
from idode.training.power_average import WIDTHS

__all__ = ["check_training_size", "optimiser_bytes", "shapes_of", "weight_bytes"]

ENDLESS = 1 << 62  # more bytes than there are anywhere


def shapes_of(config: Config, net: nn.Module | None = None) -> nn.Module:
    """The network with its noise path on the device ``meta``, where weights take no memory.

    Args:
        config: Settings.
        net: The network where it is custom; it is not changed.
    """
    with torch.device("meta"):
        built = build_net(config, net=net)
    return built.to("meta")


def weight_bytes(config: Config, weights: Mapping[str, Tensor]) -> int:
    """Weights, gradients and averages of a network, given by name, on whatever device it is."""
    copies = 3 + (len(WIDTHS) if config.train.snapshot_every else 0)
    return copies * _bytes(weights.values())


def optimiser_bytes(config: Config, weights: Mapping[str, Tensor]) -> int:
    """What the optimiser keeps of the weights of a network, given by name.

    It is made of shapes alone, since each keeps something else: Muon one moment of a kernel, SOAP
    two and up to four matrices.
    """
    optimizer = choose("optimizer", config.train.optimizer, OPTIMIZERS)
    with torch.device("meta"):
        shapes = {n: _shape_of(p) for n, p in weights.items()}
        state = optimizer(shapes.items(), config.train).state
    return _bytes(x for own in state.values() for x in own.values())


def check_training_size(
    config: Config, device: torch.device, processes: int = 1, net: nn.Module | None = None
) -> None:
    """Refuse settings that need more memory than there is.

    A lower bound: the weights and all that is kept with them, and one feature map of one piece of
    the batch.

    Args:
        config: Settings, for the shape of the data.
        device: Where the network will be.
        processes: Among which the batch is divided.
        net: The network where it is custom.
    """
    there = available_bytes(device)
    weights = _weights(config, net)
    needed = ENDLESS if weights is None else weight_bytes(config, weights)
    if weights is not None and needed <= there:  # the first optimiser of a process takes a second
        needed += optimiser_bytes(config, weights)
    if needed > there:
        raise InputError(
            f"the network needs at least {needed / 2**30:.3g} GB to be trained and {device} has "
            f"{there / 2**30:.3g}: make net.width or net.depth smaller"
        )
    shape, train = config.model.shape, config.train
    places = math.prod(shape[1:]) if len(shape) == 3 else 1
    width = getattr(config.net, "width", shape[0] if shape else 1)
    piece = math.ceil(train.batch_size / (train.accumulate * processes))
    batch = 4 * piece * places * width + 8 * train.batch_size
    if batch > there:
        raise InputError(
            f"a batch needs more than {batch / 2**30:.3g} GB and {device} has "
            f"{there / 2**30:.3g}: make train.batch_size smaller or train.accumulate larger"
        )


def _weights(config: Config, net: nn.Module | None) -> dict[str, Tensor] | None:
    """Weights by name, of idode's networks on ``meta``; ``None`` where no number counts them.

    A custom network is not copied here: what fails in its copy is for :class:`State` to meet.
    """
    try:
        built = shapes_of(config, None if net is None else nn.Identity())
    except (RuntimeError, OverflowError):  # more bytes than a number of 64 bits can count
        return None
    own = {} if net is None else {f"net.{name}": p for name, p in net.named_parameters()}
    return {**dict(built.named_parameters()), **own}


def _shape_of(weight: Tensor) -> nn.Parameter:
    return nn.Parameter(torch.empty_like(weight, device="meta"), weight.requires_grad)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)
