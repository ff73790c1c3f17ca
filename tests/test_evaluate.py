"""``idode evaluate`` and ``idode doctor`` as a user meets them, and the ordinary coders."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny
from PIL import Image

import idode
from idode.cli.main import main
from idode.errors import InputError
from idode.likelihood import Uniform
from idode.likelihood.estimator import LikelihoodSettings
from idode.runs import pretrained
from idode.runs.run import Parent, open_run
from idode.studies.coders import coder_bits


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("evaluate")
    spec = f"npy:{folder / 'images.npy'}?levels=4"
    np.save(folder / "images.npy", tiny.images())
    assert main(["train", "digits", "--data", spec, "--out", str(folder / "run"), "--quiet",
                 *tiny.FLAGS]) == 0  # fmt: skip
    return folder / "run"


def test_a_table_and_its_json_say_the_same(run: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "r.json"
    words = ["--tolerance", "0.5", "--quiet", "--json", str(out)]
    assert main(["evaluate", str(run), *words]) == 0
    value, text = json.loads(out.read_text()), capsys.readouterr().out
    (result,) = value["results"]
    assert f"{result['bits_per_dim']:.4f}" in text
    assert f"{value['sde_bound']['bits_per_dim']:.4f}" in text
    assert value["data"]["sha256"][:12] in text
    assert len(result["per_image"]) == value["images"]
    assert np.mean(result["per_image"]) == pytest.approx(result["bits_per_dim"])


def test_a_fine_tuned_run_names_its_parent(run: Path, tmp_path: Path, capsys) -> None:
    tuned = shutil.copytree(run, tmp_path / "tuned")
    parent = Parent(str(run), 20, "ab" * 32)
    dataclasses.replace(open_run(tuned), parent=parent).write_config()
    words = ["--limit", "1", "--tolerance", "0.5", "--quiet", "--json", str(tmp_path / "r.json")]
    assert main(["evaluate", str(tuned), *words]) == 0
    assert f"\nfine-tuned from {run} after step 20 (abababababab)\n" in capsys.readouterr().out
    assert json.loads((tmp_path / "r.json").read_text())["parent"] == parent.to_json()


def test_one_image_has_an_error_bar_too(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    arguments = ["--limit", "1", "--tolerance", "0.1", "--quiet", "--json", str(out)]
    assert main(["evaluate", str(run), *arguments]) == 0
    value = json.loads(out.read_text())
    assert value["sde_bound"]["standard_error"] > 0
    assert value["results"][0]["standard_error"] > 0


def test_the_table_of_bounds_has_nine_cells(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    arguments = ["--bounds", "--limit", "2", "--quiet", "--steps", "8"]
    assert main(["evaluate", str(run), *arguments, "--json", str(out)]) == 0
    cells = [
        (r["settings"]["dequantization"]["kind"], r["settings"]["n_importance"])
        for r in json.loads(out.read_text())["results"]
    ]
    names = ("uniform", "variational", "tn")
    assert cells == [(name, k) for name in names for k in (1, 5, 20)]


def test_the_table_of_bounds_refuses_settings_it_has_itself(run: Path, monkeypatch) -> None:
    monkeypatch.setattr("idode.nets.unet.UNet.forward", None)
    for name, value in ("n_importance", 5), ("dequantization", Uniform()), ("closed_form", True):
        settings = LikelihoodSettings(**{name: value})
        with pytest.raises(InputError, match=f"leave out {name}, or the table"):
            idode.evaluate(run, settings=settings, table=True, progress=False)


def test_a_start_moves_all_rows_of_the_table_of_bounds(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    words = ["--bounds", "--start", "-4", "--limit", "1", "--steps", "4", "--quiet"]
    assert main(["evaluate", str(run), *words, "--json", str(out)]) == 0
    ways = [r["settings"]["dequantization"] for r in json.loads(out.read_text())["results"]]
    assert {way["start"] for way in ways} == {-4.0}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "there is no run folder nowhere"),
        (["RUN", "--limit", "0"], "--limit: must be at least 1, got 0"),
        (["RUN", "--importance", "0"], "--importance: must be at least 1, got 0"),
        (["RUN", "--data", "digits"], " is for data of shape (1, 4, 4) with 4 levels"),
        (["RUN", "--json", "no/such/folder/r.json"], "make it first"),
        (["RUN", "--json", ".", "--force"], "is a folder"),
        (["RUN", "--json", "r.json", "--journal", "r.json"], "are the same file r.json"),
        (
            ["RUN", "--json", "r.json", "--journal", "./a/../r.json"],
            "--json and --journal are the same file a/../r.json: give two names",
        ),
        (["pretrained:tigers"], "no pretrained model called 'tigers'"),
        (["RUN", "--tolerance", "-1"], "--tolerance: must be above 0, got -1"),
        (["RUN", "--tolerance", "nan"], "--tolerance: must be a finite number, got 'nan'"),
        (["RUN", "--draws", "3"], "draws: must be even and at least 2, got 3"),
        (["RUN", "--start", "9"], "the start must lie on the model's clock"),
        (["RUN", "--dequantization", "none"], "is for continuous data"),
        (["RUN", "--bounds", "--importance", "5"], "--importance does not go with --bounds"),
        (
            ["RUN", "--bounds", "--dequantization", "tn"],
            "--dequantization does not go with --bounds: leave one of them out",
        ),
        (["RUN", "--bounds", "--closed-form"], "--closed-form does not go with --bounds"),
        (
            ["RUN", "--steps", "8", "--tolerance", "0.005"],
            "--tolerance does not go with --steps: leave one of them out",
        ),
        (["RUN", "--batch-size", "0"], "--batch-size: must be at least 1, got 0"),
        (["RUN", "--device", "toaster"], "device toaster cannot be used"),
    ],
)
def test_bad_input_is_one_sentence_before_any_bar_or_network(
    run: Path, arguments: list[str], sentence: str, capsys, monkeypatch
) -> None:
    monkeypatch.setattr("idode.nets.unet.UNet.forward", None)
    monkeypatch.setattr("idode.progress.tqdm", None)
    given = [str(run) if word == "RUN" else word for word in arguments]
    assert main(["evaluate", *given]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_every_stage_is_shown_with_its_name(run: Path, capsys) -> None:
    assert main(["evaluate", str(run), "--limit", "2", "--tolerance", "0.1"]) == 0
    shown = capsys.readouterr().err
    for stage in ("SDE bound", "calibrating tn", "ODE tn"):
        assert f"{stage}: " in shown
    assert "2/2" in shown


@pytest.mark.parametrize("second", [False, True])
def test_one_image_has_no_interval(run: Path, capsys, second: bool) -> None:
    given = [str(run)] * (1 + second)
    assert main(["evaluate", *given, "--limit", "1", "--tolerance", "0.1", "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert "95% interval: none, since it takes two images or more" in printed
    assert not re.search(r"\b(inf|nan)\b", printed)


def test_a_result_is_not_overwritten_without_force(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    out.write_text("precious")
    assert main(["evaluate", str(run), "--quiet", "--json", str(out)]) == 2
    assert out.read_text() == "precious"


def test_other_data_than_the_models_gets_a_warning(run: Path, tmp_path: Path, capsys) -> None:
    np.save(tmp_path / "other.npy", tiny.images()[::-1])
    spec = f"npy:{tmp_path / 'other.npy'}?levels=4"
    words = ["--quiet", "--limit", "2", "--tolerance", "0.5"]
    assert main(["evaluate", str(run), "--data", spec, *words]) == 0
    assert "warning:" in capsys.readouterr().err


def test_shipped_models_open_and_know_their_data() -> None:
    assert "digits" in pretrained()
    for name in pretrained():
        opened = open_run(f"pretrained:{name}")
        assert opened.identity is not None
        assert sum(f.stat().st_size for f in opened.path.iterdir()) < 5e6
        assert dataclasses.is_dataclass(opened.config)
        opened.net()


def test_doctor_names_versions_and_measures_this_machine(tmp_path: Path, capsys) -> None:
    out = tmp_path / "d.json"
    assert main(["doctor", "--json", str(out)]) == 0
    assert "matmul_gflops" in capsys.readouterr().out
    assert json.loads(out.read_text())["matmul_gflops"] > 0  # however busy the machine is


def test_coders_pay_for_exactly_these_pixels() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 1, 8, 8)).astype(np.uint8)
    bits = coder_bits(pixels)
    file = io.BytesIO()
    Image.fromarray(pixels.reshape(160, 8)).save(file, "PNG", optimize=True)
    assert bits["PNG"] == 8 * file.tell() / pixels.size
    assert bits["PNG"] > 8  # noise cannot be compressed
    assert coder_bits(np.zeros((20, 3, 8, 8), np.uint8))["PNG"] < 1


def test_coders_refuse_what_they_cannot_write() -> None:
    with pytest.raises(InputError, match="uint8 images"):
        coder_bits(np.zeros((2, 2, 8, 8), np.uint8))


def test_shipped_models_carry_what_was_measured_on_them():
    for name, path in pretrained().items():
        figures = json.loads((path / "figures.json").read_text())
        assert 0 < figures["sde_bound"]["bits_per_dim"] < 8, name
        assert figures["sde_bound"]["split"] == "test", name
        assert sum(file.stat().st_size for file in path.iterdir()) < 5e6, name
