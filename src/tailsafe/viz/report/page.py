"""The page of a report: everything inside one file, which fetches nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from tailsafe._version import __version__
from tailsafe.errors import InputError
from tailsafe.training.logs import per
from tailsafe.viz.report.charts import SHAPES, number, swatch, whole
from tailsafe.viz.report.curve_parts import curves
from tailsafe.viz.report.curves import Block, make_block, most_points
from tailsafe.viz.report.data import Run, distinguished, read_run
from tailsafe.viz.report.markup import Html, data, el, join
from tailsafe.viz.report.parts import badge
from tailsafe.viz.report.sections import run_section, study_section
from tailsafe.viz.report.study import Study, is_study, read_study
from tailsafe.viz.report.words import count_words, figure_text, overall, reward_of, risk_of, sentence, summary

_NOTE = (
    "With bounds: those of the evaluation for one seed, Student's over seeds (0.95) for several. “logged”: not "
    "evaluated, the last number of training's own log."
)
Cell = tuple[Html | str, float | str]


@dataclass(frozen=True, eq=False)
class Report:
    """What a page is about, in the order given."""

    runs: tuple[Run, ...]
    studies: tuple[Study, ...]

    @property
    def left_out(self) -> tuple[str, ...]:
        """Files that are too large for a page."""
        media = [one for run in self.runs for one in run.media]
        media += [one for study in self.studies for one in study.pictures]
        return tuple(one.left_out for one in media if one.left_out is not None)


def read_report(paths: Sequence[Path]) -> Report:
    """Read the folders of runs and studies."""
    for path in paths:
        if not path.is_dir():
            raise InputError(f"{path}: no such run or study")
    studies = [read_study(path) for path in paths if is_study(path)]
    runs = [read_run(path) for path in paths if not is_study(path)]
    return Report(tuple(distinguished(runs)), tuple(studies))


def make_page(report: Report) -> str:
    """The whole page."""
    runs, studies = report.runs, report.studies
    blocks: list[Block] = []
    most = most_points(sum(len(run.seeds) for run in [*runs, *(run for study in studies for run in study.runs)]))

    def drawn(shown: Sequence[Run], marks: Sequence[int] | None = None) -> Html:
        blocks.append(make_block(shown, most, marks))
        return curves(blocks[-1], len(blocks) - 1, "h3" if len(shown) == len(runs) > 1 else "h4")

    sections: list[Html] = []
    links: list[tuple[str, str]] = []
    if len(runs) > 1:
        note = el("p", _NOTE, class_="note")
        sections.append(el("section", el("h2", "Comparison"), *_by_task(runs, _comparison), note, id="comparison"))
        sections.append(el("section", el("h2", "Learning curves"), *_by_task(runs, drawn), id="curves"))
        links += [("comparison", "Comparison"), ("curves", "Learning curves")]
    for i, run in enumerate(runs):
        inserted = el("div", el("h3", "Learning curves"), drawn([run])) if len(runs) == 1 else None
        sections.append(run_section(run, f"run-{i}", inserted))
        links.append((f"run-{i}", run.name))
    for i, study in enumerate(studies):
        groups = [(group.title, drawn(group.runs)) for group in study.groups]
        sections.append(study_section(study, f"study-{i}", groups))
        links.append((f"study-{i}", f"Study {study.study}"))
    content = data({"shapes": list(SHAPES), "blocks": [one.to_json() for one in blocks]})
    return _frame(_title(report), _lead(report), links, sections, content)


def _by_task(runs: Sequence[Run], part: Callable[[Sequence[Run], Sequence[int]], Html]) -> list[Html]:
    """A part for the runs on each task, which alone can be compared. part: of runs and their marks."""
    tasks = list(dict.fromkeys(run.task for run in runs))
    parts = []
    for task in tasks:
        marks = [i for i, run in enumerate(runs) if run.task == task]
        made = part([runs[i] for i in marks], marks)
        parts.append(join(el("h3", task), made) if len(tasks) > 1 else made)
    return parts


def _title(report: Report) -> str:
    if len(report.runs) == 1 and not report.studies:
        return report.runs[0].name
    if len(report.studies) == 1 and not report.runs:
        return f"Study {report.studies[0].study}"
    return "Runs compared" if len(report.runs) > 1 else "Report"


def _lead(report: Report) -> str:
    if len(report.runs) == 1 and not report.studies:
        return sentence(report.runs[0])
    return summary(report.runs, [_told(study) for study in report.studies])


def _told(study: Study) -> str:
    parts = [f"{study.study} at scale {study.scale}" if study.scale else study.study]
    parts.append(f"{len(study.summary.rows)} results" if study.summary else "no results yet")
    parts += [f"{len(study.failed)} failed"] if study.failed else []
    parts += [f"{len(study.runs)} groups of runs"] if study.runs else []
    return ", ".join(parts)


def _frame(title: str, lead: str, links: Sequence[tuple[str, str]], sections: Sequence[Html], content: Html) -> str:
    style, script = _asset("style.css"), _asset("script.js")
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; media-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    contents = el(
        "nav", el("ul", *(el("li", el("a", words, href=f"#{key}")) for key, words in links)), aria_label="Contents"
    )
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", f"{title} · tailsafe report"),
        el("style", style),
    )
    body = el(
        "body",
        el("a", "Skip to the results", href="#main", class_="skip"),
        el("header", el("p", "tailsafe report", class_="brand"), el("h1", title), el("p", lead, class_="lead")),
        contents if len(links) > 1 else None,
        el("main", *sections, id="main", tabindex=-1),
        el("footer", el("p", f"Made by tailsafe {__version__}. This page is one file and fetches nothing.")),
        el("script", content, type="application/json", id="data"),
        el("script", script),
    )
    return "<!doctype html>\n" + el("html", head, body, lang="en") + "\n"


def _asset(name: str) -> Html:
    """A file of this package."""
    return Html(resources.files("tailsafe.viz.report").joinpath(name).read_text(encoding="utf-8"))


def _hash(content: str) -> str:
    """What the page's policy allows to run and to style: this, and nothing that got in with the data."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


# --- comparison -------------------------------------------------------------------------------------------------------


def _comparison(runs: Sequence[Run], marks: Sequence[int]) -> Html:
    """Runs in one table, which the script makes sortable by every column."""
    costs = list(dict.fromkeys(cost for run in runs for cost in run.costs))
    # The verdict comes first: a phone shows two columns.
    judged = [f"{cost}: {what}" for cost in costs for what in ("verdict", "risk")]
    header = ["run", *judged, "reward", "algorithm", "seeds", "steps", "seconds"]
    rows = [_compared(run, mark, costs) for run, mark in zip(runs, marks, strict=True)]
    body = [el("tr", *(_cell(cell, first=i == 0) for i, cell in enumerate(row))) for row in rows]
    told = f"Comparison of runs on {runs[0].task}"
    table = el(
        "table",
        el("caption", told),
        el("thead", el("tr", *(el("th", name, scope="col") for name in header))),
        el("tbody", *body),
        class_="sortable",
    )
    return el("div", table, class_="scroll", tabindex=0, role="region", aria_label=told)


def _compared(run: Run, index: int, costs: Sequence[str]) -> list[Cell]:
    name = join(swatch(index), " ", el("a", run.name, href=f"#run-{index}"))
    reward = reward_of(run)
    judged: list[Cell] = []
    for cost in costs:
        figure = risk_of(run, cost)
        if figure is None:
            judged += [_missing(), _missing()]
            continue
        unit = next((per(limit.unit) for limit in run.limits if limit.name == cost), "")
        one = overall(figure.verdicts)
        words = count_words(figure.verdicts)
        judged.append((badge(one, words), words) if one else (el("span", "not evaluated", class_="muted"), "~"))
        judged.append((_figure_cell(figure_text(figure), figure.interval is None, unit), figure.value))
    return [
        (name, run.name),
        *judged,
        (_figure_cell(figure_text(reward), reward.interval is None, ""), reward.value),
        (run.algorithm, run.algorithm),
        (str(len(run.seeds)), len(run.seeds)),
        (whole(run.steps), run.steps),
        (whole(run.seconds), run.seconds),
    ]


def _missing() -> Cell:
    return "–", float("nan")


def _figure_cell(words: str, logged: bool, unit: str) -> Html:
    value, _, bounds = words.partition(" ")
    inner = join(el("b", value + unit), " ", el("span", bounds, class_="muted") if bounds else None)
    return join(inner, el("span", "logged", class_="muted")) if logged else inner


def _cell(cell: Cell, first: bool) -> Html:
    shown, value = cell
    key = number(value) if isinstance(value, float) and value != value else str(value)
    if first:
        return el("th", shown, scope="row", data_value=key)
    return el("td", shown, data_value=key, class_=None if isinstance(value, str) else "number")
