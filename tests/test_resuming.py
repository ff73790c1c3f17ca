"""An evaluation that was stopped, in any way, ends as one that was not."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from forking import forks

from idode.cli.main import main
from idode.errors import InputError
from idode.evaluation import run_store
from idode.evaluation.run_store import model_hash, open_store
from idode.evaluation.runner import BatchRunner, Codec
from idode.evaluation.store import JsonlStore
from idode.likelihood.calibration import SolverCalibration
from idode.likelihood.dequantization import TruncatedNormal, Uniform
from idode.likelihood.learned_dequantization import Learned
from idode.nets.bin_flow import BinFlow, BinFlowConfig
from idode.runs import pretrained
from idode.runs.config import to_json
from idode.runs.dequantizer_file import load_dequantizer, save_dequantizer
from idode.runs.run import diffusion_ode, open_run, save_model

pytestmark = pytest.mark.usefixtures("one_thread")
FAST = ["--split", "train", "--limit", "7", "--batch-size", "2", "--draws", "2"]
UNSEARCHED = ("--steps", "4")  # no grid to be found first
SEARCHED = ("--tolerance", "0.2")
LINES = 1 + 4 + 1 + 4  # header, SDE batches, pilot, ODE batches

PLAIN = Codec[dict](lambda value: value, lambda record: dict(record))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("resuming")
    tiny.train(folder / "run", "train.steps=2")
    np.save(folder / "images.npy", tiny.images())
    return folder / "run"


def words(run: Path, *more: object, solver: tuple[str, ...] = UNSEARCHED) -> list[str]:
    spec = f"npy:{run.parent / 'images.npy'}?levels=4"
    return ["evaluate", str(run), "--data", spec, *FAST, *solver, *map(str, more)]


def numbers(file: Path) -> dict:
    """All that was written but how long it took."""
    value = json.loads(file.read_text())
    for result in value["results"]:
        assert result.pop("seconds") > 0
    return value


@pytest.fixture(scope="module")
def whole(run: Path) -> dict:
    out, journal = run.parent / "whole.json", run.parent / "whole.jsonl"
    assert main(words(run, "--json", out, "--journal", journal, "--quiet")) == 0
    assert len(journal.read_text().splitlines()) == LINES
    return numbers(out)


class TestStopped:
    def test_kill_9_again_and_again_costs_no_digit(self, run, tmp_path: Path) -> None:
        def command(name: str) -> list[str]:
            out = ("--json", tmp_path / f"{name}.json", "--journal", tmp_path / f"{name}.jsonl")
            return words(run, *out, solver=SEARCHED)

        assert forks().run(*command("whole"), root=tmp_path).codes == [0]
        for lines in (1, 3, 6, 8):
            ended = forks().run(
                *command("part"), root=tmp_path, kill_when="part.jsonl", kill_lines=lines
            )
            assert ended.codes == [-signal.SIGKILL], ended.text
            assert not (tmp_path / "part.json").exists()
        with (tmp_path / "part.jsonl").open("ab") as file:
            file.write(b'{"stage": "ODE tn", "batch": 3, "images": 1, "log_w": [[-1')
        ended = forks().run(*command("part"), root=tmp_path)
        assert ended.codes == [0], ended.text
        assert "SDE bound: all 7 images were evaluated before" in ended.text
        assert re.search(r"ODE tn: resuming after [246] of 7 images", ended.text)
        assert numbers(tmp_path / "part.json") == numbers(tmp_path / "whole.json")
        assert len((tmp_path / "part.jsonl").read_text().splitlines()) == LINES  # nothing twice

    def test_ctrl_c_shows_what_is_done_and_the_same_command_goes_on(
        self, run, whole, tmp_path: Path
    ) -> None:
        command = words(run, "--json", tmp_path / "r.json", "--journal", tmp_path / "j.jsonl")
        ended = forks().run(
            *command,
            root=tmp_path,
            kill_when="j.jsonl",
            kill_lines=7,
            signal_number=signal.SIGINT,
        )
        assert ended.codes == [130], ended.text
        assert "re-run the command to resume" in ended.text
        assert "note: interrupted after" in ended.text
        assert not (tmp_path / "r.json").exists()
        assert forks().run(*command, root=tmp_path).codes == [0]
        assert numbers(tmp_path / "r.json") == whole

    def test_a_full_disk_is_a_sentence_and_loses_nothing(self, run, whole, tmp_path) -> None:
        command = words(run, "--json", tmp_path / "r.json", "--journal", tmp_path / "j.jsonl")
        limit = (run.parent / "whole.jsonl").stat().st_size - 30
        ended = forks().run(*command, "--quiet", root=tmp_path, file_limit=limit)
        assert ended.codes == [2], ended.text
        assert "make room and give the same command again" in ended.text
        kept = (tmp_path / "j.jsonl").read_bytes()
        assert len(kept) == limit  # the last line is torn
        assert forks().run(*command, root=tmp_path).codes == [0]
        assert (tmp_path / "j.jsonl").read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])
        assert numbers(tmp_path / "r.json") == whole

    def test_the_table_of_bounds_goes_on_too(self, run, tmp_path: Path) -> None:
        for name, lines in (("whole", None), ("part", 1 + 1 + 3)):
            more = (
                "--limit",
                2,
                "--batch-size",
                40,
                "--bounds",
                "--json",
                tmp_path / f"{name}.json",
            )
            command = words(run, *more, "--journal", tmp_path / f"{name}.jsonl", "--quiet")
            if lines is not None:
                where = {"kill_when": f"{name}.jsonl", "kill_lines": lines}
                assert forks().run(*command, root=tmp_path, **where).codes == [-signal.SIGKILL]
            assert forks().run(*command, root=tmp_path).codes == [0]
        assert numbers(tmp_path / "part.json") == numbers(tmp_path / "whole.json")


class TestPlace:
    def test_more_images_go_on_from_fewer_and_other_settings_begin_anew(
        self, run: Path, capsys
    ) -> None:
        home = run / "evaluations"
        assert main(words(run, "--limit", "4")) == 0
        (journal,) = home.iterdir()
        before = journal.read_text()
        capsys.readouterr()
        assert main(words(run)) == 0  # the pilot of 4 images is not that of 7
        text = capsys.readouterr().err
        assert "SDE bound: resuming after 4 of 7 images" in text
        assert "calibrating tn" in text
        assert journal.read_text().startswith(before)
        for change in (["--seed", "1"], ["--steps", "5"], ["--split", "test"]):
            count = len(list(home.iterdir()))
            assert main(words(run, "--limit", "1", *change, "--quiet")) == 0
            assert len(list(home.iterdir())) == count + 1

    def test_other_weights_have_another_journal(self, run: Path, tmp_path: Path) -> None:
        other = tiny.train(tmp_path / "run", "train.steps=3")
        assert other.run.config.model == open_run(run).config.model
        names = set()
        for opened in (open_run(run), open_run(tmp_path / "run")):
            with open_store(opened, opened.model(), {"seed": 0}) as journal:
                names.add(journal.path.name)
        assert len(names) == 2

    def test_weights_are_those_in_use_and_a_dequantizer_counts_where_it_is_used(
        self, run: Path, tmp_path: Path
    ) -> None:
        tiny.train(tmp_path / "run", "train.steps=2")
        opened = open_run(tmp_path / "run")
        model = opened.model()
        before = model_hash(opened, model)
        assert before == model_hash(open_run(run), open_run(run).model())
        flow = BinFlow(BinFlowConfig(channels=1), torch.Generator().manual_seed(0))
        learned = Learned(TruncatedNormal(model.gamma_min), flow, 4)
        save_dequantizer(opened.path, learned, 1)
        assert model_hash(opened, model) == before
        with_it = model_hash(opened, model, learned)
        assert with_it != before
        loaded = load_dequantizer(opened)
        assert model_hash(opened, model, loaded) == with_it
        other = dataclasses.replace(learned, base=Uniform(-2.0))
        assert model_hash(opened, model, other) not in (before, with_it)
        doubled = {name: 2 * value for name, value in opened.weights().items()}
        save_model(opened.path, doubled)
        assert model_hash(opened, model) == before
        assert model_hash(opened, opened.model()) != before

    def test_a_newer_setting_counts_only_where_it_is_not_what_models_had_before(
        self, run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        opened = open_run(run)
        net = opened.net()

        def hashed(quantization: str) -> str:
            model = dataclasses.replace(opened.config.model, quantization=quantization)
            config = dataclasses.replace(opened.config, model=model)
            return model_hash(
                dataclasses.replace(opened, config=config), diffusion_ode(net, config)
            )

        before, given = hashed("learned"), hashed("closed-form")
        assert before != given
        fields = to_json(opened.config)
        del fields["model"]["quantization"]  # as a version without the setting wrote it
        monkeypatch.setattr(run_store, "to_json", lambda config: fields)
        assert hashed("learned") == before

    def test_a_model_of_the_package_has_its_journal_in_the_cache(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("IDODE_DATA", str(tmp_path))
        opened = open_run(f"pretrained:{next(iter(pretrained()))}")
        with open_store(opened, opened.model(), {}) as journal:
            assert journal.path.parent == tmp_path / "evaluations"


class TestStore:
    def test_what_was_kept_is_read_back_bit_for_bit(self, tmp_path: Path) -> None:
        x = torch.randn(3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        record = {"stage": "a", "batch": 0, "images": 3, "x": [*x.tolist(), float("inf")]}
        with JsonlStore(tmp_path / "j.jsonl", {"seed": 1, "ends": (0, 1)}) as journal:
            journal.append(record)
        with JsonlStore(tmp_path / "j.jsonl", {"seed": 1, "ends": (0, 1)}) as journal:
            assert journal.records() == [record]

    @pytest.mark.parametrize("kept", range(1, 40, 3))
    def test_any_torn_beginning_is_repaired(self, kept: int, tmp_path: Path) -> None:
        file = tmp_path / "j.jsonl"
        with JsonlStore(file, {"seed": 1}):
            pass
        file.write_bytes(file.read_bytes()[:kept])
        with JsonlStore(file, {"seed": 1}) as journal:
            assert journal.records() == []
        with JsonlStore(file, {"seed": 1}):
            assert len(file.read_text().splitlines()) == 1

    @pytest.mark.parametrize("text", ["precious", "precious\n", '{"a": 1}\n', "[]\n\n", "\n"])
    def test_a_foreign_file_is_refused_and_not_touched(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "mine.txt").write_text(text)
        with pytest.raises(InputError, match="is not a journal"):
            JsonlStore(tmp_path / "mine.txt", {"seed": 1})
        assert (tmp_path / "mine.txt").read_text() == text

    def test_the_journal_of_another_evaluation_is_refused(self, tmp_path: Path) -> None:
        with JsonlStore(tmp_path / "j.jsonl", {"seed": 1}):
            pass
        with pytest.raises(InputError, match="of an evaluation with another seed"):
            JsonlStore(tmp_path / "j.jsonl", {"seed": 2})

    def test_two_processes_do_not_write_the_same_file(self, tmp_path: Path) -> None:
        with (
            JsonlStore(tmp_path / "j.jsonl", {}),
            pytest.raises(InputError, match="another process is at this evaluation"),
        ):
            JsonlStore(tmp_path / "j.jsonl", {})

    def test_a_place_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match="name another file for the journal"):
            JsonlStore(tmp_path / "file" / "j.jsonl", {})

    def test_each_process_reads_what_the_others_wrote(self, tmp_path: Path) -> None:
        record = {"stage": "a", "batch": 4, "images": 1}
        for rank in (0, 1):
            with JsonlStore(tmp_path / "j.jsonl", {}, rank) as journal:
                journal.append({**record, "batch": rank})
        with (tmp_path / "j.1.jsonl").open("a") as file:
            file.write('{"stage": "torn')
        with JsonlStore(tmp_path / "j.jsonl", {}) as journal:
            assert sorted(r["batch"] for r in journal.records()) == [0, 1]
        assert sorted(os.listdir(tmp_path)) == ["j.1.jsonl", "j.jsonl"]


class TestRunner:
    def test_known_batches_are_not_made_again_and_gaps_are_filled(self, tmp_path: Path) -> None:
        def made(number: int) -> dict:
            calls.append(number)
            return {"value": number / 3}

        calls: list[int] = []
        for number in (2, 0):
            with JsonlStore(tmp_path / "j.jsonl", {}) as journal:
                journal.append(
                    {"stage": "s", "batch": number, "images": 2, "seconds": 0, **made(number)}
                )
        calls.clear()
        with JsonlStore(tmp_path / "j.jsonl", {}) as journal:
            done = BatchRunner(store=journal).each("s", [2, 2, 2, 1], made, PLAIN)
        assert calls == [1, 3]
        assert [record["value"] for record in done.values] == [0, 1 / 3, 2 / 3, 1]

    def test_an_interrupted_result_has_no_gaps(self) -> None:
        def made(number: int) -> dict:
            if number == 1 and not late:
                raise KeyboardInterrupt
            return {"value": number}

        late: list[int] = []
        runner = BatchRunner()
        done = runner.each("s", [1, 1, 1], made, PLAIN)
        assert ([r["value"] for r in done.values], done.complete) == ([0], False)
        late.append(1)
        assert runner.each("s", [1, 1, 1], made, PLAIN).complete

    def test_results_stay_as_they_are_where_nothing_is_stored(self) -> None:
        def refuse(value: object) -> dict:
            raise AssertionError("neither stored nor sent: no need to convert")

        value = object()
        done = BatchRunner().each("s", [1], lambda number: value, Codec(refuse, refuse))
        assert done.values == [value]

    def test_a_calibration_survives_json(self) -> None:
        adams = {"kind": "adams", "tolerance": 0.1, "steps": None, "order": 3}
        for kind in (adams | {"grid": [0.0, 1 / 3, 1.0]}, {"kind": "dopri5", "tolerance": 1e-5}):
            fields = dict.fromkeys(
                ("solver_mean", "solver_rms", "error_per_gap", "largest_gap"), 1 / 7
            )
            fields |= {"noise_variance": 0.1, "probe_variance": 0.2, "interaction": 0.3, "nfe": 9}
            found = SolverCalibration.from_json({**fields, "solver": kind})
            again = json.loads(json.dumps(found.to_json()))
            assert SolverCalibration.from_json(again) == found
