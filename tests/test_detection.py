"""Scores, p-values and flags of images; everything by closed forms or the shipped digits."""

from __future__ import annotations

import csv
import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import idode
from idode.cli.main import main
from idode.data import load
from idode.detection.calibrate import detector_of, fit_detector
from idode.detection.conformal import discoveries, p_values, threshold
from idode.detection.detector import FILE, Detector, fit_normal
from idode.detection.images import NamedImages, read_images
from idode.detection.page import Unusual
from idode.detection.score import score_images
from idode.detection.separation import auroc, separation
from idode.detection.statistics import error_maps, levels_for, measure, statistics_of
from idode.errors import InputError
from idode.evaluation.run_store import model_hash
from idode.runs.run import open_run

DIGITS = np.asarray(load("digits").test)


@pytest.fixture(scope="module")
def model() -> idode.DiffusionODE:
    return idode.load("pretrained:digits", device="cpu")


@pytest.fixture(scope="module")
def detector(model) -> Detector:
    """Calibrated on 200 images; 97 are new to it."""
    return fit_detector(model, DIGITS[:200])


class TestPValues:
    def test_of_exchangeable_scores_they_are_uniform(self) -> None:
        """A p-value is at most a with a chance of floor(a (n + 1)) / (n + 1); 4 sigma."""
        rng = np.random.default_rng(0)
        p = np.concatenate(
            [p_values(rng.normal(size=20), rng.normal(size=99)) for _ in range(400)]
        )
        for level in (0.01, 0.05, 0.5):
            assert abs((p <= level).mean() - level) < 4 * (level * (1 - level) / 400) ** 0.5

    @pytest.mark.parametrize("known", [5, 99, 148])
    @pytest.mark.parametrize("level", [0.01, 0.05, 0.25])
    def test_the_threshold_is_where_flags_begin(self, known: int, level: float) -> None:
        """Drawn as the line "flagged above"; a quantile of the known scores lies below it."""
        own = np.random.default_rng(2).normal(size=known).round(1)  # with ties
        scores = np.concatenate([np.linspace(-5, 5, 1001), own, [np.inf]])
        flagged = p_values(scores, own) <= level
        assert np.array_equal(flagged, scores > threshold(own, level))
        assert flagged.any() == np.isfinite(threshold(own, level))

    def test_the_false_discovery_rate_holds(self) -> None:
        """900 uniform p-values and 100 tiny ones, 200 times; the mean share of false flags."""
        rng, shares = np.random.default_rng(1), []
        for _ in range(200):
            p = np.concatenate([rng.random(900), 1e-6 * rng.random(100)])
            flags = discoveries(p, 0.1)
            assert flags[900:].all()
            shares.append(flags[:900].sum() / max(1, flags.sum()))
        assert abs(np.mean(shares) - 0.09) < 4 * np.std(shares) / 200**0.5

    def test_nothing_is_discovered_where_nothing_is(self) -> None:
        assert not discoveries(np.linspace(0.1, 1, 50), 0.05).any()


class TestSeparation:
    def test_areas_of_known_cases(self) -> None:
        known, unknown = np.array([0.0, 1, 2, 3]), np.array([2.5, 4, 5, 6])
        found = separation(known, unknown)
        assert found.auroc.value == 15 / 16
        assert found.fpr_at_95_tpr.value == 1 / 4
        assert auroc(known, known) == 0.5  # ties count half
        assert found.auroc.low <= found.auroc.value <= found.auroc.high

    def test_shifted_normals_have_the_area_of_theory(self) -> None:
        """Phi(1 / sqrt 2) = 0.7602 for a shift of one deviation."""
        rng = np.random.default_rng(2)
        found = separation(rng.normal(size=500), 1 + rng.normal(size=500))
        assert found.auroc.low < 0.7602 < found.auroc.high

    def test_both_kinds_are_needed(self) -> None:
        with pytest.raises(InputError, match="a ROC curve needs both"):
            separation(np.ones(3), np.ones(0))


class TestStatistics:
    def test_an_image_has_the_same_ones_in_any_company(self, model) -> None:
        levels = levels_for(model)
        together, alone = (
            measure(model, DIGITS[rows], levels) for rows in (slice(0, 5), slice(3, 4))
        )
        np.testing.assert_allclose(together[3:4], alone, rtol=1e-3, atol=1e-3)
        assert together.shape == (5, len(statistics_of(levels)))
        assert levels.nfe == 10

    def test_the_squared_error_is_that_of_the_bound(self, model, detector) -> None:
        """Bits/dim by ten evaluations are the bound by many, to the error that is reported."""
        images = DIGITS[200:240]
        bound = model.sde_bound(images, draws=16).per_image.numpy()
        found = detector.bits(measure(model, images, detector.levels))
        rms = np.sqrt(np.mean((found - bound) ** 2))
        assert rms < 2 * detector.bits_error + 0.1

    def test_the_map_has_the_bits_of_the_image(self, model, detector) -> None:
        images = DIGITS[:4]
        maps = error_maps(model, images, detector.levels, detector.weights[:-1])
        found = detector.bits(measure(model, images, detector.levels)) - detector.weights[-1]
        np.testing.assert_allclose(maps.mean((1, 2)), found, rtol=1e-3)

    def test_those_of_a_model_in_float64_are_the_same(self, model) -> None:
        wide = idode.load("pretrained:digits", device="cpu").double()
        found = (measure(m, DIGITS[:4], levels_for(m)) for m in (wide, model))
        np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-3)
        assert fit_detector(wide, DIGITS[:24]).bits_error > 0

    def test_the_density_is_that_of_a_normal(self) -> None:
        """Scores of new normal rows are half a chi-square: their mean is F / 2; 5 sigma."""
        rng = np.random.default_rng(3)
        mixing = np.eye(6) + 0.5 * np.eye(6, k=1)
        fitted, new = (rng.normal(size=(n, 6)) @ mixing + 5 for n in (20_000, 2000))
        score = fit_normal(fitted).score(new)
        assert abs(score.mean() - 3) < 5 * 3**0.5 / 2000**0.5 + 0.02  # shrinkage


class TestDigits:
    def test_changed_digits_are_unusual_and_new_ones_are_not(self, model, detector) -> None:
        new = DIGITS[200:]
        noise = np.random.default_rng(0).integers(0, 17, new.shape).astype(np.uint8)
        known = score_images(model, detector, NamedImages(["x"] * len(new), new))
        assert (known.p_value <= 0.1).mean() < 0.1 + 4 * (0.09 / 97 + 0.09 / 100) ** 0.5
        for other in (16 - new, noise):
            found = score_images(model, detector, NamedImages(["x"] * len(new), other))
            assert auroc(known.score, found.score) > 0.99
            assert found.discovered.mean() > 0.9
        assert "standard deviations" in found.reasons[0]

    def test_a_detector_survives_its_file(self, detector, tmp_path: Path) -> None:
        detector.save(tmp_path / "d.safetensors")
        again = Detector.load(tmp_path / "d.safetensors")
        np.testing.assert_array_equal(again.known, detector.known)
        np.testing.assert_array_equal(again.normal.precision, detector.normal.precision)
        assert (again.levels, again.bits_error) == (detector.levels, detector.bits_error)
        (tmp_path / "d.safetensors").write_bytes(b"no tensors")
        with pytest.raises(InputError, match="calibrate again"):
            Detector.load(tmp_path / "d.safetensors")


@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_more_than_256_levels_keep_their_values(channels: int) -> None:
    """New ones are as usual as the known; modulo 256 all of them would be flagged."""
    model = idode.wrap(
        lambda x, t: 0.9 * x * torch.sigmoid(t / 2).reshape(-1, 1, 1, 1), "noise", "vp",
        levels=1000, shape=(channels, 8, 8), gamma_min=-14.0, gamma_max=6.0,
    )  # fmt: skip
    images = np.random.default_rng(0).integers(0, 1000, (240, channels, 8, 8))
    read = read_images(images, model)
    np.testing.assert_array_equal(read.pixels, images)
    assert read.pixels.dtype == np.uint16
    detector = fit_detector(model, read.pixels[:200])
    new = NamedImages(read.names[200:], read.pixels[200:])
    assert score_images(model, detector, new).flagged.mean() < 0.3
    shown = Unusual([0], read.pixels[:1], np.zeros((1, 8, 8)), 1000).pictures
    np.testing.assert_array_equal(shown[0].transpose(2, 0, 1), np.round(images[0] * (255 / 999)))


class TestCommands:
    def test_a_folder_is_scored_with_a_page_and_hostile_names_are_text(
        self, tmp_path: Path, capsys
    ) -> None:
        folder = tmp_path / "images"
        folder.mkdir()
        names = ["<script>alert(1)</script>.png", 'a,"b".png', "plain.png"]
        for name, image in zip(names, DIGITS, strict=False):
            Image.fromarray(image[0]).save(folder / name.replace("/", "⁄"))
        out = tmp_path / "scores.csv"
        words = ["score", "pretrained:digits", str(folder), "--out", str(out), "--quiet"]
        assert main([*words, "--json", str(tmp_path / "s.json")]) == 0
        assert capsys.readouterr().out == ""
        with out.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == 3
        assert 'a,"b".png' in {row["image"] for row in rows}
        page = (tmp_path / "scores.html").read_text("utf-8")
        assert "<script" not in page
        assert "&lt;script&gt;" in page
        assert page.count("<img") == 2
        assert len(json.loads((tmp_path / "s.json").read_text())["p_value"]) == 3
        assert main(words) == 2  # the table exists

    def test_labels_give_a_curve(self, tmp_path: Path, capsys) -> None:
        np.save(tmp_path / "known.npy", DIGITS[:30])
        np.save(tmp_path / "unknown.npy", 16 - DIGITS[:20])
        words = ["score", "pretrained:digits", "--known", str(tmp_path / "known.npy")]
        words += ["--unknown", str(tmp_path / "unknown.npy"), "--out", str(tmp_path / "s.csv")]
        assert main(words) == 0
        assert "AUROC 1.000" in capsys.readouterr().out
        assert "ROC" in (tmp_path / "s.html").read_text("utf-8")

    def test_a_run_is_calibrated_and_then_scores(self, tmp_path: Path, capsys) -> None:
        small = ["net.width=8", "net.depth=1", "net.groups=2"]
        run = idode.train("digits", out=tmp_path / "run", steps=1, settings=small, progress=False)
        assert main(["score", str(run.path), "digits"]) == 2
        assert "is not calibrated: run `idode calibrate" in capsys.readouterr().err
        assert (
            main(["calibrate", str(run.path), "--limit", "30", "--json", str(tmp_path / "c")]) == 0
        )
        assert "15 of them for p-values" in capsys.readouterr().out
        assert main(["score", str(run.path), "digits", "--limit", "2"]) == 0
        idode.train("digits", out=run.path, steps=2, settings=small, resume=True, progress=False)
        capsys.readouterr()
        assert main(["score", str(run.path), "digits", "--limit", "2"]) == 2
        assert "belongs to other weights" in capsys.readouterr().err
        file = str(run.path / FILE)
        assert main(["score", "pretrained:digits", "digits", "--calibration", file]) == 2
        assert "belongs to other weights" in capsys.readouterr().err

    def test_the_file_of_a_writable_run_is_used_before_the_cache(
        self, detector, tmp_path: Path, monkeypatch
    ) -> None:
        """For a shipped model, whose folder stays as it is, the cache is used first."""
        monkeypatch.setenv("IDODE_DATA", str(tmp_path))
        shipped = open_run("pretrained:digits")
        own = open_run(shutil.copytree(shipped.path, tmp_path / "run"))
        model = own.model()
        name = model_hash(own, model)
        cached = tmp_path / "detectors" / f"{name[:16]}.safetensors"
        cached.parent.mkdir()
        for file, place in ((own.path / FILE, "run"), (cached, "cache")):
            dataclasses.replace(detector, about={"model": name, "place": place}).save(file)
        assert detector_of(own, model).about["place"] == "run"
        assert detector_of(shipped, model).about["place"] == "cache"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            np.zeros((2, 3, 8, 8), np.uint8),
            "colour images of 8x8 and the model is for grey images",
        ),
        (np.zeros((2, 1, 9, 8), np.uint8), "grey images of 9x8"),
        (np.full((2, 1, 8, 8), np.nan), "NaN or infinite"),
        (np.zeros((2, 1, 8, 8)), "integers (N, C, H, W)"),
        (np.full((2, 1, 8, 8), 40, np.uint8), "0..16"),
        (np.zeros((0, 1, 8, 8), np.uint8), "integers (N, C, H, W)"),
        ("nowhere", "no file or folder nowhere"),
    ],
)
def test_images_of_another_kind_are_refused(model, given, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_images(given, model)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_only_array_of_an_archive_is_read(model, tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", images=DIGITS[:3])
    np.savez(tmp_path / "two.npz", DIGITS[:3], DIGITS[:3])
    (tmp_path / "torn.npz").write_bytes((tmp_path / "one.npz").read_bytes()[:-9])
    np.testing.assert_array_equal(read_images(tmp_path / "one.npz", model).pixels, DIGITS[:3])
    for name, message in (("two", "holds 2 arrays"), ("torn", "cannot be read")):
        with pytest.raises(InputError, match=message):
            read_images(tmp_path / f"{name}.npz", model)


def test_a_calibration_is_kept_in_a_file_that_is_a_text(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    how = {"device": "cpu", "progress": False, "limit": 20}
    kept = idode.calibrate("pretrained:digits", out="d.safetensors", **how)
    found = idode.score("pretrained:digits", DIGITS[:2], calibration="d.safetensors")
    assert found.least_p_value == kept.least_p_value == 1 / 11
    monkeypatch.setattr("idode.detection.calibrate.measure", None)  # nothing is measured in vain
    for out, message in (("no/d", "there is no folder no for d"), (tmp_path, "is a folder")):
        with pytest.raises(InputError, match=message):
            idode.calibrate("pretrained:digits", out=out, **how)


def test_other_refusals(model, detector, capsys) -> None:
    with pytest.raises(InputError, match="at least 20"):
        fit_detector(model, DIGITS[:5])
    with pytest.raises(InputError, match="level: must be between 0 and 1"):
        score_images(model, detector, NamedImages(["x"], DIGITS[:1]), level=1.5)
    with pytest.raises(InputError, match="no split called 'trian' .*did you mean train"):
        idode.calibrate("pretrained:digits", split="trian", device="cpu")
    for limit in (0, -1):
        with pytest.raises(InputError, match=f"limit must be at least 1, got {limit}"):
            idode.calibrate("pretrained:digits", limit=limit, device="cpu")
        with pytest.raises(InputError, match=f"limit must be at least 1, got {limit}"):
            idode.score("pretrained:digits", DIGITS[:2], limit=limit, device="cpu")
    assert main(["score", "pretrained:digits", "--known", "digits"]) == 2
    assert "both known and unknown" in capsys.readouterr().err
