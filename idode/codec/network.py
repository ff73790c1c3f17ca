"""The network with the same bits on both sides: fixed batch shapes, one thread, a probe.

PyTorch promises equal results neither across batch shapes nor across numbers of threads,
releases or instruction sets. So the network only ever sees batches of one shape, padded with
zeros, in a process with one thread; and a hash of its outputs on a fixed probe is stored in every
archive, for the decoder to compare before it writes anything.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from idode.codec.bases import Basis
from idode.diffusion.model import DiffusionODE
from idode.diffusion.predictors import DATA
from idode.errors import InputError
from idode.numerics import cpu_threads

__all__ = [
    "Denoiser",
    "Shape",
    "arithmetic",
    "differences",
    "encoders",
    "environment",
    "one_thread",
    "weights_hash",
]

Shape = tuple[int, int, int]

BATCH = 16
PROBE_LEVELS = 3


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for torch, and no gradients; the number of threads is restored afterwards."""
    with cpu_threads(1), torch.inference_mode():
        yield


@dataclass(frozen=True)
class Denoiser:
    """The model's estimate of clean coefficients, bit-reproducible on one machine.

    Args:
        model: On the CPU, float32, in evaluation mode.
        shape: Shape of an image, ``(C, H, W)``.
        side: Of the patches of its basis.
    """

    model: DiffusionODE
    shape: Shape
    side: int

    @property
    def batch(self) -> int:
        """Images in every call of the network."""
        return BATCH

    @cached_property
    def basis(self) -> Basis:
        """Basis of the coefficients."""
        return Basis(self.shape, self.side)

    def pixels(self, z: Tensor, gamma: float) -> Tensor:
        """Clean data ``(B, C, H, W)`` float64 from coefficients ``(B, P, K)`` of the state."""
        count, size = len(z), self.batch
        x = self.basis.to_pixels(z).float()
        clock = torch.tensor(gamma, dtype=torch.float64)
        found = torch.empty(x.shape, dtype=torch.float64)
        for lo in range(0, count, size):
            part = x[lo : lo + size]
            padded = torch.zeros(size, *self.shape)
            padded[: len(part)] = part
            estimate = self.model.predict(padded, clock, DATA)
            found[lo : lo + size] = estimate[: len(part)].double()
        return found

    def coefficients(self, z: Tensor, gamma: float) -> Tensor:
        """Clean coefficients from those of the state, both ``(B, P, K)`` float64."""
        return self.basis.to_coefficients(self.pixels(z, gamma))

    def probe(self) -> str:
        """Hash of the outputs on fixed inputs at a few noise levels."""
        noise = np.random.default_rng(0).standard_normal((self.batch, *self.shape))
        z = self.basis.to_coefficients(torch.from_numpy(noise))
        total = hashlib.blake2b(digest_size=8)
        lo, hi = self.model.gamma_min, self.model.gamma_max
        for gamma in np.linspace(lo, hi, PROBE_LEVELS + 2)[1:-1]:
            total.update(self.coefficients(z, float(gamma)).numpy().tobytes())
        return total.hexdigest()


def weights_hash(model: DiffusionODE) -> str:
    """SHA-256 of all weights, their names and their shapes, in hexadecimal digits."""
    total = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        total.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
        total.update(value.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()


def environment() -> dict[str, str]:
    """What the result of a decoder depends on, for the message when it differs."""
    return {**arithmetic(), **encoders()}


def arithmetic() -> dict[str, str]:
    """What the decoded pixels depend on."""
    return {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "constriction": importlib.metadata.version("constriction"),
        "instruction set": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
    }


def encoders() -> dict[str, str]:
    """What the bytes of a file made of its pixels depend on."""
    return {
        "zlib": zlib.ZLIB_RUNTIME_VERSION,
        "Pillow": importlib.metadata.version("pillow"),
    }


def differences(there: Mapping[str, object], here: Mapping[str, str]) -> str:
    """The versions that differ, of those an archive has; empty where they are alike."""
    return "; ".join(
        f"{name} {str(there[name])[:40]} there, {value} here"
        for name, value in here.items()
        if name in there and there[name] != value
    )


def check_levels(model: DiffusionODE) -> int:
    """The number of grey levels; a model of continuous data is refused."""
    if model.levels is None:
        raise InputError("this model is of continuous data: compression needs a model of images")
    if model.levels > 256:
        raise InputError(f"this model has {model.levels} grey levels: compression takes up to 256")
    return model.levels
