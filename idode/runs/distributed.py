"""Several processes, or one: what training asks of them is the same."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from idode.errors import InputError

PATIENCE = datetime.timedelta(days=30)

_ALONE: ContextVar[bool] = ContextVar("alone", default=False)

__all__ = ["World", "alone", "available_devices", "best_device", "first_process", "joined"]


@dataclass(frozen=True)
class World:
    """One process among ``size``; rank 0 is the one that writes."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def writes(self) -> bool:
        """Whether this process owns the run folder."""
        return self.rank == 0

    def rows(self, count: int, piece: int = 0, pieces: int = 1) -> slice:
        """This process's rows of a global batch of ``count``, or one of several pieces of them."""
        parts = self.size * pieces
        if count % parts:
            raise InputError(
                f"batch_size={count}: must be a multiple of {self.size} processes times "
                f"{pieces} pieces"
            )
        size, first = count // parts, self.rank * pieces + piece
        return slice(first * size, (first + 1) * size)

    def gather(self, x: Tensor) -> Tensor:
        """Concatenation along the first axis in the order of ranks, the same on all."""
        if self.size == 1:
            return x
        parts = [torch.empty_like(x) for _ in range(self.size)]
        distributed.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    def sum(self, x: Tensor) -> Tensor:
        """Sum over all processes."""
        if self.size > 1:
            distributed.all_reduce(x)
        return x

    def barrier(self) -> None:
        """Return when all processes are here; the slowest may be hours behind."""
        if self.size > 1:
            group = distributed.new_group(backend="gloo", timeout=PATIENCE)
            distributed.all_reduce(torch.zeros(1), group=group)

    def sum_later(self, x: Tensor) -> Callable[[], Tensor]:
        """Begin to sum a tensor on the CPU over all processes; the function waits for it."""
        work = distributed.all_reduce(x, async_op=True)

        def result() -> Tensor:
            work.wait()
            return x

        return result

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with those of rank 0: only its node needs to see the run folder."""
        if self.size == 1:
            return
        for x in tensors:
            flat = x.detach().contiguous()
            distributed.broadcast(flat, src=0)
            x.detach().copy_(flat)

    def agree(self, text: str) -> str:
        """The text of rank 0, on all."""
        length = torch.tensor([len(text.encode())])
        self.broadcast([length])
        raw = text.encode() if self.writes else bytes(int(length))
        letters = torch.tensor(list(raw), dtype=torch.uint8)
        self.broadcast([letters])
        return bytes(letters.tolist()).decode()

    def wrap(self, net: nn.Module) -> nn.Module:
        """The network with gradients averaged over all processes while they are computed."""
        if self.size == 1:
            return net
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(net, device_ids=devices)

    def accumulating(self, net: nn.Module) -> AbstractContextManager[None]:
        """Keep gradients local, for all pieces of a batch but the last."""
        if isinstance(net, DistributedDataParallel):
            held: AbstractContextManager[None] = net.no_sync()
            return held
        return nullcontext()


def best_device(name: torch.device | str | None = None) -> torch.device:
    """The named device; by default the best there is: cuda, then mps, then cpu."""
    if name is None:
        name = available_devices()[0]
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        there = " or ".join(reversed(available_devices()))
        reason = str(error).splitlines()[0].removesuffix(".")
        unknown = "Expected one of" in reason  # and a list of twenty kinds of device
        why = "there is no such kind" if unknown else reason
        raise InputError(f"device {name} cannot be used ({why}): use {there}") from None
    if device.type == "meta":
        raise InputError("device meta cannot be used (it holds no numbers): use cpu or cuda")
    return device


def available_devices() -> list[str]:
    """Kinds of devices that can be used here, the best first; the CPU is the last."""
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return [*(kind for kind, there in found.items() if there), "cpu"]


def first_process() -> bool:
    """Whether this is the process that prints, of those that ``torchrun`` started."""
    return os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0"


@contextmanager
def alone() -> Iterator[None]:
    """Within this context :func:`joined` gives a world of one, also under ``torchrun``."""
    before = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(before)


@contextmanager
def joined(device: torch.device | str | None = None) -> Iterator[World]:
    """This process's place among those ``torchrun`` started; alone where there are none."""
    size = 1 if _ALONE.get() else int(os.environ.get("WORLD_SIZE", "1"))
    rank, local = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
    place = best_device(device)
    if place == torch.device("cuda"):
        place = torch.device("cuda", local)
    if size == 1:
        yield World(place)
        return
    if place.type == "cuda":
        torch.cuda.set_device(place)
    # The clock, the counters and the time density live on the CPU whatever the network does.
    distributed.init_process_group("cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo")
    yield World(place, rank, size)
    # Not after an error: the others are not coming, and torchrun ends them when this one exits.
    distributed.destroy_process_group()
