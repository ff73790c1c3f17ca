"""Where backward passes of our own may take the place of the library's."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["applicable", "check_first_order"]


def applicable(x: Tensor, weight: Tensor) -> bool:
    """On CPU, channels-last, not compiled, and where gradients of the weights are wanted."""
    return (
        not torch.compiler.is_compiling()  # first: symbolic shapes have no layout to ask for
        and torch.is_grad_enabled()
        and weight.requires_grad
        and x.device.type == "cpu"
        and x.is_contiguous(memory_format=torch.channels_last)
    )


def check_first_order() -> None:
    """Refuse a backward pass that is recorded to be differentiated: ours are not recordable.

    torch's own ``once_differentiable`` sees only gradients that come in, and would pass over
    what depends on the saved tensors in silence.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            "a quick network is differentiated once: call use_fast_backward(net, False)"
        )
