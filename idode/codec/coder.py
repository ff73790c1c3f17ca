"""The entropy coder: a stack of bits that symbols are pushed to and popped from.

Popping a symbol under a distribution draws it from that distribution, with the bits of the stack
as the source of randomness; pushing it back restores those bits. The coder is ``constriction``'s
asymmetric numeral system.

Its Gaussians give every symbol of their range at least 2^-24. A wide range then draws impossible
values too often, so symbols are coded as offsets from the rounded mean in a window, and what
falls outside of the window is escaped.
"""

from __future__ import annotations

import math
from typing import Any

import constriction
import numpy as np
from numpy.typing import NDArray

__all__ = ["DamagedError", "Stack"]

WINDOW = 6.5  # deviations of the widest symbol in the window of a push
LEAST_WINDOW = 32
ESCAPE_BITS = 16  # in each of two symbols that hold what is outside of a window
FARTHEST = 2.0**40  # that a mean may be from zero, in bins
LARGEST = 2 ** (2 * ESCAPE_BITS) - 1

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_gaussian = constriction.stream.model.QuantizedGaussian
_uniform = constriction.stream.model.Uniform(2**ESCAPE_BITS)


class DamagedError(Exception):
    """The bits do not decode, or decode to something else than was coded."""


def window(deviation: Floats) -> int:
    """Half the width of the window for symbols of these deviations."""
    return max(LEAST_WINDOW, math.ceil(WINDOW * float(deviation.max())))


class Stack:
    """Bits, last in, first out, on top of ``sealed`` bytes that come back at the end.

    Args:
        sealed: Whole 32-bit words that the first pops may draw on.
    """

    def __init__(self, sealed: bytes) -> None:
        self._coder = _coder(np.frombuffer(sealed, dtype="<u4").astype(np.uint32), seal=True)

    @classmethod
    def of(cls, words: bytes) -> Stack:
        """The stack that :meth:`words` was taken from."""
        stack = cls.__new__(cls)
        try:
            stack._coder = _coder(np.frombuffer(words, dtype="<u4").astype(np.uint32), seal=False)
        except ValueError:
            raise DamagedError("the coded bits do not begin as such") from None
        return stack

    def words(self) -> bytes:
        """All of it, as bytes."""
        return bytes(self._coder.get_compressed().astype("<u4").tobytes())

    def unseal(self) -> bytes:
        """The sealed bytes, when everything on top of them is popped."""
        try:
            return bytes(self._coder.get_compressed(unseal=True).astype("<u4").tobytes())
        except (AssertionError, ValueError):
            raise DamagedError("the coded bits do not end as they must") from None

    @property
    def bits(self) -> int:
        """How many there are."""
        return int(self._coder.num_valid_bits())

    def clone(self) -> Stack:
        """A copy to go back to."""
        stack = Stack.__new__(Stack)
        stack._coder = self._coder.clone()
        return stack

    def pop(self, mean: Floats, deviation: Floats, half: int | None = None) -> Integers:
        """Integers around ``mean``, popped; ``half`` is the window where it is fixed."""
        centre = _centre(mean)
        n = window(deviation) if half is None else half
        found = self._pop(_gaussian(-n, n), (mean - centre).ravel(), deviation.ravel())
        offset = found.astype(np.int64)
        if half is None:
            outside = np.flatnonzero(np.abs(offset) == n)
            if len(outside):
                high, low = (self._pop(_uniform, count=len(outside)) for _ in range(2))
                excess = high.astype(np.int64) << ESCAPE_BITS | low
                offset[outside] += np.sign(offset[outside]) * excess
        whole: Integers = offset.reshape(mean.shape) + centre.astype(np.int64)
        return whole

    def push(
        self, symbols: Integers, mean: Floats, deviation: Floats, half: int | None = None
    ) -> None:
        """The inverse of :meth:`pop`."""
        centre = _centre(mean)
        n = window(deviation) if half is None else half
        offset = (symbols - centre.astype(np.int64)).ravel()
        clipped = np.clip(offset, -n, n)
        if half is None:
            outside = np.flatnonzero(np.abs(clipped) == n)
            if len(outside):
                excess = np.abs(offset[outside] - clipped[outside])
                if excess.max() > LARGEST:
                    raise DamagedError("the network's estimate is not finite")
                self._push((excess & (2**ESCAPE_BITS - 1)), _uniform)
                self._push((excess >> ESCAPE_BITS), _uniform)
        elif np.any(clipped != offset):
            raise DamagedError("a state is outside of its window")
        self._push(clipped, _gaussian(-n, n), (mean - centre).ravel(), deviation.ravel())

    def pop_pixels(self, mean: Floats, deviation: Floats, levels: int) -> Integers:
        """Grey levels around ``mean``; the outermost take the tails."""
        _centre(mean)
        found = self._pop(_gaussian(0, levels - 1), mean.ravel(), deviation.ravel())
        return found.astype(np.int64).reshape(mean.shape)

    def push_pixels(self, symbols: Integers, mean: Floats, deviation: Floats, levels: int) -> None:
        """The inverse of :meth:`pop_pixels`."""
        _centre(mean)
        self._push(symbols.ravel(), _gaussian(0, levels - 1), mean.ravel(), deviation.ravel())

    def _pop(
        self,
        family: Any,  # noqa: ANN401
        *parameters: Floats,
        count: int | None = None,
    ) -> NDArray[np.int32]:
        try:
            found: NDArray[np.int32] = self._coder.decode(
                family, *(parameters if count is None else (count,))
            )
        except (ValueError, AssertionError) as error:
            raise DamagedError(str(error)) from None
        return found

    def _push(self, symbols: Integers, family: Any, *parameters: Floats) -> None:  # noqa: ANN401
        try:
            self._coder.encode_reverse(symbols.astype(np.int32), family, *parameters)
        except (ValueError, AssertionError, KeyError) as error:
            raise DamagedError(str(error)) from None


def _centre(mean: Floats) -> Floats:
    """The rounded mean; refused where a damaged code has led the network out of all bounds."""
    if not np.all(np.abs(mean) < FARTHEST):  # also where it is not a number
        raise DamagedError("the network's estimate is out of bounds")
    return np.rint(mean)


def _coder(words: NDArray[np.uint32], seal: bool) -> Any:  # noqa: ANN401  it has no types
    return constriction.stream.stack.AnsCoder(words, seal=seal)
