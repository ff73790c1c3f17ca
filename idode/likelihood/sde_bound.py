r"""The SDE's variational bound: reconstruction, prior and diffusion (math.md: sde-bound).

.. math:: -\log P \le \mathbb E[-\log p(\text{pixels}|x_{\min})]
   + \mathrm{KL}(q(x_{\max})\,\|\,p(x_{\max}))
   + \frac12\int\mathbb E\|\epsilon - \hat\epsilon\|^2\,\mathrm d\gamma

and the divergence of the code, where noise levels are learned (math.md: learned-path).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from idode import random
from idode.batches import Batch
from idode.diffusion.learned_path import Code
from idode.diffusion.model import DiffusionODE
from idode.diffusion.noise_levels import Designed, NoiseLevelDistribution
from idode.diffusion.objectives import diffuse, first_order
from idode.errors import InputError
from idode.likelihood.dequantization import centres, check_pixels, reconstruction
from idode.numerics import clock_at, double, home_of_float64, nats_to_bits, per_sample

__all__ = ["SDEBound", "SDEBoundEstimator"]

QUANTILES = 64  # by which a distribution is told from others
TERMS = 4  # of an image besides the draws; journals with fewer are of earlier versions


@dataclass(frozen=True)
class SDEBound:
    """The bound and its terms, in bits/dim."""

    mean: float
    standard_error: float  # images and Monte-Carlo draws together
    monte_carlo_error: float  # of the draws alone
    reconstruction: float
    prior: float
    diffusion: float
    per_image: Tensor  # (N,) float64
    nfe: int
    seconds: float  # spent on computing, by all processes together
    code: float = 0.0  # divergence of the code from its prior, where the model has one

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.standard_error:.4f} bits/dim"


@dataclass(frozen=True)
class SDEBoundEstimator:
    r"""Monte-Carlo estimate of the variational bound of the diffusion SDE.

    The prior is that of the ODE, :math:`\mathcal N(0, \sigma_{\max}^2 I)`.

    Args:
        model: Its network as a noise predictor, whatever it predicts.
        draws: Noise levels for each image, even: two independent sets, each stratified over
            the clock; their difference estimates the Monte-Carlo error.
        distribution: Distribution of the noise levels; by default the designed one.
        seed: Seed of noise levels and noise; the draws of an image depend on its index alone.
        dtype: Type of the network's input.
    """

    model: DiffusionODE
    draws: int = 16
    distribution: NoiseLevelDistribution | None = None
    seed: int = 0
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if self.model.levels is None:
            raise InputError("the SDE bound is for integer data; this model has continuous data")
        if self.draws < 2 or self.draws % 2:
            raise InputError(f"draws: must be even and at least 2, got {self.draws}")

    @property
    def levels(self) -> int:
        """Grey levels of the data."""
        assert self.model.levels is not None
        return self.model.levels

    def terms(self, batch: Batch) -> Tensor:
        """Nats ``(4 + draws, B)``: reconstruction twice, prior, all of the diffusion, the code."""
        check_pixels(batch.values, self.levels)
        x0 = centres(batch.values, self.levels, self.dtype)
        diffusion = [self._diffusion(batch, x0, k) for k in range(self.draws)]
        recon = [self._reconstruction(batch, half) for half in (0, 1)]
        code = -self._code(batch, x0, 0).mean_weight
        return torch.stack([*recon, self._prior(batch.values), *diffusion, code]).cpu()

    def bound(self, terms: Sequence[Tensor], dim: int, seconds: float = 0.0) -> SDEBound:
        """The bound from the terms of all batches, and its error."""
        bits = nats_to_bits(torch.cat(list(terms), dim=1), dim)
        recon, prior, diffusion, code = bits[:2], bits[2], bits[3:-1], bits[-1]
        per_image = recon.mean(0) + prior + diffusion.mean(0) + code
        n = per_image.numel()
        halves = [recon[i] + diffusion[i::2].mean(0) for i in (0, 1)]
        drawn = math.sqrt(float(((halves[0] - halves[1]) / 2).square().mean()) / n)
        return SDEBound(
            mean=float(per_image.mean()),
            standard_error=math.sqrt(float(per_image.var()) / n) if n > 1 else drawn,
            monte_carlo_error=drawn,
            reconstruction=float(recon.mean()),
            prior=float(prior.mean()),
            diffusion=float(diffusion.mean()),
            per_image=per_image,
            nfe=self.draws,
            seconds=seconds,
            code=float(code.mean()),
        )

    @torch.no_grad()
    def identity(self) -> dict[str, object]:
        """Plain values that the terms depend on besides the model and the data.

        A distribution of any kind is known by some of its quantiles.
        """
        within = torch.linspace(0, 1, QUANTILES + 2, dtype=torch.float64)[1:-1]
        levels = None if self.distribution is None else self.distribution.quantile(within).tolist()
        return {
            "draws": self.draws,
            "terms": TERMS + self.draws,
            "distribution": levels,
            "seed": self.seed,
            "dtype": str(self.dtype),
        }

    def _prior(self, pixels: Tensor) -> Tensor:
        """KL from the noised data at the end of the clock to the prior, ``(B,)``."""
        end = torch.tensor(self.model.gamma_max, dtype=torch.float64)
        ratio = float(torch.exp(-end / 2))  # alpha over sigma
        return 0.5 * per_sample((ratio * centres(pixels, self.levels, torch.float64)) ** 2)

    def _reconstruction(self, batch: Batch, half: int) -> Tensor:
        """Minus the log-probability of the pixels given one noisy state, ``(B,)``."""
        model, pixels = self.model, batch.values
        eps = random.per_image(
            lambda g: _normal(pixels.shape[1:], g),
            batch.indices,
            seed=self.seed,
            purpose=random.RECONSTRUCTION,
            repeat=half,
        )
        pixels = pixels.to(home_of_float64(pixels.device))
        x0 = centres(pixels, self.levels, torch.float64)
        x = diffuse(x0, eps.to(x0.device), clock_at(model.gamma_min, x0), model.schedule)
        return -reconstruction(x, pixels, model.gamma_min, model.schedule, self.levels)

    @torch.no_grad()
    def _code(self, batch: Batch, x0: Tensor, k: int) -> Code:
        """The code of draw ``k`` of clean data; its divergence is the same for all."""
        numbers = random.uniforms(batch.indices, seed=self.seed, purpose=random.CODE, repeat=k)
        return self.model.path.encode(x0, numbers)

    @torch.no_grad()
    def _diffusion(self, batch: Batch, x0: Tensor, k: int) -> Tensor:
        """The diffusion term from draw ``k`` of each image, in stratum ``k // 2`` of the clock."""
        model, pixels = self.model, batch.values
        levels = self.distribution or Designed(model.schedule, model.gamma_min, model.gamma_max)
        drawn = random.per_image(
            lambda g: torch.cat([random.uniform((1,), g), _normal(pixels.shape[1:], g).flatten()]),
            batch.indices,
            seed=self.seed,
            purpose=random.DIFFUSION,
            repeat=k,
        ).to(home_of_float64(pixels.device))
        at = levels.at((drawn[:, 0] + k // 2) / (self.draws // 2))
        eps = drawn[:, 1:].reshape(pixels.shape).to(pixels.device, self.dtype)
        condition = self._code(batch, x0, k).joined(batch.condition)
        nats = first_order(model, x0, eps, at.gamma, condition=condition)
        return double(nats) / at.density


def _normal(shape: torch.Size, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)
