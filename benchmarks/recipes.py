r"""Which recipe gives the best bound for a given processor time on small images.

    python benchmarks/recipes.py digits --seconds 45 --json FILE --seeds 0 1 2 \
        --try train.optimizer=adamw --try train.optimizer=muon
    python benchmarks/recipes.py cifar10 --seconds 60 --halve \
        --try net.depth=3 --try net.depth=2 net.halvings=0 --try net.width=48 --try net.width=24
    python benchmarks/recipes.py digits --steps 1000 --race 20 --seeds 0 1 2 \
        --try train.optimizer=adamw --try train.optimizer=muon

A candidate is a preset with other settings: optimiser, network, batch or loss. All train on one
thread with the preset's schedule for equal processor time; the number of steps follows from the
measured seconds of a step, or is given. The last training images are held out and no candidate
trains on them: choices are made there (SDE bound, 8 noise levels for each image). ``--test``
measures the test images as well. ``variant=NAME`` among the settings of a candidate replaces a
part of the program by one of ``variants.py``. ``--halve`` goes on with the better half of the
candidates and twice the time until one is left. ``--race`` looks at the held-out images on the
way: how many steps and seconds do the others need to the last bound of the first candidate, seed
by seed? At the end of each round differences to the first candidate, which with ``--halve`` is the
best of the round before, are printed, paired by seed, with their standard errors.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from variants import VARIANTS, applied, split

from idode.cli.parsing import above_zero, positive
from idode.cli.process import keep_freed_memory
from idode.data import Dataset, load
from idode.data.memory import from_arrays
from idode.evaluation.likelihood import sde_bound
from idode.runs.config import Config, fit, override
from idode.runs.distributed import World
from idode.runs.presets import PRESETS
from idode.studies.comparison.curves import Curve, learning_curve
from idode.training.held_out import DRAWS
from idode.training.speed import step_seconds
from idode.training.train import train

PRESET = {"digits": "digits", "fashion-mnist": "fashion-mnist-small", "cifar10": "cifar10-small"}
CPU, ROUNDS = World(torch.device("cpu")), 4
NEVER = 1_000_000_000


@dataclass(frozen=True)
class Candidate:
    """Settings to try, and what a step of them costs."""

    settings: list[str]
    config: Config
    pace: float  # processor seconds of a step


@dataclass(frozen=True)
class Bounds:
    """SDE bounds of a training in bits/dim."""

    seconds: float  # of the processor, start and checkpoint included
    held_out: float
    test: float | None
    curve: Curve | None  # held out, in a race


def parts(data: str, count: int) -> tuple[Dataset, Dataset]:
    """The training images without the last ones, with these held out; and the data as it is."""
    whole = load(data)
    return from_arrays(whole.train[:-count], whole.train[-count:], whole.levels), whole


def configured(data: str, settings: list[str], dataset: Dataset, race: int | None) -> Config:
    """The preset with a candidate's settings; on the way nothing is measured but in a race."""
    often, count = (NEVER, 1) if race is None else (race, len(dataset.test))
    quiet = [f"train.{name}_every={often}" for name in ("log", "evaluate")]
    few = [f"train.checkpoint_every={NEVER}", "train.sample_every=0"]
    few.append(f"train.evaluate_count={count}")
    config = override(PRESETS[PRESET[data]], [*quiet, *few, *split(settings)[1]])
    return fit(config, dataset.levels, dataset.shape)


def paced(tried: list[list[str]], configs: list[Config], dataset: Dataset) -> list[Candidate]:
    """Candidates with the median seconds of a step, over rounds taken in turn."""
    found: list[list[float]] = [[] for _ in configs]
    for _ in range(ROUNDS):
        for settings, config, seconds in zip(tried, configs, found, strict=True):
            with applied(settings, config, dataset):
                seconds += step_seconds(config, dataset, CPU, clock=time.process_time)
    pace = [statistics.median(seconds) for seconds in found]
    return [Candidate(*each) for each in zip(tried, configs, pace, strict=True)]


def outcome(config: Config, held: Dataset, whole: Dataset, test_images: int, race: bool) -> Bounds:
    """Train to the end; the bounds on the held-out images and, if asked for, on the test set."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        run = train(config, out=folder, data=held, device="cpu", progress=False)
        seconds, model = time.process_time() - began, run.model()
        own = sde_bound(model, held.test, draws=DRAWS)
        test = sde_bound(model, whole.test[:test_images], draws=DRAWS) if test_images else None
        curve = learning_curve(run) if race else None
    return Bounds(seconds, own.mean, None if test is None else test.mean, curve)


def tried(args: argparse.Namespace, candidate: Candidate, seconds: float) -> list[Bounds]:
    """Train a candidate with all seeds and print a line for each."""
    held, whole = args.datasets
    steps = args.steps or max(1, round(seconds / candidate.pace))
    bounds = []
    for seed in args.seeds:
        settings = replace(candidate.config.train, steps=steps, seed=seed)
        config = replace(candidate.config, train=settings)
        with applied(candidate.settings, config, held):
            found = outcome(config, held, whole, args.test, args.race is not None)
        bounds.append(found)
        test = "" if found.test is None else f"{found.test:8.4f}"
        print(
            f"{candidate.pace:8.4f} {steps:6} {seed:5} {found.seconds:8.1f} "
            f"{found.held_out:9.4f} {test:8} {' '.join(candidate.settings)}",
            flush=True,
        )
        if args.json is not None:
            line = {"data": args.data, "set": candidate.settings, "seed": seed, "steps": steps}
            line |= {"step_seconds": candidate.pace, **asdict(found), "test_images": args.test}
            line |= {"held_out_images": args.held_out}
            with args.json.open("a") as file:
                file.write(json.dumps(line) + "\n")
    return bounds


def mean_held_out(bounds: list[Bounds]) -> float:
    """What candidates are chosen by."""
    return statistics.mean(each.held_out for each in bounds)


def race(goals: list[Bounds], bounds: list[Bounds], pace: float) -> str:
    """Steps and seconds to the last bounds of the first candidate, as shares of what it needed.

    ``pace`` is what a step costs in steps of the first candidate, of the processor: other work on
    the machine disturbs the clock.
    """
    steps = []
    for goal, own in zip(goals, bounds, strict=True):
        assert goal.curve is not None
        assert own.curve is not None
        reached = own.curve.first_below(goal.curve.bits[-1])
        if reached is None:
            return "not reached with every seed"
        steps.append(reached[0] / goal.curve.steps[-1])
    seconds = with_error([pace * each for each in steps])
    return f"steps {with_error(steps)}, seconds {seconds}"


def with_error(values: list[float], form: str = ".3f") -> str:
    """Mean and standard error, where there are several."""
    mean = format(statistics.mean(values), form)
    if len(values) < 2:
        return mean
    error = statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean}±{format(error, form.lstrip('+'))}"


def gain(first: list[Bounds], bounds: list[Bounds]) -> str:
    """Differences to the bounds of the first candidate, paired by seed."""
    pairs = list(zip(first, bounds, strict=True))
    found = f"held out {with_error([own.held_out - base.held_out for base, own in pairs], '+.4f')}"
    test = [b.test - a.test for a, b in pairs if a.test is not None and b.test is not None]
    return f"{found}, test {with_error(test, '+.4f')}" if test else found


def main() -> None:
    """Train all candidates with all seeds, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=sorted(PRESET))
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--seconds", type=above_zero, help="of the processor, for each training")
    length.add_argument("--steps", type=positive, help="of every candidate, whatever they cost")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--try", dest="tried", action="append", nargs="+", required=True, metavar="NAME=VALUE",
        help="settings of one candidate",
    )  # fmt: skip
    parser.add_argument("--halve", action="store_true", help="successive halving, with --seconds")
    parser.add_argument(
        "--race", type=positive, metavar="N", help="look at the held-out images every N steps"
    )
    parser.add_argument("--held-out", type=positive, default=300, help="training images [300]")
    parser.add_argument("--test", type=int, default=0, help="test images to measure as well [0]")
    parser.add_argument("--json", type=Path, help="append one line for each training")
    args = parser.parse_args()
    for name in (name for settings in args.tried for name in split(settings)[0]):
        if name not in VARIANTS:
            parser.error(f"variant={name}: known are {', '.join(VARIANTS)}")
    if args.halve and args.seconds is None:
        parser.error("--halve doubles the --seconds: give them")
    if args.halve and args.race is not None:
        parser.error(
            "--race goes to the first candidate, and --halve may drop it: give one of them"
        )
    torch.set_num_threads(1)
    keep_freed_memory()  # as the program does; otherwise large batches and networks pay for pages
    args.datasets = parts(args.data, args.held_out)
    held = args.datasets[0]
    configs = [configured(args.data, settings, held, args.race) for settings in args.tried]
    candidates, seconds = paced(args.tried, configs, held), args.seconds or 0.0
    print("  s/step  steps  seed  seconds  held out    test  settings", flush=True)
    while True:
        bounds = [tried(args, each, seconds) for each in candidates]
        if args.race is not None:
            for each, own in zip(candidates, bounds, strict=True):
                pace = each.pace / candidates[0].pace
                print(race(bounds[0], own, pace), " ".join(each.settings), flush=True)
        for each, own in zip(candidates[1:], bounds[1:], strict=True):
            print(gain(bounds[0], own), " ".join(each.settings), flush=True)
        if not args.halve or len(candidates) == 1:
            return
        order = sorted((mean_held_out(own), i) for i, own in enumerate(bounds))
        best = order[: max(1, len(order) // 2)]
        candidates, seconds = [candidates[i] for _, i in best], 2 * seconds


if __name__ == "__main__":
    main()
