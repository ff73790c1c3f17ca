"""The training loop: a step is a function of the state, the data and the seed alone.

Users call :func:`idode.train`; :class:`Trainer` is for callers that have a :class:`Run` in hand.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from idode.data.batches import Batches, Loader
from idode.data.prepared import Dataset
from idode.diffusion.noise_levels import Adaptive
from idode.diffusion.objectives import Losses
from idode.errors import InputError
from idode.numerics import double, float32_products
from idode.runs.distributed import World
from idode.runs.folder import settle
from idode.runs.memory import check_training_size
from idode.runs.run import Run, diffusion_ode, save_model
from idode.training import checkpoint
from idode.training.acceleration import compile_in_place, in_precision, refusal
from idode.training.grids import draw_grid, drawable
from idode.training.held_out import held_out_bits
from idode.training.interruption import Interruption
from idode.training.metrics import MetricsLog
from idode.training.objective import Batch
from idode.training.optimisation import learning_rate
from idode.training.randomness import Purpose, generator, seeded_globally
from idode.training.state import State

__all__ = ["Diverged", "Reporter", "Silent", "Trainer", "TrainingResult"]

MAX_LISTED = 8  # samples listed in a message


class Diverged(InputError):
    """The loss or its gradient is not finite; the state before that step is saved."""


class Reporter(Protocol):
    """Receives the progress of a training, such as a progress bar."""

    def notice(self, text: str) -> None:
        """Called with a line to show."""

    def progress(self, step: int, metrics: Mapping[str, float]) -> None:
        """Called after each step with the latest metrics."""


class Silent:
    """A reporter that ignores everything."""

    def notice(self, text: str) -> None:
        """Ignore the line."""

    def progress(self, step: int, metrics: Mapping[str, float]) -> None:
        """Ignore the step."""


@dataclass(frozen=True)
class TrainingResult:
    """How a call to :meth:`Trainer.train` ended."""

    step: int
    interrupted: bool
    loss: float | None  # bits/dim, of the last line of metrics
    held_out: float | None  # bits/dim
    seconds: float  # of this call


class Trainer:
    """Trains a run on data, from its last checkpoint on.

    Creating it checks the configuration and writes nothing; :meth:`train` writes the folder.

    Args:
        run: Configuration and folder.
        data: The train split is trained on; the test split gives the held-out value.
        world: This process's place among all.
        reporter: Receives progress, on the process that writes.
        start: Tensors of the state to start from; by default fresh weights.
        net: The network of a run whose network is custom; it is copied.
    """

    def __init__(
        self,
        run: Run,
        data: Dataset,
        world: World,
        reporter: Reporter | None = None,
        start: Mapping[str, Tensor] | None = None,
        net: nn.Module | None = None,
    ) -> None:
        self.run, self.data, self.world, self.settings = run, data, world, run.config.train
        self.reporter: Reporter = reporter if reporter and world.writes else Silent()
        world.rows(self.settings.batch_size, pieces=self.settings.accumulate)
        learning_rate(self.settings, 0)
        self.fresh = start is None
        self._check_origin(begun=bool(checkpoint.steps(run.checkpoints)))
        check_training_size(run.config, world.device, world.size, net)
        self.state = State(run.config, world.device, start, net)
        self.net = world.wrap(self.state.net)
        lowered = in_precision(self.net, self.settings.precision, world.device)
        self.model = diffusion_ode(lowered, run.config)
        self.average = diffusion_ode(self.state.average.net, run.config)
        self.batches = Batches(self.settings.seed, self.settings.batch_size, len(data.train))
        self.latest: dict[str, float] = {}
        self.pace = (0, 0.0)  # steps since the last line of metrics, and the seconds they took
        self.draws = self.settings.sample_every > 0 and drawable(run.config)
        if self.settings.compile:
            self._compile()

    def train(self) -> TrainingResult:
        """Write ``config.json`` and train to the configured number of steps, or until Ctrl-C."""
        if self.world.writes:
            self.run.write_config()
        self._check_origin(self.state.restore(self.run, self.world, self.reporter.notice))
        began, first = time.perf_counter(), self.state.step
        if self.settings.sample_every and not self.draws:
            self.reporter.notice("no grids of samples: the data is not images of 1 or 3 colours")
        if first and self.world.writes:  # a kill may have come between checkpoint and model
            save_model(self.run.path, self.state.average.net.state_dict())
        stopped = False
        with (
            Interruption() as interruption,
            Loader(self.data.train, self.batches.indices, first) as loader,
            MetricsLog(self.run.metrics if self.world.writes else None, first) as log,
        ):
            while self.state.step < self.settings.steps and not stopped:
                start = time.perf_counter()
                self._advance(next(loader), log)
                asked = torch.tensor([float(interruption.requested)])
                stopped = bool(self.world.sum(asked) > 0)
                self.pace = (self.pace[0] + 1, self.pace[1] + time.perf_counter() - start)
                self._record(log, stopped)
        return TrainingResult(
            step=self.state.step,
            interrupted=stopped,
            loss=self.latest.get("loss"),
            held_out=self.latest.get("held_out"),
            seconds=time.perf_counter() - began,
        )

    def _compile(self) -> None:
        """Compile by computing one step: a failure is refused before anything is written."""
        compile_in_place(self.state.net, self.run.config)
        try:
            self.try_step()
        except (RuntimeError, OSError) as error:
            raise refusal(error) from None

    def try_step(self) -> None:
        """Compute the gradients of one batch and forget them: what fails, fails here."""
        with Loader(self.data.train, self.batches.indices) as loader:
            drawn = generator(self.settings.seed, Purpose.BATCH, 0)
            batch = self.state.objective.draw(next(loader), self.model.levels, drawn)
        kept = {name: x.clone() for name, x in self.state.net.named_buffers()}
        self._gradients(batch)
        self.state.optimiser.zero_grad()
        for name, x in self.state.net.named_buffers():  # a network of the user's may count
            x.copy_(kept[name])

    def _check_origin(self, begun: bool) -> None:
        """Refuse fine-tuning that has neither a checkpoint nor the weights it starts from."""
        parent = self.run.parent
        if parent is not None and self.fresh and not begun:
            raise InputError(
                f"{self.run.path} was to be fine-tuned from {parent.run} and has no checkpoint "
                f"yet: begin again with {parent.command(self.run.path)}"
            )

    def _advance(self, samples: Tensor, log: MetricsLog) -> None:
        """One optimiser step on a global batch."""
        state, step = self.state, self.state.step
        drawn = generator(self.settings.seed, Purpose.BATCH, step)
        batch = state.objective.draw(samples, self.model.levels, drawn)
        losses, norm = self._gradients(batch)
        loss = losses.total(self.run.config.objective.ratio)
        scaled = loss.double() / batch.times.density
        if not (math.isfinite(norm) and bool(torch.isfinite(scaled).all())):
            self._stop_diverged(scaled, norm, log)
        for group in state.optimiser.param_groups:
            group["lr"] = learning_rate(self.settings, step)
        state.optimiser.step()
        state.average.update(state.net, step)
        if isinstance(state.objective.density, Adaptive) and state.density_optimiser is not None:
            # Every process has all losses of the batch, so all take the same step.
            state.density_optimiser.zero_grad()
            state.objective.density.second_moment(batch.times, loss).backward()  # type: ignore[no-untyped-call]
            state.density_optimiser.step()
        state.counter += 1
        state.interval.add(scaled, losses.second.double() / batch.times.density, norm)

    def _gradients(self, batch: Batch) -> tuple[Losses, float]:
        """Gradients into the network; losses ``(B,)`` of the global batch and the norm."""
        settings, state, world = self.settings, self.state, self.world
        state.net.train()
        state.optimiser.zero_grad()
        terms = []
        for piece in range(settings.accumulate):
            rows = world.rows(settings.batch_size, piece, settings.accumulate)
            part = batch.part(rows, world.device)
            last = piece == settings.accumulate - 1
            place = (settings.seed, state.step, world.rank, piece)
            with (
                float32_products(tf32=settings.precision == "tf32"),
                nullcontext() if last else world.accumulating(self.net),
            ):
                with seeded_globally(world.device, *place):
                    losses = state.objective.losses(self.model, part)
                total = losses.total(self.run.config.objective.ratio)
                mean = (double(total) / part.times.density).mean() / settings.accumulate
                mean.backward()  # type: ignore[no-untyped-call]
            terms.append(torch.stack([losses.first, losses.second], dim=1).detach())
        limit = math.inf if settings.clip is None else settings.clip
        norm = float(clip_grad_norm_(state.net.parameters(), limit))
        first, second = world.gather(torch.cat(terms)).cpu().unbind(1)
        return Losses(first, second), norm

    def _stop_diverged(self, scaled: Tensor, norm: float, log: MetricsLog) -> None:
        """Save the state before this step and name the samples whose loss is not finite."""
        step, indices = self.state.step, self.batches.indices(self.state.step)
        culprits = indices[~torch.isfinite(scaled)] if not scaled.isfinite().all() else indices
        log.write({"step": step, "event": "diverged", "samples": culprits.tolist()})
        self.save(None)
        named = ", ".join(map(str, culprits[:MAX_LISTED].tolist()))
        more = f" and {len(culprits) - MAX_LISTED} more" if len(culprits) > MAX_LISTED else ""
        raise Diverged(
            f"the loss is not finite in step {step} (gradient norm {norm:g}; training samples "
            f"{named}{more}); the state before it is saved in {self.run.path}: look at these "
            "samples, or resume with a smaller train.lr or with train.clip"
        )

    def _record(self, log: MetricsLog, stopped: bool) -> None:
        """Write metrics, held-out value, sample grid and checkpoint, each at its interval."""
        settings, done = self.settings, self.state.step
        last = done == settings.steps
        line: dict[str, float] = {}
        if last or done % settings.log_every == 0:
            line = self.state.interval.summary(math.prod(self.run.config.model.shape))
            line["lr"] = learning_rate(settings, done - 1)
            line["images_per_second"] = self.pace[0] * settings.batch_size / self.pace[1]
            self.state.interval.clear()
            self.pace = (0, 0.0)
        if last or done % settings.evaluate_every == 0:
            line["held_out"] = held_out_bits(
                self.average, self.data.test, self.run.config, self.world
            )
        if line:
            self.latest |= line
            log.write({"step": done, **line})
        # Before the checkpoint: after a kill in between, the same grid is drawn again.
        if self.draws and self.world.writes and (last or done % settings.sample_every == 0):
            self._draw(log)
        if last or stopped or done % settings.checkpoint_every == 0:
            self.save(line.get("held_out"))
        self.reporter.progress(done, self.latest)

    def _draw(self, log: MetricsLog) -> None:
        """A grid of samples of the averaged weights."""
        step = self.state.step
        path = self.run.sample_grid(step)
        picture = draw_grid(path, self.average, self.run.config, self.reporter.notice)
        if picture is not None:
            log.show("samples", picture, step)

    def save(self, held_out: float | None) -> None:
        """A checkpoint and the model, on the process that writes."""
        if self.world.writes:
            state = self.state
            tensors, keep = state.tensors(), self.settings.keep
            checkpoint.save(self.run.checkpoints, state.step, tensors, held_out, keep)
            save_model(self.run.path, state.average.net.state_dict())
            settle(self.run.path)
