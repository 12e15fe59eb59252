"""`tailsafe settings`: what can be set, what it may be, what the presets chose, what it means."""

from __future__ import annotations

from typing import Annotated

import typer

from tailsafe.cli.app import JsonFlag, app, console, emit_json

# In a narrower terminal a table would have no room for words.
_WIDE = 130


@app.command()
def settings(
    algo: Annotated[str, typer.Argument(help="srcpo, cppo, cvar_cpo, sdac, sdpo or wcsac.")] = "srcpo",
    family: Annotated[
        str, typer.Option(help="Of tasks, to which presets adapt: navigation, legged, finite or user.")
    ] = "navigation",
    json: JsonFlag = False,
) -> None:
    """Every setting of an algorithm for `train --set KEY=VALUE`: allowed values, defaults by preset, meaning."""
    from rich.table import Table

    from tailsafe.runs.keys import PRESETS
    from tailsafe.runs.settings import describe_settings, written

    found = describe_settings(algo, family)
    if json:
        emit_json({"algorithm": algo, "family": family, "settings": [setting.to_json() for setting in found]})
        return
    out = console()
    if out.width < _WIDE:
        out.print(f"{algo}, tasks: {family}; defaults of {', '.join(PRESETS)}", markup=False)
        for setting in found:
            defaults = ", ".join(written(setting.defaults[preset]) for preset in PRESETS)
            out.print(f"{setting.key}: {defaults} ({setting.allowed})\n    {setting.meaning}", markup=False)
        return
    table = Table("setting", *PRESETS, "allowed", "meaning", title=f"{algo}, tasks: {family}")
    for column in table.columns[: 1 + len(PRESETS)]:
        column.no_wrap = True
    for setting in found:
        defaults_ = (written(setting.defaults[preset]) for preset in PRESETS)
        table.add_row(setting.key, *defaults_, setting.allowed, setting.meaning)
    out.print(table)
