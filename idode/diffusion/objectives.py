r"""What training minimises: first-order matching and the error-bounded trace objective.

All functions are pure: data, noise, times and probes come in, per-sample terms in nats go out.
Divide by the density the times were drawn from to estimate the integral over the clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from idode.diffusion.learned_path import PathPoint
from idode.diffusion.model import Condition, DiffusionODE
from idode.diffusion.predictors import NOISE, VELOCITY, convert, target
from idode.diffusion.schedules import Schedule
from idode.errors import InputError
from idode.numerics import like, per_sample, weighted_sum
from idode.ode.divergence import hutchinson, products

__all__ = [
    "Losses",
    "diffuse",
    "first_order",
    "second_order",
    "second_order_score",
    "squared_errors",
]

FIRST = "train it with objective.order=1"

Weight = Callable[[Tensor], Tensor]


def diffuse(x0: Tensor, eps: Tensor, gamma: Tensor, schedule: Schedule) -> Tensor:
    r""":math:`x = \alpha x_0 + \sigma\epsilon`, ``(B, *)`` (math.md: forward)."""
    return like(schedule.alpha(gamma), x0) * x0 + like(schedule.sigma(gamma), x0) * eps


def squared_errors(
    model: DiffusionODE, x0: Tensor, eps: Tensor, gamma: Tensor, condition: Condition
) -> tuple[PathPoint, Tensor]:
    """Noise levels, and the squared errors ``(B, *)`` of the model's own predictor there."""
    model.check_gaussian_path()
    schedule, predictor = model.schedule, model.predictor
    point = model.point(x0, gamma, condition)
    state = diffuse(x0, eps, point.level, schedule)
    said = model.predict_at(point, state, predictor, condition)
    return point, (said - target(x0, eps, point.level, schedule, predictor)) ** 2


def first_order(
    model: DiffusionODE,
    x0: Tensor,
    eps: Tensor,
    gamma: Tensor,
    weight: Weight | None = None,
    condition: Condition | None = None,
) -> Tensor:
    r"""Matching loss of the model's own predictor, ``(B,)`` (math.md: matching).

    With the likelihood weighting (the default) it equals :math:`\frac12\|\epsilon -
    \hat\epsilon\|^2` whatever the network predicts, and its integral over gamma is the
    diffusion term of the variational bound. Where each dimension has a noise level of its own,
    it is :math:`\frac12\sum_i\gamma_i'(\epsilon_i - \hat\epsilon_i)^2`.

    Args:
        model: Network, predictor and schedule.
        x0: Clean data ``(B, *)``.
        eps: Standard normal noise ``(B, *)``.
        gamma: Noise levels ``(B,)``.
        weight: Of the squared error at ``gamma``; ``None`` is the likelihood's.
        condition: Keyword arguments of the network, such as labels or augmentation flags.
    """
    point, square = squared_errors(model, x0, eps, gamma, condition or {})
    if weight is None:
        w = model.predictor.likelihood_weight(model.schedule, point.level)
    else:
        w = weight(point.level)
    return weighted_sum(point.per_clock(w), square)


@dataclass(frozen=True)
class Losses:
    """Per-sample terms of the fine-tuning objective."""

    first: Tensor  # (B,) nats
    second: Tensor  # (B,) nats

    def total(self, ratio: float) -> Tensor:
        r""":math:`J_1 + \lambda J_2`; the paper takes :math:`\lambda = 0.1`."""
        return self.first + ratio * self.second


def second_order(
    model: DiffusionODE,
    x0: Tensor,
    eps: Tensor,
    gamma: Tensor,
    probes: Tensor,
    unbiased: bool = False,
    condition: Condition | None = None,
) -> Losses:
    r"""First-order loss and the trace objective (math.md: trace-objective).

    .. math:: J_2 = \frac2d\Big(\nabla\cdot v - d\,\dot{(\log\sigma)} + \mathrm{sg}[J_1]\Big)^2

    At the optimum the bracket has mean zero for every state. Its square is estimated from noisy
    traces: the square of their mean is too large by the variance of that mean; ``unbiased``
    takes the mean product of two different probes instead, which may be negative for a sample.

    Args:
        model: Network, predictor and schedule.
        x0: Clean data ``(B, *)``.
        eps: Standard normal noise ``(B, *)``.
        gamma: Noise levels ``(B,)``.
        probes: Hutchinson probes ``(n, B, *)``.
        unbiased: Needs at least two probes.
        condition: Keyword arguments of the network, such as labels or augmentation flags.
    """
    n = len(probes)
    if unbiased and n < 2:
        raise InputError(
            f"the unbiased square needs at least 2 independent probes, got {n}: draw more, "
            "or leave unbiased off"
        )
    model.path.check_one_level("second-order flow matching", FIRST)
    schedule, dim = model.schedule, x0[0].numel()
    xt = diffuse(x0, eps, gamma, schedule)
    v, div = hutchinson(lambda x: model.velocity(x, gamma, **(condition or {})), xt, probes)
    eps_hat = convert(v, xt, gamma, schedule, VELOCITY, NOISE)
    first = per_sample((eps - eps_hat) ** 2) / 2
    # The first-order error stands for a posterior variance here; were its gradient kept, the
    # network could lower the sum by making that error worse.
    offset = dim * schedule.dlog_sigma(gamma).to(first) - first.detach()
    miss = div - offset  # (n, B)
    if unbiased:
        square = (miss.sum(0) ** 2 - (miss**2).sum(0)) / (n * (n - 1))
    else:
        square = miss.mean(0) ** 2
    return Losses(first, 2 / dim * square)


def second_order_score(
    model: DiffusionODE,
    x0: Tensor,
    eps: Tensor,
    gamma: Tensor,
    probes: Tensor,
    condition: Condition | None = None,
) -> Losses:
    r"""First-order loss and second-order denoising score matching (math.md: score-hessian).

    .. math:: J_2 = \frac1{2d}\Big(\|\sigma^2\nabla s\,p + p - (\ell\cdot p)\ell\|^2
              + \big(\sigma^2p^\top\nabla s\,p + \|p\|^2 - (\ell\cdot p)^2\big)^2\Big),
              \qquad \ell = \mathrm{sg}[\epsilon - \hat\epsilon]

    Lu et al. 2022: the whole Hessian of the log-density and its trace, each through a probe
    :math:`p`. It takes :math:`(\nabla s)^\top p`; the Hessian it is to match is symmetric.

    Args:
        model: Network, predictor and schedule.
        x0: Clean data ``(B, *)``.
        eps: Standard normal noise ``(B, *)``.
        gamma: Noise levels ``(B,)``.
        probes: ``(n, B, *)``; the loss is the mean over them.
        condition: Keyword arguments of the network, such as labels or augmentation flags.
    """
    model.path.check_one_level("second-order score matching", FIRST)
    schedule, dim = model.schedule, x0[0].numel()
    xt = diffuse(x0, eps, gamma, schedule)
    eps_hat, slopes = products(lambda x: model.noise(x, gamma, **(condition or {})), xt, probes)
    first = per_sample((eps - eps_hat) ** 2) / 2
    miss = (eps - eps_hat).detach()  # its gradient would reward a worse first order
    curved = -like(schedule.sigma(gamma), xt) * slopes + probes  # sigma² Hessian p + p
    along = (miss * probes).flatten(2).sum(2)  # (n, B)
    whole = (curved - along.reshape(*along.shape, *(1,) * (miss.ndim - 1)) * miss) ** 2
    trace = (probes * curved).flatten(2).sum(2) - along**2
    return Losses(first, (whole.flatten(2).sum(2) + trace**2).mean(0) / (2 * dim))
