"""Run folders: configurations, presets, published systems, files."""

from __future__ import annotations

from pathlib import Path

__all__ = ["SHIPPED", "pretrained"]

SHIPPED = "pretrained:"  # begins the names of models that come with the package


def pretrained() -> dict[str, Path]:
    """Folders of the models that come with the package, by name."""
    root = Path(__file__).parent.parent / "pretrained"
    return {folder.name: folder for folder in sorted(root.iterdir()) if folder.is_dir()}
