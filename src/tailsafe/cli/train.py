"""`tailsafe train` and `tailsafe resume`: learn a policy whose risks stay under their limits."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailsafe.algorithms.registry import ALGORITHMS, DEFAULT_ALGORITHM
from tailsafe.cli.app import EnvArgs, EnvName, JsonFlag, TrustFlag, app, console, emit_json
from tailsafe.errors import InputError

if TYPE_CHECKING:
    from tailsafe.training.train import Run

NOT_FINITE = 1


class Backend(StrEnum):
    """The physics engines."""

    auto = "auto"
    mujoco = "mujoco"
    warp = "warp"
    mjx = "mjx"


def task_names(incomplete: str) -> list[str]:
    """For the shell."""
    from tailsafe.envs.registration import GYMNASIUM_IDS

    names = [*GYMNASIUM_IDS.values(), "finite", *GYMNASIUM_IDS]
    return [name for name in names if name.startswith(incomplete)]


def algorithm_names(incomplete: str) -> list[str]:
    """For the shell."""
    return [name for name in ALGORITHMS if name.startswith(incomplete)]


@app.command()
def train(
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK",
            help="A task (tailsafe tasks), Gymnasium id, MODULE:CLASS or FILE.py:CLASS.",
            autocompletion=task_names,
        ),
    ],
    algo: Annotated[str, typer.Option(help=", ".join(ALGORITHMS), autocompletion=algorithm_names)] = DEFAULT_ALGORITHM,
    risk: Annotated[
        list[str] | None,
        typer.Option(metavar="SPEC", help="Risk measure; repeats in the order of the costs. (default: cvar:0.75)"),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIMIT",
            help="0.025/step, 2.5/discounted or 25/episode, or a range as 0.01..0.05/step; repeats like --risk. "
            "(default: the task's)",
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Control steps, over all environments.")] = None,
    seeds: Annotated[
        int,
        typer.Option(help="How many runs, with consecutive seeds; one program, so rounded unlike single ones."),
    ] = 1,
    seed: Annotated[int, typer.Option(help="The (first) seed.")] = 0,
    preset: Annotated[str | None, typer.Option(help="laptop, paper or gpu. (default: what fits this machine)")] = None,
    backend: Annotated[Backend, typer.Option(help="Engine of the built-in tasks.")] = Backend.auto,
    out: Annotated[Path | None, typer.Option(help="The run's folder. (default: runs/TASK-ALGO-TIME)")] = None,
    from_: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="Start from this run, saved policy, or pretrained:NAME.",
        ),
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one setting.")] = None,
    env_arg: EnvArgs = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Number of your environment's info to follow, as success or max:speed; repeats."
        ),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="tensorboard, wandb, mlflow, or csv alone; repeats. (default: tensorboard)"),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Learn the best policy whose risks stay under their limits.

    Stop it with Ctrl-C at any time: it saves itself, and tailsafe resume continues it. With --from, measures, limits
    and network sizes that are not given are those of RUN.
    """
    from tailsafe.envs.finding import parse_arguments
    from tailsafe.policies.pretrained import is_pretrained
    from tailsafe.risk import parse_spectrum
    from tailsafe.training.config import DEFAULT_LOG, TrainConfig, parse_limits, parse_settings
    from tailsafe.training.plan import default_unit

    if is_pretrained(task):
        raise InputError(f"{task} is a policy, not a task: start from it with tailsafe train TASK --from {task}")
    risks = [parse_spectrum(text) for text in risk or ()]
    limits = [parse_limits(text, default_unit(task)) for text in limit or ()]
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
        metrics=metric or (),
        start=from_,
        log=log or DEFAULT_LOG,
    )

    def work() -> Run:
        from tailsafe.training import train as training

        return training.train(config, progress=not json, risks=risks, limits=limits)

    _finish(work, json)


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    restart: Annotated[
        bool, typer.Option("--restart", help="Set aside what the run has learned and logged, and begin again.")
    ] = False,
    env: EnvName = None,
    env_arg: EnvArgs = None,
    trust: TrustFlag = False,
    steps: Annotated[
        int | None, typer.Option(metavar="N", help="Train N steps beyond the end that was planned so far.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Continue a run that was stopped, from its last good checkpoint; with --steps, train a finished one further."""

    def work() -> Run:
        from tailsafe.envs.finding import parse_arguments
        from tailsafe.training import train as training

        arguments = parse_arguments(env_arg or ())
        return training.resume(
            run, steps=steps, task=env, env_args=arguments, trust=trust, restart=restart, progress=not json
        )

    _finish(work, json)


def _finish(work: Callable[[], Run], json: bool) -> None:
    """Run, then say where the result is; or in one line what stopped it."""
    from tailsafe.training.failures import NonFiniteError
    from tailsafe.training.signals import RunInterrupted, Signals
    from tailsafe.training.train import quiet_stdout

    try:
        with Signals(unsaved=True), quiet_stdout():
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
        console().print(f"{run.steps:,} steps in {run.seconds:.0f} s: {run.folder}", markup=False)
        console().print(f"next: tailsafe evaluate {shlex.quote(str(run.folder))}", markup=False)
