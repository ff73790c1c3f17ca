"""``idode compress``: images to an archive without loss; also lists and tests archives."""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path

from idode.cli.parsing import RUN, add_quiet_argument, positive
from idode.errors import InputError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode compress``."""
    parser.add_argument(
        "input", metavar="INPUT", nargs="?",
        help="a folder, an image, a .npy or .npz file, or a data set by name",
    )  # fmt: skip
    parser.add_argument("--model", metavar="RUN", help=RUN)
    parser.add_argument("--out", type=Path, metavar="FILE", help="the archive, such as x.idode")
    parser.add_argument(
        "--steps", type=positive, metavar="T",
        help="steps of the diffusion: more take longer and give smaller files [25]",
    )  # fmt: skip
    parser.add_argument(
        "--jobs", type=positive, metavar="N", help="processes [one for each processor]"
    )
    parser.add_argument(
        "--block", type=positive, metavar="N",
        help="images of a block, which is decoded as a whole [1000]",
    )  # fmt: skip
    parser.add_argument(
        "--exact", action="store_true",
        help="restore every byte of every file, not only pixels, palette and metadata",
    )  # fmt: skip
    parser.add_argument(
        "--split", choices=("test", "train"), help="which split of a data set [test]"
    )
    parser.add_argument(
        "--limit", type=positive, metavar="N", help="only the first N images of a data set"
    )
    parser.add_argument(
        "--no-verify", action="store_true",
        help="do not decode the archive before it gets its name: twice as fast, and a defect of "
        "the machine or of a library stays unnoticed until you need the images",
    )  # fmt: skip
    parser.add_argument(
        "--dry-run", action="store_true", help="print the expected size and write nothing"
    )
    parser.add_argument("--list", type=Path, metavar="FILE", help="list the files of an archive")
    parser.add_argument(
        "--test", type=Path, metavar="FILE", help="decode an archive and write nothing"
    )
    parser.add_argument(
        "-f",
        "--force",
        action="store_true",
        help="replace the archive, and FILE of --json, if it exists",
    )
    parser.add_argument(
        "--data", metavar="SPEC",
        help="data set to fit tables to, for a model without them [that of RUN]",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures as JSON")
    add_quiet_argument(parser, but="errors, and what --list and --dry-run show")


def run(args: argparse.Namespace) -> int:
    """Run ``idode compress``; the exit code."""
    from idode.cli.tables import check_different, check_output, write_json

    files = {"--json": args.json, "--out": args.out, "--list": args.list, "--test": args.test}
    check_different(files)
    check_output(args.json, args.force)
    if args.list is not None:
        return _list(args)
    if args.test is not None:
        return _test(args)
    if args.input is None or args.model is None or (args.out is None and not args.dry_run):
        raise InputError(
            "an input, a model and an output are needed: idode compress INPUT --model RUN --out "
            "FILE.idode"
        )
    names = ("steps", "jobs", "block", "split", "limit", "data")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.dry_run:
        return _estimate(args, given)
    from idode.codec.archive import OTHER_KIND
    from idode.codec.compress import compress_files

    began = time.perf_counter()
    done = compress_files(
        args.input, args.out, args.model, exact=args.exact, verify=not args.no_verify,
        force=args.force, progress=not args.quiet, **given,
    )  # fmt: skip
    seconds = time.perf_counter() - began
    if args.json is not None:
        figures = dataclasses.asdict(done) | {"bits_per_dim": done.bits_per_dim}
        write_json(args.json, figures | {"seconds": seconds, "verified": not args.no_verify})
    if not args.quiet:
        share, rate = done.bytes_after / max(done.bytes_before, 1), done.images / seconds
        print(
            f"{args.out}: {_count(done.files, 'file')}, {_count(done.images, 'image')} "
            f"({done.modelled} by the model), {done.bytes_before} bytes to {done.bytes_after} "
            f"({share:.1%}, {done.bits_per_dim:.3f} bits/dim), {rate:.1f} images/s"
        )
        if done.images and not done.modelled:
            print(OTHER_KIND)
        elif share > 1:
            print("larger than before: a few images do not pay for the beginning of a block")
        print("not verified: --no-verify" if args.no_verify else "verified by decoding")
    return 0


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _estimate(args: argparse.Namespace, given: dict[str, object]) -> int:
    from idode.codec.archive import OTHER_KIND
    from idode.codec.estimate import expected_size

    given.pop("jobs", None)
    found = expected_size(args.input, args.model, exact=args.exact, **given)  # type: ignore[arg-type]
    if args.json is not None:
        from idode.cli.tables import write_json

        write_json(args.json, dataclasses.asdict(found))
    if not found.images:
        print(f"about {found.bytes:.0f} bytes; {OTHER_KIND}")
        return 0
    print(
        f"about {found.bytes:.0f} bytes ± {found.error:.0f} (standard error): {found.images} "
        f"images by the model at {found.bits_per_dim:.3f} bits/dim, {found.other} bytes for "
        "everything else"
    )
    return 0


def _list(args: argparse.Namespace) -> int:
    from idode.cli.tables import table, write_json
    from idode.codec.extraction import Archive, open_archive

    with open_archive(args.list) as file:
        archive = Archive(file, str(args.list))
        rows, figures = [], []
        for entry in archive.entries:
            shape = archive.shape_of(entry)
            figures.append({"name": entry.name, "images": shape, "exact": entry.exact})
            what = "kept as it is" if shape is None else "x".join(map(str, shape))
            rows.append([entry.name, what, "all bytes" if entry.exact else "pixels, metadata"])
    if args.json is not None:
        about = {"bytes": archive.size, "model": archive.model_name}
        write_json(args.json, {"files": figures, **about})
    print(table(["name", "images", "restores"], rows))
    made = "" if archive.model_name is None else f", made with {archive.model_name}"
    print(f"{len(rows)} files in {archive.size} bytes{made}")
    return 0


def _test(args: argparse.Namespace) -> int:
    from idode.cli.tables import write_json
    from idode.codec.decompress import verify_archive

    began = time.perf_counter()
    names = verify_archive(args.test, model=args.model, jobs=args.jobs, progress=not args.quiet)
    if args.json is not None:
        write_json(args.json, {"files": names, "seconds": time.perf_counter() - began})
    if not args.quiet:
        print(f"{args.test}: all {len(names)} files decode to what was compressed")
    return 0
