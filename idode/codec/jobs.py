"""Blocks coded by several processes of one thread each, in their order."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idode.codec.blocks import decode_block, encode_block
from idode.codec.coder import DamagedError
from idode.codec.network import one_thread
from idode.codec.scheme import Scheme
from idode.errors import InputError
from idode.progress import LateBar

__all__ = ["Decode", "Encode", "Progress", "count_processes", "progress_bar", "run_jobs"]

Progress = Callable[[int], None]
WAIT = 0.2  # seconds between looks at the progress of other processes

_queue: Any = None  # of a worker process, for its progress


@dataclass(frozen=True)
class Encode:
    """A block to code, and to decode again where ``verify`` asks for it."""

    scheme: Scheme | None
    images: NDArray[np.uint8]  # (N, C, H, W)
    verify: bool

    @property
    def work(self) -> int:
        """Images that go through the network."""
        return len(self.images) * (2 if self.verify else 1)

    def run(self, progress: Progress) -> bytes:
        """The bytes of the block; by ordinary coders where the model's do not decode."""
        count, shape = len(self.images), tuple(self.images.shape[1:])
        for scheme in (self.scheme, None):
            data = encode_block(scheme, self.images, progress)
            if not self.verify:
                return data
            try:
                if np.array_equal(decode_block(scheme, data, count, shape, progress), self.images):
                    return data
            except DamagedError:
                pass
        raise RuntimeError("a block by ordinary coders does not decode to its images")


@dataclass(frozen=True)
class Decode:
    """A block to decode."""

    scheme: Scheme | None
    data: bytes
    count: int
    shape: tuple[int, int, int]

    def run(self, progress: Progress) -> NDArray[np.uint8]:
        """Its images ``(N, C, H, W)``."""
        return decode_block(self.scheme, self.data, self.count, self.shape, progress)


def run_jobs(
    jobs: Iterable[Encode] | Iterable[Decode], processes: int, progress: Progress
) -> Iterator[Any]:
    """Results of the jobs, in their order; jobs are drawn as processes become free."""
    if processes <= 1:
        for job in jobs:
            with one_thread():
                result = job.run(progress)
            yield result
        return
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    pool = ProcessPoolExecutor(processes, context, _begin, (queue, os.getpid()))
    try:
        waiting: list[Future[Any]] = []
        for job in jobs:
            with _without_ctrl_c():
                waiting.append(pool.submit(_run, job))
            while len(waiting) > processes:  # one more than run at a time
                yield _result(waiting.pop(0), queue, progress)
        while waiting:
            yield _result(waiting.pop(0), queue, progress)
        _drain(queue, progress)
    except BrokenProcessPool:
        raise InputError(
            "a process ended by itself, perhaps for lack of memory: use fewer jobs"
        ) from None
    finally:
        # One may be in the middle of a block, another still be importing what it needs: none is
        # of use any more. The pool forgets them when it shuts down.
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(cancel_futures=True)


def _result(future: Future[Any], queue: Any, progress: Progress) -> Any:  # noqa: ANN401
    while not future.done():
        wait([future], timeout=WAIT)
        _drain(queue, progress)
    return future.result()


def _drain(queue: Any, progress: Progress) -> None:  # noqa: ANN401
    while not queue.empty():
        progress(queue.get())


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Processes that are started inside never see Ctrl-C, not even while they import."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(queue: Any, parent: int) -> None:  # noqa: ANN401
    """In a new process: leave Ctrl-C to the parent, and end when it is gone."""
    global _queue
    _queue = queue
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _run(job: Encode | Decode) -> Any:  # noqa: ANN401
    with one_thread():
        return job.run(_queue.put)


@contextmanager
def progress_bar(
    unit: str, shown: bool
) -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """A bar whose length is set later: how to begin it, and how to advance it."""
    bars: list[LateBar] = []

    def begin(total: int) -> None:
        bars.append(LateBar(f" {unit}", not shown, total))

    try:
        yield begin, lambda count: bars[-1].update(count)
    finally:
        for bar in bars:
            bar.close()


def count_processes(jobs: int | None) -> int:
    """Processes to use; ``None`` is one for each processor."""
    if jobs is not None and jobs < 1:
        raise InputError(f"jobs: must be at least 1, got {jobs}")
    return jobs or os.cpu_count() or 1
