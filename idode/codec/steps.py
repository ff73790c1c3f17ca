r"""The noise levels of a code with T steps, and everything that follows from them.

The expected cost of a step from :math:`\gamma_s` to :math:`\gamma_t` is the mean of
:math:`\frac12\log(1 + \Delta\lambda)` over coefficients, exactly, whatever the distribution of the
errors. So the best grid follows from the tables of :math:`\lambda` by dynamic programming, with
the cost of the pixels at its start and that of the prior at its end.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from idode.codec.tables import Tables
from idode.diffusion.schedules import Schedule
from idode.errors import InputError

__all__ = ["BIN", "MAX_STEPS", "Plan", "make_plan"]

BIN = 0.25  # width of a bin over the noise that a step adds
MAX_STEPS = 1000
CANDIDATES = 180  # noise levels a grid is chosen from, at least
PER_STEP = 3  # and for each step

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Plan:
    """T + 1 noise levels, least noise first, and the numbers of each step."""

    gamma: Array  # (T + 1,)
    told: Array  # (T + 1,), what the network is told: rounding to bins is noise too
    alpha: Array  # (T + 1,)
    sigma: Array  # (T + 1,)
    ratio: Array  # (T,), alpha_t / alpha_s
    added: Array  # (T,), deviation of the noise a forward step adds
    bins: Array  # (T + 1,), width of a bin of the state
    deviation: Array  # (T, Q, K), of the reverse step to state t - 1, in its bins
    inflation: Array  # (T, Q, K), of its variance over that of the exact step
    edges: Array  # (T + 1, Q - 1), of the classes of patches
    spread: Array  # (Q,), of pixels around the estimate, in grey levels
    prior: Array  # (K,), deviation of the last state, in its bins
    gained_bits: Array  # (T,), a dimension: expected to be pushed beyond the bits drawn, until t
    expected: float  # nats a dimension, of images like those of the tables

    @property
    def steps(self) -> int:
        """T."""
        return len(self.ratio)

    def mean(self, t: int) -> tuple[float, float]:
        """Weights of the state at ``t`` and of the clean data in the mean of state ``t - 1``."""
        noise = self.sigma[t] ** 2
        return (
            float(self.ratio[t - 1] * self.sigma[t - 1] ** 2 / noise),
            float(self.alpha[t - 1] * self.added[t - 1] ** 2 / noise),
        )

    def hash(self) -> str:
        """Hash of all numbers; plans with equal hashes code identically."""
        total = hashlib.blake2b(digest_size=8)
        for name in ("told", "ratio", "added", "bins", "deviation", "edges", "spread", "prior"):
            total.update(getattr(self, name).tobytes())
        return total.hexdigest()


def make_plan(tables: Tables, schedule: Schedule, steps: int) -> Plan:
    """The best plan with a number of steps."""
    if not 1 <= steps <= MAX_STEPS:
        raise InputError(f"steps: must be from 1 to {MAX_STEPS}, got {steps}")
    gamma, expected = best_grid(tables, steps)
    clock = torch.from_numpy(gamma)
    alpha, sigma = schedule.alpha(clock).numpy(), schedule.sigma(clock).numpy()
    ratio = alpha[1:] / alpha[:-1]
    # sigma_t^2 - ratio^2 sigma_s^2, without the loss of digits
    added = sigma[1:] * np.sqrt(-np.expm1(gamma[:-1] - gamma[1:]))
    bins = np.concatenate([sigma[:1], added]) * BIN
    told = gamma + math.log1p(BIN**2 / 12)
    error = np.exp(tables.log_error(told[1:]))  # (T, Q, K)
    gained = np.exp(-gamma[:-1]) - np.exp(-gamma[1:])
    reverse = sigma[:-1] * added / sigma[1:] / bins[:-1]
    inflation = 1 + gained[:, None, None] * error
    deviation = reverse[:, None, None] * np.sqrt(inflation)
    each = 0.5 * np.log(inflation).mean(2)  # (T, Q)
    share = tables.at("share", told[1:])
    first = float(tables.at("pixel_nats", told[:1])[0]) / math.log(2)
    last = np.sqrt(sigma[-1] ** 2 + alpha[-1] ** 2 * tables.power.astype(np.float64))
    return Plan(
        gamma=gamma,
        told=told,
        alpha=alpha,
        sigma=sigma,
        ratio=ratio,
        added=added,
        bins=bins,
        deviation=deviation,
        inflation=inflation,
        edges=tables.at("edges", told),
        spread=tables.at("pixel_spread", told[:1])[0],
        prior=last / bins[-1],
        gained_bits=first + np.cumsum((each * share).sum(1)) / math.log(2),
        expected=expected,
    )


def best_grid(tables: Tables, steps: int) -> tuple[Array, float]:
    """The T + 1 noise levels of least expected cost, and that cost in nats a dimension."""
    n = max(CANDIDATES, PER_STEP * steps)
    gamma = np.linspace(tables.gamma[0], tables.gamma[-1], n)
    cost = _step_costs(tables, gamma)
    last_start = tables.gamma[len(tables.pixel_nats) - 1]
    so_far = np.where(gamma <= last_start, tables.at("pixel_nats", gamma), np.inf)
    came_from = np.empty((steps, n), dtype=np.int64)
    for t in range(steps):
        ways = so_far[:, None] + cost
        came_from[t] = np.argmin(ways, axis=0)
        so_far = ways[came_from[t], np.arange(n)]
    power = tables.power.astype(np.float64)
    total = so_far + 0.5 * np.log1p(np.exp(-gamma)[:, None] * power).mean(1)
    end = int(np.argmin(total))
    path = [end]
    for t in reversed(range(steps)):
        path.append(int(came_from[t, path[-1]]))
    return gamma[path[::-1]], float(total[end])


def _step_costs(tables: Tables, gamma: Array) -> Array:
    """Nats a dimension of a step from row to column; infinite where noise does not grow."""
    error = np.exp(tables.log_error(gamma))  # (n, Q, K)
    share = tables.at("share", gamma)
    snr = np.exp(-gamma)
    cost = np.full((len(gamma), len(gamma)), np.inf)
    for t in range(1, len(gamma)):
        gained = (snr[:t] - snr[t])[:, None, None]
        each = np.log1p(gained * error[t]).mean(2)  # (t, Q)
        cost[:t, t] = 0.5 * each @ share[t]
    return cost
