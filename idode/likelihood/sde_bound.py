r"""The SDE's variational bound: reconstruction, prior and diffusion (math.md: sde-bound).

.. math:: -\log P \le \mathbb E[-\log p(\text{pixels}|x_{\min})]
   + \mathrm{KL}(q(x_{\max})\,\|\,p(x_{\max}))
   + \frac12\int\mathbb E\|\epsilon - \hat\epsilon\|^2\,\mathrm d\gamma
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from idode import random
from idode.batches import IndexedBatches, Pixels
from idode.diffusion.model import DiffusionODE
from idode.diffusion.noise_levels import Designed, NoiseLevelDistribution
from idode.diffusion.objectives import diffuse, first_order
from idode.errors import InputError
from idode.evaluation.runner import Ledger, Record, digest
from idode.likelihood.dequantization import centres, check_pixels, reconstruction
from idode.numerics import nats_to_bits, per_sample

__all__ = ["SDEBound", "sde_bound"]

QUANTILES = 64  # by which a density is told from others


@dataclass(frozen=True)
class SDEBound:
    """The bound and its three terms, in bits/dim."""

    mean: float
    standard_error: float  # images and Monte-Carlo draws together
    monte_carlo_error: float  # of the draws alone
    reconstruction: float
    prior: float
    diffusion: float
    per_image: Tensor  # (N,) float64
    nfe: int
    seconds: float  # spent on computing, by all processes together


def sde_bound(
    model: DiffusionODE,
    pixels: Pixels,
    *,
    draws: int = 8,
    density: NoiseLevelDistribution | None = None,
    standard_prior: bool = False,
    seed: int = 0,
    first_index: int = 0,
    batch_size: int = 128,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    progress: Callable[[int], None] | None = None,
    ledger: Ledger | None = None,
) -> SDEBound:
    """Monte-Carlo estimate of the variational bound of the diffusion SDE.

    Args:
        model: Its network as a noise predictor, whatever it predicts.
        pixels: Integers in ``0..levels-1`` ``(N, *)``, a tensor or an array.
        draws: Noise levels for each image, even: two independent sets, each stratified over
            the clock; their difference tells the Monte-Carlo error.
        density: Of the noise levels; by default the designed one.
        standard_prior: Use N(0, I) as VDM does, in place of the ODE's N(0, sigma² I). It costs
            0.0085 bits/dim for SP at gamma_max = 5.
        seed: Of times and noise; an image's draws depend on its index, not on its batch.
        first_index: Place of the first image in its data set.
        batch_size: Images evaluated together.
        dtype: Of the network's input.
        device: Where the network is; by default where ``pixels`` are.
        progress: Called with the number of images just done.
        ledger: Knows batches that are done already, see :mod:`idode.evaluation.runner`.
    """
    if model.levels is None:
        raise InputError("the SDE bound is for integer data; this model has continuous data")
    if draws < 2 or draws % 2 or len(pixels) == 0:
        raise InputError(
            f"need an even number of draws and at least one image, got {draws} and {len(pixels)}"
        )
    levels, rows = model.levels, IndexedBatches(pixels, batch_size, first_index, device)
    times = density or Designed(model.schedule, model.gamma_min, model.gamma_max)

    def terms(number: int) -> Record:
        chunk, indices = rows.part(number)
        check_pixels(chunk, levels)
        diffusion = [
            _diffusion(model, chunk, indices, k, draws, times, seed, dtype) for k in range(draws)
        ]
        recon = [_reconstruction(model, chunk, indices, half, seed) for half in (0, 1)]
        found = torch.stack([*recon, _prior(model, chunk, standard_prior), *diffusion])
        return {"terms": found.tolist()}

    given = {
        "draws": draws,
        "density": None if density is None else _plain(density),
        "standard_prior": standard_prior,
        "seed": seed,
        "first_index": first_index,
        "batch_size": batch_size,
        "dtype": str(dtype),
    }
    ledger = ledger or Ledger()
    done = ledger.each("SDE bound", rows.sizes, terms, progress, digest(given))
    if not done.complete:
        raise KeyboardInterrupt
    found = [torch.tensor(record["terms"], dtype=torch.float64) for record in done.records]
    seconds = sum(record["seconds"] for record in done.records)
    return _result(
        nats_to_bits(torch.cat(found, dim=1), math.prod(pixels.shape[1:])), draws, seconds
    )


@torch.no_grad()
def _plain(density: NoiseLevelDistribution) -> list[float]:
    """Some of its quantiles: a density of any kind is known by what it draws."""
    within = torch.linspace(0, 1, QUANTILES + 2, dtype=torch.float64)[1:-1]
    return [float(gamma) for gamma in density.quantile(within)]


def _prior(model: DiffusionODE, pixels: Tensor, standard: bool) -> Tensor:
    """KL from the noised data at the end of the clock to the prior, ``(B,)``."""
    assert model.levels is not None
    end = torch.tensor(model.gamma_max, dtype=torch.float64)
    log_sigma = 0.0 if standard else float(model.schedule.log_sigma(end))
    x0 = centres(pixels, model.levels, torch.float64)
    log_ratio = float(model.schedule.log_sigma(end)) - log_sigma  # own over prior's scale
    mean = float(model.schedule.alpha(end)) * math.exp(-log_sigma) * x0
    return 0.5 * per_sample(mean**2 + math.exp(2 * log_ratio) - 1 - 2 * log_ratio)


def _normal(shape: torch.Size, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _reconstruction(
    model: DiffusionODE, pixels: Tensor, indices: list[int], half: int, seed: int
) -> Tensor:
    """Minus the log-probability of the pixels given one noisy state, ``(B,)``."""
    assert model.levels is not None
    eps = random.per_image(
        lambda g: _normal(pixels.shape[1:], g),
        indices,
        seed=seed,
        purpose=random.RECONSTRUCTION,
        repeat=half,
    ).to(pixels.device)
    start = torch.tensor(model.gamma_min, dtype=torch.float64, device=pixels.device)
    x = diffuse(centres(pixels, model.levels, torch.float64), eps, start, model.schedule)
    return -reconstruction(x, pixels, model.gamma_min, model.schedule, model.levels)


@torch.no_grad()
def _diffusion(
    model: DiffusionODE,
    pixels: Tensor,
    indices: list[int],
    k: int,
    draws: int,
    times: NoiseLevelDistribution,
    seed: int,
    dtype: torch.dtype,
) -> Tensor:
    """The diffusion term from draw ``k`` of each image, in stratum ``k // 2`` of the clock."""
    assert model.levels is not None
    drawn = random.per_image(
        lambda g: torch.cat([random.uniform((1,), g), _normal(pixels.shape[1:], g).flatten()]),
        indices,
        seed=seed,
        purpose=random.DIFFUSION,
        repeat=k,
    ).to(pixels.device)
    at = times.at((drawn[:, 0] + k // 2) / (draws // 2))
    eps = drawn[:, 1:].reshape(pixels.shape).to(dtype)
    x0 = centres(pixels, model.levels, dtype)
    return first_order(model, x0, eps, at.gamma).double() / at.density


def _result(terms: Tensor, draws: int, seconds: float) -> SDEBound:
    recon, prior, diffusion = terms[:2], terms[2], terms[3:]
    per_image = recon.mean(0) + prior + diffusion.mean(0)
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
        nfe=draws,
        seconds=seconds,
    )
