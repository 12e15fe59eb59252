"""What a report shows of a study: any folder with study.txt, and results.json once it is finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailsafe.errors import InputError
from tailsafe.files import open_text, read_object
from tailsafe.viz.report.data import Run, distinguished, is_run, read_run
from tailsafe.viz.report.media import Media, is_regular, read_media

MARK, RESULTS, TABLE, GROUP = "study.txt", "results.json", "table.md", "result.json"
# Curves of more groups than this in one picture are not told apart: those of one problem are then shown together.
MOST_LINES = 8


@dataclass(frozen=True)
class Table:
    """Cells of a table. header (C,), rows of C cells each. title: the line before it, if there is one."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""


@dataclass(frozen=True)
class Group:
    """Runs of a study that are drawn together. title: empty where all of them are."""

    title: str
    runs: tuple[Run, ...]


@dataclass(frozen=True, eq=False)
class Study:
    """A study's folder. tables: what it wrote for people, if anything; summary: all of its entries as a table.

    finished: results.json is there, and says of no group that it is left or broke. broken: how many broke. failed: a
    line for each group that has no result. left_out: groups without a log.
    """

    name: str
    folder: Path
    study: str
    scale: str
    finished: bool
    broken: int
    tables: tuple[Table, ...]
    summary: Table | None
    failed: tuple[str, ...]
    pictures: tuple[Media, ...]
    groups: tuple[Group, ...]
    left_out: tuple[str, ...]

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs of all groups."""
        return tuple(run for group in self.groups for run in group.runs)


def is_study(folder: Path) -> bool:
    """Whether there is a study there."""
    return (folder / MARK).is_file()


def read_study(folder: Path) -> Study:
    """A study, finished or under way."""
    mark = _text(folder / MARK).split() or ["a study"]
    path = folder / RESULTS
    results = read_object(path) if path.is_file() else {}
    summary, failed = _entries(results, "summary", path), _entries(results, "failed", path)
    broken = _broken(results, failed)
    written = _text(folder / TABLE) if (folder / TABLE).is_file() else ""
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror or error}") from None
    places = [child for child in inside if child.is_dir()]
    logged = [place for place in places if is_run(place)]
    unlogged = [place.name for place in places if not is_run(place) and (place / "config.json").is_file()]
    drawn = results.get("pictures")
    # Others are of an earlier call, with numbers that are no longer shown.
    pictures = [
        file
        for file in inside
        if file.suffix.lower() in (".png", ".svg")
        and is_regular(file)
        and (not isinstance(drawn, list) or file.name in drawn)
    ]
    return Study(
        name=folder.resolve().name,
        folder=folder,
        study=str(results.get("study", mark[0])),
        scale=str(results.get("scale", " ".join(mark[1:]))),
        finished=bool(results) and not results.get("left") and not broken,
        broken=broken,
        tables=_parsed(written),
        summary=_tabulated(summary),
        failed=tuple(_failure(entry) for entry in failed),
        pictures=tuple(read_media(picture) for picture in pictures),
        groups=_grouped(distinguished([read_run(place) for place in logged])),
        left_out=tuple(unlogged),
    )


def _text(path: Path) -> str:
    try:
        with open_text(path) as handle:
            return handle.read()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not a text file") from None


def _entries(results: Mapping[str, Any], key: str, path: Path) -> list[dict[str, Any]]:
    """A list of objects; a single object counts as a list of one."""
    value = results.get(key, [])
    entries = [value] if isinstance(value, dict) else value
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InputError(f"{path}: {key!r} must be a list of objects")
    return entries


def _broken(results: Mapping[str, Any], failed: Sequence[Mapping[str, Any]]) -> int:
    """How many groups broke as a whole (what went wrong is of no seed). They are tried again: nothing is finished."""
    count = results.get("broken")
    return count if isinstance(count, int) else sum("seed" not in entry for entry in failed)


def _parsed(written: str) -> tuple[Table, ...]:
    """The tables of a Markdown text: lines of cells between bars, the second one of dashes."""
    lines = [line.strip() for line in written.splitlines()]
    found = []
    for i, line in enumerate(lines[1:], 1):
        if line.startswith("|") and "-" in line and not set(line) - set("|-: ") and lines[i - 1].startswith("|"):
            header = _cells(lines[i - 1])
            rows = []
            for row in lines[i + 1 :]:
                if not row.startswith("|"):
                    break
                cells = _cells(row)
                rows.append(tuple((cells + [""] * len(header))[: len(header)]))
            before = [text for text in lines[: i - 1] if text]
            title = before[-1] if before and not before[-1].startswith("|") else ""
            found.append(Table(tuple(header), tuple(rows), title))
    return tuple(found)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def _tabulated(entries: Sequence[Mapping[str, Any]]) -> Table | None:
    """A row per entry, a column per key."""
    header = list(dict.fromkeys(key for entry in entries for key in entry))
    if not header:
        return None
    return Table(tuple(header), tuple(tuple(shown(entry.get(key)) for key in header) for entry in entries))


def shown(value: Any) -> str:
    """A value of a JSON file in words; an object with a mean and bounds as `mean [low, high]`."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        if {"mean", "low", "high"} <= set(value):
            return f"{shown(value['mean'])} [{shown(value['low'])}, {shown(value['high'])}]"
        return ", ".join(f"{key} {shown(entry)}" for key, entry in value.items())
    if isinstance(value, list):
        return ", ".join(shown(entry) for entry in value)
    return str(value)


def _failure(entry: Mapping[str, Any]) -> str:
    labels = ", ".join(shown(value) for key, value in entry.items() if key != "error")
    return f"{labels}: {shown(entry.get('error', 'no reason given'))}"


def _grouped(runs: Sequence[Run]) -> tuple[Group, ...]:
    """All together if they are few; else by their first label (the problem, say), where it tells them apart."""
    if not runs:
        return ()
    first = [_first_label(run) for run in runs]
    if len(runs) <= MOST_LINES or len(set(first)) in (1, len(runs)):
        return (Group("", tuple(runs)),)
    return tuple(
        Group(label, tuple(run for run, own in zip(runs, first, strict=True) if own == label))
        for label in dict.fromkeys(first)
    )


def _first_label(run: Run) -> str:
    """The first text in the rows of a group's own result; before it has one, what its folder's name begins with."""
    path = run.folder / GROUP
    rows = _entries(read_object(path), "rows", path) if path.is_file() else []
    labels = [value for value in rows[0].values() if isinstance(value, str)] if rows else []
    return labels[0] if labels else run.name.split("_")[0].replace("-", " ")
