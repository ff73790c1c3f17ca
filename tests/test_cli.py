from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from forking import forks

import idode
from idode.cli import COMMANDS
from idode.cli.main import main
from idode.cli.parsing import parser_of
from idode.runs.config import from_json
from idode.runs.distributed import best_device
from idode.runs.presets import PRESETS
from idode.runs.run import open_run
from idode.runs.systems import SYSTEMS

REFERENCE = Path(__file__).parent / "reference"


@pytest.fixture(autouse=True)
def _own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IDODE_DATA", str(tmp_path / "data"))


@pytest.fixture
def spec(tmp_path: Path) -> str:
    np.save(tmp_path / "x.npy", tiny.images())
    return f"npy:{tmp_path / 'x.npy'}?levels=4"


def train(spec: str, out: Path, *more: str) -> int:
    return main(
        ["train", "digits", "--data", spec, *tiny.FLAGS, "--out", str(out), "--quiet", *more]
    )


def files(folder: Path) -> dict[str, bytes]:
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }


def refused(capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence on stderr."""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    return captured.err


class TestFrame:
    def test_without_a_command_it_shows_how_to_begin_and_all_of_them(self, capsys) -> None:
        assert main([]) == 0
        shown = capsys.readouterr().out
        assert all(f"  {name} " in shown for name in COMMANDS)
        assert len(shown.splitlines()) < 40
        examples = re.findall(r"^  idode (.+?)(?:   |$)", shown, re.MULTILINE)
        assert len(examples) >= 3
        for words in map(str.split, examples):
            parser_of(words[0]).parse_args(words[1:])  # what it says can be typed

    def test_version(self, capsys) -> None:
        with pytest.raises(SystemExit) as stop:
            main(["--version"])
        assert stop.value.code == 0
        assert capsys.readouterr().out == f"idode {idode.__version__}\n"

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["trian"], "idode: no command called 'trian' (did you mean train?): choose one of"),
            (["--verison"], "idode: there is no option --verison (did you mean --version?)"),
            (["sample", "RUN", "--uot", "a"], "there is no option --uot (did you mean --out?)"),
            (["sample", "RUN", "--cuont=3"], "there is no option --cuont (did you mean --count?)"),
            (["sample", "RUN", "--zzz"], "idode sample: there is no option --zzz; see"),
            (["sample", "RUN", "--foo"], "idode sample: there is no option --foo; see"),
            (["sample"], "idode sample: the following arguments are required: RUN, --out"),
            (["sample", "RUN", "more", "--out", "a"], "unrecognized arguments: more"),
            (["sample", "RUN", "--out"], "--out: expected one argument"),
            (
                ["evaluate", "RUN", "--split", "tset"],
                "no --split called 'tset' (did you mean test",
            ),
            (["data", "fech"], "no action called 'fech' (did you mean fetch?)"),
            (["completion", "ksh"], "no shell called 'ksh' (did you mean zsh?)"),
            (["report", "RUN", "--limit", "-1"], "--limit: must be at least 1"),
            (["report", "RUN", "--seed", "x"], "--seed: must be a whole number, got 'x'"),
            (["sample", "RUN", "--seed", str(2**64)], "--seed: must be below 2^63"),
        ],
    )
    def test_what_cannot_be_read_is_one_sentence_that_names_the_help(
        self, words: list[str], said: str, capsys
    ) -> None:
        assert main(words) == 2
        sentence = refused(capsys)
        assert said in sentence
        of = f" {words[0]}" if words[0] in COMMANDS else ""
        assert sentence.endswith(f"; see idode{of} --help\n")

    @pytest.mark.parametrize("name", COMMANDS)
    def test_every_command_explains_itself(self, name: str, capsys) -> None:
        with pytest.raises(SystemExit) as stop:
            main([name, "--help"])
        assert stop.value.code == 0
        assert f"idode {name}" in capsys.readouterr().out

    @pytest.mark.parametrize("name", COMMANDS)
    def test_every_option_says_what_it_is_in_words(self, name: str) -> None:
        for action in parser_of(name).actions:
            assert action.help, action.dest
            if action.metavar == "RUN" and not action.option_strings:
                assert action.help == "a run folder, pretrained:NAME or diffusers:FOLDER"

    def test_an_interrupted_command_exits_with_130(self, monkeypatch, capsys) -> None:
        def interrupted(args: object) -> int:
            raise KeyboardInterrupt

        monkeypatch.setattr("idode.cli.train.run", interrupted)
        assert main(["train", "digits"]) == 130
        assert capsys.readouterr().err == "idode train: interrupted\n"

    def test_it_says_what_an_interrupted_command_leaves(self, monkeypatch, capsys) -> None:
        def interrupted(args: object) -> int:
            raise KeyboardInterrupt("step 3 is saved in RUN")

        monkeypatch.setattr("idode.cli.train.run", interrupted)
        assert main(["train", "digits"]) == 130
        assert capsys.readouterr().err == "idode train: step 3 is saved in RUN\n"

    def test_a_defect_keeps_its_traceback(self, monkeypatch) -> None:
        monkeypatch.setattr("idode.cli.train.run", lambda args: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            main(["train", "digits"])


class TestTrain:
    def test_list_names_every_preset_and_every_system(self, capsys) -> None:
        assert main(["train", "--list"]) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert {*PRESETS, *SYSTEMS} <= {words[0] for words in lines if words}

    def test_a_dry_run_prints_the_resolved_settings_and_does_nothing(
        self, tmp_path: Path, capsys
    ) -> None:
        words = ["train", "cifar10-sp", "--dry-run", "--steps", "7", "--seed", "3"]
        words += ["--set", "net.width=64", "--set", "net.depth=2", "--out", str(tmp_path / "run")]
        assert main(words) == 0
        shown = capsys.readouterr()
        config = from_json(json.loads(shown.out))
        assert re.search(r"memory of a GPU, estimated: [\d.]+ MB", shown.err)
        assert "8 GPUs: 16 images at once, " in shown.err
        assert (config.train.steps, config.train.seed, config.net.width) == (7, 3, 64)
        assert config.model.schedule == "sp"
        assert not (tmp_path / "run").exists()

    def test_it_trains_and_says_on_what(self, tmp_path: Path, spec: str, capsys) -> None:
        words = ["train", "digits", "--data", spec, *tiny.FLAGS, "--out", str(tmp_path / "run")]
        assert main([*words, "--steps", "3"]) == 0
        shown = capsys.readouterr().out
        assert "3 steps" in shown
        assert "bits/dim" in shown
        assert "npy:x.npy" in shown
        assert open_run(tmp_path / "run").model().levels == 4

    def test_quiet_is_silent(self, tmp_path: Path, spec: str, capsys) -> None:
        assert train(spec, tmp_path / "run", "--steps", "2") == 0
        captured = capsys.readouterr()
        assert (captured.out, captured.err) == ("", "")

    def test_an_existing_run_is_refused_and_untouched(
        self, tmp_path: Path, spec: str, capsys
    ) -> None:
        assert train(spec, tmp_path / "run", "--steps", "2") == 0
        before = files(tmp_path / "run")
        assert train(spec, tmp_path / "run", "--steps", "2") == 2
        assert "resume to continue it" in refused(capsys)
        assert files(tmp_path / "run") == before

    def test_force_replaces_the_run_and_nothing_else(
        self, tmp_path: Path, spec: str, capsys
    ) -> None:
        run = tmp_path / "run"
        assert train(spec, run, "--steps", "4") == 0
        (run / "notes.txt").write_text("mine")
        (run / "report").mkdir()
        for name in ("report.html", "report.md", "samples.png", "mine.png"):
            (run / "report" / name).write_text("old")
        assert train(spec, run, "--steps", "2", "--force", "--data", "nonsense") == 2
        assert "no data set called" in refused(capsys)
        assert open_run(run).config.train.steps == 4  # bad input is found before anything goes
        assert train(spec, run, "--steps", "2", "--force") == 0
        assert (run / "notes.txt").read_text() == "mine"
        assert [p.name for p in (run / "report").iterdir()] == ["mine.png"]
        assert [p.name for p in (run / "checkpoints").iterdir()] == ["step-000000002"]

    @pytest.mark.parametrize("more", [[], ["--force"], ["--resume"]])
    def test_a_folder_that_holds_no_run_keeps_what_it_holds(
        self, tmp_path: Path, spec: str, more: list[str], capsys
    ) -> None:
        mine = tmp_path / "project" / "samples" / "mine.png"  # a run has a folder of that name
        mine.parent.mkdir(parents=True)
        mine.write_text("")
        for words in (
            ["train", "digits", "--data", spec, *tiny.FLAGS, *more],
            ["finetune", "pretrained:digits", "--steps", "1", *more],
            *([["import", str(REFERENCE / "tiny.flax"), *more]] if "--resume" not in more else []),
        ):
            assert main([*words, "--out", str(tmp_path / "project")]) == 2
            assert "is not empty and holds no run: give another folder" in refused(capsys)
        assert list((tmp_path / "project").rglob("*")) == [mine.parent, mine]

    @pytest.mark.parametrize("more", [[], ["--force"], ["--resume"]])
    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ('{"model_type": "bert"}', "is not empty and holds no run: give another folder"),
            ('{"format": 1}', "is not empty and holds no run: give another folder"),
            ('["format", "idode"]', "is not empty and holds no run: give another folder"),
            ("{torn", "config.json cannot be read"),
        ],
    )
    def test_nor_does_the_model_of_another_program_become_a_run(
        self, tmp_path: Path, text: str, sentence: str, more: list[str], capsys
    ) -> None:
        other = tmp_path / "bert"
        (other / "samples").mkdir(parents=True)
        (other / "config.json").write_text(text)
        (other / "model.safetensors").write_text("weights")
        (other / "samples" / "a.txt").write_text("mine")
        before = files(other)
        words = [["finetune", "pretrained:digits", "--steps", "1", *more]]
        if "--resume" not in more:
            words += [["import", str(REFERENCE / "tiny.flax"), *more]]
            words += [["dequantize", "pretrained:digits", "--steps", "1", *more]]
        for each in words:
            assert main([*each, "--out", str(other)]) == 2
            assert sentence in refused(capsys)
        assert files(other) == before

    def test_resume_takes_new_training_settings_and_no_others(
        self, tmp_path: Path, spec: str, capsys
    ) -> None:
        run = tmp_path / "run"
        assert train(spec, run, "--steps", "2") == 0
        assert main(["train", "--resume", "--out", str(run), "--steps", "4", "--quiet"]) == 0
        assert open_run(run).config.train.steps == 4
        before = (run / "config.json").read_bytes()
        assert main(["train", "--resume", "--out", str(run), "--steps", "3"]) == 2
        assert "has done 4 steps, more than the 3 asked for" in refused(capsys)
        assert (run / "config.json").read_bytes() == before
        assert main(["train", "--resume", "--out", str(run), "--set", "net.width=16"]) == 2
        assert "only those of `train`" in refused(capsys)
        assert main(["train", "vectors", "--resume", "--out", str(run)]) == 2
        assert "is a run of digits" in refused(capsys)
        np.save(tmp_path / "y.npy", tiny.images()[::-1])
        other = f"npy:{tmp_path / 'y.npy'}?levels=4"
        assert main(["train", "--resume", "--out", str(run), "--data", other, "--quiet"]) == 2
        assert "began with other data" in refused(capsys)

    def test_resume_of_nothing_starts(self, tmp_path: Path, spec: str) -> None:
        assert train(spec, tmp_path / "run", "--steps", "2", "--resume") == 0
        assert open_run(tmp_path / "run").config.train.steps == 2

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["digits"], "--out RUN"),
            (["digit", "--out", "RUN"], "no preset called 'digit' (did you mean digits?)"),
            (["--out", "RUN"], "no preset is given"),
            (["vectors", "--out", "RUN"], "vectors has no data set of its own: give the data"),
            (["digits", "--out", "RUN", "--data", "npy:nowhere.npy"], "no file or folder"),
            (["digits", "--out", "RUN", "--steps", "-3"], "--steps: must be at least 1, got -3"),
            (["digits", "--out", "RUN", "--seed", "-3"], "--seed: must be at least 0, got -3"),
            (["digits", "--out", "RUN", "--set", "train.lr"], "write NAME=VALUE"),
            (["digits", "--out", "RUN", "--device", "toaster"], "device toaster"),
            (["digits", "--out", "RUN", "--resume", "--force"], "give one of them"),
            (["digits", "--out", "RUN", "--set", "train.decay=slow"], "no decay called 'slow'"),
            (["digits", "--out", "RUN", "--set", "model.schedule=x"], "no schedule called 'x'"),
            (["digits", "--out", "RUN", "--set", "objective.weighting=x"], "no weighting called"),
            (["digits", "--out", "RUN", "--set", "objective.density=x"], "no time density"),
        ],
    )
    def test_bad_input_is_one_sentence_and_leaves_nothing(
        self, tmp_path: Path, monkeypatch, capsys, words: list[str], message: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert main(["train", *words, "--quiet"]) == 2
        assert message in refused(capsys)
        assert not (tmp_path / "RUN").exists()

    def test_an_interrupted_run_says_what_is_saved(self, tmp_path: Path, spec: str) -> None:
        words = ["train", "digits", "--data", spec, *tiny.FLAGS, "--out", tmp_path / "run"]
        ended = forks().run(
            *words,
            "--steps",
            100_000,
            root=tmp_path,
            kill_when="run/metrics.jsonl",
            signal_number=signal.SIGINT,
        )
        assert ended.codes == [130]
        assert "is saved after step" in ended.text
        assert "Traceback" not in ended.text


class TestFinetune:
    def test_it_goes_on_with_the_second_order(self, tmp_path: Path, spec: str) -> None:
        assert train(spec, tmp_path / "run", "--steps", "2") == 0
        words = ["finetune", str(tmp_path / "run"), "--out", str(tmp_path / "more"), "--quiet"]
        assert main([*words, "--steps", "2", "--ratio", "0.3", "--unbiased"]) == 0
        config = open_run(tmp_path / "more").config
        assert (config.objective.order, config.objective.ratio) == (2, 0.3)
        assert (config.objective.unbiased, config.objective.probes) == (True, 2)
        last = json.loads((tmp_path / "more" / "metrics.jsonl").read_text().splitlines()[-1])
        assert last["second_order"] != 0
        assert main([*words, "--steps", "3", "--resume"]) == 2  # another objective
        same = ["--ratio", "0.3", "--unbiased"]
        assert main([*words, "--steps", "3", "--resume", *same]) == 0

    def test_bad_input_is_refused(self, tmp_path: Path, spec: str, capsys) -> None:
        run = str(tmp_path / "run")
        assert main(["finetune", run, "--out", f"{run}2"]) == 2
        assert "there is no run folder" in refused(capsys)
        assert train(spec, tmp_path / "run", "--steps", "1") == 0
        assert main(["finetune", run, "--out", run]) == 2
        assert "is the run to start from" in refused(capsys)
        np.save(tmp_path / "rgb.npy", np.zeros((20, 3, 4, 4), np.uint8))
        other = f"npy:{tmp_path / 'rgb.npy'}?levels=4"
        assert main(["finetune", run, "--out", f"{run}2", "--data", other, "--quiet"]) == 2
        assert "the model to start from is for samples of shape (1, 4, 4)" in refused(capsys)
        assert not (tmp_path / "run2").exists()


class TestImport:
    def test_a_checkpoint_of_the_authors_becomes_a_run(self, tmp_path: Path, capsys) -> None:
        words = ["import", str(REFERENCE / "tiny.flax"), "--out", str(tmp_path / "run")]
        assert main([*words, "--schedule", "sp"]) == 0
        assert "223555 parameters" in capsys.readouterr().out
        run = open_run(tmp_path / "run")
        assert run.identity is None
        reference = np.load(REFERENCE / "tiny.npz")
        z = torch.from_numpy(reference["SP_velocity_z"]).permute(0, 3, 1, 2).float()
        gamma, flag = (torch.from_numpy(reference[k]).double() for k in ("gamma", "cond"))
        drift = run.model().velocity(z, gamma.expand(len(z)), flag=flag.expand(len(z)))
        expected = torch.from_numpy(reference["SP_velocity_drift"]).permute(0, 3, 1, 2).float()
        # Float32 in two frameworks: 1e-4 relative on the network.
        assert float((drift - expected).norm() / expected.norm()) < 1e-4

    def test_raw_weights_are_others_than_the_averaged(self, tmp_path: Path) -> None:
        for name, more in {"ema": [], "raw": ["--raw"]}.items():
            words = ["import", str(REFERENCE / "tiny.flax"), "--out", str(tmp_path / name)]
            assert main([*words, *more, "--quiet"]) == 0
        averaged, raw = (open_run(tmp_path / n).weights() for n in ("ema", "raw"))
        assert any(not torch.equal(averaged[k], raw[k]) for k in raw)

    def test_bad_input_is_refused(self, tmp_path: Path, capsys) -> None:
        (tmp_path / "junk.flax").write_bytes(b"junk")
        out = ["--out", str(tmp_path / "run")]
        assert main(["import", str(tmp_path / "junk.flax"), *out]) == 2
        assert "not a flax checkpoint" in refused(capsys)
        good = str(REFERENCE / "tiny.flax")
        assert main(["import", good, *out, "--schedule", "x"]) == 2
        assert "no schedule called 'x'" in refused(capsys)
        assert main(["import", good, *out, "--predictor", "x"]) == 2
        assert "no predictor called 'x'" in refused(capsys)
        assert main(["import", good, *out, "--data", "digits"]) == 2
        assert "3 colours of 256 levels" in refused(capsys)
        assert not (tmp_path / "run").exists()
        assert main(["import", good, *out, "--quiet"]) == 0
        before = files(tmp_path / "run")
        assert main(["import", good, *out]) == 2
        assert "is not empty" in refused(capsys)
        assert files(tmp_path / "run") == before


class TestDoctor:
    def test_it_tells_what_is_here(self, tmp_path: Path, capsys) -> None:
        assert main(["doctor", "--json", str(tmp_path / "facts.json")]) == 0
        facts = json.loads((tmp_path / "facts.json").read_text())
        assert facts["idode"] == idode.__version__
        assert facts["torch"] == torch.__version__
        assert facts["devices"].startswith("cpu")
        assert facts["default device"] == str(best_device())
        assert facts["data"] == str(tmp_path / "data")
        assert facts["matmul_gflops"] > 0
        shown = capsys.readouterr().out
        assert all(f"\n{name} " in shown for name in facts)
        assert main(["doctor", "--json", str(tmp_path / "facts.json")]) == 2
        assert "--force" in refused(capsys)


class TestData:
    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["fetch"], "needs a data set"),
            (["fetch", "cifra10"], "no data set called 'cifra10' (did you mean cifar10?): choose"),
            (["fetch", "npy:a.npy"], "npy:a.npy names files that you have: there is nothing to"),
            (["list", "--root", "mine"], "mine is a file: give a folder"),
            (["describe", "digits", "--root", "mine"], "mine is a file: give a folder"),
            (["fetch", "digits", "--json", "no/a.json"], "there is no folder no"),
            (["fetch", "digits", "--json", "mine"], "mine exists"),
            (["list", "digits"], "idode data describe digits"),
            (["describe", "npy:none.npy"], "there is no file or folder none.npy"),
            (["describe", "folder:pictures"], "a.png is not a readable image"),
        ],
    )
    def test_wrong_input_is_one_sentence_and_no_bar(
        self, words: list[str], said: str, tmp_path: Path, monkeypatch, capsys
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "mine").write_text("mine")
        (tmp_path / "pictures").mkdir()
        (tmp_path / "pictures" / "a.png").write_bytes(b"no picture")
        assert main(["data", *words]) == 2
        assert said in refused(capsys)
        assert (tmp_path / "mine").read_text() == "mine"


def test_the_demo_leaves_other_peoples_files_alone(tmp_path: Path, capsys) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    assert main(["demo", "--out", str(tmp_path), "--force"]) == 2
    assert "holds thesis.txt, which is not of a demo: give another folder" in refused(capsys)
    assert files(tmp_path) == {"thesis.txt": b"mine"}


@pytest.mark.parametrize("words", [["report", ""], ["train", "digits", "--out", ""], [""]])
def test_an_empty_argument_is_not_the_folder_one_stands_in(words: list[str], capsys) -> None:
    assert main(words) == 2
    assert "an argument is empty" in refused(capsys)
