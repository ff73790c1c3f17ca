"""What a likelihood costs by integrator: errors in bits/dim on one grid, and the floor below them.

    python benchmarks/integrators.py pretrained:cifar10-small 24 --data cifar10
    python benchmarks/integrators.py pretrained:digits --search 0.02 0.01 0.005 0.002

All ways solve the same states with the same probes on the same nodes: the kept grid of the model,
thinned to so many steps. The truth is the default solver on four times the steps of the kept grid.
A *form* is a scale m(gamma) of the state and a speed s(gamma): the state over m moves with a
velocity that is s times something slow, which Adams interpolates, and s is integrated as it is.
``--search`` calibrates the default solver on the first eight images instead, and prints what that
costs in evaluations of eight images, and the error of the grid on other images.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from scipy.interpolate import CubicSpline
from torch import Tensor

from idode.batches import Batch, to_tensor
from idode.diffusion.schedules import Schedule
from idode.likelihood.calibration import PILOT, calibrate_solver
from idode.likelihood.estimator import LikelihoodSettings, LogWeightEstimator
from idode.likelihood.log_prob import DensityField, prior_log_prob
from idode.numerics import nats_to_bits
from idode.ode.adams import Adams
from idode.ode.quadrature import quadrature
from idode.runs.run import open_run

Vector = npt.NDArray[np.float64]
Curve = Callable[[Schedule, Tensor], Tensor]


@dataclass(frozen=True)
class Form:
    """A scale of the state, the slope of its logarithm, and the speed of the scaled state."""

    scale: Curve
    dlog: Curve
    speed: Curve | None


ONE: Curve = lambda _, g: torch.ones_like(g)  # noqa: E731
NONE: Curve = lambda _, g: torch.zeros_like(g)  # noqa: E731
FORMS = {
    "velocity": Form(ONE, NONE, None),
    "normalised": Form(ONE, NONE, lambda s, g: s.speed(g)),
    "noise": Form(
        lambda s, g: s.alpha(g), lambda s, g: s.dlog_alpha(g), lambda _, g: (g / 2).exp()
    ),
    "data": Form(
        lambda s, g: s.sigma(g), lambda s, g: s.dlog_sigma(g), lambda _, g: (-g / 2).exp()
    ),
}


class Scaled:
    """A field of the scaled state."""

    def __init__(self, field: DensityField, form: Form) -> None:
        self.field, self.form, self.schedule = field, form, field.model.schedule
        self.speed = None if form.speed is None else self._speed

    def _speed(self, gamma: Vector) -> Vector:
        assert self.form.speed is not None
        return np.asarray(self.form.speed(self.schedule, torch.as_tensor(gamma).double()))

    def scale(self, gamma: float) -> float:
        """Of the state, at one place."""
        return float(self.form.scale(self.schedule, torch.tensor(gamma).double()))

    def __call__(self, y: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
        """Velocity of the scaled state, and rates."""
        at = gamma.double()
        m, slope = (
            float(self.form.scale(self.schedule, at)),
            float(self.form.dlog(self.schedule, at)),
        )
        v, rates = self.field(y * m, gamma)
        return (v - slope * m * y) / m, rates


class Problem:
    """Some images of a run as states with probes, and the truth about them."""

    def __init__(self, run: str, data: str | None, images: int) -> None:
        opened = open_run(run)
        self.model = opened.model()
        pixels = np.asarray(opened.load_data(data).test[: PILOT + images])
        self.pilot = Batch(to_tensor(pixels[:PILOT]), list(range(PILOT)), {})
        pixels = pixels[PILOT:]
        estimator = LogWeightEstimator(self.model, LikelihoodSettings().for_model(self.model))
        places = range(PILOT, PILOT + images)
        self.x, _ = estimator.states(to_tensor(pixels), places, 0)
        self.field = DensityField(self.model, estimator.probes(self.x, places, 0, 1))
        self.start, self.end = estimator.dequantization.gamma(self.model), self.model.gamma_max
        kept = json.loads((opened.path / "calibration.json").read_text())["calibrations"]
        (entry,) = kept.values()
        self.kept = Adams(grid=tuple(entry["calibration"]["solver"]["grid"]), order=3, graded=2)
        fine = self.kept.refined()
        fine = fine.refined() if fine is not None else None
        assert fine is not None
        seen = fine.trace(self.field, self.x, self.start, self.end)
        self.truth = self.bits(seen.x, seen.integral())
        each = np.asarray(nats_to_bits(seen.rates[:, 0], self.x[0].numel()))
        self.rates = CubicSpline(seen.nodes, each)  # bits/dim, along the true path
        self.whole = quadrature(seen.nodes) @ each

    def bits(self, z: Tensor, integral: Tensor) -> Tensor:
        """Bits/dim of each image."""
        return -nats_to_bits(prior_log_prob(self.model, z) + integral, z[0].numel())[0]

    def search(self, tolerance: float) -> tuple[str, int, Vector]:
        """Name with the cost of the search, evaluations of a solve, and errors of images."""
        settings = LikelihoodSettings(solver=Adams(tolerance)).for_model(self.model)
        found = calibrate_solver(LogWeightEstimator(self.model, settings), self.pilot)
        solved = found.solver.solve(self.field, self.x, self.start, self.end)
        error = np.asarray(self.bits(solved.x, solved.integral) - self.truth)
        return f"search {found.nfe}, tolerance {tolerance:g}", solved.nfe, error

    def grid(self, steps: int) -> tuple[float, ...]:
        """The kept grid with so many steps."""
        kept = self.kept.fractions
        at = np.linspace(0, len(kept) - 1, steps + 1)
        return tuple(float(u) for u in np.interp(at, np.arange(len(kept)), kept))

    def error(self, solver: Adams, form: str, rule: int = 4) -> Vector:
        """Of every image, by one form."""
        field = Scaled(self.field, FORMS[form])
        y = self.x / field.scale(self.start)
        seen = solver.trace(field, y, self.start, self.end)
        found = self.bits(seen.x * field.scale(self.end), seen.integral(rule))
        return np.asarray(found - self.truth)

    def quadrature_error(self, nodes: Vector) -> Vector:
        """On the true path, so that only the integral of the divergence is at fault."""
        at = self.start + (self.end - self.start) * nodes
        return np.asarray(self.whole - quadrature(list(at)) @ self.rates(at))

    def learned(self, steps: int, tries: int = 600) -> Vector:
        """Nodes with the least such error on half of the images, by random search."""
        rng, half = np.random.default_rng(0), len(self.x) // 2
        best = np.asarray(self.grid(steps))
        least, places = math.inf, np.arange(steps)
        for trial in range(tries):
            width, shift = rng.integers(1, 6), 0.0 if trial == 0 else 0.5 * rng.normal()
            bump = np.exp(-0.5 * ((places - rng.integers(steps)) / width) ** 2)
            lengths = np.diff(best) * np.exp(shift * bump)
            nodes = np.r_[0.0, np.cumsum(lengths) / lengths.sum()]
            found = float(np.square(self.quadrature_error(nodes)[:half]).mean())
            if found < least:
                best, least = nodes, found
        return best


def rows(problem: Problem, steps: int) -> list[tuple[str, int, Vector]]:
    """Name, evaluations, and errors of images."""
    base = Adams(grid=problem.grid(steps), order=3, graded=2)
    found = []
    for form in FORMS:
        for order in (2, 3, 4):
            error = problem.error(replace(base, order=order), form)
            found.append((f"{form}, order {order}", base.nfe, error))
    slow = replace(base, graded=5)
    found.append(
        ("normalised, order 3, start as before", slow.nfe, problem.error(slow, "normalised"))
    )
    sixth = problem.error(base, "normalised", 6)
    found.append(("normalised, order 3, rule of order 6", base.nfe, sixth))
    error = next(e for name, _, e in found if name == "normalised, order 3")
    half = base.coarsened(1 / 2)
    if half is not None:
        apart = error - problem.error(half, "normalised")
        found.append(("extrapolated from half the steps", base.nfe + half.nfe, error + apart / 7))
    first = len(error) // 2
    found.append(
        ("less the mean error of other images", base.nfe, error[first:] - error[:first].mean())
    )
    floor = problem.quadrature_error(np.asarray(problem.grid(steps)))
    found.append(("floor: true path, this grid", steps + 1, floor))
    learned = problem.quadrature_error(problem.learned(steps))
    found.append(("floor: nodes learned on half, that half", steps + 1, learned[:first]))
    found.append(("floor: nodes learned on half, other half", steps + 1, learned[first:]))
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("steps", type=int, nargs="?", default=24)
    parser.add_argument("--search", type=float, nargs="+")
    parser.add_argument("--data")
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with torch.no_grad():
        problem = Problem(args.run, args.data, args.images)
        if args.search:
            found = [problem.search(tolerance) for tolerance in args.search]
        else:
            found = rows(problem, args.steps)
    print(f"{args.run}, {args.images} images\n{'':42}  NFE     mean     rms")
    for name, nfe, error in found:
        print(f"{name:42} {nfe:4d} {error.mean():+8.4f} {math.sqrt(np.square(error).mean()):7.4f}")
    if args.json is not None:
        kept = [{"way": name, "nfe": nfe, "errors": error.tolist()} for name, nfe, error in found]
        args.json.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
