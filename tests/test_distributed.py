"""Two processes against one. They meet over gloo, as they would under torchrun."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import tiny
import torch
from forking import ROOT, forks
from safetensors.torch import load_file

from idode.cli import COMMANDS
from idode.cli.main import main
from idode.data import load
from idode.errors import InputError
from idode.runs.distributed import World, best_device
from idode.sampling.fid import FIDReference
from idode.training import checkpoint
from idode.training.trainer import Trainer

# The learned density feeds back on the times, so a loss seen by one process only would show.
HARD = ("objective.density=adaptive", "train.accumulate=2", "objective.augment=true")
BOOKS = ("train.steps=24", "train.log_every=1", "train.evaluate_every=12")


def command(tmp_path: Path, out: str, *settings: str) -> list[str]:
    if not (tmp_path / "x.npy").exists():
        np.save(tmp_path / "x.npy", tiny.images())
    words = ["train", "digits", "--data", f"npy:{tmp_path / 'x.npy'}?levels=4", *tiny.FLAGS]
    for setting in (*HARD, *BOOKS, *settings):
        words += ["--set", setting]
    return [*words, "--out", str(tmp_path / out), "--quiet"]


def metrics(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def compare(tmp_path: Path, *settings: str, many: int = 2) -> int:
    """Train with one process and with many; the number of losses that agree, which is all."""
    for ranks in (1, many):
        words = command(tmp_path, f"{ranks}", *settings)
        ended = forks().run(*words, root=tmp_path, ranks=ranks)
        assert ended.codes == [0] * ranks, ended.text
    one, two = metrics(tmp_path / "1"), metrics(tmp_path / f"{many}")
    for a, b in zip(one, two, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], abs=1e-5)
        assert ("held_out" in a) == ("held_out" in b)
        if "held_out" in a:
            assert b["held_out"] == pytest.approx(a["held_out"], abs=1e-5)
    models = [load_file(tmp_path / f"{n}" / "model.safetensors") for n in (1, many)]
    for name, value in models[0].items():
        torch.testing.assert_close(models[1][name], value, rtol=1e-3, atol=1e-5)
    return len(two)


def test_two_processes_learn_as_one_does(tmp_path: Path) -> None:
    assert compare(tmp_path) == 24


def test_the_second_order_differentiates_twice_through_the_shared_network(tmp_path: Path) -> None:
    assert compare(tmp_path, "objective.order=2", "train.steps=5", many=4) == 5


@pytest.mark.parametrize("setting", ["objective.density=histogram", "objective.antithetic=true"])
def test_noise_levels_and_pairs_of_a_whole_batch_are_those_of_one_process(
    tmp_path: Path, setting: str
) -> None:
    assert compare(tmp_path, setting, "train.steps=12") == 12


def test_soap_takes_its_first_bases_from_the_gradients_of_all_processes(tmp_path: Path) -> None:
    """Of the bases, what they are made of: in directions without a gradient they are arbitrary."""
    soap = ("train.optimizer=soap", "train.eps=1e-2", "train.lr=1e-2", "train.warmup=0")
    assert compare(tmp_path, *soap, "train.steps=2") == 2
    files = [next((tmp_path / n / "checkpoints").glob("*/state.safetensors")) for n in "12"]
    one, two = map(load_file, files)
    sums = [name for name in one if name.startswith(("adam/left/", "adam/right/"))]
    seen = [name for name in sums if one[name].any()]
    assert seen
    for name in sums:
        close = 1e-4 * float(one[name].abs().max())
        torch.testing.assert_close(two[name], one[name], rtol=0, atol=close)
    bases = [two[re.sub("^adam/(left|right)/", r"adam/\1_basis/", name)] for name in seen]
    assert all(not torch.equal(x, x.round()) for x in bases)  # they have been turned


def test_a_learned_path_and_its_codes_are_those_of_one_process(tmp_path: Path) -> None:
    """The path is no part of the forward pass that is shared, and codes belong to images."""
    path = ("path.bits=4", "path.width=8", "model.predictor=noise", "train.steps=6")
    assert compare(tmp_path, "objective.density=uniform-gamma", *path) == 6
    found = load_file(tmp_path / "2" / "model.safetensors")
    moved = [name for name, value in found.items() if name.endswith("dense_out.weight")
             and name.startswith("path.") and bool(value.any())]  # fmt: skip
    assert len(moved) == 2  # both begin with zeros


def test_both_processes_stop_after_the_same_step_and_one_goes_on(tmp_path: Path) -> None:
    words = command(tmp_path, "run", "train.steps=4000", "train.checkpoint_every=3")
    ended = forks().run(
        *words,
        root=tmp_path,
        ranks=2,
        kill_when="run/checkpoints/step-*",
        signal_number=signal.SIGTERM,
    )
    assert ended.codes == [130, 130], ended.text
    step = max(checkpoint.steps(tmp_path / "run" / "checkpoints"))
    assert f"saved after step {step}" in ended.text
    ended = forks().run(*words, "--resume", "--steps", step + 2, root=tmp_path)
    assert ended.codes == [0], ended.text
    assert metrics(tmp_path / "run")[-1]["step"] == step + 2


def test_a_refusal_by_the_process_that_writes_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious").write_text("1")
    ended = forks().run(*command(tmp_path, "run"), root=tmp_path, ranks=2, together=True)
    assert 2 in ended.codes
    assert "is not empty" in ended.text
    assert (tmp_path / "run" / "precious").read_text() == "1"


def evaluation(tmp_path: Path, name: str, *more: object) -> list[object]:
    """A command with a journal of its own, so that none goes on from another."""
    if not (tmp_path / "run").exists():
        tiny.train(tmp_path / "run", "train.steps=2")
        np.save(tmp_path / "x.npy", tiny.images())
    words = ["evaluate", tmp_path / "run", "--data", f"npy:{tmp_path / 'x.npy'}?levels=4"]
    words += ["--split", "train", "--draws", 2, "--steps", 4]
    files = ["--json", tmp_path / f"{name}.json", "--journal", tmp_path / f"{name}.jsonl"]
    return [*words, *files, "--quiet", *more]


def measured(file: Path) -> dict:
    value = json.loads(file.read_text())
    for result in value["results"]:
        result.pop("seconds")
    return value


@pytest.mark.parametrize(
    "sizes",
    [("--limit", 7, "--batch-size", 2), ("--limit", 5, "--batch-size", 1), ("--limit", 1)],
    ids=["four batches, the last one short", "an odd number", "fewer images than processes"],
)
def test_two_processes_evaluate_as_one_does(tmp_path: Path, sizes: tuple[object, ...]) -> None:
    """To the last digit, though the solver takes other steps for every batch."""
    for ranks in (1, 2):
        words = evaluation(tmp_path, f"{ranks}", *sizes)
        ended = forks().run(*words, root=tmp_path, ranks=ranks)
        assert ended.codes == [0] * ranks, ended.text
        assert ended.text.count("ODE tn") == 1  # one of them prints
    assert measured(tmp_path / "1.json") == measured(tmp_path / "2.json")
    one, two = ([tmp_path / f"{n}.jsonl", tmp_path / f"{n}.1.jsonl"] for n in (1, 2))
    lines = [[len(p.read_text().splitlines()) for p in pair if p.exists()] for pair in (one, two)]
    # Every batch once; each process has a header.
    assert sum(lines[1]) == lines[0][0] + 1


def test_one_process_goes_on_where_two_were_killed(tmp_path: Path) -> None:
    sizes = ("--limit", 7, "--batch-size", 1)
    assert forks().run(*evaluation(tmp_path, "whole", *sizes), root=tmp_path).codes == [0]
    words = evaluation(tmp_path, "part", *sizes)
    kill = {"kill_when": "part*.jsonl", "kill_lines": 2 + 7 + 1 + 3}
    ended = forks().run(*words, root=tmp_path, ranks=2, **kill)
    assert ended.codes == [-signal.SIGKILL] * 2, ended.text
    assert forks().run(*words, root=tmp_path).codes == [0]
    assert measured(tmp_path / "part.json") == measured(tmp_path / "whole.json")
    kept = [p.read_text().splitlines()[1:] for p in tmp_path.glob("part*.jsonl")]
    assert sum(map(len, kept)) == 7 + 1 + 7  # no batch twice


def sampling(tmp_path: Path, name: str, *more: object) -> list[object]:
    words = ["sample", "pretrained:digits", "--count", 10, "--batch-size", 2, "--solver", "dpm"]
    return [*words, "--steps", 4, "--out", tmp_path / f"{name}.npz", "--quiet", *more]


def drawn(tmp_path: Path, name: str) -> dict[str, np.ndarray]:
    with np.load(tmp_path / f"{name}.npz") as file:
        return dict(file)


def test_samples_of_several_processes_are_those_of_one_also_after_a_kill(tmp_path: Path) -> None:
    """Image by image; and so is their FID, which two processes share."""
    assert forks().run(*sampling(tmp_path, "one"), root=tmp_path).codes == [0]
    ended = forks().run(*sampling(tmp_path, "four"), root=tmp_path, ranks=4)
    assert ended.codes == [0] * 4, ended.text
    ended = forks().run(
        *sampling(tmp_path, "killed"), root=tmp_path, ranks=2, kill_when=".killed*/*-*.npz"
    )
    assert ended.codes == [-signal.SIGKILL] * 2, ended.text
    assert len(list(tmp_path.glob(".killed*/*.npz"))) > 0
    assert forks().run(*sampling(tmp_path, "killed"), root=tmp_path).codes == [0]
    images = drawn(tmp_path, "one")
    for name in ("four", "killed"):
        np.testing.assert_array_equal(drawn(tmp_path, name)["x"], images["x"])
    assert list(tmp_path.glob(".*parts")) == []
    words = ["fid", tmp_path / "killed.npz", "--against", "digits", "--quiet", "--json"]
    assert forks().run(*words, tmp_path / "f.json", root=tmp_path, ranks=2).codes == [0, 0]
    value = FIDReference.for_data(load("digits")).fid(images["data"])
    assert json.loads((tmp_path / "f.json").read_text())["fid"] == pytest.approx(value, rel=1e-6)


def test_commands_that_do_not_share_their_work_refuse_several_processes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    shared = set()
    for name in COMMANDS:
        assert main([name, "--no-such-option"]) == 2
        text = capsys.readouterr().err
        if "does not share its work between the 2 processes" not in text:
            shared.add(name)
    assert shared == {"train", "finetune", "evaluate", "sample", "fid", "compare"}


@pytest.mark.slow
def test_torchrun_starts_it(tmp_path: Path) -> None:
    words = command(tmp_path, "run", "train.steps=3")
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "idode"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    env["IDODE_DATA"] = str(tmp_path / "data")
    subprocess.run([*launch, *words], env=env, check=True, timeout=300, capture_output=True)
    assert metrics(tmp_path / "run")[-1]["step"] == 3


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("pieces", [1, 2])
def test_every_row_belongs_to_exactly_one_process_and_piece(size: int, pieces: int) -> None:
    device = torch.device("cpu")
    rows = [
        row
        for rank in range(size)
        for piece in range(pieces)
        for row in range(16)[World(device, rank, size).rows(16, piece, pieces)]
    ]
    assert rows == list(range(16))  # in order, so that gathered losses meet their times


class Watched(np.ndarray):
    """Samples that note which of them are read."""

    read: ClassVar[list[int]] = []

    def __getitem__(self, key: object) -> object:
        if isinstance(key, np.ndarray):
            self.read.extend(key.tolist())
        return np.asarray(self)[key]


def test_a_process_reads_and_prepares_its_own_samples_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "wrap", lambda _, net: net)  # no other process is there
    second = World(torch.device("cpu"), rank=1, size=2)
    data = tiny.dataset()
    data = replace(data, train=data.train.view(Watched))
    trainer = Trainer(tiny.new_run(tmp_path, "objective.augment=true"), data, second)
    with trainer._loader(0) as loader:
        batch = next(loader)()
    assert len(batch.x0) == len(batch.eps) == len(batch.times.gamma) == 4
    own = [trainer.batches.indices(step)[4:].tolist() for step in range(8)]
    read = Watched.read
    assert read[:4] == own[0]
    assert read == [n for step in own for n in step][: len(read)]  # a few are read ahead


def test_a_batch_that_cannot_be_shared_is_refused() -> None:
    with pytest.raises(InputError, match="batch_size=10: must be a multiple of 4 processes"):
        World(torch.device("cpu"), 0, 4).rows(10)


def test_an_impossible_device_is_refused() -> None:
    for name in ("cuda" if not torch.cuda.is_available() else "cuda:99", "toaster"):
        with pytest.raises(InputError, match="cannot be used"):
            best_device(name)
