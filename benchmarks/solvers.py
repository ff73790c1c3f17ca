"""Cost against accuracy of the likelihood solvers, on a trained network.

    python benchmarks/solvers.py --run pretrained:digits --out docs/results
    python benchmarks/solvers.py --run pretrained:digits --images 16 --race

All solvers see the same states and probes. The truth is Adams on a grid so fine that halving its
steps once more moves no image by more than is printed. Seconds are of the same run, with the
solvers taking turns, and are given as ratios to Dormand-Prince at 1e-5. ``--race`` counts the
evaluations of our Dormand-Prince and of scipy's RK45, which the paper's authors call.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy.integrate import solve_ivp
from torch import Tensor

from idode.data import load
from idode.likelihood.calibration import PILOT, SEARCHED
from idode.likelihood.estimator import LikelihoodSettings, LogWeightEstimator
from idode.likelihood.log_prob import DensityField, prior_log_prob, solve_log_prob
from idode.numerics import nats_to_bits
from idode.ode.adams import Adams
from idode.ode.dormand_prince import Dopri5
from idode.ode.solvers import RK4, Solver
from idode.runs.run import open_run


def solvers(estimator: LogWeightEstimator, states: Tensor, probes: Tensor) -> dict[str, Solver]:
    """All solvers of the picture; ours are calibrated on images that are not evaluated."""
    dim, model = states[0].numel(), estimator.model
    states, probes = states[:SEARCHED], probes[:, :SEARCHED]  # as an evaluation does
    field, start = DensityField(model, probes), estimator.dequantization.gamma(model)

    def value(z: Tensor, integral: Tensor) -> Tensor:
        return -nats_to_bits(prior_log_prob(model, z) + integral, dim)

    chosen: dict[str, Solver] = {
        f"dopri5 {tol:g}": Dopri5(tol) for tol in (1e-3, 1e-4, 1e-5, 1e-6)
    }
    chosen |= {f"rk4 {n}": RK4(n) for n in (25, 50)}
    for tol in (0.02, 0.01, 0.005, 0.002):
        tuned = Adams(tol).calibrate(field, states, start, model.gamma_max, value)
        chosen[f"ours {tol:g}"] = tuned.solver
        print(f"calibrated for {tol:g}: {tuned.nfe} evaluations of {len(states)} pilot images")
    return chosen


@torch.no_grad()
def measure(run: str, images: int) -> dict[str, object]:
    """NFE, seconds and errors in bits/dim of each solver."""
    opened = open_run(run)
    model, data = opened.model(), load(opened.config.data or "digits")
    pixels = torch.from_numpy(np.array(data.test[: PILOT + images]))
    estimator = LogWeightEstimator(model, LikelihoodSettings().for_model(model))
    indices = range(len(pixels))
    states, _ = estimator.states(pixels, indices, 0)
    probes = estimator.probes(states, indices, 0, 1)
    assert probes is not None
    chosen = solvers(estimator, states[:PILOT], probes[:, :PILOT])
    states, probes = states[PILOT:], probes[:, PILOT:]
    dim = states[0].numel()

    def bits(solver: Solver) -> tuple[Tensor, int, float]:
        began = time.perf_counter()
        found = solve_log_prob(model, states, solver, probes=probes)
        return -nats_to_bits(found.log_p, dim), found.nfe, time.perf_counter() - began

    truth = bits(Adams(steps=1200))[0]
    half = bits(Adams(steps=600))[0]
    rows = []
    for name, solver in chosen.items():
        values, nfe, seconds = bits(solver)
        error = values - truth
        rows.append(
            {
                "solver": name,
                "nfe": nfe,
                "seconds": seconds,
                "mean_error": float(error.mean()),
                "rms_error": float(error.square().mean().sqrt()),
                "largest_error": float(error.abs().max()),
            }
        )
    return {
        "run": run,
        "data": str(data.identity),
        "images": len(states),
        "threads": torch.get_num_threads(),
        "truth_moves_by": float((truth - half).abs().max()),
        "rows": rows,
    }


@torch.no_grad()
def race(run: str, images: int, repeats: int) -> None:
    """Print mean evaluations of our Dormand-Prince and of scipy's RK45 over several batches."""
    opened = open_run(run)
    model, data = opened.model("cpu"), load(opened.config.data or "digits")
    estimator = LogWeightEstimator(model, LikelihoodSettings().for_model(model))
    ends = model.gamma_min, model.gamma_max

    def counts(first: int, tolerance: float) -> tuple[int, int, float]:
        places = range(first, first + images)
        pixels = torch.from_numpy(np.array(data.test[first : first + images]))
        x, _ = estimator.states(pixels, places, 0)
        field = DensityField(model, estimator.probes(x, places, 0, 1))

        def slope(gamma: float, y: np.ndarray) -> np.ndarray:
            here = torch.from_numpy(y[: x.numel()]).reshape(x.shape).to(x.dtype)
            v, rates = field(here, torch.tensor(gamma, dtype=torch.float64))
            return torch.cat([v.double().flatten(), rates.double().flatten()]).numpy()

        y = np.concatenate([x.double().numpy().ravel(), np.zeros(images)])
        ours = Dopri5(tolerance).solve(field, x, *ends)
        theirs = solve_ivp(slope, ends, y, rtol=tolerance, atol=tolerance)
        change = ours.integral[0] - torch.from_numpy(theirs.y[-images:, -1])
        apart = nats_to_bits(change, x[0].numel()).square().mean()
        return ours.nfe, theirs.nfev, float(apart)

    print(f"{run}, {repeats} batches of {images}")
    print("tolerance    ours   scipy  ratio  bits/dim apart, rms")
    for tolerance in (1e-3, 1e-4, 1e-5):
        found = [counts(images * n, tolerance) for n in range(repeats)]
        ours, theirs, apart = np.mean(found, axis=0)
        means = f"{ours:7.1f} {theirs:7.1f} {ours / theirs:6.3f}"
        print(f"{tolerance:9g} {means}  {apart**0.5:.6f}", flush=True)


def picture(result: dict, path: Path) -> None:
    """Both costs against the error, both families in one picture."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 2)
    base = next(r["seconds"] for r in result["rows"] if r["solver"] == "dopri5 1e-05")
    for family, marker in (("dopri5", "o"), ("rk4", "s"), ("ours", "D")):
        rows = [r for r in result["rows"] if r["solver"].startswith(family)]
        label = {"dopri5": "Dormand-Prince 5(4)", "rk4": "RK4, equal steps", "ours": "idode"}
        for axis, cost in ((axes[0], "nfe"), (axes[1], "seconds")):
            x = [r[cost] / (base if cost == "seconds" else 1) for r in rows]
            axis.plot(x, [r["rms_error"] for r in rows], marker + "-", label=label[family])
            distinct = {r["nfe"]: (r, at) for r, at in zip(rows, x, strict=True)}
            for r, at in distinct.values():
                axis.annotate(
                    r["solver"].split()[1], (at, r["rms_error"]), fontsize=7,
                    xytext=(4, 4), textcoords="offset points",
                )  # fmt: skip
    for axis, text, ticks in (
        (axes[0], "evaluations of the field (NFE)", (50, 100, 200, 400, 800)),
        (axes[1], "seconds, as a share of Dormand-Prince at 1e-5", (0.1, 0.2, 0.5, 1, 2)),
    ):
        axis.set(xscale="log", yscale="log", xlabel=text, ylabel="rms error (bits/dim)")
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
        axis.margins(x=0.15)
        axis.axhline(0.01, color="grey", lw=0.8, ls=":")
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(path, dpi=130)


def main() -> None:
    """Measure, print, and write JSON and a picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", default="pretrained:digits")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=1, help="batches of --race")
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--race", action="store_true", help="beside scipy's RK45, and nothing else"
    )
    args = parser.parse_args()
    if args.race:
        race(args.run, args.images, args.repeats)
        return
    if args.out is None:
        parser.error("--out is missing")
    result = measure(args.run, args.images)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "solvers.json").write_text(json.dumps(result, indent=1) + "\n")
    picture(result, args.out / "solvers.png")
    base = next(r for r in result["rows"] if r["solver"] == "dopri5 1e-05")
    print(f"{result['data']}, {result['images']} images; truth ± {result['truth_moves_by']:.5f}")
    print(f"{'solver':14} {'NFE':>5} {'of 1e-5':>8} {'seconds':>8} {'mean':>9} {'rms':>8}")
    for r in result["rows"]:
        print(
            f"{r['solver']:14} {r['nfe']:5d} {r['nfe'] / base['nfe']:8.2f} "
            f"{r['seconds'] / base['seconds']:8.2f} {r['mean_error']:+9.5f} {r['rms_error']:8.5f}"
        )


if __name__ == "__main__":
    main()
