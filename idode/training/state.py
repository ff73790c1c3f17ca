"""Everything that changes during training, as named tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from idode.diffusion.noise_levels import Times
from idode.errors import InputError, choose
from idode.nets.layers import arranged, use_fast_backward
from idode.runs.config import Config
from idode.runs.distributed import World
from idode.runs.run import Run, build_net, diffusion_ode
from idode.training import checkpoint
from idode.training.metrics import IntervalSums
from idode.training.objective import (
    DATA,
    METHODS,
    SECOND_ORDERS,
    WEIGHTINGS,
    Objective,
    build_density,
)
from idode.training.optimisation import OPTIMIZERS, Average, adam, exponential_rate, moments
from idode.training.power_average import WIDTHS, power_rate
from idode.training.randomness import Purpose, generator

__all__ = ["COUNTERS", "State"]

COUNTERS = ("step", "window")  # tensors of the run itself, which no other run takes over


class State:
    """Network, average, optimisers, distribution of noise levels, counters.

    Random states are not among them: every draw is a function of seed and step.

    Args:
        config: Settings of the run.
        world: The device of the network, and the number of processes.
        start: Some of :meth:`tensors` to start from; by default fresh weights.
        net: The network where it is custom; it is copied.
    """

    def __init__(
        self,
        config: Config,
        world: World,
        start: Mapping[str, Tensor] | None = None,
        net: nn.Module | None = None,
    ) -> None:
        settings = config.train
        choose("weighting", config.objective.weighting, WEIGHTINGS)
        choose("way to place data", config.objective.data, DATA)
        choose("method", config.objective.method, METHODS)
        choose("second order", config.objective.second, SECOND_ORDERS)
        built = build_net(config, generator(settings.seed, Purpose.WEIGHTS), net)
        if not any(p.requires_grad for p in built.parameters()):
            raise InputError(f"no parameter of {type(built).__qualname__} requires a gradient")
        self.net: nn.Module = arranged(built.to(world.device))
        self.average = Average(self.net, exponential_rate(settings))
        kept = WIDTHS if settings.snapshot_every else ()
        self.powers = {width: Average(self.net, power_rate(width)) for width in kept}
        use_fast_backward(self.net, not config.objective.differentiates)
        optimizer = choose("optimizer", settings.optimizer, OPTIMIZERS)
        self.optimiser = optimizer(self.net.named_parameters(), settings)
        density = build_density(
            config.objective.density,
            diffusion_ode(self.net, config),
            generator(settings.seed, Purpose.DENSITY),
        )
        if density.learns and config.objective.weighting == "simple":  # such runs still load
            raise InputError(
                f"weighting=simple with density={config.objective.density}: the losses that the "
                "density learns from would contain it; choose weighting=likelihood or a fixed "
                "density"
            )
        bits = config.path.bits
        self.objective = Objective(config.objective, density, config.simulation, bits)
        self.density_optimiser: torch.optim.Optimizer | None = None
        if weights := list(density.learned.named_parameters()):
            timing = replace(settings, lr=settings.density_lr, weight_decay=0.0)
            self.density_optimiser = adam(weights, timing)
        self.interval = IntervalSums(world.device, world.size)
        self.counter = torch.zeros((), dtype=torch.int64)
        if start is not None:
            self._adopt(start)

    @property
    def step(self) -> int:
        """Steps done."""
        return int(self.counter)

    def update_averages(self, step: int) -> None:
        """Move all averages towards the weights after step 0, 1, 2, ..."""
        for average in (self.average, *self.powers.values()):
            average.update(self.net, step)

    def snapshot(self) -> dict[float, dict[str, Tensor]]:
        """The averages of other widths, as weights by name."""
        return {width: average.net.state_dict() for width, average in self.powers.items()}

    def learn_levels(self, times: Times, losses: Tensor) -> None:
        """Let a learned distribution follow all losses of a global batch, on the CPU."""
        self.objective.density.learn(times, losses)
        if self.density_optimiser is not None:
            self.density_optimiser.step()

    def tensors(self) -> dict[str, Tensor]:
        """The tensors themselves by name, not copies: writing to them restores the state."""
        found = {"step": self.counter, "window": self.interval.sums}
        found |= {f"net/{k}": v for k, v in self.net.state_dict().items()}
        found |= {f"average/{k}": v for k, v in self.average.net.state_dict().items()}
        for width, weights in self.snapshot().items():
            found |= {f"power/{width:g}/{k}": v for k, v in weights.items()}
        first_order = moments(self.optimiser, self.net.named_parameters())
        found |= {f"adam/{k}": v for k, v in first_order.items()}
        density = self.objective.density.learned
        found |= {f"density/{k}": v for k, v in density.state_dict().items()}
        if self.density_optimiser is not None:
            own = moments(self.density_optimiser, density.named_parameters())
            found |= {f"density_adam/{k}": v for k, v in own.items()}
        return found

    @torch.no_grad()
    def _adopt(self, start: Mapping[str, Tensor]) -> None:
        """Begin with the tensors of another state; what it lacks stays fresh."""
        live = self.tensors()
        wrong = [n for n, x in start.items() if n not in live or live[n].shape != x.shape]
        if wrong:
            raise InputError(
                f"the state to start from is of another configuration ({min(wrong)} differs): "
                "give a run with the same network and distribution of noise levels"
            )
        for name, x in start.items():
            live[name].copy_(x)

    @torch.no_grad()
    def restore(self, run: Run, world: World, notice: Callable[[str], None]) -> bool:
        """Load the last undamaged checkpoint of the run, if there is one, on every process.

        Returns:
            Whether there was one, on the process that writes.
        """
        live = self.tensors()
        loaded = checkpoint.load_latest(run.checkpoints, notice) if world.writes else None
        if loaded is not None:
            manifest, saved = loaded
            wrong = [
                name
                for name in live.keys() | saved.keys()
                if name not in live or name not in saved or live[name].shape != saved[name].shape
            ]
            if wrong:
                raise InputError(
                    f"the checkpoint of step {manifest.step} in {run.path} is of another "
                    f"configuration ({min(wrong)} differs): resume with the run's own"
                )
            for name, tensor in live.items():
                tensor.copy_(saved[name])
            notice(f"resuming after step {self.step}")
        world.broadcast(live.values())
        if not world.writes:
            self.interval.clear()  # the sum over all processes is the whole
        return loaded is not None
