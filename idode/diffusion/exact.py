r"""Data whose diffusion is known in closed form: the oracle of every test, and a teaching tool.

A Gaussian mixture noised to :math:`\gamma` is a mixture again, with means :math:`\alpha\mu_m` and
covariances :math:`\alpha^2\Sigma_m + \sigma^2 I`. So its density, score, velocity, Jacobian and
divergence are exact at every :math:`\gamma`, and so is discrete data: a mixture of points.

>>> import torch
>>> from idode.diffusion.schedules import VariancePreserving
>>> oracle = gaussian([0.3, -0.2], 0.5)
>>> ode = oracle.ode(VariancePreserving(), gamma_min=-8.0, gamma_max=8.0)
>>> x, gamma = torch.zeros(1, 2, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)
>>> bool(torch.allclose(ode.velocity(x, gamma), oracle.velocity(x, gamma, ode.schedule)))
True
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from idode.diffusion.clocks import GammaTime
from idode.diffusion.model import DiffusionODE
from idode.diffusion.predictors import NOISE, SCORE, VELOCITY, convert
from idode.diffusion.schedules import Schedule
from idode.errors import InputError
from idode.numerics import like

__all__ = ["Lattice", "Mixture", "gaussian", "mixture"]


@dataclass(frozen=True)
class Mixture:
    r"""A Gaussian mixture in ``d`` dimensions, with every quantity of its diffusion.

    Args:
        log_weights: Log probabilities ``(M,)``, summing to one.
        means: ``(M, d)``.
        stds: Standard deviations along the principal axes, ``(M, d)``; zero for points.
        axes: Columns are the principal axes, ``(M, d, d)``; ``None`` for the coordinate axes.
    """

    log_weights: Tensor
    means: Tensor
    stds: Tensor
    axes: Tensor | None = None

    @property
    def dim(self) -> int:
        """Number of dimensions."""
        return self.means.shape[1]

    def ode(self, schedule: Schedule, gamma_min: float, gamma_max: float) -> DiffusionODE:
        """The perfect model: a network that needs no training."""
        return DiffusionODE(
            net=lambda x, gamma: self.noise(x, gamma, schedule),
            schedule=schedule,
            gamma_min=gamma_min,
            gamma_max=gamma_max,
            predictor=NOISE,
            clock=GammaTime(),
            shape=(self.dim,),
        )

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """``n`` points of clean data, ``(n, d)``."""
        m = torch.multinomial(self.log_weights.exp(), n, replacement=True, generator=generator)
        z = torch.randn(n, self.dim, generator=generator, dtype=self.means.dtype)
        return self.means[m] + self._turn(self.stds[m] * z, m)

    def log_prob(self, x: Tensor, gamma: Tensor, schedule: Schedule) -> Tensor:
        """Log density of the data noised to ``gamma``, ``(B,)``."""
        return torch.logsumexp(self._log_joint(x, gamma, schedule), dim=1)

    def score(self, x: Tensor, gamma: Tensor, schedule: Schedule) -> Tensor:
        r""":math:`\nabla\log q_\gamma(x)`, the mean of the components' scores."""
        share, scores, _ = self._parts(x, gamma, schedule)
        return (share[..., None] * scores).sum(1)

    def noise(self, x: Tensor, gamma: Tensor, schedule: Schedule) -> Tensor:
        """Best prediction of the noise."""
        score = self.score(x, gamma, schedule)
        return convert(score, x, gamma, schedule, SCORE, NOISE)

    def velocity(self, x: Tensor, gamma: Tensor, schedule: Schedule) -> Tensor:
        """Drift of the probability flow on the gamma clock."""
        score = self.score(x, gamma, schedule)
        return convert(score, x, gamma, schedule, SCORE, VELOCITY)

    def jacobian(self, x: Tensor, gamma: Tensor, schedule: Schedule) -> Tensor:
        r""":math:`\nabla v = \dot{(\log\alpha)}I - \frac{\sigma^2}2\nabla^2\log q`; (B, d, d)."""
        share, scores, precision = self._parts(x, gamma, schedule)
        score = (share[..., None] * scores).sum(1)
        curvature = torch.diag_embed(precision)
        if self.axes is not None:
            axes = self.axes.to(x)
            curvature = axes @ curvature @ axes.mT
        outer = scores[..., :, None] * scores[..., None, :]
        hessian = (share[..., None, None] * (outer - curvature)).sum(1)
        hessian = hessian - score[:, :, None] * score[:, None, :]
        half_variance = like(schedule.sigma(gamma) ** 2 / 2, hessian)
        linear = like(schedule.dlog_alpha(gamma), hessian) * torch.eye(self.dim).to(x)
        return linear - half_variance * hessian

    def divergence(self, x: Tensor, gamma: Tensor, schedule: Schedule) -> Tensor:
        """Trace of :meth:`jacobian` without building it, ``(B,)``."""
        share, scores, precision = self._parts(x, gamma, schedule)
        score = (share[..., None] * scores).sum(1)
        laplacian = (share * (scores**2 - precision).sum(-1)).sum(1) - (score**2).sum(-1)
        return self.dim * schedule.dlog_alpha(gamma) - schedule.sigma(gamma) ** 2 / 2 * laplacian

    def posterior_error(self, x: Tensor, gamma: Tensor, schedule: Schedule) -> Tensor:
        r"""What nobody can remove, :math:`\frac12\mathbb E[\|\epsilon - \hat\epsilon\|^2|x]`.

        By Lemma F.1 it is :math:`d\,\dot{(\log\sigma)} - \nabla\cdot v^*` (math.md: lemma-trace).
        """
        return self.dim * schedule.dlog_sigma(gamma) - self.divergence(x, gamma, schedule)

    def _turn(self, along: Tensor, m: Tensor) -> Tensor:
        """From principal coordinates of component ``m`` to ordinary ones, ``(n, d)``."""
        return along if self.axes is None else (self.axes[m] @ along[..., None])[..., 0]

    def _along(self, x: Tensor, gamma: Tensor, schedule: Schedule) -> tuple[Tensor, Tensor]:
        """Distances along the principal axes, and variances there, both ``(B, M, d)``."""
        alpha, sigma = schedule.alpha(gamma).to(x), schedule.sigma(gamma).to(x)
        alpha, sigma = (c.expand(len(x))[:, None, None] for c in (alpha, sigma))
        away = x[:, None, :] - alpha * self.means.to(x)
        if self.axes is not None:
            away = torch.einsum("mji,bmj->bmi", self.axes.to(x), away)
        return away, (alpha * self.stds.to(x)) ** 2 + sigma**2

    def _log_joint(self, x: Tensor, gamma: Tensor, schedule: Schedule) -> Tensor:
        away, variance = self._along(x, gamma, schedule)
        log_normal = -0.5 * (away**2 / variance + torch.log(2 * math.pi * variance)).sum(-1)
        return self.log_weights.to(x) + log_normal

    def _parts(self, x: Tensor, gamma: Tensor, schedule: Schedule) -> tuple[Tensor, ...]:
        """Shares of the components ``(B, M)``, their scores and precisions ``(B, M, d)``."""
        if x.ndim != 2 or x.shape[1] != self.dim:
            raise InputError(
                f"the oracle has {self.dim} dimensions: x must have shape (B, {self.dim}), "
                f"got {tuple(x.shape)}"
            )
        away, variance = self._along(x, gamma, schedule)
        scores = -away / variance
        if self.axes is not None:
            scores = torch.einsum("mij,bmj->bmi", self.axes.to(x), scores)
        share = torch.softmax(self._log_joint(x, gamma, schedule), dim=1)
        return share, scores, 1 / variance


def mixture(
    weights: Sequence[float] | Tensor,
    means: Sequence[Sequence[float]] | Tensor,
    covariances: Sequence[float] | Tensor,
) -> Mixture:
    """A Gaussian mixture from its weights, means and covariances.

    Args:
        weights: ``(M,)``, positive; scaled to sum to one.
        means: ``(M, d)``.
        covariances: Full ``(M, d, d)``, diagonal ``(M, d)``, or one variance each ``(M,)``.
    """
    w = torch.as_tensor(weights, dtype=torch.float64)
    mu = torch.as_tensor(means, dtype=torch.float64)
    cov = torch.as_tensor(covariances, dtype=torch.float64)
    if mu.ndim != 2 or w.shape != mu.shape[:1] or cov.shape[:1] != w.shape:
        raise InputError(
            f"a mixture needs weights (M,), means (M, d) and covariances (M,), (M, d) or "
            f"(M, d, d), got {tuple(w.shape)}, {tuple(mu.shape)} and {tuple(cov.shape)}"
        )
    if not bool((w > 0).all()):
        raise InputError("the weights of a mixture must be positive: leave out empty components")
    if cov.shape[1:] not in ((), mu.shape[1:], mu.shape[1:] * 2):
        raise InputError(
            f"covariances for means of {mu.shape[1]} dimensions must have shape (M,), (M, d) or "
            f"(M, d, d), got {tuple(cov.shape)}"
        )
    axes = None
    if cov.ndim == 3:
        cov, axes = torch.linalg.eigh(cov)
    # eigh leaves rounding of either sign where a covariance is singular
    if not bool((cov >= -1e-12 * cov.abs().max()).all()):
        raise InputError("the covariances of a mixture must be positive semi-definite")
    stds = cov.clamp_min(0).sqrt()
    stds = stds[:, None].expand_as(mu) if stds.ndim == 1 else stds
    return Mixture((w / w.sum()).log(), mu, stds, axes)


def gaussian(mean: Sequence[float], std: float) -> Mixture:
    """One round Gaussian."""
    return mixture([1.0], [list(mean)], [std**2])


@dataclass(frozen=True)
class Lattice:
    """Integer data with a known probability for each point of the lattice.

    Its points, mapped to the bins' centres, are a mixture of width zero, so the diffusion is
    exact, and the true log-probability of every row is known: what no bound may beat.

    Args:
        pixels: Points ``(M, d)`` of integers in ``0..levels-1``.
        probabilities: Of each point, ``(M,)``, positive and summing to one.
        levels: Number of grey levels.
    """

    pixels: Tensor
    probabilities: Tensor
    levels: int

    def __post_init__(self) -> None:
        inside = self.levels >= 2 and not self.pixels.is_floating_point()
        if not inside or int(self.pixels.min()) < 0 or int(self.pixels.max()) >= self.levels:
            raise InputError(
                f"a lattice needs at least 2 levels and integer points below them, got "
                f"levels {self.levels} and {self.pixels.dtype} points up to {self.pixels.max()}"
            )
        p = self.probabilities
        if p.shape != self.pixels.shape[:1] or not bool((p > 0).all()) or abs(p.sum() - 1) > 1e-6:
            raise InputError(
                f"a lattice needs one positive probability for each of {len(self.pixels)} points, "
                f"summing to 1, got shape {tuple(p.shape)} with sum {float(p.sum()):.6g}"
            )

    @property
    def mixture(self) -> Mixture:
        """The centres of the bins as a mixture of points."""
        centres = (2 * self.pixels.double() + 1) / self.levels - 1
        return mixture(self.probabilities, centres, torch.zeros(len(centres)))

    def ode(self, schedule: Schedule, gamma_min: float, gamma_max: float) -> DiffusionODE:
        """The perfect model of the integers."""
        ode = self.mixture.ode(schedule, gamma_min, gamma_max)
        ode.levels = self.levels
        return ode

    def entropy(self) -> float:
        """Entropy of the data in bits per dimension: the least any code can reach on average."""
        nats = -(self.probabilities * self.probabilities.log()).sum()
        return float(nats) / (self.pixels.shape[1] * math.log(2))

    def sample(self, n: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """``n`` rows of integers ``(n, d)`` and their true log-probabilities ``(n,)``."""
        m = torch.multinomial(self.probabilities, n, replacement=True, generator=generator)
        return self.pixels[m], self.probabilities[m].log()
