"""Training steps of this tree beside those of another one, on the CPU, in one run.

    git worktree add --detach ../before COMMIT
    python benchmarks/step_race.py --before ../before [--rounds 20] [--only NAME]

Both trees train the same networks on the same random images, each in a process of its own with one
thread. They take turns, a few steps each, and never run at the same time. Seconds are those of the
processor, which other work on the machine disturbs less than the clock; each round gives one
ratio, and the median and the quartiles of all rounds are printed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent.parent
QUIET = ("log_every", "evaluate_every", "checkpoint_every", "steps")  # nothing of it in the race


@dataclass(frozen=True)
class Task:
    """A preset, what is changed in it, the shape of its images and steps in a turn."""

    preset: str
    settings: tuple[str, ...]
    shape: tuple[int, ...]
    levels: int
    steps: int


TASKS = {
    "digits": Task("digits", (), (1, 8, 8), 17, 12),
    "digits, second order": Task("digits", ("objective.order=2",), (1, 8, 8), 17, 4),
    "cifar10-small": Task("cifar10-small", (), (3, 32, 32), 256, 4),
    "cifar10-vp, 64 channels, depth 4": Task(
        "cifar10-vp",
        ("net.width=64", "net.depth=4", "train.batch_size=16"),
        (3, 32, 32),
        256,
        2,
    ),
}


def train(task: Task, images: Path) -> None:
    """Take so many steps for each line on stdin, and print the processor seconds they took."""
    import torch

    try:
        from idode.cli.process import keep_freed_memory
        from idode.runs.config import fit, override
        from idode.runs.distributed import World
        from idode.runs.presets import PRESETS
        from idode.runs.run import Run
        from idode.training.trainer import Trainer
    except ModuleNotFoundError:  # up to 0.1
        from idode.allocation import keep_freed_memory
        from idode.config import fit, override
        from idode.presets import PRESETS
        from idode.run import Run

        from idode.training import Trainer, World
    from idode.data import load

    keep_freed_memory()
    torch.set_num_threads(1)
    data = load(f"npy:{images}?levels={task.levels}")
    far = [f"train.{name}=1000000" for name in QUIET] + ["train.sample_every=0"]
    config = fit(override(PRESETS[task.preset], [*task.settings, *far]), task.levels, task.shape)

    class Turns:
        began = 0.0

        def notice(self, text: str) -> None:
            pass

        def progress(self, step: int, metrics: object) -> None:
            if step % task.steps:
                return
            print(time.process_time() - self.began, flush=True)
            if not sys.stdin.readline():
                os._exit(0)
            self.began = time.process_time()

    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), config, data.identity)
        run.write_config()
        Trainer(run, data, World(torch.device("cpu")), Turns()).train()


def race(name: str, before: Path, rounds: int) -> list[float]:
    """Ratios of this tree's seconds to the other's, one for each round."""
    task = TASKS[name]
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder) / "images.npy"
        drawn = np.random.default_rng(0).integers(0, task.levels, (256, *task.shape))
        np.save(images, drawn.astype(np.uint8))
        words = [sys.executable, __file__, "--train", name, "--images", str(images)]
        runners = [
            subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"},
            )
            for tree in (before.resolve(), HERE)
        ]
        for runner in runners:  # the first turn of each loads and warms up
            assert runner.stdout is not None
            float(runner.stdout.readline())
        ratios = []
        for number in range(rounds):
            seconds = {}
            for place in (0, 1) if number % 2 else (1, 0):
                runner = runners[place]
                assert runner.stdin is not None
                assert runner.stdout is not None
                runner.stdin.write("go\n")
                runner.stdin.flush()
                seconds[place] = float(runner.stdout.readline())
            ratios.append(seconds[1] / seconds[0])
        for runner in runners:
            runner.communicate()
    return ratios


def main() -> None:
    """Print a line for each task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="a checkout of the other tree")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", choices=TASKS)
    parser.add_argument("--train", choices=TASKS, help=argparse.SUPPRESS)
    parser.add_argument("--images", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        train(TASKS[args.train], args.images)
        return
    if args.before is None:
        parser.error("--before is missing")
    for name in [args.only] if args.only else TASKS:
        found = race(name, args.before, args.rounds)
        low, middle, high = np.quantile(found, [0.25, 0.5, 0.75])
        print(
            f"{name:34} this tree / the other: {middle:.3f} (quartiles {low:.3f}, {high:.3f}; "
            f"{len(found)} rounds)",
            flush=True,
        )


if __name__ == "__main__":
    main()
