"""`tailsafe report`: runs and studies on one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailsafe.cli.app import JsonFlag, app, console, emit_json
from tailsafe.errors import InputError
from tailsafe.files import check_writable, replacing

if TYPE_CHECKING:
    from tailsafe.viz.report import Report

# Frames of a video made for a page [pixels]: 300 of them stay well below what a page takes.
VIDEO_SIZE = 320


@app.command()
def report(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN_OR_STUDY...", help="Folders of runs and of studies.")],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
    video: Annotated[
        bool, typer.Option("--video", help="Make video.gif (as tailsafe render does) for runs without a video.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """One self-contained HTML page: verdicts with bounds, learning curves, cost distributions, settings, videos.

    Several runs are compared. Seeds of one run become a mean and a range. The page fetches nothing: send it, or open it
    on any machine.
    """
    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{out}: a page ends in .html")
    check_writable(out)
    from tailsafe.policies.pretrained import own_copy
    from tailsafe.viz.report import make_page, read_report
    from tailsafe.viz.report.words import command

    paths = [own_copy(path) for path in paths]
    found = read_report(paths)
    notes: list[str] = []
    if video:
        notes = _make_videos(found)
        found = read_report(paths)
    page = make_page(found).encode("utf-8", "replace")
    with replacing(out) as partial:
        partial.write_bytes(page)
    notes = [*notes, *found.left_out]
    missing = [run for run in found.runs if not run.evaluations]
    if json:
        runs, studies = [str(run.folder) for run in found.runs], [str(study.folder) for study in found.studies]
        result = {"report": str(out), "bytes": len(page), "runs": runs, "studies": studies}
        emit_json(result | {"not_evaluated": [str(run.folder) for run in missing], "left_out": notes})
        return
    told = console()
    for line in notes:
        told.print(line, markup=False)
    for run in missing:
        told.print(f"{run.folder}: not evaluated; verdicts come from: {command('evaluate', run)}", markup=False)
    told.print(f"page: {out} ({len(page) / 1e6:.1f} MB)", markup=False)


def _make_videos(found: Report) -> list[str]:
    """Make the videos that are missing; returns a line for each that cannot be made."""
    from tailsafe.policies.policy import load_policy
    from tailsafe.viz.video import render_video

    notes = []
    for run in found.runs:
        if any(one.kind in (".gif", ".mp4") for one in run.media):
            continue
        place = run.seeds[0].folder
        try:
            render_video(load_policy(place), place / "video.gif", size=VIDEO_SIZE)
        except InputError as error:
            notes.append(f"{place}: no video: {error}")
    return notes
