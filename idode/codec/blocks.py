"""A block: images of one shape that are decoded together, in one string of bytes.

::

    number of batches, their sizes
    number of words of the stack, the words
    stored images: those an ordinary coder makes smaller
    in a block without a stack: the payload

The payload of a block (checksums, and a few images by an ordinary coder) is sealed at the bottom
of the stack, where the first batch draws the bits it needs to begin with. It comes back when all
images are decoded, so the first bits cost nothing, and every wrong bit shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from idode.codec import ordinary
from idode.codec.bound import image_bits
from idode.codec.bytestream import Reader, digest, varint, whiten
from idode.codec.coder import DamagedError, Stack
from idode.codec.ordinary import Stored
from idode.codec.scheme import SPARE_BITS, EmptyError, Scheme

__all__ = ["MAX_BLOCK_BYTES", "check_width", "decode_block", "encode_block"]

MAX_BLOCK_BYTES = 1 << 28  # of pixels in a block: a decoder never allocates more
LONG_CHECK = 512  # values of an image from which its checksum has two bytes
BATCH, BATCH_VALUES = (32, 256), 1 << 16  # images in a batch, least and most; and values

SUSPECT = 0.6  # of the median size by ordinary coders, below which the model may lose
BEARABLE = 0.005  # of the bits of a batch, lost to images that ordinary coders make smaller

Images = NDArray[np.uint8]  # (N, C, H, W)
Progress = Callable[[int], None]


def encode_block(
    scheme: Scheme | None, images: Images, progress: Progress = lambda count: None
) -> bytes:
    """Code images ``(N, C, H, W)`` as small as possible.

    Args:
        scheme: Of images of this shape; ``None`` for ordinary coders alone.
        images: Below the number of levels of the scheme.
        progress: Called with the number of images done.
    """
    stored = [ordinary.encode(image) for image in images]
    checks = _checks(images)
    everything = dict(enumerate(stored))
    plain = _join([], b"", everything, checks)
    if scheme is not None:
        coded = _with_model(scheme, images, stored, checks, progress)
        if coded is not None and len(coded) < len(plain):
            return coded
    progress(len(images))
    return plain


def decode_block(
    scheme: Scheme | None,
    data: bytes,
    count: int,
    shape: tuple[int, int, int],
    progress: Progress = lambda count: None,
) -> Images:
    """The images of a block; :class:`DamagedError` if anything is not as it was coded."""
    if count * int(np.prod(shape)) > MAX_BLOCK_BYTES:
        raise DamagedError(f"a block of it declares more than {MAX_BLOCK_BYTES} values")
    reader = Reader(data)
    sizes = [reader.varint(count) for _ in range(reader.varint(count))]
    if 0 in sizes or sum(sizes) > count:  # before anything of these sizes is decoded
        raise DamagedError("a block of it has batches of impossible sizes")
    words = reader.take(4 * reader.varint(len(data) // 4))
    aside = _take_stored(reader, count)
    batches = []
    if words:
        if scheme is None:
            raise DamagedError("a block of it needs a model and none is declared")
        stack = Stack.of(words)
        for size in reversed(sizes):
            batches.append(scheme.decode(stack, size))
            progress(size)
        payload = Reader(whiten(stack.unseal()))
    else:
        payload = Reader(reader.take(reader.left))
    if reader.left:
        raise DamagedError("a block of it is longer than its content")
    width = check_width(shape)
    checks = payload.take(8 + count * width)
    aside |= _take_stored(payload, count)
    if sum(sizes) + len(aside) != count or payload.left >= 4:
        raise DamagedError("a block of it has another number of images than declared")
    images = np.empty((count, *shape), dtype=np.uint8)
    for i, one in aside.items():
        images[i] = ordinary.decode(one, shape)
    modelled = [i for i in range(count) if i not in aside]
    if modelled:
        images[modelled] = np.concatenate(batches[::-1])
    if _checks(images) != checks:
        raise DamagedError(_wrong(images, checks, width))
    progress(len(aside))
    return images


def _with_model(
    scheme: Scheme,
    images: Images,
    stored: Sequence[Stored],
    checks: bytes,
    progress: Progress,
) -> bytes | None:
    """The block coded by the model; ``None`` where there are too few images to begin with."""
    seed: dict[int, Stored] = {}
    payload = checks + _stored(seed)
    aside = {i: stored[i] for i in _dearer_by_model(scheme, images, stored)}
    for i in np.argsort([len(data) for _, data in stored], kind="stable"):
        if 8 * len(payload) >= scheme.start_bits + SPARE_BITS:
            break
        seed[int(i)] = stored[i]
        aside.pop(int(i), None)
        payload = checks + _stored(seed)
    rest = [i for i in range(len(images)) if i not in seed and i not in aside]
    if not rest or 8 * len(payload) < scheme.start_bits + SPARE_BITS:
        return None
    progress(len(seed) + len(aside))
    stack = Stack(whiten(payload + bytes(-len(payload) % 4)))
    sizes: list[int] = []
    most = min(max(BATCH[0], BATCH_VALUES // scheme.dims), BATCH[1])
    while rest:
        size = _batch_size(scheme, stack, min(most, len(rest)))
        batch, rest = rest[:size], rest[size:]
        limits = np.array([8.0 * len(stored[i][1]) + 32 for i in batch])
        stack, kept = _push_batch(scheme, stack, images[batch], limits)
        aside |= {i: stored[i] for i, keep in zip(batch, kept, strict=True) if not keep}
        if kept.any():
            sizes.append(int(kept.sum()))
        progress(len(batch))
    return _join(sizes, stack.words(), aside, b"") if sizes else None


def _dearer_by_model(scheme: Scheme, images: Images, stored: Sequence[Stored]) -> list[int]:
    """Images that an ordinary coder makes smaller than the model: flat ones, mostly.

    Only those much smaller than others by the ordinary coder are looked at.
    """
    sizes = np.array([8.0 * len(data) + 32 for _, data in stored])
    small = np.flatnonzero(sizes < SUSPECT * np.median(sizes))
    if not len(small):
        return []
    bits = image_bits(scheme, images[small])
    return [int(i) for i, b in zip(small, bits, strict=True) if b > sizes[i]]


def _batch_size(scheme: Scheme, stack: Stack, most: int) -> int:
    """Number of images that the bits on the stack allow, in whole batches of the network."""
    size = max(1, min(most, (stack.bits - SPARE_BITS) // scheme.start_bits))
    whole = scheme.denoiser.batch
    return size - size % whole if size > whole else size


def _push_batch(
    scheme: Scheme, stack: Stack, images: Images, limits: NDArray[np.float64]
) -> tuple[Stack, NDArray[np.bool_]]:
    """Push the images that cost no more bits than their limits; the stack, and which they are."""
    kept = np.ones(len(images), dtype=bool)
    before = stack.clone()
    try:
        costs = scheme.encode(stack, images)
        wasted = float(np.maximum(costs - limits, 0).sum())
        if wasted <= BEARABLE * float(costs.sum()):
            return stack, kept
        # The others were coded with bits that these gave back, so all are coded again.
        kept = costs <= limits
        stack = before.clone()
        if kept.any():
            scheme.encode(stack, images[kept])
        return stack, kept
    except (EmptyError, DamagedError):  # too few bits, or a network that is lost: ordinary coders
        return before, np.zeros(len(images), dtype=bool)


def _stored(images: dict[int, Stored]) -> bytes:
    """Images by ordinary coders, with their places, as bytes."""
    parts, last = [varint(len(images))], -1
    for i in sorted(images):
        number, data = images[i]
        parts += [varint(i - last - 1), bytes([number]), varint(len(data)), data]
        last = i
    return b"".join(parts)


def _take_stored(reader: Reader, count: int) -> dict[int, Stored]:
    found, last = {}, -1
    for _ in range(reader.varint(count)):
        last += 1 + reader.varint(count)
        if last >= count:
            raise DamagedError("an image in it has a place beyond the last")
        number = reader.take(1)[0]
        found[last] = (number, reader.take(reader.varint(MAX_BLOCK_BYTES)))
    return found


def _join(sizes: Sequence[int], words: bytes, aside: dict[int, Stored], checks: bytes) -> bytes:
    """The bytes of a block; ``checks`` stand in the clear where there is no stack."""
    head = [varint(len(sizes)), *map(varint, sizes), varint(len(words) // 4), words]
    return b"".join([*head, _stored(aside), checks + varint(0) if checks else b""])


def check_width(shape: Sequence[int]) -> int:
    """Bytes of the checksum of an image."""
    return 2 if int(np.prod(shape)) >= LONG_CHECK else 1


def _checks(images: Images) -> bytes:
    """A hash of all images, then a short one of each."""
    width = check_width(images.shape[1:])
    each = [digest(np.ascontiguousarray(image).tobytes(), size=width) for image in images]
    return digest(np.ascontiguousarray(images).tobytes()) + b"".join(each)


def _wrong(images: Images, checks: bytes, width: int) -> str:
    """Which images are not what they were."""
    found = _checks(images)
    ends = range(8 + width, len(found) + 1, width)
    wrong = [
        n for n, end in enumerate(ends) if found[end - width : end] != checks[end - width : end]
    ]
    return f"{len(wrong)} images of a block differ from what was coded"
