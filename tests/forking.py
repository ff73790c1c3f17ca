"""Processes that train, cheaply: one interpreter imports everything once and forks each of them.

A forked child is a process like any other: it can be killed at any moment, and it can join a
process group. Importing torch anew for each would take most of the time of these tests.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
TIMEOUT = 120.0
FIRST_STEPS = 8  # of the search for a grid, as conftest.py has them in this process


@dataclass(frozen=True)
class Ended:
    codes: list[int]  # exit code of each rank, or minus the signal
    text: str  # all they printed


class Forks:
    """The client's side."""

    def __init__(self) -> None:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, __file__], env=env, text=True, stdin=-1, stdout=-1
        )
        atexit.register(self._process.kill)

    def run(
        self,
        *argv: object,
        root: Path,
        ranks: int = 1,
        kill_after: float | None = None,
        kill_when: str | None = None,
        kill_lines: int = 0,
        signal_number: int = signal.SIGKILL,
        file_limit: int | None = None,
        together: bool = False,
    ) -> Ended:
        """Run ``idode argv``; kill it after some seconds or when a path matching a glob appears,
        or once the files that match have so many lines together.

        ``file_limit`` is the largest file it may write, in bytes: a disk that is full.
        ``together`` kills the other ranks once one has failed, as torchrun does.
        """
        job = {
            "argv": [str(a) for a in argv],
            "root": str(root),
            "ranks": ranks,
            "kill_after": kill_after,
            "kill_when": kill_when,
            "kill_lines": kill_lines,
            "signal": int(signal_number),
            "file_limit": file_limit,
            "together": together,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        codes = json.loads(self._process.stdout.readline())
        return Ended(codes, (root / "output.txt").read_text())


@functools.cache
def forks() -> Forks:
    """One server for the whole session."""
    return Forks()


def brake(job: dict, before: set[tuple[str, int]]) -> None:
    """Wait for the signal at the second write to disk after its cue, if it is late.

    On a busy machine the one who sends it may not be woken before the command has ended. Until
    that write the command runs on, so that the signal meets it wherever it is.
    """
    fsync, seen = os.fsync, False
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)

    def waiting(file: int) -> None:
        nonlocal seen
        if seen:
            select.select([woken], [], [], TIMEOUT)
        seen = seen or bool(matches(job) - before)
        fsync(file)

    os.fsync = waiting


def child(job: dict, rank: int, port: int, before: set[tuple[str, int]]) -> int:
    """Become the command."""
    import resource

    from idode.cli.main import main

    if job["kill_when"]:
        brake(job, before)
    with (Path(job["root"]) / "output.txt").open("a") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    if job["ranks"] > 1:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": job["ranks"]}
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ |= {name: str(value) for name, value in {**place, **meeting}.items()}
    os.environ["IDODE_DATA"] = str(Path(job["root"]) / "data")
    if job["file_limit"] is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing then fails instead of killing
        resource.setrlimit(resource.RLIMIT_FSIZE, (job["file_limit"], job["file_limit"]))
    code = main(job["argv"])
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def matches(job: dict) -> set[tuple[str, int]]:
    """Paths that match the glob, with their numbers: a dead process may have left some."""
    found, lines = set(), 0
    for path in Path(job["root"]).glob(job["kill_when"] or "nothing"):
        with contextlib.suppress(FileNotFoundError):
            lines += path.read_bytes().count(b"\n") if job["kill_lines"] else 0
            found.add((path.name, path.stat().st_ino))
    if job["kill_lines"]:
        return {("lines", 0)} if lines >= job["kill_lines"] else set()
    return found


def carry_out(job: dict) -> list[int]:
    """Fork the ranks, kill them if asked to, and wait."""
    (Path(job["root"]) / "output.txt").write_text("")
    before = matches(job)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    pids = []
    for rank in range(job["ranks"]):
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                code = child(job, rank, port, before)
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(code)
        pids.append(pid)
    start, codes, killed = time.monotonic(), {}, False
    while len(codes) < len(pids):
        for pid in set(pids) - set(codes):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
        lived = time.monotonic() - start
        due = job["kill_after"] is not None and lived > job["kill_after"]
        due |= bool(matches(job) - before)
        due |= job["together"] and any(codes.values())
        if (due and not killed) or lived > TIMEOUT:
            killed = True
            if job["kill_when"]:
                time.sleep(random.random() * 0.01)
            for pid in set(pids) - set(codes):
                os.kill(pid, job["signal"] if lived <= TIMEOUT else signal.SIGKILL)
        time.sleep(0.0005)
    return [codes[pid] for pid in pids]


def serve() -> None:
    # Whatever the commands import, so that no child has to; nothing here may run a backward
    # pass, as autograd does not survive a fork after its first.
    import torch
    import torch._dynamo  # which every optimiser imports at its first step

    from idode.ode import calibration

    calibration.FIRST = FIRST_STEPS
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(carry_out(json.loads(line))), flush=True)


if __name__ == "__main__":
    serve()
