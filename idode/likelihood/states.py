"""What can be a state of a likelihood."""

from __future__ import annotations

import torch
from torch import Tensor

from idode.batches import Pixels, check_shape, to_tensor
from idode.diffusion.foreign import CheckedNetwork
from idode.diffusion.model import DiffusionODE, check_is_model
from idode.errors import InputError
from idode.numerics import moved

__all__ = ["state_dtype", "states"]


def state_dtype(model: DiffusionODE, given: torch.dtype | None = None) -> torch.dtype:
    """Type of the states: ``given``, or by default that of the model.

    Lower than float32 cannot hold the noise inside a bin, which the bound counts on: another,
    higher value would come out.
    """
    dtype = given or model.dtype
    if dtype not in (torch.float32, torch.float64):
        whose = "the model is in" if given is None else "dtype is"
        raise InputError(
            f"{whose} {dtype}, too coarse for a likelihood: take float32, as of model.float()"
        )
    return dtype


def states(model: DiffusionODE, x: Pixels, what: str) -> Tensor:
    """States or latents ``(B, *)`` on the device of the model, in a type that it can take.

    Float64 stays where the network casts by itself, or has no parameters: the solver's own
    rounding is less then.

    Args:
        model: The diffusion ODE.
        x: A tensor or an array.
        what: Is computed, for the message to those who pass pixels.
    """
    check_is_model(model)
    check_shape(x, model.shape)
    x = to_tensor(x)
    if not x.is_floating_point():
        raise InputError(
            f"{what} is for states, which are floating point, got {x.dtype}: for pixels use "
            "bits_per_dim"
        )
    if len(x) == 0:
        raise InputError("there are no states: pass at least one")
    fixed = next(model.parameters(), None) is not None
    dtype = state_dtype(model, None if fixed else x.dtype)
    if x.dtype == torch.float64 and any(isinstance(m, CheckedNetwork) for m in model.modules()):
        dtype = x.dtype
    return moved(x.to(dtype), model.device)
