r"""Bits per dimension, with an error bar.

A pilot tunes the solver; then every image is solved once for each draw of its noise, and the
log-weights of the draws become bounds: their mean, or the logarithm of the mean of K weights.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from idode.batches import IndexedBatches, Pixels
from idode.diffusion.model import DiffusionODE
from idode.errors import InputError, NumericalError
from idode.evaluation.runner import Ledger, Record, digest
from idode.likelihood.calibration import PILOT, Pilot, tune
from idode.likelihood.estimator import LikelihoodSettings, Task, dequantization_for
from idode.likelihood.learned_dequantization import Learned
from idode.numerics import log_mean_exp, nats_to_bits
from idode.ode.calibration import MOST_STEPS

__all__ = ["BitsPerDim", "Errors", "LikelihoodSettings", "bits_per_dim", "bounds"]


@dataclass(frozen=True)
class Errors:
    """Standard error of the mean in bits/dim, by source; the solver's is a likely bias."""

    images: float  # other test images of the same kind
    dequantization: float  # other draws of the noise
    probe: float  # other probes
    solver: float  # mean over the pilot against twice the steps, signed

    def __str__(self) -> str:
        return (
            f"images {self.images:.4f}, dequantization {self.dequantization:.4f}, "
            f"probe {self.probe:.4f}, solver {self.solver:+.4f}"
        )


@dataclass(frozen=True)
class BitsPerDim:
    """A likelihood, what it cost and how far it can be trusted."""

    mean: float
    standard_error: float  # images, dequantization and probes together
    errors: Errors
    per_image: Tensor  # (N,) float64
    solver_error: Tensor  # (N,) likely size of the solver's error of each image
    nfe: float  # mean number of evaluations for one solve of one image
    seconds: float  # computing by all processes, shared by the bounds made from it
    complete: bool  # False when interrupted: per_image holds the images that were done
    notes: tuple[str, ...]
    settings: LikelihoodSettings
    groups: int  # independent bounds averaged for an image: all its draws over K
    pilot: Pilot  # solver and variances; pass it on to compare images solved at another time

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.standard_error:.4f} bits/dim"


def bits_per_dim(
    model: DiffusionODE,
    pixels: Pixels,
    settings: LikelihoodSettings | None = None,
    *,
    first_index: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    progress: Callable[[int], None] | None = None,
    pilot: Pilot | None = None,
    learned: Learned | None = None,
    ledger: Ledger | None = None,
) -> BitsPerDim:
    """Upper bound on the bits a dimension of ``pixels`` costs under the model.

    Args:
        model: The diffusion ODE.
        pixels: Integers in ``0..levels-1`` ``(N, *)``, or floats for continuous data.
        settings: How, for example ``LikelihoodSettings(importance=5)``.
        first_index: Place of the first image in its data set: it seeds the image's noise.
        dtype: Of states and network; log-densities are float64 always.
        device: Where the network is; by default where ``pixels`` are.
        progress: Called with the number of images just done.
        pilot: That of an earlier result, to solve more images of the same kind on the same grid;
            by default the first images of ``pixels`` are one.
        learned: The dequantizer, for dequantization ``learned``.
        ledger: Knows batches that are done already and shares the others, see :mod:`idode.evaluation.runner`;
            one for each model and data set.

    Returns:
        Mean, per-image values, and their errors by source. ``Ctrl-C`` returns what is done.
    """
    settings = settings or LikelihoodSettings()
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
        learned=learned,
        ledger=ledger,
    )
    return result


def bounds(
    model: DiffusionODE,
    pixels: Pixels,
    importances: Sequence[int],
    settings: LikelihoodSettings | None = None,
    *,
    first_index: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    progress: Callable[[int], None] | None = None,
    pilot: Pilot | None = None,
    learned: Learned | None = None,
    ledger: Ledger | None = None,
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
        learned: The dequantizer, for dequantization ``learned``.
        ledger: Knows batches that are done already.
    """
    most = max(importances)
    if any(k < 1 or most % k for k in importances):
        raise InputError(f"each K must divide the largest, got {list(importances)}")
    settings = dataclasses.replace(settings or LikelihoodSettings(), importance=most)
    if len(pixels) == 0:
        raise InputError("there are no images to evaluate: pass at least one")
    task = Task(model, settings, dequantization_for(model, settings, learned), dtype)

    rows, ledger = (
        IndexedBatches(pixels, settings.batch_size, first_index, device),
        ledger or Ledger(),
    )
    given = {"settings": dataclasses.asdict(settings), "first": first_index, "dtype": str(dtype)}
    seconds = 0.0
    if pilot is None:
        first = IndexedBatches(pixels, PILOT, first_index, device)
        tuned = ledger.once(
            f"calibrating {settings.dequantization}",
            first.sizes[0],
            lambda tick: {"pilot": _tuned(task, first, tick).to_json()},
            digest(given),
        )
        pilot, seconds = Pilot.from_json(tuned["pilot"]), tuned["seconds"]
    solving = pilot
    done = ledger.each(
        f"ODE {settings.dequantization}",
        rows.sizes,
        lambda number: _draw(task, rows, number, solving),
        progress,
        # Of the pilot only what a solve depends on: its errors may be better known later.
        digest({**given, "solver": [pilot.to_json()["solver"], pilot.largest_gap]}),
    )
    if not done.records:
        raise KeyboardInterrupt
    draws = _Draws.of(done.records)
    dim, seconds = math.prod(pixels.shape[1:]), seconds + sum(r["seconds"] for r in done.records)
    return [_result(task, draws, k, pilot, dim, seconds, done.complete) for k in importances]


@contextlib.contextmanager
def _naming(indices: list[int]) -> Iterator[None]:
    """Say which image a failed solve was about; several draws of each may be in one batch."""
    try:
        yield
    except NumericalError as error:
        some = f"one of the images {indices[0]} to {indices[-1]}"
        image = some if error.sample is None else f"image {indices[error.sample % len(indices)]}"
        raise NumericalError(f"{image}: {error}", sample=error.sample) from error


def _tuned(task: Task, rows: IndexedBatches, tick: Callable[[int], None]) -> Pilot:
    pixels, indices = rows.part(0)
    with _naming(indices):
        return tune(task, pixels, indices, tick)


@dataclass(frozen=True)
class _Draws:
    """All draws of some images."""

    log_w: Tensor  # (repeats * K, B) nats
    corrector_gap: Tensor  # (B,)
    nfe: float

    @classmethod
    def of(cls, records: Sequence[Record]) -> _Draws:
        """Those of several batches, one after the other."""
        images = [len(r["corrector_gap"]) for r in records]
        evaluations = sum(r["nfe"] * n for r, n in zip(records, images, strict=True))
        log_w = [torch.tensor(r["log_w"], dtype=torch.float64) for r in records]
        corrector_gap = [torch.tensor(r["corrector_gap"], dtype=torch.float64) for r in records]
        return cls(torch.cat(log_w, dim=1), torch.cat(corrector_gap), evaluations / sum(images))


def _draw(task: Task, rows: IndexedBatches, number: int, pilot: Pilot) -> Record:
    """Solve every draw of a batch.

    One after the other, so that memory does not see K; but where the images are few and leave
    room in a batch, several of their draws are solved together.
    """
    s = task.settings
    pixels, indices = rows.part(number)
    count, together = s.repeats * s.importance, max(1, s.batch_size // len(pixels))
    log_w, corrector_gap, nfe = [], [], 0.0
    for first in range(0, count, together):
        block = range(first, min(count, first + together))
        states = [task.state(pixels, indices, draw) for draw in block]
        x, weight = (torch.cat(part) for part in zip(*states, strict=True))
        # An image keeps its probe over the K draws of one repeat, see LikelihoodSettings.fresh_probes.
        numbers = [draw if s.fresh_probes else draw // s.importance for draw in block]
        drawn = [task.probes(states[0][0], indices, k, s.probes) for k in numbers]
        probes = torch.cat([p for p in drawn if p is not None], dim=1) if s.probes else None
        with _naming(indices):
            found = task.solve(x, probes, pilot.solver, pilot.largest_gap)
        log_w.append((found.log_p + weight).reshape(len(block), -1).cpu())
        corrector_gap.append(found.corrector_gap.reshape(len(block), -1).cpu())
        nfe += found.nfe * len(block)
    return {
        "log_w": torch.cat(log_w).tolist(),
        "corrector_gap": torch.cat(corrector_gap).mean(0).tolist(),
        "nfe": nfe / count,
    }


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
    if total < noise + probe:
        notes.append(
            f"noise and probe alone make ± {math.sqrt(noise + probe):.4f}, more than {n} images "
            "scatter: too few to tell the images' own part, and ± may be too small"
        )
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
        solver_error=pilot.error_per_gap * draws.corrector_gap,
        nfe=draws.nfe,
        seconds=seconds,
        complete=complete,
        notes=tuple(notes),
        settings=dataclasses.replace(s, importance=k),
        groups=len(groups),
        pilot=pilot,
    )


def _notes(s: LikelihoodSettings, k: int, pilot: Pilot, dim: int) -> list[str]:
    """What a reader must know about a number before using it."""
    notes = []
    if pilot.solver_rms > s.allowed:
        notes.append(
            f"the solver's error is {pilot.solver_rms:.4f} bits/dim rms for an image, not the "
            f"{s.allowed:g} asked for: at most {MOST_STEPS} steps are tried, and fewer where the "
            "field is so rough that more gain little; solver dopri5 goes on at any price"
        )
    if k > 1 and s.probes:
        inside = pilot.probe_variance if s.fresh_probes else pilot.interaction
        gain = inside / s.probes / 2 * dim * math.log(2)
        notes.append(
            f"K = {k}: the noise of {s.probes} probe(s) inside the logarithm may make the value "
            f"too good by up to {gain:.4f} bits/dim; only the exact divergence gives a bound"
        )
    return notes
