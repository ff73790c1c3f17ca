r"""A network read as a diffusion ODE.

.. math:: \frac{\mathrm dx}{\mathrm d\gamma} = v(x, \gamma)
          = \sqrt{\dot\alpha^2 + \dot\sigma^2}\;\tilde v_\theta(x, \gamma)

The network may predict anything in :mod:`idode.diffusion.predictors` on any clock; the rest of
the library asks only for a velocity or a noise (math.md: diffusion-ode).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias, overload

import torch
from torch import Tensor, nn

from idode.diffusion.clocks import Clock, ScaledGamma
from idode.diffusion.learned_path import ONE_LEVEL, NoisePath, PathNet, PathPoint
from idode.diffusion.predictors import (
    NOISE,
    NORMALIZED_VELOCITY,
    VELOCITY,
    Predictor,
    TimedVelocity,
    Velocity,
    convert,
)
from idode.diffusion.quantization import Quantization
from idode.diffusion.schedules import Schedule
from idode.errors import InputError
from idode.numerics import check_range, like

if TYPE_CHECKING:  # what the methods for users return; see the note in the class
    from pathlib import Path

    from idode.batches import Pixels
    from idode.likelihood.bits_per_dim import BitsPerDim
    from idode.likelihood.estimator import LikelihoodSettings
    from idode.likelihood.sde_bound import SDEBound
    from idode.ode.solvers import Solver
    from idode.sampling.samples import Samples

__all__ = ["Condition", "DiffusionODE", "Network", "check_is_model"]

Network = Callable[..., Tensor]
Condition: TypeAlias = Mapping[str, Tensor]
"""Keyword arguments of the network: one row for each sample, such as class labels."""


class DiffusionODE(nn.Module):
    """A network, what it predicts, and the path it was trained on.

    An ``nn.Module``: ``.to``, ``.parameters()``, ``.state_dict()`` and ``copy.deepcopy`` work as
    for any other. Calling it gives the velocity.

    Args:
        net: Called as ``net(x, t, **condition)``; ``x`` is ``(B, *)``, ``t`` is ``(B,)``. A
            module, or any function.
        schedule: How data is noised.
        gamma_min: Lowest noise level, where data is dequantized.
        gamma_max: Highest noise level, where the prior is evaluated.
        predictor: What the network predicts.
        clock: Time passed to the network; by default gamma scaled to [0, 1].
        levels: Number of grey levels of the data; ``None`` for continuous data.
        shape: Shape of one sample, without the batch; needed for sampling.
        gaussian_path: Whether a state given clean data is Gaussian; else it has no noise.
        path: Noise level of each dimension at a time of the clock; by default the clock itself.
        quantization: Where given, the network predicts what it leaves to be predicted.
    """

    description: str = ""  # what idode.adapt understood
    uniform_start: float | None = None  # of uniform dequantization; None: the variance of a bin

    # Methods for users (loss, log_prob, bits_per_dim, sde_bound, sample) import what they need
    # when they are called, since the rooms above build on this class; tests/test_layers.py knows.

    def __init__(
        self,
        net: Network,
        schedule: Schedule,
        gamma_min: float,
        gamma_max: float,
        predictor: Predictor = NORMALIZED_VELOCITY,
        clock: Clock | None = None,
        levels: int | None = None,
        shape: tuple[int, ...] | None = None,
        gaussian_path: bool = True,
        path: NoisePath = ONE_LEVEL,
        quantization: Quantization | None = None,
    ) -> None:
        super().__init__()
        check_range(gamma_min, gamma_max)
        self.net = net
        self.schedule, self.predictor = schedule, predictor
        self.gamma_min, self.gamma_max = gamma_min, gamma_max
        self.clock: Clock = clock or ScaledGamma(gamma_min, gamma_max)
        self.levels = levels
        self.shape = None if shape is None else tuple(shape)
        self.gaussian_path, self.path = gaussian_path, path
        if isinstance(net, nn.Module) and id(path) in map(id, net.modules()):
            self.__dict__["path"] = self._modules.pop("path")  # else its weights are there twice
        if quantization is not None and quantization.levels != levels:
            raise InputError(
                f"the quantization has {quantization.levels} levels and the model {levels}: give "
                "both the same"
            )
        self.quantization = quantization

    @property
    def device(self) -> torch.device:
        """Where the parameters are; the CPU for a network without any."""
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        """Type of the parameters; float32 for a network without any."""
        return next((p.dtype for p in self.parameters()), torch.float32)

    def extra_repr(self) -> str:
        """The path, for ``print(model)``."""
        ends = f"gamma {self.gamma_min:.4g} to {self.gamma_max:.4g}"
        path = f"{type(self.schedule).__name__}, {ends}"
        known = "" if self.quantization is None else f", quantization={self.quantization}"
        data = f"levels={self.levels}, shape={self.shape}"
        return f"{path}, predicts {self.predictor}, {data}{known}"

    def with_net(self, net: Network) -> DiffusionODE:
        """Another network on the same path, or on the path that it was trained with."""
        path = net.path if isinstance(net, PathNet) else self.path
        found = DiffusionODE(
            net, self.schedule, self.gamma_min, self.gamma_max, self.predictor, self.clock,
            self.levels, self.shape, self.gaussian_path, path, self.quantization,
        )  # fmt: skip
        found.uniform_start = self.uniform_start
        return found

    def predict(
        self, x: Tensor, gamma: Tensor, wanted: Predictor, **condition: Tensor | None
    ) -> Tensor:
        """The network's prediction at ``(x, gamma)``, converted to ``wanted``.

        Args:
            x: States ``(B, *)``.
            gamma: Clock ``(B,)`` or ``()``.
            wanted: The predictor to convert to.
            **condition: Passed on to the network; those that are ``None`` are left out.
        """
        return self.predict_at(self.point(x, gamma, condition), x, wanted, condition)

    def point(self, x: Tensor, gamma: Tensor, condition: Mapping[str, Tensor | None]) -> PathPoint:
        """Noise levels of states ``(B, *)`` at a time of the clock, ``(B,)`` or ``()``."""
        if not x.is_floating_point():
            raise InputError(
                f"the state must be floating point, got {x.dtype}: dequantize integer pixels first"
            )
        if gamma.ndim > 1 or (gamma.ndim == 1 and gamma.shape[0] != x.shape[0]):
            raise InputError(
                f"gamma must be a scalar or one value for each of {x.shape[0]} states, "
                f"got shape {tuple(gamma.shape)}"
            )
        return self.path.at(gamma, condition)

    def predict_at(
        self,
        point: PathPoint,
        x: Tensor,
        wanted: Predictor,
        condition: Mapping[str, Tensor | None],
    ) -> Tensor:
        """:meth:`predict` for callers that need the noise levels too, and have found them."""
        if not isinstance(wanted, Velocity | TimedVelocity):
            self.check_gaussian_path()
        time = self.clock.time(point.clock).to(x).expand(x.shape[0])
        level = point.level
        scaled = like(self.predictor.c_in(self.schedule, level), x) * x
        given = {name: value for name, value in condition.items() if value is not None}
        prediction = self.net(scaled, time, **given)
        if self.quantization is not None:
            _, b = self.predictor.coefficients(self.schedule, level)
            known = self.quantization.noise(x, level, self.schedule)
            prediction = prediction + like(b, x) * known
        return convert(prediction, x, level, self.schedule, self.predictor, wanted)

    def check_gaussian_path(self) -> None:
        """Raise an error where a state given clean data is not Gaussian."""
        if not self.gaussian_path:
            raise InputError(
                "the model's path is not Gaussian given the data (optimal transport, or a flow of "
                "its own), so its velocity cannot be read as a noise: use the likelihood and the "
                "samples of the ODE, not the SDE bound and SDE samplers"
            )

    def velocity(self, x: Tensor, gamma: Tensor, **condition: Tensor | None) -> Tensor:
        r"""Drift of the ODE on the clock, :math:`\mathrm dx/\mathrm d\gamma`."""
        point = self.point(x, gamma, condition)
        return point.per_clock(self.predict_at(point, x, VELOCITY, condition))

    def forward(self, x: Tensor, gamma: Tensor, **condition: Tensor | None) -> Tensor:
        """The same as :meth:`velocity`."""
        return self.velocity(x, gamma, **condition)

    def noise(self, x: Tensor, gamma: Tensor, **condition: Tensor | None) -> Tensor:
        r""":math:`\hat\epsilon`, the predicted noise."""
        return self.predict(x, gamma, NOISE, **condition)

    def loss(
        self, data: Pixels, *, generator: torch.Generator | None = None, **condition: Tensor
    ) -> Tensor:
        """Training loss of a batch in bits/dim: one draw of the diffusion term of the SDE bound.

        Noise levels are spread evenly over the batch and drawn from the designed distribution.

        Args:
            data: Integers ``(B, *)`` in ``0..levels-1``, or floats for continuous data.
            generator: Generator of noise and noise levels; by default torch's global one.
            **condition: One row for each sample, passed on to the network.

        Returns:
            A scalar with gradients.
        """
        from idode.batches import check_shape, rows_for, to_tensor
        from idode.diffusion.noise_levels import Designed
        from idode.diffusion.objectives import first_order
        from idode.likelihood.dequantization import clean_data
        from idode.numerics import home_of_float64, moved, nats_to_bits

        check_shape(data, self.shape)
        if len(data) == 0:
            raise InputError("there are no samples in the batch: pass at least one")
        given = rows_for(condition, len(data), self.device)
        x0 = clean_data(moved(to_tensor(data), self.device), self.levels, self.dtype)
        times = Designed(self.schedule, self.gamma_min, self.gamma_max).draw(len(x0), generator)
        home = None if generator is None else generator.device
        eps = torch.randn(x0.shape, generator=generator, dtype=x0.dtype, device=home).to(x0.device)
        code = self.path.encode(
            x0,
            lambda n: torch.rand(
                len(x0), n, generator=generator, dtype=torch.float64, device=home
            ),
        )
        gamma = times.gamma.to(home_of_float64(x0.device))
        nats = first_order(self, x0, eps, gamma, condition=code.joined(given))
        weighted = nats / times.density.to(nats) - code.mean_weight.to(nats)
        return nats_to_bits(weighted.mean(), x0[0].numel())

    def log_prob(
        self, x: Pixels, *, clean: bool = False, solver: Solver | None = None,
        n_probes: int | None = None, checkpoint: bool = False, adjoint: bool = False,
        **condition: Tensor,
    ) -> Tensor:  # fmt: skip
        """Log-density of states at ``gamma_min``, or of clean data, in nats, ``(B,)`` float64.

        Differentiable by ``x``, by the parameters and by the condition where gradients are
        enabled and one of them requires them; default steps are calibrated for the value, and
        gradients may need a finer solver. :func:`idode.log_prob` gives the error and the cost.

        Args:
            x: States ``(B, *)``: noised data; or continuous data as it is, with ``clean``.
            clean: Whether ``x`` is clean data.
            solver: By default Adams steps on a grid that is calibrated on the first states.
            n_probes: Hutchinson probes of the divergence, 0 for the exact one; by default exact up
                to 32 dimensions, else one.
            checkpoint: Save memory for gradients by evaluating the network again.
            adjoint: Save more, by solving backwards.
            **condition: One row for each state, passed on to the network.
        """
        from idode.likelihood.log_prob import log_prob

        return log_prob(
            self, x, clean=clean, solver=solver, n_probes=n_probes, condition=condition,
            checkpoint=checkpoint, adjoint=adjoint,
        ).log_p  # fmt: skip

    def bits_per_dim(
        self, data: Pixels, settings: LikelihoodSettings | None = None, **condition: Tensor
    ) -> BitsPerDim:
        """Upper bound on the bits a dimension of the data costs, with its errors.

        Args:
            data: Integers in ``0..levels-1`` ``(N, *)``, array or tensor; floats for continuous
                data.
            settings: How, for example ``LikelihoodSettings(n_importance=5)``.
            **condition: One row for each image, passed on to the network.
        """
        from idode.evaluation.likelihood import bits_per_dim

        return bits_per_dim(self, data, settings, condition=condition)

    def sde_bound(self, data: Pixels, *, draws: int = 16, **condition: Tensor) -> SDEBound:
        """The variational bound of the diffusion SDE, in bits/dim, with its errors.

        Args:
            data: Integers in ``0..levels-1`` ``(N, *)``.
            draws: Noise levels for each image, an even number.
            **condition: One row for each image, passed on to the network.
        """
        from idode.evaluation.likelihood import sde_bound

        return sde_bound(self, data, draws=draws, condition=condition)

    @overload
    def sample(
        self, count: int, *, log_prob: Literal[False] = False, seed: int = 0,
        solver: Solver | None = None, **condition: Tensor,
    ) -> Tensor: ...  # fmt: skip

    @overload
    def sample(
        self, count: int, *, log_prob: Literal[True], seed: int = 0,
        solver: Solver | None = None, **condition: Tensor,
    ) -> Samples: ...  # fmt: skip

    def sample(
        self,
        count: int,
        *,
        log_prob: bool = False,
        seed: int = 0,
        solver: Solver | None = None,
        **condition: Tensor,
    ) -> Tensor | Samples:
        """Draw from the model.

        Args:
            count: Number of samples.
            log_prob: Also the log-density of each, from the same solve.
            seed: Seed of all noise; a sample depends on it and on its index alone.
            solver: Solver of the ODE; by default the paper's Dormand-Prince.
            **condition: One row for each sample, passed on to the network.

        Returns:
            Data ``(count, *)``, uint8 for images; with ``log_prob`` :class:`Samples`, which has
            them as ``data``.
        """
        from idode.sampling.samples import sample

        found = sample(
            self, count, seed=seed, solver=solver, log_prob=log_prob, condition=condition
        )
        return found if log_prob else found.data

    def save_pretrained(self, folder: Path | str, *, data: str | None = None) -> None:
        """Write the model as a folder with ``config.json`` and ``model.safetensors``: a run."""
        from idode.runs.sharing import save_pretrained

        save_pretrained(self, folder, data=data)

    @classmethod
    def from_pretrained(cls, folder: Path | str) -> DiffusionODE:
        """The model of a run folder on the CPU; :func:`idode.load` chooses the device."""
        from idode.runs.run import load

        return load(folder, device="cpu")


def check_is_model(model: object) -> None:
    """Refuse names and runs where a function takes the model itself, or a compiled one."""
    if not isinstance(getattr(model, "_orig_mod", model), DiffusionODE):
        raise InputError(
            f"give a model, such as idode.load('pretrained:digits'), got {type(model).__name__}"
        )
