"""``idode data``: list, fetch, verify and describe data sets."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idode.cli.parsing import add_json_arguments, add_quiet_argument

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["add_arguments", "run"]

Result = tuple[dict[str, Any], str]  # for programs, and for people


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode data``."""
    from idode.data import FORMATS, PUBLISHED

    actions = ("list", *ON_SPEC)
    parser.add_argument("action", choices=actions, help="what to do; all but list need a SPEC")
    files = ", ".join(f"{name}:PATH[?option=value]" for name in FORMATS)
    parser.add_argument(
        "spec", nargs="?", metavar="SPEC", help=f"a data set: {', '.join(PUBLISHED)}, {files}"
    )
    parser.add_argument(
        "--root", type=Path, metavar="DIR",
        help="folder of prepared data [$IDODE_DATA, else ~/.cache/idode]",
    )  # fmt: skip
    add_json_arguments(parser, what="the result")
    add_quiet_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Carry out ``idode data``; the exit code."""
    from idode.cli.tables import check_output, write_json
    from idode.data import default_root
    from idode.errors import InputError

    check_output(args.json, args.force)
    root = args.root or default_root()
    if root.exists() and not root.is_dir():
        raise InputError(f"{root} is a file: give a folder with --root, or set IDODE_DATA")
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


def list_all(root: Path) -> Result:
    """Every published data set with its state, and the formats of own files."""
    from idode.data import FORMATS, PUBLISHED

    rows: dict[str, Any] = {}
    lines = []
    for name, published in PUBLISHED.items():
        state = published.state(root)
        rows[name] = {
            "prepared": state == "ready",
            "fetchable": bool(published.official),
            "train_size": published.train_size,
            "test_size": published.test_size,
            "shape": list(published.shape),
        }
        shape = "x".join(map(str, published.shape))
        sizes = f"{published.train_size:7} + {published.test_size:5}  {shape:8}"
        lines.append(f"{name:15} {state:7} {sizes}  {PUBLISHED.summaries[name]}")
    lines.append("your own files:")
    lines += [f"  {name + ':PATH':13} {text}" for name, text in FORMATS.summaries.items()]
    return {"root": str(root), "data": rows}, "\n".join(lines)


def fetch_one(spec: str, root: Path, quiet: bool) -> Result:
    """Download and prepare a published data set."""
    from idode.data import fetch
    from idode.progress import LateBar

    with LateBar("B", quiet, scaled=True) as late:

        def progress(done: int, total: int | None) -> None:
            bar = late.bar
            if done < bar.n:  # the next file
                bar.reset()
            bar.total = total
            bar.update(done - bar.n)

        identity = fetch(spec, root, progress).identity
    return identity.to_json(), f"ready: {identity}"


def verify_one(spec: str, root: Path, quiet: bool) -> Result:
    """Compare the hash of all values with the known one."""
    from idode.data import PUBLISHED, verify

    identity = verify(spec, root)
    published = PUBLISHED.get(identity.name)
    pinned = published is not None and published.sha256 is not None
    against = "published" if pinned else "stored"
    result = {**identity.to_json(), "checked_against": against}
    return result, f"intact, hash equal to the {against} one: {identity}"


def describe_one(spec: str, root: Path, quiet: bool) -> Result:
    """Identity, and the moments of both splits."""
    from idode.data import load

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


def moments(split: NDArray[Any]) -> dict[str, Any]:
    """Mean and standard deviation for each channel (or column), smallest and largest value."""
    import numpy as np

    from idode.data.mapped import blocks

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


ON_SPEC = {"fetch": fetch_one, "verify": verify_one, "describe": describe_one}
