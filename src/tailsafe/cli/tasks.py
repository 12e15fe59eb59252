"""`tailsafe tasks`: what there is to train on."""

from __future__ import annotations

from typing import Any

from tailsafe.cli.app import JsonFlag, app, console, emit_json


@app.command()
def tasks(json: JsonFlag = False) -> None:
    """List the tasks: names, sizes, costs, the limits they come with, and policies to try without training.

    A trained policy stands for a run in every command that takes one.
    """
    from rich.table import Table

    from tailsafe.policies.pretrained import PREFIX, pretrained_names
    from tailsafe.tasks import TASKS, action_size, observation_size

    rows: list[dict[str, Any]] = [
        {
            "name": task.name,
            "gymnasium_id": task.gymnasium_id,
            "observation_size": observation_size(task),
            "action_size": action_size(task),
            "episode_length": task.episode_length,
            "control_period": task.timestep * task.substeps,
            "costs": [limit.name for limit in task.limits],
            "limits": [f"{limit.value:g}/step" for limit in task.limits],
            "pretrained": [PREFIX + name for name in pretrained_names(task.name)],
        }
        for task in TASKS.values()
    ]
    finite = [PREFIX + name for name in pretrained_names("finite")]
    if json:
        emit_json({"tasks": rows, "finite": {"pretrained": finite}})
        return
    table = Table("task", "Gymnasium id", "obs", "act", "steps", "cost limits")
    for column in table.columns[:2]:
        column.no_wrap, column.min_width = True, 12  # names are there to be copied
    for row in rows:
        limits = zip(row["costs"], row["limits"], strict=True)
        table.add_row(
            row["name"],
            row["gymnasium_id"],
            str(row["observation_size"]),
            str(row["action_size"]),
            str(row["episode_length"]),
            ", ".join(f"{cost} {limit}" for cost, limit in limits),
        )
    console().print(table)
    console().print("also: finite (a problem of yours: --set problem=FILE.json), Gymnasium ids and MODULE:CLASS")
    trained = {row["name"]: row["pretrained"] for row in rows} | {"finite": finite}
    there = ", ".join(f"{name} ({task})" for task, names in trained.items() for name in names)
    console().print(f"trained already: {there or 'none'}; try one with: tailsafe evaluate pretrained:NAME")
    console().print(
        f"without a trained policy so far: {', '.join(task for task in trained if not trained[task]) or '-'}"
    )
