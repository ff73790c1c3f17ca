"""Training in another precision, compiled, or with less memory: the same run under other names."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file
from test_training import Notes
from torch.nn.parallel import DistributedDataParallel

import idode
from idode.errors import InputError
from idode.likelihood.estimator import LikelihoodSettings
from idode.numerics import float32_products
from idode.ode.adams import Adams
from idode.runs.run import build_net
from idode.training.acceleration import Autocast, compile_in_place, in_precision
from idode.training.finetuning import finetuned
from idode.training.randomness import seeded_globally
from idode.training.trainer import Trainer

CPU = torch.device("cpu")
LOW = ("train.precision=bf16", "net.dropout=0.2", "net.attention=middle")


def state(run: Path, step: int = 20) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / f"step-{step:09d}" / "state.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Of two states' weights, relative to the first."""
    one, two = (
        torch.cat([v.flatten() for k, v in sorted(s.items()) if k.startswith("net/")])
        for s in (a, b)
    )
    return float((one - two).norm() / one.norm())


@pytest.fixture
def without_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled by everything but the last stage, which takes a minute of C++."""
    quick = functools.partialmethod(torch.nn.Module.compile, backend="aot_eager")
    monkeypatch.setattr(torch.nn.Module, "compile", quick)


class TestPrecision:
    @pytest.mark.parametrize("order", [1, 2])
    def test_bfloat16_learns_nearly_the_same_and_stores_float32(
        self, tmp_path: Path, order: int
    ) -> None:
        both = (f"objective.order={order}", "train.steps=10", *LOW[1:])
        tiny.train(tmp_path / "full", *both)
        tiny.train(tmp_path / "low", *both, LOW[0])
        full, low = state(tmp_path / "full", 10), state(tmp_path / "low", 10)
        assert {k: v.dtype for k, v in low.items()} == {k: v.dtype for k, v in full.items()}
        assert 0 < distance(full, low) < 0.05

    def test_only_the_network_computes_in_it(self, tmp_path: Path) -> None:
        run = tiny.new_run(tmp_path, *LOW, "objective.order=2")
        trainer, seen = Trainer(run, tiny.dataset(), tiny.CPU), []
        hook = trainer.state.net.conv_out.register_forward_hook(
            lambda module, inputs, output: seen.append(output.dtype)
        )
        samples = torch.from_numpy(tiny.images()[:8])
        batch = trainer.state.objective.draw(samples, 4, torch.Generator().manual_seed(0))
        losses = trainer.state.objective.losses(trainer.model, batch)
        hook.remove()
        assert set(seen) == {torch.bfloat16}
        assert losses.first.dtype == losses.second.dtype == torch.float32
        assert batch.times.gamma.dtype == torch.float64
        x = torch.randn(2, 1, 4, 4)
        assert trainer.average.velocity(x, torch.tensor(0.0)).dtype == torch.float32

    def test_it_resumes_bit_for_bit(self, tmp_path: Path) -> None:
        tiny.train(tmp_path / "whole", *LOW, "objective.order=2")
        tiny.train(tmp_path / "parts", *LOW, "objective.order=2", reporter=Notes(interrupt_at=8))
        tiny.train(tmp_path / "parts", *LOW, "objective.order=2")
        assert same(state(tmp_path / "whole"), state(tmp_path / "parts"))

    def test_float32_is_the_network_itself(self) -> None:
        net = torch.nn.Linear(2, 2)
        assert in_precision(net, "float32", CPU) is net
        assert isinstance(in_precision(net, "bf16", CPU), Autocast)

    def test_a_device_that_goes_on_in_float32_is_refused(self, monkeypatch) -> None:
        real = torch.autocast
        monkeypatch.setattr(torch, "autocast", lambda kind, dtype: real(kind, enabled=False))
        with pytest.raises(InputError, match=r"bf16: cpu cannot compute in it; use float32"):
            in_precision(torch.nn.Linear(2, 2), "bf16", CPU)


class TestFloat32:
    @staticmethod
    def settings() -> tuple[str, bool]:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32

    def test_evaluation_and_sampling_are_true_float32_and_leave_no_trace(self) -> None:
        """What a GPU would do is set before the network is called, whatever the user had set."""
        seen = []

        def net(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            seen.append(self.settings())
            return 0.5 * x

        model = idode.wrap(net, "noise", "vp", levels=4, shape=(2,), gamma_min=-4.0)
        with float32_products(tf32=True):
            before = self.settings()
            assert before == ("high", True)
            pixels = torch.tensor([[0, 3], [1, 2]])
            model.bits_per_dim(pixels, LikelihoodSettings(solver=Adams(steps=4)))
            model.sde_bound(pixels, draws=2)
            model.sample(2, solver=Adams(steps=4))
            model.log_prob(torch.zeros(2, 2), solver=Adams(steps=4))
            assert self.settings() == before
        assert len(seen) > 20
        assert set(seen) == {("highest", False)}

    def test_training_computes_in_what_it_was_told_to(self, tmp_path: Path) -> None:
        trainer = Trainer(tiny.new_run(tmp_path), tiny.dataset(), tiny.CPU)
        seen = []
        trainer.state.net.register_forward_hook(lambda *_: seen.append(self.settings()))
        with float32_products(tf32=True):
            trainer.try_step()
        assert seen == [("highest", False)]

    def test_tf32_is_refused_where_there_is_none(self, tmp_path: Path) -> None:
        run = tiny.new_run(tmp_path, "train.precision=tf32")
        with pytest.raises(InputError, match="tf32: cpu cannot compute in it; use float32"):
            Trainer(run, tiny.dataset(), tiny.CPU)


class TestCompilation:
    @pytest.mark.usefixtures("without_inductor")
    @pytest.mark.filterwarnings("ignore")  # torch's own, of its own code
    def test_names_and_weights_are_those_of_the_plain_network(self, tmp_path: Path) -> None:
        settings = ("net.dropout=0.2", "train.accumulate=2", "train.steps=10")
        tiny.train(tmp_path / "plain", *settings)
        torch._dynamo.utils.counters.clear()
        trainer = tiny.train(tmp_path / "compiled", *settings, "train.compile=true")
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1
        assert not any("_orig_mod" in name for name in trainer.state.tensors())
        plain, compiled = state(tmp_path / "plain", 10), state(tmp_path / "compiled", 10)
        assert compiled.keys() == plain.keys()
        assert distance(plain, compiled) < 1e-4

    @pytest.mark.once
    @pytest.mark.filterwarnings("ignore")
    def test_gradients_of_several_processes_are_exchanged_while_others_are_computed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A graph for each bucket of gradients: of a single one, all would come at its end."""
        config, graphs = tiny.config("net.width=64", "net.dropout=0.2"), []

        def backend(graph: torch.fx.GraphModule, _: object) -> object:
            graphs.append(graph)
            return graph.forward

        quick = functools.partialmethod(torch.nn.Module.compile, backend=backend)
        monkeypatch.setattr(torch.nn.Module, "compile", quick)
        net = build_net(config)
        torch.nn.init.normal_(net.conv_out.weight, generator=torch.Generator().manual_seed(0))
        x, t = torch.ones(2, 1, 4, 4), torch.ones(2)
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            wrapped = DistributedDataParallel(net, bucket_cap_mb=1)
            gradients = []
            for compiled in (False, True):
                if compiled:
                    compile_in_place(wrapped, config, lambda: None)
                net.zero_grad()
                with seeded_globally(CPU, 0):
                    wrapped(x, t).square().sum().backward()
                gradients.append([p.grad.clone() for p in net.parameters()])
        finally:
            torch.distributed.destroy_process_group()
        assert len(graphs) > 2
        for plain, quick_one in zip(*gradients, strict=True):
            torch.testing.assert_close(quick_one, plain)

    @pytest.mark.parametrize(
        "twice",
        [("objective.order=2",), ("objective.method=simulation", "objective.data=uniform")],
        ids=["second order", "simulation"],
    )
    def test_what_differentiates_twice_is_refused_and_finetuning_leaves_it_off(
        self, tmp_path: Path, twice: tuple[str, ...]
    ) -> None:
        run = tiny.new_run(tmp_path, "train.compile=true", *twice)
        with pytest.raises(InputError, match=r"train\.compile=true is for first-order"):
            Trainer(run, tiny.dataset(), tiny.CPU)
        assert not finetuned(tiny.config("train.compile=true")).train.compile

    @pytest.mark.slow
    def test_without_a_compiler_it_is_one_sentence_and_leaves_nothing(
        self, tmp_path: Path
    ) -> None:
        # A process of its own: torch remembers for good which compiler it did not find.
        missing = {"CXX": "/no/such/compiler", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
        words = ["train", "digits", *tiny.FLAGS, "--out", str(tmp_path / "run")]
        done = subprocess.run(
            [sys.executable, "-m", "idode", *words, "--set", "train.compile=true"],
            env=os.environ | missing,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert "train.compile=true does not work here" in done.stderr
        assert "C++ compiler" in done.stderr
        assert not (tmp_path / "run").exists()

    @pytest.mark.slow
    @pytest.mark.skipif(
        shutil.which(os.environ.get("CXX", "g++")) is None, reason="no C++ compiler is installed"
    )
    @pytest.mark.filterwarnings("ignore")
    def test_really_compiled_it_learns_the_same_and_resumes_bit_for_bit(
        self, tmp_path: Path
    ) -> None:
        settings = ("net.dropout=0.2", "train.compile=true")
        tiny.train(tmp_path / "plain")
        tiny.train(tmp_path / "plain compiled", "train.compile=true")
        assert distance(state(tmp_path / "plain"), state(tmp_path / "plain compiled")) < 1e-3
        tiny.train(tmp_path / "whole", *settings)
        tiny.train(tmp_path / "parts", *settings, reporter=Notes(interrupt_at=8))
        tiny.train(tmp_path / "parts", *settings)
        assert same(state(tmp_path / "whole"), state(tmp_path / "parts"))


@pytest.mark.parametrize("order", [1, 2])
def test_recomputed_activations_give_the_same_weights(tmp_path: Path, order: int) -> None:
    settings = ("net.dropout=0.2", "net.depth=3", f"objective.order={order}", "train.steps=10")
    tiny.train(tmp_path / "kept", *settings)
    tiny.train(tmp_path / "again", *settings, "net.checkpointing=true")
    assert same(state(tmp_path / "kept", 10), state(tmp_path / "again", 10))
