"""Pictures of studies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tailsafe.viz.figures import BLUE, COLOURS, GREY, RED, new_figure, save, tidy


def draw_known_optimum(entries: list[dict[str, Any]], path: Path) -> None:
    """One column per problem: above the gap to the optimum, below how far risks exceed limits, in percent."""
    problems = list(dict.fromkeys(entry["problem"] for entry in entries))
    methods = list(dict.fromkeys(entry["method"] for entry in entries))
    if not problems:
        return
    figure = new_figure(2.2 + 2.4 * len(problems), 1.5 + 0.5 * len(methods))
    panels = figure.subplots(2, len(problems), sharey=True, squeeze=False)
    for column, problem in enumerate(problems):
        own = {entry["method"]: entry for entry in entries if entry["problem"] == problem}
        for row, (name, colour, label) in enumerate(
            (("gap", BLUE, "missing of the optimum [%]"), ("violation", RED, "beyond a limit [%]"))
        ):
            axes = panels[row, column]
            for place, method in enumerate(methods):
                if method not in own:
                    continue
                value = own[method][name]
                axes.plot([100 * value["low"], 100 * value["high"]], [place, place], color=colour, linewidth=1.5)
                axes.plot(100 * value["mean"], place, "o", color=colour, markersize=4)
            axes.axvline(0, color=GREY, linewidth=0.8)
            axes.set_yticks(range(len(methods)), methods)
            axes.set_ylim(len(methods) - 0.5, -0.5)
            tidy(axes, problem if row == 0 else "", label, "")
    save(figure, path)


def draw_profiles(found: Mapping[str, Any], path: Path) -> None:
    """Of every algorithm the share of runs whose score is above a threshold, with a band for its bounds."""
    figure = new_figure(6.4, 4.2)
    axes = figure.subplots()
    for i, entry in enumerate(found["algorithms"]):
        colour, profile = COLOURS[i % len(COLOURS)], entry["profile"]
        shares, low, high = ([one[name] for one in profile] for name in ("mean", "low", "high"))
        axes.step(found["thresholds"], shares, where="post", color=colour, linewidth=1.5, label=entry["algorithm"])
        axes.fill_between(found["thresholds"], low, high, step="post", color=colour, alpha=0.12, linewidth=0)
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    axes.legend(frameon=False, fontsize=8)
    title = f"Runs above a score, {len(found['tasks'])} task" + ("s" if len(found["tasks"]) != 1 else "")
    tidy(axes, title, "score: reward where limits are kept", "share of runs")
    save(figure, path)
