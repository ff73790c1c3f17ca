"""``idode data``: list, fetch, verify and describe data sets."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idode.progress import LateBar
from idode.cli.tables import check_output, write_json
from idode.data import CATALOGUE, KINDS, default_root, fetch, load, verify
from idode.data.mapped import blocks
from idode.errors import InputError

__all__ = ["add_arguments", "run"]

ACTIONS = ("list", "fetch", "verify", "describe")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode data``."""
    parser.add_argument("action", choices=ACTIONS, help="what to do; all but list need a SPEC")
    parser.add_argument(
        "spec",
        nargs="?",
        metavar="SPEC",
        help="a data set: " + ", ".join(KINDS) + "; the last five as KIND:PATH[?option=value]",
    )
    parser.add_argument(
        "--root", type=Path, metavar="DIR",
        help="folder of prepared data [$IDODE_DATA, else ~/.cache/idode]",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result as JSON")
    parser.add_argument("--force", action="store_true", help="replace FILE of --json")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def moments(split: NDArray[Any]) -> dict[str, Any]:
    """Mean and standard deviation for each channel (or column), smallest and largest value."""
    axes = (0, 2, 3) if split.ndim == 4 else (0,)
    count, total, square = 0, 0.0, 0.0
    low, high = np.inf, -np.inf
    for block in blocks(split):
        values = block.astype(np.float64)
        count += values.size // values.shape[1]
        total = total + values.sum(axes)
        square = square + (values**2).sum(axes)
        low, high = min(low, float(values.min())), max(high, float(values.max()))
    mean = np.asarray(total) / count
    std = np.sqrt(np.maximum(np.asarray(square) / count - mean**2, 0))
    return {"mean": mean.tolist(), "std": std.tolist(), "min": low, "max": high}


def list_all(root: Path) -> tuple[dict[str, Any], str]:
    rows: dict[str, Any] = {}
    for name, published in CATALOGUE.items():
        prepared = (root / name).is_dir()
        rows[name] = {
            "prepared": prepared,
            "fetchable": bool(published.official),
            "train_size": published.train_size,
            "test_size": published.test_size,
            "shape": list(published.shape),
        }
    lines = [f"{'digits':15} ready      1500 +   297  1x8x8, comes with scikit-learn"]
    for name, row in rows.items():
        state = "ready" if row["prepared"] else "fetch" if row["fetchable"] else "by hand"
        shape = "x".join(map(str, row["shape"]))
        lines.append(f"{name:15} {state:7} {row['train_size']:7} + {row['test_size']:5}  {shape}")
    files = (k for k in KINDS if k not in CATALOGUE and k != "digits")
    lines.append("your own files: " + ", ".join(f"{k}:PATH" for k in files))
    return {"root": str(root), "data": rows}, "\n".join(lines)


def fetch_one(spec: str, root: Path, quiet: bool) -> tuple[dict[str, Any], str]:
    with LateBar("B", quiet, scaled=True) as late:

        def progress(done: int, total: int | None) -> None:
            bar = late.bar
            if done < bar.n:  # the next file
                bar.reset()
            bar.total = total
            bar.update(done - bar.n)

        identity = fetch(spec, root, progress).identity
    return identity.to_json(), f"ready: {identity}"


def verify_one(spec: str, root: Path, quiet: bool) -> tuple[dict[str, Any], str]:
    identity = verify(spec, root)
    published = CATALOGUE.get(identity.name)
    pinned = identity.name == "digits" or (published is not None and published.sha256 is not None)
    against = "published" if pinned else "stored"
    result = {**identity.to_json(), "checked_against": against}
    return result, f"intact, hash equal to the {against} one: {identity}"


def describe_one(spec: str, root: Path, quiet: bool) -> tuple[dict[str, Any], str]:
    dataset = load(spec, root)
    result = {
        **dataset.identity.to_json(),
        "dim": dataset.dim,
        "train": moments(dataset.train),
        "test": moments(dataset.test),
    }
    lines = [str(dataset.identity)]
    for split in ("train", "test"):
        values: dict[str, Any] = result[split]
        mean, std = (" ".join(f"{v:.3f}" for v in values[k][:8]) for k in ("mean", "std"))
        lines.append(
            f"{split:5} min {values['min']:g} max {values['max']:g} mean {mean} std {std}"
        )
    return result, "\n".join(lines)


ON_SPEC: dict[str, Callable[[str, Path, bool], tuple[dict[str, Any], str]]] = {
    "fetch": fetch_one,
    "verify": verify_one,
    "describe": describe_one,
}


def run(args: argparse.Namespace) -> int:
    """Carry out ``idode data``; returns the exit code."""
    check_output(args.json, args.force)
    root = args.root or default_root()
    if args.action == "list":
        if args.spec is not None:
            raise InputError(f"list shows all data sets: for one, idode data describe {args.spec}")
        result, text = list_all(root)
    elif args.spec is None:
        raise InputError(f"idode data {args.action} needs a data set: see idode data list")
    else:
        result, text = ON_SPEC[args.action](args.spec, root, args.quiet)
    if args.json is not None:
        write_json(args.json, result)
    if not args.quiet:
        print(text)
    return 0
