r"""A diffusion of a mixture, and a network that learns what the mixture misses.

.. math:: \hat\epsilon(x, \gamma) = \hat\epsilon_\text{mixture}(x, \gamma)
          + \alpha\sigma f(x, t)

A fresh network is zero, so training begins with the exact diffusion of the mixture and can be
stopped there. A change of the log-density by about one over a distance of about one moves the
score by about one, and the noise by about :math:`\alpha\sigma`: the scale of :math:`f`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from idode.diffusion import exact
from idode.diffusion.clocks import GammaTime
from idode.diffusion.model import DiffusionODE
from idode.diffusion.noise_levels import UniformGamma
from idode.diffusion.objectives import first_order
from idode.diffusion.predictors import NOISE
from idode.diffusion.schedules import VariancePreserving
from idode.nets.config import MLPConfig
from idode.nets.mlp import MLP
from idode.numerics import like

__all__ = ["GAMMA_MAX", "GAMMA_MIN", "Training", "diffusion_of", "train_residual"]

GAMMA_MIN, GAMMA_MAX = -13.8, 10.0  # noise of 0.001, as much as the mixture's regularisation
VP = VariancePreserving()
CHECK = 100  # steps between looks at the held-out rows
PATIENCE = 6  # looks without an improvement
LOOKS = 2048  # noise levels of one look
RATE, AVERAGE, CLIP = 2e-3, 0.99, 10.0


class Corrected(nn.Module):
    """The noise of a mixture plus that of a network, for states ``(B, d)``."""

    def __init__(self, mixture: exact.Mixture, net: MLP) -> None:
        super().__init__()
        self.mixture, self.net = mixture, net

    def forward(self, x: Tensor, gamma: Tensor) -> Tensor:
        """Predicted noise ``(B, d)``."""
        time = (gamma - GAMMA_MIN) / (GAMMA_MAX - GAMMA_MIN)
        scale = like(VP.alpha(gamma) * VP.sigma(gamma), x)
        change: Tensor = self.net(x, time) - x
        return self.mixture.noise(x, gamma, VP) + scale * change


def diffusion_of(mixture: exact.Mixture, net: MLP | None = None) -> DiffusionODE:
    """The ODE of a mixture, corrected by a network where there is one."""
    if net is None:
        return mixture.ode(VP, GAMMA_MIN, GAMMA_MAX)
    corrected = Corrected(mixture, net)
    shape = (mixture.dim,)
    return DiffusionODE(corrected, VP, GAMMA_MIN, GAMMA_MAX, NOISE, GammaTime(), None, shape)


@dataclass(frozen=True)
class Training:
    """How a network is trained."""

    width: int
    depth: int
    max_steps: int
    batch_size: int = 128
    seed: int = 0


def train_residual(
    mixture: exact.Mixture, rows: Tensor, held_out: Tensor, how: Training
) -> MLP | None:
    """The network with the best bound on the held-out rows; ``None`` where the mixture is better.

    Args:
        mixture: Fitted to ``rows``.
        rows: ``(n, d)`` float32.
        held_out: ``(m, d)`` float32.
        how: Sizes, steps and seed.
    """
    g = torch.Generator().manual_seed(how.seed)
    config = MLPConfig(mixture.dim, width=how.width, depth=how.depth, fourier=False, flag=False)
    model = diffusion_of(mixture, MLP(config, g))
    average = copy.deepcopy(model)
    levels = UniformGamma(GAMMA_MIN, GAMMA_MAX)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.99), fused=True)
    look = _Look(held_out, mixture, levels, torch.Generator().manual_seed(how.seed + 1))
    best, found, waited = 0.0, None, 0
    size = min(how.batch_size, max(32, len(rows)))
    for step in range(1, how.max_steps + 1):
        x0 = rows[torch.randint(len(rows), (size,), generator=g)]
        eps = torch.randn(x0.shape, generator=g)
        loss = first_order(model, x0, eps, levels.draw(size, g).gamma.float()).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        _follow(average, model, min(AVERAGE, step / (step + 10)))
        if step % CHECK:
            continue
        gain = look.gain(average)
        if gain > best:
            best, found, waited = gain, copy.deepcopy(_net(average)), 0
        else:
            waited += 1
        if waited == PATIENCE:
            break
    return found


def _net(model: DiffusionODE) -> MLP:
    assert isinstance(model.net, Corrected)
    return model.net.net.eval().requires_grad_(False)


@torch.no_grad()
def _follow(average: nn.Module, model: nn.Module, share: float) -> None:
    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - share)


class _Look:
    """Nats that a model saves over the mixture on held-out rows, always on the same noise."""

    def __init__(
        self,
        rows: Tensor,
        mixture: exact.Mixture,
        levels: UniformGamma,
        generator: torch.Generator,
    ) -> None:
        repeats = max(1, LOOKS // len(rows))
        self.x0 = rows.repeat(repeats, 1)[: max(LOOKS, len(rows))]
        self.eps = torch.randn(self.x0.shape, generator=generator)
        drawn = levels.draw(len(self.x0), generator).gamma
        # Every row sees the whole range of noise levels.
        self.gamma = drawn[torch.randperm(len(drawn), generator=generator)].float()
        self.before = self._nats(diffusion_of(mixture))

    @torch.no_grad()
    def _nats(self, model: DiffusionODE) -> Tensor:
        return first_order(model, self.x0, self.eps, self.gamma)

    def gain(self, model: DiffusionODE) -> float:
        """Mean of the differences, in nats a row: most of the noise cancels."""
        return float((self.before - self._nats(model)).mean()) * (GAMMA_MAX - GAMMA_MIN)
