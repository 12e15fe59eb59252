"""Learning curves on a page: places for the script to draw in, each with its numbers in words and as a table."""

from __future__ import annotations

import numpy as np

from tailsafe.viz.report.charts import number, swatch, whole
from tailsafe.viz.report.curves import Block, Line, Panel
from tailsafe.viz.report.markup import Html, el
from tailsafe.viz.report.parts import folded, table_of

# Rows of a chart's table; the charts themselves have all that is shown.
_MOST_ROWS = 40


def curves(block: Block, index: int, heading: str = "h4") -> Html:
    """Charts, drawn by the script from the page's data; each with its numbers as a table. heading: of a chart."""
    several, banded = len(block.names) > 1, any(block.seeds)
    keys = [
        el(
            "button",
            swatch(block.marks[i]),
            el("span", name),
            el("small", f" {len(block.seeds[i])} seeds") if block.seeds[i] else None,
            type="button",
            class_="key",
            aria_pressed="true",
            data_run=i,
        )
        for i, name in enumerate(block.names)
    ]
    box = el("label", el("input", type="checkbox", class_="show-seeds"), " single seeds", class_="switch")
    note = "Move over a chart, tap it, or focus it and use the arrow keys to read values at a step."
    if banded:
        note += " A line is the mean over seeds, a band their range."
    if not block.whole:
        note += f" Charts show up to {max(grid.size for grid in block.grids)} of the logged updates."
    controls = el(
        "div",
        *(keys if several else ()),
        box if banded else None,
        class_="controls",
        role="group",
        aria_label="Runs to show",
    )
    return el(
        "div",
        controls if several or banded else None,
        el("p", note, class_="note hint"),
        el("div", *(_chart(block, index, i, heading) for i in range(len(block.panels))), class_="charts"),
        class_="block",
        data_block=index,
    )


def _chart(block: Block, index: int, number_: int, heading: str) -> Html:
    panel = block.panels[number_]
    key = f"chart-{index}-{number_}"
    return el(
        "figure",
        el(heading, panel.title, id=f"{key}-title"),
        el("p", f"{panel.caption} {_limits(panel)}".strip(), class_="note"),
        el(
            "div",
            el("svg", aria_hidden="true", class_="drawn"),
            class_="plot",
            tabindex=0,
            role="group",
            aria_roledescription="chart",
            aria_label=f"{_told(block, panel)} Arrow keys read its values.",
            data_panel=number_,
        ),
        el("p", class_="readout", role="status", aria_live="off"),
        el("noscript", el("p", "The chart needs JavaScript; its numbers are below.", class_="note")),
        folded(f"Data of {panel.title}", _chart_table(block, panel), class_="data"),
        class_="chart",
        aria_labelledby=f"{key}-title",
    )


def _limits(panel: Panel) -> str:
    if not panel.limits:
        return ""
    several = "s" if len(panel.limits) > 1 else ""
    return f"Dashed: the limit{several} {', '.join(f'{x:g}{panel.per}' for x in panel.limits)}."


def _told(block: Block, panel: Panel) -> str:
    """The chart in words: where each of its lines begins and ends."""
    parts = []
    for line in panel.lines:
        known = line.mean[np.isfinite(line.mean)]
        parts.append(f"{_line_name(block, line)} from {number(float(known[0]))} to {number(float(known[-1]))}")
    more = f"; {len(parts) - 8} more" if len(parts) > 8 else ""
    return f"{panel.title} over environment steps: {'; '.join(parts[:8])}{more}. {_limits(panel)}".strip()


def _line_name(block: Block, line: Line) -> str:
    name = block.names[line.run]
    return f"{name}, {line.label}" if line.label else name


def _chart_table(block: Block, panel: Panel) -> Html:
    """Runs with their own steps share rows where the steps are the same."""
    steps = np.unique(np.concatenate([block.grids[line.run] for line in panel.lines]))
    kept = np.unique(np.linspace(0, steps.size - 1, min(_MOST_ROWS, steps.size)).round().astype(int))
    found = [dict(zip(block.grids[line.run].tolist(), range(line.mean.size), strict=True)) for line in panel.lines]
    rows = [
        [whole(step), *(_at(line, places.get(step)) for line, places in zip(panel.lines, found, strict=True))]
        for step in steps[kept].tolist()
    ]
    header = ["steps", *(_line_name(block, line) for line in panel.lines)]
    told = f"{panel.title} ({panel.unit})" + ("" if kept.size == steps.size else f", {kept.size} of {steps.size} steps")
    return table_of(header, rows, told)


def _at(line: Line, place: int | None) -> str:
    if place is None or not np.isfinite(line.mean[place]):
        return "–"
    value = number(float(line.mean[place]))
    return (
        f"{value} [{number(float(line.low[place]))}, {number(float(line.high[place]))}]" if line.seeds.size else value
    )
