r"""How wrong the denoiser is at each noise level: what reverse steps are matched to.

A reverse step from :math:`\gamma_t` to :math:`\gamma_s` has the variance
:math:`\tilde\beta(1 + \Delta\lambda)` with :math:`\Delta = \mathrm{SNR}_s - \mathrm{SNR}_t` and
:math:`\lambda` the mean squared error of the estimate of the data. Errors differ between
coefficients and between patches, so there is a :math:`\lambda` for each coefficient in each of a
few classes of patches. The class follows from the estimate itself, which the decoder has as well:
from the energy of a patch, or from its mean, since a dark background is often known exactly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from idode.codec.bases import Basis, patch_sides
from idode.codec.network import Denoiser, check_levels, one_thread, weights_hash
from idode.diffusion.model import DiffusionODE
from idode.errors import InputError
from idode.likelihood.dequantization import centres
from idode.storage import check_regular, parse_json

__all__ = ["FEATURES", "FILE", "Tables", "fit", "pixel_cost", "to_levels"]

Floats = NDArray[np.float64]

FILE = "codec.safetensors"  # in the folder of a run
IMAGES = 2048  # that a fit uses by default
PER_LEVEL = 256  # of them at each noise level, in turn
SPACING = 0.4  # of noise levels
CLASSES = 8
TRIAL_IMAGES, TRIAL_STEP = 128, 0.4  # by which basis and feature are chosen
OCTAVE, LEAST = 8, -26.0  # lambda is stored as 2^(LEAST + n / OCTAVE), n a byte
SPREADS = np.geomspace(0.02, 3.0, 60)  # candidates, in grey levels
PIXEL_REACH = 2.5  # how far above half a grey level of noise pixels may be coded


@dataclass(frozen=True)
class Tables:
    """Errors of the denoiser at ``n`` noise levels; Q classes, K coefficients of a patch."""

    gamma: NDArray[np.float64]  # (n,)
    error: NDArray[np.uint8]  # (n, Q, K), lambda on a logarithmic scale
    edges: NDArray[np.float32]  # (n, Q - 1), of the activity of a patch
    share: NDArray[np.float32]  # (n, Q), of patches in each class
    pixel_spread: NDArray[np.float32]  # (m, Q), of pixels around the estimate, in grey levels
    pixel_nats: NDArray[np.float32]  # (m,), their cost a dimension, at the first m levels
    power: NDArray[np.float32]  # (K,), mean square of clean coefficients
    about: dict[str, Any]  # weights, data and number of images

    def save(self, file: Path) -> None:
        """Write the file whole or not at all."""
        from idode.runs.tensor_file import save_tensors

        names = ("gamma", "error", "edges", "share", "pixel_spread", "pixel_nats", "power")
        tensors = {name: torch.from_numpy(getattr(self, name)) for name in names}
        save_tensors(file, tensors, {"about": json.dumps(self.about)})

    @classmethod
    def load(cls, file: Path) -> Tables:
        """Read what :meth:`save` wrote."""
        try:
            check_regular(file)
            with safe_open(str(file), framework="numpy") as opened:
                about = parse_json(opened.metadata()["about"])
                if not isinstance(about, dict) or not {"side", "feature"} <= about.keys():
                    raise ValueError("it does not say how it was fitted")
                return cls(**{k: opened.get_tensor(k) for k in opened.keys()}, about=about)  # noqa: SIM118
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{file} cannot be read ({error}): delete it to fit it again"
            ) from None

    @property
    def side(self) -> int:
        """Side of a patch in pixels."""
        return int(self.about["side"])

    @property
    def feature(self) -> str:
        """Feature that assigns patches to classes, a name in :data:`FEATURES`."""
        return str(self.about["feature"])

    def log_error(self, gamma: NDArray[np.float64]) -> NDArray[np.float64]:
        r""":math:`\log\lambda` at noise levels ``(m,)``, ``(m, Q, K)``: linear between them."""
        log = (LEAST + self.error.astype(np.float64) / OCTAVE) * math.log(2)
        return _between(self.gamma, log, gamma)

    def at(self, name: str, gamma: NDArray[np.float64]) -> NDArray[np.float64]:
        """Any other table at noise levels ``(m,)``."""
        values = getattr(self, name).astype(np.float64)
        return _between(self.gamma[: len(values)], values, gamma)


def _between(
    x: NDArray[np.float64], y: NDArray[np.float64], at: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Linear interpolation along the first axis of ``y``, constant outside."""
    inside = np.clip(at, x[0], x[-1])
    i = np.clip(np.searchsorted(x, inside, side="right") - 1, 0, len(x) - 2)
    weight = (inside - x[i]) / (x[i + 1] - x[i])
    weight = weight.reshape(-1, *[1] * (y.ndim - 1))
    return (1 - weight) * y[i] + weight * y[i + 1]


def _energy(estimate: Tensor) -> Tensor:
    """Log of the energy of a patch beside its mean ``(B, P)`` from coefficients ``(B, P, K)``."""
    return torch.log(estimate[..., 1:].square().mean(-1) + 1e-9)


def _mean(estimate: Tensor) -> Tensor:
    """The mean of a patch, ``(B, P)``, in units of its coefficient."""
    return estimate[..., 0].contiguous()


FEATURES: dict[str, Callable[[Tensor], Tensor]] = {"energy": _energy, "mean": _mean}


def fit(
    model: DiffusionODE,
    images: NDArray[Any],
    *,
    about: dict[str, Any] | None = None,
    seed: int = 0,
    progress: Callable[[int], None] = lambda count: None,
) -> Tables:
    """Measure the tables on training images ``(N, C, H, W)``.

    Args:
        model: On the CPU.
        images: Integers below the model's number of levels.
        about: What to say about the images.
        seed: Seed of the noise.
        progress: Called with the number of noise levels done.
    """
    levels = check_levels(model)
    _, channels, height, width = images.shape
    images = images[:IMAGES]
    count = math.ceil((model.gamma_max - model.gamma_min) / SPACING) + 1
    gamma = np.linspace(model.gamma_min, model.gamma_max, count)
    rng = np.random.default_rng(seed)
    found: list[dict[str, NDArray[Any]]] = []
    with one_thread():
        side, feature = _best_layout(model, np.array(images[:TRIAL_IMAGES]), levels, rng)
        denoiser = Denoiser(model, (channels, height, width), side)
        for k, level in enumerate(gamma):
            rows = (np.arange(PER_LEVEL) + k * PER_LEVEL) % len(images)
            used = np.array(images[np.unique(rows)])
            with_pixels = level < -2 * math.log(levels) + PIXEL_REACH
            found.append(_level(denoiser, feature, used, float(level), with_pixels, rng))
            progress(1)
        clean = denoiser.basis.to_coefficients(_centres(images, levels))
    stacked = {name: np.stack([f[name] for f in found if name in f]) for name in found[0]}
    said = {
        "images": len(images),
        "side": side,
        "feature": feature,
        "weights": weights_hash(model),
        **(about or {}),
    }
    return Tables(
        gamma=gamma,
        power=clean.square().mean((0, 1)).numpy().astype(np.float32),
        about=said,
        **stacked,
    )


def _centres(images: NDArray[Any], levels: int) -> Tensor:
    return centres(torch.from_numpy(images.astype(np.int32)), levels, torch.float64)


def _best_layout(
    model: DiffusionODE, images: NDArray[Any], levels: int, rng: np.random.Generator
) -> tuple[int, str]:
    """Side of the patches and feature of their classes with the least cost of a few steps."""
    _, channels, height, width = images.shape
    denoiser = Denoiser(model, (channels, height, width), 1)
    costs: dict[tuple[int, str], float] = {}
    for part in (0.2, 0.35, 0.5, 0.65):
        gamma = model.gamma_min + part * (model.gamma_max - model.gamma_min)
        clean, guess = _noised(denoiser, images, gamma, levels, rng)
        clean = denoiser.basis.to_pixels(clean)
        gained = math.exp(TRIAL_STEP - gamma) - math.exp(-gamma)
        for side in patch_sides(height, width):
            basis = Basis((channels, height, width), side)
            estimate = basis.to_coefficients(guess)
            squares = (estimate - basis.to_coefficients(clean)).square()
            for name in FEATURES if basis.size > 1 else ("mean",):
                _, group = _classes(FEATURES[name](estimate))
                each = [
                    torch.log1p(gained * squares[group == q].mean(0)).sum() * (group == q).sum()
                    for q in range(CLASSES)
                    if (group == q).any()
                ]
                cost = float(torch.stack(each).sum())
                costs[side, name] = costs.get((side, name), 0.0) + cost
    return min(costs, key=lambda key: costs[key])


def _noised(
    denoiser: Denoiser, images: NDArray[Any], gamma: float, levels: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Clean coefficients, and the estimate of the data from a noisy version of them."""
    schedule, clock = denoiser.model.schedule, torch.tensor(gamma, dtype=torch.float64)
    clean = denoiser.basis.to_coefficients(_centres(images, levels))
    noise = torch.from_numpy(rng.standard_normal(tuple(clean.shape)))
    state = schedule.alpha(clock) * clean + schedule.sigma(clock) * noise
    return clean, denoiser.pixels(state, gamma)


def _classes(values: Tensor) -> tuple[NDArray[np.float64], Tensor]:
    """Edges of classes of equal size, and the class of each value ``(B, P)``."""
    edges = np.quantile(values.numpy(), np.arange(1, CLASSES) / CLASSES)
    return edges, torch.bucketize(values, torch.from_numpy(edges))


def _level(
    denoiser: Denoiser,
    feature: str,
    images: NDArray[Any],
    gamma: float,
    with_pixels: bool,
    rng: np.random.Generator,
) -> dict[str, NDArray[Any]]:
    """Rows of the tables at one noise level."""
    basis, levels = denoiser.basis, check_levels(denoiser.model)
    clean, guess = _noised(denoiser, images, gamma, levels, rng)
    estimate = basis.to_coefficients(guess)
    edges, group = _classes(FEATURES[feature](estimate))
    squares = (estimate - clean).square()
    error = np.empty((CLASSES, basis.size), dtype=np.uint8)
    share = np.empty(CLASSES, dtype=np.float32)
    overall = squares.mean((0, 1))
    for q in range(CLASSES):
        inside = squares[group == q]
        share[q] = len(inside) / group.numel()
        # A few of the overall mean keep a class with hardly any patches sensible.
        mean = (inside.sum(0) + 4 * overall) / (len(inside) + 4)
        steps = np.round((np.log2(mean.numpy() + 1e-30) - LEAST) * OCTAVE)
        error[q] = np.clip(steps, 0, 255).astype(np.uint8)
    row: dict[str, NDArray[Any]] = {
        "error": error, "edges": edges.astype(np.float32), "share": share
    }  # fmt: skip
    if with_pixels:
        side = basis.side
        of_pixel = group.reshape(len(images), images.shape[2] // side, images.shape[3] // side)
        of_pixel = of_pixel.repeat_interleave(side, 1).repeat_interleave(side, 2)
        deviation = torch.from_numpy(images.astype(np.float64)) - to_levels(guess, levels)
        row |= _pixels(deviation.numpy(), images, of_pixel.numpy(), levels)
    return row


def to_levels(x: Tensor, levels: int) -> Tensor:
    """Data in [-1, 1] in units of grey levels, so that level k is k."""
    return (x + 1) * (levels / 2) - 0.5


def _pixels(
    deviation: NDArray[np.float64],
    images: NDArray[Any],
    group: NDArray[np.int64],
    levels: int,
) -> dict[str, NDArray[Any]]:
    """The best scale of a discretised Gaussian for each class, and the cost of all pixels."""
    spread = np.full(CLASSES, 1.0, dtype=np.float32)
    total = 0.0
    for q in range(CLASSES):
        inside = np.broadcast_to(group[:, None] == q, deviation.shape)
        d, k = deviation[inside], images[inside]
        if not len(d):
            continue
        costs = [float(pixel_cost(d, k, s, levels).mean()) for s in SPREADS]
        spread[q] = SPREADS[int(np.argmin(costs))]
        total += min(costs) * len(d)
    return {"pixel_spread": spread, "pixel_nats": np.array(total / deviation.size, np.float32)}


def pixel_cost(
    d: NDArray[np.float64], k: NDArray[Any], spread: Floats | float, levels: int
) -> NDArray[np.float64]:
    """Nats of pixels ``k`` that deviate by ``d``; the outermost levels take the tails."""
    high = torch.from_numpy(np.where(k == levels - 1, np.inf, (d + 0.5) / spread))
    low = torch.from_numpy(np.where(k == 0, -np.inf, (d - 0.5) / spread))
    mass = torch.special.ndtr(high) - torch.special.ndtr(low)
    nats: Floats = -np.log(np.maximum(mass.numpy(), 2.0**-24))
    return nats
