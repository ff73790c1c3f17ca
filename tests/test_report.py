from __future__ import annotations

import base64
import contextlib
import html
import io
import json
import re
import shutil
import subprocess
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from PIL import Image
from test_docs import fences
from test_layers import ROOT

from idode import LikelihoodSettings
from idode.cli.main import main
from idode.diffusion import exact
from idode.diffusion.noise_levels import Designed, UniformGamma
from idode.diffusion.schedules import VariancePreserving, start_gamma
from idode.errors import DataWarning, InputError
from idode.evaluation.evaluate import IMPORTANCES
from idode.evaluation.likelihood import bounds
from idode.likelihood.dequantization import TruncatedNormal, Uniform, uniform_start
from idode.ode.adams import Adams
from idode.runs.folder import REPORT_FILES
from idode.runs.run import Run, open_run, save_model
from idode.sampling.samples import sample
from idode.studies.loss_variance import loss_variance
from idode.studies.report import figures
from idode.studies.report.bounds import CalibratedModel
from idode.studies.report.curves import TrainingCurve, continued, training_curve
from idode.studies.report.measurements import (
    STAGES,
    Measurements,
    distributions,
    measure,
    started_from,
    whole_curve,
)
from idode.studies.report.noise_levels import measure_noise_levels
from idode.studies.report.report import report
from idode.studies.report.sections import facts, sections
from idode.studies.report.settings import ReportSettings

SMALL = ReportSettings(
    bounds_images=3,
    images=4,
    starts=3,
    start_images=3,
    levels=4,
    level_images=4,
    level_draws=3,
    samples=4,
    pilot_images=3,
    tolerance=0.2,  # the values matter little: about what the fewest steps reach
    sde_draws=2,
)
KEYS = (
    "training",
    "time-densities",
    "squared-errors",
    "uniform-starts",
    "bounds",
    "evaluations",
    "histogram",
    "samples",
)
PICTURES = [key for key in KEYS if key not in ("bounds", "evaluations")]


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IDODE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("idode.studies.report.report.FAST", SMALL)


@dataclass(frozen=True)
class Made:
    """A folder with data, a fine-tuned run and its report; and what the command printed."""

    path: Path
    measurements: Measurements
    out: str
    err: str


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("report")
    np.save(folder / "x.npy", tiny.images())
    kept: list[Measurements] = []

    def keeping(*args, **more):
        kept.append(measure(*args, **more))
        return kept[0]

    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IDODE_DATA", str(folder / "data"))
        patch.setattr("idode.studies.report.report.FAST", SMALL)
        patch.setattr("idode.studies.report.report.measure", keeping)
        spec, run = f"npy:{folder / 'x.npy'}?levels=4", str(folder / "run")
        words = ["train", "digits", "--data", spec, *tiny.FLAGS, "--quiet"]
        first = str(folder / "first")
        assert main([*words, "--out", first]) == 0
        assert main(["finetune", first, "--steps", "10", "--out", run, "--quiet"]) == 0
        shutil.move(first, folder / "moved")  # so that it is known by its weights
        words = ["report", run, "--before", str(folder / "moved")]
        words += ["--json", str(folder / "out.json")]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            assert main([*words, "--out", str(folder / "out")]) == 0
    return Made(folder, kept[0], out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def page(made: Made) -> str:
    return (made.path / "out" / "report.html").read_text()


@pytest.fixture(scope="module")
def numbers(made: Made) -> dict:
    return json.loads((made.path / "out.json").read_text())


@pytest.fixture(scope="module")
def lattice() -> exact.Lattice:
    points = torch.tensor([[0, 1], [2, 2], [3, 0]])
    return exact.Lattice(points, torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), 4)


@pytest.fixture(scope="module")
def calibrated(lattice: exact.Lattice) -> CalibratedModel:
    model = lattice.ode(VariancePreserving(), start_gamma(4), 5.0)
    return CalibratedModel.calibrate(model, lattice.pixels, tolerance=0.005)


class TestValues:
    def test_values_are_those_of_the_library_on_its_own_grids(self, lattice, calibrated) -> None:
        table = calibrated.table(lattice.pixels)
        for way, row in ((Uniform(), table[:3]), (TruncatedNormal(), table[6:])):
            settings = LikelihoodSettings(dequantization=way, solver=Adams(0.005))
            alone = bounds(calibrated.model, lattice.pixels, IMPORTANCES, settings)
            for ours, theirs in zip(row, alone, strict=True):
                # The same draws and probes on two grids, each good to 0.005 bits/dim rms.
                assert ours.settings == theirs.settings
                torch.testing.assert_close(ours.per_image, theirs.per_image, atol=0.02, rtol=0)

    def test_more_draws_tighten_the_bound_of_every_image(self, lattice, calibrated) -> None:
        table = calibrated.table(lattice.pixels)
        assert len(table) == 3 * len(IMPORTANCES)
        for i in range(0, len(table), len(IMPORTANCES)):
            one, five, twenty = (value.per_image for value in table[i : i + 3])
            assert bool((one >= five).all())
            assert bool((five >= twenty).all())

    def test_a_draw_does_not_depend_on_its_batch(self, lattice, calibrated) -> None:
        pixels = lattice.pixels.repeat(7, 1)
        together, in_pairs = (
            bounds(
                calibrated.model,
                pixels,
                (4,),
                replace(calibrated.settings, batch_size=size),
                calibration=calibrated.calibration,
            )[0]
            for size in (64, 2)
        )
        torch.testing.assert_close(together.per_image, in_pairs.per_image, atol=2e-3, rtol=0)

    def test_an_interrupt_is_passed_on_and_no_image_left_out(self, lattice, calibrated) -> None:
        net, sizes = calibrated.model.net, []

        def interrupted(x, t):
            sizes.append(len(x))
            if len(x) == 1:  # the second batch of three images
                raise KeyboardInterrupt
            return net(x, t)

        broken = replace(
            calibrated,
            model=calibrated.model.with_net(interrupted),
            settings=replace(calibrated.settings, batch_size=2),
        )
        with pytest.raises(KeyboardInterrupt):
            broken.value(lattice.pixels)
        assert sizes.count(2) > 9  # the first batch was solved

    def test_an_interrupted_sample_is_not_shown(self, tmp_path: Path, monkeypatch) -> None:
        def interrupted(*args, **more):
            return replace(sample(*args, **more), complete=False)

        monkeypatch.setattr("idode.studies.report.measurements.sample", interrupted)
        data = tiny.dataset(np.zeros((48, 2), np.float32), levels=None)
        with pytest.raises(KeyboardInterrupt):
            measure(_vectors(tmp_path / "run", data), data, SMALL)

    def test_one_solve_costs_the_nodes_of_the_grid(self, lattice, calibrated) -> None:
        assert calibrated.value(lattice.pixels).nfe == calibrated.nfe

    def test_starts_surround_the_default_and_stay_on_the_clock(self, lattice, calibrated) -> None:
        starts = calibrated.uniform_starts(lattice.pixels, 5)
        gammas = [value.settings.dequantization.start for value in starts]
        assert gammas == sorted(gammas)
        assert gammas[0] >= calibrated.model.gamma_min
        assert gammas[0] < uniform_start(4) < gammas[-1]
        means = [value.mean for value in starts]
        assert means[0] > min(means)  # too little noise for bins of uniform noise


STD = 0.6


@pytest.fixture(scope="module")
def seen():
    """A perfect model of a Gaussian, its data, and its errors along the clock."""
    generator = torch.Generator().manual_seed(0)
    oracle = exact.gaussian([0.0, 0.0, 0.0], STD)
    model = oracle.ode(VariancePreserving(), -6.0, 4.0)
    x0 = oracle.sample(4000, generator)
    shown = {"uniform": UniformGamma(-6, 4), "designed": Designed(model.schedule, -6, 4)}
    return model, x0, measure_noise_levels(model, x0, shown, 48, 1, generator)


class TestNoiseLevels:
    def test_errors_are_those_of_the_posterior(self, seen) -> None:
        model, _, found = seen
        alpha, sigma = model.schedule.alpha(found.gamma), model.schedule.sigma(found.gamma)
        signal = (alpha * STD) ** 2
        noise = signal / (signal + sigma**2)
        # 12,000 squared normal numbers: relative deviation sqrt(2 / 12,000), times four.
        torch.testing.assert_close(found.noise_error, noise, rtol=0.052, atol=0)
        torch.testing.assert_close(found.velocity_error, found.noise_error / alpha**2)

    def test_variances_are_those_that_the_density_itself_would_measure(self, seen) -> None:
        model, x0, found = seen

        def loss(gamma, generator):
            eps = torch.randn(x0.shape, generator=generator, dtype=x0.dtype)
            x = model.schedule.alpha(gamma)[:, None] * x0
            x = x + model.schedule.sigma(gamma)[:, None] * eps
            return ((model.noise(x, gamma) - eps) ** 2).sum(1) / 2

        generator = torch.Generator().manual_seed(1)
        for curve, density in zip(
            found.densities,
            (UniformGamma(-6.0, 4.0), Designed(model.schedule, -6.0, 4.0)),
            strict=True,
        ):
            direct = loss_variance(loss, density, 48, len(x0), generator)
            # Five standard errors of the direct value, and 2% for 48 levels.
            allowed = 5 * direct.total_error + 0.02 * direct.total
            assert abs(curve.total - direct.total) < allowed
            torch.testing.assert_close(curve.gamma, density.quantile(curve.t))


class TestCurves:
    def test_torn_and_foreign_lines_are_passed_over(self, tmp_path: Path) -> None:
        lines = ['{"step": 1, "loss": 3.0}', '{"note": 1}', '{"step": 2, "loss": NaN}']
        lines += ['{"step": 3, "loss": 2.0, "held_out": 2.5}', '{"step": 4, "lo']
        (tmp_path / "m.jsonl").write_text("\n".join(lines))
        with pytest.warns(DataWarning, match=r"1 damaged lines are skipped \(number 2\)"):
            curve = training_curve(tmp_path / "m.jsonl")
        assert curve.loss == ((1, 3.0), (3, 2.0))
        assert curve.held_out == ((3, 2.5),)

    def test_an_imported_model_has_none(self, tmp_path: Path) -> None:
        assert training_curve(tmp_path / "m.jsonl").loss == ()

    def test_fine_tuning_goes_on_where_its_parent_ended(self) -> None:
        parent = TrainingCurve(((5, 3.0), (20, 2.0)), ((20, 2.1),), ((5, 7.0),))
        own = TrainingCurve(((5, 1.9), (10, 1.8)), ((10, 1.85),), ())
        whole = continued(parent, own)
        assert whole.loss == ((5, 3.0), (20, 2.0), (25, 1.9), (30, 1.8))
        assert whole.held_out == ((20, 2.1), (30, 1.85))
        assert whole.finetuned_after == 20
        assert continued(TrainingCurve((), (), ()), own) == own  # as of a shipped model
        early = continued(parent, own, 12)  # and its parent went on afterwards
        assert early.loss == ((5, 3.0), (17, 1.9), (22, 1.8))
        assert (early.held_out, early.finetuned_after) == (((22, 1.85),), 12)
        (axes,) = figures.training(whole).axes
        labels = [text.get_text() for text in axes.get_legend().get_texts()]
        assert labels == ["training loss", "SDE bound, test", "fine-tuning"]

    def test_a_report_names_the_parent_and_counts_the_runs_own_steps(self, made: Made) -> None:
        m, config = made.measurements, open_run(made.path / "run").config
        assert m.curve.finetuned_after == 20
        assert max(step for step, _ in m.curve.loss) == 30
        assert facts(m, config)["training"].startswith("10 of 10 steps")
        assert facts(m, config)["fine-tuned from"] == str(m.parent)
        assert m.to_json()["parent"]["run"] == str(made.path / "first")
        assert "fine-tuned from" not in facts(replace(m, parent=None), config)
        assert "second-order term from there on" in sections(m)[0].caption
        control = sections(replace(m, second_order=False))[0].caption
        assert "Fine-tuning begins at the dashed line, after step 20." in control
        assert "second-order" not in control

    def test_only_the_run_it_started_from_comes_before_it(
        self, made: Made, tmp_path: Path
    ) -> None:
        run, first = open_run(made.path / "run"), open_run(made.path / "moved")
        assert run.parent is not None
        assert started_from(run, first)
        other = Run(tmp_path / "other", first.config, None)
        other.write_config()
        save_model(other.path, {"x": torch.zeros(1)})
        for later, before in ((run, run), (first, first), (first, run), (run, other)):
            assert not started_from(later, before)
        there = replace(run, parent=replace(run.parent, run=str(tmp_path / "other")))
        assert started_from(there, other)  # the folder, though it was trained on
        assert whole_curve(run, None).finetuned_after == 0
        m = replace(made.measurements, curve=whole_curve(run, None), tuned=False)
        parts = {section.key: section for section in sections(m)}
        assert "dashed" not in parts["training"].caption
        assert parts["evaluations"].title == "Evaluations needed by two runs"
        assert "fine-tuning" not in parts["evaluations"].caption

    def test_a_control_has_no_second_order(self, made: Made) -> None:
        objective = open_run(made.path / "run").config.objective
        assert objective.second_order
        assert not replace(objective, ratio=0.0).second_order
        assert not open_run(made.path / "moved").config.objective.second_order


class TestPage:
    def test_every_figure_of_the_paper_is_there_with_its_caption(self, made, page) -> None:
        assert re.findall(r'<section id="([\w-]+)"', page) == ["run", *KEYS]
        captions = re.findall(r'<p class="caption">(.+?)</p>', page, re.DOTALL)
        assert len(captions) == len(KEYS)
        markdown = (made.path / "out" / "report.md").read_text()
        for caption in captions:
            assert html.unescape(caption) in markdown

    def test_it_needs_nothing_beside_it(self, page) -> None:
        assert "http" not in page
        sources = re.findall(r'src="([^"]{1,30})', page)
        assert len(sources) == len(PICTURES)
        assert all(source.startswith("data:image/png;base64,") for source in sources)

    def test_force_of_training_knows_every_file_of_it(self, made) -> None:
        assert {p.name for p in (made.path / "out").iterdir()} == set(REPORT_FILES)

    def test_pictures_are_the_same_inside_and_beside_it(self, made, page) -> None:
        inside = re.findall(r"data:image/png;base64,([\w+/=]+)", page)
        markdown = (made.path / "out" / "report.md").read_text()
        names = re.findall(r"!\[.+?\]\((.+?)\)", markdown)
        assert names == [f"{key}.png" for key in PICTURES]
        for name, text in zip(names, inside, strict=True):
            data = (made.path / "out" / name).read_bytes()
            assert base64.b64decode(text) == data
            assert Image.open(io.BytesIO(data)).width >= 800

    def test_numbers_are_shown_with_their_data_and_settings(self, page, numbers) -> None:
        assert numbers["identity"]["sha256"][:12] in page
        assert numbers["settings"] == asdict(SMALL)
        table = numbers["likelihoods"]["bounds"]
        for cell in table:
            assert f"{cell['mean']:.3f} ± {cell['standard_error']:.3f}" in page
        used = [(c["settings"]["dequantization"]["kind"], c["settings"]["n_importance"])
                for c in table]  # fmt: skip
        assert used == [(name, k) for name in ("uniform", "variational", "tn") for k in (1, 5, 20)]
        assert "on the first 4 test images" in page

    def test_values_agree_with_each_other(self, numbers) -> None:
        found = numbers["likelihoods"]
        assert numbers["costs"][-1]["value"]["mean"] == found["test"]["mean"]
        assert found["test"]["mean"] == pytest.approx(np.mean(found["test"]["per_image"]))
        assert len(found["test"]["per_image"]) == len(found["sde"]["per_image"]) == 4
        assert len(numbers["samples"]["data"]) == 4
        assert numbers["curve"]["held_out"][-1][0] == 30


class TestBrowser:
    def test_it_renders_with_all_pictures_and_no_error(self, tmp_path: Path, page: str) -> None:
        browser = shutil.which("chromium") or shutil.which("google-chrome")
        if browser is None:
            pytest.skip("no Chromium is installed")
        check = (
            "<script>window.errors = []; window.onerror = m => { errors.push(m); };"
            "window.onload = () => { const wide = document.documentElement.scrollWidth;"
            "document.body.dataset.seen = JSON.stringify({errors, wide,"
            "sizes: [...document.images].map(i => [i.complete, i.naturalWidth, i.width])});};"
            "</script>"
        )
        (tmp_path / "page.html").write_text(page.replace("<head>", f"<head>{check}"))
        flags = (
            "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
            "--disable-background-networking --disable-component-update --disable-sync "
            "--hide-scrollbars "
            f"--user-data-dir={tmp_path / 'profile'} --window-size=1200,900 --dump-dom"
        ).split()
        done = subprocess.run(
            [browser, *flags, (tmp_path / "page.html").as_uri()],
            capture_output=True,
            text=True,
            timeout=300,
        )
        seen = re.search(r'data-seen="(.+?)"', done.stdout)
        assert seen is not None, done.stderr
        value = json.loads(html.unescape(seen[1]))
        assert value["errors"] == []
        assert value["wide"] == 1200  # nothing sticks out to the side
        assert len(value["sizes"]) == len(PICTURES)
        for complete, natural, shown in value["sizes"]:
            assert complete
            assert natural >= shown > 400
        for caption in re.findall(r'<p class="caption">(.+?)</p>', page, re.DOTALL):
            assert html.unescape(caption) in html.unescape(done.stdout)


class TestCommand:
    def test_nothing_is_replaced_without_force(self, made: Made, capsys) -> None:
        before = {p.name: p.read_bytes() for p in (made.path / "out").iterdir()}
        run, out = str(made.path / "run"), str(made.path / "out")
        assert main(["report", run, "--out", out]) == 2
        assert "holds a report: give another folder, or --force to replace it" in _sentence(capsys)
        words = [
            "report",
            run,
            "--out",
            str(made.path / "other"),
            "--json",
            str(made.path / "out.json"),
        ]
        assert main(words) == 2
        assert "exists" in _sentence(capsys)
        assert not (made.path / "other").exists()
        assert {p.name: p.read_bytes() for p in (made.path / "out").iterdir()} == before

    def test_it_says_where_the_page_is_and_on_what(self, made: Made, numbers: dict) -> None:
        assert str(made.path / "out" / "report.html") in made.out
        assert f"{numbers['likelihoods']['test']['mean']:.3f} ±" in made.out
        assert "npy:x.npy" in made.out
        assert f"{len(STAGES)}/{len(STAGES)}" in made.err

    def test_a_parent_is_compared_with(self, made: Made) -> None:
        markdown = (made.path / "out" / "report.md").read_text()
        assert "Evaluations needed, before and after fine-tuning" in markdown
        rows = re.findall(r"^\| digits(.*?) \|(.+)$", markdown, re.MULTILINE)
        assert [name for name, _ in rows] == ["", "+second-order"]
        assert rows[0][1] != rows[1][1]

    def test_it_stands_in_the_run_replaces_by_force_and_can_be_quiet(
        self, made: Made, tmp_path: Path, capsys, monkeypatch
    ) -> None:
        run = tmp_path / "run"
        shutil.copytree(made.path / "run", run)
        (run / "report").mkdir()
        (run / "report" / "report.md").write_text("an older one")
        asked = []

        def known(run, data, settings, **more):
            asked.append(settings)
            return made.measurements

        monkeypatch.setattr("idode.studies.report.report.measure", known)
        assert main(["report", str(run), "--limit", "2", "--force", "--quiet"]) == 0
        assert capsys.readouterr() == ("", "")
        assert asked == [replace(SMALL, bounds_images=2)]
        assert (run / "report" / "report.html").exists()
        assert "older" not in (run / "report" / "report.md").read_text()

    def test_bad_input_is_one_sentence(self, made: Made, tmp_path: Path, capsys) -> None:
        run, out = str(made.path / "run"), str(tmp_path / "out")
        (tmp_path / "file").write_text("")
        for words, expected in {
            ("nowhere",): "no run folder",
            (run, "--before", "nowhere"): "no run folder",
            (run, "--limit", "-1"): "must be at least 1, got -1",
            (run, "--data", "digits"): "choose data of its kind",
            (run, "--out", str(tmp_path / "file")): "is a file",
        }.items():
            more = [] if "--out" in words else ["--out", out]
            assert main(["report", *words, *more, "--quiet"]) == 2
            captured = _sentence(capsys)
            assert expected in captured
        assert not (tmp_path / "out").exists()

    def test_a_shipped_model_keeps_reports_out_of_the_package(self, capsys) -> None:
        assert main(["report", "pretrained:digits"]) == 2
        assert "part of the package: give another folder" in _sentence(capsys)


class TestPython:
    def test_it_returns_the_page_with_its_numbers_and_prints_nothing(
        self, made: Made, tmp_path: Path, capfd, monkeypatch
    ) -> None:
        monkeypatch.setattr(
            "idode.studies.report.report.measure", lambda *args, **more: made.measurements
        )
        found = report(open_run(made.path / "run"), out=tmp_path / "out", progress=False)
        assert capfd.readouterr() == ("", "")
        assert found.page == tmp_path / "out" / "report.html"
        assert found.page.exists()
        assert found.measurements is made.measurements
        assert str(made.measurements.identity) in str(found)

    def test_the_example_in_the_documentation_runs(
        self, made: Made, tmp_path: Path, capsys, monkeypatch
    ) -> None:
        monkeypatch.setattr(
            "idode.studies.report.report.measure", lambda *args, **more: made.measurements
        )
        monkeypatch.chdir(tmp_path)
        (code,) = fences(ROOT / "docs" / "report.md", "python")
        exec(code, {})
        assert (tmp_path / "report" / "report.html").exists()
        assert str(made.measurements.likelihoods.test.mean) in capsys.readouterr().out

    def test_bad_input_raises_the_sentence_of_the_program(self, made: Made, capsys) -> None:
        run, out = made.path / "run", made.path / "out"
        for given, words in (
            ({"out": out}, ["--out", str(out)]),
            ({"out": out, "force": True, "data": "digits"},
             ["--out", str(out), "--force", "--data", "digits"]),
            ({"out": out, "force": True, "before": "nowhere"},
             ["--out", str(out), "--force", "--before", "nowhere"]),
        ):  # fmt: skip
            with pytest.raises(InputError) as raised:
                report(run, **given)
            capsys.readouterr()
            assert main(["report", str(run), *words]) == 2
            assert _sentence(capsys) == f"idode report: {raised.value}"
        with pytest.raises(InputError, match="limit must be at least 1, got 0"):
            report(run, out=out, force=True, limit=0)


def _sentence(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [text for text in captured.err.splitlines() if not text.startswith("warning")]
    assert len(lines) == 1
    return lines[0]


class TestOtherRuns:
    def test_a_learned_density_is_shown_as_it_was_learned(self, tmp_path: Path) -> None:
        trainer = tiny.train(tmp_path / "run", "objective.density=adaptive", "train.steps=10")
        run = open_run(tmp_path / "run")
        found = distributions(run, run.model())
        assert list(found) == ["uniform", "designed", "adaptive"]
        t = torch.linspace(0, 1, 9, dtype=torch.float64)
        with torch.no_grad():
            learned = trainer.state.objective.density.quantile(t)
        torch.testing.assert_close(found["adaptive"].quantile(t), learned)

    def test_continuous_data_has_a_report_without_bins(self, tmp_path: Path) -> None:
        values = np.random.default_rng(0).normal(size=(48, 2)).astype(np.float32)
        data = tiny.dataset(values, levels=None)
        run = _vectors(tmp_path / "run", data)
        m = measure(run, data, SMALL)
        assert m.likelihoods.sde is None
        assert m.likelihoods.starts == ()
        assert [v.settings.dequantization.name for v in m.likelihoods.bounds] == ["none"]
        keys = [section.key for section in sections(m)]
        assert keys == [k for k in KEYS if k not in ("training", "uniform-starts")]
        json.dumps(m.to_json(), allow_nan=False)


def _vectors(path: Path, data) -> Run:
    from idode.runs.config import fit, override
    from idode.runs.presets import PRESETS
    from idode.runs.run import build_net, save_model

    config = override(PRESETS["vectors"], ["model.gamma_min=-6"])
    run = Run(path, fit(config, None, data.shape), data.identity)
    run.write_config()
    save_model(path, build_net(run.config, torch.Generator().manual_seed(0)).state_dict())
    return run
