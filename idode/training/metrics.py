"""Training metrics: sums over an interval, ``metrics.jsonl``, TensorBoard."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import warnings
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from idode.errors import DataWarning, InputError
from idode.numerics import double, home_of_float64
from idode.runs.distributed import World
from idode.sampling.pictures import Picture
from idode.storage import NO_FOLLOW, open_regular, parse_json, write_atomically

__all__ = ["IntervalSums", "MetricsLog", "read_metrics"]

LARGEST_STEP = 2**53  # all below it are floats too


class IntervalSums:
    """Sums over the steps since the last line of metrics, in one tensor for the checkpoint.

    They stay on the device until a line is written, and each process has those of its own
    samples: the sum over all processes is the whole.

    Args:
        device: Where losses are.
        processes: How many there are.
    """

    def __init__(self, device: torch.device | None = None, processes: int = 1) -> None:
        home = None if device is None else home_of_float64(device)
        self.sums = torch.zeros(6, dtype=torch.float64, device=home)
        self.share = 1 / processes

    def add(self, loss: Tensor, second: Tensor, norm: Tensor, skip: Tensor | None = None) -> None:
        """Add a step.

        Args:
            loss: Losses ``(B,)`` in float64, divided by the density of their noise levels.
            second: Their second-order terms ``(B,)``, divided likewise.
            norm: Norm of the gradient of all processes, ``()``.
            skip: Whether to leave it out after all, ``()``.
        """
        steps, count = (loss.new_full((), value) for value in (self.share, len(loss)))
        total, square = loss.sum(), (loss**2).sum()
        new = torch.stack([steps, count, total, square, second.sum(), double(norm) * self.share])
        self.sums += new if skip is None else torch.where(skip, 0.0, new)

    def collect(self, world: World) -> Tensor:
        """The sums over all processes, on all; they move to the one that writes."""
        total = world.sum(self.sums.clone())
        self.sums.copy_(total if world.writes else torch.zeros_like(total))
        return total

    @staticmethod
    def summary(sums: Tensor, dim: int) -> dict[str, float]:
        """Means in bits/dim; the variance is that of one sample's loss, in (bits/dim)²."""
        steps, count, total, square, second, norm = sums.tolist()
        bits = 1 / (dim * math.log(2))
        mean = total / count
        return {
            "loss": mean * bits,
            "second_order": second / count * bits,
            "loss_variance": max(0.0, square / count - mean**2) * bits**2,
            "grad_norm": norm / steps,
        }

    def clear(self) -> None:
        """Start the next interval."""
        self.sums.zero_()


class MetricsLog:
    """Appends to ``metrics.jsonl``; lines after ``step`` are of an earlier attempt and removed.

    Without a path it does nothing: on all processes but the one that writes.
    """

    def __init__(self, path: Path | None, step: int) -> None:
        self._file: IO[bytes] | None = None
        self._board: Any = None
        if path is None:
            return
        try:
            if path.exists():
                lines = _lines(path)
                write_atomically(path, b"".join(t for t, line in lines if line["step"] <= step))
            self._file = open(path, "ab", opener=_no_link)  # noqa: SIM115  kept open
        except OSError as error:
            raise InputError(f"cannot write {path} ({error.strerror}): make room first") from None
        self._board = _tensorboard(path.parent / "tensorboard", step)

    def write(self, line: dict[str, Any]) -> None:
        """Append a JSON object and flush it."""
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(line).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise InputError(
                f"cannot write {self._file.name} ({error.strerror}): make room, then continue "
                "with --resume"
            ) from None
        if self._board is not None:
            for name, value in line.items():
                if name != "step" and isinstance(value, int | float):
                    self._board.add_scalar(name, value, line["step"])

    def show(self, name: str, picture: Picture | None, step: int) -> None:
        """Pass a picture ``(H, W, C)``, if any, to TensorBoard; its file is written elsewhere."""
        if self._board is not None and picture is not None:
            self._board.add_image(name, picture, step, dataformats="HWC")

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._file is not None:
            self._file.close()
        if self._board is not None:
            self._board.close()


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | NO_FOLLOW, 0o666)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of metrics; none if there is no file, as for an imported model.

    Lines that a broken disk spoiled are left out with a :class:`~idode.errors.DataWarning`.
    """
    if not path.exists():
        return []
    try:
        return [line for _, line in _lines(path)]
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror}): check the file") from None


def _lines(path: Path) -> list[tuple[bytes, dict[str, Any]]]:
    """Text and value of each line; the last one is passed over if a kill has cut it short."""
    found, bad = [], []
    with open_regular(path) as file:
        whole = file.read().rpartition(b"\n")[0]
    for number, text in enumerate(whole.split(b"\n") if whole else (), start=1):
        try:
            line = parse_json(text)
        except ValueError:
            line = None
        step = line.get("step") if isinstance(line, dict) else None
        if type(step) is int and 0 <= step < LARGEST_STEP:
            found.append((text + b"\n", line))
        else:
            bad.append(number)
    if bad:
        numbers = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
        notice = f"{path}: {len(bad)} damaged lines are skipped (number {numbers})"
        warnings.warn(notice, DataWarning, stacklevel=2)
    return found


def _tensorboard(folder: Path, step: int) -> Any:  # noqa: ANN401  an optional package's type
    """A writer where the package is installed, else ``None``."""
    if importlib.util.find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=step + 1)
