"""What a study is, and how every one of them runs: train what is missing, measure it, write table and pictures."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailsafe.errors import InputError
from tailsafe.files import replacing, write_json
from tailsafe.studies.groups import (
    Group,
    Measure,
    Outcome,
    Rows,
    finished,
    jobs,
    name_of,
    of_one_width,
    so_far,
    steps_so_far,
)
from tailsafe.studies.launch import launch
from tailsafe.training.signals import Signals

# Of results.json. A number that grows when a reader of an older one would misread it.
FORMAT = 1


@dataclass(frozen=True)
class Findings:
    """What there is to show. rows: one per measured run. summary: one entry per group that has rows. groups: of every
    group its labels and state (`_states`). statistics: of all groups together, where a study has some.
    """

    rows: Rows
    summary: Rows
    groups: Rows
    statistics: dict[str, Any]


def nothing_further(rows: Rows, groups: Rows) -> dict[str, Any]:
    """For studies without statistics of all groups together."""
    return {}


@dataclass(frozen=True)
class Study:
    """A comparison.

    groups: the runs at a scale (smoke, laptop or paper). measure: what to measure, at a scale, of a trained run's
    folder. summary: of all rows, at a scale. table: Markdown of what was found. draw: pictures of that and of the runs
    into the study's folder; returns their names. quick: a cheaper `measure` for runs that are not finished.
    statistics: of the rows of finished groups, and the states of all groups.
    """

    name: str
    about: str
    groups: Callable[[str], list[Group]]
    measure: Callable[[str], Measure]
    summary: Callable[[Rows, str], Rows]
    table: Callable[[Findings], str]
    draw: Callable[[Findings, Sequence[Group], Path], list[str]]
    quick: Callable[[str], Measure] | None = None
    statistics: Callable[[Rows, Rows], dict[str, Any]] = nothing_further


@dataclass(frozen=True)
class Result:
    """summary, rows: as written. failed: what went wrong with groups that were asked for. pictures: names of files.
    left: how many of those groups were not reached.
    """

    summary: Rows
    rows: Rows
    failed: Rows
    pictures: list[str]
    table: str
    left: int


def run_study(
    study: Study,
    scale: str,
    folder: Path,
    say: Callable[[str], None],
    *,
    minutes: float = math.inf,
    only: Sequence[str] = (),
    interim: bool = False,
    launcher: str = "here",
    shown: bool = False,
) -> Result:
    """Train what is missing in `folder`, then write results.json, table.md and pictures of all that is there.

    minutes: how long this call may take. only: labels of the groups to train (`chosen`). interim: train nothing, and
    measure runs that are not finished with the policies that they have. A signal, or the end of the time, saves the
    running groups; they count as `left`. A signal is raised again when everything is written. (Tasks of a cluster end
    without saving on a signal, and resume from their last checkpoint.)
    """
    groups = of_one_width([group.inside(folder) for group in study.groups(scale)])
    wanted = chosen(groups, only)
    outcomes = {group.name: done for group in groups if (done := finished(group)) is not None}
    for number, outcome in enumerate(outcomes.values(), 1):
        say(f"{number}/{len(groups)} {_words(outcome.labels)}: was finished")
    ended = set(outcomes)
    missing = [group for group in wanted if group.name not in ended]
    stopped: KeyboardInterrupt | None = None
    end = time.time() + 60 * minutes
    if interim:
        found = _as_they_are(missing, (study.quick or study.measure)(scale), minutes)
    else:
        found = launch(launcher, jobs(missing, study.measure(scale), end, shown))
    try:
        for outcome in found:
            outcomes[name_of(outcome.labels)] = outcome
            say(f"{len(outcomes)}/{len(groups)} {_words(outcome.labels)}: {outcome.note}")
    except KeyboardInterrupt as interrupted:
        stopped = interrupted
    if not interim:
        ended = set(outcomes)
    result = _written(study, scale, folder, groups, wanted, outcomes, ended)
    # What other processes have finished, each with its own part of the study: whoever writes last has seen it all.
    while meanwhile := {g.name: done for g in groups if g.name not in ended and (done := finished(g)) is not None}:
        outcomes |= meanwhile
        ended |= set(meanwhile)
        result = _written(study, scale, folder, groups, wanted, outcomes, ended)
    if stopped is not None and time.time() < end:
        raise stopped
    return result


def _written(
    study: Study,
    scale: str,
    folder: Path,
    groups: Sequence[Group],
    wanted: Sequence[Group],
    outcomes: Mapping[str, Outcome],
    ended: set[str],
) -> Result:
    """Summary, table and pictures of all outcomes, on the disk; the result is about the groups that were `wanted`."""
    known = [outcomes[group.name] for group in groups if group.name in outcomes]
    rows = [row for outcome in known for row in outcome.rows]
    states = _states(groups, outcomes)
    final = [row for row in rows if not row.get("interim")]
    found = Findings(rows, study.summary(rows, scale), states, study.statistics(final, states))
    pictures, table = study.draw(found, groups, folder), study.table(found)
    content = {
        "format": FORMAT,
        "study": study.name,
        "scale": scale,
        "summary": found.summary,
        "statistics": found.statistics,
        "groups": states,
        "failed": [entry for outcome in known for entry in outcome.failed],
        "left": len(groups) - len(ended),
        "broken": sum(state["state"] == "broken" for state in states),
        "pictures": pictures,
        "rows": rows,
    }
    write_json(folder / "results.json", content)
    with replacing(folder / "table.md") as partial:
        partial.write_text(table, encoding="utf-8")
    failed = [entry for group in wanted if group.name in outcomes for entry in outcomes[group.name].failed]
    left = sum(group.name not in ended for group in wanted)
    return Result(found.summary, rows, failed, pictures, table, left)


def _states(groups: Sequence[Group], outcomes: Mapping[str, Outcome]) -> Rows:
    """Of every group its labels; state: final, interim (measured before its end), broken (tried again by the next
    call) or left; seeds: how many runs it has, measured and failed: how many of them; steps: that every run has done by
    its log, of total_steps; note: why there are no figures.
    """
    found = []
    for group in groups:
        steps, total = steps_so_far(group), group.config.total_steps
        entry: dict[str, Any] = {**group.labels, "state": "left", "seeds": group.config.seeds}
        entry |= {"measured": 0, "failed": 0, "steps": steps, "total_steps": total}
        entry["note"] = f"stopped at {steps:,} of {total:,} steps" if steps else "not trained yet"
        outcome = outcomes.get(group.name)
        if outcome is not None:
            lost = [one for one in outcome.failed if "seed" in one]
            entry |= {"measured": len(outcome.rows), "failed": len(lost)}
            if outcome.broken:
                entry |= {"state": "broken", "note": f"broke: {outcome.failed[0]['error']}"}
            elif any(row.get("interim") for row in outcome.rows):
                entry |= {"state": "interim", "note": ""}
            elif outcome.rows or (lost and not outcome.interim):
                entry |= {"state": "final", "note": "" if outcome.rows else f"failed: {lost[0]['error']}"}
        found.append(entry)
    return found


def chosen(groups: Sequence[Group], only: Sequence[str]) -> list[Group]:
    """The groups with these labels. Of several words for one label (two tasks) any will do, of words for different
    labels (a task and an algorithm) each must; no words: all groups.
    """
    allowed: dict[str, set[str]] = {}
    for word in only:
        keys = {key for group in groups for key, value in group.labels.items() if value == word}
        if not keys:
            labels = dict.fromkeys(value for group in groups for value in group.labels.values())
            raise InputError(f"no group of this study is {word!r}; there are: {', '.join(labels) or 'none'}")
        for key in keys:
            allowed.setdefault(key, set()).add(word)
    found = [group for group in groups if all(group.labels[key] in words for key, words in allowed.items())]
    if only and not found:
        raise InputError(f"no group of this study is all of: {', '.join(only)}")
    return found


def _as_they_are(groups: Sequence[Group], measure: Measure, minutes: float) -> Iterator[Outcome]:
    with Signals(time.monotonic() + 60 * minutes) as stop:
        for group in groups:
            yield so_far(group, measure, stop)


def _words(labels: Mapping[str, str]) -> str:
    return ", ".join(labels.values())
