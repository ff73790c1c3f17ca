"""Samplers of one model: evaluations, error against a fine solve, FID; likelihoods of samples.

    python benchmarks/samplers.py --count 297

prints the figures of docs/sampling.md. All solvers of the ODE start from the same latents.
"""

from __future__ import annotations

import argparse

import idode
from idode.data.loading import load
from idode.numerics import nats_to_bits
from idode.ode import Adams, Dopri5
from idode.sampling import DPM, Ancestral
from idode.sampling.fid import FIDReference

SOLVERS = {
    "dpm, 5": DPM(steps=5),
    "dpm, 10": DPM(steps=10),
    "dpm, 20": DPM(steps=20),
    "dpm, 40": DPM(steps=40),
    "adams, 20 steps": Adams(steps=20),
    "adams, 40 steps": Adams(steps=40),
    "dopri5": Dopri5(),
    "ancestral, 20": Ancestral(steps=20),
    "ancestral, 100": Ancestral(steps=100),
    "ancestral, 250": Ancestral(steps=250),
}
LIKELIHOODS = {"dpm, 20": DPM(steps=20), "adams": Adams(), "dopri5": Dopri5()}


def draw(model, count, solver, log_prob=False):
    """One batch, since the steps of an adaptive solver depend on it."""
    return idode.sample(model, count, solver=solver, log_prob=log_prob, batch_size=count)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="pretrained:digits")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--count", type=int, default=297)
    parser.add_argument("--likelihoods", type=int, default=32, help="samples with a likelihood")
    args = parser.parse_args()
    model, reference = idode.load(args.model, device="cpu"), FIDReference.for_data(load(args.data))
    truth = draw(model, args.count, Adams(steps=200)).data
    print("| solver | evaluations | error, grey levels rms | pixels that differ | FID |")
    print("|---|--:|--:|--:|--:|")
    for name, solver in SOLVERS.items():
        drawn = draw(model, args.count, solver)
        apart = drawn.data.double() - truth.double()
        error = f"{apart.square().mean().sqrt():.2f} | {100 * apart.ne(0).double().mean():.1f}%"
        if isinstance(solver, Ancestral):  # noise of its own: another sample of the same latent
            error = "– | –"
        print(
            f"| {name} | {drawn.nfe:g} | {error} | {reference.fid(drawn.data):.1f} |", flush=True
        )
    print(f"| test images | | | | {reference.fid(load(args.data).test[: args.count]):.1f}")
    count = args.likelihoods
    fine = draw(model, count, Adams(steps=400), True)
    print(f"\n| solver | evaluations | bits/dim off, mean | rms |\n{'|---' * 4}|")
    for name, solver in LIKELIHOODS.items():
        drawn = draw(model, count, solver, True)
        # Of the density of the states: a pixel that rounds to another level is another image.
        apart = nats_to_bits(fine.log_p - drawn.log_p, fine.x[0].numel())
        rms = apart.square().mean().sqrt()
        print(f"| {name} | {drawn.nfe:g} | {apart.mean():+.4f} | {rms:.4f} |", flush=True)


if __name__ == "__main__":
    main()
