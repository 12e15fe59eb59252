"""What every picture shares: the look, and how it reaches the disk."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailsafe.errors import InputError
from tailsafe.extras import install_hint
from tailsafe.files import check_writable, replacing
from tailsafe.terminal import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
BLUE, ORANGE, RED, GREY = "#1f5fa8", "#e07b1a", "#c0392b", "#7f8c8d"
# For runs, methods and measures side by side.
COLOURS = (BLUE, ORANGE, "#8e44ad", "#16a085", "#2c3e50", "#b7950b", "#c2185b", "#5d6d7e")


def check_drawable() -> None:
    """Refuse pictures where nothing can draw them."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError(f"pictures need matplotlib: {install_hint('plot')}")


def check_target(path: Path) -> None:
    """Refuse a picture that could not be written, before any work is spent on it."""
    check_drawable()
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{path}: a picture ends in {', '.join(FORMATS)}")
    check_writable(path)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure with the house style; no window, no global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def tidy(axes: Any, title: str, xlabel: str, ylabel: str) -> None:
    """Title and labels, no box around the plot."""
    axes.set(title=printable(title), xlabel=xlabel, ylabel=ylabel)
    axes.title.set_parse_math(False)  # names hold what strangers wrote
    axes.spines[["top", "right"]].set_visible(False)
    axes.title.set_fontsize(11)


def save(figure: Figure, path: Path) -> None:
    """Write the picture whole or not at all."""
    check_target(path)
    with replacing(path) as partial:
        figure.savefig(partial, dpi=150)
