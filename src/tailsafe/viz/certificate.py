"""How a certificate came about: the bound of a risk comes down to its limit as episodes are played."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tailsafe.viz.figures import BLUE, GREY, RED, check_target, new_figure, save, tidy

if TYPE_CHECKING:
    from tailsafe.evaluation.search_outcome import Certificate


def draw_certificate(certificate: Certificate, path: Path) -> None:
    """One panel per cost: the risk that was seen and its upper bound over the number of episodes, and the limit."""
    check_target(path)
    from matplotlib.ticker import LogLocator

    constraints = certificate.policy.constraints
    figure = new_figure(6.4 * len(constraints), 4.0)
    outcome = "certified" if certificate.certified else "not certified"
    for cost, axes in enumerate(figure.subplots(1, len(constraints), squeeze=False).flat):
        episodes, risk, upper = certificate.course(cost).T
        limit, unit = certificate.limits[cost], certificate.units[cost]
        axes.fill_between(episodes, risk, upper, color=BLUE, alpha=0.12, linewidth=0)
        axes.plot(episodes, upper, color=BLUE, label=f"at most, with confidence {certificate.confidence:g}")
        axes.plot(episodes, risk, color=GREY, label="seen")
        axes.axhline(limit, color=RED, linestyle="--", label=f"limit {limit:g}/{unit}")
        axes.set_xscale("log", subs=())
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        # A bound begins far above what matters.
        axes.set_ylim(0, 1.15 * max(limit, upper[-1], min(upper[0], 3 * max(limit, risk.max()))))
        name, measure = constraints[cost].name, constraints[cost].risk_measure
        tidy(axes, f"{outcome} after {int(episodes[-1])} episodes", "episodes played", f"{measure} of {name}")
        axes.legend(frameon=False, fontsize=8)
    save(figure, path)
