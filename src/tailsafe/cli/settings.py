"""`tailsafe settings`: what can be set, what it may be, what the presets chose, what it means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tailsafe.algorithms.registry import ALGORITHMS
from tailsafe.cli.app import JsonFlag, app, console, emit_json

if TYPE_CHECKING:
    from rich.console import Console

    from tailsafe.training.settings_page import SettingRow

# In a narrower terminal a table would have no room for words.
_WIDE = 130


@app.command()
def settings(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ALGO] [SETTING]",
            help=f"{', '.join(ALGORITHMS)}; or one setting, as in: tailsafe settings margin",
        ),
    ] = None,
    family: Annotated[
        str, typer.Option(help="Of tasks, to which presets adapt: navigation, legged, finite or user.")
    ] = "navigation",
    all_: Annotated[bool, typer.Option("--all", help="Every setting, not only those that matter most.")] = False,
    json: JsonFlag = False,
) -> None:
    """The settings of an algorithm for train --set KEY=VALUE: allowed values, defaults by preset, meaning.

    The dozen that matter most; every one with --all (and with --json), a single one by its name.
    """
    from tailsafe.training.settings_page import asked_for, describe_settings

    algo, key = asked_for(list(names or ()))
    found = [row for row in describe_settings(algo, family) if key in (None, row.key)]
    if json:
        emit_json({"algorithm": algo, "family": family, "settings": [row.to_json() for row in found]})
        return
    out = console()
    if key is not None:
        _show_one(out, algo, found[0])
        return
    shown = found if all_ else [row for row in found if row.main]
    _show(out, f"{algo}, tasks: {family}", shown)
    if not all_:
        out.print(f"{len(found) - len(shown)} more: tailsafe settings {algo} --all", markup=False)


def _show(out: Console, title: str, rows: Sequence[SettingRow]) -> None:
    from rich.table import Table

    from tailsafe.training.settings import PRESETS
    from tailsafe.training.settings_page import written

    if out.width < _WIDE:
        out.print(f"{title}; defaults of {', '.join(PRESETS)}", markup=False)
        for row in rows:
            defaults = ", ".join(written(row.defaults[preset]) for preset in PRESETS)
            out.print(f"{row.key}: {defaults} ({row.allowed})\n    {row.meaning}", markup=False)
        return
    table = Table("setting", *PRESETS, "allowed", "meaning", title=title)
    for column in table.columns[: 1 + len(PRESETS)]:
        column.no_wrap = True
    for row in rows:
        table.add_row(row.key, *(written(row.defaults[preset]) for preset in PRESETS), row.allowed, row.meaning)
    out.print(table)


def _show_one(out: Console, algo: str, row: SettingRow) -> None:
    """One setting, with its defaults for every family of tasks."""
    from tailsafe.training.settings import FAMILIES, PRESETS, users_of
    from tailsafe.training.settings_page import describe_settings, written

    out.print(f"{row.key}: {row.meaning}\n    {row.allowed}; of {', '.join(users_of(row.key))}", markup=False)
    for family in FAMILIES:
        own = next(each for each in describe_settings(algo, family) if each.key == row.key)
        defaults = ", ".join(f"{preset} {written(own.defaults[preset])}" for preset in PRESETS)
        out.print(f"    {algo}, tasks {family}: {defaults}", markup=False)
