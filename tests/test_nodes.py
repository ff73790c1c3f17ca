"""Two machines, played by two launchers on this one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from forking import ROOT
from test_distributed import command, metrics


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.mark.slow
def test_two_launchers_train_one_run_as_a_single_process_does(tmp_path: Path) -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    env["IDODE_DATA"] = str(tmp_path / "data")
    words = {name: command(tmp_path, name, "train.steps=4") for name in ("one", "two")}
    meeting = ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", *meeting]
    nodes = [
        subprocess.Popen(
            [*launcher, f"--node-rank={rank}", "--nproc-per-node=1", "-m", "idode", *words["two"]],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [node.communicate(timeout=200)[0] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], said
    subprocess.run(
        [sys.executable, "-m", "idode", *words["one"]], env=env, check=True, timeout=200
    )
    one, two = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    assert [m["step"] for m in two] == [1, 2, 3, 4]
    assert [m["loss"] for m in two] == pytest.approx([m["loss"] for m in one], abs=1e-5)
