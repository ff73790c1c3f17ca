"""Readers of what is made with a model: archives, tables, detectors, calibrations, samples."""

from __future__ import annotations

import functools
import io
import json
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from fuzzing import Reader
from PIL import Image

from idode.codec.archive import write_archive
from idode.codec.bytestream import DIGEST_BYTES, digest
from idode.codec.coding import Model, model_for
from idode.codec.container import FOOTER, MAGIC, ArchiveReader, _check
from idode.codec.extraction import Archive
from idode.codec.files import Content, of_array, of_file
from idode.codec.recipes import take_apart
from idode.codec.tables import Tables
from idode.data.loading import load
from idode.detection.conformal import p_values
from idode.detection.detector import Detector
from idode.detection.statistics import statistics_of
from idode.evaluation.kept_calibration import KeptCalibrations
from idode.evaluation.sample_parts import StoredParts
from idode.likelihood.calibration import SolverCalibration
from idode.likelihood.estimator import LikelihoodSettings, LogWeightEstimator
from idode.ode.adams import Adams
from idode.runs import pretrained
from idode.runs.distributed import World
from idode.sampling.fid import FeatureStatistics
from idode.sampling.reading import read_samples
from idode.sampling.samplers import States

DIGITS = pretrained()["digits"]


@functools.cache
def model() -> Model:
    return model_for("pretrained:digits")


def picture() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.arange(5 * 6 * 3, dtype=np.uint8).reshape(5, 6, 3)).save(file, "PNG")
    return file.getvalue()


def archive(modelled: bool) -> bytes:
    """Digits by the model or by ordinary coders, a picture and a text."""
    images = np.arange(3 * 16, dtype=np.uint8).reshape(3, 1, 4, 4)  # of another shape
    images = np.array(load("digits").test)[:24] if modelled else images
    contents = [of_array("x.npy", images), of_file("a.png", picture(), exact=True)]
    contents.append(Content("note/read me.txt", data=b"hello " * 9))
    file = io.BytesIO()
    write_archive(file, contents, model(), steps=2, block=24)
    return file.getvalue()


def extracted(data: bytes) -> int:
    opened = Archive(io.BytesIO(data), "x.idode")
    return sum(len(file) for _, file in opened.contents(opened.entries, model))


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class Parts:
    """An archive in parts, to be put together with one of them changed and checksums that fit."""

    def __init__(self, data: bytes) -> None:
        opened = ArchiveReader(io.BytesIO(data), "x.idode")
        self._start = data[: len(MAGIC) + 1]
        self.header, self.index = opened.header, opened.index
        places = [p for g in self.index["groups"] for p in g["blocks"]]
        places += [e["file"] for e in self.index["entries"] if "file" in e]
        self.sections = [
            (data[at : at + 1], data[at + 1 + DIGEST_BYTES : at + length]) for at, length in places
        ]

    def with_header(self, text: bytes) -> bytes:
        """With another header."""
        return self._joined(text, self.sections, None)

    def with_index(self, text: bytes) -> bytes:
        """With another index."""
        return self._joined(compact(self.header), self.sections, text)

    def with_section(self, number: int, content: bytes) -> bytes:
        """With another block or file."""
        sections = list(self.sections)
        sections[number] = (sections[number][0], content)
        return self._joined(compact(self.header), sections, None)

    def _joined(
        self, header: bytes, sections: list[tuple[bytes, bytes]], index: bytes | None
    ) -> bytes:
        found, places = bytearray(self._start), []
        for kind, content in [(b"H", zlib.compress(header, 9)), *sections]:
            places.append((len(found), len(content) + 1 + DIGEST_BYTES))
            found += kind + _check(kind, len(found), content) + content
        content, at = zlib.compress(self._moved(places) if index is None else index), len(found)
        found += b"I" + _check(b"I", at, content) + content
        place, length = at.to_bytes(8, "little"), len(found) + FOOTER
        return bytes(found) + place + digest(place, MAGIC, length.to_bytes(8, "little"))

    def _moved(self, places: list[tuple[int, int]]) -> bytes:
        """The index with new places of its sections."""
        index, left = json.loads(json.dumps(self.index)), iter(places)
        index["header"] = next(left)
        for group in index["groups"]:
            group["blocks"] = [next(left) for _ in group["blocks"]]
        for entry in index["entries"]:
            if "file" in entry:
                entry["file"] = next(left)
        return json.dumps(index).encode()


def archive_readers() -> dict[str, Reader]:
    plain, coded = archive(modelled=False), archive(modelled=True)
    parts, of_model = Parts(plain), Parts(coded)
    blocks = [content for kind, content in parts.sections]

    def read_section(data: bytes) -> object:
        number = data[0] % len(blocks) if data else 0
        return extracted(parts.with_section(number, data[1:]))

    return {
        "archive": Reader([plain], extracted),
        "archive index": Reader(
            [json.dumps(parts.index).encode()], lambda data: extracted(parts.with_index(data))
        ),
        "archive section": Reader(
            [bytes([i]) + content for i, content in enumerate(blocks)], read_section
        ),
        "archive header": Reader(
            [json.dumps(of_model.header).encode()],
            lambda data: extracted(of_model.with_header(data)),
            slow=50,
        ),
        "archive by model": Reader(
            [of_model.sections[0][1]],
            lambda data: extracted(of_model.with_section(0, data)),
            slow=200,
        ),
        "picture to compress": Reader([picture()], lambda data: take_apart("a.png", data)),
    }


def in_file(path: Path, seed: bytes, read: Callable[[Path], object], slow: int = 1) -> Reader:
    def reader(data: bytes) -> object:
        path.write_bytes(data)
        return read(path)

    return Reader([seed], reader, slow)


def read_tables(path: Path) -> object:
    tables = Tables.load(path)
    return model_for(model().ode, tables).scheme(2)


def read_detector(path: Path) -> object:
    found = Detector.load(path)
    values = np.zeros((2, len(statistics_of(found.levels))))
    p = p_values(found.normal.score(values), found.known)
    return p, found.bits(values), found.reasons(values), found.to_json()


def read_calibration(path: Path) -> object:
    """As an evaluation does, without its solves."""
    found = KeptCalibrations((path,), path, {}).find(estimator(), 8)
    if found is not None:
        assert np.isfinite(found.solver.nodes(0.0, 1.0)).all()
        max(found.solver_rms, found.error_per_gap * 1.0, found.noise_variance / 2)
    return found


@functools.cache
def estimator() -> LogWeightEstimator:
    ode = model().ode
    return LogWeightEstimator(ode, LikelihoodSettings().for_model(ode))


def kept_calibration(path: Path) -> bytes:
    found = SolverCalibration(
        Adams(0.005, grid=(0.0, 0.25, 0.5, 1.0)), 0.001, 0.002, 0.5, 0.1, 0.01, 0.02, 0.003, 40
    )
    KeptCalibrations((path,), path, {}).keep(estimator(), 8, found)
    return path.read_bytes()


def read_parts(parts: StoredParts) -> Callable[[Path], object]:
    return lambda path: parts.get(0, 3)


def derived_readers(root: Path) -> dict[str, Reader]:
    folder = root / "derived"
    folder.mkdir()
    parts = StoredParts(folder / "s.png", {}, World(torch.device("cpu")))
    parts.put(0, 3, States(torch.zeros(3, 1, 2, 2), torch.zeros(3), 7.0))
    (part,) = parts.folder.iterdir()
    FeatureStatistics.of(torch.eye(3).double()).save(folder / "f.npz")
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 1, 2, 2)
    np.savez(folder / "s.npz", data=pixels)
    return archive_readers() | {
        "codec tables": in_file(
            folder / "c.safetensors", (DIGITS / "codec.safetensors").read_bytes(), read_tables
        ),
        "detector": in_file(
            folder / "d.safetensors", (DIGITS / "detector.safetensors").read_bytes(), read_detector
        ),
        "calibration.json": in_file(
            folder / "c.json", kept_calibration(folder / "c.json"), read_calibration
        ),
        "sample parts": in_file(part, part.read_bytes(), read_parts(parts)),
        "samples npz": in_file(
            folder / "s.npz", (folder / "s.npz").read_bytes(), lambda path: read_samples(path, 256)
        ),
        "fid statistics": in_file(
            folder / "f.npz", (folder / "f.npz").read_bytes(), FeatureStatistics.load
        ),
    }
