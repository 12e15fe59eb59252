"""Spectra with the steps that stand for them, and the error over the number of steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tailsafe.risk import SpectralRisk
from tailsafe.viz.figures import COLOURS, check_target, new_figure, save, tidy
from tailsafe.viz.spectrum import plot_spectrum


def draw_spectra(measures: Sequence[SpectralRisk], cells: int, path: Path) -> None:
    """One panel per measure, three in a row."""
    check_target(path)
    rows = math.ceil(len(measures) / 3)
    figure = new_figure(12.6, 3.4 * rows)
    for axes, measure in zip(figure.subplots(rows, 3, squeeze=False).flat, measures, strict=False):
        plot_spectrum(axes, measure, measure.discretize(cells))
        tidy(axes, str(measure), "u (1 = worst outcomes)", "spectrum σ(u)")
    save(figure, path)


def draw_errors(entries: Sequence[dict[str, Any]], path: Path) -> None:
    """L1 error over the number of steps; both axes logarithmic, so that an order of convergence is a slope."""
    check_target(path)
    figure = new_figure(6.4, 4.2)
    axes = figure.subplots()
    for colour, entry in zip(COLOURS, entries, strict=False):
        counts = [int(count) for count in entry["errors"]]
        axes.plot(counts, list(entry["errors"].values()), "o-", color=colour, markersize=4, label=entry["measure"])
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=9)
    tidy(axes, "What is lost by steps", "number of steps M", "L1 error")
    save(figure, path)
