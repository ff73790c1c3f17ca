"""The paper's augmentation, with the flag that tells the network about it."""

from __future__ import annotations

import torch
from torch import Tensor

from idode.errors import InputError

__all__ = ["augment"]


def augment(
    pixels: Tensor, generator: torch.Generator, first: int = 0, count: int | None = None
) -> tuple[Tensor, Tensor]:
    """Mirror half of the images, then turn half by 90, 180 or 270 degrees.

    All eight symmetries of the square occur: untouched and mirrored with probability 1/4 each,
    the other six with 1/12 each. The flag goes into the network, which so learns the density of
    untouched images at flag 0 instead of that of the augmented mixture.

    Args:
        pixels: Images, shape ``(B, C, N, N)``, any dtype.
        generator: Decides; draws are made on its device.
        first: Place of the first image in a batch of several processes.
        count: Size of that batch, for all of which is decided; by default that of ``pixels``.

    Returns:
        Images of the same shape, and the flag ``(B,)``, float32, 1 where anything was applied.
    """
    if pixels.ndim != 4 or pixels.shape[-1] != pixels.shape[-2]:
        raise InputError(
            f"augmentation turns images by 90 degrees and needs them square, (B, C, N, N), and "
            f"these are {tuple(pixels.shape)}: switch it off or use square images"
        )
    whole, here = len(pixels) if count is None else count, slice(first, first + len(pixels))
    draw = torch.rand(2, whole, generator=generator, device=generator.device)[:, here] < 0.5
    quarter = torch.randint(1, 4, (whole,), generator=generator, device=generator.device)[here]
    mirrored = draw[0].to(pixels.device)
    turns = (quarter * draw[1]).to(pixels.device)[:, None, None, None]
    out = torch.where(mirrored[:, None, None, None], pixels.flip(-1), pixels)
    base = out
    for k in (1, 2, 3):
        out = torch.where(turns == k, torch.rot90(base, k, (-2, -1)), out)
    return out, (draw[0] | draw[1]).to(pixels.device, torch.float32)
