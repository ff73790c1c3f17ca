"""Error bars for few images, values of single images, paired differences, asked-for precision."""

from __future__ import annotations

import csv
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch

from idode.cli.main import main
from idode.errors import InputError
from idode.evaluation.evaluate import evaluate
from idode.evaluation.paired import compare_models, paired_difference
from idode.evaluation.per_image import per_image, write_columns
from idode.likelihood.bits_per_dim import student_interval
from idode.likelihood.estimator import LikelihoodSettings
from idode.ode.adams import Adams
from idode.runs.run import open_run, save_model

ROUGH = LikelihoodSettings(solver=Adams(steps=8))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("precision")
    np.save(folder / "images.npy", tiny.images())
    spec = f"npy:{folder / 'images.npy'}?levels=4"
    assert main(["train", "digits", "--data", spec, "--out", str(folder / "run"), "--quiet",
                 *tiny.FLAGS]) == 0  # fmt: skip
    return folder / "run"


@pytest.fixture(scope="module")
def other(run: Path) -> Path:
    """The same run with slightly other weights."""
    changed = shutil.copytree(run, run.parent / "other")
    weights = open_run(changed).weights()
    save_model(changed, {name: 1.01 * value for name, value in weights.items()})
    return changed


class TestIntervals:
    def test_is_wider_than_the_normal_one_for_few_samples_and_the_same_for_many(self) -> None:
        assert student_interval(0, 1, 7)[1] == pytest.approx(2.3646, abs=1e-4)
        assert student_interval(0, 1, 1e7)[1] == pytest.approx(1.95996, abs=1e-4)
        assert student_interval(0, 1, 1e7, 0.6827)[1] == pytest.approx(1, abs=1e-3)

    def test_a_single_image_has_an_infinite_one(self, run: Path) -> None:
        found = evaluate(run, limit=1, settings=ROUGH, progress=False)
        assert found.interval() == (-math.inf, math.inf)
        assert found.to_json()["results"][0]["interval_95"] == [None, None]

    def test_a_level_outside_of_0_to_1_is_refused(self) -> None:
        with pytest.raises(InputError, match="between 0 and 1, got 95"):
            student_interval(0, 1, 3, 95)

    def test_of_a_value_is_around_its_mean(self, run: Path) -> None:
        found = evaluate(run, limit=4, settings=ROUGH, progress=False)
        low, high = found.interval()
        result = found.results[0]
        assert (low + high) / 2 == pytest.approx(result.mean)
        assert high - result.mean == pytest.approx(3.1824 * result.standard_error, rel=1e-4)

    def test_a_table_has_one_for_each_result(self, run: Path) -> None:
        found = evaluate(run, limit=2, settings=ROUGH, table=True, progress=False)
        with pytest.raises(InputError, match="for each of its results"):
            found.interval()
        with pytest.raises(InputError, match="one bound"):
            per_image(found)


class TestPerImage:
    @pytest.mark.parametrize("suffix", ["csv", "npz"])
    def test_files_hold_the_values_of_the_json(
        self, run: Path, tmp_path: Path, suffix: str
    ) -> None:
        file, out = tmp_path / f"v.{suffix}", tmp_path / "r.json"
        words = ["--limit", "3", "--steps", "8", "--quiet"]
        files = ["--per-image", str(file), "--json", str(out)]
        assert main(["evaluate", str(run), *words, *files]) == 0
        (result,) = json.loads(out.read_text())["results"]
        if suffix == "csv":
            rows = list(csv.DictReader(file.read_text().splitlines()))
            columns = {name: [float(row[name]) for row in rows] for name in rows[0]}
        else:
            columns = {name: list(values) for name, values in np.load(file).items()}
        assert list(columns) == ["index", "bits_per_dim", "error"]
        assert columns["index"] == [0, 1, 2]
        assert columns["bits_per_dim"] == result["per_image"]
        errors = result["errors"]
        drawn = math.sqrt(3) * math.hypot(errors["dequantization"], errors["probe"])
        assert min(columns["error"]) >= drawn * (1 - 1e-12) > 0

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (["--per-image", "v.txt"], "v.txt ends in neither: give a name such as v.csv"),
            (["--per-image", "v.csv", "--bounds"], "--bounds does not go with --per-image"),
            (["--per-image", "no/such/v.csv"], "make it first"),
            (["--per-image", "v.csv", "--json", "v.csv"], "are the same file v.csv"),
        ],
    )
    def test_what_cannot_be_written_is_refused_before_any_work(
        self, run: Path, words: list[str], sentence: str, capsys, monkeypatch
    ) -> None:
        monkeypatch.setattr("idode.nets.unet.UNet.forward", None)
        assert main(["evaluate", str(run), *words]) == 2
        assert sentence in capsys.readouterr().err

    def test_a_file_is_not_overwritten_without_force(self, run: Path, tmp_path: Path) -> None:
        file = tmp_path / "v.csv"
        file.write_text("precious")
        assert main(["evaluate", str(run), "--quiet", "--per-image", str(file)]) == 2
        assert file.read_text() == "precious"

    def test_a_folder_that_cannot_be_written_is_one_sentence(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="choose another place"):
            write_columns(tmp_path / "none" / "v.csv", {"index": np.zeros(1)})


class TestPairs:
    def test_the_error_is_that_of_the_differences(self, run: Path, other: Path) -> None:
        found = compare_models(run, other, settings=ROUGH, progress=False)
        a, b = (e.results[0].per_image for e in (found.first, found.second))
        torch.testing.assert_close(found.per_image, b - a)
        assert found.mean == pytest.approx(float((b - a).mean()))
        assert found.standard_error == pytest.approx(float((b - a).std()) / math.sqrt(len(a)))
        assert found.standard_error < found.unpaired_error
        assert found.notes == ()

    def test_a_model_does_not_differ_from_itself(self, run: Path) -> None:
        found = compare_models(run, run, limit=3, settings=ROUGH, progress=False)
        assert (found.mean, found.standard_error, found.correlation) == (0, 0, pytest.approx(1))

    def test_the_command_prints_what_the_json_says(
        self, run: Path, other: Path, tmp_path: Path, capsys
    ) -> None:
        out, file = tmp_path / "r.json", tmp_path / "v.csv"
        words = ["--limit", "4", "--steps", "8", "--quiet", "--json", str(out)]
        assert main(["evaluate", str(run), str(other), *words, "--per-image", str(file)]) == 0
        value, text = json.loads(out.read_text()), capsys.readouterr().out
        difference = value["difference"]
        assert (
            f"{other} minus {run}: {difference['bits_per_dim']:+.4f} ± "
            f"{difference['standard_error']:.4f} bits/dim on the same 4 images and noise"
        ) in text
        assert file.read_text().splitlines()[0] == "index,first,second,difference"
        assert value["first"]["results"][0]["bits_per_dim"] > 0

    def test_other_images_or_tables_are_refused(self, run: Path) -> None:
        first = evaluate(run, limit=2, settings=ROUGH, progress=False)
        train = evaluate(run, limit=2, split="train", settings=ROUGH, progress=False)
        table = evaluate(run, limit=2, settings=ROUGH, table=True, progress=False)
        with pytest.raises(InputError, match="evaluate both on the same"):
            paired_difference(first, train)
        with pytest.raises(InputError, match="leave out the table"):
            paired_difference(first, table)

    def test_other_noise_is_said(self, run: Path) -> None:
        a = evaluate(run, limit=2, settings=ROUGH, progress=False)
        noise = LikelihoodSettings(solver=Adams(steps=8), seed=1)
        b = evaluate(run, limit=2, settings=noise, progress=False)
        assert "differ" in paired_difference(a, b).notes[0]

    def test_a_journal_for_two_models_is_refused(self, run: Path, capsys) -> None:
        assert main(["evaluate", str(run), str(run), "--journal", "x.jsonl"]) == 2
        assert "--journal does not go with a second model" in capsys.readouterr().err
