r"""Noise levels of single dimensions: one for all, or learned for each (math.md: learned-path).

The clock of a model is one number :math:`s`. A *noise path* says which noise level
:math:`\gamma_i(s)` each dimension has at that time, and how fast it passes it. All dimensions
share both ends, so prior and dequantization do not know of it.

MuLAN's path bends with a code :math:`z` of the image, which costs its divergence from the prior:

.. math:: -\log p(x) \le \mathbb E_{q(z|x)}[-\log p(x|z)] + \mathrm{KL}(q(z|x)\,\|\,p(z)).
"""

from __future__ import annotations

import abc
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from idode.errors import InputError
from idode.nets.layers import Dense, initialise
from idode.numerics import check_range, double, home_of_float64, like

__all__ = ["ONE_LEVEL", "Code", "LearnedPath", "NoisePath", "OneLevel", "PathNet", "PathPoint"]

LEAST = 1e-3  # slope that a path keeps everywhere, of one that is 1 when training begins

Uniforms = Callable[[int], Tensor]
"""Gives so many uniform numbers for each sample, ``(B, count)``; called by those who need them."""


@dataclass(frozen=True)
class Code:
    """What the path of each sample depends on, and what its log-density lacks to be a bound."""

    condition: dict[str, Tensor]  # keyword arguments of path and network, (B, ...) each
    weight: Tensor  # (B,) nats, log p(z) - log q(z|x) of this draw
    mean_weight: Tensor  # (B,) nats, its mean: minus the divergence

    def joined(self, condition: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """This and the condition that a user gave, which may not have a code of its own."""
        if self.condition.keys() & condition.keys():
            raise InputError(
                "a code was given, and this model draws its own from each image (path.bits): with "
                "another one the value is no bound; leave it out, or give it to log_prob"
            )
        return {**condition, **self.condition}


@dataclass(frozen=True)
class PathPoint:
    """Noise levels at a time of the clock, and how fast they rise: found once, used by all."""

    clock: Tensor  # (B,) or ()
    level: Tensor  # of the clock's shape, or (B, *) where dimensions differ
    slope: Tensor | None = None  # of the level, by the clock; None where the level is the clock

    def per_clock(self, rate: Tensor) -> Tensor:
        r"""A rate by :math:`\gamma_i` as one by the clock: times :math:`\gamma_i'(s)`."""
        return rate if self.slope is None else rate * like(self.slope, rate)


class NoisePath(abc.ABC):
    """Noise levels of all dimensions as functions of the clock."""

    bits: int = 0  # of the code that they depend on; 0 where there is none

    @abc.abstractmethod
    def at(self, clock: Tensor, condition: Mapping[str, Tensor | None]) -> PathPoint:
        r"""Where the path is at a time: :math:`\gamma_i(s)` and :math:`\gamma_i'(s)`."""

    @abc.abstractmethod
    def encode(self, x0: Tensor, uniforms: Uniforms) -> Code:
        """A draw of the code of clean data ``(B, *)``."""

    @abc.abstractmethod
    def prior(self, uniforms: Uniforms) -> dict[str, Tensor]:
        """The condition of a code drawn from the prior."""

    @abc.abstractmethod
    def check_one_level(self, what: str, instead: str) -> None:
        """Refuse ``what``, which takes the clock for the noise level, where they differ.

        Args:
            what: The subject of the sentence.
            instead: What to do, for its end.
        """

    @abc.abstractmethod
    def notes(self) -> tuple[str, ...]:
        """What a reader must know about a likelihood along this path."""


class OneLevel(NoisePath):
    """The clock is the noise level of all dimensions: nothing to learn, nothing to encode."""

    def at(self, clock: Tensor, condition: Mapping[str, Tensor | None]) -> PathPoint:
        """The clock itself."""
        return PathPoint(clock, clock)

    def encode(self, x0: Tensor, uniforms: Uniforms) -> Code:
        """No code, at no cost."""
        home = home_of_float64(x0.device)
        nothing = torch.zeros(len(x0), dtype=torch.float64, device=home)
        return Code({}, nothing, nothing)

    def prior(self, uniforms: Uniforms) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def check_one_level(self, what: str, instead: str) -> None:
        """Nothing is refused."""

    def notes(self) -> tuple[str, ...]:
        """None."""
        return ()


ONE_LEVEL = OneLevel()


class LearnedPath(nn.Module, NoisePath):
    r"""MuLAN's polynomial path (Sahoo et al. 2024), with a code of independent signs.

    .. math:: \gamma_i = \gamma_{\min} + (\gamma_{\max} - \gamma_{\min})\frac{f_i(t)}{f_i(1)},
              \qquad f_i'(t) = (a_it^2 + b_it + d_i)^2 + c, \qquad f_i(0) = 0,

    with :math:`t = (s - \gamma_{\min})/(\gamma_{\max} - \gamma_{\min})` and coefficients from a
    small network of the code :math:`z\in\{-1, 1\}^m`. Fresh, every :math:`\gamma_i` is the clock.

    The prior of the code is uniform and :math:`q(z|x)` a product of Bernoullis from a small
    network of the image, so its divergence has a closed form; MuLAN's code has k of m entries
    set, and no closed form. Gradients pass the signs straight through to their relaxation.

    Args:
        shape: Of one sample.
        gamma_min: Where all dimensions begin.
        gamma_max: Where they end.
        bits: Length m of the code.
        width: Hidden units of both networks.
        generator: For the initial weights.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        gamma_min: float,
        gamma_max: float,
        bits: int,
        width: int,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check_range(gamma_min, gamma_max)
        self.shape, self.bits = tuple(shape), bits
        self.gamma_min, self.gamma_max = gamma_min, gamma_max
        dim = math.prod(shape)
        self.encoder = _hidden_layer(dim, width, bits)
        self.bend = _hidden_layer(bits, width, 3 * dim)
        initialise(self, generator)

    def at(self, clock: Tensor, condition: Mapping[str, Tensor | None]) -> PathPoint:
        r"""Level, and :math:`\gamma_i'(s) = f_i'(t)/f_i(1)`; ``(B, *)`` float64 each."""
        t, a, b, d = self._polynomial(clock, condition)
        span, whole = self.gamma_max - self.gamma_min, _rise(torch.ones_like(t), a, b, d)
        level = self.gamma_min + span * _rise(t, a, b, d) / whole
        return PathPoint(clock, level, ((a * t**2 + b * t + d) ** 2 + LEAST) / whole)

    def encode(self, x0: Tensor, uniforms: Uniforms) -> Code:
        """One draw for each row of ``x0``, with its share of the bound."""
        logits = double(self.encoder(x0.flatten(1).to(self._weight)))
        noisy = logits + torch.logit(uniforms(self.bits).to(logits))
        soft = torch.tanh(noisy / 2)
        signs = torch.where(noisy > 0, 1.0, -1.0).to(soft)
        code = signs + (soft - soft.detach())  # the value is that of the signs, to the last digit
        most = self.bits * math.log(2)
        share = torch.sigmoid(logits)
        entropy = -(share * F.logsigmoid(logits) + (1 - share) * F.logsigmoid(-logits)).sum(1)
        return Code(
            {"code": code.to(x0)}, -most - F.logsigmoid(signs * logits).sum(1), entropy - most
        )

    def prior(self, uniforms: Uniforms) -> dict[str, Tensor]:
        """Fair signs."""
        return {"code": torch.where(uniforms(self.bits) > 0.5, 1.0, -1.0).to(self._weight)}

    def check_one_level(self, what: str, instead: str) -> None:
        """Refuse it."""
        raise InputError(
            f"{what} takes one noise level for all dimensions, and this model has learned one for "
            f"each (path.bits): {instead}"
        )

    def notes(self) -> tuple[str, ...]:
        """That the value is a bound over the code, whose cost it contains."""
        return (
            f"each image has a code of {self.bits} bits, drawn from q(code|image): the value is a "
            "bound over it and includes what the code costs, KL(q || uniform) in the mean",
        )

    @property
    def _weight(self) -> Tensor:
        """Some weight, for the dtype and device of both networks."""
        return next(self.parameters())

    def _polynomial(
        self, clock: Tensor, condition: Mapping[str, Tensor | None]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Unit time ``(B, *)`` and the coefficients a, b, d, float64."""
        code = condition.get("code")
        if code is None:
            raise InputError(
                "the noise levels of this model depend on a code of each image (path.bits), which "
                "is not drawn here: use evaluate, compare or sample, or pass a code"
            )
        bend = double(self.bend(code.to(self._weight)))
        a, b, d = bend.reshape(len(code), 3, *self.shape).unbind(1)
        t = (double(clock) - self.gamma_min) / (self.gamma_max - self.gamma_min)
        t = t.to(bend.device).reshape(-1, *[1] * len(self.shape))
        return t, a, b, 1 + d


def _hidden_layer(inputs: int, width: int, outputs: int) -> nn.Sequential:
    """One hidden layer; fresh, it returns zeros."""
    layers = {
        "dense_in": Dense(inputs, width),
        "swish": nn.SiLU(),
        "dense_out": Dense(width, outputs, zero=True),
    }
    return nn.Sequential(OrderedDict(layers))


def _rise(t: Tensor, a: Tensor, b: Tensor, d: Tensor) -> Tensor:
    """``f(t)``: the integral of its slope from 0."""
    fourth, third = a * b / 2, (b**2 + 2 * a * d) / 3
    return t * (LEAST + d**2 + t * (b * d + t * (third + t * (fourth + t * a**2 / 5))))


class PathNet(nn.Module):
    """A network and the path it is trained on, trained, averaged and saved as one module.

    Args:
        net: Called as ``net(x, t, code=code, **condition)``.
        path: Its noise levels.
    """

    def __init__(self, net: nn.Module, path: LearnedPath) -> None:
        super().__init__()
        self.net, self.path = net, path

    def forward(self, x: Tensor, t: Tensor, **condition: Tensor) -> Tensor:
        """The network's prediction."""
        said: Tensor = self.net(x, t, **condition)
        return said
