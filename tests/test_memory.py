"""Batches that do not fit into memory, and how much of it a training step takes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch
from torch import Tensor

import idode
from idode.batches import FittingSize
from idode.errors import InputError
from idode.likelihood.estimator import LikelihoodSettings
from idode.nets.config import CustomNetConfig
from idode.ode.adams import Adams
from idode.runs.config import fit, override
from idode.runs.presets import PRESETS
from idode.runs.run import Run, open_run
from idode.training import memory_check
from idode.training.finetuning import finetuned
from idode.training.memory_check import optimiser_bytes, shapes_of, weight_bytes
from idode.training.memory_estimate import (
    BYTES,
    TIMES,
    StepMemory,
    in_units,
    memory_lines,
    step_memory,
)
from idode.training.optimisation import OPTIMIZERS
from idode.training.soap import LARGEST
from idode.training.state import State
from idode.training.train import finetune
from idode.training.trainer import Trainer

FULL = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def model_of(largest: int) -> tuple[idode.DiffusionODE, list[int]]:
    """A model on a device where no more states than ``largest`` fit, and what it was given."""
    seen: list[int] = []

    def net(x: Tensor, t: Tensor) -> Tensor:
        if len(x) > largest:
            raise FULL
        seen.append(len(x))
        return 0.5 * x

    shape = (2,)
    return idode.wrap(net, "noise", "vp", levels=4, shape=shape, gamma_min=-4.0), seen


def test_evaluation_and_sampling_halve_a_batch_that_does_not_fit_and_remember() -> None:
    pixels = torch.randint(0, 4, (40, 2), generator=torch.Generator().manual_seed(0))
    settings = LikelihoodSettings(solver=Adams(steps=5), batch_size=32, n_importance=2)
    wide, _ = model_of(100)
    narrow, seen = model_of(9)
    whole, parts = (m.bits_per_dim(pixels, settings).per_image for m in (wide, narrow))
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-6)
    assert max(seen) == 8  # 32, 16 and then 8 were tried
    whole, parts = (m.sde_bound(pixels, draws=2).per_image for m in (wide, narrow))
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-6)
    seen.clear()
    drawn = [m.sample(20, solver=Adams(steps=5)) for m in (wide, narrow)]
    assert torch.equal(*drawn)


def test_what_fits_is_tried_once_and_other_errors_are_not_about_memory() -> None:
    size, tried = FittingSize(8), []

    def work(lo: int, hi: int) -> int:
        tried.append(hi - lo)
        if hi - lo > 3:
            raise FULL
        return hi - lo

    assert list(size.each(10, work)) == [2] * 5
    assert tried == [8, 4, 2, 2, 2, 2, 2]
    assert list(size.each(4, work)) == [2, 2]

    def broken(lo: int, hi: int) -> int:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        list(size.each(4, broken))
    with pytest.raises(InputError, match="not even one sample fits"):
        list(FittingSize(2).each(2, lambda lo, hi: (_ for _ in ()).throw(FULL)))


def test_training_takes_more_pieces_and_its_run_remembers(tmp_path: Path) -> None:
    trainer = Trainer(tiny.new_run(tmp_path), tiny.dataset(), tiny.CPU)

    def small_only(net: torch.nn.Module, given: tuple[Tensor, ...]) -> None:
        if len(given[0]) > 2:
            raise FULL

    trainer.state.net.register_forward_pre_hook(small_only)
    trainer.fit_pieces()
    assert trainer.settings.accumulate == 4
    trainer.train()
    assert open_run(tmp_path).config.train.accumulate == 4
    trainer.own = slice(0, 6)
    trainer.settings = tiny.config("train.batch_size=6").train
    trainer.batches = trainer.batches.__class__(0, 6, 40)
    with pytest.raises(InputError, match="3 samples do not fit .*checkpointing=true"):
        trainer.fit_pieces()


def test_evaluation_and_fine_tuning_may_recompute_what_training_kept(tmp_path: Path) -> None:
    tiny.train(tmp_path / "run", "train.steps=2", "net.depth=3")
    how = {"data": tiny.dataset(), "limit": 2, "progress": False, "device": "cpu"}
    fixed = LikelihoodSettings(solver=Adams(steps=4))
    found = [
        idode.evaluate(
            tmp_path / "run", settings=fixed, checkpointing=on, journal=tmp_path / f"{on}", **how
        )
        for on in (False, True)
    ]
    torch.testing.assert_close(found[0].results[0].per_image, found[1].results[0].per_image)
    settings = ["net.checkpointing=true", "train.steps=1"]
    tuned = finetune(
        tmp_path / "run", out=tmp_path / "tuned", data=tiny.dataset(), settings=settings,
        device="cpu", progress=False,
    )  # fmt: skip
    assert tuned.config.net.checkpointing


class TestEstimate:
    def test_it_counts_what_is_alive_at_once(self) -> None:
        """Twice the depth and twice the width take twice the activations; recomputing saves."""
        base = ["net.width=32", "net.depth=4", "net.attention=none", "net.dropout=0"]
        small, deep, wide, frugal = (
            step_memory(override(PRESETS["cifar10-vp"], [*base, *more]))
            for more in ([], ["net.depth=8"], ["net.width=64"], ["net.checkpointing=true"])
        )
        assert 1.6 < deep.image / small.image < 2
        assert 1.9 < wide.image / small.image < 2.1
        assert frugal.image < 0.6 * small.image
        assert 1.2 < frugal.flops / small.flops < 1.5  # the forward pass again

    def test_it_counts_products(self) -> None:
        """Of a layer: a product forward, one for its weights, one for its input."""

        class Net(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.second = torch.nn.Linear(5, 5), torch.nn.Linear(5, 5)

            def forward(self, x: Tensor, t: Tensor) -> Tensor:
                return self.second(self.first(x))

        config = fit(replace(PRESETS["vectors"], net=CustomNetConfig("Net")), None, (5,))
        # Of the input of the first layer nobody asks for a gradient.
        assert step_memory(config, Net()).flops == 2 * 5 * 5 * (3 + 2)

    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    @pytest.mark.parametrize("more", [(), ("path.bits=4",), ("train.snapshot_every=10",)])
    def test_it_counts_what_the_state_of_a_training_holds(
        self, optimizer: str, more: tuple[str, ...]
    ) -> None:
        """With sides of kernels on either side of the longest that SOAP has a basis for."""
        wide = ("net.width=116", "net.groups=4", f"train.optimizer={optimizer}")
        config = tiny.config(*wide, *more)
        state = State(config, tiny.CPU)
        sides = {n for p in state.net.parameters() if p.ndim > 1 for n in p.flatten(1).shape}
        assert min(sides) < LARGEST < max(sides)
        networks = [state.net, state.average.net, *(a.net for a in state.powers.values())]
        kept = [p for net in networks for p in net.parameters()]
        kept += [x for own in state.optimiser.state.values() for x in own.values()]
        kept += list(state.net.parameters())  # gradients are as large
        known = sum(x.numel() * x.element_size() for x in kept)
        assert step_memory(config).weights == known

    def test_a_training_whose_bases_do_not_fit_is_refused(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        configs = [tiny.config(f"train.optimizer={name}") for name in ("adamw", "soap")]
        adamw, soap = (step_memory(config).weights for config in configs)
        assert adamw < soap
        monkeypatch.setattr(memory_check, "available_bytes", lambda device: (adamw + soap) // 2)
        memory_check.check_training_size(configs[0], torch.device("cpu"))
        with pytest.raises(InputError, match=r"the network needs at least .* GB to be trained"):
            memory_check.check_training_size(configs[1], torch.device("cpu"))

    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    @pytest.mark.parametrize("bits", [0, 4])
    def test_a_network_that_cannot_be_copied_is_counted_and_fails_for_its_own_reason(
        self, optimizer: str, bits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Net(torch.nn.Linear):
            def __deepcopy__(self, memo: object) -> Net:
                raise RuntimeError("there is one of it only")

        base = tiny.config(f"train.optimizer={optimizer}", f"path.bits={bits}")
        config = replace(base, net=CustomNetConfig("Net"))
        weights = dict(shapes_of(config, torch.nn.Linear(16, 16)).named_parameters())
        known = weight_bytes(config, weights) + optimiser_bytes(config, weights)
        for there, fits in ((known, True), (known - 1, False)):
            monkeypatch.setattr(memory_check, "available_bytes", lambda device, n=there: n)
            with pytest.raises(
                RuntimeError if fits else InputError,
                match="there is one of it only" if fits else "the network needs at least",
            ):
                Trainer(Run(tmp_path, config, None), tiny.dataset(), tiny.CPU, net=Net(16, 16))

    @pytest.mark.once
    @pytest.mark.parametrize(
        ("preset", "gpus", "size", "tuned"),
        [
            ("imagenet32-vp", 8, 48, True),  # A40
            ("imagenet32-old-vp", 8, 40, True),  # A100
            ("cifar10-aug", 64, 80, False),  # A800; the paper does not fine-tune it
        ],
    )
    def test_the_papers_presets_fit_the_gpus_of_the_paper(
        self, preset: str, gpus: int, size: int, tuned: bool
    ) -> None:
        """Counted at a quarter of the depth: memory grows with it by less than fourfold."""
        config = PRESETS[preset]
        for settings in (config, finetuned(config)) if tuned else (config,):
            shallow = replace(settings.net, depth=settings.net.depth // 4)
            counted = step_memory(replace(settings, net=shallow))
            found = StepMemory(4 * counted.weights, 4 * counted.image)
            images = settings.train.batch_size // gpus // settings.train.accumulate
            assert found.needed(images) < size * 2**30

    def test_pieces_are_as_few_as_fit(self) -> None:
        found = StepMemory(weights=int(2.27 * 2**30), image=int(0.575 * 2**30))
        assert found.needed(32) < 40 * 2**30 < found.needed(64)
        assert found.pieces(64, 40 * 2**30) == 2
        assert found.fitting(2**30) == 0
        assert found.pieces(64, 2**30) is None

    def test_units(self) -> None:
        assert in_units(300, BYTES) == "0.293 KB"
        assert in_units(2**20 - 1, BYTES) == "1,024 KB"
        assert in_units(1.5 * 2**20, BYTES) == "1.5 MB"
        assert in_units(5000 * 2**30, BYTES) == "5,000 GB"
        assert in_units(59, TIMES) == "59 seconds"
        assert in_units(5400, TIMES) == "1.5 hours"
        assert in_units(1234 * 86400, TIMES) == "1,234 days"

    def test_it_says_what_to_set(self) -> None:
        config = override(finetuned(PRESETS["digits"]), ["train.batch_size=65536", "net.width=64"])
        first, work, alone, many, most = memory_lines(config)
        assert work.startswith("arithmetic: ")
        assert re.search(
            r"all steps take [\d.]+ (seconds|minutes|hours) where", work
        )  # no 2e-03 days
        assert re.match(r"memory of a GPU, estimated: [\d.]+ MB for weights", first)
        assert "1 GPU: 65536 images at once" in alone
        assert re.search(r"at once, [\d,]+ GB each", alone)  # no exponent
        assert "24 GB: train.accumulate=" in alone
        assert "8 GPUs: 8192 images at once" in many
        assert "64 GPUs: 1024 images at once" in most
