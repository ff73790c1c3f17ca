"""The last line of ``idode demo``: a test set compressed and restored, beside ordinary coders."""

from __future__ import annotations

import numpy as np

from idode.codec.coding import AnyModel
from idode.codec.compress import compress
from idode.codec.decompress import decompress
from idode.data.prepared import Split
from idode.studies.coders import coder_bits

__all__ = ["compression_line"]


def compression_line(images: Split, model: AnyModel) -> str:
    """Sizes of images ``(N, C, H, W)`` by a model, restored and compared, and by other coders.

    The other coders get all images as one sheet, so that they too pay for one header only.
    """
    pixels = np.asarray(images)
    data = compress(pixels, model, verify=False)  # it is decoded below
    if not np.array_equal(decompress(data, model), pixels):
        raise RuntimeError("the compressed images did not come back as they were")
    others = ", ".join(
        f"{name} {bits * pixels.size / 8:.0f}" for name, bits in coder_bits(pixels).items()
    )
    return f"{len(pixels)} test images compressed and restored: {len(data)} bytes ({others})"
