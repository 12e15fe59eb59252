"""`tailsafe study`: the comparisons, one command each."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailsafe.cli.app import JsonFlag, app, console, emit_json
from tailsafe.errors import InputError
from tailsafe.files import replacing

if TYPE_CHECKING:
    from tailsafe.studies.study import Study

FAILED = 1
LEFT = 3


class ScaleName(StrEnum):
    """How much of a study."""

    smoke = "smoke"
    laptop = "laptop"
    paper = "paper"


@app.command()
def study(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="discretization, risk-measures, benchmark, training-time, known-optimum; without one: what each is.",
        ),
    ] = None,
    scale: Annotated[
        ScaleName, typer.Option(help="smoke: does it run; laptop: short runs; paper: long ones, for a GPU.")
    ] = ScaleName.laptop,
    out: Annotated[Path | None, typer.Option(help="Its folder. (default: studies/NAME-SCALE)")] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Stop and save after so long; the exit code is then 3.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL", help="Train only groups with this label: a task, an algorithm, a measure. May be repeated."
        ),
    ] = None,
    interim: Annotated[
        bool, typer.Option("--interim", help="Train nothing; measure unfinished runs as they are (100 episodes each).")
    ] = False,
    launcher: Annotated[
        str, typer.Option(help="Where programs run: here (one after the other) or ray (a cluster; one task each).")
    ] = "here",
    export: Annotated[
        Path | None,
        typer.Option(
            help="A new folder for the numbers as CSV. Of a study that has results: what there is, and nothing is "
            "trained; otherwise after the study."
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Train and compare many runs. Stop it at any time: the same command resumes, and repeats nothing."""
    from tailsafe.files import check_new
    from tailsafe.studies.export import RESULTS
    from tailsafe.studies.launch import check_launcher
    from tailsafe.studies.registry import STUDIES
    from tailsafe.studies.study import chosen, run_study
    from tailsafe.training.signals import RunInterrupted, Signals
    from tailsafe.training.train import quiet_stdout
    from tailsafe.viz.figures import check_drawable
    from tailsafe.viz.report.study import MARK

    if name is None:
        _list(STUDIES, json)
        return
    if name not in STUDIES:
        raise InputError(f"unknown study {name!r}; there are: {', '.join(STUDIES)}")
    folder = out or Path("studies") / f"{name}-{scale.value}"
    # Before the folder is taken.
    chosen(STUDIES[name].groups(scale.value), only or ())
    if interim and not (folder / MARK).exists():
        raise InputError(f"{folder}: nothing of this study has been trained there; leave --interim out")
    if export is not None:
        check_new(export)
        if (folder / RESULTS).exists() and not interim:
            _check_folder(folder / MARK, name, scale.value)
            _export(STUDIES[name], name, scale.value, folder, export, json)
            return
    check_drawable()
    check_launcher(launcher)
    if interim and launcher != "here":
        raise InputError("--interim measures in this process; leave --launcher out")
    _check_folder(folder / MARK, name, scale.value)
    told = console(stderr=True)
    try:
        with Signals(), quiet_stdout():
            result = run_study(
                STUDIES[name],
                scale.value,
                folder,
                lambda line: told.print(line, markup=False),
                minutes=math.inf if minutes is None else minutes,
                only=only or (),
                interim=interim,
                launcher=launcher,
                shown=not json and scale is not ScaleName.smoke,
            )
    except RunInterrupted as stopped:
        typer.echo(f"{folder}: stopped and saved; the same command resumes it", err=True)
        raise typer.Exit(128 + stopped.signal) from None
    tables = [] if export is None else write_tables(STUDIES[name], scale.value, folder, export)
    # As elsewhere: 0 is success, 1 that the work was done and something in it failed. 3: there is more to do.
    code = LEFT if result.left else FAILED if result.failed else 0
    if json:
        kept = {"summary": result.summary, "failed": result.failed, "left": result.left}
        exported = {} if export is None else {"export": str(export), "files": tables}
        emit_json({"study": name, "scale": scale.value, "folder": str(folder), **kept, **exported})
        raise typer.Exit(code)
    out_ = console()
    out_.print(result.table, markup=False)
    for entry in result.failed:
        *labels, error = entry.values()
        out_.print(f"failed: {', '.join(map(str, labels))}: {error}", markup=False)
    if result.left:
        count = "1 group is" if result.left == 1 else f"{result.left} groups are"
        then = "these are the numbers so far" if interim else "the same command resumes it"
        out_.print(f"{count} not finished; {then}", markup=False)
    names = ", ".join(["results.json", "table.md", *result.pictures])
    out_.print(f"{folder}: {names}; next: tailsafe report {shlex.quote(str(folder))}", markup=False)
    if export is not None:
        out_.print(f"{export}: {', '.join(tables)}", markup=False)
    raise typer.Exit(code)


def write_tables(study: Study, scale: str, folder: Path, target: Path) -> list[str]:
    """The study's numbers as CSV files in `target`; their names."""
    from tailsafe.studies.export import export, read_results

    groups = [group.inside(folder) for group in study.groups(scale)]
    return export(read_results(folder), groups, target)


def _export(study: Study, name: str, scale: str, folder: Path, target: Path, json: bool) -> None:
    """Of what there is; nothing is trained."""
    files = write_tables(study, scale, folder, target)
    if json:
        emit_json({"study": name, "scale": scale, "folder": str(folder), "export": str(target), "files": files})
    else:
        console().print(f"{target}: {', '.join(files)}", markup=False)


def _list(studies: Mapping[str, Study], json: bool) -> None:
    if json:
        emit_json({"studies": [{"name": study.name, "about": study.about} for study in studies.values()]})
        return
    for study in studies.values():
        console().print(f"{study.name:15} {study.about}", markup=False)


def _check_folder(mark: Path, name: str, scale: str) -> None:
    """A folder of its own: new, empty, or of the same study at the same scale, as the file `mark` in it says."""
    folder = mark.parent
    text = f"{name} {scale}\n"
    try:
        if folder.exists() and (not folder.is_dir() or (_holds_files(folder) and not mark.exists())):
            raise InputError(f"{folder}: exists and is not a study's folder; choose another with --out")
        held = mark.read_text(encoding="utf-8", errors="replace") if mark.exists() else text
        if held != text:
            raise InputError(f"{folder}: holds the study {held.strip()}; choose another with --out")
        folder.mkdir(parents=True, exist_ok=True)
        if not mark.exists():
            with replacing(mark) as partial:
                partial.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror or error}") from None


def _holds_files(folder: Path) -> bool:
    """Besides hidden ones, as is the mark itself while another process writes it."""
    return any(not child.name.startswith(".") for child in folder.iterdir())
