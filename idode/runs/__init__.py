"""Run folders: configurations, presets, published systems, files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from idode.registry import Registry

if TYPE_CHECKING:
    from idode.runs.run import Run

__all__ = ["FOREIGN", "SHIPPED", "pretrained"]

FOREIGN: Registry[Callable[[str], Run]] = Registry(
    "format of other libraries",
    {"diffusers": ("idode.adapters.foreign_run:open_foreign_run", "a saved pipeline")},
)

SHIPPED = "pretrained:"  # begins the names of models that come with the package


def pretrained() -> dict[str, Path]:
    """Folders of the models that come with the package, by name."""
    root = Path(__file__).parent.parent / "pretrained"
    return {folder.name: folder for folder in sorted(root.iterdir()) if folder.is_dir()}
