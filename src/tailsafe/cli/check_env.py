"""`tailsafe check-env`: is my environment fit to train on?"""

from __future__ import annotations

from typing import Annotated

import typer

from tailsafe.cli.app import EnvArgs, JsonFlag, app, console, emit_json

UNFIT = 1


@app.command("check-env")
def check_env(
    environment: Annotated[
        str, typer.Argument(metavar="MODULE:CLASS", help="Or FILE.py:CLASS, a function, a task name, a Gymnasium id.")
    ],
    env_arg: EnvArgs = None,
    metric: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Number of its info that you want to follow; repeats.")
    ] = None,
    max_steps: Annotated[int, typer.Option(min=1, help="Steps within which an episode must end.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the episode that is played.")] = 0,
    json: JsonFlag = False,
) -> None:
    """Check an environment: spaces, finiteness, cost shape and sign, repeatability, episode ends (exit 1: unfit)."""
    from rich.markup import escape

    from tailsafe.envs.checking import check_environment
    from tailsafe.envs.finding import find_environment, parse_arguments
    from tailsafe.envs.metrics import parse_metrics
    from tailsafe.envs.registration import GYMNASIUM_IDS
    from tailsafe.envs.training import check_name

    ids = {task: gymnasium_id for gymnasium_id, task in GYMNASIUM_IDS.items()}
    name = ids.get(environment, environment)
    check_name(name)
    found = find_environment(name, parse_arguments(env_arg or ()))
    findings = check_environment(found, max_steps, seed, parse_metrics(metric or ()))
    fit = all(finding.passed for finding in findings)
    if json:
        emit_json(
            {
                "environment": environment,
                "fit": fit,
                "findings": [
                    {"check": f.check, "passed": f.passed, "problem": f.problem, "advice": f.advice} for f in findings
                ],
            }
        )
    else:
        for finding in findings:
            mark = "[green]ok  [/]" if finding.passed else "[red]bad [/]"
            text = f"{finding.check}: {finding.problem}" if finding.problem else finding.check
            # What a user's environment says may look like markup.
            console().print(mark + escape(text))
            if finding.advice:
                console().print("[yellow]note[/]" + escape(f"  {finding.advice}"))
        console().print("fit to train on" if fit else "not fit to train on")
    if not fit:
        raise typer.Exit(UNFIT)
