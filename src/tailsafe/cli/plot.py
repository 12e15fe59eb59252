"""`tailsafe plot`: how one run or several learned."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailsafe.cli.app import JsonFlag, app, console, emit_json


@app.command()
def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders; of several, all are overlaid.")],
    out: Annotated[Path | None, typer.Option(help="Picture (default: curves.png in the first RUN).")] = None,
    json: JsonFlag = False,
) -> None:
    """Draw the learning curves of runs: reward, each risk against its limit, cost rate, beta, KL, violations."""
    from tailsafe.policies.pretrained import own_copy
    from tailsafe.viz.figures import check_target
    from tailsafe.viz.run import draw_curves, read_curves, run_folders

    runs = [own_copy(run) for run in runs]
    folders = run_folders(runs)
    target = out or runs[0] / "curves.png"
    check_target(target)
    curves = [read_curves(folder) for folder in folders]
    draw_curves(curves, target)
    if json:
        emit_json({"picture": str(target), "runs": [run.name for run in curves]})
    else:
        console().print(f"picture: {target} ({len(curves)} run{'s' if len(curves) > 1 else ''})", markup=False)
