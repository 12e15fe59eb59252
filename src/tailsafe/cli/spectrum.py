"""`tailsafe spectrum`: what a risk measure looks like and the steps that stand for it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailsafe.cli.app import MOST_CELLS, JsonFlag, Spec, app, console, emit_json
from tailsafe.errors import InputError


@app.command()
def spectrum(
    spec: Spec,
    cells: Annotated[int, typer.Option(max=MOST_CELLS, help="Number of levels M of the step spectrum.")] = 5,
    paper: Annotated[bool, typer.Option("--paper-table", help="Use the row printed in the paper (5 cells).")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the spectrum and its steps into this picture.")] = None,
    json: JsonFlag = False,
) -> None:
    """The step spectrum closest to SPEC in L1: levels eta, break points alpha, and the L1 error."""
    from rich.table import Table

    from tailsafe.risk import paper_steps, parse_spectrum
    from tailsafe.risk.paper_table import CELLS as PAPER_CELLS

    measure = parse_spectrum(spec)
    if paper and cells != PAPER_CELLS:
        raise InputError(f"--cells is {cells}; the paper's table has {PAPER_CELLS}")
    steps = paper_steps(measure) if paper else measure.discretize(cells)
    error = steps.l1_error
    if plot is not None:
        from tailsafe.viz.spectrum import draw_spectrum

        draw_spectrum(measure, steps, plot)
        if not json:
            console().print(f"picture: {plot}", markup=False)
    if json:
        emit_json(
            {
                "spec": str(measure),
                "eta": steps.eta.tolist(),
                "alpha": steps.alpha.tolist(),
                "l1_error": error,
            }
        )
        return
    table = Table("cell", "from u", "to u", "level eta", title=f"{measure} in {steps.cells} steps")
    edges = [0.0, *steps.alpha, 1.0]
    for j, level in enumerate(steps.eta):
        table.add_row(str(j + 1), f"{edges[j]:.5f}", f"{edges[j + 1]:.5f}", f"{level:.5f}")
    console().print(table)
    console().print(f"L1 error {error:.6g}: risks of costs in [0, B] differ by at most {error / 2:.3g} B")
