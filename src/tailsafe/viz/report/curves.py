"""Learning curves as a page draws them: every run on one grid of steps, its seeds as a mean between their extremes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailsafe.training.logs import per
from tailsafe.viz.report.data import Run
from tailsafe.viz.run import cost_words

# A curve has at most this many points, and a page at most so many over all curves of one quantity.
MOST_POINTS, ALL_POINTS, FEWEST_POINTS = 400, 40_000, 50

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Line:
    """One quantity of one run on the run's grid (n,); NaN where it was not logged.

    label: which quantity, where a panel has several of a run. style: 0 is the main one, drawn as a whole line. low,
    high: extremes over seeds. seeds (S, n): each of them, empty for a run with one.
    """

    run: int
    label: str
    style: int
    mean: Numbers
    low: Numbers
    high: Numbers
    seeds: Numbers


@dataclass(frozen=True, eq=False)
class Panel:
    """A chart. unit: of its values. caption: what its lines are. log: whether the scale is logarithmic.

    per: the unit as it stands behind a limit.
    """

    title: str
    unit: str
    caption: str
    log: bool
    limits: tuple[float, ...]
    lines: tuple[Line, ...]
    per: str = ""


@dataclass(frozen=True, eq=False)
class Block:
    """Charts of the same runs. marks: the number of each one's colour and shape. grids: the steps at which each is
    shown; whole: whether these are all it logged.
    """

    names: tuple[str, ...]
    marks: tuple[int, ...]
    seeds: tuple[tuple[str, ...], ...]
    grids: tuple[Numbers, ...]
    whole: bool
    panels: tuple[Panel, ...]

    def to_json(self) -> dict[str, Any]:
        """For the script of the page: numbers with six digits, null where there is none."""
        return {
            "runs": [
                {"name": name, "mark": mark, "x": _plain(grid), "seeds": list(seeds)}
                for name, mark, grid, seeds in zip(self.names, self.marks, self.grids, self.seeds, strict=True)
            ],
            "panels": [_panel_json(panel) for panel in self.panels],
        }


def most_points(curves: int) -> int:
    """How many points each of so many curves may have."""
    return max(FEWEST_POINTS, min(MOST_POINTS, ALL_POINTS // max(curves, 1)))


def make_block(runs: Sequence[Run], most: int, marks: Sequence[int] | None = None) -> Block:
    """Reward, own numbers, each cost's risk and rate, beta, multipliers, KL and violations, as far as logged.

    most: points of a curve. marks: see `Block`; counted from zero without them.
    """
    chosen = [_grid(run, most) for run in runs]
    grids = [grid for grid, _ in chosen]

    def lines(named: Sequence[tuple[str, str, int]]) -> tuple[Line, ...]:
        """named: (column, label, style)."""
        found = [
            _line(runs, i, grids[i], column, label, style) for i in range(len(runs)) for column, label, style in named
        ]
        return tuple(line for line in found if np.isfinite(line.mean).any())

    panels = [Panel("Reward per episode", "reward", "Of finished episodes.", False, (), lines([("reward", "", 0)]))]
    panels += [
        Panel(name, "per episode", "A number of the environment's own: mean of the latest episodes.", False, (), line)
        for name in _union(runs, "metric_")
        if (line := lines([(f"metric_{name}", "", 0)]))
    ]
    for cost in _union(runs, "risk_") or _union(runs, "cost_rate_"):
        risk = lines([(f"risk_{cost}", "", 0), (f"sub_risk_{cost}", "critics", 1)])
        caption = "Of finished episodes" + ("; dotted: the critics' estimate." if any(x.style for x in risk) else ".")
        panels += [
            Panel(f"{cost}: risk", _unit(runs, cost), caption, False, _limits(runs, cost), risk, _per(runs, cost)),
            Panel(
                f"{cost}: cost rate",
                "cost per step",
                "Mean over finished episodes.",
                False,
                (),
                lines([(f"cost_rate_{cost}", "", 0)]),
            ),
        ]
    panels.append(_numbered(runs, lines, "beta_", "β", "Likeliest of the sampler, or the auxiliary variable"))
    panels.append(_numbered(runs, lines, "multiplier_", "Multiplier", "Of the Lagrangian"))
    kl = lines([("kl", "", 0)])
    positive = any((line.mean > 0).any() for line in kl)
    panels += [
        Panel("KL of an update", "KL", "Between the policies before and after it.", positive, (), kl),
        Panel(
            "Violations",
            "share",
            "Share of an update's units whose estimated risk is above the limit less the margin (setting margin).",
            False,
            (),
            lines([("violated", "", 0)]),
        ),
    ]
    told = "Cosine of two halves of an update: 1 signal, 0 noise"
    panels.append(_numbered(runs, lines, "signal_", "Signal of the gradients", told, ""))
    return Block(
        names=tuple(run.name for run in runs),
        marks=tuple(range(len(runs)) if marks is None else marks),
        seeds=tuple(tuple(seed.name for seed in run.seeds) if len(run.seeds) > 1 else () for run in runs),
        grids=tuple(grids),
        whole=all(whole for _, whole in chosen),
        panels=tuple(panel for panel in panels if panel.lines),
    )


def _numbered(runs: Sequence[Run], lines: Any, prefix: str, title: str, caption: str, word: str | None = None) -> Panel:
    """A panel of columns that are told apart by a number or a name; line styles repeat after four.

    word: what stands before it, the title unless it is given.
    """
    names, word = _union(runs, prefix), title if word is None else word
    labels = [f"{word} {_of_cost(runs, name)}".strip() if len(names) > 1 else "" for name in names]
    found = lines([(prefix + name, label, k % 4) for k, (name, label) in enumerate(zip(names, labels, strict=True))])
    told = f"{caption}; in order: whole, dotted, dashed, dash-dotted." if len(names) > 1 else f"{caption}."
    unit = {"beta_": "in the unit of the limit", "signal_": "cosine"}.get(prefix, "weight")
    return Panel(title, unit, told, False, (), found)


def _of_cost(runs: Sequence[Run], name: str) -> str:
    """The cost that a column is numbered after, where all runs have the same ones."""
    costs = {run.costs for run in runs}
    return next(iter(costs))[int(name)] if name.isdigit() and len(costs) == 1 and int(name) < len(min(costs)) else name


def _grid(run: Run, most: int) -> tuple[Numbers, bool]:
    """Steps that any seed logged, evenly thinned to `most`; the first and the last stay. And whether these are all."""
    steps = np.unique(np.concatenate([seed.curves.columns["steps"] for seed in run.seeds]))
    if steps.size <= most:
        return steps, True
    return steps[np.unique(np.linspace(0, steps.size - 1, most).round().astype(int))], False


def _line(runs: Sequence[Run], index: int, grid: Numbers, column: str, label: str, style: int) -> Line:
    seeds = np.stack([_on_grid(seed.curves.columns, column, grid) for seed in runs[index].seeds])
    known = np.isfinite(seeds)
    count = known.sum(0)
    mean = np.where(count > 0, np.where(known, seeds, 0.0).sum(0) / np.maximum(count, 1), math.nan)
    low, high = np.where(known, seeds, math.inf).min(0), np.where(known, seeds, -math.inf).max(0)
    none = count == 0
    low[none] = high[none] = math.nan
    return Line(index, label, style, mean, low, high, seeds if len(seeds) > 1 else seeds[:0])


def _on_grid(columns: Any, column: str, grid: Numbers) -> Numbers:
    """The values that were logged at these steps."""
    if column not in columns:
        return np.full(grid.size, math.nan)
    known = dict(zip(columns["steps"].tolist(), columns[column].tolist(), strict=True))
    return np.array([known.get(step, math.nan) for step in grid.tolist()])


def _unit(runs: Sequence[Run], cost: str) -> str:
    """What the risks of a cost are: the log has them in the unit of the limit."""
    units = {limit.unit for run in runs for limit in run.limits if limit.name == cost}
    return cost_words(units.pop()) if len(units) == 1 else "risk in the unit of each run's limit"


def _per(runs: Sequence[Run], cost: str) -> str:
    units = {per(limit.unit) for run in runs for limit in run.limits if limit.name == cost}
    return units.pop() if len(units) == 1 else ""


def _limits(runs: Sequence[Run], cost: str) -> tuple[float, ...]:
    found = {seed.last(f"limit_{cost}") for run in runs for seed in run.seeds}
    return tuple(sorted({float(f"{limit:.9g}") for limit in found if math.isfinite(limit)}))


def _union(runs: Sequence[Run], prefix: str) -> list[str]:
    return list(dict.fromkeys(name for run in runs for seed in run.seeds for name in seed.curves.named(prefix)))


def _panel_json(panel: Panel) -> dict[str, Any]:
    return {
        "title": panel.title,
        "unit": panel.unit,
        "log": panel.log,
        "limits": list(panel.limits),
        "per": panel.per,
        "lines": [
            {
                "run": line.run,
                "label": line.label,
                "style": line.style,
                "mean": _plain(line.mean),
                "low": _plain(line.low) if line.seeds.size else None,
                "high": _plain(line.high) if line.seeds.size else None,
                "seeds": [_plain(seed) for seed in line.seeds],
            }
            for line in panel.lines
        ],
    }


def _plain(values: Numbers) -> list[float | int | None]:
    return [_number(value) for value in values.tolist()]


def _number(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) and abs(value) < 1e15 else float(f"{value:.6g}")
