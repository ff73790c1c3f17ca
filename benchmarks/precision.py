"""What a bits/dim of a test set costs, by precision, and whether its intervals cover the truth.

    python benchmarks/precision.py table pretrained:cifar10-small 0.02 --data cifar10
    python benchmarks/precision.py coverage
    python benchmarks/precision.py stopping
    python benchmarks/precision.py values --out tests/reference/digits_values.npz

``table`` runs the estimate at one precision and prints the evaluations of the network and the CPU
seconds beside those of three other ways, which are extrapolated: from the cost of an image on the
fine grid and the standard deviation over images, both of the same run, and from scipy's RK45 at
1e-5 on a few images. Seconds are of the processor on one thread, so a busy machine does not change
them. ``coverage`` solves all digits and the points of an exact lattice once, on both grids, and
repeats the choice of images and the regression with other seeds. ``stopping`` replays the whole
procedure, which stops when its error bar is small enough, from the stored values of all digits,
which ``values`` stores.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from idode.batches import Batch, to_tensor
from idode.data import load
from idode.diffusion.exact import Lattice
from idode.diffusion.schedules import VariancePreserving, start_gamma
from idode.evaluation.coder_proxies import CODERS
from idode.evaluation.evaluate import evaluate
from idode.evaluation.multilevel import estimate_mean, standardised
from idode.evaluation.precision import MIDDLE, sampled_bits_per_dim
from idode.evaluation.proxies import image_features
from idode.evaluation.sampled import SampledBitsPerDim
from idode.likelihood.calibration import SolverCalibration
from idode.likelihood.estimator import BatchDraws, LikelihoodSettings, LogWeightEstimator
from idode.likelihood.log_prob import DensityField
from idode.numerics import nats_to_bits
from idode.ode.adams import Adams
from idode.ode.solvers import Solver
from idode.runs.run import open_run

RK45_IMAGES = 4
DIGITS = "pretrained:digits"
STORED = Path(__file__).parent.parent / "tests" / "reference" / "digits_values.npz"


def rk45(run: str, data: str | None, count: int = RK45_IMAGES) -> tuple[float, float]:
    """Evaluations and seconds for an image by scipy's RK45 on state and log-density together."""
    from scipy.integrate import solve_ivp

    opened = open_run(run)
    model, images = opened.model(), opened.load_data(data).test[:count]
    estimator = LogWeightEstimator(model, LikelihoodSettings().for_model(model))
    x, _ = estimator.states(to_tensor(images), range(count), 0)
    field = DensityField(model, estimator.probes(x, range(count), 0, 1))

    def slope(gamma: float, state: np.ndarray) -> np.ndarray:
        here = torch.from_numpy(state[: x.numel()]).float().reshape(x.shape)
        v, rates = field(here, torch.tensor(gamma, dtype=torch.float64))
        return np.concatenate([v.numpy().ravel(), rates[0].numpy()]).astype(np.float64)

    begin = estimator.dequantization.gamma(model)
    state = np.concatenate([x.numpy().ravel(), np.zeros(count)]).astype(np.float64)
    began = time.process_time()
    with torch.no_grad():
        found = solve_ivp(slope, (begin, model.gamma_max), state, rtol=1e-5, atol=1e-5)
    return found.nfev, (time.process_time() - began) / count


def table(run: str, data: str, precision: float, seed: int) -> list[dict[str, object]]:
    """Rows of evaluations and seconds for one precision."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        found = evaluate(
            run,
            settings=LikelihoodSettings(seed=seed),
            data=data,
            precision=precision,
            journal=Path(folder) / "s.jsonl",
        )
        seconds = time.process_time() - began
    (result,) = found.results
    assert isinstance(result, SampledBitsPerDim)
    print("\n".join([str(result), *result.sampling.lines()]), flush=True)
    done, count = result.sampling, found.data.test_size
    needed = math.ceil(1 / (precision**2 / done.spread.values**2 + 1 / count))
    nfe, slow = rk45(run, data)
    each = slow / nfe  # seconds of an evaluation for one image
    rows = {
        "all images": (count, count * done.nfe_fine, count * done.nfe_fine * each),
        "plain mean": (needed, needed * done.nfe_fine, needed * done.nfe_fine * each),
        "this": (len(result.per_image), done.evaluations, seconds),
        "RK45 1e-5": (needed, needed * nfe, needed * slow),
    }
    return [
        {"run": run, "precision": precision, "way": way, "images": n, "nfe": e, "seconds": s}
        | ({"value": result.mean, "error": result.standard_error} if way == "this" else {})
        for way, (n, e, s) in rows.items()
    ]


def solved(estimator: LogWeightEstimator, data: np.ndarray, solver: Solver) -> np.ndarray:
    """Bits/dim of every image on one grid."""
    batch = Batch(to_tensor(data), list(range(len(data))), {})
    found = estimator.draws(batch, solver)
    return -nats_to_bits(found.log_w[0], data[0].size).numpy()


def kept_grid() -> Adams:
    """The calibrated grid of the digits that the package brings."""
    kept = json.loads((open_run(DIGITS).path / "calibration.json").read_text())["calibrations"]
    (entry,) = kept.values()
    solver = SolverCalibration.from_json(entry["calibration"]).solver
    assert isinstance(solver, Adams)
    return solver


def populations() -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Standardised proxies, coarse and fine values of all digits, and of an exact lattice."""
    g = torch.Generator().manual_seed(4)
    pixels = torch.unique(torch.randint(0, 8, (40, 3), generator=g), dim=0)
    chances = torch.rand(len(pixels), generator=g, dtype=torch.float64) + 0.05
    lattice = Lattice(pixels, chances / chances.sum(), 8)
    drawn = lattice.sample(1000, torch.Generator().manual_seed(0))[0].numpy()
    found = {}
    for name, model, data, fine in (
        ("digits", open_run(DIGITS).model(), np.asarray(load("digits").test), kept_grid()),
        (
            "lattice",
            lattice.ode(VariancePreserving(), start_gamma(8), 14.0),
            drawn,
            Adams(steps=60),
        ),
    ):
        coarse = fine.coarsened(MIDDLE)
        assert coarse is not None
        estimator = LogWeightEstimator(model, LikelihoodSettings().for_model(model))
        values = [solved(estimator, data, solver) for solver in (coarse, fine)]
        found[name] = (standardised(image_features(data)[1]), values[0], values[1])
    return found


def coverage(repeats: int = 200) -> list[dict[str, object]]:
    """How often 95% intervals of the test set's mean cover it, and the mean over repeats."""
    rows = []
    for name, (features, coarse, fine) in populations().items():
        truth = fine.mean()
        for n1, n2 in ((8, 8), (32, 32), (128, 128), (32, 8), (128, 16)):
            hits, off, errors = [], [], []
            for seed in range(repeats):
                order = np.random.default_rng(seed).permutation(len(fine))[:n1]
                if n1 == n2:
                    found = estimate_mean(features, order, fine[order])
                else:
                    found = estimate_mean(features, order, coarse[order], fine[order[:n2]])
                low, high = found.interval()
                hits.append(low <= truth <= high)
                off.append(found.mean - truth)
                errors.append(found.standard_error)
            rows.append(
                {
                    "population": name,
                    "coarse": n1,
                    "fine": n2,
                    "covered": float(np.mean(hits)),
                    "bias": float(np.mean(off)),
                    "error": float(np.std(off)),
                    "claimed": float(np.sqrt(np.mean(np.square(errors)))),
                    "plain": float(fine.std() * math.sqrt(1 / n1 - 1 / len(fine))),
                }
            )
    return rows


class Replay:
    """All 297 digits with known values in place of a network.

    Every coarse grid has the coarse values of ``tests/reference``, the calibrated one the fine
    values. They are the truth, so noise and probes have no variance.
    """

    def __init__(self) -> None:
        self.data = np.asarray(load("digits").test)
        self.model = open_run(DIGITS).model()
        with np.load(STORED) as values:
            self.coarse, self.fine = values["coarse"], values["fine"]
        self.solver = kept_grid()
        self.features = image_features(self.data)

    def calibration(self, *_: object) -> tuple[SolverCalibration, float]:
        """One without errors."""
        return SolverCalibration(self.solver, 0.0, 0.0, 0.0, math.inf, 0.0, 0.0, 0.0, 0), 0.0

    def draws(
        self, estimator: LogWeightEstimator, batch: Batch, solver: Solver, *_: object
    ) -> BatchDraws:
        """The stored values of a batch as log-weights."""
        values = self.fine if solver == self.solver else self.coarse
        nats = -torch.from_numpy(values[list(batch.indices)]) * self.data[0].size * math.log(2)
        assert isinstance(solver, Adams)
        return BatchDraws(nats[None], torch.zeros(len(nats)).double(), solver.nfe)

    def estimate(self, seed: int, precision: float) -> SampledBitsPerDim:
        """As ``idode evaluate --precision``, without files of coders."""
        settings = LikelihoodSettings(solver=self.solver, seed=seed)
        room = "idode.evaluation"
        with (
            mock.patch(f"{room}.precision.find_calibration", self.calibration),
            mock.patch(f"{room}.precision.missing_coders", return_value=dict.fromkeys(CODERS, "")),
            mock.patch(f"{room}.levels.image_features", return_value=self.features),
            mock.patch.object(LogWeightEstimator, "draws", lambda *given: self.draws(*given)),
        ):
            return sampled_bits_per_dim(self.model, self.data, precision, settings)


def stopping(repeats: int = 1000) -> list[dict[str, object]]:
    """How often intervals cover where the error bar itself decides when to stop."""
    replay, rows = Replay(), []
    truth = replay.fine.mean()
    for precision in (0.04, 0.02):
        found = [replay.estimate(seed, precision) for seed in range(repeats)]
        ends = [one.interval() for one in found]
        off = np.array([one.mean - truth for one in found])
        claimed = np.array([one.standard_error for one in found])
        rows.append(
            {
                "population": "digits",
                "precision": precision,
                "covered": float(np.mean([low <= truth <= high for low, high in ends])),
                "bias": float(off.mean()),
                "error": float(off.std()),
                "claimed": float(np.sqrt(np.mean(claimed**2))),
                "images": float(np.mean([len(one.per_image) for one in found])),
                "fine": float(np.mean([one.sampling.fine for one in found])),
            }
        )
    return rows


def store_values(out: Path) -> list[dict[str, object]]:
    """Store coarse and fine values of all digits."""
    _, coarse, fine = populations()["digits"]
    np.savez(out, coarse=coarse, fine=fine)
    return [{"coarse": float(coarse.mean()), "fine": float(fine.mean()), "images": len(fine)}]


def main() -> None:
    """Measure, print, and append to a JSON file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("table", "rk45", "coverage", "stopping", "values"))
    parser.add_argument("run", nargs="?", default="pretrained:cifar10-small")
    parser.add_argument("precision", nargs="?", type=float, default=0.02)
    parser.add_argument("--data")
    parser.add_argument("--seed", type=int, default=0, help="of table")
    parser.add_argument("--images", type=int, default=RK45_IMAGES, help="of rk45")
    parser.add_argument("--out", type=Path, help="of values")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.what == "values" and args.out is None:
        parser.error("values are stored in a file: give --out FILE.npz")
    torch.set_num_threads(1)
    chosen = args.run, args.data, args.precision, args.seed

    def alone() -> list[dict[str, object]]:
        nfe, each = rk45(args.run, args.data, args.images)
        return [{"way": "RK45 1e-5", "evaluations": nfe, "seconds": args.images * each}]

    ways = {"table": lambda: table(*chosen), "rk45": alone}
    ways |= {"coverage": coverage, "stopping": stopping, "values": lambda: store_values(args.out)}
    rows = ways[args.what]()
    for row in rows:
        print("  ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()))
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
