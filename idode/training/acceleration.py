"""Lower precision and compilation of the network in training steps.

The weights, their average and the checkpoints are not affected: float32 under the same names.
Neither is what is computed from the network's output (loss, sums).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from idode.errors import InputError
from idode.runs.config import Config

AMPERE = (8, 0)  # compute capability from which NVIDIA's GPUs have TF32

__all__ = ["Autocast", "available_precisions", "compile_in_place", "in_precision"]


class Autocast(nn.Module):
    """A network whose products are computed in a lower precision; input and output keep theirs."""

    def __init__(self, net: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.net, self.device, self.dtype = net, device, dtype

    def forward(self, x: Tensor, t: Tensor, **condition: Tensor) -> Tensor:
        """The network's output ``(B, *)`` in the dtype of ``x``."""
        with torch.autocast(self.device.type, self.dtype):
            output: Tensor = self.net(x, t, **condition)
        return output.to(x.dtype)


def in_precision(net: nn.Module, name: str, device: torch.device) -> nn.Module:
    """The network in the precision called ``name``; refused where the device does not have it.

    ``tf32`` is a setting of the process and not of a network: see
    :func:`idode.numerics.float32_products`.
    """
    if name == "float32":
        return net
    if name not in available_precisions(device):
        raise InputError(
            f"train.precision={name}: {device} cannot compute in it; use float32, or another "
            "device"
        )
    return net if name == "tf32" else Autocast(net, device, torch.bfloat16)


def available_precisions(device: torch.device) -> list[str]:
    """Names of ``train.precision`` that a device computes in."""
    able = {"float32": lambda _: True, "tf32": _has_tf32, "bf16": _has_bf16}
    return [name for name, has in able.items() if has(device)]


def _has_tf32(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= AMPERE


def _has_bf16(device: torch.device) -> bool:
    try:
        # Some devices only warn and use float32, so the dtype of a product is checked.
        with torch.autocast(device.type, torch.bfloat16):
            one = torch.ones(1, 1, device=device)
            works = (one @ one).dtype is torch.bfloat16
    except RuntimeError:
        return False
    return works and (device.type != "cuda" or torch.cuda.is_bf16_supported())


def compile_in_place(net: nn.Module, config: Config, step: Callable[[], None]) -> None:
    """Compile the network's forward pass; the names of its parameters stay the same.

    ``step`` is then computed once: a failure is refused before anything is written.
    """
    if config.objective.differentiates:
        raise InputError(
            "train.compile=true is for first-order matching: a compiled network cannot be "
            "differentiated twice, as objective.order=2 and objective.method=simulation do; leave "
            "it off"
        )
    net.compile(dynamic=False)  # shapes never change, and symbolic ones do not always compile
    try:
        step()
    except (RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(
            f"train.compile=true does not work here ({reason[0]}): install a C++ compiler such as "
            "g++ if that is what is missing, or leave it off"
        ) from None
