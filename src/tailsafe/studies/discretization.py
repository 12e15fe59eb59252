"""Spectra as steps: the paper's table beside the exact optimum, and how the error falls with the number of steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tailsafe.risk import SpectralRisk, paper_steps
from tailsafe.risk.paper_table import CELLS, PRINTED
from tailsafe.studies.groups import Group, Rows
from tailsafe.studies.study import Findings, Study
from tailsafe.studies.tables import markdown

# Numbers of steps that errors are computed for.
MORE_CELLS = {"smoke": (2, 5), "laptop": (2, 3, 5, 8, 12), "paper": (2, 3, 5, 8, 12, 20, 32)}


def summary(rows: Rows, scale: str) -> Rows:
    """Per measure of the paper's table: our steps, the printed ones, both L1 errors, and the error for other numbers of
    steps. The printed steps' error is theirs when scaled to mass 1, of which rounding took a little.
    """
    return [_entry(measure, MORE_CELLS[scale]) for measure in PRINTED]


def _entry(measure: SpectralRisk, more: Sequence[int]) -> dict[str, Any]:
    own, printed = measure.discretize(CELLS), paper_steps(measure)
    return {
        "measure": str(measure),
        "eta": own.eta.tolist(),
        "alpha": own.alpha.tolist(),
        "l1_error": own.l1_error,
        "paper_eta": list(PRINTED[measure][0]),
        "paper_alpha": list(PRINTED[measure][1]),
        "paper_l1_error": printed.l1_error,
        "errors": {str(cells): measure.discretize(cells).l1_error for cells in more},
    }


def table(found: Findings) -> str:
    """A row for our steps and one for the printed ones."""
    rows = []
    for entry in found.summary:
        for who, prefix in (("optimum", ""), ("paper", "paper_")):
            eta, alpha = (", ".join(f"{x:.3f}" for x in entry[prefix + name]) for name in ("eta", "alpha"))
            rows.append([entry["measure"], who, eta, alpha, f"{entry[prefix + 'l1_error']:.6f}"])
    return markdown(["measure", "steps", "levels eta", "break points alpha", "L1 error"], rows)


def draw(found: Findings, runs: Sequence[Group], folder: Path) -> list[str]:
    """The spectra with their steps, and errors over numbers of steps."""
    from tailsafe.viz.discretization import draw_errors, draw_spectra

    draw_spectra(list(PRINTED), CELLS, folder / "spectra.png")
    draw_errors(found.summary, folder / "errors.png")
    return ["spectra.png", "errors.png"]


STUDY = Study(
    "discretization",
    "the paper's table of step spectra beside the exact optimum; nothing is trained",
    lambda scale: [],
    lambda scale: lambda folder: {},
    summary,
    table,
    draw,
)
