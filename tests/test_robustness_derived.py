"""Damaged and hostile files of what is made with a model: a sentence, or made again."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import resource
import signal
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from fuzz_derived import DIGITS, estimator, kept_calibration
from PIL import EpsImagePlugin, Image
from safetensors import safe_open
from safetensors.torch import load_file

from idode.codec.blocks import decode_block
from idode.codec.coder import DamagedError
from idode.codec.coding import _check_tables
from idode.codec.extraction import open_archive
from idode.codec.recipes import take_apart
from idode.codec.tables import Tables
from idode.detection.detector import Detector
from idode.errors import InputError
from idode.evaluation.kept_calibration import KeptCalibrations
from idode.evaluation.sample_parts import StoredParts
from idode.nets.flax_format import read as read_flax
from idode.runs.dequantizer_file import DEQUANTIZER, load_dequantizer, save_dequantizer
from idode.runs.run import open_run
from idode.runs.tensor_file import save_tensors
from idode.sampling.fid import FeatureStatistics
from idode.sampling.reading import read_samples
from idode.training.flow_fitting import untrained_dequantizer

SHAPE = (1, 8, 8)


@pytest.fixture
def ends() -> Iterator[None]:
    """Fails what waits for a pipe instead of for ever."""

    def late(*_: object) -> None:
        raise TimeoutError("it waits for a pipe")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def of_run(name: str, read: Callable[[Any], object]) -> tuple[str, Callable[[Path], object]]:
    return name, lambda path: read(open_run(path.parent))


PIPES = {
    "weights": of_run("model.safetensors", lambda run: run.weights()),
    "dequantizer": of_run("dequantizer.safetensors", load_dequantizer),
    "tables": ("codec.safetensors", Tables.load),
    "detector": ("detector.safetensors", Detector.load),
    "samples": ("s.npz", lambda path: read_samples(path, 4)),
    "statistics": ("f.npz", FeatureStatistics.load),
    "checkpoint": ("a.flax", read_flax),
    "archive": ("a.idode", open_archive),
}


@pytest.mark.usefixtures("ends")
@pytest.mark.parametrize("kind", PIPES)
def test_a_pipe_is_refused(kind: str, tmp_path: Path) -> None:
    name, read = PIPES[kind]
    run = tiny.new_run(tmp_path / "RUN")
    os.mkfifo(run.path / name)
    with pytest.raises(InputError, match="not a regular file"):
        read(run.path / name)


def npz(path: Path, header: str, data: bytes, name: str = "data.npy") -> Path:
    """A file of one array that says of itself what it likes."""
    text = header.encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        head = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
        archive.writestr(name, head + data)
    return path


HEADER = "{{'descr': '{}', 'fortran_order': False, 'shape': {}}}"


def test_arrays_that_grow_or_lie_are_refused(tmp_path: Path) -> None:
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    zeros = npz(tmp_path / "a.npz", HEADER.format("|u1", (60, 1, 1000, 1000)), bytes(60 << 20))
    with pytest.raises(InputError, match="which real data does not"):
        read_samples(zeros, 256)
    many = npz(tmp_path / "b.npz", HEADER.format("|u1", (10**6, 1, 1000, 1000)), bytes(9))
    with pytest.raises(InputError, match="cut short or forged"):
        read_samples(many, 256)
    object_ = npz(tmp_path / "c.npz", HEADER.format("|O", (1, 1, 1, 1)), bytes(9))
    with pytest.raises(InputError, match="holds object"):
        read_samples(object_, 256)
    assert time.process_time() - began < 4
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 * 1024


@pytest.mark.parametrize("count", [0, -3, float("nan")])
def test_feature_statistics_of_no_images_are_refused(count: float, tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", count=count, mean=np.zeros(2), scatter=np.eye(2))
    with pytest.raises(InputError, match="no usable feature statistics"):
        FeatureStatistics.load(tmp_path / "f.npz")


def test_a_damaged_part_of_samples_is_drawn_again(tmp_path: Path) -> None:
    parts = StoredParts(tmp_path / "s.png", {}, tiny.CPU)
    parts.folder.mkdir()
    x, nfe = np.zeros((3, 1)), np.array(1.0)
    for arrays in ({"x": x}, {"x": nfe, "nfe": nfe}, {"x": x, "nfe": nfe, "log_p": x[:2, 0]}):
        np.savez(parts.folder / "0000000-0000003.npz", **arrays)
        assert parts.get(0, 3) is None
    data = bytearray((parts.folder / "0000000-0000003.npz").read_bytes())
    data[data.index(b"PK\x01\x02") + 6] = 195  # the version of zip that is needed
    (parts.folder / "0000000-0000003.npz").write_bytes(data)
    assert parts.get(0, 3) is None


def test_a_block_with_a_batch_of_no_images_is_damaged() -> None:
    with pytest.raises(DamagedError, match="impossible sizes"):
        decode_block(None, bytes([1, 0, 1, 0, 0, 0, 0, 0]), 3, SHAPE)


def changed_detector(path: Path, about: dict[str, object], **arrays: torch.Tensor) -> Path:
    """The shipped one with other values."""
    source = DIGITS / "detector.safetensors"
    with safe_open(str(source), "pt") as opened:
        text = json.dumps({**json.loads(opened.metadata()["about"]), **about})
    save_tensors(path, {**load_file(source), **arrays}, {"about": text})
    return path


@pytest.mark.parametrize(
    "about",
    [
        {"seed": float("inf")},
        {"seed": -1},
        {"clean": 5},
        {"clean": [float("nan")] * 6},
        {"noised": [1.0, 2.0, 3.0, 4.0]},
        {"bits_error": "nan"},
        {"format": []},
    ],
    ids=str,
)
def test_a_detector_of_other_values_is_refused(about: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="calibrate again"):
        Detector.load(changed_detector(tmp_path / "d.safetensors", about))


def test_a_detector_of_other_arrays_is_refused(tmp_path: Path) -> None:
    known = load_file(DIGITS / "detector.safetensors")
    for name, value in (
        ("known", known["known"].flip(0)),
        ("known", known["known"][:0]),
        ("weights", known["weights"][:-1]),
        ("scale", known["scale"] * 0),
        ("mean", known["mean"] * float("nan")),
        ("mean", known["mean"].long()),
    ):
        with pytest.raises(InputError, match="calibrate again"):
            Detector.load(changed_detector(tmp_path / "d.safetensors", {}, **{name: value}))
    assert Detector.load(changed_detector(tmp_path / "d.safetensors", {})).levels.nfe == 10


def test_tables_that_do_not_fit_are_refused() -> None:
    good = Tables.load(DIGITS / "codec.safetensors")
    _check_tables(good, SHAPE)
    for change in (
        {"about": {**good.about, "side": 3}},
        {"about": {**good.about, "side": 10**9}},
        {"about": {**good.about, "side": []}},
        {"about": {**good.about, "feature": "colour"}},
        {"gamma": good.gamma[::-1]},
        {"gamma": good.gamma * 100},
        {"error": good.error[0]},
        {"error": good.error.astype(np.float32)},
        {"share": good.share[:, 1:]},
        {"power": np.full_like(good.power, np.nan)},
        {"pixel_spread": good.pixel_spread * 0},
        {"pixel_nats": good.pixel_nats[:0]},
    ):
        with pytest.raises(InputError, match="do not fit the model"):
            _check_tables(dataclasses.replace(good, **change), SHAPE)
    with pytest.raises(InputError, match="do not fit the model"):
        _check_tables(good, (3, 8, 8))


@pytest.mark.parametrize(
    "change",
    [
        {"solver_rms": "0.1"},
        {"nfe": None},
        {"largest_gap": []},
        {"more": 1.0},
        {"solver": {"kind": "adams", "grid": [0.0, 2.0], "tolerance": 0.1}},
        {"solver": 5},
        {"nfe": 10**400},
    ],
    ids=str,
)
def test_a_calibration_of_other_values_is_found_anew(
    change: dict[str, object], tmp_path: Path
) -> None:
    file = tmp_path / "calibration.json"
    value = json.loads(kept_calibration(file))
    kept = KeptCalibrations((file,), file, {})
    assert kept.find(estimator(), 8) is not None
    (entry,) = value["calibrations"].values()
    entry["calibration"] |= change
    file.write_text(json.dumps(value))
    assert kept.find(estimator(), 8) is None


def test_a_picture_whose_copy_cannot_be_read_is_kept_as_bytes(monkeypatch) -> None:
    """As happened to three of 29,000 damaged pictures, which Pillow reads once and not again."""
    file = io.BytesIO()
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(file, "PNG")
    assert take_apart("a.png", file.getvalue()) is not None

    def unreadable(*_: object) -> bytes:
        raise OSError("Truncated File Read")

    monkeypatch.setattr("idode.codec.recipes.restore", unreadable)
    assert take_apart("a.png", file.getvalue()) is None


def test_pictures_to_compress_run_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    page = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
    called: list[object] = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: called.append(1))
    assert take_apart("a.png", page) is None
    assert called == []


def test_what_grows_is_kept_as_bytes(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("L", (5000, 5000)).save(file, "PNG")
    assert take_apart("a.png", file.getvalue()) is None
    zeros = npz(tmp_path / "a.npz", HEADER.format("|u1", (60, 1, 1024, 1024)), bytes(60 << 20))
    assert take_apart("a.npz", zeros.read_bytes()) is None


def test_a_flow_of_absurd_size_is_refused_before_it_is_built(tmp_path: Path) -> None:
    run = tiny.train(tmp_path / "RUN", "train.steps=1").run
    save_dequantizer(run.path, untrained_dequantizer(run.model(), (1, 4, 4), "tn"), 1)
    file = run.path / DEQUANTIZER
    with safe_open(str(file), "pt") as opened:
        described = dict(opened.metadata())
    flow, before = (
        json.loads(described["flow"]),
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    )
    for change, text in (
        ({"layers": 2**31}, "got 2147483648"),
        ({"width": 2**31}, "got 2147483648"),
        ({"layers": 64, "width": 1024}, "do not fit"),  # 7 GB
    ):
        described["flow"] = json.dumps({**flow, **change})
        save_tensors(file, load_file(file), described)
        with pytest.raises(InputError, match=text):
            load_dequantizer(run)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 * 1024
