"""What every picture shares: the look, and how it reaches the disk."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tailsafe.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
BLUE, ORANGE, RED, GREY = "#1f5fa8", "#e07b1a", "#c0392b", "#7f8c8d"


def check_target(path: Path) -> None:
    """Refuse a picture that could not be written, before any work is spent on it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("pictures need matplotlib: pip install 'tailsafe[plot]'")
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{path}: a picture ends in {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure with the house style; no window, no global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def tidy(axes: object, title: str, xlabel: str, ylabel: str) -> None:
    """Title and labels, no box around the plot."""
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)  # type: ignore[attr-defined]
    axes.spines[["top", "right"]].set_visible(False)  # type: ignore[attr-defined]
    axes.title.set_fontsize(11)  # type: ignore[attr-defined]


def save(figure: Figure, path: Path) -> None:
    """Write the picture whole or not at all."""
    check_target(path)
    try:
        handle, name = tempfile.mkstemp(suffix=path.suffix, dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    try:
        figure.savefig(name, dpi=150)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
