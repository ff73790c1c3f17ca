"""Which optimiser gives the best bound for a given processor time on small images.

    python benchmarks/optimisers.py digits --steps 700 --seeds 0 1 2 --json FILE
    python benchmarks/optimisers.py fashion-mnist --steps 300 --json FILE

Candidates train a preset's network on one thread with the learning rate falling to zero. The
first one gets the given number of steps; each other as many as take the same processor time, from
the measured seconds of its steps. The last training images are held out and no candidate trains
on them: choices are made there (SDE bound, 8 noise levels for each image). ``--test`` measures
the test images as well.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from idode.data import Dataset, load
from idode.data.memory import from_arrays
from idode.evaluation.likelihood import sde_bound
from idode.runs.config import Config, fit, override
from idode.runs.distributed import World
from idode.runs.presets import PRESETS
from idode.training.held_out import DRAWS
from idode.training.speed import step_seconds
from idode.training.train import train

PRESET = {"digits": "digits", "fashion-mnist": "fashion-mnist-small", "cifar10": "cifar10-small"}
CANDIDATES = ("train.optimizer=adamw", "train.optimizer=muon")
CPU, ROUNDS = World(torch.device("cpu")), 8
NEVER = 1_000_000_000


@dataclass(frozen=True)
class Bounds:
    """SDE bounds of a training in bits/dim."""

    seconds: float  # of the processor, start and checkpoint included
    held_out: float
    test: float | None


def parts(data: str, count: int) -> tuple[Dataset, Dataset]:
    """The training images without the last ones, with these held out; and the data as it is."""
    whole = load(data)
    return from_arrays(whole.train[:-count], whole.train[-count:], whole.levels), whole


def configured(data: str, settings: list[str], dataset: Dataset) -> Config:
    """The preset with a candidate's settings, and nothing measured or kept on the way."""
    quiet = [f"train.{name}_every={NEVER}" for name in ("log", "evaluate", "checkpoint")]
    few = ["train.sample_every=0", "train.evaluate_count=1"]
    config = override(PRESETS[PRESET[data]], [*quiet, *few, *settings])
    return fit(config, dataset.levels, dataset.shape)


def paces(configs: list[Config], dataset: Dataset) -> list[float]:
    """Processor seconds of a step of each: the median of rounds taken in turn."""
    found: list[list[float]] = [[] for _ in configs]
    for _ in range(ROUNDS):
        for config, seconds in zip(configs, found, strict=True):
            seconds += step_seconds(config, dataset, CPU, clock=time.process_time)
    return [statistics.median(seconds) for seconds in found]


def outcome(args: argparse.Namespace, config: Config, held: Dataset, whole: Dataset) -> Bounds:
    """Train to the end; the bounds on the held-out images and, if asked for, on the test set."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        run = train(config, out=folder, data=held, device="cpu", progress=False)
        seconds, model = time.process_time() - began, run.model()
        own = sde_bound(model, held.test, draws=DRAWS)
        test = sde_bound(model, whole.test[: args.test], draws=DRAWS) if args.test else None
    return Bounds(seconds, own.mean, None if test is None else test.mean)


def main() -> None:
    """Train all candidates with all seeds, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=sorted(PRESET))
    parser.add_argument("--steps", type=int, required=True, help="of the first candidate")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--try", dest="candidates", action="append", nargs="+", help="settings of one candidate"
    )
    parser.add_argument("--equal-steps", action="store_true", help="instead of processor time")
    parser.add_argument("--held-out", type=int, default=300, help="training images [300]")
    parser.add_argument("--test", type=int, default=0, help="test images to measure as well [0]")
    parser.add_argument("--json", type=Path, help="append one line for each training")
    args = parser.parse_args()
    torch.set_num_threads(1)
    held, whole = parts(args.data, args.held_out)
    candidates = args.candidates or [[name] for name in CANDIDATES]
    configs = [configured(args.data, settings, held) for settings in candidates]
    pace = paces(configs, held)
    print("  s/step  steps  seed  seconds  held out    test  settings", flush=True)
    for seed in args.seeds:
        for settings, config, each in zip(candidates, configs, pace, strict=True):
            steps = args.steps if args.equal_steps else round(args.steps * pace[0] / each)
            chosen = replace(config, train=replace(config.train, steps=steps, seed=seed))
            found = outcome(args, chosen, held, whole)
            test = "" if found.test is None else f"{found.test:8.4f}"
            print(
                f"{each:8.4f} {steps:6} {seed:5} {found.seconds:8.1f} {found.held_out:9.4f} "
                f"{test:8} {' '.join(settings)}",
                flush=True,
            )
            if args.json is not None:
                line = {"data": args.data, "set": settings, "seed": seed, "steps": steps}
                line |= {"step_seconds": each, **asdict(found), "test_images": args.test}
                line |= {"held_out_images": args.held_out}
                with args.json.open("a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
