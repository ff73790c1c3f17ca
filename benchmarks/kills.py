"""Kill -9 at random moments, and a full disk: end results bit-equal, no stray files.

``python benchmarks/kills.py --kills N [--full M] [COMMAND ...]`` kills each of train, finetune,
evaluate and compare N times; whenever a command gets to its end, the result is compared with that
of one that was never disturbed and all is begun anew. ``--minutes`` ends the kills of a command
sooner; the row has what was done until then.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import tiny
from forking import forks

TIMED = {
    "seconds",
    "images_per_second",
    "train_seconds",
    "evaluation_seconds",
    "seconds_to_baseline",
}


@dataclass(frozen=True)
class Job:
    """A command that writes below a folder, and what of it must not depend on kills."""

    words: Callable[[Path], list[str]]
    outcome: Callable[[Path], object]


def timeless(value: Any) -> Any:
    """JSON without what depends on the clock."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in TIMED}
    return [timeless(v) for v in value] if isinstance(value, list) else value


def trained(run: Path) -> object:
    """Model, last checkpoint and metrics of a run."""
    step = max((run / "checkpoints").glob("step-*"))
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return (
        (run / "model.safetensors").read_bytes(),
        (step / "state.safetensors").read_bytes(),
        [timeless(json.loads(line)) for line in lines],
    )


def jobs(root: Path) -> dict[str, Job]:
    """The commands, on tiny data and networks."""
    np.save(root / "x.npy", tiny.images())
    spec = f"npy:{root / 'x.npy'}?levels=4"
    steps = ["--set", "train.steps=40", "--set", "train.checkpoint_every=4", "--quiet"]
    start = root / "start"
    tiny.train(start, "train.steps=10")
    evaluated = ["--split", "train", "--limit", "7", "--batch-size", "2", "--draws", "2"]
    evaluated += ["--solver", "dopri5", "--tolerance", "0.01", "--quiet"]
    compared = ["--systems", "vdm,idode-vp", "--steps", "20", "--seeds", "1", "--limit", "4"]
    compared += ["--samples", "8", "--quiet", *tiny.FLAGS]
    return {
        "train": Job(
            lambda out: ["train", "digits", "--data", spec, *tiny.FLAGS, *steps, "--resume",
                         "--out", str(out)],
            trained,
        ),
        "finetune": Job(
            lambda out: ["finetune", str(start), "--data", spec, *steps, "--resume",
                         "--out", str(out)],
            trained,
        ),
        "evaluate": Job(
            lambda out: ["evaluate", str(start), "--data", spec, *evaluated,
                         "--journal", f"{out}/j.jsonl", "--json", f"{out}/r.json", "--force"],
            lambda out: timeless(json.loads((out / "r.json").read_text())),
        ),
        "compare": Job(
            lambda out: ["compare", "--preset", "digits", "--data", spec, "--out", str(out),
                         *compared],
            lambda out: timeless(json.loads((out / "compare.json").read_text())["systems"]),
        ),
    }  # fmt: skip


def stray(folder: Path) -> list[str]:
    """Hidden files, which a finished command leaves none of."""
    found = (p.relative_to(folder).as_posix() for p in folder.rglob(".*"))
    return sorted(found)


def torment(
    name: str, job: Job, root: Path, kills: int, full: int, minutes: float, rng: random.Random
) -> str:
    """Kill a command so often, or for so long; a row of a table."""
    whole, out = root / f"{name} whole", root / f"{name} parts"
    for folder in (whole, out):
        folder.mkdir()
    took = 0.0
    for _ in range(2):  # the first also prepares the data
        shutil.rmtree(whole)
        whole.mkdir()
        began = time.monotonic()
        ended = forks().run(*job.words(whole), root=root)
        took = time.monotonic() - began
    if ended.codes != [0]:
        raise SystemExit(f"{name}: {ended.text}")
    expected, done, disks, ends, wrong, left = job.outcome(whole), 0, 0, 0, 0, 0
    last_moment, over = time.monotonic() + 60 * minutes, False
    while not over:
        if disks < full and rng.random() < full / (kills + full):
            limit = rng.choice([3000, 10_000, 30_000])  # its own messages are written too
            ended = forks().run(*job.words(out), root=root, file_limit=limit)
            disks += ended.codes == [2]
        else:
            ended = forks().run(*job.words(out), root=root, kill_after=rng.uniform(0, took))
            done += ended.codes == [-signal.SIGKILL]
        if ended.codes not in ([0], [2], [-signal.SIGKILL]):
            raise SystemExit(f"{name}: {ended.codes} {ended.text}")
        over = (done >= kills and disks >= full) or time.monotonic() > last_moment
        if ended.codes == [0] or over:
            last = forks().run(*job.words(out), root=root)
            if last.codes != [0]:
                raise SystemExit(f"{name}: {last.codes} {last.text}")
            ends += 1
            wrong += job.outcome(out) != expected
            left += bool(stray(out))
            shutil.rmtree(out)
            out.mkdir()
    return f"| {name} | {done} | {disks} | {ends} | {ends - wrong} | {left} | {took:.1f} |"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commands", nargs="*")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--full", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print("| command | kills | full disks | ends | bit-equal | with stray files | s undisturbed |")
    print("|---" * 7 + "|")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, job in jobs(root).items():
            if not args.commands or name in args.commands:
                rng = random.Random(f"{name} {args.seed}")
                print(
                    torment(name, job, root, args.kills, args.full, args.minutes, rng), flush=True
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
