"""Every reader on files made in its format, whole, cut short and forged."""

import gzip
import io
import pickle
import struct
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

from idode.data import load
from idode.data.archive import walk
from idode.data.cifar import read_cifar10
from idode.data.idx import read_idx
from idode.data.imagenet import read_imagenet32, read_imagenet32_old
from idode.data.images import Images
from idode.errors import DataWarning, InputError

RNG = np.random.default_rng(0)


def noise(*shape):
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def collect(chunks):
    parts = {"train": [], "test": []}
    for split, rows in chunks:
        parts[split].append(rows)
    return {split: np.concatenate(rows) for split, rows in parts.items() if rows}


def png(pixels):
    buffer = io.BytesIO()
    picture = pixels.transpose(1, 2, 0) if len(pixels) == 3 else pixels[0]
    Image.fromarray(np.ascontiguousarray(picture)).save(buffer, "PNG")
    return buffer.getvalue()


def write_tar(path, files, mode="w"):
    with tarfile.open(path, mode) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def write_zip(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)


def write_folder(path, files):
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)


# CIFAR-10

BATCHES = [
    "data_batch_4",
    "test_batch",
    "data_batch_1",
    "data_batch_3",
    "data_batch_2",
    "data_batch_5",
]


def cifar_files(layout):
    """Files in the shuffled order of the official archive, and the images they stand for."""
    pixels = {name: noise(3, 3, 32, 32) for name in BATCHES}
    files = {"cifar/readme.html": b"hello", "cifar/batches.meta": b"not a batch"}
    for name, images in pixels.items():
        rows = images.reshape(3, 3072)
        if layout == "binary":
            labels = np.full((3, 1), 9, np.uint8)
            files[f"cifar/{name}.bin"] = np.hstack([labels, rows]).tobytes()
        else:
            files[f"cifar/{name}"] = pickle.dumps({b"data": rows, b"labels": [1, 2, 3]}, 2)
    train = np.concatenate([pixels[f"data_batch_{i}"] for i in range(1, 6)])
    return files, {"train": train, "test": pixels["test_batch"]}


@pytest.mark.parametrize("layout", ["binary", "python"])
@pytest.mark.parametrize("form", ["folder", "archive", "folder of the archive"])
def test_cifar10_is_read_in_order_from_every_layout_and_form(layout, form, tmp_path):
    files, expected = cifar_files(layout)
    place = tmp_path
    if form == "folder":
        write_folder(tmp_path, files)
    else:
        write_tar(tmp_path / "cifar-10.tar.gz", files, "w:gz")
        place = tmp_path / "cifar-10.tar.gz" if form == "archive" else tmp_path
    found = collect(read_cifar10(place))
    for split in ("train", "test"):
        np.testing.assert_array_equal(found[split], expected[split])


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("data_batch_1.bin", bytes(3073 * 2 - 1), "not a multiple of 3073"),
        ("data_batch_1.bin", b"", "not a multiple"),
        ("data_batch_1", pickle.dumps({"data": noise(2, 3071)}), "rows of 3071"),
        ("data_batch_1", pickle.dumps({"labels": [1]}), "no array of bytes"),
        ("data_batch_1", pickle.dumps({"data": np.zeros((2, 3072))}), "no array of bytes"),
        ("data_batch_1", pickle.dumps({"data": noise(2, 3072)})[:500], "not a pickled batch"),
    ],
)
def test_wrong_cifar10_batches_are_refused(name, data, message, tmp_path):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=message):
        collect(read_cifar10(tmp_path))


def test_an_archive_cut_short_is_refused(tmp_path):
    files, _ = cifar_files("binary")
    write_tar(tmp_path / "whole.tar.gz", files, "w:gz")
    whole = (tmp_path / "whole.tar.gz").read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="get it again"):
        collect(read_cifar10(tmp_path / "cut.tar.gz"))


def test_a_tar_member_that_claims_a_terabyte_is_refused_before_it_is_read(tmp_path):
    info = tarfile.TarInfo("data_batch_1.bin")
    info.size = 1 << 40
    (tmp_path / "forged.tar").write_bytes(info.tobuf() + bytes(1024))
    with pytest.raises(InputError, match="at most"):
        collect(read_cifar10(tmp_path / "forged.tar"))


# MNIST


def idx(pixels):
    return struct.pack(">IIII", 0x803, *pixels.shape) + pixels.tobytes()


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_idx_files_are_read_gzipped_or_not(ending, tmp_path):
    pixels = {"train": noise(1500, 6, 5), "t10k": noise(4, 6, 5)}
    for name, images in pixels.items():
        data = idx(images)
        path = tmp_path / f"{name}-images-idx3-ubyte{ending}"
        path.write_bytes(gzip.compress(data) if ending else data)
        (tmp_path / f"{name}-labels-idx1-ubyte").write_bytes(b"labels are not read")
    found = collect(read_idx(tmp_path))
    np.testing.assert_array_equal(found["train"], pixels["train"][:, None])
    np.testing.assert_array_equal(found["test"], pixels["t10k"][:, None])


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("train-images-idx3-ubyte", idx(noise(3, 4, 4))[:-1], "cut short"),
        ("train-images-idx3-ubyte", idx(noise(3, 4, 4)) + b"x", "longer than it declares"),
        ("train-images-idx3-ubyte", b"\x00\x00\x08\x01" + bytes(12), "not an idx file"),
        ("train-images-idx3-ubyte", b"\x00\x00", "not an idx file"),
        (
            "train-images-idx3-ubyte",
            struct.pack(">IIII", 0x803, *[2**32 - 1] * 3),
            "declares images",
        ),
        ("train-images-idx3-ubyte", struct.pack(">IIII", 0x803, 2**32 - 1, 28, 28), "cut short"),
        ("train-images-idx3-ubyte.gz", gzip.compress(idx(noise(9, 9, 9)))[:-30], "cannot be read"),
        ("train-images-idx3-ubyte.gz", b"no gzip at all", "cannot be read"),
    ],
)
def test_wrong_idx_files_are_refused(name, data, message, tmp_path):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=message):
        collect(read_idx(tmp_path))


# ImageNet-32


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


@pytest.mark.parametrize("form", ["pickled", "npz"])
@pytest.mark.parametrize("packed", [True, False])
def test_new_imagenet32_is_read_in_order_from_batches_and_zips(form, packed, tmp_path):
    train, val = noise(11, 2, 3072), noise(3, 3072)

    def batch(rows):
        extra = {"labels": [1], "mean": np.zeros(3072)}
        return npz(data=rows, **extra) if form == "npz" else pickle.dumps({"data": rows, **extra})

    ending = ".npz" if form == "npz" else ""
    files = {f"train/train_data_batch_{i + 1}{ending}": batch(train[i]) for i in (9, 10, 0, 1)}
    held = {f"val/val_data{ending}": batch(val)}
    if packed:
        write_zip(tmp_path / "Imagenet32_train.zip", files)
        write_zip(tmp_path / "Imagenet32_val.zip", held)
    else:
        write_folder(tmp_path, {**files, **held})
    found = collect(read_imagenet32(tmp_path))
    np.testing.assert_array_equal(found["train"].reshape(4, 2, 3072), train[[0, 1, 9, 10]])
    np.testing.assert_array_equal(found["test"].reshape(3, 3072), val)


def test_a_damaged_zip_of_batches_is_refused(tmp_path):
    write_zip(tmp_path / "a.zip", {"train_data_batch_1": pickle.dumps({"data": noise(9, 3072)})})
    data = bytearray((tmp_path / "a.zip").read_bytes())
    data[len(data) // 2] ^= 255
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(InputError, match="get it again"):
        collect(read_imagenet32(tmp_path))


def test_old_imagenet32_is_streamed_from_its_two_tars(tmp_path):
    train, valid = noise(5, 3, 32, 32), noise(2, 3, 32, 32)
    for name, images in (("train_32x32", train), ("valid_32x32", valid)):
        files = {f"{name}/{i:05}.png": png(image) for i, image in enumerate(images)}
        write_tar(tmp_path / f"{name}.tar", files)
    found = collect(read_imagenet32_old(tmp_path))
    np.testing.assert_array_equal(found["train"], train)
    np.testing.assert_array_equal(found["test"], valid)


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path):
    write_zip(tmp_path / "bomb.zip", {"train_data_batch_1": bytes(100_000_000)})
    assert (tmp_path / "bomb.zip").stat().st_size < 200_000
    with pytest.raises(InputError, match="grows from"):
        collect(read_imagenet32(tmp_path / "bomb.zip"))
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.npy", bytes(100_000_000))
    with pytest.raises(InputError, match="grows from"):
        load(f"npz:{tmp_path / 'bomb.npz'}", tmp_path / "cache")


# Images


@pytest.mark.parametrize("form", ["folder", "tar", "tar.gz", "zip"])
def test_images_are_read_from_folders_and_archives_alike(form, tmp_path):
    images = noise(20, 3, 6, 4)
    files = {f"pictures/{i}.png": png(image) for i, image in enumerate(images)}
    files |= {"README.txt": b"not an image", "pictures/.hidden.png": b"nor this"}
    path = tmp_path / f"data.{form}"
    if form == "folder":
        write_folder(path, files)
    elif form == "zip":
        write_zip(path, files)
    else:
        write_tar(path, files, "w:gz" if form.endswith("gz") else "w")
    found = collect(Images().read(path))
    held = [9, 19]  # the last of every ten, in the order 0, 1, 2, ..., 10, 11
    np.testing.assert_array_equal(found["test"], images[held])
    np.testing.assert_array_equal(found["train"], np.delete(images, held, axis=0))


@pytest.mark.parametrize("name", ["test", "val", "Valid"])
def test_folders_called_train_and_test_are_the_splits(name, tmp_path):
    images = noise(4, 1, 5, 5)
    names = ["train/a.png", "train/deep/b.png", f"{name}/c.png", "stray.png"]
    write_folder(tmp_path, {n: png(i) for n, i in zip(names, images, strict=True)})
    found = collect(Images().read(tmp_path))
    np.testing.assert_array_equal(found["train"], images[:2])
    np.testing.assert_array_equal(found["test"], images[2:3])


def test_linked_folders_are_read_and_loops_end(tmp_path):
    images = noise(6, 1, 5, 5)
    names = ["in/test/a.png", "in/test/b.png", *(f"elsewhere/{n}.png" for n in (2, 10, 11, 12))]
    write_folder(tmp_path, {n: png(i) for n, i in zip(names, images, strict=True)})
    (tmp_path / "in" / "train").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "itself").symlink_to(".")
    (tmp_path / "in" / "test" / "up").symlink_to("..")
    (tmp_path / "in" / "out").symlink_to(tmp_path)
    with pytest.warns(DataWarning, match=r"above or read already are left out \(4, the first is"):
        found = collect(Images().read(tmp_path / "in"))
    np.testing.assert_array_equal(found["train"], images[2:])
    np.testing.assert_array_equal(found["test"], images[:2])


@pytest.mark.filterwarnings("ignore:links that lead to a folder")
def test_folders_that_link_to_each_other_are_read_once_more_at_most(tmp_path):
    names = "abcdef"
    write_folder(tmp_path, {f"in/{n}/{n}.png": png(noise(1, 5, 5)) for n in names})
    for one in names:
        for other in set(names) - {one}:
            (tmp_path / "in" / one / f"to-{other}").symlink_to(tmp_path / "in" / other)
    found = walk(tmp_path / "in")
    assert {file.name for file in found} == {f"{n}.png" for n in names}
    assert len(found) <= 2 * len(names)


def test_two_links_to_one_folder_are_two_folders(tmp_path):
    write_folder(tmp_path, {"elsewhere/a.png": png(noise(1, 5, 5))})
    (tmp_path / "in").mkdir()
    for name in ("train", "test"):
        (tmp_path / "in" / name).symlink_to(tmp_path / "elsewhere")
    found = collect(Images().read(tmp_path / "in"))
    np.testing.assert_array_equal(found["train"], found["test"])


def test_links_that_lead_nowhere_are_told(tmp_path):
    write_folder(tmp_path, {f"in/test/{i}.png": png(noise(1, 5, 5)) for i in range(10)})
    (tmp_path / "in" / "train").symlink_to(tmp_path / "elsewhere")
    with pytest.warns(DataWarning, match=r"lead nowhere are left out \(1, the first is .*/train"):
        load(f"folder:{tmp_path / 'in'}", tmp_path / "cache")


def test_formats_modes_and_palettes_are_understood(tmp_path):
    picture = Image.fromarray(noise(8, 8, 3))
    picture.save(tmp_path / "a.bmp")
    picture.convert("RGBA").save(tmp_path / "b.webp", lossless=True)
    picture.convert("P").save(tmp_path / "c.gif")
    picture.convert("L").save(tmp_path / "d.png")
    found = collect(Images(test=0.5).read(tmp_path))
    rows = np.concatenate([found["train"], found["test"]])  # a, c, b, d
    expected = np.asarray(picture).transpose(2, 0, 1)
    np.testing.assert_array_equal(rows[0], expected)
    np.testing.assert_array_equal(rows[2], expected)
    assert (rows[3][0] == rows[3][2]).all()


def test_size_crops_the_centre_and_averages(tmp_path):
    image = np.zeros((1, 4, 8), np.uint8)
    image[0, :2, 2:4] = 100  # inside the centred 4x4 square, its upper left quarter
    write_folder(tmp_path, {"a.png": png(image), "b.png": png(noise(1, 9, 5))})
    found = collect(Images(test=0.5, size=2).read(tmp_path))
    np.testing.assert_array_equal(found["train"][0, 0], [[100, 0], [0, 0]])
    assert found["test"].shape == (1, 1, 2, 2)


def test_16_bit_grey_keeps_all_its_levels(tmp_path):
    deep = RNG.integers(0, 65536, (10, 4, 4), dtype=np.uint16)
    for i, image in enumerate(deep):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    dataset = load(f"folder:{tmp_path}", tmp_path / ".cache")
    assert (dataset.levels, dataset.train.dtype) == (65536, np.uint16)
    np.testing.assert_array_equal(dataset.train[:, 0], deep[:9])


def rgb16():
    """A 1x1 PNG of 16-bit colour, which Pillow cannot write."""
    import zlib

    def chunk(kind, body):
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
    body = zlib.compress(b"\x00" + bytes(range(6)))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    )


def huge():
    """A PNG that declares 60000 x 60000 pixels in a few bytes."""
    return rgb16().replace(
        struct.pack(">IIBB", 1, 1, 16, 2), struct.pack(">IIBB", 60000, 60000, 8, 2)
    )


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "data holds no samples"),
        ({"notes.txt": b"hello"}, "data holds no samples"),
        ({"a.png": b"this is text"}, r"a\.png is not a readable image"),
        ({"a.png": png(noise(3, 9, 9))[:120]}, r"a\.png is not a readable image"),
        ({"a.png": b""}, r"a\.png is not a readable image"),
        ({"a.png": png(noise(3, 9, 9)), "b.png": png(noise(3, 8, 9))}, "size=N"),
        ({"a.png": png(noise(1, 9, 9)), "b.png": png(noise(3, 9, 9))}, "channels=3"),
        ({"a.png": rgb16()}, "16-bit colour"),
        ({"a.png": huge()}, "60000x60000|not a readable image"),
        (
            {"a.png": png(noise(3, 9, 9))},
            "has 1 train and 0 test samples, and both are needed: give at least 10",
        ),
    ],
)
def test_wrong_folders_are_refused(files, message, tmp_path):
    (tmp_path / "data").mkdir()
    write_folder(tmp_path / "data", files)
    with pytest.raises(InputError, match=message):
        load(f"folder:{tmp_path / 'data'}", tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.npy"))


def test_a_broken_picture_is_called_by_the_path_that_was_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos" / "may").mkdir(parents=True)
    (tmp_path / "photos" / "may" / "a.png").write_bytes(b"no picture")
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        archive.writestr("may/a.png", b"no picture")
    for place, kind in (("photos", "folder"), ("photos.zip", "tar")):
        with pytest.raises(InputError) as caught:
            load(f"{kind}:{place}", tmp_path / "cache")
        assert str(caught.value) == (
            f"{place}/may/a.png is not a readable image (no known format): remove or replace it"
        )
