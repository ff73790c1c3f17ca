"""What can be said of a GPU where there is none.

Fake tensors on ``cuda`` have shapes, dtypes and devices and no numbers: tensors of two devices do
not mix, and reading one on the host, which on a GPU waits for it, raises. The engine of autograd
does not run them on a build without CUDA, so there a backward pass is a stub that gives gradients
of the right shape; on the device ``meta``, which has no numbers either, it is the real one.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import tiny
import torch
from torch import Tensor, nn
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from idode.diffusion.model import DiffusionODE
from idode.likelihood.estimator import LikelihoodSettings, LogWeightEstimator
from idode.likelihood.latents import encode
from idode.likelihood.log_prob import DensityField, solve_log_prob
from idode.nets.unet import UNet
from idode.numerics import double, moved
from idode.ode.adams import Adams
from idode.ode.solvers import RK4, CheckedField
from idode.runs.config import Config
from idode.runs.distributed import World
from idode.runs.run import diffusion_ode
from idode.sampling.samplers import OdeSampler, SampleBatch
from idode.training.metrics import MetricsLog
from idode.training.objective import Batch, Objective, build_density
from idode.training.state import State
from idode.training.trainer import Trainer

CUDA, MPS = torch.device("cuda:0"), torch.device("mps:0")
NUMBERS = {"cuda": 1, "mps": 13, "meta": 14}  # of the kinds of devices in PyTorch's tables
GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
SETTINGS = ("net.dropout=0.1", "net.attention=middle", "net.fade=0.15")


class NoWaiting(TorchDispatchMode):
    """Refuses copies from the host for which the host would wait."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        to = kwargs.get("device")
        blocks = func is torch.ops.aten._to_copy.default and not kwargs.get("non_blocking")
        if blocks and args[0].device.type == "cpu" and to is not None and to.type == "cuda":
            raise AssertionError(f"a blocking copy of {tuple(args[0].shape)} to the device")
        return func(*args, **kwargs)


class NoFloat64(TorchDispatchMode):
    """Refuses tensors in float64 on Apple's GPUs, which have none.

    And copies to them that nothing waits for: PyTorch reads memory of the host for these later,
    when what was temporary is gone.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        to = kwargs.get("device")
        if to is not None and to.type == "mps" and kwargs.get("non_blocking"):
            raise AssertionError(f"{func} to the device is not waited for")
        found = func(*args, **kwargs)
        for x in tree_leaves(found):
            if isinstance(x, Tensor) and x.device.type == "mps" and x.dtype == torch.float64:
                raise AssertionError(f"{func} gives float64 on the device")
        return found


@contextlib.contextmanager
def guarded(kind: str) -> Iterator[None]:
    """Let builds without a kind of device index fake tensors on it.

    PyTorch switches to the device of a tensor before some operations, and such a build has nothing
    to switch with; builds with CUDA and no GPU have the same stand-in as is given here.
    """
    if kind == "cuda" and torch.backends.cuda.is_built():
        yield
        return
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    try:
        guards = (ctypes.c_void_p * 20).in_dll(library, GUARDS)
    except ValueError:
        pytest.skip("this build of torch has no table of device guards")
    number = NUMBERS[kind]
    before, guards[number] = guards[number], guards[NUMBERS["meta"]]  # which does nothing
    try:
        yield
    finally:
        guards[number] = before


@contextlib.contextmanager
def no_seed(device: torch.device, *_: int) -> Iterator[None]:
    assert device == CUDA
    yield


def stub_backward(loss: Tensor) -> None:
    assert loss.device == CUDA
    assert loss.ndim == 0


def stub_product(y: Tensor, x: Tensor, cotangent: Tensor, **_: object) -> Tensor:
    assert y.device == x.device == cotangent.device
    return torch.zeros_like(x)


@contextlib.contextmanager
def fake_gpu(kind: str = "cuda") -> Iterator[None]:
    """Tensors on a GPU that hold nothing, and what stands for a backward pass on them."""
    patches = (
        mock.patch.object(Tensor, "backward", stub_backward),
        mock.patch.object(Tensor, "pin_memory", lambda x: x),
        mock.patch.object(nn.Module, "to", lambda net, *_, **__: net),
        mock.patch.object(torch, "enable_grad", torch.no_grad),
        mock.patch("idode.ode.divergence._vjp", stub_product),
        mock.patch("idode.nets.unet.initialise"),
        # The speed of the path is computed on the host, of whose numbers a fake tensor has none.
        mock.patch("idode.likelihood.log_prob._speed", lambda _, gamma: gamma * 0 + 1),
    )
    with contextlib.ExitStack() as stack:
        for patch in (*patches, guarded(kind), FakeTensorMode(), torch.no_grad()):
            stack.enter_context(patch)
        yield


def built(like: Config | UNet, *_: object, device: torch.device = CUDA) -> UNet:
    with device:
        return UNet(like.config if isinstance(like, UNet) else like.net)


def drawn(config: Config) -> Batch:
    """A batch as the loader's thread prepares it on the host, with real numbers."""
    density = build_density(config.objective.density, diffusion_ode(nn.Identity(), config))
    pixels = torch.from_numpy(tiny.images()[:8])
    return Objective(config.objective, density).draw(pixels, 4, torch.Generator().manual_seed(0))


def without_numbers(batch: Batch) -> Batch:
    """The same batch for :func:`fake_gpu`, still on the host."""
    mode = detect_fake_mode()
    assert mode is not None
    fake = mode.from_tensor
    return Batch(
        fake(batch.x0),
        fake(batch.eps),
        batch.times.each(fake),
        {name: fake(value) for name, value in batch.condition.items()},
        tuple(map(fake, batch.probes)),
        batch.all_times,
        fake(batch.uniforms),
    )


def training(path: Path, *settings: str) -> Trainer:
    run = tiny.new_run(path, *SETTINGS, *settings)
    with mock.patch("idode.training.trainer.check_training_size"):
        trainer = Trainer(run, tiny.dataset(), World(CUDA))
    for parameter in trainer.state.net.parameters():
        assert parameter.device == CUDA
        parameter.grad = torch.empty_like(parameter)
    return trainer


@contextlib.contextmanager
def one_step() -> Iterator[None]:
    """What a step asks of the machinery of CUDA itself, and the counter, which is on the host."""
    with (
        mock.patch("idode.training.trainer.seeded_globally", no_seed),
        mock.patch("idode.training.state.build_net", built),
        mock.patch("idode.training.optimisation.copy", SimpleNamespace(deepcopy=built)),
        mock.patch.object(torch.optim.AdamW, "zero_grad"),
        mock.patch.object(State, "step", 3),
    ):
        yield


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("objective.order=2", "train.clip=1", "train.accumulate=2"),
        ("model.schedule=sp", "objective.augment=true", "net.checkpointing=true"),
    ],
    ids=["first", "second", "augmented"],
)
def test_a_training_step_stays_on_the_device(tmp_path: Path, settings: tuple[str, ...]) -> None:
    batch = drawn(tiny.config(*SETTINGS, *settings))
    with fake_gpu(), one_step():
        trainer, batch = training(tmp_path, *settings), without_numbers(batch)
        with NoWaiting():
            trainer._advance(batch, MetricsLog(None, 0))
        assert trainer.watch.diverged.device == CUDA
        assert trainer.state.interval.sums.device == CUDA
        assert trainer.state.optimiser.found_inf.device == CUDA


def test_a_number_read_in_the_step_is_noticed(tmp_path: Path) -> None:
    batch = drawn(tiny.config(*SETTINGS))
    with fake_gpu(), one_step():
        trainer, batch = training(tmp_path), without_numbers(batch)
        update = trainer.state.average.update

        def read(net: nn.Module, step: int) -> None:
            float(next(net.parameters()).sum())
            update(net, step)

        trainer.state.average.update = read
        with pytest.raises(DataDependentOutputException):
            trainer._advance(batch, MetricsLog(None, 0))
        with NoWaiting(), pytest.raises(AssertionError, match="blocking copy"):
            torch.zeros(3).to(CUDA)


def model_on_gpu(device: torch.device = CUDA) -> DiffusionODE:
    config = tiny.config(*SETTINGS)
    return diffusion_ode(built(config, device=device).eval(), config)


def test_a_likelihood_is_solved_on_the_device() -> None:
    """Reading begins when the last step is done: values that are not finite, and the result."""
    with fake_gpu():
        model = model_on_gpu()
        estimator = LogWeightEstimator(model, LikelihoodSettings().for_model(model))
        pixels = torch.zeros(2, 1, 4, 4, dtype=torch.int32, device=CUDA)
        with mock.patch("idode.likelihood.dequantization.check_pixels"):
            x, weight = estimator.states(pixels, [0, 1], 0)
        probes = estimator.probes(x, [0, 1], 0, 1)
        field = DensityField(model, probes)
        with mock.patch.object(CheckedField, "check"):
            with NoWaiting():
                trace = Adams(steps=4).trace(field, x, model.gamma_min, model.gamma_max)
            assert trace.x.device == trace.rates.device == trace.corrector_gap.device == CUDA
            with (
                mock.patch("idode.likelihood.log_prob.prior_mismatch", return_value=0.0),
                mock.patch("idode.likelihood.log_prob.latent_moments", return_value=(0.0, 1.0)),
            ):
                found = solve_log_prob(model, x, Adams(steps=4), probes=probes)
        assert (found.log_p + weight).device == CUDA
        assert found.log_p.dtype == torch.float64
        with pytest.raises(DataDependentOutputException):
            Adams(steps=4).trace(field, x, model.gamma_min, model.gamma_max)  # it does check


def test_samples_are_drawn_on_the_device() -> None:
    with fake_gpu():
        model = model_on_gpu()
        assert model.shape is not None
        batch = SampleBatch(model, model.shape, range(2), 0)
        with mock.patch.object(CheckedField, "check"):
            assert OdeSampler(Adams(steps=4)).draw(batch).x.device == CUDA


def test_a_device_without_float64_is_given_none() -> None:
    """What needs it is computed on the host: clock, weights, log-densities, losses."""
    config = tiny.config(*SETTINGS, "objective.order=2")
    batch = drawn(config)
    with fake_gpu("mps"), NoFloat64():
        model = model_on_gpu(MPS)
        density = build_density(config.objective.density, model)
        part = without_numbers(batch).part(slice(0, 8), MPS)
        losses = Objective(config.objective, density).losses(model, part)
        scaled = double(losses.total(0.1)) / part.times.density
        assert losses.first.device == MPS
        assert scaled.dtype == torch.float64
        pixels = torch.zeros(2, 1, 4, 4, dtype=torch.int32, device=MPS)
        estimator = LogWeightEstimator(model, LikelihoodSettings().for_model(model))
        with (
            mock.patch("idode.likelihood.dequantization.check_pixels"),
            mock.patch("idode.likelihood.log_prob.prior_mismatch", return_value=0.0),
            mock.patch("idode.likelihood.log_prob.latent_moments", return_value=(0.0, 1.0)),
            mock.patch.object(CheckedField, "check"),
        ):
            x, weight = estimator.states(pixels, [0, 1], 0)
            probes = estimator.probes(x, [0, 1], 0, 1)
            for solver in (Adams(steps=4), RK4(2)):
                found = solve_log_prob(model, x, solver, probes=probes)
                assert (found.log_p + weight).dtype == torch.float64
            assert model.shape is not None
            some = SampleBatch(model, model.shape, range(2), 0, n_probes=1)
            states = OdeSampler(Adams(steps=4)).draw(some)
            encode(model, states.x, Adams(steps=4))
            model.loss(pixels, generator=torch.Generator().manual_seed(0))
            assert moved(torch.zeros(2, dtype=torch.float64), MPS).dtype == torch.float32
        assert states.x.device == x.device == MPS
        with pytest.raises(AssertionError, match="float64 on the device"):
            x.double()
        with pytest.raises(AssertionError, match="not waited for"):
            torch.zeros(2).to(MPS, non_blocking=True)


@pytest.mark.parametrize("order", [1, 2])
def test_gradients_need_no_number_on_the_host(order: int) -> None:
    """The real backward pass on a device that has no numbers to read."""
    config = tiny.config(*SETTINGS, f"objective.order={order}")
    with torch.device("meta"):
        net = UNet(config.net)
    meta = torch.device("meta")
    world = World(meta)
    with mock.patch("idode.training.state.build_net", return_value=net):
        state = State(config, world)
    model = diffusion_ode(state.net.train(), config)
    drawn = state.objective.draw(torch.zeros(8, 1, 4, 4), 4, torch.Generator().manual_seed(0))
    part = drawn.part(slice(0, 8), meta)
    losses = state.objective.losses(model, part)
    (losses.total(0.1).double() / part.times.density).mean().backward()
    with pytest.raises(RuntimeError, match="meta"):
        float(losses.first[0])
    missing = [name for name, p in net.named_parameters() if p.grad is None]
    assert missing == []
