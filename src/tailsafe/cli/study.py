"""`tailsafe study`: the comparisons, one command each."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tailsafe.cli.app import JsonFlag, app, console, emit_json
from tailsafe.errors import InputError
from tailsafe.files import replacing

STUDIES = ("known-optimum",)
FAILED = 1


class ScaleName(StrEnum):
    """How much of a study."""

    smoke = "smoke"
    laptop = "laptop"
    paper = "paper"


@app.command()
def study(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"{', '.join(STUDIES)}.")],
    scale: Annotated[
        ScaleName, typer.Option(help="smoke: does it run; laptop: short runs; paper: long ones.")
    ] = ScaleName.laptop,
    out: Annotated[Path | None, typer.Option(help="Its folder. [default: studies/NAME-SCALE]")] = None,
    json: JsonFlag = False,
) -> None:
    """Train and compare many runs. Stop it at any time: the same command goes on, and repeats nothing."""
    if name not in STUDIES:
        raise InputError(f"unknown study {name!r}; there are: {', '.join(STUDIES)}")
    from tailsafe.studies import known_optimum
    from tailsafe.viz.figures import check_drawable

    folder = out or Path("studies") / f"{name}-{scale.value}"
    check_drawable()
    _check_folder(folder, name, scale.value)
    told = console(stderr=True)
    result = known_optimum.run(scale.value, folder, lambda line: told.print(line, markup=False))
    # As elsewhere: 0 is success, 1 that the work was done and something in it failed.
    code = FAILED if result["failed"] else 0
    if json:
        kept = {key: result[key] for key in ("summary", "failed")}
        emit_json({"study": name, "scale": scale.value, "folder": str(folder), **kept})
        raise typer.Exit(code)
    out_ = console()
    out_.print(known_optimum.table(result["summary"]), markup=False)
    for entry in result["failed"]:
        out_.print(f"{entry['problem']}, {entry['method']}: {entry['error']}", markup=False)
    out_.print(f"{folder}: results.json, table.md, known_optimum.png, a folder for every group of runs", markup=False)
    raise typer.Exit(code)


def _check_folder(folder: Path, name: str, scale: str) -> None:
    """A folder of its own: new, empty, or of the same study at the same scale."""
    mark = folder / "study.txt"
    text = f"{name} {scale}\n"
    try:
        if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not mark.exists())):
            raise InputError(f"{folder}: exists and is no study's folder; choose another with --out")
        held = mark.read_text(encoding="utf-8", errors="replace") if mark.exists() else text
        if held != text:
            raise InputError(f"{folder}: holds the study {held.strip()}; choose another with --out")
        folder.mkdir(parents=True, exist_ok=True)
        if not mark.exists():
            with replacing(mark) as partial:
                partial.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror or error}") from None
