"""``idode compare``: resumed comparisons, failures, refused input, and the sums of its table."""

from __future__ import annotations

import json
import runpy
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from forking import forks
from scipy import stats
from test_docs import fences
from test_layers import ROOT

from idode.cli.compare import tables
from idode.cli.main import main
from idode.diffusion.predictors import NOISE
from idode.errors import InputError, NumericalError
from idode.runs.run import open_run
from idode.runs.systems import COMPARED, SYSTEMS, distinct
from idode.studies.comparison.claims import Claim, claims, t_quantile, verdicts
from idode.studies.comparison.compare import _not_shared, compare
from idode.studies.comparison.curves import Curve, learning_curve
from idode.studies.comparison.experiment import Experiment
from idode.studies.comparison.folder import clear_folder, write_plan
from idode.studies.comparison.plan import Entry, Plan
from idode.studies.comparison.results import Result, read_result, write_result
from idode.studies.comparison.settings import MeasurementSettings
from idode.studies.comparison.table import METRICS, Outcome, outcomes, rows
from idode.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = [word for word in tiny.FLAGS if word != "--set" and not word.startswith("train.steps")]
CLOCKS = ("train_seconds", "evaluation_seconds", "seconds_to_baseline")  # differ on every machine


@pytest.fixture(scope="module", autouse=True)
def _own_data(tmp_path_factory: pytest.TempPathFactory):
    patch = pytest.MonkeyPatch()
    patch.setenv("IDODE_DATA", str(tmp_path_factory.mktemp("data")))
    yield
    patch.undo()


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("images") / "x.npy"
    np.save(path, tiny.images())
    return f"npy:{path}?levels=4"


def command(spec: str, out: Path, *more: str) -> list[str]:
    words = [word for setting in TINY for word in ("--set", setting)]
    size = ["--steps", "10", "--limit", "4", "--tolerance", "0.2", "--samples", "8"]
    return ["compare", "--data", spec, *words, *size, "--quiet", "--out", str(out), *more]


def stopped(*args: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def known_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """ODE values and samples that cost nothing; a model that predicts noise has no ODE value."""

    def bits_per_dim(model, images, settings, calibration=None):
        if model.predictor is NOISE:
            raise NumericalError("image 3: the field is too rough")
        return SimpleNamespace(
            mean=2.0,
            standard_error=0.1,
            nfe=9.0,
            calibration=SimpleNamespace(nfe=1),
            complete=True,
            notes=(),
        )

    def sample(model, count, **more):
        return SimpleNamespace(nfe=7.0, data=torch.from_numpy(tiny.images()[:count]))

    place = "idode.studies.comparison.experiment"
    monkeypatch.setattr(f"{place}.bits_per_dim", bits_per_dim)
    monkeypatch.setattr(f"{place}.sample", sample)


def value(out: Path) -> dict:
    return json.loads((out / "compare.json").read_text())


def timeless(found: dict) -> dict:
    """The values of a comparison without what a clock says."""
    for row in found["systems"].values():
        for table in (row["mean"], *(run["values"] for run in row["seeds"].values())):
            for name in CLOCKS:
                table.pop(name, None)
        for run in row["seeds"].values():
            run["curve"].pop("seconds")
    return found


@pytest.fixture(scope="module")
def done(spec: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compare") / "done"
    assert main(command(spec, out, "--systems", "vdm,idode-vp")) == 0
    return out


class TestCommand:
    def test_the_page_needs_nothing_beside_it_and_has_all_systems(self, done: Path) -> None:
        page = (done / "compare.html").read_text()
        assert page.count("data:image/png;base64,") == 3
        assert 'src="http' not in page
        for text in (page, (done / "compare.md").read_text()):
            assert all(name in text for name in ("vdm", "idode-vp", "ODE uniform", "not decided"))
        for name in ("curves-steps", "curves-seconds", "values"):
            assert (done / f"{name}.png").read_bytes().startswith(b"\x89PNG")

    def test_values_are_those_of_evaluate_on_the_same_run(self, done: Path, tmp_path) -> None:
        run, result = done / "idode-vp" / "seed-0", tmp_path / "r.json"
        cell = value(done)["systems"]["idode-vp"]["seeds"]["0"]["values"]
        flags = ["--tolerance", "0.2", "--quiet", "--json", str(result)]
        assert main(["evaluate", str(run), *flags]) == 0  # there are 4 test images
        found = json.loads(result.read_text())
        assert cell["tn"] == pytest.approx(found["results"][0]["bits_per_dim"], abs=1e-6)
        assert cell["likelihood_nfe"] == found["results"][0]["nfe"]
        assert cell["sde"] == pytest.approx(found["sde_bound"]["bits_per_dim"], abs=1e-6)
        assert cell["uniform"] != cell["tn"]

    def test_the_same_command_again_repeats_no_run(self, spec, done: Path, capsys) -> None:
        before = {p: p.stat().st_mtime_ns for p in done.rglob("seed-*/*")}
        assert main(command(spec, done, "--systems", "vdm,idode-vp")) == 0
        assert {p: p.stat().st_mtime_ns for p in done.rglob("seed-*/*")} == before
        assert "idode-vp" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("more", "sentence"),
        [
            (["--steps", "21"], "steps: 10 there, 21 here"),
            (["--tolerance", "0"], "--tolerance: must be above 0, got 0"),
            (["--set", "net.width=16"], "settings"),
            (["--data", "digits"], "data"),
            (["--systems", "vdm,tigers"], "no system called 'tigers'"),
            (["--systems", "vdm,vdm"], "systems: give at least one, and none twice"),
            (
                ["--systems", "rectified-flow,vdm,flow-matching"],
                "rectified-flow and flow-matching are the same training here",
            ),
            (["--seeds", "0,x"], "--seeds must be whole numbers"),
            (["--seeds", "-1"], "seed"),
            (["--preset", "tigers"], "no preset called 'tigers'"),
            (["--set", "train.minutes=1"], "train.minutes is not for all trainings"),
            (["--set", "train.seed=7"], "train.seed is not for all trainings"),
            (["--set", "model.levels=5"], "model.levels follows from the data"),
            (["--control"], "give its number of steps as finetune"),
            (["--json", "no/such/folder/x.json"], "make it first"),
        ],
    )
    def test_other_settings_and_bad_input_are_refused(
        self, spec, done: Path, more: list[str], sentence: str, capsys
    ) -> None:
        before = {p: p.read_bytes() for p in done.rglob("*") if p.is_file()}
        assert main([*command(spec, done, "--systems", "vdm"), *more]) == 2
        captured = capsys.readouterr()
        assert sentence in captured.err
        assert len(captured.err.splitlines()) == 1
        assert captured.out == ""
        assert {p: p.read_bytes() for p in done.rglob("*") if p.is_file()} == before

    def test_another_programs_plan_and_folders_survive_force(self, spec, tmp_path, capsys):
        theirs = {"plan.json": '{"week": 3}', "trial/seed-1/result.json": "{}", "values.png": "x"}
        for name, text in theirs.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        assert main(command(spec, tmp_path, "--systems", "vdm", "--force")) == 2
        assert "holds no comparison" in capsys.readouterr().err
        assert {name: (tmp_path / name).read_text() for name in theirs} == theirs

    def test_a_folder_of_something_else_is_refused_even_by_force(self, spec, tmp_path, capsys):
        (tmp_path / "thesis.tex").write_text("chapter one")
        for more in ([], ["--force"]):
            assert main(command(spec, tmp_path, "--systems", "vdm", *more)) == 2
            assert "holds no comparison" in capsys.readouterr().err
        assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]

    def test_the_printed_tables_fit_a_terminal_with_several_seeds(self) -> None:
        names = ["idode-vp+finetune", "rectified-flow", "vdm"]
        values = dict.fromkeys(METRICS, 1234.5) | {"sde": 1.8, "tn": 1.7, "uniform": 2.1}
        found = [
            Outcome(Entry(*name.partition("+")[:1], seed, name.partition("+")[2]),
                    {k: v + 0.1 * seed for k, v in values.items()}, {}, None)
            for name in names for seed in range(3)
        ]  # fmt: skip
        printed = tables(rows(names, found))
        assert max(map(len, printed.splitlines())) <= 100
        assert "1.900±0.058" in printed
        assert all(metric.title in printed for metric in METRICS.values())

    def test_a_column_is_printed_with_its_kind_wherever_it_stands(self, monkeypatch) -> None:
        turned = dict(reversed(METRICS.items()))
        for place in ("table.METRICS", "page.HEADER"):
            header = ["system", *(metric.title for metric in turned.values())]
            monkeypatch.setattr(f"idode.studies.comparison.{place}",
                                turned if place == "table.METRICS" else header)  # fmt: skip
        first, second = tables(rows(["vdm"], [])).split("\n\n")
        assert "ODE tn" in first
        assert "FID*" in first
        assert "train s" in second
        assert "steps to vdm" in second

    def test_force_removes_what_makes_it_a_comparison_last(
        self, spec, done: Path, tmp_path: Path, monkeypatch
    ) -> None:
        out, gone, unlink = tmp_path / "o", [], Path.unlink
        shutil.copytree(done, out)

        def removed(path: Path, missing_ok: bool = False) -> None:
            gone.append(path.relative_to(out).as_posix())
            unlink(path, missing_ok)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", removed)
            clear_folder(out)
        assert gone[-1] == "plan.json"
        assert "compare.html" in gone
        for system in ("vdm", "idode-vp"):
            result, config = (f"{system}/seed-0/{name}.json" for name in ("result", "config"))
            assert gone.index(result) < gone.index(config)
        assert list(out.iterdir()) == []

    def test_all_changed_settings_are_named_where_runs_are_measured_again(
        self, spec, done: Path, tmp_path: Path, monkeypatch, capsys
    ) -> None:
        out = tmp_path / "o"
        shutil.copytree(done, out)
        for name, changed in (("vdm", {"limit": 5}), ("idode-vp", {"limit": 4, "draws": 8})):
            path = out / name / "seed-0" / "result.json"
            stored = json.loads(path.read_text())
            stored["effort"] = stored.pop("measurement") | changed  # as version 0.1.0 called it
            path.write_text(json.dumps(stored))
        monkeypatch.setattr(Experiment, "carry_out", stopped)
        words = command(spec, out, "--systems", "vdm,idode-vp", "--limit", "3")
        words.remove("--quiet")
        assert main(words) == 130
        told, interrupted = capsys.readouterr().err.splitlines()
        assert "(limit 4 and 5 before, 3 now, draws 8 before, 16 now)" in told
        kept = f"interrupted: {out} keeps what is done; re-run the command to resume"
        assert interrupted == f"idode compare: {kept}"

    def test_continuous_data_is_refused(self, tmp_path: Path, capsys) -> None:
        np.save(tmp_path / "v.npy", np.random.default_rng(0).normal(size=(20, 2)))
        flags = ["--preset", "vectors", "--data", f"npy:{tmp_path / 'v.npy'}"]
        assert main(["compare", *flags, "--systems", "vdm", "--out", str(tmp_path / "o")]) == 2
        assert "is continuous" in capsys.readouterr().err
        assert not (tmp_path / "o").exists()

    def test_a_failing_system_is_named_and_the_others_remain(
        self, spec, tmp_path: Path, known_values, capsys
    ) -> None:
        assert main(command(spec, tmp_path / "o", "--systems", "vdm,idode-vp")) == 0
        shown = capsys.readouterr().out
        assert "failed: vdm seed 0, ode: image 3: the field is too rough" in shown
        line = next(text for text in shown.splitlines() if text.startswith("vdm "))
        assert line.count("failed") == 3  # both values and their NFE
        systems = value(tmp_path / "o")["systems"]
        assert "fid" in systems["vdm"]["mean"]  # what could be measured is
        assert "tn" not in systems["vdm"]["mean"]
        assert systems["idode-vp"]["mean"]["tn"]["mean"] == 2.0

    def test_a_training_that_diverges_is_a_result(self, spec, tmp_path: Path, capsys) -> None:
        flags = ["--systems", "vdm,idode-sp", "--set", "train.lr=1e30", "--set", "train.warmup=0"]
        words = command(spec, tmp_path / "o", *flags, "--finetune", "2")
        words.remove("--quiet")
        assert main(words) == 0
        captured = capsys.readouterr()
        assert "failed: idode-sp seed 0, training: the loss is not finite" in captured.out
        assert "idode-sp+finetune seed 0, training: its first stage failed" in captured.out
        assert "training failed" in captured.err

    def test_a_second_stage_and_its_control_start_from_the_first(
        self, spec, tmp_path: Path, known_values
    ) -> None:
        out = tmp_path / "o"
        stages = ["--systems", "idode-vp", "--finetune", "4", "--control"]
        assert main(command(spec, out, *stages)) == 0
        found = value(out)
        names = ["idode-vp", "idode-vp+finetune", "idode-vp+control"]
        assert list(found["systems"]) == names
        tuned, control = (open_run(out / n / "seed-0").config for n in names[1:])
        assert (tuned.objective.order, tuned.objective.ratio, tuned.train.steps) == (2, 0.1, 4)
        assert open_run(out / names[1] / "seed-0").parent.run == str(out / names[0] / "seed-0")
        assert control == replace(tuned, objective=replace(tuned.objective, ratio=0.0))
        assert any("+control" in o["claim"] for o in found["orderings"])
        assert "steps_to_baseline" not in found["systems"]["idode-vp+finetune"]["mean"]

    def test_other_measurement_settings_measure_again_and_train_nothing(
        self, spec, done: Path, tmp_path: Path, monkeypatch, capsys
    ) -> None:
        out = tmp_path / "o"
        shutil.copytree(done, out)
        plan = json.loads((out / "plan.json").read_text())
        (out / "plan.json").write_text(json.dumps({**plan, "effort": {"limit": 4}}))  # as it was
        before = {p: p.read_bytes() for p in out.rglob("seed-*/*") if p.name != "result.json"
                  and p.is_file()}  # fmt: skip
        monkeypatch.setattr(Trainer, "train", None)
        words = [*command(spec, out, "--systems", "vdm,idode-vp"), "--limit", "3"]
        words.remove("--quiet")
        assert main(words) == 0
        told = "2 of 2 runs are measured again (limit 4 before, 3 now); their training is kept"
        assert told in capsys.readouterr().err.splitlines()
        assert main(words) == 0
        assert "measured again" not in capsys.readouterr().err
        assert {p: p.read_bytes() for p in before} == before
        old, new = value(done), value(out)
        assert (old["plan"]["measurement"]["limit"], new["plan"]["measurement"]["limit"]) == (4, 3)
        for name in ("vdm", "idode-vp"):
            one, other = (v["systems"][name]["seeds"]["0"]["values"] for v in (old, new))
            assert one["tn"] != other["tn"]
            assert one["train_seconds"] == other["train_seconds"]
            assert one["sde"] == other["sde"]

    def test_by_default_no_training_is_done_twice(self) -> None:
        assert [name for name in COMPARED if name not in distinct(COMPARED)] == ["rectified-flow"]
        for name in ("flow-matching", "rectified-flow"):
            assert Plan(("vdm", name)).names() == ["vdm", name]

    @pytest.mark.parametrize("name", SYSTEMS)
    def test_every_system_has_a_configuration_with_the_same_network(self, name: str) -> None:
        identity = tiny.dataset().identity
        plan = Plan((name,), settings=tuple(TINY), steps=20, data="x", seeds=(3,))
        config = plan.config(plan.entries()[0], identity)
        base = Plan(("vdm",), settings=tuple(TINY), steps=20, data="x", seeds=(3,))
        assert config.net == base.config(base.entries()[0], identity).net
        assert (config.train.steps, config.train.seed, config.net.width) == (20, 3, 8)


class TestPython:
    def arguments(self, out: Path, **more: object) -> dict:
        size = {"steps": 10, "limit": 4, "tolerance": 0.2, "samples": 8}
        return {"out": out, "settings": TINY, **size, **more}

    def test_a_finished_comparison_is_returned_and_nothing_printed(
        self, spec, done: Path, capfd, monkeypatch
    ) -> None:
        monkeypatch.setattr(Trainer, "train", None)
        given = self.arguments(done, data=spec, progress=False)
        found = compare(["vdm", "idode-vp"], **given)
        assert capfd.readouterr() == ("", "")
        assert [row.name for row in found.rows] == ["vdm", "idode-vp"]
        assert found.to_json() == value(done)
        assert found.page == done / "compare.html"

    def test_arrays_are_compared_on_and_recorded_as_such(
        self, tmp_path: Path, known_values, monkeypatch
    ) -> None:
        data = (tiny.images()[:-8], tiny.images()[-8:])
        given = self.arguments(tmp_path / "o", data=data, seeds=[3], progress=False)
        found = compare(["idode-sp"], **given)
        assert open_run(tmp_path / "o" / "idode-sp" / "seed-3").config.data == "memory"
        monkeypatch.setattr(Trainer, "train", None)
        assert compare(["idode-sp"], **given).to_json() == found.to_json()

    def test_the_example_in_the_documentation_runs(self, tmp_path: Path, capsys, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (code,) = fences(ROOT / "docs" / "compare.md", "python")
        exec(code, {})
        assert "comparison/compare.html" in capsys.readouterr().out

    @pytest.mark.parametrize(
        "wrong", [{"systems": "vdm"}, {"seeds": 3}, {"settings": "train.lr=1e-3"}, {"limit": "4"}]
    )
    def test_texts_and_numbers_are_no_lists(self, spec, tmp_path, wrong: dict[str, Any]) -> None:
        given = self.arguments(tmp_path / "out", data=spec, progress=False) | wrong
        with pytest.raises(InputError, match="in brackets|a whole number"):
            compare(**given)

    def test_a_run_that_cut_its_batches_is_the_same(
        self, spec, done: Path, tmp_path: Path, monkeypatch
    ) -> None:
        out = shutil.copytree(done, tmp_path / "out")
        config = out / "vdm" / "seed-0" / "config.json"
        text = config.read_text()
        assert '"accumulate": 1' in text
        config.write_text(text.replace('"accumulate": 1', '"accumulate": 2', 1))
        monkeypatch.setattr(Trainer, "train", None)
        found = compare(["vdm"], **self.arguments(out, data=spec, progress=False))
        assert [row.name for row in found.rows] == ["vdm"]

    def test_bad_input_raises_the_sentence_of_the_program(self, spec, done: Path, capsys) -> None:
        for systems, more, words in (
            ("tigers", {}, []),
            ("vdm", {"steps": 21}, ["--steps", "21"]),
            ("vdm", {"data": "digits"}, ["--data", "digits"]),
            ("vdm", {"control": True}, ["--control"]),
            ("vdm", {"samples": 1}, ["--samples", "1"]),
        ):
            with pytest.raises(InputError) as raised:
                compare([systems], **self.arguments(done, **{"data": spec, **more}))
            assert main([*command(spec, done, "--systems", systems), *words]) == 2
            assert capsys.readouterr().err == f"idode compare: {raised.value}\n"


class TestDeath:
    def test_after_kill_9_and_an_interrupt_the_table_is_the_same(
        self, spec: str, done: Path, tmp_path: Path
    ) -> None:
        out = tmp_path / "o"
        words = command(spec, out, "--systems", "vdm,idode-vp")
        for number, expected, when in (
            (signal.SIGKILL, -9, "o/vdm/seed-0/checkpoints"),
            (signal.SIGINT, 130, "o/idode-vp/seed-0/config.json"),
        ):
            ended = forks().run(*words, root=tmp_path, kill_when=when, signal_number=number)
            assert ended.codes == [expected], ended.text
            assert not (out / "compare.json").exists()
        assert main(words) == 0
        assert timeless(value(out)) == timeless(value(done))


class TestProcesses:
    def test_two_share_the_runs_and_their_table_is_that_of_one(
        self, spec: str, done: Path, tmp_path: Path
    ) -> None:
        words = command(spec, tmp_path / "o", "--systems", "vdm,idode-vp")
        words = [word for word in words if word != "--quiet"]
        ended = forks().run(*words, root=tmp_path, ranks=2)
        assert ended.codes == [0, 0], ended.text
        assert timeless(value(tmp_path / "o")) == timeless(value(done))
        for place in ("[1/2] vdm seed 0: training", "[2/2] idode-vp seed 0: training"):
            assert len([x for x in ended.text.splitlines() if x.startswith(f"{place} ")]) == 1
        assert ended.text.count("compare.html") == 1  # printed by one of them

    def test_what_the_first_refuses_none_begins(
        self, spec: str, done: Path, tmp_path: Path
    ) -> None:
        words = command(spec, done, "--systems", "vdm,idode-vp", "--set", "train.lr=1e-5")
        ended = forks().run(*words, root=tmp_path, ranks=2)
        assert ended.codes == [2, 2], ended.text
        assert "Traceback" not in ended.text
        assert "train.lr" in ended.text or "settings" in ended.text

    def test_a_folder_that_one_process_does_not_see_is_refused(self, tmp_path: Path) -> None:
        plan = Plan(systems=("vdm",), seeds=(0,))
        assert "give one that all of them share" in _not_shared(tmp_path, plan)
        write_plan(tmp_path, plan)
        assert _not_shared(tmp_path, plan) == ""
        assert _not_shared(tmp_path, replace(plan, steps=7)) != ""


CURVE = Curve((10, 20, 30, 40), (1.0, 2.0, 4.0, 6.0), (5.0, 3.0, 2.0, 2.5))


def finished(name: str, seed: int, **values: float) -> Result:
    return Result(Entry(name, seed), MeasurementSettings(), values, {"training": 1.0})


class TestSteps:
    def test_the_crossing_is_interpolated(self) -> None:
        assert CURVE.first_below(2.5) == (25.0, 3.0)
        assert CURVE.first_below(3.0) == (20.0, 2.0)

    def test_the_first_crossing_counts_and_the_start_is_the_earliest(self) -> None:
        assert CURVE.first_below(9.0) == (10.0, 1.0)
        assert CURVE.first_below(2.0) == (30.0, 4.0)
        assert CURVE.first_below(1.9) is None

    def test_every_seed_is_timed_to_its_own_baseline(self) -> None:
        slow = Curve((10, 40), (1.0, 6.0), (5.0, 3.0))
        pairs = [
            (finished("vdm", 0), CURVE),  # ends at 2.5
            (finished("vdm", 1), slow),  # ends at 3
            (finished("idode-vp", 0), slow),  # never reaches 2.5
            (finished("idode-vp", 1), CURVE),
        ]
        found = outcomes(pairs)
        assert found[0].values["steps_to_baseline"] == 25.0  # before its own end
        assert "steps_to_baseline" not in found[2].values
        assert found[2].values["least_steps"] == 40.0
        assert found[3].values["seconds_to_baseline"] == 2.0
        row = rows(["vdm", "idode-vp"], found)[1]
        assert row.cells["steps_to_baseline"].text(0) == "20 (1 of 2)"

    def test_means_and_errors_are_over_the_seeds_that_have_a_value(self) -> None:
        pairs = [(finished("vdm", seed, tn=bits), CURVE) for seed, bits in enumerate((2.0, 3.0))]
        failed = Result(Entry("vdm", 2), MeasurementSettings()).failed(
            "training", "the loss is not finite"
        )
        found = outcomes([*pairs, (failed, Curve((), (), ()))])
        (row,) = rows(["vdm"], found)
        assert row.cells["tn"].mean == 2.5
        assert row.cells["tn"].standard_error == pytest.approx(0.5)  # 0.7071 / sqrt(2)
        assert row.cells["tn"].text(2) == "2.50 ± 0.50 (2 of 3)"
        assert row.failures == ("vdm seed 2, training: the loss is not finite",)

    def test_without_a_baseline_nothing_is_timed(self) -> None:
        (only,) = outcomes([(finished("idode-vp", 0), CURVE)])
        assert "least_steps" not in only.values

    def test_never_is_said_where_no_seed_gets_there(self) -> None:
        slow = Curve((10, 40), (1.0, 6.0), (5.0, 3.0))
        found = outcomes([(finished("vdm", 0), CURVE), (finished("idode-vp", 0), slow)])
        assert "never" in rows(["idode-vp"], found)[0].texts()

    def test_a_dash_is_said_where_nothing_was_timed(self) -> None:
        (alone,) = rows(["idode-vp"], outcomes([(finished("idode-vp", 0), CURVE)]))
        tuned = Result(
            Entry("idode-vp", 0, "finetune"), MeasurementSettings(), {}, {"training": 1.0}
        )
        second = rows(
            ["idode-vp+finetune"], outcomes([(finished("vdm", 0), CURVE), (tuned, CURVE)])
        )
        for row in (alone, *second):
            assert "train_seconds" in row.cells
            assert "never" not in row.texts()
            assert row.texts().count("–") == len(METRICS) - 1

    def test_seconds_come_from_the_speed_of_each_interval(self, tmp_path: Path) -> None:
        run = tiny.new_run(tmp_path)  # batches of 8
        lines = [(5, 8.0, None), (10, 4.0, 3.0), (20, 80.0, 2.0)]
        run.metrics.write_text(
            "".join(
                json.dumps({"step": s, "images_per_second": v}
                           | ({} if h is None else {"held_out": h})) + "\n"
                for s, v, h in lines
            )
        )  # fmt: skip
        assert learning_curve(run) == Curve((10, 20), (15.0, 16.0), (3.0, 2.0))


def outcome(name: str, seed: int, **values: float) -> Outcome:
    return Outcome(Entry(name, seed), values, {}, None)


CLAIM = Claim(("a", "tn"), ("b", "tn"), "somewhere")


class TestOrderings:
    @pytest.mark.parametrize(
        ("a", "b", "word"),
        [
            ([1.0, 1.1, 0.9], [2.0, 2.2, 2.1], "holds"),
            ([2.0, 2.2, 2.1], [1.0, 1.1, 0.9], "does not hold"),
            ([1.0, 2.0, 3.0], [2.0, 1.0, 3.1], "not decided"),
            ([1.0], [2.0], "not decided"),  # one seed has no error
            ([1.0, 2.0, 9.0], [1.1, 2.11, 9.12], "holds"),  # paired: seeds differ by far more
            ([1.0, 2.0, 9.0], [1.1, 2.1, 9.2], "not decided"),  # 4 errors; three seeds need 4.3
            ([1.0, 2.0, 9.0, 5.0], [1.1, 2.1, 9.2, 5.2], "holds"),  # 5.2; four need 3.2
        ],
    )
    def test_paired_differences_decide(self, a, b, word) -> None:
        found = [outcome("a", i, tn=x) for i, x in enumerate(a)]
        found += [outcome("b", i, tn=x) for i, x in enumerate(b)]
        (verdict,) = verdicts(found, [CLAIM])
        difference = np.subtract(a, b)
        assert verdict.word == word
        assert verdict.difference == pytest.approx(difference.mean())
        if len(a) > 1:
            expected = difference.std(ddof=1) / len(a) ** 0.5
            assert verdict.standard_error == pytest.approx(expected)

    @pytest.mark.parametrize("freedom", [*range(1, 9), 99, 100])
    def test_as_many_errors_decide_as_students_t_says(self, freedom: int) -> None:
        assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)

    def test_only_seeds_with_both_values_count(self) -> None:
        found = [outcome("a", 0, tn=1.0), outcome("a", 1, tn=5.0), outcome("b", 0, tn=2.0)]
        (verdict,) = verdicts(found, [CLAIM])
        assert (verdict.seeds, verdict.difference) == (1, -1.0)
        assert verdicts(found[:2], [CLAIM]) == []

    def test_half_the_steps_is_a_claim_of_its_own(self) -> None:
        half = replace(CLAIM, less=("a", "least_steps"), more=("b", "least_steps"), factor=0.5)
        found = [outcome("a", i, least_steps=60.0 + i) for i in range(2)]
        found += [outcome("b", i, least_steps=100.0 + i) for i in range(2)]
        whole, halved = verdicts(found, [replace(half, factor=1.0), half])
        assert (whole.word, halved.word) == ("holds", "does not hold")
        assert halved.difference == pytest.approx(10.25)

    def test_every_claim_is_about_rows_that_a_table_can_have(self) -> None:
        plan = Plan(distinct(SYSTEMS), finetune=1, control=True)
        named = {name for claim in claims() for name, _ in (claim.less, claim.more)}
        assert named <= {*plan.names(), *SYSTEMS}
        assert len({str(c) for c in claims()}) == len(claims())


class TestStore:
    def test_a_result_is_read_back_and_with_other_settings_keeps_its_training(
        self, tmp_path: Path
    ) -> None:
        entry = Entry("vdm", 0)
        result = Result(entry, MeasurementSettings()).done(
            "training", 1.5, {"sde": 2.0}, ("rough",)
        )
        result = result.failed("ode", "too rough")
        write_result(tmp_path, result)
        assert read_result(tmp_path, entry, MeasurementSettings()) == result
        assert result.missing == ("sde", "sampling")
        other = read_result(tmp_path, entry, MeasurementSettings(limit=3))
        assert other == Result(entry, MeasurementSettings(limit=3), seconds={"training": 1.5})
        assert other.missing == ("sde", "ode", "sampling")
        diverged = Result(entry, MeasurementSettings()).failed(
            "training", "the loss is not finite"
        )
        write_result(tmp_path, diverged)
        again = read_result(tmp_path, entry, MeasurementSettings(limit=3))
        assert (again.failures, again.missing) == (diverged.failures, ())
        with pytest.raises(InputError, match="remove it"):
            read_result(tmp_path, Entry("vdm", 1), MeasurementSettings())

    def test_a_damaged_result_is_one_sentence(self, tmp_path: Path) -> None:
        (tmp_path / "result.json").write_text("{")
        with pytest.raises(InputError, match="cannot be read"):
            read_result(tmp_path, Entry("vdm", 0), MeasurementSettings())


def test_recipes_do_not_race_to_a_goal_that_halving_may_drop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(__file__).parent.parent / "benchmarks" / "recipes.py"
    words = ["digits", "--seconds", "1", "--halve", "--race", "5", "--try", "train.lr=1e-3"]
    monkeypatch.setattr("sys.argv", [str(file), *words])
    monkeypatch.syspath_prepend(file.parent)
    monkeypatch.setattr("idode.data.load", lambda name: pytest.fail("it was not refused"))
    with pytest.raises(SystemExit):
        runpy.run_path(str(file), run_name="__main__")
    assert "--halve may drop it: give one of them" in capsys.readouterr().err
