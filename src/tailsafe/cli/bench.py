"""`tailsafe bench`: how fast this machine is, as ratios inside one run."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from tailsafe.cli.app import JsonFlag, app, console, emit_json


class Subject(StrEnum):
    """What can be measured."""

    tabular = "tabular"
    envs = "envs"
    update = "update"


class Precision(StrEnum):
    """Of the matrix products."""

    float32 = "float32"
    tf32 = "tf32"
    bf16 = "bf16"


class Backend(StrEnum):
    """The physics engines."""

    mujoco = "mujoco"
    warp = "warp"
    mjx = "mjx"


@app.command()
def bench(
    subject: Annotated[Subject, typer.Argument(help="What to measure.")] = Subject.tabular,
    task: Annotated[list[str] | None, typer.Option(metavar="TASK", help="envs: these tasks (default: all).")] = None,
    backend: Annotated[
        list[Backend] | None, typer.Option(metavar="mujoco|warp|mjx", help="envs: these engines (default: mujoco).")
    ] = None,
    num_envs: Annotated[
        list[int] | None, typer.Option(min=1, metavar="N", help="envs: batch sizes (default: 32).")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="envs: control steps per measurement.")] = None,
    precision: Annotated[
        Precision, typer.Option(help="update: of matrix products; bf16: of the critics.")
    ] = Precision.float32,
    runs: Annotated[int, typer.Option(min=1, help="update: runs trained by one program.")] = 1,
    json: JsonFlag = False,
) -> None:
    """Measure tailsafe on this machine.

    tabular: how the exact method grows with horizon and number of betas. envs: control steps per second of whole
    environments, against the physics alone. update: one update of SRCPO at the paper's sizes, against the rate of
    matrix products.
    """
    if subject is Subject.envs:
        from tailsafe.bench.envs import bench_envs
        from tailsafe.tasks import TASKS

        result = bench_envs(task or tuple(TASKS), backend or ("mujoco",), num_envs or (32,), steps)
    elif subject is Subject.update:
        from tailsafe.bench.update import bench_update

        result = bench_update(precision.value, runs)
    else:
        from tailsafe.bench.tabular import bench_tabular

        result = bench_tabular()
    if json:
        emit_json(result)
    elif subject is Subject.update:
        _print_update(result)
    elif subject is Subject.envs:
        _print_envs(result)
    else:
        _print_tabular(result)


def _print_envs(result: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(title=f"control steps per second on {result['device']}")
    for name in ("task", "engine", "envs", "steps/s", "physics alone", "ratio", "compile s"):
        table.add_column(name, justify="left" if name in ("task", "engine") else "right")
    for row in result["results"]:
        table.add_row(
            row["task"],
            row["backend"],
            str(row["num_envs"]),
            f"{row['steps_per_second']:,.0f}",
            f"{row['raw_steps_per_second']:,.0f}",
            f"{row['ratio']:.2f}",
            f"{row['compile_seconds']:.1f}",
        )
    console().print(table)


def _print_update(result: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(title=f"one update of SRCPO, {result['rows']:,} rows, {result['precision']}, on {result['device']}")
    for name in ("runs", "matmul GFLOP/s", "critics GFLOP/s", "ratio", "critics s", "update s", "update / critics"):
        table.add_column(name, justify="right")
    table.add_row(
        str(result["runs"]),
        f"{result['matmul_gflops']:,.0f}",
        f"{result['critic_gflops']:,.0f}",
        f"{result['critic_ratio']:.2f}",
        f"{result['critic_seconds']:.3f}",
        f"{result['update_seconds']:.3f}",
        f"{result['update_over_critic']:.2f}",
    )
    console().print(table)


def _print_tabular(result: dict[str, Any]) -> None:
    from rich.table import Table

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
