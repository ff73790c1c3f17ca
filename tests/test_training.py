from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from forking import forks
from safetensors.torch import load_file

from idode.diffusion.noise_levels import Adaptive, Designed
from idode.diffusion.objectives import Losses
from idode.errors import InputError
from idode.numerics import float32_products
from idode.runs.config import ObjectiveConfig, TrainConfig
from idode.runs.objective_config import LEARNED
from idode.runs.run import Run, build_net, diffusion_ode, open_run
from idode.training import checkpoint
from idode.training import soap as soap_module
from idode.training.finetuning import finetuned, starting_state
from idode.training.held_out import held_out_bits
from idode.training.matrices import MatrixOptimizer
from idode.training.metrics import IntervalSums, MetricsLog
from idode.training.muon import Muon, orthogonalised
from idode.training.objective import Objective, build_density
from idode.training.optimisation import (
    OPTIMIZERS,
    Average,
    adam,
    exponential_rate,
    learning_rate,
    muon,
)
from idode.training.soap import Soap
from idode.training.state import State
from idode.training.train import finetune
from idode.training.trainer import Trainer
from idode.training.watch import Diverged

# Everything that could break a resumed run: dropout, augmentation, pieces, a learned density.
ALL_AT_ONCE = (
    "net.dropout=0.2",
    "objective.augment=true",
    "objective.density=adaptive",
    "train.accumulate=2",
    "train.clip=100",
    "train.keep=3",
)


class Notes:
    """A reporter that remembers, and may ask for an interruption."""

    def __init__(self, interrupt_at: int | None = None) -> None:
        self.texts: list[str] = []
        self.interrupt_at = interrupt_at

    def notice(self, text: str) -> None:
        self.texts.append(text)

    def progress(self, step: int, metrics: object) -> None:
        if step == self.interrupt_at:
            signal.raise_signal(signal.SIGINT)


def state_bytes(run: Path, step: int = 20) -> bytes:
    return (run / "checkpoints" / f"step-{step:09d}" / "state.safetensors").read_bytes()


def lines(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def without_pace(run: Path) -> list[dict]:
    return [{k: v for k, v in m.items() if k != "images_per_second"} for m in lines(run)]


def go_on(path: Path, *settings: str, notes: Notes | None = None) -> Trainer:
    trainer = Trainer(
        Run(path, tiny.config(*settings), tiny.dataset().identity), tiny.dataset(), tiny.CPU, notes
    )
    trainer.train()
    return trainer


class TestOptimisation:
    def test_the_rate_warms_up_and_decays_to_nothing(self) -> None:
        config = TrainConfig(lr=1.0, warmup=4, steps=100, decay="linear")
        assert [learning_rate(config, s) for s in (0, 1, 50)] == [0.25, 0.5 * 0.99, 0.5]
        cosine = TrainConfig(lr=1.0, warmup=0, steps=100, decay="cosine")
        assert learning_rate(cosine, 50) == pytest.approx(0.5)
        assert learning_rate(cosine, 100) == pytest.approx(0.0)
        assert learning_rate(TrainConfig(lr=3.0), 10**9) == 3.0

    def test_everything_but_biases_decays(self) -> None:
        net = build_net(tiny.config())
        decayed, spared = adam(net.named_parameters(), TrainConfig()).param_groups
        assert (decayed["weight_decay"], spared["weight_decay"]) == (0.01, 0.0)
        biases = {id(p) for name, p in net.named_parameters() if name.endswith("bias")}
        assert {id(p) for p in spared["params"]} == biases
        scale = net.norm_out.weight  # a scale of a normalisation, which is decayed as well
        assert any(p is scale for p in decayed["params"])

    @pytest.mark.parametrize("shape", [(3, 8, 20), (2, 20, 8)])
    def test_muon_brings_singular_values_near_one(self, shape: tuple[int, ...]) -> None:
        drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        u, s, vh = torch.linalg.svd(drawn, full_matrices=False)
        found = orthogonalised(u * (0.05 + s)[:, None] @ vh)
        values = torch.linalg.svdvals(found)
        assert values.min() > 0.6
        assert values.max() < 1.3
        # The directions are those of the momentum.
        turned = u.mT @ found @ vh.mT
        assert (turned - torch.diag_embed(turned.diagonal(dim1=1, dim2=2))).abs().max() < 1e-4

    @pytest.mark.parametrize("shape", [(4, 6, 30), (4, 30, 6)])
    def test_muon_multiplies_by_the_factors_of_the_published_iteration(
        self, shape: tuple[int, ...]
    ) -> None:
        drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        drawn[0, 2:, 2:] = 0.0  # of low rank
        drawn[1, :, 0] *= 1e6
        drawn[2] = 0.0
        a, b, c = 3.4445, -4.7750, 2.0315  # Jordan et al., 2024
        x = drawn / (torch.linalg.matrix_norm(drawn, keepdim=True) + 1e-7)
        for _ in range(5):
            square = x @ x.mT
            x = a * x + (b * square + c * square @ square) @ x
        torch.testing.assert_close(orthogonalised(drawn), x, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(orthogonalised(drawn.float()), x.float(), rtol=0, atol=2e-3)

    @pytest.mark.parametrize("power", [1, 2, 4])
    def test_muon_amplifies_little_of_what_float32_rounds(self, power: int) -> None:
        drawn = torch.randn(2, 64, 576, generator=torch.Generator().manual_seed(0)).double()
        u, _, vh = torch.linalg.svd(drawn, full_matrices=False)
        falling = u * torch.arange(1, 65) ** -float(power) @ vh  # as momenta are
        found, wanted = orthogonalised(falling.float()), orthogonalised(falling)
        assert (found - wanted).norm() < 4e-3 * wanted.norm()

    def test_muon_computes_in_float32_whatever_the_kernels_are_of(self) -> None:
        drawn = torch.randn(2, 64, 64, generator=torch.Generator().manual_seed(0))
        u, _, vh = torch.linalg.svd(drawn)
        falling = (u * torch.arange(1, 65) ** -2.0 @ vh).bfloat16()
        found = orthogonalised(falling)
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found, orthogonalised(falling.float()).bfloat16())

    def test_kernels_are_moved_by_products_of_float32(self) -> None:
        seen = []

        class Recorder(MatrixOptimizer):
            def _move(self, *_: object) -> None:
                seen.append((torch.get_float32_matmul_precision(), (kernel @ kernel).dtype))

        kernel = torch.nn.Parameter(torch.ones(2, 2))
        kernel.grad = torch.ones(2, 2)
        with float32_products(tf32=True), torch.autocast("cpu", torch.bfloat16):
            Recorder([kernel], {}).step()
            assert torch.get_float32_matmul_precision() == "high"
        assert seen == [("highest", torch.float32)]

    def test_muon_moves_hidden_kernels_and_adam_the_rest(self) -> None:
        config = TrainConfig(lr=1e-3, matrix_lr=0.5, weight_decay=0.0)
        net = build_net(tiny.config())
        optimizer = muon(net.named_parameters(), config)
        before = {name: p.detach().clone() for name, p in net.named_parameters()}
        for number, p in enumerate(net.parameters()):
            g = torch.Generator().manual_seed(number)
            p.grad = torch.empty_like(p).copy_(torch.randn(p.shape, generator=g))
        optimizer.step()
        for name, p in net.named_parameters():
            change = (p.detach() - before[name]).flatten(1 if p.ndim > 1 else 0)
            if p.ndim > 1 and not name.startswith(("conv_in", "conv_out")):
                rows, columns = change.shape
                steps = torch.linalg.svdvals(change) / math.sqrt(max(1.0, rows / columns))
                assert 0.3 < steps.mean() < 0.65, name
            else:  # the first step of Adam is the learning rate in every entry
                assert change.abs().max() == pytest.approx(1e-3, rel=1e-3), name

    def test_a_step_that_is_not_finite_is_left_out(self) -> None:
        weight = torch.nn.Parameter(torch.eye(3))
        optimizer = Muon([weight], 0.1, 0.95, 0.1)
        weight.grad = torch.full((3, 3), torch.nan)
        optimizer.found_inf = torch.ones(())  # type: ignore[attr-defined]
        optimizer.step()
        assert torch.equal(weight, torch.eye(3))
        assert torch.equal(optimizer.state[weight]["momentum"], torch.zeros(3, 3))

    def test_soap_leaves_everything_alone_where_a_step_is_not_finite(self) -> None:
        weight = torch.nn.Parameter(torch.eye(3))
        optimizer = Soap([weight], 0.1, (0.9, 0.99), 1e-8, 0.1)
        for seed in range(2):
            weight.grad = torch.randn(3, 3, generator=torch.Generator().manual_seed(seed))
            optimizer.step()
        before = [weight.detach().clone(), *(x.clone() for x in optimizer.state[weight].values())]
        weight.grad = torch.full((3, 3), torch.nan)
        optimizer.found_inf = torch.ones(())  # type: ignore[attr-defined]
        optimizer.step()
        after = [weight.detach(), *optimizer.state[weight].values()]
        assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))

    def test_the_bases_of_soap_stand_by_falling_size_and_its_steps_by_the_rate(self) -> None:
        """A gradient of low rank at first, as that of a wide kernel is: no column wanders."""
        sizes = torch.logspace(0, -3, 12)[:, None]
        weight = torch.nn.Parameter(torch.zeros(4, 12))
        optimizer = Soap([weight], 1.0, (0.9, 0.99), 1e-8, 0.0)
        g = torch.Generator().manual_seed(0)
        mixed = torch.linalg.qr(torch.randn(12, 12, generator=g)).Q
        for _ in range(100):
            weight.grad = (mixed @ (sizes * torch.randn(12, 4, generator=g))).mT.contiguous()
            before = weight.detach().clone()
            optimizer.step()
        state = optimizer.state[weight]
        basis = state["right_basis"]
        found = (basis * (state["right"] @ basis)).sum(0)
        assert (found.diff() <= 1e-3 * found[0]).all()
        turned = state["left_basis"].mT @ (weight.detach() - before) @ basis
        assert turned.abs().max() < 4  # rates: of Adam's ratio, which is of order one

    def test_the_first_gradient_that_is_not_zero_gives_soap_its_bases(self, monkeypatch) -> None:
        """By a decomposition in float64, which devices without one leave to the host."""
        seen = []
        for name in ("eigh", "qr"):
            own = getattr(torch.linalg, name)
            listening = lambda x, own=own, name=name: (seen.append((name, x.dtype)), own(x))[1]  # noqa: E731
            monkeypatch.setattr(torch.linalg, name, listening)
        weight = torch.nn.Parameter(torch.zeros(4, 6))
        optimizer = Soap([weight], 0.1, (0.9, 0.99), 1e-8, 0.0)
        state, g = optimizer.state[weight], torch.Generator().manual_seed(0)
        for step in range(13):
            weight.grad = torch.randn(4, 6, generator=g) if step > 1 else torch.zeros(4, 6)
            optimizer.step()
            for side, size in (("left", 4), ("right", 6)):
                basis = state[f"{side}_basis"]
                if step < 2:
                    assert torch.equal(basis, torch.eye(size))
                elif step == 2:
                    turned = basis.mT @ state[side] @ basis
                    assert (turned - turned.diagonal().diag()).abs().max() < 1e-6
                    assert (turned.diagonal().diff() <= 1e-6).all()
        assert seen == [("eigh", torch.float64)] * 2 + [("qr", torch.float64)] * 2

    def test_hidden_layers_of_a_fresh_network_have_bases_after_six_steps(
        self, tmp_path: Path
    ) -> None:
        """Last layers of the network, its blocks and their times are zero: each hides others."""
        trainer = tiny.train(tmp_path, "train.optimizer=soap", "train.steps=6")
        bases = {k: v for k, v in trainer.state.tensors().items() if "_basis/" in k}
        assert bases
        axes = {k for k, v in bases.items() if len(v) > 1 and torch.equal(v, v.round())}
        assert not axes

    def test_a_side_too_long_for_a_basis_keeps_its_entries(self, monkeypatch) -> None:
        monkeypatch.setattr(soap_module, "LARGEST", 5)
        weight = torch.nn.Parameter(torch.zeros(4, 12))
        optimizer = Soap([weight], 0.1, (0.9, 0.99), 1e-8, 0.0)
        assert optimizer.state[weight]["right_basis"].shape == (0, 0)
        g = torch.Generator().manual_seed(0)
        for _ in range(2):
            weight.grad = torch.randn(4, 12, generator=g)
            optimizer.step()
        assert 0.05 < weight.abs().mean() < 0.2

    @pytest.mark.parametrize("zeros", [0, 3])
    def test_the_first_move_of_soap_is_one_rate_in_every_direction(self, zeros: int) -> None:
        weight = torch.nn.Parameter(torch.zeros(6, 6))
        optimizer = Soap([weight], 0.1, (0.9, 0.99), 1e-12, 0.0)
        g = torch.Generator().manual_seed(0)
        for step in range(zeros + 2):
            weight.grad = torch.randn(6, 6, generator=g) * (step >= zeros)
            optimizer.step()
        assert weight.square().mean().sqrt().item() == pytest.approx(0.1, rel=1e-4)

    def test_soap_does_not_step_along_the_rounding_of_its_first_gradient(self) -> None:
        """In bases of that gradient all but a diagonal is rounding, and Adam divides by size."""
        ends = []
        for factor in (1.0, 1 + 1e-6):
            weight = torch.nn.Parameter(torch.zeros(6, 6))
            optimizer = Soap([weight], 0.1, (0.9, 0.99), 1e-8, 0.0)
            g = torch.Generator().manual_seed(0)
            for step in range(2):
                weight.grad = factor * torch.randn(6, 6, generator=g)
                optimizer.step()
                assert bool(weight.any()) == (step > 0)
            ends.append(weight.detach())
        assert (ends[0] - ends[1]).abs().max() < 1e-4

    def test_soap_does_not_see_a_rotation_where_adam_does(self) -> None:
        """The loss |A W B - C|^2 with entries mixed: the same steps in any orthogonal basis."""

        def end(make, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            g = torch.Generator().manual_seed(0)
            a = torch.diag(torch.logspace(0, -2, 6, dtype=torch.float64))
            target = torch.randn(6, 6, generator=g, dtype=torch.float64)
            weight = torch.nn.Parameter(turn[0] @ torch.zeros_like(target) @ turn[1].mT)
            optimizer = make([weight])
            for _ in range(40):
                optimizer.zero_grad()
                (a @ (turn[0].mT @ weight @ turn[1]) - target).square().sum().backward()
                optimizer.step()
            return (turn[0].mT @ weight @ turn[1]).detach()

        g = torch.Generator().manual_seed(1)
        turns = [
            torch.linalg.qr(torch.randn(n, n, generator=g, dtype=torch.float64)).Q for n in (6, 6)
        ]
        still = [torch.eye(n, dtype=torch.float64) for n in (6, 6)]
        soap = lambda kernels: Soap(kernels, 0.1, (0.9, 0.99), 1e-8, 0.0)  # noqa: E731
        adamw = lambda kernels: torch.optim.AdamW(kernels, 0.1, (0.9, 0.99))  # noqa: E731
        moved, same = (
            float((end(make, turns) - end(make, still)).abs().max()) for make in (adamw, soap)
        )
        assert moved > 1
        assert same < 1e-3 * moved

    def test_the_average_forgets_geometrically(self) -> None:
        net = torch.nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            net.weight.fill_(0.0)
        average = Average(net, exponential_rate(TrainConfig(ema=0.9)))
        with torch.no_grad():
            net.weight.fill_(1.0)
        for step in range(3):
            average.update(net, step)
        assert float(average.net.weight) == pytest.approx(1 - 0.9**3)

    def test_a_warming_average_is_soon_near_the_weights(self) -> None:
        rate = exponential_rate(TrainConfig(ema=0.9999, ema_warmup=True))
        assert rate(0) == 0.1
        assert rate(90) == 0.91
        assert rate(10**9) == 0.9999


class TestObjective:
    model = diffusion_ode(build_net(tiny.config()), tiny.config())

    def draw(self, *, seed: int = 0, **settings: object):
        density = Designed(self.model.schedule, self.model.gamma_min, self.model.gamma_max)
        objective = Objective(ObjectiveConfig(**settings), density)
        generator = torch.Generator().manual_seed(seed)
        return objective.draw(torch.from_numpy(tiny.images()), 4, generator), objective

    def test_times_are_spread_evenly_over_the_whole_batch(self) -> None:
        batch, _ = self.draw()
        gaps = batch.times.t.sort().values.diff()
        torch.testing.assert_close(gaps, torch.full_like(gaps, 1 / 48))

    def test_pixels_become_the_centres_of_their_bins(self) -> None:
        batch, _ = self.draw()
        assert sorted(set(batch.x0.flatten().tolist())) == [-0.75, -0.25, 0.25, 0.75]

    def test_a_part_is_the_same_rows_of_everything(self) -> None:
        settings = {"order": 2, "probes": 2, "augment": True, "data": "uniform"}
        batch, objective = self.draw(**settings)
        again = torch.Generator().manual_seed(0)
        rows = torch.from_numpy(tiny.images()[8:16])
        drawn = objective.draw(rows, 4, again, first=8, count=48)  # as one of several processes
        for part in (batch.part(slice(8, 16), torch.device("cpu")), drawn):
            torch.testing.assert_close(part.x0, batch.x0[8:16])
            torch.testing.assert_close(part.eps, batch.eps[8:16])
            torch.testing.assert_close(part.times.gamma, batch.times.gamma[8:16])
            torch.testing.assert_close(part.probes, tuple(p[8:16] for p in batch.probes))
            torch.testing.assert_close(part.condition["flag"], batch.condition["flag"][8:16])
            torch.testing.assert_close(part.all_times.t, batch.times.t)

    def test_antithetic_pairs_share_all_but_the_sign_of_their_noise(self) -> None:
        batch, objective = self.draw(antithetic=True, augment=True)
        for x in (batch.x0, batch.times.gamma, batch.condition["flag"], batch.all_times.t):
            assert torch.equal(x[::2], x[1::2])
        assert torch.equal(batch.eps[::2], -batch.eps[1::2])
        gaps = batch.times.t[::2].sort().values.diff()
        torch.testing.assert_close(gaps, torch.full_like(gaps, 1 / 24))
        again = torch.Generator().manual_seed(0)
        rows = torch.from_numpy(tiny.images()[8:16])
        own = objective.draw(rows, 4, again, first=8, count=48)
        torch.testing.assert_close(own.x0, batch.x0[8:16])
        torch.testing.assert_close(own.eps, batch.eps[8:16])

    def test_an_odd_batch_has_no_pairs(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="batch_size=7: with antithetic=true every process"):
            tiny.train(tmp_path, "objective.antithetic=true", "train.batch_size=7")

    def test_the_simple_weighting_is_the_plain_squared_error_at_the_drawn_times(self) -> None:
        batch, objective = self.draw(weighting="simple")
        loss = objective.losses(self.model, batch).first / batch.times.density
        likelihood = Objective(ObjectiveConfig(), objective.density)
        weighted = likelihood.losses(self.model, batch).first
        weight = self.model.predictor.likelihood_weight(self.model.schedule, batch.times.gamma)
        # Both are sums of float32 with a factor before or after the rounding.
        torch.testing.assert_close(loss, (weighted / weight).double(), rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize(
        "name", ["designed", "uniform-gamma", "histogram", "uniform-time:straight"]
    )
    def test_every_density_estimates_the_same_loss(self, name: str) -> None:
        config = tiny.config("model.quantization=learned")
        model = diffusion_ode(build_net(config), config)
        objective = Objective(ObjectiveConfig(), build_density(name, model))
        samples = torch.from_numpy(np.tile(tiny.images(), (80, 1, 1, 1)))
        batch = objective.draw(samples, 4, torch.Generator().manual_seed(1))
        with torch.no_grad():
            loss = (objective.losses(model, batch).first / batch.times.density).mean()
        # A fresh network returns its input x, so that eps_hat = (alpha + sigma) x for VP.
        g = torch.linspace(model.gamma_min, model.gamma_max, 2001, dtype=torch.float64)
        alpha, sigma = model.schedule.alpha(g), model.schedule.sigma(g)
        x0_square = float((batch.x0.double() ** 2).sum() / len(samples))
        error = (
            16 * (1 - (alpha + sigma) * sigma) ** 2 + ((alpha + sigma) * alpha) ** 2 * x0_square
        )
        exact = float(torch.trapezoid(error / 2, g))
        assert float(loss) == pytest.approx(exact, rel=0.02)  # 3,840 samples

    @pytest.mark.parametrize(
        "name", ["designed", "uniform-gamma", "normal-gamma", "uniform-time:straight", *LEARNED]
    )
    def test_a_density_says_itself_whether_it_learns(self, name: str) -> None:
        density = build_density(name, self.model, torch.Generator().manual_seed(0))
        assert density.learns == (name in LEARNED)
        state = State(tiny.config(f"objective.density={name}"), tiny.CPU)
        assert state.objective.density.learns == density.learns
        kept = {k: v.clone() for k, v in state.tensors().items() if k.startswith("density")}
        assert bool(kept) == density.learns
        assert any(k.startswith("density_adam/") for k in kept) == (name == "adaptive")
        times = state.objective.density.draw(64, torch.Generator().manual_seed(0))
        state.learn_levels(times, times.gamma.exp())
        after = state.tensors()
        assert {k for k, v in kept.items() if torch.equal(v, after[k])} == set()

    def test_an_unknown_density_is_refused(self) -> None:
        with pytest.raises(InputError, match=r"no time density called 'even'.*uniform-time:CLOCK"):
            build_density("even", self.model)


class TestLoop:
    def test_training_lowers_the_loss_and_leaves_a_model_that_loads(self, tmp_path: Path) -> None:
        run, data = tiny.new_run(tmp_path, "train.steps=60", "train.lr=1e-2"), tiny.dataset()
        trainer = Trainer(run, data, tiny.CPU)
        fresh = held_out_bits(trainer.average, data.test, run.config, tiny.CPU)
        trained = trainer.train().held_out
        assert trained == lines(tmp_path)[-1]["held_out"]
        assert trained < 0.7 * fresh
        loaded = open_run(tmp_path).model()
        x, gamma = torch.randn(3, 1, 4, 4), torch.tensor([-4.0, 0.0, 4.0])
        torch.testing.assert_close(
            loaded.velocity(x, gamma), trainer.average.velocity(x, gamma), rtol=0, atol=0
        )

    def test_metrics_have_what_a_curve_needs(self, tmp_path: Path) -> None:
        tiny.train(tmp_path)
        found = lines(tmp_path)
        assert [m["step"] for m in found] == [5, 10, 15, 20]
        names = {"loss", "second_order", "loss_variance", "grad_norm", "lr", "images_per_second"}
        assert all(names <= m.keys() for m in found)
        assert all(math.isfinite(v) for m in found for v in m.values())
        assert ["held_out" in m for m in found] == [False, True, False, True]

    def test_pieces_add_up_to_the_whole_batch(self, tmp_path: Path) -> None:
        whole = tiny.train(tmp_path / "a").state.net.state_dict()
        pieces = tiny.train(tmp_path / "b", "train.accumulate=4").state.net.state_dict()
        for name, value in whole.items():
            torch.testing.assert_close(pieces[name], value, rtol=1e-3, atol=1e-5)

    def test_clipping_bounds_the_gradient(self, tmp_path: Path) -> None:
        trainer = tiny.train(tmp_path, "train.clip=0.5", "train.steps=1")
        gradients = torch.cat([p.grad.flatten() for p in trainer.state.net.parameters()])
        assert float(gradients.norm()) == pytest.approx(0.5, rel=1e-3)
        assert lines(tmp_path)[-1]["grad_norm"] > 0.5  # what is logged is what it was

    def test_nobodys_random_numbers_are_disturbed(self, tmp_path: Path) -> None:
        before = torch.get_rng_state()
        tiny.train(tmp_path, "net.dropout=0.5", "train.steps=3")
        assert torch.equal(torch.get_rng_state(), before)

    def test_the_seed_decides_everything(self, tmp_path: Path) -> None:
        for name, seed in {"a": 1, "b": 1, "c": 2}.items():
            tiny.train(tmp_path / name, f"train.seed={seed}", "net.dropout=0.2", "train.steps=5")
        a, b, c = (state_bytes(tmp_path / name, 5) for name in "abc")
        assert a == b
        assert a != c

    def test_an_adaptive_density_learns(self, tmp_path: Path) -> None:
        trainer = tiny.train(tmp_path, "objective.density=adaptive", "train.density_lr=0.05")
        density = trainer.state.objective.density
        assert isinstance(density, Adaptive)
        t = torch.linspace(0, 1, 9, dtype=torch.float64)
        line = trainer.model.gamma_min + t * (trainer.model.gamma_max - trainer.model.gamma_min)
        with torch.no_grad():
            bend = float((density.quantile(t) - line).abs().max())
        assert bend > 0.3

    def test_vectors_train_with_the_other_network(self, tmp_path: Path) -> None:
        from idode.runs.config import fit, override
        from idode.runs.presets import PRESETS

        rows = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
        data = tiny.dataset(rows, levels=None)
        settings = ["train.steps=4", "train.batch_size=8", "net.width=8", "train.evaluate_count=5"]
        config = fit(override(PRESETS["vectors"], settings), None, (2,))
        run = Run(tmp_path, config, data.identity)
        assert Trainer(run, data, tiny.CPU).train().step == 4
        assert open_run(tmp_path).model().levels is None

    def test_finetuning_starts_from_the_averaged_weights_with_both_terms(
        self, tmp_path: Path
    ) -> None:
        tiny.train(tmp_path / "first")
        trained = open_run(tmp_path / "first")
        config = finetuned(trained.config, ratio=0.2, unbiased=True)
        assert (config.objective.order, config.objective.probes) == (2, 2)
        assert config.train.lr == 5e-4
        run = Run(tmp_path / "second", config, trained.identity)
        run.write_config()
        trainer = Trainer(run, tiny.dataset(), tiny.CPU, start=starting_state(trained, False))
        for name, value in trained.weights().items():
            assert torch.equal(trainer.state.net.state_dict()[name], value)
        trainer._advance(
            trainer.prepare(0, torch.from_numpy(tiny.images()[:8])), MetricsLog(None, 0)
        )
        assert float(trainer.state.interval.sums[4]) != 0.0

    def test_fine_tuning_that_continues_keeps_weights_average_and_moments(
        self, tmp_path: Path
    ) -> None:
        tiny.train(tmp_path / "first", "finetune.continues=true", "train.decay=constant")
        trained = open_run(tmp_path / "first")
        config = finetuned(trained.config, ratio=0.0)
        assert (config.train.warmup, config.train.ema_warmup) == (0, False)
        run = Run(tmp_path / "second", config, trained.identity)
        start = starting_state(trained, True)
        trainer = Trainer(run, tiny.dataset(), tiny.CPU, start=start)
        assert trainer.state.step == 0
        live = trainer.state.tensors()
        assert {n.split("/")[0] for n in start} == {"net", "average", "adam"}
        assert all(torch.equal(live[name], value) for name, value in start.items())
        assert float(live["adam/step/conv_in.weight"]) == 20
        shutil.copytree(tmp_path / "first", tmp_path / "third")
        shutil.rmtree(tmp_path / "third" / "checkpoints")
        with pytest.raises(InputError, match="no checkpoint.*finetune.continues=false"):
            finetune(tmp_path / "third", out=tmp_path / "fourth", data=tiny.dataset())


class TestMetrics:
    def test_means_and_variance_are_those_of_all_samples(self) -> None:
        window, loss = IntervalSums(), torch.randn(3, 10, dtype=torch.float64) + 5
        for row in loss:
            window.add(row, row / 2, torch.tensor(4.0))
        bits = 1 / (7 * math.log(2))
        found = window.summary(window.sums, 7)
        assert found["loss"] == pytest.approx(float(loss.mean()) * bits)
        assert found["second_order"] == pytest.approx(float(loss.mean()) * bits / 2)
        assert found["loss_variance"] == pytest.approx(
            float(loss.var(correction=0)) * bits**2, rel=1e-9
        )
        assert found["grad_norm"] == 4.0

    def test_lines_of_an_earlier_attempt_and_torn_ones_are_removed(self, tmp_path: Path) -> None:
        path = tmp_path / "metrics.jsonl"
        path.write_text('{"step": 5}\n{"step": 10}\n{"step": 15}\n{"step": 7, "lo')
        with MetricsLog(path, 10) as log:
            log.write({"step": 11})
        assert [m["step"] for m in lines(tmp_path)] == [5, 10, 11]

    def test_tensorboard_gets_the_same_numbers_where_it_is_installed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        said: list[tuple[str, float, int]] = []

        class Writer:
            def __init__(self, folder: str, purge_step: int) -> None:
                assert (Path(folder).name, purge_step) == ("tensorboard", 1)

            def add_scalar(self, name: str, value: float, step: int) -> None:
                said.append((name, value, step))

            def close(self) -> None:
                said.append(("closed", 0, 0))

        package = types.ModuleType("torch.utils.tensorboard")
        package.SummaryWriter = Writer
        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", package)
        monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
        with MetricsLog(tmp_path / "metrics.jsonl", 0) as log:
            log.write({"step": 3, "loss": 1.5})
        assert said == [("loss", 1.5, 3), ("closed", 0, 0)]


class TestResuming:
    @pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
    def test_an_interrupted_run_goes_on_bit_for_bit(self, tmp_path: Path, optimizer: str) -> None:
        settings = (*ALL_AT_ONCE, f"train.optimizer={optimizer}")
        tiny.train(tmp_path / "whole", *settings)
        trainer = tiny.train(tmp_path / "parts", *settings, reporter=Notes(interrupt_at=12))
        assert trainer.state.step == 13  # the step during which it was asked is finished
        notes = Notes()
        go_on(tmp_path / "parts", *settings, notes=notes)
        assert notes.texts == ["resuming after step 13"]
        assert state_bytes(tmp_path / "whole") == state_bytes(tmp_path / "parts")
        assert without_pace(tmp_path / "whole") == without_pace(tmp_path / "parts")

    @pytest.mark.parametrize("done", [2, 4])
    def test_soap_goes_on_bit_for_bit_from_before_and_after_its_first_bases(
        self, tmp_path: Path, done: int
    ) -> None:
        settings = ("train.optimizer=soap", "train.steps=12", "train.checkpoint_every=1")
        tiny.train(tmp_path / "whole", *settings)
        trainer = tiny.train(tmp_path / "parts", *settings, reporter=Notes(interrupt_at=done - 1))
        assert trainer.state.step == done
        go_on(tmp_path / "parts", *settings)
        assert state_bytes(tmp_path / "whole", 12) == state_bytes(tmp_path / "parts", 12)

    def test_a_histogram_goes_on_bit_for_bit(self, tmp_path: Path) -> None:
        settings = (*ALL_AT_ONCE, "objective.density=histogram")
        tiny.train(tmp_path / "whole", *settings)
        tiny.train(tmp_path / "parts", *settings, reporter=Notes(interrupt_at=12))
        go_on(tmp_path / "parts", *settings)
        assert state_bytes(tmp_path / "whole") == state_bytes(tmp_path / "parts")

    @pytest.mark.parametrize("damage", ["flip", "cut", "manifest", "lost"])
    def test_a_damaged_checkpoint_is_passed_over_with_a_warning(
        self, tmp_path: Path, damage: str
    ) -> None:
        tiny.train(tmp_path)
        expected = state_bytes(tmp_path)
        last = tmp_path / "checkpoints" / "step-000000020"
        if damage == "flip":
            raw = bytearray(expected)
            raw[-100] ^= 1
            (last / "state.safetensors").write_bytes(bytes(raw))
        elif damage == "cut":
            (last / "state.safetensors").write_bytes(expected[:1000])
        elif damage == "manifest":
            (last / "manifest.json").write_text('{"step": 20')
        else:
            (last / "state.safetensors").unlink()
        notes = Notes()
        go_on(tmp_path, notes=notes)
        assert "warning: the checkpoint of step 20 is damaged" in notes.texts[0]
        assert notes.texts[1] == "resuming after step 10"
        assert state_bytes(tmp_path) == expected

    def test_a_checkpoint_of_another_network_is_refused(self, tmp_path: Path) -> None:
        tiny.train(tmp_path)
        with pytest.raises(InputError, match="of another configuration"):
            go_on(tmp_path, "net.width=16")

    def test_a_finished_run_has_its_model_even_if_death_came_before_it(
        self, tmp_path: Path
    ) -> None:
        tiny.train(tmp_path)
        model = load_file(tmp_path / "model.safetensors")
        (tmp_path / "model.safetensors").unlink()
        go_on(tmp_path)
        found = load_file(tmp_path / "model.safetensors")
        assert all(torch.equal(found[name], value) for name, value in model.items())

    def test_the_last_ones_and_the_best_are_kept(self, tmp_path: Path) -> None:
        values = {1: 3.0, 2: 1.0, 3: 2.0, 4: None, 5: 1.5, 6: 4.0}
        for step, held_out in values.items():
            checkpoint.save(tmp_path, step, {"x": torch.ones(2)}, held_out, keep=2)
        assert checkpoint.steps(tmp_path) == [2, 5, 6]
        assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


class TestTrouble:
    def test_a_loss_that_is_not_finite_stops_with_the_state_saved_and_the_sample_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        healthy = tiny.train(tmp_path / "healthy", reporter=Notes(interrupt_at=12))
        compute = Objective.losses
        trainer = Trainer(tiny.new_run(tmp_path / "sick"), tiny.dataset(), tiny.CPU)

        def poisoned(self: Objective, model: object, batch: object) -> Losses:
            losses = compute(self, model, batch)
            if trainer.state.step == 13 and torch.is_grad_enabled():
                losses.first.data[3] = math.nan
            return losses

        monkeypatch.setattr(Objective, "losses", poisoned)
        guilty = int(trainer.batches.indices(13)[3])
        with pytest.raises(Diverged, match=rf"step 13 .*training samples {guilty}\)"):
            trainer.train()
        assert state_bytes(tmp_path / "sick", 13) == state_bytes(tmp_path / "healthy", 13)
        assert lines(tmp_path / "sick")[-1] == {
            "step": 13,
            "event": "diverged",
            "samples": [guilty],
        }
        assert healthy.state.step == 13

    def test_a_rate_that_is_far_too_high_ends_in_a_sentence(self, tmp_path: Path) -> None:
        with pytest.raises(Diverged, match=r"--resume and a smaller train\.lr"):
            tiny.train(tmp_path, "train.lr=1e30", "train.warmup=0")
        step = max(checkpoint.steps(tmp_path / "checkpoints"))
        saved = load_file(tmp_path / "checkpoints" / f"step-{step:09d}" / "state.safetensors")
        assert all(bool(torch.isfinite(v).all()) for v in saved.values())

    def test_a_full_disk_is_a_sentence_and_earlier_checkpoints_stay(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", tiny.images())
        command = ["train", "digits", "--data", f"npy:{tmp_path / 'x.npy'}?levels=4", *tiny.FLAGS]
        command += ["--out", str(tmp_path / "run"), "--quiet", "--resume"]
        assert forks().run(*command, "--steps", 10, root=tmp_path).codes == [0]
        before = state_bytes(tmp_path / "run", 10)
        ended = forks().run(*command, root=tmp_path, file_limit=len(before) - 1)
        assert ended.codes == [2]
        assert "cannot write the checkpoint of step 20" in ended.text
        assert "that of step 10 is intact: make room" in ended.text
        assert len(ended.text.splitlines()) == 1
        assert state_bytes(tmp_path / "run", 10) == before
        assert checkpoint.steps(tmp_path / "run" / "checkpoints") == [10]

    def test_killed_again_and_again_it_ends_with_the_very_same_weights(
        self, tmp_path: Path
    ) -> None:
        """Moments are drawn anew in every run of the tests; the outcome never depends on them."""
        np.save(tmp_path / "x.npy", tiny.images())
        command = ["train", "digits", "--data", f"npy:{tmp_path / 'x.npy'}?levels=4", *tiny.FLAGS]
        for setting in (*ALL_AT_ONCE, "train.steps=24", "train.checkpoint_every=2"):
            command += ["--set", setting]
        whole, parts = tmp_path / "whole", tmp_path / "parts"
        start = time.monotonic()
        ended = forks().run(*command, "--out", whole, "--quiet", root=tmp_path)
        took = time.monotonic() - start
        assert ended.codes == [0], ended.text
        command += ["--out", str(parts), "--quiet", "--resume"]
        killed = 0
        for life in range(8):
            if life % 2:  # while a checkpoint is being written, or just after
                ended = forks().run(*command, root=tmp_path, kill_when="parts/checkpoints/*")
            else:  # on any machine four of these are at most half of the way
                moment = random.uniform(0.0, took / 8)
                ended = forks().run(*command, root=tmp_path, kill_after=moment)
            assert ended.codes in ([-signal.SIGKILL], [0]), ended.text
            killed += ended.codes == [-signal.SIGKILL]
        ended = forks().run(*command, root=tmp_path)
        assert ended.codes == [0], ended.text
        assert killed >= 4
        assert state_bytes(whole, 24) == state_bytes(parts, 24)
        assert without_pace(whole) == without_pace(parts)
        assert (whole / "model.safetensors").read_bytes() == (
            parts / "model.safetensors"
        ).read_bytes()

    def test_an_unwritable_folder_is_a_sentence(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match="cannot write to"):
            tiny.new_run(tmp_path / "file" / "run")

    def test_a_folder_without_permission_is_a_sentence(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o500)
        try:
            if os.access(tmp_path, os.W_OK):
                pytest.skip("permissions do not bind this user: root, or the file system")
            with pytest.raises(InputError, match="cannot write to"):
                tiny.new_run(tmp_path / "run")
        finally:
            tmp_path.chmod(0o700)

    def test_a_folder_that_refuses_is_a_sentence_for_root_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(path: Path, *args: object, **more: object) -> None:
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(Path, "mkdir", refuse)
        with pytest.raises(InputError, match=r"cannot write to .*Permission denied"):
            tiny.new_run(tmp_path / "run")
