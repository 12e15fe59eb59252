"""What a risk measure and its level do: reward against cost rate, and the distribution of cost rates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tailsafe.viz.figures import BLUE, COLOURS, GREY, RED, check_target, new_figure, save, tidy

PERCENTILES = (50, 75, 90, 95, 99)
_MARKERS = "o^sDv"
Row = dict[str, Any]


def draw_scatter(rows: Sequence[Row], limit: float, path: Path) -> None:
    """A point per run, an ellipse of one standard deviation per level: colours are measures, markers levels."""
    from matplotlib.patches import Ellipse

    check_target(path)
    figure = new_figure(7.0, 5.0)
    axes = figure.subplots()
    for colour, measure in zip(COLOURS, _names(rows, "measure"), strict=False):
        of_measure = [row for row in rows if row["measure"] == measure]
        for marker, level in zip(_MARKERS, _names(of_measure, "level"), strict=False):
            points = np.array([[r["cost_rate"], r["reward"]] for r in of_measure if r["level"] == level])
            axes.plot(*points.T, marker, color=colour, markersize=4, alpha=0.6)
            axes.plot(*points.mean(0), marker, color=colour, markersize=9, label=f"{measure} {level}")
            if len(points) > 1:
                values, vectors = np.linalg.eigh(np.cov(points.T))
                width, height = 2 * np.sqrt(np.maximum(values, 0.0))
                angle = float(np.degrees(np.arctan2(vectors[1, 0], vectors[0, 0])))
                ellipse = Ellipse(tuple(points.mean(0)), width, height, angle=angle, color=colour, alpha=0.15)
                axes.add_patch(ellipse)
    axes.axvline(limit, color=RED, linestyle="--", linewidth=1, label=f"limit {limit:g}")
    axes.legend(frameon=False, fontsize=8, ncols=2)
    tidy(axes, "Reward against cost rate", "cost per step", "reward per episode")
    save(figure, path)


def draw_distributions(rows: Sequence[Row], title: str, path: Path) -> None:
    """A histogram of episodes' cost rates per measure and level, all seeds together, with percentiles marked."""
    check_target(path)
    names = list(dict.fromkeys((row["measure"], row["level"]) for row in rows))
    figure = new_figure(7.0, 1.0 + 1.5 * len(names))
    panels = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
    rates = {name: np.concatenate([r["rates"] for r in rows if (r["measure"], r["level"]) == name]) for name in names}
    end = max(1e-6, *(float(values.max()) for values in rates.values()))
    for axes, name in zip(panels, names, strict=True):
        counts, _, _ = axes.hist(rates[name], bins=np.linspace(0, end, 51), color=BLUE, alpha=0.7)
        top = 1.15 * float(counts.max())
        for p in PERCENTILES:
            x = float(np.percentile(rates[name], p))
            axes.axvline(x, color=GREY, linewidth=0.8, linestyle=":")
            axes.text(x, top, f"{p} ", rotation=90, va="top", ha="right", fontsize=7, color=GREY)
        axes.set_ylim(0, top)
        tidy(axes, f"{name[0]} {name[1]}", "cost per step of an episode" if axes is panels[-1] else "", "episodes")
    figure.suptitle(title, fontsize=12)
    save(figure, path)


def _names(rows: Sequence[Row], label: str) -> list[str]:
    return list(dict.fromkeys(row[label] for row in rows))
