"""Solver error of networks whose Fourier features do, or do not, fade with noise.

    idode train digits --set net.fade=0 --out runs/digits-unfaded
    python benchmarks/fading.py runs/digits-unfaded

The same weights with and without fading: log-likelihoods by Adams on equal steps, and how far
they are from those with twice the steps. The run must have been trained with net.fade=0.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools

import torch

from idode.batches import IndexedBatches
from idode.data import load
from idode.evaluation.likelihood import sde_bound
from idode.likelihood.estimator import LikelihoodSettings, LogWeightEstimator
from idode.likelihood.log_prob import solve_log_prob
from idode.nets.config import UNetConfig
from idode.numerics import nats_to_bits
from idode.ode.adams import Adams
from idode.runs.config import Config
from idode.runs.run import Run, open_run

STEPS = (32, 64, 128, 256, 512)


def faded(run: Run, fade: float) -> Run:
    """The same run with another fade."""
    net = run.config.net
    assert isinstance(net, UNetConfig)
    config: Config = dataclasses.replace(run.config, net=dataclasses.replace(net, fade=fade))
    return dataclasses.replace(run, config=config)


def main() -> None:
    """Print one row for each fade."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--images", type=int, default=8, help="of the solver's errors [8]")
    parser.add_argument("--bound-images", type=int, default=64, help="of the SDE bound [64]")
    parser.add_argument("--fades", type=float, nargs="*", default=[0.0, 0.15])
    args = parser.parse_args()
    run, test = open_run(args.run), load(args.data).test
    print("fade  SDE bound  ODE  " + "  ".join(f"{n} steps" for n in STEPS[:-1]))
    for fade in args.fades:
        model = faded(run, fade).model()
        bound = sde_bound(model, test[: args.bound_images]).mean
        estimator = LogWeightEstimator(model, LikelihoodSettings().for_model(model))
        batch = IndexedBatches(test[: args.images], args.images).batch(0)
        x, weight = estimator.states(batch.values, batch.indices, 0)
        probes = estimator.probes(x, batch.indices, 0, 1)
        start = estimator.dequantization.gamma(model)
        values = []
        for steps in STEPS:
            with torch.no_grad():
                found = solve_log_prob(model, x, Adams(steps=steps), probes=probes, start=start)
            values.append(-nats_to_bits(found.log_p + weight, x[0].numel()))
        errors = [float((a - b).square().mean().sqrt()) for a, b in itertools.pairwise(values)]
        shown = "  ".join(f"{error:8.4f}" for error in errors)
        print(f"{fade:4g} {bound:10.4f} {float(values[-1].mean()):6.3f}  {shown}", flush=True)


if __name__ == "__main__":
    main()
