"""`tailsafe bench`: how fast this machine is, as ratios inside one run."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from tailsafe.cli.app import JsonFlag, app, console, emit_json


class Subject(StrEnum):
    """What can be measured."""

    tabular = "tabular"


@app.command()
def bench(
    subject: Annotated[Subject, typer.Argument(help="What to measure.")] = Subject.tabular,
    json: JsonFlag = False,
) -> None:
    """Measure tailsafe on this machine. tabular: how the exact method grows with horizon and number of betas."""
    from rich.table import Table

    from tailsafe.bench.tabular import bench_tabular

    result = bench_tabular()
    if json:
        emit_json(result)
        return
    table = Table(title="exact tabular method, 3 states, 2 actions, CVaR")
    for name in (
        "horizon",
        "states",
        "betas",
        "LP ms/beta",
        "iteration ms",
        "vs first row",
        "work vs first row",
    ):
        table.add_column(name, justify="right")
    for row in result["results"]:
        table.add_row(
            str(row["horizon"]),
            str(row["augmented_states"]),
            str(row["betas"]),
            f"{1e3 * row['lp_seconds_per_beta']:.2f}",
            f"{1e3 * row['iteration_seconds']:.3f}",
            f"{row['time_ratio']:.1f}",
            f"{row['work_ratio']:.1f}",
        )
    console().print(table)
