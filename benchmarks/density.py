"""Held-out log-likelihood of small tables: DiffusionDensity against three others, defaults only.

    python benchmarks/density.py --out docs/results

Five folds; every method sees columns standardised on the training rows, so that its own defaults
make sense, and values are in those units. NSF is zuko's, where it is installed: Adam at 1e-3,
batches of 64, 2,048 steps, as in its tutorial, with the best weights on 15% of the rows kept.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from scipy.stats import multivariate_normal
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine, make_moons
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.neighbors import KernelDensity

from idode.sklearn import DiffusionDensity

DIM, COMPONENTS = 10, 5
ROWS = (200, 500, 1000, 2000, 5000)


class Truth:
    """A mixture of five normals in ten dimensions."""

    def __init__(self, seed=0):
        rng = np.random.default_rng(seed)
        roots = rng.normal(size=(COMPONENTS, DIM, DIM)) / DIM**0.5
        self.weights = rng.dirichlet(np.full(COMPONENTS, 5.0))
        self.means = 1.5 * rng.normal(size=(COMPONENTS, DIM))
        self.covariances = roots @ roots.transpose(0, 2, 1) + 0.05 * np.eye(DIM)

    def sample(self, n, seed):
        """Rows ``(n, 10)``."""
        rng = np.random.default_rng(seed)
        which = rng.choice(COMPONENTS, n, p=self.weights)
        return np.stack(
            [rng.multivariate_normal(self.means[k], self.covariances[k]) for k in which]
        )

    def log_prob(self, x):
        """Log-density ``(n,)``."""
        parts = [
            np.log(w) + multivariate_normal(m, c).logpdf(x)
            for w, m, c in zip(self.weights, self.means, self.covariances, strict=True)
        ]
        return np.logaddexp.reduce(parts, axis=0)


def tables():
    """Six tables; the integers of the digits have noise of one level, as they have no density."""
    digits = load_digits().data
    return {
        "wine": load_wine().data,
        "breast cancer": load_breast_cancer().data,
        "diabetes": load_diabetes().data,
        "digits": digits + np.random.default_rng(0).random(digits.shape),
        "two moons": make_moons(2000, noise=0.05, random_state=0)[0],
        "mixture": Truth().sample(2000, 1),
    }


def gaussian_mixture(rows):
    """Components by BIC, as many as 10."""
    found = [GaussianMixture(k, random_state=0).fit(rows) for k in range(1, 11)]
    return min(found, key=lambda g: g.bic(rows)).score_samples


def kernel_density(rows):
    """Bandwidth by cross-validation."""
    grid = {"bandwidth": np.geomspace(0.03, 2, 20)}
    return GridSearchCV(KernelDensity(), grid).fit(rows).best_estimator_.score_samples


def nsf(rows, steps=2048, batch=64, patience=8):
    """Zuko's neural spline flow."""
    import zuko

    torch.manual_seed(0)
    flow = zuko.flows.NSF(rows.shape[1], transforms=3, hidden_features=(64, 64))
    optimizer = torch.optim.Adam(flow.parameters(), lr=1e-3)
    x = torch.from_numpy(rows).float()[torch.randperm(len(rows))]
    held, x = x[: round(0.15 * len(x))], x[round(0.15 * len(x)) :]
    best, kept, waited = np.inf, None, 0
    for step in range(1, steps + 1):
        loss = -flow().log_prob(x[torch.randint(len(x), (batch,))]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 64 == 0:
            with torch.no_grad():
                value = float(-flow().log_prob(held).mean())
            waited = 0 if value < best else waited + 1
            if value < best:
                best, kept = value, copy.deepcopy(flow.state_dict())
            if waited == patience:
                break
    flow.load_state_dict(kept)

    @torch.no_grad()
    def log_prob(z):
        return flow().log_prob(torch.from_numpy(z).float()).double().numpy()

    return log_prob


def ours(rows):
    """Defaults."""
    return DiffusionDensity().fit(rows).score_samples


METHODS = {
    "DiffusionDensity": ours,
    "GaussianMixture": gaussian_mixture,
    "KernelDensity": kernel_density,
    "NSF": nsf,
}


def compare(x, folds):
    """Mean and error over held-out rows, differences to ours, processor seconds of a fit."""
    values = {m: [] for m in METHODS}
    seconds = {m: [] for m in METHODS}
    splits = list(KFold(5, shuffle=True, random_state=0).split(x))[:folds]
    for fit, held in splits:
        mean, scale = x[fit].mean(0), np.maximum(x[fit].std(0), 1e-9)
        rows, new = (x[fit] - mean) / scale, (x[held] - mean) / scale
        for name, method in METHODS.items():
            if name == "NSF" and importlib.util.find_spec("zuko") is None:
                continue
            began = time.process_time()
            score = method(rows)
            seconds[name].append(time.process_time() - began)
            values[name].append(score(new))
    joined = {m: np.concatenate(v) for m, v in values.items() if v}
    mine = joined["DiffusionDensity"]
    return {
        m: {
            "mean": float(v.mean()),
            "error": float(v.std() / len(v) ** 0.5),
            "ours minus it": float((mine - v).mean()),
            "error of that": float((mine - v).std() / len(v) ** 0.5),
            "seconds": float(np.mean(seconds[m])),
            "rows": len(v),
        }
        for m, v in joined.items()
    }


def growth(rows=ROWS):
    """Mean of |log p - truth| over 1,000 new rows, against the number of rows fitted to."""
    truth, found = Truth(), {}
    new = truth.sample(1000, 2)
    exact = truth.log_prob(new)
    for n in rows:
        x = truth.sample(n, 3)
        found[n] = {
            name: float(np.abs(METHODS[name](x)(new) - exact).mean())
            for name in ("DiffusionDensity", "GaussianMixture", "KernelDensity")
        }
        print(n, found[n], flush=True)
    return found


def graph(found, file):
    """The errors against the number of rows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    ax = figure.add_subplot()
    rows = [int(n) for n in found]
    for name in next(iter(found.values())):
        ax.loglog(rows, [found[n][name] for n in found], marker="o", label=name)
    ax.set_xticks(rows, [str(n) for n in rows], minor=False)
    ax.set_xticks([], minor=True)
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter("{x:g}")
    ax.set_xlabel("rows")
    ax.set_ylabel("mean of |log p − truth|, nats")
    ax.grid(alpha=0.3)
    ax.legend(frameon=False)
    figure.savefig(file, dpi=130)


def main():
    """All figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folds", type=int, default=5, help="of five, how many")
    parser.add_argument("--only", nargs="*", help="tables, or growth")
    parser.add_argument("--out", type=Path, required=True, help="folder of density.json and .png")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    file = args.out / "density.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    for name, x in tables().items():
        if args.only and name not in args.only:
            continue
        found[name] = {"shape": x.shape, "folds": args.folds, **compare(x, args.folds)}
        print(name, json.dumps(found[name]), flush=True)
        file.write_text(json.dumps(found, indent=1) + "\n")
    if not args.only or "growth" in args.only:
        found["growth"] = growth()
        graph(found["growth"], args.out / "density.png")
        file.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
