"""`tailsafe check-env`: is my environment fit to train on?"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from tailsafe.cli.app import JsonFlag, app, console, emit_json
from tailsafe.errors import InputError

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

    findings = check_environment(environment_factory(environment), max_steps, seed)
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


def environment_factory(name: str) -> Callable[[], Any]:
    """What builds the environment called `name`: MODULE:CLASS, a task name, or a Gymnasium id."""
    import gymnasium

    from tailsafe.envs.registration import GYMNASIUM_IDS

    ids = {task: gymnasium_id for gymnasium_id, task in GYMNASIUM_IDS.items()}
    if name in ids or name in gymnasium.registry:
        return lambda: gymnasium.make(ids.get(name, name))
    module_name, _, class_name = name.partition(":")
    if not class_name:
        raise InputError(f"{name!r} is no task, no Gymnasium id and not of the form MODULE:CLASS")
    # As `python -m` does: a module beside the user comes first.
    sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InputError(f"cannot import {module_name!r}: {error}") from error
    finally:
        sys.path.remove("")
    factory = getattr(module, class_name, None)
    if not callable(factory):
        raise InputError(f"module {module_name!r} has no class {class_name!r}")
    return factory  # type: ignore[no-any-return]
