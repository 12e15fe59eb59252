"""Where learning stands, as a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tailsafe.training.diagnosis import WANTED_COSINE, Diagnosis
from tailsafe.viz.figures import BLUE, GREY, ORANGE, check_target, new_figure, save, tidy


def draw_diagnosis(found: Diagnosis, path: Path) -> None:
    """Agreement of the gradients, risk estimates against episodes, and calibration of every critic."""
    check_target(path)
    count = 2 + len(found.calibrations)
    figure = new_figure(3.6 * count, 3.6)
    panels = figure.subplots(1, count)
    names = [signal.name for signal in found.signals]
    panels[0].bar(names, [signal.cosine for signal in found.signals], color=BLUE)
    panels[0].axhline(WANTED_COSINE, color=GREY, linestyle="--", linewidth=1)
    panels[0].set_ylim(0, 1)
    tidy(panels[0], "signal of the gradients", "", "cosine of two halves")
    places = np.arange(len(found.estimates))
    panels[1].errorbar(
        places - 0.1,
        [each.mean for each in found.estimates],
        yerr=[each.std for each in found.estimates],
        fmt="o",
        color=BLUE,
        label="learner, ± 1 std",
    )
    panels[1].plot(places + 0.1, [each.seen for each in found.estimates], "s", color=ORANGE, label="episodes")
    panels[1].plot(places, [each.target for each in found.estimates], "_", color=GREY, markersize=24, label="target")
    panels[1].set_xticks(places, [each.name for each in found.estimates])
    panels[1].set_xlim(-0.5, len(places) - 0.5)
    panels[1].legend(frameon=False, fontsize=8)
    tidy(panels[1], "risk at the current beta", "", "discounted sum")
    for axes, each in zip(panels[2:], found.calibrations, strict=True):
        axes.plot(each.levels, each.predicted, "o-", color=BLUE, label="critics")
        axes.plot(each.levels, each.seen, "s--", color=ORANGE, label="episodes")
        axes.legend(frameon=False, fontsize=8)
        tidy(axes, f"quantiles of {each.name}", "level", "discounted sum")
    save(figure, path)
