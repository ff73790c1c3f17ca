"""A page about scores: one self-contained HTML file with histogram, ROC and unusual images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from idode import __version__
from idode.batches import to_tensor
from idode.detection.conformal import Vector, threshold
from idode.detection.images import Pixels
from idode.detection.score import Labelled, Scores
from idode.detection.separation import roc
from idode.sampling.pictures import to_bytes
from idode.studies.report.figures import BLUE, FAINT, INK, ORANGE, WIDTH, png
from idode.studies.report.page import Section, Table, render_html

__all__ = ["Unusual", "histogram", "page"]

COLUMNS = 4  # pairs of image and map in a row
DIGITS = 5
TITLE = 0.25  # inches above an image


class Unusual:
    """The most unusual images, their maps over pixels, and their places in the scores.

    Args:
        order: Places, most unusual first.
        images: ``(n, C, H, W)``.
        maps: Bits of every pixel ``(n, H, W)``.
        levels: Grey levels of the images.
    """

    def __init__(self, order: Sequence[int], images: Pixels, maps: Vector, levels: int) -> None:
        self.order, self.maps = list(order), maps
        self.pictures = to_bytes(to_tensor(images), levels)


def page(
    scores: Scores, known: Vector, unusual: Unusual, facts: dict[str, str], title: str,
    labelled: Labelled | None = None,
) -> str:  # fmt: skip
    """The page as HTML; every text in it is escaped.

    Args:
        scores: Of the images.
        known: Scores of the known images of the calibration.
        unusual: The images to show.
        facts: Names and values of the first table.
        title: Heading.
        labelled: Where labels are known.
    """
    sections = [_histogram_section(scores, known)]
    if labelled is not None:
        sections.append(_roc_section(labelled))
    sections += [_gallery_section(scores, unusual), _table_section(scores, unusual)]
    return render_html(
        title, str(scores), facts, sections, f"idode {__version__}", about="The calibration"
    )


def histogram(scores: Vector, known: Vector, level: float) -> Figure:
    """Scores of the images against those of known images, and where flags begin.

    The axis ends where it shows the bulk of both; all that are higher are in the last bin.
    """
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    ax = figure.add_subplot()
    low, flagged = min(known.min(), scores.min()), threshold(known, level)
    bulk: float = max(np.quantile(known, 0.99), np.quantile(scores, 0.75))
    if math.isfinite(flagged):
        bulk = max(bulk, flagged)
    edges = np.linspace(low, max(low + 1.25 * (bulk - low), low + 1), 50).tolist()
    for values, colour, name in ((known, FAINT, "known images"), (scores, BLUE, "these images")):
        inside = np.minimum(values, edges[-1])
        share = np.full(len(values), 1 / len(values))
        ax.hist(inside, edges, weights=share, color=colour, alpha=0.65, label=name)
    if math.isfinite(flagged):
        ax.axvline(flagged, color=ORANGE, linewidth=1.2, linestyle="--", label="flagged above")
    ax.set_xlabel("score (the last bin holds all that are higher)", color=INK)
    ax.set_ylabel("share of images", color=INK)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, loc="upper right")
    return figure


def _histogram_section(scores: Scores, known: Vector) -> Section:
    return Section(
        "histogram",
        "Scores",
        f"{len(scores.names)} images against {len(known)} known images. The p-value of an image "
        "is the share of known images with at least its score, itself counted among them.",
        png(histogram(scores.score, known, scores.level)),
    )


def _roc_section(labelled: Labelled) -> Section:
    figure = Figure(figsize=(WIDTH, WIDTH / 2), layout="constrained")
    ax = figure.add_subplot(box_aspect=1)
    ax.plot(*roc(labelled.known, labelled.unknown), color=BLUE, linewidth=1.8)
    ax.plot([0, 1], [0, 1], color=FAINT, linewidth=1, linestyle="--")
    ax.set_xlabel("known images flagged", color=INK)
    ax.set_ylabel("unknown images flagged", color=INK)
    found = labelled.separation
    rows = (
        ("AUROC", str(found.auroc)),
        ("AUPR, unknown as positive", str(found.aupr)),
        ("false positives at 95% true positives", str(found.fpr_at_95_tpr)),
    )
    return Section(
        "roc",
        "Known against unknown images",
        f"{found.known} known and {found.unknown} unknown images; in brackets 95% bootstrap "
        "intervals.",
        png(figure),
        Table(("measure", "value"), rows),
    )


def _gallery_section(scores: Scores, unusual: Unusual) -> Section:
    rows = max(1, -(-len(unusual.order) // COLUMNS))
    tall = WIDTH / (2 * COLUMNS) + TITLE
    figure = Figure(figsize=(WIDTH, tall * rows), layout="constrained")
    axes = figure.subplots(rows, 2 * COLUMNS, squeeze=False)
    for ax in axes.flat:
        ax.set_axis_off()
    for place, i in enumerate(unusual.order):
        row, column = divmod(place, COLUMNS)
        image, map_ax = axes[row, 2 * column], axes[row, 2 * column + 1]
        picture = unusual.pictures[place]
        shown = picture[..., 0] if picture.shape[-1] == 1 else picture
        image.imshow(shown, cmap="gray", vmin=0, vmax=255)
        map_ax.imshow(unusual.maps[place], cmap="magma", vmin=0)
        image.set_title(f"#{place + 1}  p = {scores.p_value[i]:.3g}", fontsize=9, loc="left")
    return Section(
        "unusual",
        "Most unusual images",
        "Beside each image, where its bits are: bright pixels cost most. Numbers refer to the "
        "table below.",
        png(figure),
    )


def _table_section(scores: Scores, unusual: Unusual) -> Section:
    rows = tuple(
        (
            f"#{place + 1} {scores.names[i]}",
            f"{scores.score[i]:.{DIGITS}g}",
            f"{scores.p_value[i]:.3g}",
            f"{scores.bits_per_dim[i]:.3f} ± {scores.bits_error:.3f}",
            "yes" if scores.flagged[i] else "no",
            "yes" if scores.discovered[i] else "no",
            scores.reasons[i],
        )
        for place, i in enumerate(unusual.order)
    )
    header = ("image", "score", "p-value", "bits/dim", "flagged", "discovered", "most unusual")
    return Section(
        "table",
        "Reasons",
        f"Flagged: the p-value is at most {scores.level:g}. Discovered: at a false discovery rate "
        f"of {scores.rate:g} over all images. The error of bits/dim is its root mean square on "
        "known images.",
        table=Table(header, rows, words=True),
    )
