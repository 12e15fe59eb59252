"""`tailsafe check-env`: is my environment fit to train on?"""

from __future__ import annotations

from typing import Annotated

import typer

from tailsafe.cli.app import JsonFlag, app, console, emit_json

UNFIT = 1


@app.command("check-env")
def check_env(
    environment: Annotated[str, typer.Argument(metavar="MODULE:CLASS", help="Or a task name, or a Gymnasium id.")],
    max_steps: Annotated[int, typer.Option(min=1, help="Steps within which an episode must end.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of the episode that is played.")] = 0,
    json: JsonFlag = False,
) -> None:
    """Check an environment: spaces, finiteness, cost shape and sign, repeatability, episode ends (exit 1: unfit)."""
    from tailsafe.envs.checking import check_environment
    from tailsafe.envs.registration import GYMNASIUM_IDS
    from tailsafe.envs.user import environment_factory

    ids = {task: gymnasium_id for gymnasium_id, task in GYMNASIUM_IDS.items()}
    make, _, _ = environment_factory(ids.get(environment, environment))
    findings = check_environment(make, max_steps, seed)
    fit = all(finding.passed for finding in findings)
    if json:
        emit_json(
            {
                "environment": environment,
                "fit": fit,
                "findings": [{"check": f.check, "passed": f.passed, "problem": f.problem} for f in findings],
            }
        )
    else:
        for finding in findings:
            mark = "[green]ok [/]" if finding.passed else "[red]bad[/]"
            console().print(f"{mark} {finding.check}" + (f": {finding.problem}" if finding.problem else ""))
        console().print("fit to train on" if fit else "not fit to train on")
    if not fit:
        raise typer.Exit(UNFIT)
