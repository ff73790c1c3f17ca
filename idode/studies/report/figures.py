"""The figures of reports and comparisons, made without matplotlib's global state."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from numpy.typing import NDArray
from torch import Tensor

from idode.likelihood.bits_per_dim import BitsPerDim
from idode.likelihood.dequantization import uniform_start
from idode.sampling.pictures import to_bytes
from idode.studies.report.curves import TrainingCurve
from idode.studies.report.noise_levels import NoiseLevels

__all__ = [
    "Band",
    "convergence",
    "dots",
    "histogram",
    "png",
    "points",
    "squared_errors",
    "time_densities",
    "training",
    "uniform_starts",
]

BLUE, ORANGE, GREEN, INK, FAINT = "#2b6cb0", "#c05621", "#2f855a", "#2d3748", "#a0aec0"
COLOURS = (FAINT, BLUE, ORANGE, GREEN)
MANY = (  # for figures of up to twelve systems; more repeat them with another line style
    INK, BLUE, ORANGE, GREEN, "#805ad5", "#d53f8c", "#319795", "#b7791f", "#e53e3e", "#63b3ed",
    "#68d391", "#9f7aea",
)  # fmt: skip
WIDTH = 8.0  # inches; at DPI it is the width of the page, and sharp on a dense screen
DPI = 150


def png(figure: Figure) -> bytes:
    """A figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def _figure(height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = [figure.add_subplot(1, columns, i + 1) for i in range(columns)]
    for ax in axes:
        _style(ax)
    return figure, axes


def _style(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(FAINT)
    ax.tick_params(colors=INK, labelsize=9)
    ax.grid(color=FAINT, alpha=0.25, linewidth=0.6)
    ax.set_axisbelow(True)


def _label(ax: Axes, x: str, y: str, title: str = "") -> None:
    ax.set_xlabel(x, color=INK, fontsize=10)
    ax.set_ylabel(y, color=INK, fontsize=10)
    if title:
        ax.set_title(title, color=INK, fontsize=10.5, loc="left")


def training(curve: TrainingCurve) -> Figure:
    """Loss and held-out bound against steps; the axis fits all but the first tenth of them."""
    figure, (ax,) = _figure(3.4)
    series = (("training loss", curve.loss, FAINT), ("SDE bound, test", curve.held_out, BLUE))
    shown: list[float] = []
    last = max((step for _, pairs, _ in series for step, _ in pairs), default=0)
    for name, pairs, colour in series:
        if pairs:
            steps, bits = zip(*pairs, strict=True)
            marker = "o" if len(pairs) <= 40 else ""
            ax.plot(steps, bits, color=colour, marker=marker, markersize=3.5, label=name)
            shown += [value for step, value in pairs if step > last / 10]
    if shown:
        low, high = min(shown), max(shown)
        ax.set_ylim(low - 0.05 * (high - low) - 0.01, high + 0.1 * (high - low) + 0.01)
    if curve.finetuned_after:
        ax.axvline(
            curve.finetuned_after, color=INK, linewidth=0.9, linestyle="--", label="fine-tuning"
        )
    _label(ax, "optimiser step", "bits/dim")
    ax.legend(frameon=False, fontsize=9)
    return figure


@dataclass(frozen=True)
class Band:
    """Mean and range of a curve over several runs."""

    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def convergence(bands: Mapping[str, Band], x: str, level: float | None, name: str) -> Figure:
    """Curves of many systems; the axis leaves out the start and systems far above the others.

    Args:
        bands: Curves by system.
        x: Label of the horizontal axis.
        level: A value to mark, or none.
        name: Its label.
    """
    figure, (ax,) = _figure(4.4)
    tails: list[float] = []
    lows: list[float] = []
    for i, (system, band) in enumerate(bands.items()):
        style = ("-", "--", ":")[i // len(MANY) % 3]
        colour = MANY[i % len(MANY)]
        ax.plot(band.x, band.mean, style, color=colour, linewidth=1.6, label=system)
        ax.fill_between(band.x, band.low, band.high, color=colour, alpha=0.15, linewidth=0)
        tails += band.mean[len(band.mean) // 4 :]
        lows += band.low
    if tails:
        low, high = min(lows), float(np.quantile(tails, 0.9))
        ax.set_ylim(low - 0.05 * (high - low) - 0.01, high + 0.05 * (high - low) + 0.01)
    if level is not None:
        ax.axhline(level, color=INK, linewidth=0.9, linestyle=(0, (2, 3)), label=name)
    _label(ax, x, "SDE bound on test images (bits/dim)")
    figure.legend(loc="outside right upper", frameon=False, fontsize=8.5)
    return figure


def dots(rows: Mapping[str, Mapping[str, tuple[float, float]]], x: str) -> Figure:
    """A line for each row with a dot and an error bar for each kind of value.

    Args:
        rows: For each row, mean and standard error by kind of value.
        x: Label of the horizontal axis.
    """
    figure, (ax,) = _figure(1.2 + 0.32 * len(rows))
    kinds = list(dict.fromkeys(kind for values in rows.values() for kind in values))
    for kind, colour, shift in zip(kinds, (FAINT, BLUE, ORANGE), (-0.18, 0.0, 0.18), strict=False):
        have = [(i, values[kind]) for i, values in enumerate(rows.values()) if kind in values]
        places = [i + shift for i, _ in have]
        means, bars = [v[0] for _, v in have], [v[1] for _, v in have]
        ax.errorbar(
            means,
            places,
            xerr=bars,
            color=colour,
            fmt="o",
            markersize=4.5,
            capsize=2.5,
            label=kind,
        )
    ax.set_yticks(range(len(rows)), list(rows))
    ax.set_ylim(len(rows) - 0.5, -0.5)
    _label(ax, x, "")
    figure.legend(loc="outside upper right", ncols=3, frameon=False, fontsize=8.5)
    return figure


def time_densities(noise: NoiseLevels) -> Figure:
    """Quantiles of each distribution of noise levels, and the variance of the loss under it."""
    figure, (left, right) = _figure(3.4, columns=2)
    for curve, colour in zip(noise.densities, COLOURS, strict=False):
        left.plot(curve.t, curve.gamma, color=colour, linewidth=1.8, label=curve.name)
        right.plot(
            noise.gamma,
            curve.variance,
            color=colour,
            linewidth=1.8,
            marker="o",
            markersize=3,
            label=f"{curve.name}, total {curve.total:,.0f}",
        )
    right.set_yscale("log")
    _label(left, "t (uniform)", "γ = −log SNR", "(a) inverse distribution function γ(t)")
    _label(right, "γ = −log SNR", "variance of L/p (nats²)", "(b) variance at each noise level")
    left.legend(frameon=False, fontsize=9)
    right.legend(frameon=False, fontsize=9, loc="lower left")  # uniform falls on the other side
    return figure


def squared_errors(noise: NoiseLevels) -> Figure:
    """Mean square error of noise and of velocity over time."""
    figure, (ax,) = _figure(3.4)
    ax.plot(noise.time, noise.noise_error, color=ORANGE, marker="o", markersize=3, label="noise")
    ax.plot(
        noise.time,
        noise.velocity_error,
        color=BLUE,
        marker="o",
        markersize=3,
        label="normalised velocity",
    )
    ax.set_ylim(bottom=0)
    _label(ax, "t = (γ − γ_min) / (γ_max − γ_min)", "mean square error of a dimension")
    ax.legend(frameon=False, fontsize=9)
    return figure


def uniform_starts(starts: Sequence[BitsPerDim], levels: int) -> Figure:
    """Uniform dequantization against its start, with error bars over images."""
    figure, (ax,) = _figure(3.2)
    ways = [value.settings.dequantization for value in starts]
    gammas = [way.start for way in ways if way is not None and way.start is not None]
    means = [value.mean for value in starts]
    bars = [value.standard_error for value in starts]
    ax.errorbar(
        gammas, means, yerr=bars, color=BLUE, ecolor=FAINT, marker="o", markersize=4, capsize=3
    )
    ax.axvline(
        uniform_start(levels), color=ORANGE, linewidth=1.2, linestyle="--", label="default start"
    )
    _label(ax, "start γ of uniform dequantization", "bits/dim")
    ax.legend(frameon=False, fontsize=9)
    return figure


def histogram(value: BitsPerDim, pixels: Tensor, levels: int | None, shown: int = 8) -> Figure:
    """Bits/dim of each image, and for images the most and the least likely ones."""
    with_images = levels is not None and pixels.ndim == 4 and pixels.shape[1] in (1, 3)
    figure = Figure(figsize=(WIDTH, 5.0 if with_images else 3.0), layout="constrained")
    rows = figure.subfigures(
        2 if with_images else 1, 1, squeeze=False, height_ratios=(3, 2.2)[: 1 + with_images]
    )
    ax = rows[0, 0].add_subplot()
    _style(ax)
    bits = value.per_image.numpy()
    ax.hist(bits, bins=min(40, max(5, math.isqrt(len(bits)) * 2)), color=BLUE, alpha=0.75)
    label = f"mean {value.mean:.3f}"
    ax.axvline(value.mean, color=ORANGE, linewidth=1.5, linestyle="--", label=label)
    _label(ax, "bits/dim of an image", "images")
    ax.legend(frameon=False, fontsize=9)
    if with_images and levels is not None:
        _extremes(rows[1, 0], bits, pixels, levels, shown)
    return figure


def _extremes(
    part: SubFigure, bits: NDArray[np.float64], pixels: Tensor, levels: int, shown: int
) -> None:
    """Two rows of images, each with its bits/dim."""
    order = np.argsort(bits)
    count = min(shown, len(order))
    named = (("most likely", order[:count]), ("least likely", order[::-1][:count]))
    cells = part.subplots(2, count, squeeze=False)
    for row, (name, chosen) in zip(cells, named, strict=True):
        row[0].set_ylabel(name, color=INK, fontsize=9)
        for cell, index in zip(row, chosen, strict=True):
            _image(cell, pixels[int(index)], levels, f"{bits[index]:.2f}")


def _image(ax: Axes, pixels: Tensor, levels: int, title: str) -> None:
    shown = to_bytes(pixels[None], levels)[0]
    if shown.shape[-1] == 1:
        ax.imshow(shown[..., 0], cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    else:
        ax.imshow(shown, interpolation="nearest")
    ax.set_title(title, color=INK, fontsize=8, pad=2)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(False)


def points(drawn: Tensor, data: Tensor) -> Figure:
    """Continuous samples and data: their first two coordinates, or a histogram if there is one."""
    figure, (ax,) = _figure(4.5)
    if drawn[0].numel() == 1:
        ax.hist(data.flatten().numpy(), bins=40, density=True, color=FAINT, label="test data")
        ax.hist(drawn.flatten().numpy(), bins=40, density=True, color=BLUE, alpha=0.6)
        _label(ax, "value", "density")
    else:
        for rows, colour, name in ((data, FAINT, "test data"), (drawn, BLUE, "samples")):
            flat = rows.flatten(1).numpy()
            ax.scatter(flat[:, 0], flat[:, 1], s=8, color=colour, label=name)
        ax.set_aspect("equal", adjustable="datalim")
        _label(ax, "first coordinate", "second coordinate")
    ax.legend(frameon=False, fontsize=9)
    return figure
