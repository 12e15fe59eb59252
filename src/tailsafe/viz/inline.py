"""Pictures that notebooks show in place."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailsafe.errors import InputError
from tailsafe.evaluation.report import Evaluation
from tailsafe.policies.pretrained import own_copy
from tailsafe.viz.run import draw_curves, draw_evaluation, read_curves, run_folders

_MIME = {".png": "image/png", ".gif": "image/gif", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class Picture:
    """A picture in a file. The last expression of a notebook's cell, it is shown."""

    path: Path

    def __repr__(self) -> str:
        return f"Picture({str(self.path)!r})"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """What IPython asks for."""
        bundle = {"text/plain": repr(self)}
        kind = _MIME.get(self.path.suffix.lower())
        if kind is None or not self.path.is_file():
            return bundle
        content = self.path.read_bytes()
        shown = content.decode("utf-8") if kind == "image/svg+xml" else base64.b64encode(content).decode("ascii")
        return bundle | {kind: shown}


def plot(what: Any, path: Path | str | None = None) -> Picture:
    """Draw the learning curves of a run (what `train` returns, or a folder), or the episodes of an `Evaluation`.

    Args:
      what: a run, its folder, or an `Evaluation`.
      path: where to; else curves.png or evaluation.png in the run's folder.

    Returns:
      The picture; as the last line of a notebook's cell it is shown.

    Examples:
      >>> picture = ts.plot("runs/roads")
    """
    folder = what.folder if hasattr(what, "folder") else Path(what)
    if folder is None and path is None:
        raise InputError("this evaluation belongs to no folder: say where to draw, ts.plot(evaluation, path)")
    folder = folder if folder is None or path is not None else own_copy(folder)
    if isinstance(what, Evaluation):
        target = Path(path) if path is not None else folder / "evaluation.png"
        draw_evaluation(what, target)
        return Picture(target)
    target = Path(path) if path is not None else folder / "curves.png"
    draw_curves([read_curves(one) for one in run_folders([folder])], target)
    return Picture(target)
