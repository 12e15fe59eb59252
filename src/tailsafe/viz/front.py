"""Reward against risk: the front of a finite problem, and of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tailsafe.viz.figures import COLOURS, GREY, check_target, new_figure, save, tidy


def draw_front(
    points: Sequence[Mapping[str, Any]], names: Sequence[str], path: Path, units: Sequence[str] = ()
) -> None:
    """One panel per cost: the risk with its bounds to the right, the reward with its own upwards.

    points: as in front.json; those of one `run` are joined. names: what each panel's axis is called. A tick on the axis
    marks the limit that a point was asked for.
    """
    check_target(path)
    figure = new_figure(6.4 * len(names), 4.4)
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for point in points:
        if point["reward"]["mean"] is not None:
            groups.setdefault(str(point.get("run", "")), []).append(point)
    for cost, axes in enumerate(figure.subplots(1, len(names), squeeze=False).flat):
        for colour, (run, own) in zip(COLOURS * len(groups), groups.items(), strict=False):
            risks = [point["risks"][cost] for point in own]
            rewards = [point["reward"] for point in own]
            x, y = [risk["risk"] for risk in risks], [reward["mean"] for reward in rewards]
            axes.errorbar(
                x,
                y,
                xerr=_bars(risks, "risk"),
                yerr=_bars(rewards, "mean"),
                fmt="o-" if len(own) > 1 else "o",
                color=colour,
                markersize=4,
                linewidth=1,
                capsize=2,
                label=run or None,
            )
            for point in own:
                axes.axvline(point["limit"][cost], ymax=0.03, color=colour, linewidth=1)
        unit = f" per {units[cost]}" if cost < len(units) and units[cost] != "discounted" else ""
        tidy(axes, "Reward against risk", f"risk of {names[cost]}{unit} (ticks: limits)", "reward")
        axes.grid(color=GREY, alpha=0.2)
        if len(groups) > 1:
            axes.legend(frameon=False, fontsize=8)
    save(figure, path)


def _bars(entries: Sequence[Mapping[str, Any]], key: str) -> list[list[float]]:
    """Distances to both bounds; none upwards where there is no bound."""
    below = [max(entry[key] - entry["low"], 0.0) for entry in entries]
    above = [0.0 if entry["high"] is None else max(entry["high"] - entry[key], 0.0) for entry in entries]
    return [below, above]
