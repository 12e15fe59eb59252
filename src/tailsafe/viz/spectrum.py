"""A spectrum and the steps that stand for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tailsafe.risk import SpectralRisk, StepSpectrum
from tailsafe.viz.figures import BLUE, ORANGE, check_target, new_figure, save, tidy


def draw_spectrum(measure: SpectralRisk, steps: StepSpectrum, path: Path) -> None:
    """sigma and its step approximation over u."""
    check_target(path)
    figure = new_figure(6.4, 4.0)
    axes = figure.subplots()
    plot_spectrum(axes, measure, steps)
    tidy(axes, "How much each quantile of the cost counts", "u (0 = best outcomes, 1 = worst)", "spectrum σ(u)")
    save(figure, path)


def plot_spectrum(axes: Any, measure: SpectralRisk, steps: StepSpectrum) -> None:
    """Both curves into one panel; the shaded area between them is the L1 error."""
    # Dense near both ends, where a spectrum may be steep; never at u = 1, where it may be infinite.
    u = np.unique(
        np.concatenate([np.linspace(0.0, 1.0, 2001)[:-1], 1 - np.geomspace(1e-6, 1.0, 500)[:-1], steps.alpha])
    )
    sigma, flat = measure.sigma(u), steps.sigma(u)
    axes.fill_between(u, sigma, flat, color=ORANGE, alpha=0.2, linewidth=0)
    axes.plot(u, sigma, color=BLUE, label=f"σ of {measure}")
    edges = np.concatenate([[0.0], steps.alpha, [1.0]])
    label = f"{steps.cells} steps, L1 error {steps.l1_error:.4g}"
    axes.stairs(steps.eta, edges, color=ORANGE, baseline=None, label=label)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.25 * steps.eta[-1])
    axes.legend(frameon=False, loc="upper left")
