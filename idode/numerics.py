"""What every formula shares: broadcasting, sums, root finding, precision and threads."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from idode.errors import InputError

__all__ = [
    "autocast_dtype",
    "check_range",
    "clock_at",
    "cpu_threads",
    "double",
    "float32_products",
    "full_precision",
    "home_of_float64",
    "increasing_root",
    "integrate",
    "like",
    "log_mean_exp",
    "moved",
    "nats_to_bits",
    "per_sample",
    "weighted_sum",
]


NO_FLOAT64 = ("mps",)  # kinds of devices, Apple's GPUs


def home_of_float64(device: torch.device) -> torch.device:
    """The device itself, or the host where the device has no float64."""
    return torch.device("cpu") if device.type in NO_FLOAT64 else device


def double(x: Tensor) -> Tensor:
    """``x`` in float64, on the host where its device has none."""
    return x.to(home_of_float64(x.device)).double()


def moved(x: Tensor, device: torch.device | str) -> Tensor:
    """``x`` on a device, in float32 where that has no float64; the host does not wait for CUDA.

    It waits for the others: they read its memory later, when what was temporary may be gone.
    """
    to = torch.device(device)
    if x.dtype == torch.float64 and home_of_float64(to) != to:
        x = x.float()
    return x.to(to, non_blocking=to.type == "cuda")


def clock_at(gamma: float, x: Tensor) -> Tensor:
    """A scalar of the clock for the states ``x``, float64; by a fill, which waits for no copy."""
    return torch.full((), gamma, dtype=torch.float64, device=home_of_float64(x.device))


@contextlib.contextmanager
def float32_products(*, tf32: bool = False) -> Iterator[None]:
    """How products of float32 are computed inside the block, on every device; restored after.

    NVIDIA's GPUs may round their inputs to the 10 bits of TF32, and PyTorch lets their
    convolutions do so by default: noise of 1e-3 in a field makes an ODE rough.

    Args:
        tf32: Whether they may. Else every product is that of float32.
    """
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """What autocast computes in on the device of ``x``, where that is on."""
    kind = x.device.type
    on = kind != "meta" and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if on else None


def full_precision(x: Tensor) -> contextlib.AbstractContextManager[object]:
    """Outside of autocast on the device of ``x``, where that is on."""
    if autocast_dtype(x) is None:
        return contextlib.nullcontext()
    return torch.autocast(x.device.type, enabled=False)


@contextlib.contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """So many threads of PyTorch on the CPU inside the block; ``None`` changes nothing."""
    if count is None:  # setting the same number again would start threads, too
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def like(coefficient: Tensor, x: Tensor) -> Tensor:
    """Reshape a coefficient ``(B,)`` or ``()`` so that it multiplies ``x`` of shape ``(B, *)``.

    One for each dimension, ``(B, *)``, keeps its shape.

    It takes the dtype of ``x`` here and not earlier: coefficients span nine orders of magnitude,
    so they are computed in the precision of the clock.
    """
    coefficient = moved(coefficient.to(x.dtype), x.device)
    return coefficient.reshape(coefficient.shape + (1,) * (x.ndim - coefficient.ndim))


def per_sample(x: Tensor) -> Tensor:
    """Sum of all but the first axis, ``(B, *)`` to ``(B,)``."""
    return x.flatten(1).sum(1)


def weighted_sum(weight: Tensor, x: Tensor) -> Tensor:
    """Sum of ``weight * x`` over all but the first axis, ``(B,)``.

    Args:
        weight: ``()`` or ``(B,)``, one for a whole sample; or ``(B, *)``.
        x: ``(B, *)``.
    """
    if weight.ndim < 2:
        return weight.to(x) * per_sample(x)
    return per_sample(like(weight, x) * x)


def log_mean_exp(log_w: Tensor) -> Tensor:
    r"""Log of the mean weight, :math:`\log \frac1K \sum_k w_k`, ``(K, B)`` to ``(B,)``.

    The mean and not the sum: without :math:`-\log K` a bound would improve with K for free.
    """
    return torch.logsumexp(log_w, dim=0) - math.log(log_w.shape[0])


def nats_to_bits(nats: Tensor, dim: int) -> Tensor:
    """Negative log-likelihood in nats to bits per dimension, any shape."""
    return nats / (dim * math.log(2))


def check_range(gamma_min: float, gamma_max: float) -> None:
    """Refuse an empty or unbounded stretch of the clock."""
    if not (math.isfinite(gamma_min) and math.isfinite(gamma_max)) or gamma_min >= gamma_max:
        raise InputError(
            f"need finite gamma_min < gamma_max, got {gamma_min} and {gamma_max}: "
            "gamma is log(sigma²/alpha²), small where there is little noise"
        )


def increasing_root(
    f: Callable[[Tensor], Tensor],
    df: Callable[[Tensor], Tensor],
    target: Tensor,
    lo: float,
    hi: float,
) -> Tensor:
    """Solve ``f(y) = target`` for an increasing ``f`` on ``[lo, hi]``, element by element.

    Newton inside a shrinking bracket: quadratic where the slope is kind, bisection where it is
    not, so that a slope that fades over ten orders of magnitude costs steps and never the answer.

    Args:
        f: Increasing function, ``(*)`` to ``(*)``.
        df: Its slope.
        target: Values to reach, clamped to the range of ``f``.
        lo: Lower end of the bracket.
        hi: Upper end.

    Returns:
        Roots in the dtype of ``target``.
    """
    below, above = torch.full_like(target, lo), torch.full_like(target, hi)
    y = (below + above) / 2
    step = above - below
    eps, scale = torch.finfo(target.dtype).eps, max(abs(lo), abs(hi), 1.0)
    for _ in range(200):
        miss = f(y) - target
        below, above = torch.where(miss < 0, y, below), torch.where(miss < 0, above, y)
        newton = y - miss / df(y)
        # A comparison with NaN is false, so a vanished slope falls back to bisection by itself.
        inside = (newton > below) & (newton < above)
        last, new = step, torch.where(inside, newton, (below + above) / 2)
        y, step = new, (new - y).abs()
        # Done when steps vanish, or are small and shrink no more: f itself is then all rounding.
        stalled = (step >= last) & (step < eps**0.5 * scale)
        if bool((stalled | (step <= 4 * eps * scale)).all()):
            break
    return y.clamp(lo, hi)


@functools.cache
def _gauss_legendre(order: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(order)
    return nodes, weights


def integrate(
    f: Callable[[Tensor], Tensor], lo: Tensor, hi: Tensor, panels: int = 16, order: int = 16
) -> Tensor:
    """Integral of ``f`` from ``lo`` to ``hi``, element by element, by Gauss-Legendre panels.

    Sixteen panels of sixteen nodes reach float64 rounding for the logistic-shaped weights of
    every schedule on spans of some fifty units of gamma.

    Args:
        f: Smooth function, ``(*)`` to ``(*)``.
        lo: Lower ends ``(*)``.
        hi: Upper ends ``(*)``.
        panels: Equal pieces of each interval.
        order: Nodes in each piece.
    """
    nodes, weights = (
        torch.as_tensor(a, dtype=lo.dtype, device=lo.device) for a in _gauss_legendre(order)
    )
    starts = torch.arange(panels, dtype=lo.dtype, device=lo.device)
    unit = ((starts[:, None] + (nodes + 1) / 2) / panels).reshape(-1)  # (panels * order,)
    span = (hi - lo)[..., None]
    values = f(lo[..., None] + span * unit)
    return (values * weights.repeat(panels)).sum(-1) * span[..., 0] / (2 * panels)
