"""Pictures of a run: how it learned, and the costs of the policy it ended with."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailsafe.errors import InputError
from tailsafe.evaluation.constraint_report import ConstraintReport
from tailsafe.evaluation.report import Evaluation
from tailsafe.files import open_text, read_object
from tailsafe.risk import quantile
from tailsafe.training.logs import per
from tailsafe.viz.figures import BLUE, COLOURS, GREY, ORANGE, RED, check_target, new_figure, save, tidy

QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99)
METRICS_NAME = "metrics.csv"
# Percentiles that are closer than this share of the width have one label.
_CLOSE = 0.045
_X = "steps"


# --- an evaluation ----------------------------------------------------------------------------------------------------


def draw_evaluation(evaluation: Evaluation, path: Path) -> None:
    """The rewards, and for each constraint its discounted costs with limit, risk, percentiles and spectrum."""
    check_target(path)
    panels: list[Callable[[Any], None]] = [
        partial(_draw_rewards, evaluation=evaluation),
        *(partial(_draw_costs, evaluation=evaluation, index=i) for i in range(len(evaluation.constraints))),
    ]
    figure = new_figure(5.6 * len(panels), 4.2)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        panel(axes)
    save(figure, path)


def _draw_rewards(axes: Any, evaluation: Evaluation) -> None:
    reward = evaluation.reward
    axes.hist(evaluation.episodes.reward, bins=bins(evaluation.episodes.reward), color=BLUE, alpha=0.8)
    axes.axvspan(reward.student.low, reward.student.high, color=GREY, alpha=0.3, linewidth=0)
    axes.axvline(reward.mean, color=GREY, label=f"mean {reward.mean:.4g}")
    axes.legend(frameon=False, fontsize=9)
    played = evaluation.played
    place = "" if played.trained_in is None else f" in {played.name}"
    tidy(axes, f"Reward of {len(evaluation.episodes)} episodes{place}", "sum of rewards", "episodes")


def _draw_costs(axes: Any, evaluation: Evaluation, index: int) -> None:
    """Counts on the left axis; on the right one, the weight that the spectrum gives to an outcome of that rank.

    Costs are in the unit of the limit.
    """
    report = evaluation.constraints[index]
    described = report.description
    factor = evaluation.policy.unit_factor(described)
    samples = factor * np.sort(evaluation.episodes.discounted_costs[:, index])
    counts, _, _ = axes.hist(samples, bins=bins(samples), color=BLUE, alpha=0.8)
    span = max(float(samples[-1]), described.limit, 1e-9 * factor)
    top = 1.3 * float(counts.max())
    marks = [(p, float(x)) for p, x in zip(QUANTILES, quantile(samples, np.array(QUANTILES)), strict=True)]
    for _, x in marks:
        axes.axvline(x, color=GREY, linewidth=0.8, linestyle=":")
    for x, words in percentile_labels(marks, _CLOSE * span):
        axes.text(x, top, words + " ", rotation=90, va="top", ha="right", fontsize=8, color=GREY)
    unit = per(described.unit)
    risk = f"{described.risk_measure} = {report.risk:.3g}{unit} {_bounds(report)}"
    axes.axvline(report.risk, color=ORANGE, linewidth=2, label=risk)
    axes.axvline(described.limit, color=RED, linestyle="--", label=f"limit {described.limit:g}{unit}")
    # The bounds as a bar across the risk; one that has no end leaves the picture.
    ends = [report.deciding.low, min(report.deciding.high, 2 * span)]
    axes.plot(ends, [0.72 * top] * 2, color=ORANGE, linewidth=1.5, marker="|", markersize=10)
    _draw_spectrum(axes, report, samples, span)
    axes.set(xlim=(-0.04 * span, 1.06 * span), ylim=(0, top))
    # Below the picture: costs may pile up anywhere inside of it.
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=9)
    tidy(axes, f"{described.name}: {_words(report.verdict)}", cost_words(described.unit), "episodes")


def _draw_spectrum(axes: Any, report: ConstraintReport, samples: NDArray[np.float64], span: float) -> None:
    measure, n = report.description.measure, samples.size
    # The mean weight of each sample's slice of the ranks: finite where sigma(1) is not.
    weights = np.diff(measure.integral(np.arange(n + 1) / n)) * n
    right = axes.twinx()
    xs, heights = np.concatenate([[0.0], samples, [span]]), np.concatenate([weights[:1], weights, weights[-1:]])
    right.step(xs, heights, where="post", color=ORANGE, alpha=0.6, linewidth=1)
    right.fill_between(xs, heights, step="post", color=ORANGE, alpha=0.08, linewidth=0)
    right.set_ylim(0, 1.6 * float(weights.max()))
    right.set_ylabel("weight σ in the risk", color=ORANGE, fontsize=9)
    right.tick_params(colors=ORANGE, labelsize=8)
    right.spines[["top"]].set_visible(False)


def percentile_labels(marks: Sequence[tuple[float, float]], close: float) -> list[tuple[float, str]]:
    """(place, words) of percentiles (share, value) in rising order; those nearer than `close` share a label."""
    labels: list[tuple[float, list[str]]] = []
    for p, x in marks:
        if labels and x - labels[-1][0] < close:
            labels[-1][1].append(f"{100 * p:g}")
        else:
            labels.append((x, [f"{100 * p:g}"]))
    return [(x, ", ".join(names) + " %") for x, names in labels]


def cost_words(unit: str) -> str:
    """What a discounted cost sum of an episode is in the unit of a limit."""
    return "discounted cost of an episode" + (f", per {unit}" if per(unit) else "")


def _bounds(report: ConstraintReport) -> str:
    low, high = report.deciding.low, report.deciding.high
    return f"[{low:.3g}, {high:.3g}]" if math.isfinite(high) else f"[{low:.3g}, ∞)"


def _words(verdict: str) -> str:
    return "cannot tell whether the limit is met" if verdict == "cannot tell" else f"limit {verdict}"


def bins(samples: NDArray[np.float64]) -> NDArray[np.float64]:
    """Edges of a histogram's bars. Samples that differ by rounding alone are one bar."""
    low, high = float(samples.min()), float(samples.max())
    size = max(abs(low), abs(high))
    if high - low <= 1e-9 * size or high == low:
        half = 0.05 * size or 0.5
        return np.array([low - half, high + half])
    return np.linspace(low, high, 1 + int(np.clip(2 * math.sqrt(samples.size), 10, 60)))


# --- learning curves --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Curves:
    """What metrics.csv of one run says: a column (rows,) per name, NaN where a cell is empty.

    units: of the costs' limits, as far as config.json says them; risks and betas of the log are in these.
    """

    name: str
    columns: Mapping[str, NDArray[np.float64]]
    units: Mapping[str, str] = field(default_factory=dict)

    def named(self, prefix: str) -> list[str]:
        """What follows `prefix` in the names of the columns that begin with it."""
        return [column.removeprefix(prefix) for column in self.columns if column.startswith(prefix)]


def read_curves(run: Path) -> Curves:
    """Read RUN/metrics.csv. A last line that was cut short, as by a crash, is left out."""
    path = run / METRICS_NAME
    try:
        with open_text(path) as handle:
            rows = list(csv.reader(handle))
    except FileNotFoundError:
        started = (run / "config.json").is_file()
        raise InputError(f"{path}: no update has been logged yet" if started else f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except (UnicodeDecodeError, csv.Error):
        raise InputError(f"{path}: not a text file of comma-separated values") from None
    if not rows or _X not in rows[0]:
        raise InputError(f"{path}: has no column {_X!r}; is {run} a run folder?")
    header, body = rows[0], rows[1:]
    if body and len(body[-1]) != len(header):
        body = body[:-1]
    if not body:
        raise InputError(f"{path}: no update has been logged yet")
    if any(len(row) != len(header) for row in body):
        raise InputError(f"{path}: some lines have more or fewer cells than the header")
    columns = zip(*body, strict=True)
    numbers = {name: np.array([_cell(c) for c in column]) for name, column in zip(header, columns, strict=True)}
    return Curves(_name(run), numbers, _units(run))


def _units(run: Path) -> dict[str, str]:
    try:
        entries = read_object(run / "config.json")["constraints"]
        return {str(entry["name"]): str(entry["unit"]) for entry in entries}
    except (InputError, KeyError, TypeError):
        return {}


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """The runs that are meant: folders themselves, or the seeds in them."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise InputError(f"{path}: no such run")
        logged = [child for child in path.glob("seed-*") if (child / METRICS_NAME).is_file()]
        seeds = sorted(logged, key=lambda child: (len(child.name), child.name))
        found += seeds if seeds and not (path / METRICS_NAME).is_file() else [path]
    return found


def draw_curves(runs: Sequence[Curves], path: Path) -> None:
    """Reward, risks, cost rates, beta, KL, violations and the gradients' signal over steps, all runs overlaid."""
    check_target(path)
    costs = _union(runs, "risk_") or _union(runs, "cost_rate_")
    panels: list[Callable[[Any], None]] = [partial(_draw_line, runs=runs, column="reward", title="Reward per episode")]
    panels += [
        partial(_draw_line, runs=runs, column=f"metric_{name}", title=f"{name} per episode")
        for name in _union(runs, "metric_")
    ]
    for cost in costs:
        panels.append(partial(_draw_risk, runs=runs, cost=cost))
        panels.append(
            partial(_draw_line, runs=runs, column=f"cost_rate_{cost}", title=f"{cost}: cost per step", log=False)
        )
    panels += [
        partial(_draw_betas, runs=runs),
        partial(_draw_line, runs=runs, column="kl", title="KL taken by an update", log=True),
        partial(_draw_line, runs=runs, column="violated", title="Share of updates' units above limit less margin"),
    ]
    if _union(runs, "signal_"):
        panels.append(partial(_draw_signals, runs=runs))
    columns = math.ceil(len(panels) / 2)
    figure = new_figure(4.6 * columns, 6.6)
    for axes, panel in zip(figure.subplots(2, columns).flat, panels, strict=False):
        panel(axes)
    for axes in figure.axes[len(panels) :]:
        axes.set_visible(False)
    if len(runs) > 1:
        figure.axes[0].legend(frameon=False, fontsize=8)
    save(figure, path)


def _draw_line(axes: Any, runs: Sequence[Curves], column: str, title: str, log: bool = False) -> None:
    for colour, run in _coloured(runs):
        if column in run.columns:
            axes.plot(run.columns[_X], run.columns[column], color=colour, linewidth=1, label=run.name)
    if log and any(np.nanmax(run.columns.get(column, np.zeros(1)), initial=0.0) > 0 for run in runs):
        axes.set_yscale("log")
    _say_if_empty(axes)
    tidy(axes, title, "environment steps", "")


def _draw_risk(axes: Any, runs: Sequence[Curves], cost: str) -> None:
    """The risk of finished episodes, its estimate from the critics, and the limit."""
    limits = set()
    units = {run.units[cost] for run in runs if cost in run.units}
    for colour, run in _coloured(runs):
        steps = run.columns[_X]
        if f"risk_{cost}" in run.columns:
            axes.plot(steps, run.columns[f"risk_{cost}"], color=colour, linewidth=1, label="finished episodes")
        if f"sub_risk_{cost}" in run.columns:
            estimate = run.columns[f"sub_risk_{cost}"]
            axes.plot(steps, estimate, color=colour, linewidth=0.8, alpha=0.5, linestyle=":", label="critics")
        limits |= set(run.columns.get(f"limit_{cost}", np.zeros(0))[-1:])
    for limit in sorted(limits):
        unit = per(next(iter(units))) if len(units) == 1 else ""
        axes.axhline(limit, color=RED, linestyle="--", linewidth=1, label=f"limit {limit:g}{unit}")
    if len(runs) == 1 and axes.lines:
        axes.legend(frameon=False, fontsize=8)
    _say_if_empty(axes)
    tidy(axes, f"{cost}: risk", "environment steps", cost_words(next(iter(units))) if len(units) == 1 else "")


def _draw_signals(axes: Any, runs: Sequence[Curves]) -> None:
    """How far the gradients of two halves of an update's rows agree, for the reward and for every cost."""
    styles = ("-", "--", ":", "-.")
    for colour, run in _coloured(runs):
        for k, name in enumerate(run.named("signal_")):
            values = run.columns[f"signal_{name}"]
            axes.plot(run.columns[_X], values, color=colour, linewidth=1, linestyle=styles[k % 4], label=name)
    axes.axhline(0, color=GREY, linewidth=0.8)
    if len(runs) == 1:
        axes.legend(frameon=False, fontsize=8)
    tidy(axes, "Gradients: cosine of two halves", "environment steps", "1 signal, 0 noise")


def _draw_betas(axes: Any, runs: Sequence[Curves]) -> None:
    styles = ("-", "--", ":", "-.")
    for colour, run in _coloured(runs):
        for k, name in enumerate(run.named("beta_")):
            values = run.columns[f"beta_{name}"]
            axes.plot(run.columns[_X], values, color=colour, linewidth=1, linestyle=styles[k % 4], label=f"β {name}")
    if len(runs) == 1 and 1 < len(axes.lines) <= 8:
        axes.legend(frameon=False, fontsize=8)
    _say_if_empty(axes)
    tidy(axes, "β: likeliest of the sampler, or auxiliary", "environment steps", "in the unit of the limit")


def _coloured(runs: Sequence[Curves]) -> list[tuple[str, Curves]]:
    return [(COLOURS[i % len(COLOURS)], run) for i, run in enumerate(runs)]


def _union(runs: Sequence[Curves], prefix: str) -> list[str]:
    """Names after `prefix` over all runs, in order of appearance."""
    return list(dict.fromkeys(name for run in runs for name in run.named(prefix)))


def _say_if_empty(axes: Any) -> None:
    if not axes.lines:
        axes.text(0.5, 0.5, "not logged", ha="center", color=GREY, transform=axes.transAxes)


def _cell(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _name(run: Path) -> str:
    """The folder's name; a seed's with the name of its study."""
    return f"{run.parent.name}/{run.name}" if run.name.startswith("seed-") else run.name or str(run)
