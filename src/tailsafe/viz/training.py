"""Training curves of many runs: a line and a band over the seeds of each group. And how long training takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tailsafe.errors import InputError
from tailsafe.viz.figures import BLUE, COLOURS, GREY, RED, check_target, new_figure, save, tidy
from tailsafe.viz.run import Curves, read_curves, run_folders

_STYLES = ("-", "--", ":", "-.")
# Not a name that a log may have.
_SHARE = "largest risk / limit"


class LabelledRuns(Protocol):
    """Runs that differ in their seeds alone, inside of one folder. labels: what tells them from others."""

    @property
    def labels(self) -> dict[str, str]: ...

    @property
    def folder(self) -> Path: ...


def draw_training(
    parts: Sequence[tuple[str, Sequence[LabelledRuns]]], colour_by: str, style_by: str | None, path: Path
) -> bool:
    """A row of panels per part: reward, every cost's rate, and the largest risk as a share of its limit.

    Lines are means over seeds, bands one deviation.

    colour_by, style_by: the groups' labels that choose colour and line style. False where nothing was logged yet.
    """
    check_target(path)
    read = [(title, [(group, curves) for group in groups if (curves := _seeds(group))]) for title, groups in parts]
    read = [(title, found) for title, found in read if found]
    if not read:
        return False
    with_share = any(_SHARE in run.columns for _, found in read for _, runs in found for run in runs)
    width = max(1 + with_share + len(_costs(found)) for _, found in read)
    figure = new_figure(4.8 * width, 3.2 * len(read))
    panels = figure.subplots(len(read), width, squeeze=False)
    colours = _choices([group for _, found in read for group, _ in found], colour_by, COLOURS)
    # Of each colour the first line is solid.
    styles = {
        colour: _choices([g for _, found in read for g, _ in found if g.labels[colour_by] == colour], style_by, _STYLES)
        for colour in colours
    }
    for row, (title, found) in zip(panels, read, strict=True):
        costs = [(f"cost_rate_{cost}", f"{cost}: cost per step") for cost in _costs(found)]
        columns = [("reward", "reward per episode"), *costs, *([(_SHARE, "risk / limit")] if with_share else [])]
        for axes, (column, name) in zip(row, columns, strict=False):
            for group, seeds in found:
                look = {"color": colours[group.labels[colour_by]]}
                if style_by is not None:
                    look["linestyle"] = styles[group.labels[colour_by]][group.labels[style_by]]
                words = [group.labels[colour_by], *([group.labels[style_by]] if style_by else [])]
                _draw_band(axes, seeds, column, " ".join(words), look)
            if column == _SHARE:
                axes.axhline(1.0, color=RED, linestyle="--", linewidth=0.8)
            tidy(axes, f"{title}: {name}", "environment steps", "")
        for axes in row[len(columns) :]:
            axes.set_visible(False)
    panels[0, 0].legend(frameon=False, fontsize=7, ncols=2)
    save(figure, path)
    return True


def draw_times(entries: Sequence[dict[str, Any]], steps: int, path: Path) -> None:
    """Ours and the paper's, on a logarithmic axis."""
    check_target(path)
    figure = new_figure(6.4, 0.8 + 0.5 * len(entries))
    axes = figure.subplots()
    places = np.arange(len(entries))
    for shift, name, colour, label in ((-0.2, "hours", BLUE, "here"), (0.2, "paper_hours", GREY, "paper")):
        known = np.array([entry[name] is not None for entry in entries])
        minutes = [60 * entry[name] for entry in entries if entry[name] is not None]
        axes.barh(places[known] + shift, minutes, 0.38, color=colour, label=label)
    axes.set_yticks(places, [entry["algorithm"] for entry in entries])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.legend(frameon=False, fontsize=9)
    tidy(axes, f"Training for {steps:,} steps", "minutes", "")
    save(figure, path)


def mean_and_deviation(runs: Sequence[Curves], column: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """(steps, mean, standard deviation) at every logged step, over the runs that have a number there."""
    steps = np.unique(np.concatenate([run.columns["steps"] for run in runs]))
    values = np.full((len(runs), steps.size), np.nan)
    for row, run in zip(values, runs, strict=True):
        row[np.searchsorted(steps, run.columns["steps"])] = run.columns[column]
    known = ~np.isnan(values).all(0)
    values = values[:, known]
    return steps[known], np.nanmean(values, axis=0), np.nanstd(values, axis=0)


def _draw_band(axes: Any, runs: Sequence[Curves], column: str, label: str, look: dict[str, Any]) -> None:
    runs = [run for run in runs if column in run.columns]
    if not runs:
        return
    steps, mean, deviation = mean_and_deviation(runs, column)
    axes.plot(steps, mean, linewidth=1.2, label=label, **look)
    if len(runs) > 1:
        axes.fill_between(steps, mean - deviation, mean + deviation, color=look["color"], alpha=0.15, linewidth=0)


def _seeds(group: LabelledRuns) -> list[Curves]:
    """What the runs of a group have logged."""
    found = []
    try:
        folders = run_folders([group.folder])
    except InputError:
        return []
    for folder in folders:
        try:
            found.append(_with_share(read_curves(folder)))
        except InputError:
            continue
    return found


def _with_share(run: Curves) -> Curves:
    """With a column for the largest risk, discounted like its limit and as a share of it."""
    names = [name for name in run.named("risk_") if f"limit_{name}" in run.columns]
    if not names:
        return run
    shares = [run.columns[f"risk_{name}"] / run.columns[f"limit_{name}"] for name in names]
    return replace(run, columns={**run.columns, _SHARE: np.max(shares, axis=0)})


def _costs(found: Sequence[tuple[LabelledRuns, Sequence[Curves]]]) -> list[str]:
    return list(dict.fromkeys(name for _, runs in found for run in runs for name in run.named("cost_rate_")))


def _choices(groups: Sequence[LabelledRuns], label: str | None, options: Sequence[str]) -> dict[str, str]:
    names = [] if label is None else list(dict.fromkeys(group.labels[label] for group in groups))
    return {name: options[i % len(options)] for i, name in enumerate(names)}
