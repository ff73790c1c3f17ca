import contextlib
import resource
import time
from pathlib import Path

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from idode.errors import InputError
from idode.nets.flax_format import DTYPES, decode, encode, leaves, read, write

REFERENCE = Path(__file__).parent / "reference"
FUZZ = settings(max_examples=150, deadline=None)


def array_bytes(shape, dtype, buffer, code=1):
    return msgpack.ExtType(code, msgpack.packb((shape, dtype, buffer)))


def file_with(value):
    return msgpack.packb({"a": value})


@pytest.mark.parametrize("name", ["tiny", "tiny_attention"])
def test_a_file_of_flax_is_read_and_written_back_byte_for_byte(name, tmp_path):
    path = REFERENCE / f"{name}.flax"
    tree = read(path)
    assert tree["step"] == 1234
    assert tree["step"].dtype == np.int32
    write(tmp_path / "copy.flax", tree)
    assert (tmp_path / "copy.flax").read_bytes() == path.read_bytes()


arrays = hnp.arrays(
    st.sampled_from(sorted(DTYPES)).map(np.dtype), hnp.array_shapes(min_dims=0, min_side=0)
)
trees = st.recursive(
    st.dictionaries(st.text(max_size=5), arrays | st.integers(0, 9) | st.none(), max_size=3),
    lambda inner: st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@FUZZ
@given(trees, st.sampled_from([4, 16, 2**30]))
def test_any_tree_comes_back_whatever_the_chunks(tree, chunk_bytes):
    back = decode(encode(tree, chunk_bytes=chunk_bytes))
    ours, theirs = list(leaves(tree)), list(leaves(back))
    assert [path for path, _ in ours] == [path for path, _ in theirs]
    for (_, a), (_, b) in zip(ours, theirs, strict=True):
        if isinstance(a, np.ndarray):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert a.tobytes() == b.tobytes()
        else:
            assert a == b


def test_large_arrays_are_chunked_as_flax_does():
    plain = msgpack.unpackb(encode({"a": np.arange(5, dtype=np.int8)}, chunk_bytes=2))["a"]
    assert plain["__msgpack_chunked_array__"] is True
    assert plain["shape"] == {"0": 5}
    assert list(plain["chunks"]) == ["0", "1", "2"]


def test_bfloat16_is_read_as_the_float32_of_the_same_value():
    upper = (np.float32([1.5, -2.0]).view(np.uint32) >> 16).astype(np.uint16)
    tree = decode(file_with(array_bytes([2], "bfloat16", upper.tobytes())))
    assert tree["a"].dtype == np.float32
    assert tree["a"].tolist() == [1.5, -2.0]


CHUNKED = {"__msgpack_chunked_array__": True}
HOSTILE = {
    "10 GB declared": (array_bytes([2_500_000_000], "float32", b"abcd"), "shape"),
    "10 GB in two axes": (array_bytes([50_000, 50_000], "float32", b"abcd"), "1 entries"),
    "huge empty": (array_bytes([0, 2**62, 2**62], "float32", b""), "shape"),
    "negative": (array_bytes([-1], "float32", b"abcd"), "shape"),
    "boolean size": (array_bytes([True], "float32", b"abcd"), "shape"),
    "shape is text": (array_bytes("4", "float32", b"abcd"), "shape"),
    "33 axes": (array_bytes([1] * 33, "float32", b"abcd"), "shape, dtype, bytes"),
    "half an entry": (array_bytes([1], "float32", b"abc"), "0.75 entries"),
    "objects": (array_bytes([1], "object", b"abcdefgh"), "dtype object"),
    "records": (array_bytes([1], "V8", b"abcdefgh"), "dtype V8"),
    "dtype is a number": (array_bytes([1], 7, b"abcd"), "dtype 7"),
    "two parts": (msgpack.ExtType(1, msgpack.packb(([1], "float32"))), "shape, dtype, bytes"),
    "no msgpack": (msgpack.ExtType(1, b"\xc1"), "shape, dtype, bytes"),
    "empty": (msgpack.ExtType(1, b""), "shape, dtype, bytes"),
    "array in an array": (
        msgpack.ExtType(1, msgpack.packb(array_bytes([], "bool", b"a"))),
        "array",
    ),
    "scalar with axes": (array_bytes([1], "float32", b"abcd", code=3), "scalar of shape"),
    "foreign extension": (msgpack.ExtType(42, b"x"), "type 42"),
    "chunks missing": (CHUNKED, "numbered from 0"),
    "chunks empty": (CHUNKED | {"shape": {}, "chunks": {}}, "without chunks"),
    "chunks of text": (CHUNKED | {"shape": {"0": 1}, "chunks": {"0": "x"}}, "without chunks"),
    "chunks numbered from 1": (CHUNKED | {"shape": {"1": 1}, "chunks": {}}, "numbered from 0"),
    "chunks too few": (
        CHUNKED | {"shape": {"0": 9**9}, "chunks": {"0": array_bytes([1], "int8", b"a")}},
        "with 1 entries",
    ),
    "a long list": (list(range(100)), "damaged"),
    "name that is a number": ({1: 2}, "damaged"),
    "name that is bytes": ({b"x": 2}, "not text"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_values_are_refused_with_a_sentence(name):
    value, message = HOSTILE[name]
    with pytest.raises(InputError, match=message):
        decode(file_with(value))


def test_names_that_come_twice_are_refused():
    with pytest.raises(InputError, match="'a' twice"):
        decode(b"\x82\xa1a\x01\xa1a\x02")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "ends too early"),
        (b"\x93\x01\x02\x03", "holds a list"),
        (b"\x80\x00", "1 bytes follow"),
        (b"\xc1", "damaged"),
        (b"\x81" * 5000, "damaged"),
        (b"\x81\xa1a" * 5000, "damaged"),
        (b"\xdf\xff\xff\xff\xff", "damaged|too early"),
        (b"\xdd\xff\xff\xff\xff" * 1000, "damaged"),
        (b"\x81\xa1a\xc9\xff\xff\xff\xff\x01", "damaged|too early"),
        (b"\x81\xa1a\xc6\xff\xff\xff\xff", "damaged|too early"),
        (b"\x81\xa1\xff\x01", "damaged"),
    ],
)
def test_damaged_bytes_are_refused_with_a_sentence(data, message):
    with pytest.raises(InputError, match=message):
        decode(data)


@FUZZ
@given(st.binary(max_size=200))
def test_random_bytes_give_a_tree_or_a_refusal(data):
    with contextlib.suppress(InputError):
        assert isinstance(decode(data), dict)


SMALL = encode({"step": np.int32(3), "w": {"k": np.ones((2, 3), np.float32)}, "e": {}})


@FUZZ
@given(st.integers(0, len(SMALL) - 1), st.integers(1, 255))
def test_a_changed_byte_gives_a_tree_or_a_refusal(place, change):
    data = bytearray(SMALL)
    data[place] ^= change
    with contextlib.suppress(InputError):
        list(leaves(decode(bytes(data))))


@pytest.mark.parametrize("length", range(len(SMALL)))
def test_every_truncation_is_refused(length):
    with pytest.raises(InputError):
        decode(SMALL[:length])


def test_paths_of_hostile_depth_or_length_are_refused():
    tree = {}
    for _ in range(5000):  # deeper than Python recurses
        tree = {"name": tree}
    with pytest.raises(InputError, match="longer than 200"):
        list(leaves(tree | {"x": 1}))
    with pytest.raises(InputError, match="longer than 200"):
        list(leaves({"a" * 300: 1}))


def test_a_sparse_file_of_10_gb_is_refused_at_once_in_little_memory(tmp_path):
    path = tmp_path / "huge.flax"
    with path.open("wb") as file:
        file.truncate(10 * 2**30)
    # CPU time: on a busy machine the clock on the wall runs on.
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(InputError, match=r"huge.flax is not a flax checkpoint: it holds a int"):
        read(path)
    assert time.process_time() - start < 5
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # KiB on Linux
    assert grown < 200 * 1024


def test_a_file_that_cannot_be_read_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read(tmp_path / "none.flax")
    with pytest.raises(InputError, match="not a regular file"):
        read(tmp_path)


def test_values_flax_cannot_hold_are_not_written():
    with pytest.raises(InputError, match="dtype object"):
        encode({"a": np.array([None])})
    with pytest.raises(InputError, match="a set in the tree"):
        encode({"a": {1, 2}})
