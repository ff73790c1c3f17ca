"""Hostile files and arguments: a sentence within 2 s and 500 MB, whatever they declare."""

from __future__ import annotations

import copy
import gzip
import io
import os
import resource
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
from PIL import Image

from idode.cli.main import main
from idode.data.arrays import Npy
from idode.data.images import Images, decode
from idode.data.loading import load
from idode.data.unpickle import unpickle
from idode.errors import DataWarning, InputError
from idode.runs.run import Run, open_run
from idode.studies.report.page import Section, Table, render_html, render_markdown

MEGABYTES = 500


@pytest.fixture
def bounded() -> Iterator[None]:
    """Fails what takes 2 s of the processor or 500 MB."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    yield
    assert time.process_time() - began < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEGABYTES * 1024


def pairs() -> bytes:
    """40 nested pairs of one object: 2^40 when printed or hashed."""
    steps = (b"h" + bytes([i]) + b"h" + bytes([i]) + b"\x86q" + bytes([i + 1]) for i in range(40))
    return b"K\x01q\x00" + b"".join(steps)


# A text of 30 MB that is encoded a thousand times.
ENCODED = (
    b"\x80\x02}U\x01a(X" + (3 * 10**7).to_bytes(4, "little") + b"a" * 3 * 10**7 + b"q\x01"
    b"X\x06\x00\x00\x00latin1q\x02c_codecs\nencode\nq\x03"
    + b"h\x03h\x01h\x02\x86R" * 1000
    + b"ls."
)
PICKLES = {
    "deep key": lambda: b"\x80\x02}N" + b"\x85" * 10**6 + b"Ns.",
    "pairs as key": lambda: b"\x80\x02}" + pairs() + b"Ns.",
    "pairs as value": lambda: b"\x80\x02}U\x04data(" + pairs() + b"ts.",
    "pairs as shape": lambda: b"\x80\x02}U\x04datacnumpy\ndtype\n(" + pairs() + b"tRs.",
    "marks": lambda: b"N" * 200_000 + b"(t" * 100_000 + b".",
    "dicts": lambda: b"}" * 60_000_000 + b".",
    "one text often": lambda: ENCODED,
    "number as key": lambda: b"\x80\x02}K\x05Ns.",
}


@pytest.mark.parametrize("name", PICKLES)
@pytest.mark.usefixtures("bounded")
def test_a_pickle_bomb_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="not a pickled batch"):
        unpickle(PICKLES[name](), "batch")


def png(side: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (side, side)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.usefixtures("bounded")
def test_pictures_larger_than_their_file_can_hold_are_refused(tmp_path: Path) -> None:
    for i in range(2):
        (tmp_path / f"{i}.png").write_bytes(png(8192))
    with pytest.raises(InputError, match="IDODE_MAX_PIXELS"):
        load(f"folder:{tmp_path}", tmp_path / "cache")
    with pytest.raises(InputError, match="which real data does not"):
        decode(png(5000), "a.png")


def test_the_limits_can_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IDODE_MAX_RATIO", "100000")
    assert decode(png(5000), "a.png").shape == (1, 5000, 5000)
    monkeypatch.setenv("IDODE_MAX_PIXELS", "1000")
    with pytest.raises(InputError, match="more than 1000"):
        decode(png(50), "a.png")
    monkeypatch.setenv("IDODE_MAX_PIXELS", "many")
    with pytest.raises(InputError, match="IDODE_MAX_PIXELS=many: must be a whole number"):
        decode(png(50), "a.png")


@pytest.mark.usefixtures("bounded")
def test_a_tar_that_grows_a_thousandfold_is_refused(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.tar.gz", "wb", 9) as file:
        info = tarfile.TarInfo("a.txt")
        info.size = 10**9
        file.write(info.tobuf())
        for _ in range(60):
            file.write(bytes(1 << 20))
    with pytest.raises(InputError, match="which real data does not"):
        load(f"tar:{tmp_path / 'a.tar.gz'}", tmp_path / "cache")


@pytest.mark.usefixtures("bounded")
def test_a_tar_with_an_endless_name_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 10**10
    with (tmp_path / "a.tar").open("wb") as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        file.truncate(10**10 + 1024)  # sparse
    with pytest.raises(InputError, match="a name of 10000000000 bytes"):
        list(Images().read(tmp_path / "a.tar"))


@pytest.mark.usefixtures("bounded")
def test_overlapping_entries_of_a_zip_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("0.png", bytes(10**7))
        (first,) = archive.filelist
        for i in range(1, 500):
            again = copy.copy(first)
            again.filename = f"{i}.png"
            archive.filelist.append(again)
    with pytest.raises(InputError, match="which real data does not"):
        list(Images().read(tmp_path / "a.zip"))


def test_a_size_of_30000_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="size: must be at most"):
        Images(size=30000)
    (tmp_path / "a.png").write_bytes(png(4))
    with pytest.raises(InputError, match="size: must be at most"):
        load(f"folder:{tmp_path}?size=30000", tmp_path / "cache")


@pytest.mark.usefixtures("bounded")
def test_a_table_of_one_line_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"1," * 40_000_000)
    with pytest.raises(InputError, match="a line of more than"):
        load(f"csv:{tmp_path / 'a.csv'}", tmp_path / "cache")


def test_formats_that_are_not_documented_are_refused() -> None:
    page = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
    with pytest.raises(InputError, match="no known format"):
        decode(page, "a.png")


HEADERS = [
    b"{'descr': '<u1', 'shape': (3",
    b"(" * 9000,
    b"{'descr': 'O', '\xff",
    b"{" + b"[" * 5000,
]


@pytest.mark.parametrize("header", HEADERS, ids=range(len(HEADERS)))
def test_damaged_headers_of_arrays_are_a_sentence(tmp_path: Path, header: bytes) -> None:
    length = len(header).to_bytes(2, "little")
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + length + header)
    with pytest.raises(InputError, match=r"a\.npy"):
        list(Npy().read(tmp_path / "a.npy"))


def test_archives_with_names_of_no_encoding_are_a_sentence(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("éé.png", png(4))
    data = (tmp_path / "a.zip").read_bytes().replace("éé".encode(), b"\xff\xff\xff\xff")
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(InputError, match="cannot be read"):
        list(Images().read(tmp_path / "a.zip"))


@pytest.mark.parametrize("kind", ["npy", "csv", "npz", "tar", "folder", "cifar10"])
def test_a_pipe_as_data_does_not_hang(tmp_path: Path, kind: str) -> None:
    os.mkfifo(tmp_path / "pipe.npy")
    with pytest.raises(InputError, match="neither a file nor a folder"):
        load(f"{kind}:{tmp_path / 'pipe.npy'}", tmp_path / "cache")


@pytest.mark.parametrize("path", ["~a\0b/x", "a\0b"])
def test_a_null_character_in_a_path_is_a_sentence(path: str) -> None:
    """Which the fuzzer found."""
    with pytest.raises(InputError, match="null character"):
        load(f"folder:{path}")


def test_file_names_that_are_no_text_are_read(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff\xfe"
    os.mkdir(folder)
    for i in range(10):
        with open(folder + b"/%d\xff.png" % i, "wb") as file:
            file.write(png(4))
    found = load(f"folder:{os.fsdecode(folder)}", tmp_path / "cache")
    assert found.shape == (1, 4, 4)


@pytest.mark.parametrize("path", ["x" * 300, "~nosuchuser/x", "a/" * 3000])
def test_paths_that_cannot_exist_are_a_sentence(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (
        ["train", "digits", "--data", f"folder:{path}", "--out", "RUN"],
        ["train", "digits", "--out", path, "--steps", "1"],
        ["evaluate", path],
        ["evaluate", "pretrained:digits", "--json", path + "/r.json"],
        ["sample", "pretrained:digits", "--out", path + "/s.png"],
    ):
        if path.startswith("~") and "--data" not in words:
            continue  # a folder of that name
        assert main(words) == 2, words
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root")
def test_an_unreadable_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for i in range(10):
        (tmp_path / f"{i}.png").write_bytes(png(4))
    (tmp_path / "a").chmod(0)
    with pytest.warns(DataWarning, match="may not be read: its files are left out"):
        load(f"folder:{tmp_path}", tmp_path / "cache")
    (tmp_path / "a").chmod(0o700)


def test_a_folder_that_cannot_be_listed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For root too, whom permissions do not bind."""
    (tmp_path / "a").mkdir()
    for i in range(10):
        (tmp_path / f"{i}.png").write_bytes(png(4))
    scandir = os.scandir

    def denied(path: str) -> object:
        if str(path).endswith("/a"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.warns(DataWarning, match="may not be read: its files are left out"):
        load(f"folder:{tmp_path}", tmp_path / "cache")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--set", "net.width=100000000"], "the network needs"),
        (["--set", "net.depth=2147483648"], "must be at most"),
        (["--set", "train.batch_size=1000000000000"], "a batch needs more than"),
        (["--device", "meta"], "device meta cannot be used"),
    ],
)
@pytest.mark.usefixtures("bounded")
def test_absurd_sizes_are_refused_before_they_are_allocated(
    words: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "digits", "--out", str(tmp_path / "RUN"), *words]) == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "RUN").exists()


@pytest.mark.usefixtures("bounded")
def test_more_samples_than_memory_holds_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sample", "pretrained:digits", "--count", "1000000000000"]
    assert main([*words, "--out", str(tmp_path / "s.npz")]) == 2
    assert "1000000000000 samples need" in capsys.readouterr().err


def test_memory_that_torch_does_not_get_is_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["evaluate", "pretrained:digits", "--limit", "1", "--steps", "4", "--quiet"]
    assert main([*words, "--probes", "1000000000000"]) == 2
    assert "not enough memory" in capsys.readouterr().err

    def defect(*_: object, **__: object) -> None:
        raise RuntimeError("a defect of ours")

    monkeypatch.setattr("idode.evaluation.evaluate.evaluate", defect)
    with pytest.raises(RuntimeError, match="a defect of ours"):
        main(words)


def test_what_the_system_says_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def denied(self: Path, **_: object) -> bool:
        raise PermissionError(13, "Permission denied", "/a\n\x1b[31mb")

    monkeypatch.setattr(Path, "exists", denied)
    assert main(["train", "digits", "--out", str(tmp_path / "RUN")]) == 2
    text = capsys.readouterr().err
    assert text.startswith("idode train: /a\\n\\x1b[31mb: Permission denied")
    assert text.count("\n") == 1


def test_escapes_in_errors_are_spelled_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tiny.new_run(tmp_path / "RUN")
    text = (run.path / "config.json").read_text()
    hostile = "\\u001b]0;owned\\u0007\\nrm -rf"
    (run.path / "config.json").write_text(text.replace('"kind": "unet"', f'"kind": "{hostile}"'))
    assert main(["evaluate", str(run.path)]) == 2
    shown = capsys.readouterr().err
    assert "\x1b" not in shown
    assert shown.count("\n") == 1


def test_a_page_shows_tags_and_links_as_text() -> None:
    hostile = "<script>alert(1)</script> [x](javascript:alert(1)) ![y](z)\n# heading | \\[a](b)"
    section = Section("a", hostile, hostile, table=Table((hostile,), ((hostile,),)))
    content = hostile, hostile, {hostile: hostile}, [section], hostile
    page, text = render_html(*content), render_markdown(*content)
    for shown in (page, text):
        assert "<script>" not in shown
    assert "](javascript" not in text.replace("\\](", "")
    assert "\n# heading" not in text
    assert "\\\\\\[a\\]" in text


def test_training_a_dequantizer_ends_soon_after_ctrl_c(tmp_path: Path) -> None:
    words = ["dequantize", "pretrained:digits", "--out", str(tmp_path / "RUN"), "--steps", "9999"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "idode", *words], stderr=subprocess.PIPE, env=env
    )
    assert process.stderr is not None
    seen = b""
    while b"step" not in seen:  # the bar appears with the first step
        seen += os.read(process.stderr.fileno(), 1000)
    before = children_seconds()
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=120)[1]
    assert process.returncode == 130, rest
    assert children_seconds() - before < 60  # of the processor, start included
    assert (tmp_path / "RUN/dequantizer.safetensors").exists()


def children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_an_idx_file_that_grows_is_refused(tmp_path: Path) -> None:
    header = b"\x00\x00\x08\x03" + (2**31).to_bytes(4, "big") + (28).to_bytes(4, "big") * 2
    packer = zlib.compressobj(9, wbits=31)
    data = packer.compress(header) + packer.compress(bytes(1 << 26)) + packer.flush()
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(data)
    with pytest.raises(InputError, match="which real data does not"):
        load(f"mnist:{tmp_path}", tmp_path / "cache")


def test_a_hostile_identity_is_a_sentence(tmp_path: Path) -> None:
    run: Run = tiny.new_run(tmp_path / "RUN")
    text = (run.path / "config.json").read_text()
    for old, new in (('"levels": 4', '"levels": "4"'), ('"train_size": 40', '"train_size": []')):
        (run.path / "config.json").write_text(text.replace(old, new))
        with pytest.raises(InputError):
            open_run(run.path)


def test_rows_larger_than_memory_are_refused(tmp_path: Path) -> None:
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1, 1, 1, 10000000000)}"
    length = len(header).to_bytes(2, "little")
    with (tmp_path / "a.npy").open("wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + length + header)
        file.truncate(10**10 + 128)
    with pytest.raises(InputError, match="IDODE_MAX_FILE_BYTES"):
        list(Npy().read(tmp_path / "a.npy"))
