"""``idode score``: how unusual images are to a model, with p-values, reasons and a page."""

from __future__ import annotations

import argparse
from pathlib import Path

from idode.cli.parsing import (
    above_zero,
    add_device_argument,
    add_json_arguments,
    add_quiet_argument,
    add_run_argument,
    positive,
)

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode score``."""
    add_run_argument(parser)
    parser.add_argument(
        "images", metavar="IMAGES", nargs="?",
        help="a folder, an image, a .npy or .npz file, folder:PATH?size=N, or a data set by name",
    )  # fmt: skip
    parser.add_argument(
        "--known", metavar="IMAGES", help="images that should not be flagged, for a ROC curve"
    )
    parser.add_argument("--unknown", metavar="IMAGES", help="images that should be flagged")
    parser.add_argument(
        "--out", type=Path, metavar="FILE",
        help="write a table as csv, and a page beside it that ends in .html",
    )  # fmt: skip
    parser.add_argument(
        "--level", type=above_zero, metavar="A",
        help="flag p-values up to this: the share of known images that may be flagged [0.05]",
    )  # fmt: skip
    parser.add_argument(
        "--rate", type=above_zero, metavar="Q",
        help="false discovery rate for the whole set, by Benjamini and Hochberg [0.05]",
    )  # fmt: skip
    parser.add_argument(
        "--calibration", type=Path, metavar="FILE",
        help="a file that `idode calibrate --out` wrote [that of RUN]",
    )  # fmt: skip
    parser.add_argument(
        "--limit", type=positive, metavar="N", help="only the first N images of each set [all]"
    )
    add_json_arguments(parser, replaces="FILE of --out and --json, and the page,")
    add_quiet_argument(parser)
    add_device_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Run ``idode score``; the exit code."""
    import dataclasses

    from idode.cli.tables import check_different, check_output, table, write_file, write_json
    from idode.detection.report import score_report
    from idode.detection.score import most_unusual

    page = None if args.out is None else args.out.with_suffix(".html")
    outputs = {"--out": args.out, "the page": page, "--json": args.json}
    check_different(outputs)
    for path in outputs.values():
        check_output(path, args.force)
    names = ("level", "rate", "calibration", "limit", "device")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    found, labelled, html = score_report(
        args.run, args.images, known=args.known, unknown=args.unknown,
        progress=not args.quiet, **given,
    )  # fmt: skip
    if args.out is not None and page is not None:
        write_file(args.out, found.to_csv())
        write_file(page, html)
    if args.json is not None:
        separation = {} if labelled is None else dataclasses.asdict(labelled.separation)
        write_json(args.json, {**found.to_json(), "separation": separation})
    if not args.quiet:
        first = most_unusual(found, 5)
        rows = [
            [found.names[i], f"{found.score[i]:.2f}", f"{found.p_value[i]:.4f}",
             f"{found.bits_per_dim[i]:.3f}"]
            for i in first
        ]  # fmt: skip
        print(table(["most unusual", "score", "p", "bits/dim"], rows))
        print("\n".join(f"{found.names[i]}: {found.reasons[i]}" for i in first))
        print(found)
        if labelled is not None:
            s = labelled.separation
            print(f"AUROC {s.auroc}, AUPR {s.aupr}, FPR at 95% TPR {s.fpr_at_95_tpr}")
        if page is not None:
            print(f"{args.out}, {page}")
    return 0
