"""The training loop: a step is a function of the state, the data and the seed alone.

Users call :func:`idode.train`; :class:`Trainer` is for callers that have a :class:`Run` in hand.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from idode.data.batches import Batches, Loader
from idode.data.prepared import Dataset
from idode.diffusion.objectives import Losses
from idode.errors import InputError
from idode.numerics import cpu_threads, double, float32_products
from idode.runs.config import TrainConfig
from idode.runs.distributed import World
from idode.runs.folder import settle
from idode.runs.run import Run, diffusion_ode, save_model
from idode.training import checkpoint
from idode.training.acceleration import compile_in_place, in_precision
from idode.training.budget import Budget
from idode.training.grids import draw_grid, no_grid
from idode.training.held_out import held_out_bits
from idode.training.interruption import Agreement, Interruption
from idode.training.memory_check import check_training_size
from idode.training.metrics import MetricsLog
from idode.training.objective import Batch
from idode.training.optimisation import learning_rate
from idode.training.pieces import pieces_that_fit
from idode.training.randomness import Purpose, generator, seeded_globally
from idode.training.reporter import Reporter, Silent, TrainingResult
from idode.training.snapshots import forget_after, write_snapshot
from idode.training.state import State
from idode.training.watch import Diverged, Watch

__all__ = ["Trainer"]


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
        own = world.rows(self.settings.batch_size, pieces=self.settings.accumulate)
        if run.config.objective.antithetic and (own.stop - own.start) % 2:
            raise InputError(
                f"batch_size={self.settings.batch_size}: with antithetic=true every process and "
                "piece needs an even number of samples, since they are made in pairs"
            )
        learning_rate(self.settings, 0)
        self.fresh = start is None
        self._check_origin(begun=bool(checkpoint.steps(run.checkpoints)))
        check_training_size(run.config, world.device, world.size, net)
        self.state = State(run.config, world, start, net)
        self.net = world.wrap(self.state.net)
        lowered = in_precision(self.net, self.settings.precision, world.device)
        self.model = diffusion_ode(self.state.net, run.config).with_net(lowered)
        self.average = diffusion_ode(self.state.average.net, run.config)
        used = len(data.train) - self.settings.hold_out
        if used < 1:
            raise InputError(
                f"hold_out={self.settings.hold_out} leaves nothing of {len(data.train)} training "
                "samples to train on: give a smaller one"
            )
        self.batches = Batches(self.settings.seed, self.settings.batch_size, used)
        self.own = world.rows(self.settings.batch_size)
        self.watch = Watch(world, self.own.stop - self.own.start)
        self.learns_levels = self.state.objective.density.learns
        self.latest: dict[str, float] = {}
        self.spent = 0.0  # seconds of train.minutes that were needed to choose settings
        self.pace = (0, 0.0)  # steps since the last line of metrics, and the seconds they took
        self.draws = self.settings.sample_every > 0 and not no_grid(run.config)
        if self.settings.compile:
            compile_in_place(self.net, run.config, self.try_step)

    def train(self) -> TrainingResult:
        """Write ``config.json`` and train to the configured number of steps, or until Ctrl-C."""
        if self.world.device.type == "cuda":
            self.fit_pieces()
        if self.world.writes:
            self.run.write_config()
        self._check_origin(self.state.restore(self.run, self.world, self.reporter.notice))
        began, first, stopped = time.perf_counter(), self.state.step, False
        if self.settings.sample_every and not self.draws:
            self.reporter.notice(f"no grids of samples: {no_grid(self.run.config)}")
        if self.world.writes:
            forget_after(self.run.path, first)  # snapshots that no checkpoint followed
            if first:  # a kill may have come between checkpoint and model
                save_model(self.run.path, self.state.average.net.state_dict())
        with (
            cpu_threads(self.settings.threads),
            Interruption() as interruption,
            self._loader(first) as loader,
            MetricsLog(self.run.metrics if self.world.writes else None, first) as log,
        ):
            agreement, limit = Agreement(self.world), self.settings.minutes
            budget = Budget(limit, first, self.settings.steps, self.spent) if limit else None
            while self.state.step < self.settings.steps and not stopped:
                start = time.perf_counter()
                self._advance(next(loader)(), log)
                stopped = agreement.stops(interruption.requested)
                line = self._metrics(log, stopped)
                self.pace = (self.pace[0] + 1, self.pace[1] + time.perf_counter() - start)
                self._record(line, log, stopped)
                if budget is not None and line and self.state.step < self.settings.steps:
                    self._replan(budget)
            agreement.settle()
        losses = self.latest.get("loss"), self.latest.get("held_out")
        return TrainingResult(self.state.step, stopped, *losses, time.perf_counter() - began)

    def fit_pieces(self) -> None:
        """Cut batches into twice as many pieces while they do not fit; the run remembers it."""
        rows = self.own.stop - self.own.start
        found = pieces_that_fit(self.try_step, rows, self.settings.accumulate, self.world)
        if found != self.settings.accumulate:
            self.reporter.notice(f"memory: train.accumulate is {found} from now on")
            self._adjust(replace(self.settings, accumulate=found))

    def _adjust(self, settings: TrainConfig) -> None:
        """Change settings on the way; the run remembers them."""
        self.settings = settings
        self.run = replace(self.run, config=replace(self.run.config, train=self.settings))

    def _replan(self, budget: Budget) -> None:
        """Set the number of steps that the time allows, the same for all processes."""
        steps = int(self.world.agree(str(budget.steps(self.state.step))))
        self.latest["steps"] = steps
        self._adjust(replace(self.settings, steps=steps))

    def try_step(self, pieces: int | None = None) -> None:
        """Compute gradients and forget them: what fails, fails here; in pieces, alone."""
        with self._loader(0) as loader:
            batch = next(loader)()
        kept = {name: x.clone() for name, x in self.state.net.named_buffers()}
        self.gradients(batch, pieces)
        self.state.optimiser.zero_grad()
        for name, x in self.state.net.named_buffers():  # a network of the user's may count
            x.copy_(kept[name])

    def _check_origin(self, begun: bool) -> None:
        """Refuse fine-tuning that has neither a checkpoint nor the weights it starts from."""
        parent = self.run.parent
        if parent is None or not self.fresh or begun:
            return
        raise InputError(
            f"{self.run.path} is {parent.relation} {parent.run} and has no checkpoint to go on "
            f"from: make it again by {parent.command(self.run.path)}"
        )

    def _loader(self, start: int) -> Loader[Callable[[], Batch]]:
        """Batches of this process, ready for the device, from the step ``start`` on."""

        def prepare(step: int, samples: Tensor) -> Callable[[], Batch]:
            if self.learns_levels:  # from the losses of the step before, so not ahead of it
                return lambda: self.prepare(step, samples)
            batch = self.prepare(step, samples)
            return lambda: batch

        own = self.own
        return Loader(
            self.data.train, lambda step: self.batches.indices(step)[own], start, prepare=prepare
        )

    def prepare(self, step: int, samples: Tensor) -> Batch:
        """Samples of this process with the noise of a step."""
        whole, drawn = self.settings.batch_size, generator(self.settings.seed, Purpose.BATCH, step)
        batch = self.state.objective.draw(samples, self.model.levels, drawn, self.own.start, whole)
        return batch.pinned() if self.world.device.type == "cuda" else batch

    def _advance(self, batch: Batch, log: MetricsLog) -> None:
        """One optimiser step; nothing is read from a GPU, so that the host runs ahead of it."""
        state, step = self.state, self.state.step
        losses, norm, density = self.gradients(batch)
        total = losses.total(self.run.config.objective.ratio)
        scaled = double(total) / density
        self.watch.see(step, scaled, norm)
        if self.world.device.type != "cuda":  # where a look costs nothing
            self._check_diverged(log)
        else:  # the fused step is not taken where this is one
            state.optimiser.found_inf = self.watch.diverged.to(torch.float32)  # type: ignore[union-attr]
        for group in state.optimiser.param_groups:
            group["lr"] = learning_rate(self.settings, step, group["peak"])
        state.optimiser.step()
        state.update_averages(step)
        if self.learns_levels:
            everyone = self.world.gather(total).cpu()
            if bool(everyone.isfinite().all()):  # a step that diverged would stay in them
                state.learn_levels(batch.all_times, everyone)
        state.counter += 1
        second = double(losses.second) / density
        state.interval.add(scaled, second, norm, self.watch.diverged)

    def gradients(self, batch: Batch, trial: int | None = None) -> tuple[Losses, Tensor, Tensor]:
        """Gradients into the network; losses ``(B,)`` of this process, the norm, the density."""
        settings, state, world = self.settings, self.state, self.world
        state.net.train()
        state.optimiser.zero_grad()
        terms, densities, pieces = [], [], trial or settings.accumulate
        size = len(batch.x0) // pieces
        for piece in range(pieces):
            part = batch.part(slice(piece * size, (piece + 1) * size), world.device)
            last = piece == pieces - 1 and trial is None
            place = (settings.seed, state.step, world.rank, piece)
            with (
                float32_products(tf32=settings.precision == "tf32"),
                nullcontext() if last else world.accumulating(self.net),
            ):
                with seeded_globally(world.device, *place):
                    losses = state.objective.losses(self.model, part)
                total = losses.total(self.run.config.objective.ratio)
                mean = (double(total) / part.times.density).mean() / pieces
                mean.backward()  # type: ignore[no-untyped-call]
            terms.append(torch.stack([losses.first, losses.second], dim=1).detach())
            densities.append(part.times.density)
        limit = math.inf if settings.clip is None else settings.clip
        norm = clip_grad_norm_(state.net.parameters(), limit)
        first, second = torch.cat(terms).unbind(1)
        return Losses(first, second), norm, torch.cat(densities)

    def _check_diverged(self, log: MetricsLog) -> None:
        """Save the state before a step that went wrong, and name the samples to blame."""
        if (found := self.watch.found()) is None:
            return
        step, scaled, norm = found
        self.state.counter.fill_(step)
        self.state.interval.collect(self.world)
        indices = self.batches.indices(step)
        culprits = indices[~torch.isfinite(scaled)] if not scaled.isfinite().all() else indices
        log.write({"step": step, "event": "diverged", "samples": culprits.tolist()})
        self.save(None)
        raise Diverged.at(step, norm, culprits.tolist(), self.run.path)

    def _due(self, every: int) -> bool:
        """Whether something that is done at intervals is due, as it is after the last step."""
        return self.state.step == self.settings.steps or self.state.step % every == 0

    def _metrics(self, log: MetricsLog, stopped: bool) -> dict[str, float]:
        """What the steps since the last line have come to, where a line is due.

        Here the host waits for the device: wherever anything is written, and nowhere else.
        """
        settings, state = self.settings, self.state
        reads = (settings.log_every, settings.evaluate_every, settings.checkpoint_every)
        if not (stopped or any(map(self._due, reads))):
            return {}
        self._check_diverged(log)
        sums = state.interval.collect(self.world)
        if not self._due(settings.log_every):
            return {}
        line = state.interval.summary(sums, math.prod(self.run.config.model.shape))
        state.interval.clear()
        return line | {"lr": learning_rate(settings, state.step - 1)}

    def _record(self, line: dict[str, float], log: MetricsLog, stopped: bool) -> None:
        """Write metrics, held-out value, sample grid and checkpoint, each at its interval."""
        settings, done = self.settings, self.state.step
        if line:
            line["images_per_second"] = self.pace[0] * settings.batch_size / self.pace[1]
            self.pace = (0, 0.0)
        if self._due(settings.evaluate_every):
            line["held_out"] = held_out_bits(
                self.average, self.data.test, self.run.config, self.world
            )
        if line:
            self.latest |= line
            log.write({"step": done, **line})
        # Before the checkpoint: after a kill in between, the same grid is drawn again.
        if self.draws and self.world.writes and self._due(settings.sample_every):
            path, config = self.run.sample_grid(done), self.run.config
            log.show("samples", draw_grid(path, self.average, config, self.reporter.notice), done)
        if self.state.powers and self.world.writes and self._due(settings.snapshot_every):
            write_snapshot(self.run.path, done, self.state.snapshot())
        if stopped or self._due(settings.checkpoint_every):
            self.save(line.get("held_out"))
        self.reporter.progress(done, self.latest)

    def save(self, held_out: float | None) -> None:
        """A checkpoint and the model, on the process that writes."""
        state = self.state
        if self.world.writes:
            if self.settings.minutes is not None:
                self.run.write_config()  # the steps as they are planned now
            place, keep = (self.run.checkpoints, state.step), self.settings.keep
            checkpoint.save(*place, state.tensors(), held_out, keep)
            save_model(self.run.path, state.average.net.state_dict())
            settle(self.run.path)
