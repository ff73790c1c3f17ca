"""Pickled batches: everything published is read, everything else is refused unexecuted."""

import contextlib
import os
import pickle
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idode.data.unpickle import unpickle
from idode.errors import InputError

PIXELS = np.arange(2 * 3072, dtype=np.uint32).astype(np.uint8).reshape(2, 3072)


def python2_batch(pixels):
    """The bytes Python 2 and its NumPy wrote: binary strings, protocol 2."""
    raw = pixels.tobytes()
    return (
        b"\x80\x02}q\x00(U\x04dataq\x01cnumpy.core.multiarray\n_reconstruct\nq\x02"
        b"cnumpy\nndarray\nq\x03K\x00\x85U\x01b\x87Rq\x04(K\x01"
        + b"".join(b"J" + struct.pack("<i", n) for n in pixels.shape)
        + b"\x86cnumpy\ndtype\nq\x05U\x02u1K\x00K\x01\x87Rq\x06"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        b"T" + struct.pack("<I", len(raw)) + raw + b"tbU\x06labels]q\x07(K\x01K\x02eu."
    )


def read(data):
    return unpickle(data, "batch")


@pytest.mark.parametrize("protocol", range(6))
def test_every_protocol_of_python_3_is_read(protocol):
    batch = {
        "data": PIXELS,
        "labels": [1, 2],
        "mean": np.linspace(0, 1, 5),
        "name": b"\xff",
        b"none": None,
    }
    found = read(pickle.dumps(batch, protocol))
    np.testing.assert_array_equal(found["data"], PIXELS)
    np.testing.assert_array_equal(found["mean"], batch["mean"])
    assert (found["labels"], found["name"], found["none"]) == ([1, 2], b"\xff", None)


def test_python_2_batches_are_read_with_bytes_for_strings():
    found = read(python2_batch(PIXELS))
    np.testing.assert_array_equal(found["data"], PIXELS)
    assert found["labels"] == [1, 2]


def test_byte_order_and_memory_order_are_kept():
    swapped = np.arange(6, dtype=">i4").reshape(2, 3)
    found = read(pickle.dumps({"a": swapped, "b": np.asfortranarray(PIXELS)}, 2))
    np.testing.assert_array_equal(found["a"], swapped)
    np.testing.assert_array_equal(found["b"], PIXELS)


class Hostile:
    def __reduce__(self):
        return os.system, ("touch executed",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_calls_os_system_is_refused_and_not_executed(
    protocol, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"reference to (posix|nt)\.system"):
        read(pickle.dumps({"data": Hostile()}, protocol))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "data",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"\x80\x02cnumpy\nndarray\nK\x05\x85R.",  # allowed as an argument, not to be called
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n}X\x01\x00\x00\x00aK\x01sb.",
        b"(idata\nX\n.",
        b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x8c\x06system\x93.",
        b"]K\x01e.",
        b"K\x05.",
        b".",
        b"",
        pickle.dumps({"a": np.array([object()], dtype=object)}),
        pickle.dumps({"a": np.array(["text"])}),
        pickle.dumps({"data": PIXELS})[:-40],
    ],
)
def test_what_is_no_batch_is_refused(data):
    with pytest.raises(InputError, match="not a pickled batch"):
        read(data)


def test_a_shape_that_does_not_fit_the_bytes_is_refused():
    good = python2_batch(PIXELS)
    forged = good.replace(b"J" + struct.pack("<i", 2), b"J" + struct.pack("<i", 2**31 - 1))
    with pytest.raises(InputError, match="shape"):
        read(forged)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"x.",  # BINBYTES8
        b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"x.",  # BYTEARRAY8
        b"\x80\x02}r" + struct.pack("<I", 2**32 - 1) + b".",  # a memo slot far away
        b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b"x.",  # LONG4
    ],
)
def test_hostile_lengths_cost_no_memory(data):
    tracemalloc.start()
    try:
        with contextlib.suppress(InputError):
            read(data)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_damaged_batches_only_ever_raise_input_errors(data):
    good = bytearray(
        pickle.dumps({"data": PIXELS[:1, :20], "labels": [1, 2]}, data.draw(st.integers(0, 5)))
    )
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(InputError):
        read(bytes(good))
