r"""Bits per dimension, with an error bar.

A pilot tunes the solver; then every image is solved once for each draw of its noise, and the
log-weights of the draws become bounds: their mean, or the logarithm of the mean of K weights.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from idode.calibration import MOST_STEPS
from idode.errors import InputError, NumericalError
from idode.model import DiffusionODE
from idode.numerics import log_mean_exp, nats_to_bits
from idode.pilot import PILOT, Pilot, tune
from idode.weights import Settings, Task, dequantization_for

__all__ = ["BitsPerDim", "Errors", "Settings", "bits_per_dim", "bounds"]

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
    seconds: float  # of the whole evaluation, shared by the bounds made from it
    complete: bool  # False when interrupted: per_image holds the images that were done
    notes: tuple[str, ...]
    settings: Settings
    groups: int  # independent bounds averaged for an image: all its draws over K
    pilot: Pilot  # solver and variances; pass it on to compare images solved at another time

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
    pilot: Pilot | None = None,
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
        pilot: That of an earlier result, to solve more images of the same kind on the same grid;
            by default the first images of ``pixels`` are one.

    Returns:
        Mean, per-image values, and their errors by source. ``Ctrl-C`` returns what is done.
    """
    settings = settings or Settings()
    (result,) = bounds(
        model,
        pixels,
        [settings.importance],
        settings,
        first_index=first_index,
        dtype=dtype,
        device=device,
        progress=progress,
        pilot=pilot,
    )
    return result


def bounds(
    model: DiffusionODE,
    pixels: Pixels,
    importances: Sequence[int],
    settings: Settings | None = None,
    *,
    first_index: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    progress: Callable[[int], None] | None = None,
    pilot: Pilot | None = None,
) -> list[BitsPerDim]:
    """Bounds for several K from the same draws, which makes them comparable and cheap.

    The largest K decides the number of draws; a smaller one averages over groups of them.

    Args:
        model: As for :func:`bits_per_dim`, and so are the arguments not named here.
        pixels: Data ``(N, *)``.
        importances: The values of K; each must divide the largest.
        settings: How; its ``importance`` is not used.
        first_index: Place of the first image in its data set.
        dtype: Of states and network.
        device: Where the network is.
        progress: Called with the number of images just done.
        pilot: That of an earlier result.
    """
    began = time.perf_counter()
    most = max(importances)
    if any(k < 1 or most % k for k in importances):
        raise InputError(f"each K must divide the largest, got {list(importances)}")
    settings = dataclasses.replace(settings or Settings(), importance=most)
    if len(pixels) == 0:
        raise InputError("there are no images to evaluate: pass at least one")
    task = Task(model, settings, dequantization_for(model, settings), dtype)

    def part(lo: int, hi: int) -> tuple[Tensor, list[int]]:
        chunk = pixels[lo:hi]
        # A copy: slices of a memory map are read-only, which torch does not allow.
        chunk = chunk if isinstance(chunk, Tensor) else torch.from_numpy(np.array(chunk))
        indices = list(range(first_index + lo, first_index + lo + len(chunk)))
        return chunk.to(device or chunk.device), indices

    chunk, indices = part(0, PILOT)
    with _naming(indices):
        pilot = pilot or tune(task, chunk, indices)
    done: list[_Draws] = []
    complete = True
    try:
        for lo in range(0, len(pixels), settings.batch_size):
            chunk, indices = part(lo, lo + settings.batch_size)
            with _naming(indices):
                done.append(_draw(task, chunk, indices, pilot))
            if progress is not None:
                progress(len(chunk))
    except KeyboardInterrupt:
        if not done:
            raise
        complete = False
    dim = math.prod(chunk.shape[1:])
    draws = _Draws(
        torch.cat([d.log_w for d in done], dim=1),
        torch.cat([d.roughness for d in done]),
        sum(d.nfe * len(d.roughness) for d in done) / sum(len(d.roughness) for d in done),
    )
    seconds = time.perf_counter() - began
    return [_result(task, draws, k, pilot, dim, seconds, complete) for k in importances]


@contextlib.contextmanager
def _naming(indices: list[int]) -> Iterator[None]:
    """Say which image a failed solve was about."""
    try:
        yield
    except NumericalError as error:
        some = f"one of the images {indices[0]} to {indices[-1]}"
        image = some if error.sample is None else f"image {indices[error.sample]}"
        raise NumericalError(f"{image}: {error}", sample=error.sample) from error


@dataclass(frozen=True)
class _Draws:
    """All draws of some images."""

    log_w: Tensor  # (repeats * K, B) nats
    roughness: Tensor  # (B,)
    nfe: float


def _draw(task: Task, pixels: Tensor, indices: list[int], pilot: Pilot) -> _Draws:
    """Solve every draw of a batch, one after the other, so that memory does not see K."""
    s = task.settings
    log_w, roughness, nfe = [], [], []
    for draw in range(s.repeats * s.importance):
        x, weight = task.state(pixels, indices, draw)
        # An image keeps its probe over the K draws of one repeat, see Settings.fresh_probes.
        number = draw if s.fresh_probes else draw // s.importance
        probes = task.probes(x, indices, number, s.probes)
        found = task.solve(x, probes, pilot.solver, pilot.most_roughness)
        log_w.append((found.log_p + weight).cpu())
        roughness.append(found.roughness.cpu())
        nfe.append(found.nfe)
    return _Draws(torch.stack(log_w), torch.stack(roughness).mean(0), sum(nfe) / len(nfe))


def _noise_variance(log_w: Tensor, pilot: Pilot, dim: int, fresh: float) -> Tensor:
    """Variance over draws of the mean of the groups' bounds, ``(B,)``; groups ``(G, K, B)``.

    ``fresh`` is the share of a probe's variance that a new draw brings along.
    """
    groups, k, _ = log_w.shape
    if k == 1 and groups == 1:
        return torch.full(log_w.shape[2:], pilot.noise_variance, dtype=torch.float64)
    if k == 1:
        spread = nats_to_bits(log_w[:, 0], dim).var(0)
        return (spread - fresh * pilot.probe_variance).clamp_min(0) / groups
    # The delta method for the logarithm of a mean of K weights.
    share = torch.softmax(log_w, dim=1)
    relative = (share - 1 / k).square().sum(1) * k / (k - 1)
    return relative.mean(0) / groups / (dim * math.log(2)) ** 2


def _result(
    task: Task, draws: _Draws, k: int, pilot: Pilot, dim: int, seconds: float, complete: bool
) -> BitsPerDim:
    """The bound with K = ``k`` and its errors."""
    s, n = task.settings, draws.log_w.shape[1]
    groups = draws.log_w.reshape(-1, k, n)
    per_image = -torch.stack([nats_to_bits(log_mean_exp(g), dim) for g in groups]).mean(0)
    fresh = float(s.fresh_probes or s.repeats == len(groups)) / max(1, s.probes)
    noise = float(_noise_variance(groups, pilot, dim, fresh).mean()) / n
    drawn_probes = max(1, s.probes) * s.repeats * (s.importance if s.fresh_probes else 1)
    probe = pilot.probe_variance / drawn_probes / n
    total = float(per_image.var()) / n if n > 1 else noise + probe
    notes = _notes(s, k, pilot, dim)
    if not complete:
        notes.append(f"interrupted after {n} images")
    return BitsPerDim(
        mean=float(per_image.mean()),
        standard_error=math.sqrt(total),
        errors=Errors(
            images=math.sqrt(max(0.0, total - noise - probe)),
            dequantization=math.sqrt(noise),
            probe=math.sqrt(probe),
            solver=pilot.solver_mean,
        ),
        per_image=per_image,
        solver_error=pilot.error_per_roughness * draws.roughness,
        nfe=draws.nfe,
        seconds=seconds,
        complete=complete,
        notes=tuple(notes),
        settings=dataclasses.replace(s, importance=k),
        groups=len(groups),
        pilot=pilot,
    )


def _notes(s: Settings, k: int, pilot: Pilot, dim: int) -> list[str]:
    """What a reader must know about a number before using it."""
    notes = []
    if pilot.solver_rms > s.allowed:
        notes.append(
            f"the solver's error is {pilot.solver_rms:.4f} bits/dim rms for an image, not the "
            f"{s.allowed:g} asked for: the field is too rough for {MOST_STEPS} steps"
        )
    if k > 1 and s.probes:
        inside = pilot.probe_variance if s.fresh_probes else pilot.interaction
        gain = inside / s.probes / 2 * dim * math.log(2)
        notes.append(
            f"K = {k}: the noise of {s.probes} probe(s) inside the logarithm may make the value "
            f"too good by up to {gain:.4f} bits/dim; only the exact divergence gives a bound"
        )
    return notes
