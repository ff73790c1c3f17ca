"""``idode doctor``: versions, devices and the speed of this machine."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import time

from idode.cli.parsing import add_json_arguments

__all__ = ["add_arguments", "run"]

PACKAGES = (
    "torch",
    "numpy",
    "scipy",
    "safetensors",
    "scikit-learn",
    "pillow",
    "matplotlib",
    "shtab",
    "torch-fidelity",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode doctor``."""
    add_json_arguments(parser, what="the result")


def run(args: argparse.Namespace) -> int:
    """Carry out ``idode doctor``; the exit code."""
    import torch

    from idode import __version__
    from idode.cli.tables import check_output, table, write_json
    from idode.data import default_root
    from idode.numerics import home_of_float64
    from idode.runs.distributed import available_devices, best_device
    from idode.runs.memory import available_bytes
    from idode.training.acceleration import available_precisions

    check_output(args.json, args.force)
    # The version of the code that runs, installed or not.
    facts: dict[str, str | float] = {"idode": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            facts[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            facts[name] = "not installed"
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    others = [kind for kind in available_devices() if kind != "cuda"]
    facts["devices"] = ", ".join([*reversed(others), *devices])
    device = best_device()
    facts["default device"] = str(device)
    facts["its memory, GB"] = round(available_bytes(device) / 2**30, 1)
    facts["training in"] = ", ".join(available_precisions(device))
    facts["evaluation in"] = f"float32, sums in float64 on {home_of_float64(device)}"
    facts["threads"] = torch.get_num_threads()
    facts["data"] = str(default_root())
    facts["matmul_gflops"] = round(_matmul_rate(), 1)
    print(table(["what", "value"], [[name, str(value)] for name, value in facts.items()]))
    if args.json is not None:
        write_json(args.json, facts)
    return 0


def _matmul_rate() -> float:
    """Billions of float32 operations a second in a matrix product that fits no cache."""
    import torch

    size = 1536
    a, b = torch.ones(size, size), torch.ones(size, size)
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best / 1e9
