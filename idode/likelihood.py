r"""Bits per dimension, with an error bar.

The pilot, the first few images, is solved several times: to find a step grid, to learn what the
grid misses, and to tell the noise of dequantization from that of the probes. Then every image is
solved once for each draw.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from idode.calibration import Calibration, calibrate
from idode.density import ode_field, prior_log_prob
from idode.errors import InputError, NumericalError
from idode.model import DiffusionODE
from idode.numerics import log_mean_exp, nats_to_bits
from idode.ode import Dopri5, Solver
from idode.weights import Settings, Task, dequantization_for

__all__ = ["BitsPerDim", "Errors", "Settings", "bits_per_dim"]

Pixels = Tensor | npt.NDArray[np.generic]


@dataclass(frozen=True)
class Errors:
    """Standard error of the mean in bits/dim, by source; the solver's is a likely bias."""

    images: float  # other test images of the same kind
    dequantization: float  # other draws of the noise
    probe: float  # other probes
    solver: float  # mean over the pilot against twice the steps, signed


@dataclass(frozen=True)
class BitsPerDim:
    """A likelihood, what it cost and how far it can be trusted."""

    mean: float
    standard_error: float  # images, dequantization and probes together
    errors: Errors
    per_image: Tensor  # (N,) float64
    solver_error: Tensor  # (N,) likely size of the solver's error of each image
    nfe: float  # mean number of evaluations for one solve of one image
    seconds: float
    complete: bool  # False when interrupted: per_image holds the images that were done
    notes: tuple[str, ...]
    settings: Settings

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.standard_error:.4f} bits/dim"


def bits_per_dim(
    model: DiffusionODE,
    pixels: Pixels,
    settings: Settings | None = None,
    *,
    first_index: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    progress: Callable[[int], None] | None = None,
) -> BitsPerDim:
    """Upper bound on the bits a dimension of ``pixels`` costs under the model.

    Args:
        model: The diffusion ODE.
        pixels: Integers in ``0..levels-1`` ``(N, *)``, or floats for continuous data.
        settings: How, for example ``Settings(importance=5)``.
        first_index: Place of the first image in its data set: it seeds the image's noise.
        dtype: Of states and network; log-densities are float64 always.
        device: Where the network is; by default where ``pixels`` are.
        progress: Called with the number of images just done.

    Returns:
        Mean, per-image values, and their errors by source. ``Ctrl-C`` returns what is done.
    """
    began = time.perf_counter()
    settings = settings or Settings()
    if len(pixels) == 0:
        raise InputError("there are no images to evaluate: pass at least one")
    task = Task(model, settings, dequantization_for(model, settings), dtype)

    def part(lo: int, hi: int) -> tuple[Tensor, list[int]]:
        chunk = pixels[lo:hi]
        # A copy: slices of a memory map are read-only, which torch does not allow.
        chunk = chunk if isinstance(chunk, Tensor) else torch.from_numpy(np.array(chunk))
        return chunk.to(device or chunk.device), list(range(first_index + lo, first_index + hi))

    pilot, indices = part(0, min(16, len(pixels)))
    with _naming(indices):
        tuned = _tune(task, pilot, indices)
    values: list[Tensor] = []
    evaluations, complete = 0.0, True
    try:
        for lo in range(0, len(pixels), settings.batch_size):
            chunk, indices = part(lo, lo + settings.batch_size)
            batch, nfe = _evaluate(task, chunk, indices[: len(chunk)], tuned)
            values.append(batch)
            evaluations += nfe * len(chunk)
            if progress is not None:
                progress(len(chunk))
    except KeyboardInterrupt:
        if not values:
            raise
        complete = False
    return _result(task, torch.cat(values, dim=1), tuned, evaluations, began, complete)


@contextlib.contextmanager
def _naming(indices: list[int]) -> Iterator[None]:
    """Say which image a failed solve was about."""
    try:
        yield
    except NumericalError as error:
        image = indices[error.sample]
        raise NumericalError(f"image {image}: {error}", sample=error.sample) from error


@dataclass(frozen=True)
class _Tuned:
    dim: int
    solver: Solver
    calibration: Calibration | None
    variance_noise: float  # of log p over draws of the noise, bits/dim squared, one draw
    variance_probe: float  # over probes, one probe


def _tune(task: Task, pixels: Tensor, indices: list[int]) -> _Tuned:
    """Calibrate the solver on the first images, and measure the two sources of randomness."""
    s, model, dim = task.settings, task.model, pixels[0].numel()
    count = 0 if s.probes == 0 else max(4, s.probes)
    x, weight = task.state(pixels, indices, 0)
    probes = task.probes(x, indices, 0, count)
    calibration: Calibration | None = None
    solver: Solver = Dopri5(s.tolerance, s.tolerance)
    if s.solver == "adams":
        calibration = calibrate(
            ode_field(model, None if probes is None else probes[: s.probes]),
            x,
            task.bridge.gamma,
            model.gamma_max,
            lambda z, integral: -nats_to_bits(prior_log_prob(model, z) + integral, dim),
            s.tolerance,
        )
        solver = calibration.solver
    limit = calibration.most_roughness if calibration else math.inf
    first = nats_to_bits(task.solve(x, probes, solver, limit).per_probe + weight, dim)
    y, weight = task.state(pixels, indices, 1)
    second = nats_to_bits(task.solve(y, probes, solver, limit).per_probe + weight, dim)
    probe_variance = float(first.var(0).mean()) if count else 0.0
    # The same probes in both draws: their difference holds the noise of dequantization twice,
    # and of the probe only what does not cancel.
    noise_variance = float((first.mean(0) - second.mean(0)).square().mean() / 2)
    return _Tuned(dim, solver, calibration, noise_variance, probe_variance)


def _evaluate(
    task: Task, pixels: Tensor, indices: list[int], tuned: _Tuned
) -> tuple[Tensor, float]:
    """Bits/dim ``(3, B)``: the value, its variance over draws, and its solver error; and NFE."""
    s, dim = task.settings, pixels[0].numel()
    limit = tuned.calibration.most_roughness if tuned.calibration else math.inf
    outer, spread, roughness, nfe = [], [], [], []
    for repeat in range(s.repeats):
        log_w = []
        for k in range(s.importance):
            draw = repeat * s.importance + k
            x, weight = task.state(pixels, indices, draw)
            # An image keeps its probe over the K draws of one repeat, see Settings.fresh_probes.
            probes = task.probes(x, indices, draw if s.fresh_probes else repeat, s.probes)
            with _naming(indices):
                found = task.solve(x, probes, tuned.solver, limit)
            log_w.append(found.log_p + weight)
            roughness.append(found.roughness)
            nfe.append(found.nfe)
        stacked = torch.stack(log_w)
        outer.append(-nats_to_bits(log_mean_exp(stacked), dim))
        share = torch.softmax(stacked, dim=0)
        relative = (share - 1 / s.importance).square().sum(0) * s.importance
        spread.append(relative / max(1, s.importance - 1) / (dim * math.log(2)) ** 2)
    scale = tuned.calibration.error_per_roughness if tuned.calibration else math.nan
    value = torch.stack(outer).mean(0)
    if s.importance == 1:
        variance = torch.full_like(value, tuned.variance_noise / s.repeats)
    else:
        variance = torch.stack(spread).mean(0) / s.repeats
    missed = scale * torch.stack(roughness).mean(0)
    return torch.stack([value, variance, missed]).cpu(), sum(nfe) / len(nfe)


def _result(
    task: Task, values: Tensor, tuned: _Tuned, evaluations: float, began: float, complete: bool
) -> BitsPerDim:
    s = task.settings
    per_image, variance, solver_error = values
    n = per_image.numel()
    noise = float(variance.mean()) / n
    redrawn = s.repeats * (s.importance if s.fresh_probes else 1)
    probe = tuned.variance_probe / max(1, s.probes) / redrawn / n
    own = noise + probe
    total = float(per_image.var()) / n if n > 1 else own
    notes = []
    if s.fresh_probes and s.importance > 1 and s.probes:
        gain = tuned.variance_probe / s.probes / 2 * tuned.dim * math.log(2)
        notes.append(
            "fresh probes make each of the K log-densities noisy inside the logarithm: the value "
            f"may be too good by up to {gain:.4f} bits/dim and is not a bound"
        )
    if not complete:
        notes.append(f"interrupted after {n} images")
    return BitsPerDim(
        mean=float(per_image.mean()),
        standard_error=math.sqrt(total),
        errors=Errors(
            images=math.sqrt(max(0.0, total - own)),
            dequantization=math.sqrt(noise),
            probe=math.sqrt(probe),
            solver=tuned.calibration.mean_error if tuned.calibration else math.nan,
        ),
        per_image=per_image,
        solver_error=solver_error,
        nfe=evaluations / n,
        seconds=time.perf_counter() - began,
        complete=complete,
        notes=tuple(notes),
        settings=s,
    )
