"""`tailsafe train` and `tailsafe resume`: learn a policy whose risks stay under their limits."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailsafe.cli.app import JsonFlag, app, console, emit_json

if TYPE_CHECKING:
    from tailsafe.runs.training import Run

NOT_FINITE = 1


class Backend(StrEnum):
    """The physics engines."""

    auto = "auto"
    mujoco = "mujoco"
    mjx = "mjx"


@app.command()
def train(
    task: Annotated[str, typer.Argument(metavar="TASK", help="A task (tailsafe tasks), Gymnasium id or MODULE:CLASS.")],
    algo: Annotated[str, typer.Option(help="srcpo, cppo, cvar_cpo, sdac, sdpo or wcsac.")] = "srcpo",
    risk: Annotated[
        list[str] | None, typer.Option(help="Risk measure; repeats in the order of the costs. (default: cvar:0.75)")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(help="0.025/step, 2.5/discounted or 25/episode; repeats like --risk. (default: the task's)"),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Control steps, over all environments.")] = None,
    seeds: Annotated[int, typer.Option(help="How many runs, with consecutive seeds.")] = 1,
    seed: Annotated[int, typer.Option(help="The (first) seed.")] = 0,
    preset: Annotated[str | None, typer.Option(help="laptop, paper or gpu. (default: what fits this machine)")] = None,
    backend: Annotated[Backend, typer.Option(help="Engine of the built-in tasks.")] = Backend.auto,
    out: Annotated[Path | None, typer.Option(help="The run's folder. (default: runs/TASK-ALGO-TIME)")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one setting.")] = None,
    json: JsonFlag = False,
) -> None:
    """Learn the best policy whose risks stay under their limits.

    Stop it with Ctrl-C at any time: it saves itself, and `tailsafe resume` goes on.
    """
    from tailsafe.risk import parse_spectrum
    from tailsafe.runs.config import TrainConfig, parse_limit, parse_settings
    from tailsafe.runs.plan import default_unit

    risks = [parse_spectrum(text) for text in risk or ()]
    limits = [parse_limit(text, default_unit(task)) for text in limit or ()]
    config = TrainConfig(
        task=task,
        algorithm=algo,
        total_steps=steps,
        seed=seed,
        seeds=seeds,
        preset=preset,
        backend=backend.value,
        out=out,
        settings=parse_settings(set_ or (), algo),
    )

    def work() -> Run:
        from tailsafe.runs import training

        return training.train(config, progress=not json, risks=risks, limits=limits)

    _finish(work, json)


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    json: JsonFlag = False,
) -> None:
    """Go on with a run that was stopped, from its last good checkpoint."""

    def work() -> Run:
        from tailsafe.runs import training

        return training.resume(run, progress=not json)

    _finish(work, json)


def _finish(work: Callable[[], Run], json: bool) -> None:
    """Run, then say where the result is; or in one line what stopped it."""
    from tailsafe.runs.session import NonFiniteError, RunInterrupted
    from tailsafe.runs.signals import Signals
    from tailsafe.runs.training import quiet_stdout

    try:
        with Signals(), quiet_stdout():
            run = work()
    except RunInterrupted as stopped:
        typer.echo(str(stopped), err=True)
        raise typer.Exit(128 + stopped.signal) from None
    except NonFiniteError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(NOT_FINITE) from None
    if json:
        emit_json({"run": str(run.folder), "steps": run.steps, "seconds": round(run.seconds, 3)})
    else:
        console().print(f"{run.steps:,} steps in {run.seconds:.0f} s: {run.folder}")
        console().print(f"next: tailsafe evaluate {run.folder}")
