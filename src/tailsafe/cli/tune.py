"""`tailsafe tune`: which settings make a task learn best within its limits?"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailsafe.algorithms.registry import ALGORITHMS, DEFAULT_ALGORITHM
from tailsafe.cli.app import MOST_EPISODES, EnvArgs, JsonFlag, app, console, emit_json
from tailsafe.cli.train import Backend, algorithm_names, task_names
from tailsafe.extras import need

if TYPE_CHECKING:
    from tailsafe.training.trials import Tuning

NONE_COMPLETE = 1


@app.command()
def tune(
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK",
            help="A task (tailsafe tasks), Gymnasium id, MODULE:CLASS or FILE.py:CLASS.",
            autocompletion=task_names,
        ),
    ],
    trials: Annotated[int, typer.Option(min=1, help="How many in all, those of earlier calls included.")] = 30,
    algo: Annotated[str, typer.Option(help=", ".join(ALGORITHMS), autocompletion=algorithm_names)] = (
        DEFAULT_ALGORITHM
    ),
    risk: Annotated[
        list[str] | None,
        typer.Option(metavar="SPEC", help="Risk measure; repeats in the order of the costs. (default: cvar:0.75)"),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIMIT", help="0.025/step, 2.5/discounted or 25/episode; repeats like --risk. (default: the task's)"
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Control steps of every trial, over all environments.")] = None,
    tune_: Annotated[
        list[str] | None,
        typer.Option(
            "--tune",
            metavar="KEY=RANGE",
            help="What to search: KEY=LOW..HIGH or KEY=a,b,c; repeats. (default: the settings that matter most)",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of every trial, with consecutive seeds.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the search, and the (first) one of every trial.")] = 0,
    episodes: Annotated[int, typer.Option(min=2, max=MOST_EPISODES, help="Fresh episodes that judge a trial.")] = 500,
    preset: Annotated[str | None, typer.Option(help="laptop, paper or gpu. (default: what fits this machine)")] = None,
    backend: Annotated[Backend, typer.Option(help="Engine of the built-in tasks.")] = Backend.auto,
    out: Annotated[Path | None, typer.Option(help="The tuning's folder. (default: runs/tune-TASK-ALGO)")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting that stays as it is.")
    ] = None,
    env_arg: EnvArgs = None,
    json: JsonFlag = False,
) -> None:
    """Search for settings that earn the most within the limits, with Optuna. The same command resumes it.

    Every trial is a run in a folder of its own. Its score is the reward of fresh episodes if their risks keep the
    limits; otherwise minus the excess, below every such reward. Writes best.json.
    """
    need("optuna", "tuning needs a package that is missing", "tune")
    from tailsafe.envs.finding import parse_arguments
    from tailsafe.risk import parse_spectrum
    from tailsafe.training.config import TrainConfig, parse_limit, parse_settings
    from tailsafe.training.plan import default_unit
    from tailsafe.training.signals import RunInterrupted, Signals
    from tailsafe.training.train import quiet_stdout

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
        env_args=parse_arguments(env_arg or ()),
    )
    try:
        with Signals(unsaved=True), quiet_stdout():
            from tailsafe.training import tune as tuning

            found = tuning.tune(
                config, trials, search=tune_ or (), episodes=episodes, progress=not json, risks=risks, limits=limits
            )
    except RunInterrupted as stopped:
        typer.echo("stopped and saved; the same command resumes it", err=True)
        raise typer.Exit(128 + stopped.signal) from None
    if json:
        emit_json(found.to_json())
    else:
        _show(found)
    if found.best is None:
        raise typer.Exit(NONE_COMPLETE)


def _show(found: Tuning) -> None:
    from tailsafe.training.tune import BEST

    out = console()
    out.print(str(found), markup=False)
    if found.best is None:
        return
    if not found.best.met:
        out.print("no trial kept its limits: try more steps, a larger margin, or a looser limit", markup=False)
    out.print(f"{found.folder / BEST}: {found.command or 'its settings'}", markup=False)
    # The luckiest of many measurements flatters.
    out.print(f"next: tailsafe evaluate {shlex.quote(str(found.best.folder))} --seed 1", markup=False)
