"""Which small network gives the best bits/dim for a given compute on small images.

    python benchmarks/small_networks.py digits --seconds 90 --json FILE

Every candidate trains for the same processor seconds on one thread (its number of steps follows
from its measured speed), with the learning rate falling to zero at the end, and is evaluated
on held-out images by the SDE bound, and on fewer of them by the ODE. Candidates differ in width,
depth and where the resolution falls.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from idode.data import Dataset, load
from idode.likelihood.bits_per_dim import BitsPerDim
from idode.likelihood.estimator import LikelihoodSettings
from idode.ode.adams import Adams
from idode.runs.config import Config, fit, override
from idode.runs.presets import PRESETS
from idode.studies.report.curves import training_curve
from idode.training.train import train

PRESET = {"digits": "digits", "fashion-mnist": "fashion-mnist-small", "cifar10": "cifar10-small"}
WARM, TIMED = 3, 12  # steps before and while the speed is measured

# width, depth, halvings, learning rate; groups are always eight.
Candidate = tuple[int, int, int, float]
LARGER: list[Candidate] = [
    (32, 2, 0, 2e-3),
    (32, 4, 2, 2e-3),
    (32, 3, 1, 4e-3),
    (32, 3, 1, 2e-3),
    (32, 2, 0, 4e-3),
]
CANDIDATES: dict[str, list[Candidate]] = {
    "digits": [
        (32, 2, 0, 4e-3),
        (32, 4, 1, 4e-3),
        (48, 2, 0, 4e-3),
        (24, 3, 0, 4e-3),
    ],
    "fashion-mnist": LARGER,
    "cifar10": LARGER,
}


def configured(data: str, candidate: Candidate, dataset: Dataset, extra: list[str]) -> Config:
    """The preset for the data with the network of a candidate."""
    width, depth, halvings, lr = candidate
    base = PRESETS[PRESET[data]]
    net = [f"net.width={width}", f"net.depth={depth}"]
    intervals = ["train.evaluate_every=1000000", "train.checkpoint_every=1000000"]
    settings = [*net, f"net.halvings={halvings}", f"train.lr={lr}", *intervals, *extra]
    return fit(override(base, settings), dataset.levels, dataset.shape)


@dataclass(frozen=True)
class Outcome:
    """A training, and how good its model is in bits/dim."""

    seconds: float  # of the processor
    parameters: int
    sde: float
    ode: BitsPerDim | None  # of the first ``images``, if any


def trained(config: Config, dataset: Dataset, images: int = 0) -> Outcome:
    """Train to the end and measure."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        run = train(config, out=folder, data=dataset, device="cpu", progress=False)
        spent, ode = time.process_time() - began, None
        if images:
            settings = LikelihoodSettings(solver=Adams(tolerance=0.02))
            ode = run.model().bits_per_dim(dataset.test[:images], settings)
        size = sum(p.numel() for p in run.net().parameters())
        return Outcome(spent, size, training_curve(run.metrics).held_out[-1][1], ode)


def step_seconds(config: Config, dataset: Dataset) -> float:
    """Processor seconds of one training step: the slope between two short trainings."""

    def short(steps: int) -> float:
        shortened = replace(config.train, steps=steps, evaluate_count=1)
        return trained(replace(config, train=shortened), dataset).seconds

    short(WARM)
    return (short(WARM + TIMED) - short(WARM)) / TIMED


def main() -> None:
    """Train all candidates, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=sorted(CANDIDATES))
    parser.add_argument("--seconds", type=float, default=90, help="processor seconds for each")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of candidates, from 0")
    parser.add_argument("--set", action="append", default=[], help="as of `idode train`")
    parser.add_argument("--images", type=int, default=32, help="of the ODE's value, or 0 [32]")
    parser.add_argument("--json", type=Path, help="append one line for each candidate")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dataset = load(args.data)
    print("width depth halvings    lr  parameters  s/step  steps     SDE     ODE  NFE")
    for number, candidate in enumerate(CANDIDATES[args.data]):
        if args.only is not None and number not in args.only:
            continue
        config = configured(args.data, candidate, dataset, args.set)
        pace = step_seconds(config, dataset)
        steps = max(1, round(args.seconds / pace))
        config = replace(config, train=replace(config.train, steps=steps))
        found = trained(config, dataset, args.images)
        width, depth, halvings, lr = candidate
        ode = "" if found.ode is None else f"{found.ode.mean:8.4f} {found.ode.nfe:4.0f}"
        print(
            f"{width:5} {depth:5} {halvings:8} {lr:5g} {found.parameters:11,} "
            f"{pace:7.4f} {steps:6} {found.sde:7.4f}{ode}",
            flush=True,
        )
        if args.json is not None:
            names = ("width", "depth", "halvings", "lr")
            line = dict(zip(names, candidate, strict=True)) | {"data": args.data}
            line |= {"parameters": found.parameters, "step_seconds": pace, "steps": steps}
            line |= {"seconds": found.seconds, "bits": found.sde, "set": args.set}
            if found.ode is not None:
                solver = found.ode.errors.solver
                line |= {"ode": found.ode.mean, "nfe": found.ode.nfe, "solver": solver}
            with args.json.open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
