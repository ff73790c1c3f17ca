"""NumPy files, tables, and the spec string."""

import struct

import numpy as np
import pytest

from idode.data import load
from idode.data.loading import parse
from idode.errors import InputError

RNG = np.random.default_rng(1)


def saved(tmp_path, array):
    np.save(tmp_path / "a.npy", array)
    return f"npy:{tmp_path / 'a.npy'}"


@pytest.mark.parametrize("shape", [(20, 3, 5, 6), (20, 5, 6, 3), (20, 5, 6)])
def test_integer_arrays_are_images_in_any_layout(shape, tmp_path):
    images = RNG.integers(0, 256, shape, dtype=np.uint8)
    dataset = load(saved(tmp_path, images), tmp_path / "cache")
    planes = images[:, None] if len(shape) == 3 else images
    planes = planes.transpose(0, 3, 1, 2) if shape[-1] == 3 else planes
    np.testing.assert_array_equal(dataset.train, np.delete(planes, [9, 19], axis=0))
    np.testing.assert_array_equal(dataset.test, planes[[9, 19]])
    assert (dataset.levels, dataset.train.dtype) == (256, np.uint8)
    assert dataset.dim == planes[0].size


@pytest.mark.parametrize(
    ("dtype", "top", "option", "levels", "stored"),
    [
        (np.uint8, 16, "?levels=16", 16, np.uint8),
        (np.int64, 256, "", 256, np.uint8),
        (np.uint16, 65536, "", 65536, np.uint16),
        (">u2", 1000, "?levels=1000", 1000, np.uint16),
        (np.uint16, 9, "?levels=9", 9, np.uint8),
    ],
)
def test_levels_decide_the_stored_type(dtype, top, option, levels, stored, tmp_path):
    images = RNG.integers(0, top, (30, 4, 4)).astype(dtype)
    dataset = load(saved(tmp_path, images) + option, tmp_path / "cache")
    assert (dataset.levels, dataset.train.dtype) == (levels, stored)
    np.testing.assert_array_equal(dataset.test[:, 0], images[9::10])


def test_floats_are_vectors_and_kept_as_they_are(tmp_path):
    rows = RNG.normal(5.0, 3.0, (50, 7))
    dataset = load(saved(tmp_path, rows) + "?test=0.2", tmp_path / "cache")
    assert (dataset.levels, dataset.shape, len(dataset.test)) == (None, (7,), 10)
    np.testing.assert_array_equal(dataset.test, rows[4::5].astype(np.float32))


@pytest.mark.parametrize(
    ("array", "option", "message"),
    [
        (np.zeros((9, 3, 4, 4)), "", "images must be integers"),
        (np.zeros((9, 7), np.uint8), "", "vectors are floats"),
        (np.zeros((9, 7, 7, 7), np.uint8), "", "images are"),
        (np.full((20, 4, 4), 200, np.uint8), "?levels=16", r"0\.\.15"),
        (np.full((20, 4, 4), -1), "", r"0\.\.255"),
        (np.full((20, 4, 4), 256), "", r"0\.\.255"),
        (np.full((20, 3), np.nan), "", "finite"),
        (np.full((20, 3), 1e300), "", "finite"),
        (np.zeros((20, 3)), "?levels=4", "leave it out"),
        (np.zeros((20, 4, 4), np.uint8), "?levels=1", "at least 2, got 1"),
        (np.zeros((20, 4, 4), np.uint8), "?test=1.5", "between 0 and 1"),
        (
            np.zeros((5, 4, 4), np.uint8),
            "",
            "has 5 train and 0 test samples, and both are needed: give at least 10, or 2",
        ),
        (
            np.zeros((5, 4, 4), np.uint8),
            "?test=0.05",
            "and both are needed: give at least 20, or 2 with test=0.5$",
        ),
        (
            np.zeros((1, 4, 4), np.uint8),
            "?test=0.5",
            "and both are needed: give at least 2$",
        ),
        (np.zeros((0, 4, 4), np.uint8), "", "rows of numbers"),
        (np.array(["a"]), "", "rows of numbers"),
        (np.array([{}]), "", "rows of numbers"),
        (np.zeros((20, 3)) + 1j, "", "rows of numbers"),
        (np.asfortranarray(np.zeros((20, 3))), "", "column-major"),
    ],
)
def test_arrays_that_cannot_be_data_are_refused(array, option, message, tmp_path):
    with pytest.raises(InputError, match=message):
        load(saved(tmp_path, array) + option, tmp_path / "cache")


def test_a_header_that_promises_more_than_the_file_is_refused(tmp_path):
    spec = saved(tmp_path, np.zeros((20, 8), np.float32))
    data = (tmp_path / "a.npy").read_bytes()
    for forged in (data[:-1], data[:60], b"", b"text", data.replace(b"(20, 8)", b"(99, 8)")):
        (tmp_path / "a.npy").write_bytes(forged)
        with pytest.raises(InputError, match=r"a\.npy"):
            load(spec, tmp_path / "cache")
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (4000000000000, 8), }\n"
    header = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
    (tmp_path / "a.npy").write_bytes(header + bytes(100))
    with pytest.raises(InputError, match="holds only"):
        load(spec, tmp_path / "cache")


@pytest.mark.parametrize("keys", [("train", "test"), ("x_train", "x_test")])
def test_npz_files_bring_their_splits(keys, tmp_path):
    train, test = (RNG.integers(0, 256, (n, 4, 4), dtype=np.uint8) for n in (7, 3))
    np.savez_compressed(tmp_path / "a.npz", **dict(zip(keys, (train, test), strict=True)), y=[1])
    dataset = load(f"npz:{tmp_path / 'a.npz'}", tmp_path / "cache")
    np.testing.assert_array_equal(dataset.train[:, 0], train)
    np.testing.assert_array_equal(dataset.test[:, 0], test)


def test_npz_files_of_several_arrays_need_a_key(tmp_path):
    rows = RNG.normal(size=(20, 2)).astype(np.float32)
    np.savez(tmp_path / "a.npz", points=rows, names=["a"])
    with pytest.raises(InputError, match="points, names"):
        load(f"npz:{tmp_path / 'a.npz'}", tmp_path / "cache")
    dataset = load(f"npz:{tmp_path / 'a.npz'}?key=points", tmp_path / "cache")
    np.testing.assert_array_equal(dataset.test, rows[9::10])
    with pytest.raises(InputError, match="'other'"):
        load(f"npz:{tmp_path / 'a.npz'}?key=other", tmp_path / "cache")
    (tmp_path / "b.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:-50])
    with pytest.raises(InputError, match=r"again as a \.npz"):
        load(f"npz:{tmp_path / 'b.npz'}", tmp_path / "cache")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("header", [True, False])
def test_tables_are_read_with_and_without_header(separator, header, tmp_path):
    rows = RNG.normal(size=(2500, 3)).astype(np.float32)
    lines = [separator.join(["a", "b", "c"])] * header
    lines += [separator.join(repr(float(v)) for v in row) for row in rows]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n\n")
    dataset = load(f"csv:{tmp_path / 't.csv'}?test=0.2", tmp_path / "cache")
    np.testing.assert_array_equal(dataset.test, rows[4::5])
    assert (dataset.identity.train_size, dataset.identity.test_size) == (2000, 500)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2\n3\n", "line 2 has 1 cells"),
        ("a,b\n1,x\n", "line 2"),
        ("1,2\n" * 12 + "nan,1\n" * 9, "line 13, column 1 holds 'nan', a missing value"),
        ("1,2\n" * 12 + "1,inf\n" * 9, "finite"),
        ("a,b\n1,2\n3,\n", r"line 3, column 2 \(b\) is empty, a missing value.*: fill it in, or"),
        ("1,NA\n2,3\n", "line 1, column 2 holds 'NA', a missing value"),
        (",0,1\n0,1.5,2.5\n1,3.5,4.5\n", "looks like an index: .* index=False"),
        ('"","a","b"\n1,1.5,2.5\n2,3.5,4.5\n', "looks like an index"),
        (",7,1.5\n0,1.5,2.5\n", "line 1, column 1 is empty, a missing value"),
        (
            "size,colour\n1,red\n",
            r"line 2, column 2 \(colour\) holds 'red', and every cell must be a number",
        ),
        ("a;b\n1,5;2,5\n", r"line 2, column 1 \(a\) holds '1,5', which is not one number: write"),
        ("1,5;2,5\n1,6;2,6\n", "column 2 .* holds '6;2', which is not one number: write numbers"),
        ("1 2\n3 4\n", "line 2, column 1 .* holds '3 4', which is not one number: .* separate"),
        ("", "t.csv holds no samples"),
        ("a,b\n", "t.csv holds no samples"),
        ("\x00\xff", "t.csv"),
    ],
)
def test_tables_that_are_none_are_refused(text, message, tmp_path):
    (tmp_path / "t.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=message):
        load(f"csv:{tmp_path / 't.csv'}", tmp_path / "cache")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("cifar100", "choose one of digits, mnist"),
        ("npy", "npy:PATH"),
        ("digits:there", "leave out the path"),
        ("cifar10?levels=8", "no options"),
        ("npy:a.npy?colour=3", "choose one of test, levels"),
        ("npy:a.npy?levels=many", "levels=many: must be a whole number"),
        ("npy:nowhere.npy", "there is no file"),
        ("cifar10:nowhere", "there is no file"),
        ("cifar10", "idode data fetch cifar10"),
        ("imagenet32-old", "official files as imagenet32-old:PATH"),
    ],
)
def test_specs_that_cannot_be_used_say_what_can(spec, message, tmp_path):
    with pytest.raises(InputError, match=message):
        load(spec, tmp_path)


def test_a_spec_keeps_its_path_and_types_its_options():
    spec = parse("folder:~/a b/c?size=32&test=0.2")
    assert dict(spec.options) == {"size": 32, "test": 0.2}
    assert spec.path is not None
    assert (spec.path.name, spec.path.is_absolute()) == ("c", True)
