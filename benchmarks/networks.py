"""Speed and memory of the U-Net: ``python benchmarks/networks.py --json FILE``.

Times are minima over interleaved repeats, so that a neighbour on the machine hits all alike;
the rate of a plain matrix multiplication is measured in the same rounds. The forward pass is
timed three at a time: a task as short as one finds a quiet moment more often than a training
step does, which makes the step look dearer than it is. Memory is the peak of live tensor bytes
on the meta device, where shapes are computed and numbers are not.
"""

from __future__ import annotations

import argparse
import json
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d
from torch.nn.grad import conv2d_input, conv2d_weight
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import FlopCounterMode

from idode.cli.process import keep_freed_memory
from idode.nets.config import UNetConfig
from idode.nets.convolution import weight_gradient
from idode.nets.layers import use_fast_backward
from idode.nets.normalisation import SwishNorm
from idode.nets.unet import UNet
from idode.runs.config import TrainConfig
from idode.training.acceleration import in_precision
from idode.training.muon import ITERATIONS, A, B, C, orthogonalised
from idode.training.optimisation import muon as optimiser

HEADLINE = UNetConfig(width=64, depth=4, attention="middle")
SIDE, BATCH, MATMUL, FORWARDS = 32, 16, 2048, 3
CONVOLUTIONS = (  # inputs, outputs, side, which must be a multiple of four
    *((64, 64, 32), (128, 64, 32), (128, 128, 32), (256, 128, 32)),
    *((32, 32, 32), (64, 64, 8)),
)
SMALL = {  # (config, side): candidates for a laptop
    "8x8 w32 d2": (UNetConfig(1, 17, 32, 2, "none", groups=8), 8),
    "8x8 w64 d4": (UNetConfig(1, 17, 64, 4, "middle"), 8),
    "28x28 w32 d4": (UNetConfig(1, 256, 32, 4, "none", groups=8), 28),
    "28x28 w32 d4 halvings 2": (UNetConfig(1, 256, 32, 4, "middle", groups=8, halvings=2), 28),
    "32x32 w32 d4": (UNetConfig(3, 256, 32, 4, "none", groups=8), 32),
    "32x32 w64 d4": (UNetConfig(3, 256, 64, 4, "none"), 32),
    "32x32 w64 d4 halvings 2": (UNetConfig(3, 256, 64, 4, "middle", halvings=2), 32),
}


class LiveBytes(TorchDispatchMode):
    """Peak of the bytes of all tensors alive at once that were made inside the block."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.peak, self.known = 0, 0, weakref.WeakSet()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage() not in self.known:
                storage = tensor.untyped_storage()
                self.known.add(storage)
                self.live += storage.nbytes()
                weakref.finalize(storage, self._free, storage.nbytes())
                self.peak = max(self.peak, self.live)
        return result

    def _free(self, size: int) -> None:
        self.live -= size


def peak_memory(config: UNetConfig) -> float:
    """Peak of one training step without the optimizer, in units of one skip connection."""
    with torch.device("meta"):
        net, x, t = UNet(config), torch.empty(1, config.channels, SIDE, SIDE), torch.empty(1)
    for p in net.parameters():  # their gradients grow with depth whatever one does
        p.requires_grad_(False)
    x.requires_grad_()
    with LiveBytes() as memory:
        net(x, t).sum().backward()
    return memory.peak / (4 * config.width * SIDE**2)


def tasks(
    config: UNetConfig,
    side: int,
    layout: torch.memory_format = torch.channels_last,
    option: Callable[[UNet], nn.Module] = lambda net: net,
) -> dict[str, Callable]:
    """The three things a network is used for, as functions without arguments.

    ``option`` makes of the network what a training step passes through.
    """
    generator = torch.Generator().manual_seed(0)
    net = UNet(config, generator).to(memory_format=layout)
    use_fast_backward(net)
    trained = option(net)
    frozen = UNet(config, generator).to(memory_format=layout).eval().requires_grad_(False)
    x = torch.randn(BATCH, config.channels, side, side, generator=generator)
    t = torch.rand(BATCH, generator=generator)
    probe = torch.randint(0, 2, x.shape, generator=generator) * 2.0 - 1
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)  # as training has it

    def forwards() -> None:
        with torch.no_grad():
            for _ in range(FORWARDS):
                frozen(x, t)

    def divergence() -> None:
        z = x.clone().requires_grad_()
        (vjp,) = torch.autograd.grad(frozen(z, t), z, probe)
        (vjp * probe).flatten(1).sum(1)

    def step() -> None:
        optimizer.zero_grad()
        (trained(x, t) - probe).square().sum().backward()
        optimizer.step()

    return {"forwards": forwards, "value_divergence": divergence, "step": step}


def flops(config: UNetConfig, side: int) -> int:
    """Floating-point operations of one forward pass: convolutions and matrix products."""
    with torch.device("meta"):
        net = UNet(config)
        x, t = torch.empty(BATCH, config.channels, side, side), torch.empty(BATCH)
    with FlopCounterMode(display=False) as counter:
        net(x, t)
    return counter.get_total_flops()


def race(functions: dict[str, Callable], repeats: int) -> dict[str, float]:
    """Least seconds of each function over rounds that run all of them."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats + 1):  # the first round warms up and rarely wins
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            best[name] = min(best[name], time.perf_counter() - start)
    if "forwards" in best:
        best["forward"] = best.pop("forwards") / FORWARDS
    return best


def matmul() -> Callable:
    """A square product as large as the caches want it, the machine's practical peak."""
    a = torch.randn(MATMUL, MATMUL)
    return lambda: a @ a


def headline(repeats: int) -> list[dict]:
    """The goals: rate of the forward pass, and the other two tasks in forward passes."""
    rows = []
    for width in (64, 128):
        config = replace(HEADLINE, width=width)
        seconds = race({"matmul": matmul()} | tasks(config, SIDE), repeats)
        peak = 2 * MATMUL**3 / seconds["matmul"]
        forward = seconds["forward"]
        rate = flops(config, SIDE) / forward
        rows.append(
            {
                "width": width,
                "matmul_gflops": peak / 1e9,
                "forward_seconds": forward,
                "forward_share_of_matmul": rate / peak,
                "value_divergence_forwards": seconds["value_divergence"] / forward,
                "step_forwards": seconds["step"] / forward,
            }
        )
    return rows


def gradients(repeats: int) -> list[dict]:
    """Our weight gradient of one convolution against the library's, in forward passes of it."""
    rows = []
    for inputs, outputs, side in CONVOLUTIONS:
        drawn = torch.Generator().manual_seed(0)
        x, grad = (
            torch.randn(BATCH, channels, side, side, generator=drawn).to(
                memory_format=torch.channels_last
            )
            for channels in (inputs, outputs)
        )
        weight = torch.randn(outputs, inputs, 3, 3, generator=drawn)
        weight = weight.to(memory_format=torch.channels_last)
        functions = {
            "forward": partial(conv2d, x, weight, padding=1),
            "ours": partial(weight_gradient, x, grad),
            "library": partial(conv2d_weight, x, weight.shape, grad, padding=1),
            "input": partial(conv2d_input, x.shape, weight, grad, padding=1),
        }
        seconds = race(functions, 3 * repeats)
        truth = conv2d_weight(x.double(), weight.shape, grad.double(), padding=1)
        row: dict = {"inputs": inputs, "outputs": outputs, "side": side}
        for name in ("ours", "library", "input"):
            row[f"{name}_forwards"] = seconds[name] / seconds["forward"]
        for name in ("ours", "library"):
            row[f"{name}_error"] = float((functions[name]() - truth).norm() / truth.norm())
        rows.append(row)
    return rows


def norms(repeats: int) -> list[dict]:
    """Backward pass of the swish of a group norm, ours against the library's, in milliseconds."""
    rows = []
    sizes = [(64, 32), (128, 32), (256, 32), (32, 4), (48, 4), (64, 4)]
    sizes += [(width, 8) for width in (32, 48, 64, 96, 128)]
    for dtype, (width, groups) in product((torch.float32, torch.bfloat16), sizes):
        drawn = torch.Generator().manual_seed(0)
        x, grad = (
            torch.randn(BATCH, width, SIDE, SIDE, generator=drawn).to(
                dtype, memory_format=torch.channels_last
            )
            for _ in range(2)
        )
        x.requires_grad_()
        norm = SwishNorm(groups, width)
        functions = {}
        for name, quick in (("library", False), ("ours", True)):
            norm.quick = quick
            inputs = (x, norm.weight, norm.bias)
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
                y = norm(x)
            functions[name] = partial(torch.autograd.grad, y, inputs, grad, retain_graph=True)
        millis = {name: 1000 * s for name, s in race(functions, 4 * repeats).items()}
        rows.append({"dtype": str(dtype), "width": width, "groups": groups} | millis)
    return rows


def muon(repeats: int) -> list[dict]:
    """Nearest orthogonal matrices, ours against the iteration as published, in milliseconds.

    Kernels have the shapes of the presets' network; errors are relative to float64, of random
    matrices and of some whose singular values fall as those of momenta do.
    """
    rows = []
    for width in (32, 48, 64, 96):
        drawn, counts = torch.Generator().manual_seed(0), shapes(width)
        stacks = {shape: torch.randn(n, *shape, generator=drawn) for shape, n in counts.items()}
        commonest = stacks[counts.most_common(1)[0][0]]
        u, _, vh = torch.linalg.svd(commonest, full_matrices=False)
        falling = u * torch.arange(1, u.shape[-1] + 1) ** -2.0 @ vh
        ways = {"ours": orthogonalised, "published": newton_schulz}
        functions = {name: partial(each, way, list(stacks.values())) for name, way in ways.items()}
        found = {name: 1000 * s for name, s in race(functions, 4 * repeats).items()}
        for kind, matrices in (("random", commonest), ("falling", falling)):
            truth = newton_schulz(matrices.double())
            for name, way in ways.items():
                error = (way(matrices) - truth).norm() / truth.norm()
                found[f"{name}_error_{kind}"] = float(error)
        rows.append({"channels": width} | found)
    return rows


def shapes(width: int) -> Counter[torch.Size]:
    """How many kernels of a shape Muon moves in the presets' network, with so many channels."""
    net = UNet(UNetConfig(3, 256, width, 3, "none", groups=8, halvings=1))
    kernels = optimiser(net.named_parameters(), TrainConfig()).parts[0].param_groups[0]["params"]
    return Counter(kernel.flatten(1).shape for kernel in kernels)


def each(way: Callable[[Tensor], Tensor], stacks: list[Tensor]) -> None:
    """Every stack in turn."""
    for stack in stacks:
        way(stack)


def newton_schulz(x: Tensor) -> Tensor:
    """The iteration on the wide matrices themselves."""
    if x.shape[1] > x.shape[2]:
        return newton_schulz(x.mT).mT
    x = x / torch.linalg.matrix_norm(x, keepdim=True)
    for _ in range(ITERATIONS):
        square = x @ x.mT
        x = A * x + (B * square + C * square @ square) @ x
    return x


def options(repeats: int) -> list[dict]:
    """Training steps with bf16 autocast, and compiled, as a ratio of times to the plain ones."""
    ways: dict[str, Callable[[UNet], nn.Module]] = {
        "plain": lambda net: net,
        "bf16": lambda net: in_precision(net, "bf16", torch.device("cpu")),
        "compiled": partial(torch.compile, dynamic=False),
    }
    functions = {name: tasks(HEADLINE, SIDE, option=way)["step"] for name, way in ways.items()}
    seconds = race(functions, repeats)
    return [{"option": name, "time": s / seconds["plain"]} for name, s in seconds.items()]


def layouts(repeats: int) -> list[dict]:
    """Contiguous kernels against channels-last ones, as a ratio of times."""
    fast, plain = tasks(HEADLINE, SIDE), tasks(HEADLINE, SIDE, torch.contiguous_format)
    functions = {("fast", task): f for task, f in fast.items()}
    seconds = race(functions | {("plain", task): f for task, f in plain.items()}, repeats)
    return [
        {"task": task, "gain": seconds["plain", task] / seconds["fast", task]} for task in fast
    ]


def checkpointing(repeats: int) -> list[dict]:
    """Peak memory over depth, and the price in time of one training step."""
    rows = []
    for depth in (4, 8, 16, 32, 64, 128):
        config = replace(HEADLINE, depth=depth, attention="none")
        frugal = replace(config, checkpointing=True)
        row = {"depth": depth, "kept": peak_memory(config), "frugal": peak_memory(frugal)}
        if depth == 16:
            steps = {
                c.checkpointing: tasks(replace(c, width=32), SIDE)["step"]
                for c in (config, frugal)
            }
            seconds = race(steps, repeats)
            row["time"] = seconds[True] / seconds[False]
        rows.append(row)
    return rows


def small(repeats: int) -> list[dict]:
    """What the laptop candidates cost per image."""
    rows = []
    for name, (config, side) in SMALL.items():
        seconds = race(tasks(config, side), repeats)
        parameters = sum(p.numel() for p in UNet(config).parameters())
        millis = {f"{task}_ms": 1000 * s / BATCH for task, s in seconds.items()}
        rows.append({"network": name, "parameters": parameters} | millis)
    return rows


def main() -> None:
    """Run all sections, print them and write them."""
    parser = argparse.ArgumentParser(description="Speed and memory of the U-Net.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go")
    parser.add_argument("--only", action="append", metavar="SECTION", help="may be repeated")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_freed_memory()  # as the program does
    figures = {"machine": {"torch": torch.__version__, "threads": args.threads}}
    for section in (headline, gradients, norms, muon, layouts, checkpointing, options, small):
        if section.__name__ not in (args.only or section.__name__):
            continue
        figures[section.__name__] = section(args.repeats)
        print(section.__name__, json.dumps(figures[section.__name__], indent=1), flush=True)
        if args.json:  # after each section: a busy machine may not reach the last
            args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
