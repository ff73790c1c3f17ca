"""Archives: files of all kinds come back, damaged and hostile ones are refused in one sentence."""

from __future__ import annotations

import functools
import io
import json
import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import time
import zlib
from dataclasses import dataclass

import numpy as np
import pytest
from PIL import Image

import idode
from idode.cli.main import main
from idode.codec import container
from idode.codec.archive import write_archive
from idode.codec.blocks import decode_block, encode_block
from idode.codec.bytestream import varint
from idode.codec.coder import DamagedError
from idode.codec.coding import model_for
from idode.codec.compress import compress_files
from idode.codec.decompress import decompress_files, verify_archive
from idode.codec.estimate import expected_size
from idode.codec.extraction import Archive
from idode.codec.files import Content, check_name, of_array, of_input, pack, unpack
from idode.codec.jobs import Decode, Encode, run_jobs
from idode.codec.network import one_thread
from idode.codec.recipes import restore, take_apart
from idode.data.loading import load
from idode.errors import DataWarning

MODEL = "pretrained:digits"


@pytest.fixture(scope="module")
def digits():
    return np.array(load("digits").test)


@pytest.fixture(scope="module")
def archive(digits):
    """24 digits, two of another size, a text: 2 steps, blocks of 12."""
    contents = [
        of_array("digits.npy", digits[:24]),
        of_array("others.npy", np.zeros((2, 3, 5, 6), dtype=np.uint8)),
    ]
    contents.append(Content("note/read me.txt", data=b"hello " * 9))
    file = io.BytesIO()
    write_archive(file, contents, model_for(MODEL), steps=2, block=12)
    return file.getvalue()


def everything(data: bytes, model) -> dict[str, bytes]:
    opened = Archive(io.BytesIO(data), "x")
    return {e.name: b for e, b in opened.contents(opened.entries, model)}


@functools.cache
def model():
    return model_for(MODEL)


def contents_of(data: bytes) -> dict[str, bytes]:
    return everything(data, model)


def png(mode: str, **options: object) -> bytes:
    rng = np.random.default_rng(0)
    picture = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).convert(mode)
    file = io.BytesIO()
    picture.save(file, "PNG", **options)
    return file.getvalue()


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def foreign_png() -> bytes:
    """A file Pillow would not write: all five filters, metadata, two IDAT chunks."""
    from idode.codec.png_filters import filtered

    pixels = np.random.default_rng(1).integers(0, 256, (10, 7 * 3), dtype=np.uint8)
    rows = filtered(pixels, bytes([0, 1, 2, 3, 4] * 2), 3)
    packed = zlib.compress(rows, 6)
    head = struct.pack(">IIBBBBB", 7, 10, 8, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", head), chunk(b"tEXt", b"Author\0somebody")]
    parts += [chunk(b"IDAT", packed[:40]), chunk(b"IDAT", packed[40:]), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def test_images_come_back_from_bytes(digits):
    data = idode.compress(digits[:40], MODEL, steps=2)
    assert np.array_equal(idode.decompress(data), digits[:40])
    assert len(data) < digits[:40].nbytes


def test_a_model_in_memory_needs_its_tables(digits):
    opened = model_for(MODEL)
    with pytest.raises(idode.InputError, match="has no tables"):
        idode.compress(digits[:4], opened.ode)
    data = idode.compress(digits[:9], opened.ode, tables=opened.tables, steps=2)
    with pytest.raises(idode.InputError, match="does not name its model: give it"):
        idode.decompress(data)
    found = idode.decompress(data, opened.ode, tables=opened.tables)
    assert np.array_equal(found, digits[:9])


@pytest.mark.parametrize(
    "bad", [np.zeros((2, 1, 8, 8)), np.full((2, 1, 8, 8), 300), np.zeros(3, int)]
)
def test_what_is_no_image_of_8_bits_is_refused(bad):
    with pytest.raises(idode.InputError, match="takes integer images"):
        idode.compress(bad, MODEL)


def test_images_beyond_the_levels_of_the_model_go_to_ordinary_coders():
    images = np.random.default_rng(0).integers(0, 256, (20, 1, 8, 8), dtype=np.uint8)
    with pytest.warns(DataWarning, match="levels of the model: ordinary coders are used"):
        data = idode.compress(images, MODEL)
    assert np.array_equal(idode.decompress(data), images)


def test_images_with_their_channels_last_are_said_to_be_of_another_kind(digits):
    last = digits[:4].transpose(0, 2, 3, 1)
    with pytest.warns(DataWarning, match=r"\(images \(8, 8, 1\), to 16; model \(1, 8, 8\), 17"):
        data = idode.compress(last, MODEL)
    assert np.array_equal(idode.decompress(data), last)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "LA", "P", "1"])
@pytest.mark.parametrize("options", [{}, {"optimize": True}, {"compress_level": 9}])
def test_png_files_of_pillow_come_back_byte_for_byte(mode, options):
    data = png(mode, **options)
    taken = take_apart("a.png", data)
    assert taken is not None
    assert taken.exact
    assert restore(taken.recipe, taken.images) == data


@pytest.mark.parametrize("kind", ["BMP", "PPM", "TIFF", "GIF", "TGA"])
def test_other_lossless_files_come_back_byte_for_byte_or_are_kept(kind):
    file = io.BytesIO()
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(file, kind)
    taken = take_apart(f"a.{kind}", file.getvalue())
    assert taken is None or restore(taken.recipe, taken.images) == file.getvalue()


def test_a_png_file_of_another_program_keeps_its_metadata_and_here_every_byte():
    data = foreign_png()
    taken = take_apart("a.png", data)
    assert taken is not None
    assert taken.exact
    assert restore(taken.recipe, taken.images) == data


def test_a_png_file_no_encoder_reproduces_keeps_pixels_and_metadata_or_with_exact_its_bytes(
    tmp_path,
):
    data = foreign_png()
    at = data.index(b"IDAT") - 4
    with Image.open(io.BytesIO(data)) as picture:
        pixels = np.asarray(picture)
    raw = b"".join(b"\0" + row.tobytes() for row in pixels.reshape(10, -1))
    stored = zlib.compressobj(0, zlib.DEFLATED, 10)  # a window nobody else uses
    body = stored.compress(raw) + stored.flush()
    odd = data[:at] + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "odd.png").write_bytes(odd)
    (folder / "big.png").write_bytes(png("RGB"))
    for exact in (False, True):
        out = tmp_path / f"{exact}.idode"
        compress_files(folder, out, MODEL, exact=exact, jobs=1, progress=False)
        decompress_files(out, tmp_path / str(exact), jobs=1, progress=False)
        made = (tmp_path / str(exact) / "odd.png").read_bytes()
        assert (made == odd) or not exact
        with Image.open(io.BytesIO(made)) as again:
            assert np.array_equal(np.asarray(again), pixels)
            assert again.info == {"Author": "somebody"}


def test_a_file_that_another_zlib_would_make_otherwise_is_refused_and_not_written(
    tmp_path, monkeypatch, digits
):
    given = {
        "foreign.png": foreign_png(),  # by zlib
        "ours.png": png("L"),  # by Pillow
        "small.npz": packed_files(digits[:9])["small.npz"],
    }
    path, out = tmp_path / "x.idode", tmp_path / "out"
    contents = [Content(n, t.images, t.recipe, d, t.exact) for n, d in given.items()
                if (t := take_apart(n, d))]  # fmt: skip
    monkeypatch.setattr("idode.codec.archive._smaller_as_bytes", lambda content: False)
    with path.open("wb") as file:
        write_archive(file, contents, model(), steps=2)
    assert contents_of(path.read_bytes()) == given

    def stored(data, level=0):
        packer = zlib.compressobj(0)
        return packer.compress(data) + packer.flush(zlib.Z_FULL_FLUSH) + packer.flush()

    save = Image.Image.save
    monkeypatch.setattr("idode.codec.recipes.zlib.compress", stored)
    monkeypatch.setattr("idode.codec.packed_arrays._deflated", stored)
    monkeypatch.setattr(
        Image.Image, "save", lambda self, file, kind: save(self, file, kind, compress_level=0)
    )
    monkeypatch.setattr(zlib, "ZLIB_RUNTIME_VERSION", "9.9")
    for name in given:
        with pytest.raises(idode.InputError, match=f"^{name} of .* cannot be restored") as refused:
            decompress_files(path, out, only=[name], jobs=1, progress=False)
        assert "there, 9.9 here" in str(refused.value)
        assert "\n" not in str(refused.value)
    assert not out.exists()
    before = resealed(path.read_bytes(), lambda h, i, s: [e.pop("check") for e in i["entries"]])
    unnoticed = contents_of(before)  # an archive without hashes
    assert all(unnoticed[name] != data for name, data in given.items())
    assert len(unnoticed["foreign.png"]) > len(given["foreign.png"])
    with Image.open(io.BytesIO(unnoticed["foreign.png"])) as picture:
        picture.load()  # what is deflated to more bytes than declared is not cut


@pytest.mark.parametrize("shape", [(5, 1, 8, 8), (5, 8, 8), (5, 8, 8, 3), (2, 3, 4, 4)])
def test_arrays_come_back_byte_for_byte(shape):
    file = io.BytesIO()
    np.save(file, np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))
    taken = take_apart("x.npy", file.getvalue())
    assert taken is not None
    assert taken.images.ndim == 4
    assert restore(taken.recipe, taken.images) == file.getvalue()


@pytest.mark.parametrize(
    "array",
    [np.zeros((3, 4)), np.zeros(4, np.uint8), np.asfortranarray(np.ones((2, 3, 4), np.uint8))],
)
def test_other_arrays_are_kept_as_bytes(array):
    file = io.BytesIO()
    np.save(file, array)
    assert take_apart("x.npy", file.getvalue()) is None


def packed_files(images: np.ndarray) -> dict[str, bytes]:
    """Files of other formats that hold the images ``(N, 1, 8, 8)``."""
    plain, small = io.BytesIO(), io.BytesIO()
    np.savez(plain, x_train=images[:5, 0], y=np.arange(5), x_test=images[5:, 0], other=np.eye(3))
    np.savez_compressed(small, labels=np.arange(9), images=images)
    colours = np.random.default_rng(0).integers(0, 256, (4, 3072), dtype=np.uint8)
    labels = np.array([[3, 42], [19, 99], [0, 0], [7, 7]], dtype=np.uint8)
    return {
        "plain.npz": plain.getvalue(),
        "small.npz": small.getvalue(),
        "images-idx3-ubyte": struct.pack(">4B3I", 0, 0, 8, 3, 9, 8, 8) + images.tobytes(),
        "data_batch.bin": np.concatenate([labels[:, 1:] % 10, colours], axis=1).tobytes(),
        "train.bin": np.concatenate([labels, colours], axis=1).tobytes(),
    }


def test_arrays_in_npz_idx_and_cifar_files_are_images_and_every_byte_comes_back(digits):
    shapes = {"data_batch.bin": (4, 3, 32, 32), "train.bin": (4, 3, 32, 32)}
    for name, data in packed_files(digits[:9]).items():
        taken = take_apart(name, data)
        assert taken is not None, name
        assert taken.images.shape == shapes.get(name, (9, 1, 8, 8))
        assert restore(taken.recipe, taken.images) == data
        if name not in shapes:
            assert np.array_equal(taken.images, digits[:9])


@pytest.mark.parametrize("name", ["x.npz", "x.bin", "x-idx3-ubyte", "x.npy"])
def test_files_of_other_content_under_such_names_are_kept_as_they_are(name, digits):
    data = packed_files(digits[:9])
    for broken in (b"", b"text", data["small.npz"][:-30], data["images-idx3-ubyte"][:-1]):
        assert take_apart(name, broken) is None
    assert take_apart("x.bin", bytes([11]) * 3073) is None  # no label of CIFAR-10
    odd = io.BytesIO()
    np.savez(odd, a=np.zeros(3), b=np.zeros((2, 8), dtype=np.uint8))
    assert take_apart("x.npz", odd.getvalue()) is None


@pytest.fixture
def folder(tmp_path, digits):
    """Digits as PNG files, photographs of other sizes, files that are no images, odd names."""
    root = tmp_path / "in"
    (root / "sub dir").mkdir(parents=True)
    for i in range(20):
        Image.fromarray(digits[i, 0]).save(root / f"{i:02d}.png")
    ramp = np.add.outer(np.arange(40), np.arange(51)).astype(np.uint8)
    Image.fromarray(np.stack([ramp, ramp * 2, ramp * 3], -1)).save(root / "sub dir" / "photo.png")
    Image.fromarray(ramp).save(root / "photo.jpg", quality=80)
    Image.fromarray(ramp).convert("P").save(root / "sub dir" / "palette.gif")
    (root / "sub dir" / "üñí.txt").write_text("not an image")
    (root / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    (root / "empty").write_bytes(b"")
    np.save(root / "array.npy", digits[:9])
    return root


def files_of(root):
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_a_folder_comes_back_whole(folder, tmp_path, capsys):
    out, back = tmp_path / "x.idode", tmp_path / "back"
    words = ["compress", str(folder), "--model", MODEL, "--out", str(out), "--steps", "2"]
    assert main([*words, "--jobs", "1", "--exact"]) == 0
    assert "verified by decoding" in capsys.readouterr().out
    assert main(["decompress", str(out), "--out", str(back), "--jobs", "1", "--quiet"]) == 0
    assert files_of(back) == files_of(folder)
    assert main(["compress", "--list", str(out)]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in files_of(folder))
    assert main(["compress", "--test", str(out), "--jobs", "1"]) == 0
    assert "all 27 files decode" in capsys.readouterr().out


def test_a_linked_folder_is_in_the_archive_and_what_leads_nowhere_is_told(tmp_path):
    for place in ("elsewhere/deep", "in/.hidden"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "a.txt").write_text(place)
    (tmp_path / "in" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in" / "lost").symlink_to(tmp_path / "gone")
    with pytest.warns(DataWarning, match=r"left out \(1, the first is .*/lost\)"):
        found = of_input(str(tmp_path / "in"))
    assert [content.name for content in found] == [".hidden/a.txt", "linked/deep/a.txt"]


def test_several_processes_code_and_decode_as_one_does(digits, monkeypatch, tmp_path):
    scheme = model().scheme(2)
    blocks = [digits[:8], digits[8:16]]
    coded = list(run_jobs([Encode(scheme, b, False) for b in blocks], 1, lambda n: None))
    work = [Encode(scheme, b, True) for b in blocks]
    work += [Decode(scheme, data, 8, (1, 8, 8)) for data in coded]
    done = []
    found = list(run_jobs(work, 2, done.append))  # one start of two processes for both ways
    assert found[:2] == coded
    assert np.array_equal(found[2:], blocks)
    assert sum(done) == 6 * 8  # two blocks coded and verified, two decoded
    used = []
    monkeypatch.setattr(
        "idode.codec.archive.run_jobs", lambda jobs, n, p: used.append(n) or iter(coded)
    )
    np.save(tmp_path / "x.npy", digits[:16])
    words = ["compress", str(tmp_path / "x.npy"), "--model", MODEL, "--out", str(tmp_path / "x")]
    assert main([*words, "--steps", "2", "--block", "8", "--jobs", "7", "--quiet"]) == 0
    assert used == [2]  # no more than there are blocks


def test_one_file_is_restored_without_the_other_blocks(archive, tmp_path, monkeypatch):
    path = tmp_path / "x.idode"
    path.write_bytes(archive)
    decoded = []
    from idode.codec import jobs

    real = jobs.decode_block
    monkeypatch.setattr(jobs, "decode_block", lambda *a: decoded.append(a[2]) or real(*a))
    decompress_files(path, tmp_path / "a", only=["others.npy"], jobs=1, progress=False)
    assert decoded == [2]
    assert list(files_of(tmp_path / "a")) == ["others.npy"]
    with pytest.raises(idode.InputError, match="holds no file nothing"):
        decompress_files(path, tmp_path / "b", only=["nothing"], jobs=1)


def test_files_come_in_any_order_that_is_asked_for(digits, tmp_path):
    root = tmp_path / "in"
    root.mkdir()
    for i in range(6):
        np.save(root / f"{i}.npy", digits[i : i + 3])
    out = tmp_path / "x.idode"
    compress_files(root, out, MODEL, steps=2, block=4, jobs=1, progress=False)
    names = ["0.npy", "5.npy", "1.npy", "4.npy"]
    assert decompress_files(out, tmp_path / "o", only=names, jobs=1, progress=False) == names
    assert files_of(tmp_path / "o") == {name: (root / name).read_bytes() for name in names}


def test_nothing_is_replaced_unless_asked(archive, tmp_path, capsys):
    path, out = tmp_path / "x.idode", tmp_path / "out"
    path.write_bytes(archive)
    words = ["compress", "digits", "--model", MODEL, "--out", str(path), "--limit", "3"]
    assert main(words) == 2
    assert "exists: give another name" in capsys.readouterr().err
    assert path.read_bytes() == archive
    (out / "note").mkdir(parents=True)
    (out / "note" / "read me.txt").write_text("mine")
    assert main(["decompress", str(path), "--out", str(out), "--jobs", "1"]) == 2
    assert "exists" in capsys.readouterr().err
    assert files_of(out) == {"note/read me.txt": b"mine"}
    assert main(["decompress", str(path), "--out", str(out), "--jobs", "1", "-f", "--quiet"]) == 0
    assert (out / "note" / "read me.txt").read_bytes() == b"hello " * 9


def test_what_is_missing_is_said(tmp_path, capsys):
    assert main(["compress", "digits"]) == 2
    assert "a model and an output are needed" in capsys.readouterr().err
    assert main(["compress", "nowhere", "--model", MODEL, "--out", str(tmp_path / "x")]) == 2
    assert "no file or folder nowhere, and no data set" in capsys.readouterr().err
    assert main(["decompress", str(tmp_path / "no"), "--out", str(tmp_path)]) == 2
    assert "cannot read" in capsys.readouterr().err
    (tmp_path / "text").write_text("text")
    assert main(["compress", "--test", str(tmp_path / "text")]) == 2
    assert "is not an archive of idode" in capsys.readouterr().err


@pytest.mark.parametrize("given", [["--limit", "3"], ["--split", "train"], ["--split", "test"]])
def test_a_limit_or_split_of_files_is_refused(folder, tmp_path, capsys, given):
    where = {"a folder, whose files are all": folder, "a file, which is": folder / "array.npy"}
    for what, path in where.items():
        for words in (["--out", str(tmp_path / "x")], ["--dry-run"]):
            assert main(["compress", str(path), "--model", MODEL, *words, *given]) == 2
            error = capsys.readouterr().err
            assert f"{path} is {what} compressed: leave out split and limit" in error
    assert not (tmp_path / "x").exists()


def test_listing_and_testing_write_json_too(archive, tmp_path, capsys):
    path, out = tmp_path / "x.idode", tmp_path / "r.json"
    path.write_bytes(archive)
    assert main(["compress", "--list", str(path), "--json", str(out)]) == 0
    value = json.loads(out.read_text())
    assert value["files"][0] == {"name": "digits.npy", "images": [24, 1, 8, 8], "exact": True}
    assert value["files"][2] == {"name": "note/read me.txt", "images": None, "exact": True}
    assert (value["bytes"], value["model"]) == (len(archive), MODEL)
    words = ["compress", "--test", str(path), "--jobs", "1", "--quiet", "--json"]
    assert main([*words, str(out)]) == 2
    assert "exists: give another name, or --force" in capsys.readouterr().err
    assert main([*words, str(out), "--force"]) == 0
    assert json.loads(out.read_text())["files"] == ["digits.npy", "others.npy", "note/read me.txt"]
    for option in ("--list", "--test"):
        assert main(["compress", option, str(path), "--json", str(path), "--force"]) == 2
        assert f"--json and {option} are the same file" in capsys.readouterr().err
    assert path.read_bytes() == archive


def test_places_are_texts_or_paths(digits, tmp_path):
    file, out, back = (str(tmp_path / name) for name in ("x.npy", "x.idode", "back"))
    np.save(file, digits[:6])
    (tmp_path / "blocks").mkdir()
    once = {"steps": 2, "jobs": 1, "progress": False}
    compress_files(file, out, MODEL, cache=str(tmp_path / "blocks"), **once)
    assert len(list((tmp_path / "blocks").iterdir())) == 1
    assert verify_archive(out, jobs=1, progress=False) == ["x.npy"]
    assert decompress_files(out, back, jobs=1, progress=False) == ["x.npy"]
    assert np.array_equal(np.load(tmp_path / "back" / "x.npy"), digits[:6])
    assert expected_size(tmp_path / "x.npy", MODEL, steps=2) == expected_size(file, MODEL, steps=2)


def test_an_archive_of_a_missing_model_says_so(archive, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "idode.codec.coding.open_run", lambda m: (_ for _ in ()).throw(idode.InputError("gone"))
    )
    path = tmp_path / "x.idode"
    path.write_bytes(archive)
    with pytest.raises(idode.InputError, match="made with pretrained:digits, which cannot be"):
        verify_archive(path, jobs=1, progress=False)


def test_the_expected_size_is_near_the_real_one(tmp_path, capsys):
    words = ["digits", "--model", MODEL, "--steps", "5"]
    assert main(["compress", *words, "--dry-run"]) == 0
    said = float(capsys.readouterr().out.split()[1])
    assert main(["compress", *words, "--out", str(tmp_path / "x"), "--quiet", "--no-verify"]) == 0
    assert said == pytest.approx((tmp_path / "x").stat().st_size, rel=0.02)  # one draw each


def mutations(data: bytes, count: int, seed: int):
    """Flipped, cut, inserted, repeated and exchanged bytes."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        at, other = sorted(int(i) for i in rng.integers(0, len(data), 2))
        kind = rng.integers(0, 6)
        if kind == 0:
            changed = data[:at] + bytes([data[at] ^ int(1 << rng.integers(0, 8))]) + data[at + 1 :]
        elif kind == 1:
            changed = data[:at]
        elif kind == 2:
            changed = data[:at] + bytes([int(rng.integers(0, 256))]) + data[at:]
        elif kind == 3:
            changed = data[:at] + data[other:]
        elif kind == 4:
            changed = data[:other] + data[at:other] + data[other:]
        else:
            changed = data[:at] + rng.bytes(other - at) + data[other:]
        if changed != data:
            yield changed


def test_a_changed_byte_anywhere_is_refused_before_anything_is_decoded(archive):
    def no_network():
        raise AssertionError("a change got as far as the network")

    for changed in mutations(archive, 600, 0):
        with pytest.raises(idode.InputError) as refused:
            everything(changed, no_network)
        assert "\n" not in str(refused.value)


def resealed(archive: bytes, change) -> bytes:
    """The archive with its index changed and all checksums right again, as an attacker would."""
    reader = container.ArchiveReader(io.BytesIO(archive), "x")
    index = dict(reader.index)
    index.pop("header")
    index = json.loads(json.dumps(index))
    header = dict(reader.header)
    sections = {}
    for group in index["groups"]:
        for place in group["blocks"]:
            sections[tuple(place)] = (b"B", reader.section(b"B", tuple(place)))
    for entry in index["entries"]:
        if "file" in entry:
            sections[tuple(entry["file"])] = (b"F", reader.section(b"F", tuple(entry["file"])))
    change(header, index, sections)
    file = io.BytesIO()
    writer = container.ArchiveWriter(file, header)
    moved = {old: writer.section(*content) for old, content in sorted(sections.items())}
    for group in index["groups"]:
        group["blocks"] = [moved.get(tuple(p), p) for p in group["blocks"]]
    for entry in index.get("entries", []):
        if "file" in entry:
            entry["file"] = moved.get(tuple(entry["file"]), entry["file"])
    writer.finish(index)
    return file.getvalue()


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "", "a//b", ".", "a/./b", "x\0y"])
def test_names_that_lead_out_of_the_folder_are_refused(archive, tmp_path, name):
    def change(header, index, sections):
        index["entries"][2]["name"] = name

    path = tmp_path / "x.idode"
    path.write_bytes(resealed(archive, change))
    with pytest.raises(idode.InputError, match="damaged"):
        decompress_files(path, tmp_path / "in" / "out", jobs=1, progress=False)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["x.idode"]
    with pytest.raises(DamagedError):
        check_name(name)


def test_a_link_in_the_folder_does_not_lead_a_file_out(archive, tmp_path):
    path, out, elsewhere = tmp_path / "x.idode", tmp_path / "out", tmp_path / "elsewhere"
    path.write_bytes(archive)
    out.mkdir()
    elsewhere.mkdir()
    (out / "note").symlink_to(elsewhere)
    with pytest.raises(idode.InputError, match="outside of"):
        decompress_files(path, out, jobs=1, progress=False)
    assert not list(elsewhere.iterdir())


HOSTILE = {
    "many images": lambda h, i, s: i["groups"][0].update(count=10**12),
    "large images": lambda h, i, s: i["groups"][1].update(shape=[3, 10**6, 10**6]),
    "no images": lambda h, i, s: i["groups"][0].update(count=0),
    "large blocks": lambda h, i, s: i["groups"][0].update(block=10**12),
    "another shape": lambda h, i, s: i["groups"][1].update(shape=[3, 6, 5]),
    "no model": lambda h, i, s: i["groups"][0].update(model=False),
    "a model for others": lambda h, i, s: i["groups"][1].update(model=True),
    "a place outside": lambda h, i, s: i["entries"][0].update(pixels=[0, 20, 20]),
    "another group": lambda h, i, s: i["entries"][0].update(pixels=[9, 0, 1]),
    "another recipe": lambda h, i, s: i["entries"][0].update(recipe=7),
    "a recipe of no kind": lambda h, i, s: i["recipes"][0].update(kind="x"),
    "a recipe without text": lambda h, i, s: i["recipes"][0].update(after=5),
    "another array": lambda h, i, s: i["recipes"][0]["pieces"][0].update(count=3),
    "an array of another shape": lambda h, i, s: i["recipes"][0].update(shape=[1, 4, 16]),
    "a large file": lambda h, i, s: i["entries"][2].update(size=10**15),
    "a longer file": lambda h, i, s: i["entries"][2].update(size=99),
    "another check": lambda h, i, s: i["entries"][2].update(check="00"),
    "two of a name": lambda h, i, s: i["entries"][2].update(name="digits.npy"),
    "no entries": lambda h, i, s: i.pop("entries"),
    "entries of text": lambda h, i, s: i.update(entries="text"),
    "steps of text": lambda h, i, s: h.update(steps="many"),
    "too many steps": lambda h, i, s: h.update(steps=10**9),
    "no header": lambda h, i, s: h.clear(),
    "a place of text": lambda h, i, s: i["groups"][0].update(blocks=["x", "y"]),
    "a place below zero": lambda h, i, s: i["groups"][0].update(blocks=[[-1, 5], [0, 5]]),
}  # fmt: skip


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_index_is_refused_in_one_sentence(archive, change):
    with pytest.raises(idode.InputError) as refused:
        contents_of(resealed(archive, change))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 600


def test_hostile_blocks_never_give_a_wrong_image(archive, digits):
    """Blocks changed behind right checksums: refused, or decoded right."""
    scheme = model().scheme(2)
    images = digits[:7]
    with one_thread():
        block = encode_block(scheme, images)
        for changed in mutations(block, 24, 0):
            try:
                found = decode_block(scheme, changed, 7, (1, 8, 8))
                assert np.array_equal(found, images)
            except DamagedError as error:
                assert "\n" not in str(error)  # noqa: PT017  either is allowed


@pytest.mark.parametrize("sizes", [[0], [1, 0, 1], [2, 2, 2], [3, 3]])
def test_batches_of_impossible_sizes_are_refused_before_they_are_decoded(sizes):
    head = b"".join(map(varint, [len(sizes), *sizes, 100]))
    with pytest.raises(DamagedError, match="impossible sizes"):
        decode_block(None, head + bytes(500), 3, (1, 8, 8))


@pytest.mark.parametrize("number", range(3))
def test_a_hostile_section_is_refused_in_one_sentence(archive, number):
    def change(header, index, sections):
        place = sorted(sections)[number]
        kind, data = sections[place]
        middle = len(data) // 2
        sections[place] = (kind, data[:middle] + bytes([data[middle] ^ 8]) + data[middle + 1 :])

    with pytest.raises(idode.InputError) as refused:
        contents_of(resealed(archive, change))
    assert "\n" not in str(refused.value)


def test_a_bomb_is_not_inflated():
    bomb = b"\1" + zlib.compress(bytes(50_000_000))
    with pytest.raises(DamagedError, match="another size"):
        unpack(bomb, 1000)
    assert unpack(pack(b"x" * 1000), 1000) == b"x" * 1000
    file = io.BytesIO()
    writer = container.ArchiveWriter(file, {})
    writer.finish({"x": "y" * (container.MAX_JSON + 10)})
    with pytest.raises(idode.InputError, match="wrong size"):
        container.ArchiveReader(file, "x")


def test_a_block_that_does_not_decode_is_stored_by_ordinary_coders(digits, monkeypatch):
    from idode.codec import jobs

    real = jobs.decode_block

    def flaky(scheme, *rest):
        if scheme is not None:
            raise DamagedError("another machine")
        return real(scheme, *rest)

    monkeypatch.setattr(jobs, "decode_block", flaky)
    data = idode.compress(digits[:9], MODEL, steps=2)
    monkeypatch.undo()
    assert np.array_equal(idode.decompress(data), digits[:9])


def test_an_interrupted_run_leaves_nothing_under_the_name(tmp_path, monkeypatch):
    def stop(*args, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("idode.codec.archive.run_jobs", stop)
    with pytest.raises(KeyboardInterrupt):
        compress_files("digits", tmp_path / "x.idode", MODEL, jobs=1, progress=False)
    assert not list(tmp_path.iterdir())


def killed_after(seconds: float, words: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "idode", *words], start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
def test_killed_processes_leave_whole_files_or_none(tmp_path, digits):
    source = tmp_path / "x.npy"
    np.save(source, digits[:60])
    before = source.read_bytes()
    words = ["compress", str(source), "--model", MODEL, "--steps", "4", "--block", "20", "-f"]
    out = tmp_path / "x.idode"
    for i in range(10):
        killed_after(1.0 + 0.6 * i, [*words, "--out", str(out)])
        if out.exists():
            assert verify_archive(out, jobs=1, progress=False) == ["x.npy"]
        assert source.read_bytes() == before
    assert main([*words, "--out", str(out), "--quiet"]) == 0
    back = tmp_path / "back" / "x.npy"
    for i in range(10):
        killed_after(1.0 + 0.5 * i, ["decompress", str(out), "--out", str(back.parent), "-f"])
        assert not back.exists() or back.read_bytes() == before


@dataclass(frozen=True)
class Sleep:
    """A job of so many seconds."""

    seconds: float

    def run(self, progress) -> float:
        time.sleep(self.seconds)
        return self.seconds


def test_work_that_is_given_up_ends_with_its_processes() -> None:
    results = run_jobs([Sleep(0), Sleep(600), Sleep(600)], 2, lambda n: None)
    assert next(results) == 0
    before = time.monotonic()
    results.close()
    assert multiprocessing.active_children() == []
    assert time.monotonic() - before < 60  # the jobs would take ten minutes
