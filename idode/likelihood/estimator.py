r"""Log-weights: draws of an image's :math:`\log p(x) + c(x)` under one set of settings.

Dequantize, draw probes, solve. Bounds are means, or log-mean-exponentials, of such weights
(:mod:`idode.likelihood.bits_per_dim`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from idode import random
from idode.batches import Batch
from idode.diffusion.model import Condition, DiffusionODE
from idode.errors import InputError, NumericalError, checked_seed, whole
from idode.likelihood import DEQUANTIZATIONS
from idode.likelihood.dequantization import (
    Continuous,
    Dequantization,
    TruncatedNormal,
    clean_data,
)
from idode.likelihood.log_prob import LogProb, solve_log_prob
from idode.numerics import home_of_float64, like
from idode.ode import PROBES, SOLVERS
from idode.ode.adams import Adams
from idode.ode.divergence import Probe, Rademacher
from idode.ode.solvers import Solver

__all__ = ["BatchDraws", "LikelihoodSettings", "LogWeightEstimator", "image_named"]

MOST_DRAWS = 10**6  # K, and repeats: larger numbers are taken for typing errors
EXAMPLES = {"dequantization": "Uniform()", "probe": "Rademacher()", "solver": "Adams()"}
MUCH_ROUGHER = 1.5  # corrector gap over the pilot's largest at which an image is solved again


@dataclass(frozen=True)
class LikelihoodSettings:
    """How a likelihood is computed; two values compare only where these agree.

    Args:
        dequantization: How integers become states. The default fits the model: the truncated
            normal for integers, nothing for continuous data.
        n_importance: Draws K inside the logarithm.
        closed_form: For K = 1, the closed-form entropy of the noise, as in the paper, in place
            of its log-density at the draw. The mean is the same; the drawn one cancels most of
            the noise in log p, since both see the same distance from the bin's centre.
        repeats: Independent repetitions averaged outside the logarithm.
        n_probes: Hutchinson probes for each solve; 0 is the exact divergence. An image keeps
            its probes over its K draws: fresh ones would add noise inside the logarithm, which
            improves the value without being a bound.
        probe: Their distribution.
        solver: Solver of the ODE: Adams on a calibrated grid, or the paper's Dormand-Prince.
        seed: Seed of dequantization and probes.
        batch_size: Images solved together; it changes the values of Dormand-Prince alone, whose
            steps follow the whole batch, within its error.
    """

    dequantization: Dequantization | None = None
    n_importance: int = 1
    closed_form: bool = False
    repeats: int = 1
    n_probes: int = 1
    probe: Probe = field(default_factory=Rademacher)
    solver: Solver = field(default_factory=Adams)
    seed: int = 0
    batch_size: int = 64

    def __post_init__(self) -> None:
        for name, example in EXAMPLES.items():
            if isinstance(getattr(self, name), str):
                raise InputError(f"{name} must be a part such as {example}, got a text")
        object.__setattr__(self, "seed", checked_seed(self.seed))
        least = {"n_importance": 1, "repeats": 1, "n_probes": 0, "batch_size": 1}
        for name, low in least.items():
            object.__setattr__(self, name, whole(name, getattr(self, name), low))
        if self.closed_form and self.n_importance > 1:
            raise InputError(
                "the closed-form entropy is for one draw: inside the logarithm of "
                f"{self.n_importance} draws each needs its own density"
            )
        way = self.dequantization
        if self.closed_form and way is not None and not way.closed_form:
            raise InputError(
                f"a {way.name} dequantization has no closed-form entropy: leave it off"
            )
        for name in ("n_importance", "repeats"):
            if getattr(self, name) > MOST_DRAWS:
                raise InputError(f"{name} must be at most {MOST_DRAWS}, got {getattr(self, name)}")

    def for_model(self, model: DiffusionODE) -> LikelihoodSettings:
        """The settings with the default dequantization filled in, checked against the model."""
        way = self.dequantization
        if way is None:
            way = Continuous() if model.levels is None else TruncatedNormal()
        way.gamma(model)
        return dataclasses.replace(self, dequantization=way)

    def to_json(self) -> dict[str, Any]:
        """Plain values; parts are tables with their ``kind``."""
        way = self.dequantization
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {
            **fields,
            "dequantization": None if way is None else way.to_json(),
            "probe": PROBES.to_json(self.probe),
            "solver": SOLVERS.to_json(self.solver),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> LikelihoodSettings:
        """The inverse of :meth:`to_json`; a learned dequantization is loaded with its run."""
        fields, way = dict(values), values["dequantization"]
        fields["dequantization"] = None if way is None else DEQUANTIZATIONS.from_json(way)
        fields["probe"] = PROBES.from_json(values["probe"])
        fields["solver"] = SOLVERS.from_json(values["solver"])
        return cls(**fields)


@dataclass(frozen=True)
class BatchDraws:
    """All draws of some images: what bounds are made of."""

    log_w: Tensor  # (repeats * K, B) nats, float64
    corrector_gap: Tensor  # (B,) mean over the draws
    nfe: float  # evaluations of the network for one solve, mean over draws and images
    prior_mismatch: float = 0.0  # nats² of an image, see idode.likelihood.prior

    def to_json(self) -> dict[str, Any]:
        """Plain values; JSON keeps every bit of a float64."""
        gap = self.corrector_gap.tolist()
        return {
            "log_w": self.log_w.tolist(),
            "corrector_gap": gap,
            "nfe": self.nfe,
            "prior_mismatch": self.prior_mismatch,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> BatchDraws:
        """The inverse of :meth:`to_json`."""
        log_w, gap = (
            torch.tensor(values[name], dtype=torch.float64) for name in ("log_w", "corrector_gap")
        )
        # Which earlier versions did not store.
        return cls(log_w, gap, values["nfe"], values.get("prior_mismatch", 0.0))

    @classmethod
    def joined(cls, parts: Sequence[BatchDraws]) -> BatchDraws:
        """Several batches, one after the other."""
        images = [len(part.corrector_gap) for part in parts]
        evaluations = sum(part.nfe * n for part, n in zip(parts, images, strict=True))
        log_w = torch.cat([part.log_w for part in parts], dim=1)
        gap = torch.cat([part.corrector_gap for part in parts])
        mismatch = sum(part.prior_mismatch * n for part, n in zip(parts, images, strict=True))
        return cls(log_w, gap, evaluations / sum(images), mismatch / sum(images))


@dataclass(frozen=True)
class LogWeightEstimator:
    """One model under one set of settings: turns images into log-weights.

    Args:
        model: The diffusion ODE.
        settings: Those of :meth:`LikelihoodSettings.for_model`.
        dtype: Type of states and network; log-densities are float64 always.
    """

    model: DiffusionODE
    settings: LikelihoodSettings
    dtype: torch.dtype = torch.float32

    @property
    def dequantization(self) -> Dequantization:
        """The way from data to states."""
        assert self.settings.dequantization is not None
        return self.settings.dequantization

    def with_model(self, model: DiffusionODE) -> LogWeightEstimator:
        """The same settings for another model."""
        return dataclasses.replace(self, model=model)

    @torch.no_grad()
    def states(self, data: Tensor, indices: Sequence[int], repeat: int) -> tuple[Tensor, Tensor]:
        """States ``(B, *)`` and the weights ``(B,)`` that make bounds of their log-densities."""
        shape = data.shape[1:]
        noise = random.per_image(
            lambda g: random.uniform(shape, g),
            indices,
            seed=self.settings.seed,
            purpose=random.NOISE,
            repeat=repeat,
        )
        home = home_of_float64(data.device)
        drawn = self.dequantization.states(self.model, data.to(home), noise.to(home))
        weight = drawn.mean_weight if self.settings.closed_form else drawn.weight
        return drawn.x.to(data.device, self.dtype), weight

    def clean(self, data: Tensor) -> Tensor:
        """What the codes of images are drawn from, ``(B, *)``."""
        return clean_data(data, self.model.levels, self.dtype)

    @torch.no_grad()
    def code(self, batch: Batch, x0: Tensor, repeat: int) -> tuple[Condition, Tensor]:
        """The condition of the images with a draw of their code, and its weights ``(B,)``.

        Args:
            batch: The images.
            x0: They as :meth:`clean` has them, the same for all draws.
            repeat: Number of the draw.
        """
        numbers = random.uniforms(
            batch.indices, seed=self.settings.seed, purpose=random.CODE, repeat=repeat
        )
        drawn = self.model.path.encode(x0, numbers)
        weight = drawn.mean_weight if self.settings.closed_form else drawn.weight
        return drawn.joined(batch.condition), weight

    def probes(self, x: Tensor, indices: Sequence[int], repeat: int, count: int) -> Tensor | None:
        """Probes ``(count, B, *)``, or ``None`` for the exact divergence."""
        if count == 0:
            return None
        one = torch.empty(x.shape[1:], dtype=x.dtype)
        drawn = random.per_image(
            lambda g: self.settings.probe.draw(count, one, g),
            indices,
            seed=self.settings.seed,
            purpose=random.PROBE,
            repeat=repeat,
        )
        return drawn.transpose(0, 1).to(x.device)

    @torch.no_grad()
    def solve(
        self,
        x: Tensor,
        probes: Tensor | None,
        solver: Solver,
        largest_gap: float,
        condition: Condition,
    ) -> LogProb:
        """Log-density; samples much rougher than the pilot are solved again on finer grids."""
        start = self.dequantization.gamma(self.model)
        found = solve_log_prob(
            self.model, x, solver, probes=probes, start=start, condition=condition
        )
        rough = found.corrector_gap > MUCH_ROUGHER * largest_gap
        finer = solver.refined() if bool(rough.any()) else None
        if finer is None:
            return found
        some = None if probes is None else probes[:, rough]
        few = {name: value[rough] for name, value in condition.items()}
        try:
            again = self.solve(x[rough], some, finer, largest_gap, few)
        except NumericalError as error:
            which = None if error.sample is None else int(rough.nonzero()[error.sample, 0])
            raise NumericalError(str(error), sample=which) from error
        nfe = found.nfe + again.nfe * float(rough.double().mean())
        return _replaced(found, again, rough, nfe)

    def draws(
        self,
        batch: Batch,
        solver: Solver,
        largest_gap: float = math.inf,
        most: int | None = None,
    ) -> BatchDraws:
        """Solve every draw of a batch.

        One after the other, so that memory does not grow with K; but where the images are few
        and leave room in a batch, several of their draws are solved together.

        Args:
            batch: Images, their places in the data set, and their condition.
            solver: With its steps chosen.
            largest_gap: Of its calibration; images far above it are solved on finer grids.
            most: States solved together; by default a batch.
        """
        s = self.settings
        size = s.batch_size if most is None else most
        count, together = s.repeats * s.n_importance, max(1, size // len(batch.values))
        x0, log_w, gaps, nfe, mismatch = self.clean(batch.values), [], [], 0.0, 0.0
        for first in range(0, count, together):
            block = range(first, min(count, first + together))
            drawn = [self.states(batch.values, batch.indices, draw) for draw in block]
            x, weight = (torch.cat(part) for part in zip(*drawn, strict=True))
            numbers = [draw // s.n_importance for draw in block]  # one probe for K draws
            each = [self.probes(drawn[0][0], batch.indices, k, s.n_probes) for k in numbers]
            probes = torch.cat([p for p in each if p is not None], dim=1) if s.n_probes else None
            codes, costs = zip(*(self.code(batch, x0, draw) for draw in block), strict=True)
            condition = {name: torch.cat([one[name] for one in codes]) for name in codes[0]}
            with image_named(batch.indices):
                found = self.solve(x, probes, solver, largest_gap, condition)
            weight = weight + torch.cat(costs)
            log_w.append((found.log_p + weight).reshape(len(block), -1).cpu())
            gaps.append(found.corrector_gap.reshape(len(block), -1).cpu())
            nfe += found.nfe * len(block)
            mismatch += found.prior_error**2 * len(block)
        return BatchDraws(torch.cat(log_w), torch.cat(gaps).mean(0), nfe / count, mismatch / count)


def _replaced(found: LogProb, again: LogProb, rough: Tensor, nfe: float) -> LogProb:
    """The first solve with the rough samples taken from the second."""
    per_probe = found.per_probe.masked_scatter(rough.expand_as(found.per_probe), again.per_probe)
    return LogProb(
        log_p=per_probe.mean(0),
        per_probe=per_probe,
        z=found.z.masked_scatter(like(rough, found.z).bool().expand_as(found.z), again.z),
        nfe=nfe,
        corrector_gap=found.corrector_gap.masked_scatter(rough, again.corrector_gap),
        solver_error=found.solver_error.masked_scatter(rough, again.solver_error),
        prior_error=found.prior_error,
    )


@contextlib.contextmanager
def image_named(indices: Sequence[int]) -> Iterator[None]:
    """Say which image a failed solve was about; several draws of each may be in one batch."""
    try:
        yield
    except NumericalError as error:
        some = f"one of the images {indices[0]} to {indices[-1]}"
        image = some if error.sample is None else f"image {indices[error.sample % len(indices)]}"
        raise NumericalError(f"{image}: {error}", sample=error.sample) from error
