"""Error bars for few images, values of single images, paired differences, asked-for precision."""

from __future__ import annotations

import csv
import dataclasses
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
from idode.evaluation.coder_proxies import CODERS, coder_size, missing_coders, useful_coders
from idode.evaluation.evaluate import evaluate
from idode.evaluation.kept_calibration import calibrations_of
from idode.evaluation.multilevel import Spread, allocate, estimate_mean, standardised
from idode.evaluation.paired import compare_models, paired_difference
from idode.evaluation.per_image import per_image, write_columns
from idode.evaluation.proxies import image_features
from idode.likelihood.bits_per_dim import skewness_of_mean, student_interval
from idode.likelihood.estimator import LikelihoodSettings, LogWeightEstimator
from idode.ode.adams import Adams
from idode.runs import pretrained
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


def test_a_journal_knows_images_by_their_places_in_the_data(tmp_path: Path) -> None:
    """The order of 20 images is not that of 40: their values must not be taken for others."""
    how = {"precision": 0.05, "settings": ROUGH, "progress": False}
    shared = tmp_path / "shared.jsonl"
    evaluate("pretrained:digits", limit=20, journal=shared, **how)
    again = evaluate("pretrained:digits", limit=40, journal=shared, **how).results[0]
    fresh = evaluate("pretrained:digits", limit=40, journal=tmp_path / "x.jsonl", **how).results[0]
    assert again.mean == fresh.mean


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
        assert low < result.mean < high
        assert high - low > 2 * 1.96 * result.standard_error
        assert found.interval(0.5)[1] < high

    def test_reaches_further_to_the_side_of_the_tail(self) -> None:
        skewed = torch.tensor([0.0, 0.0, 0.1, 0.1, 0.2, 1.0])
        low, high = student_interval(0, 1, 5, skewness=skewness_of_mean(skewed))
        assert high > 2.57 > -low
        mirrored = student_interval(0, 1, 5, skewness=skewness_of_mean(-skewed))
        assert mirrored == pytest.approx((-high, -low))
        assert skewness_of_mean(torch.ones(5)) == 0

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
        levels = dataclasses.replace(first, data=dataclasses.replace(first.data, levels=200))
        with pytest.raises(InputError, match="evaluate both on the same"):
            paired_difference(first, levels)
        with pytest.raises(InputError, match="leave out the table"):
            paired_difference(first, table)

    def test_models_of_other_data_are_refused_before_any_work(
        self, run: Path, monkeypatch
    ) -> None:
        monkeypatch.setattr("idode.evaluation.paired.evaluate", None)
        with pytest.raises(InputError, match="digits is for data of shape"):
            compare_models(run, "pretrained:digits")

    def test_other_noise_is_said(self, run: Path) -> None:
        a = evaluate(run, limit=2, settings=ROUGH, progress=False)
        noise = LikelihoodSettings(solver=Adams(steps=8), seed=1)
        b = evaluate(run, limit=2, settings=noise, progress=False)
        assert "differ" in paired_difference(a, b).notes[0]

    def test_a_journal_for_two_models_is_refused(self, run: Path, capsys) -> None:
        assert main(["evaluate", str(run), str(run), "--journal", "x.jsonl"]) == 2
        assert "--journal does not go with a second model" in capsys.readouterr().err


def vectors(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Proxies of a population, and values that they predict well."""
    g = np.random.default_rng(5)
    features = standardised(g.normal(size=(count, 3)))
    return features, 3 + features @ [0.5, 0.2, 0.0] + 0.1 * g.normal(size=count)


class TestEstimate:
    def test_proxies_take_what_they_predict_out_of_the_error(self) -> None:
        features, values = vectors(1000)
        rows = np.random.default_rng(0).permutation(1000)[:64]
        with_them = estimate_mean(features, rows, values[rows])
        without = estimate_mean(np.zeros((1000, 0)), rows, values[rows])
        assert without.standard_error == pytest.approx(
            values[rows].std(ddof=1) * math.sqrt(1 / 64 - 1 / 1000),
            rel=1.1 / 63,  # each residual is from the mean of the others
        )
        assert with_them.standard_error < 0.25 * without.standard_error
        assert with_them.mean == pytest.approx(values.mean(), abs=4 * with_them.standard_error)
        assert with_them.correlation > 0.97

    def test_all_images_give_the_mean_itself(self) -> None:
        features, values = vectors(40)
        rows = np.random.default_rng(0).permutation(40)
        found = estimate_mean(features, rows, values[rows], noise=0.2)
        assert found.mean == pytest.approx(values.mean(), rel=1e-12)
        assert found.standard_error == pytest.approx(0.2 / math.sqrt(40))  # noise stays
        assert found.population_error > values.std() / math.sqrt(41)

    def test_coarse_values_are_corrected_by_fine_ones(self) -> None:
        features, fine = vectors(1000)
        coarse = fine - 0.3 + 0.01 * np.random.default_rng(1).normal(size=1000)
        rows = np.random.default_rng(0).permutation(1000)[:64]
        found = estimate_mean(features, rows, coarse[rows], fine[rows[:8]])
        assert found.mean == pytest.approx(fine.mean(), abs=4 * found.standard_error)
        alone = estimate_mean(features, rows, fine[rows])
        assert found.standard_error == pytest.approx(
            math.hypot(alone.standard_error, 0.01 / math.sqrt(8)), rel=0.2
        )

    @pytest.mark.parametrize("broken", [np.nan, np.inf, 7.0])
    def test_constant_and_broken_proxies_are_left_out(self, broken: float) -> None:
        features, _ = vectors(50)
        both = np.column_stack([features, np.full(50, broken)])
        np.testing.assert_array_equal(standardised(both), standardised(features))
        assert standardised(np.full((50, 2), 3.0)).shape == (50, 0)

    def test_useless_proxies_cost_little(self) -> None:
        g = np.random.default_rng(3)
        values, errors = g.normal(size=2000), []
        noise = standardised(g.normal(size=(2000, 8)))
        for seed in range(40):
            rows = np.random.default_rng(seed).permutation(2000)[:32]
            errors.append(estimate_mean(noise, rows, values[rows]).mean - values.mean())
        assert np.std(errors) < 1.25 / math.sqrt(32)

    def test_the_plan_is_the_cheapest_that_reaches_the_error(self) -> None:
        spread = Spread(values=0.6, residuals=0.1, corrections=0.014, noise=0.0)
        plan = allocate(spread, 10**6, 0.01, 21, 51)
        error = math.hypot(0.1 / math.sqrt(plan.coarse), 0.014 / math.sqrt(plan.fine))
        assert error <= 0.01 * (1 + 1e-9)
        for n2 in range(1, 200):
            left = 0.01**2 - 0.014**2 / n2
            if left > 0 and n2 >= 8:
                assert plan.cost <= math.ceil(0.1**2 / left) * 21 + n2 * 51
        assert plan.cost < 0.1**2 / 0.01**2 * 51  # than fine solves alone

    def test_corrections_as_wide_as_values_make_all_solves_fine(self) -> None:
        plan = allocate(Spread(0.6, 0.1, 0.1, 0.0), 10**6, 0.01, 40, 51)
        assert plan.coarse == plan.fine == 100

    def test_solves_that_are_done_cost_nothing_more(self) -> None:
        """From nothing, fine solves alone are cheaper here; after a coarse pilot they are not."""
        spread, costs = Spread(values=0.6, residuals=0.1, corrections=0.03, noise=0.0), (15, 25)
        fresh = allocate(spread, 10**6, 0.02, *costs)
        assert (fresh.coarse, fresh.fine, fresh.cost) == (25, 25, 25 * 25)
        later = allocate(spread, 10**6, 0.02, *costs, coarse_done=32, fine_done=8)
        assert later.fine < later.coarse
        left = max(0, later.coarse - 32) * 15 + max(0, later.fine - 8) * 25
        assert later.cost == left < (25 - 8) * 25

    def test_nothing_is_left_to_do_once_the_error_is_reached(self) -> None:
        spread = Spread(values=0.6, residuals=0.118, corrections=0.03, noise=0.05)
        for error in (0.03, 0.045, 0.1):
            assert allocate(spread, 10**4, error, 15, 25, coarse_done=32, fine_done=8).cost == 0

    def test_noise_that_cannot_be_averaged_away_asks_for_all_images(self) -> None:
        assert allocate(Spread(0.6, 0.1, 0.01, 0.6), 100, 0.01, 21, 51).fine == 100


class TestProxies:
    def test_noise_costs_more_than_a_ramp_and_a_ramp_more_than_nothing(self) -> None:
        noise = np.random.default_rng(0).integers(0, 256, (1, 3, 8, 8))
        ramp = np.broadcast_to(np.arange(0, 64, 8), (1, 3, 8, 8))
        images = np.concatenate([noise, ramp, np.zeros((1, 3, 8, 8), int)] * 8).astype(np.uint8)
        names, values = image_features(images)
        code = values[:3, names.index("code length")]
        assert code[0] > code[1] > code[2]

    def test_vectors_and_small_images_have_proxies_too(self) -> None:
        for shape in ((7, 5), (7, 1, 2, 2), (7, 1, 2, 9)):
            _, values = image_features(np.arange(np.prod(shape)).reshape(shape))
            assert len(values) == 7
            assert np.isfinite(values).all()

    def test_levels_beyond_a_byte_and_constant_images_are_fine(self) -> None:
        wide = np.random.default_rng(0).integers(0, 65536, (5, 1, 8, 8)).astype(np.uint16)
        assert np.isfinite(image_features(wide)[1]).all()
        assert np.isfinite(image_features(np.zeros((5, 1, 8, 8), np.uint8))[1]).all()

    def test_a_missing_coder_is_named_with_what_to_do(self, monkeypatch) -> None:
        images = np.zeros((4, 1, 8, 8), np.uint8)
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        assert "pip install imagecodecs" in missing_coders(images)["JPEG XL"]
        assert "PNG" not in missing_coders(images)
        assert set(missing_coders(images.astype(np.uint16))) == set(CODERS)

    def test_a_coder_is_used_only_where_it_pays(self) -> None:
        images = np.random.default_rng(0).integers(0, 256, (40, 1, 8, 8)).astype(np.uint8)
        images[::2] //= 16
        size = coder_size("PNG", images)
        useless = np.random.default_rng(1).normal(size=(40, 1))
        assert "PNG" in useful_coders(images, useless, size, seconds=100, count=1000)
        assert useful_coders(images, useless, size, seconds=1e-6, count=1000) == []
        unrelated = np.random.default_rng(2).normal(size=40)
        assert useful_coders(images, useless, unrelated, seconds=0.1, count=1000) == []


class TestPrecision:
    def test_all_images_of_a_small_set_are_solved_and_a_sentence_says_what_is_left(
        self, run: Path
    ) -> None:
        five = {"split": "train", "limit": 5, "settings": ROUGH, "progress": False}
        found = evaluate(run, precision=1e-6, **five)
        (result,) = found.results
        alone = evaluate(run, **five).results[0]
        assert sorted(found.indices) == [0, 1, 2, 3, 4]
        assert result.mean == pytest.approx(alone.mean, abs=1e-9)
        assert "all 5 images were solved: noise and probes alone leave" in " ".join(result.notes)

    def test_a_limit_beyond_the_data_is_all_of_it(self, run: Path) -> None:
        how = {"split": "train", "settings": ROUGH, "progress": False, "precision": 1e-6}
        all_of_it = evaluate(run, **how)
        more = evaluate(run, limit=10**6, **how)
        assert sorted(more.indices) == sorted(all_of_it.indices)
        assert more.results[0].mean == all_of_it.results[0].mean
        assert more.results[0].sampling.images == len(more.indices)

    def test_it_stops_when_the_error_is_reached(self, run: Path, capsys, tmp_path: Path) -> None:
        out = tmp_path / "r.json"
        words = ["--split", "train", "--precision", "0.15", "--steps", "30", "--quiet"]
        assert main(["evaluate", str(run), *words, "--json", str(out)]) == 0
        text, value = capsys.readouterr().out, json.loads(out.read_text())
        (result,) = value["results"]
        sampling = result["sampling"]
        assert result["standard_error"] <= 0.15 < sampling["population_error"] + 0.15
        assert len(sampling["indices"]) == len(result["per_image"]) == value["images"]
        assert sampling["indices"] != sorted(sampling["indices"])  # chosen at random
        assert sampling["fine"] < 40
        assert "± for all images of this kind, not this test set: " in text
        assert "evaluations of the network: " in text

    def test_the_same_seed_gives_the_same_digits_and_stored_batches_are_used(
        self, run: Path, monkeypatch
    ) -> None:
        arguments = {"split": "train", "precision": 0.15, "progress": False}
        settings = LikelihoodSettings(solver=Adams(steps=30), seed=3)
        first = evaluate(run, settings=settings, **arguments)
        monkeypatch.setattr("idode.nets.unet.UNet.forward", None)
        again = evaluate(run, settings=settings, **arguments)
        assert again.results[0].mean == first.results[0].mean
        assert again.indices == first.indices

    def test_less_precision_does_not_cost_more(self, run: Path) -> None:
        how = {"split": "train", "settings": LikelihoodSettings(solver=Adams(steps=30))}
        found = [evaluate(run, precision=p, progress=False, **how) for p in (0.15, 1.0, 10.0)]
        costs = [one.results[0].sampling.evaluations for one in found]
        assert costs == sorted(costs, reverse=True)

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (["--precision", "0"], "--precision: must be above 0, got 0"),
            (["--precision", "0.1", "--bounds"], "--bounds does not go with --precision"),
        ],
    )
    def test_what_makes_no_sense_is_refused(
        self, run: Path, words: list[str], sentence: str, capsys
    ) -> None:
        assert main(["evaluate", str(run), *words]) == 2
        assert sentence in capsys.readouterr().err
        with pytest.raises(InputError, match="leave out the table"):
            evaluate(run, precision=0.1, table=True, progress=False)
        with pytest.raises(InputError, match="positive number"):
            evaluate(run, precision=-0.1, progress=False)


class TestKeptCalibration:
    SETTINGS = LikelihoodSettings(solver=Adams(tolerance=0.2))

    def test_a_second_evaluation_does_not_search_again(self, run: Path, tmp_path: Path) -> None:
        own = shutil.copytree(run, tmp_path / "run")
        first = evaluate(own, settings=self.SETTINGS, progress=False).results[0]
        assert (own / "calibration.json").is_file()
        shutil.rmtree(own / "evaluations")
        again = evaluate(own, settings=self.SETTINGS, progress=False).results[0]
        assert again.calibration.solver == first.calibration.solver
        torch.testing.assert_close(again.per_image, first.per_image)
        assert again.calibration.nfe < first.calibration.nfe / 2

    def test_steps_that_no_longer_hold_are_found_again(self, run: Path, tmp_path: Path) -> None:
        own = shutil.copytree(run, tmp_path / "run")
        first = evaluate(own, settings=self.SETTINGS, progress=False).results[0]
        file = own / "calibration.json"
        value = json.loads(file.read_text())
        for entry in value["calibrations"].values():
            entry["calibration"]["error_per_gap"] *= 1e6
        file.write_text(json.dumps(value))
        shutil.rmtree(own / "evaluations")
        again = evaluate(own, settings=self.SETTINGS, progress=False).results[0]
        assert again.calibration == first.calibration
        assert "e+06" not in file.read_text()

    @pytest.mark.parametrize("text", ["", "[]", '{"format": 99}', '{"format": 1}'])
    def test_a_damaged_file_is_as_none(self, run: Path, tmp_path: Path, text: str) -> None:
        own = shutil.copytree(run, tmp_path / "run")
        (own / "calibration.json").write_text(text)
        assert evaluate(own, limit=2, settings=self.SETTINGS, progress=False).complete

    def test_other_weights_have_other_steps(self, run: Path, other: Path) -> None:
        names = [calibrations_of(open_run(r), open_run(r).model(), open_run(r).identity, "test")
                 for r in (run, other)]  # fmt: skip
        assert names[0].depends["model"] != names[1].depends["model"]

    @pytest.mark.parametrize("name", pretrained())
    def test_shipped_models_have_theirs(self, name: str) -> None:
        opened = open_run(f"pretrained:{name}")
        model = opened.model()
        assert opened.identity is not None
        kept = calibrations_of(opened, model, opened.identity, "test")
        estimator = LogWeightEstimator(model, LikelihoodSettings().for_model(model))
        found = kept.find(estimator, 8)
        assert found is not None
        assert found.solver_rms <= 0.005
        assert kept.write != opened.path / "calibration.json"
