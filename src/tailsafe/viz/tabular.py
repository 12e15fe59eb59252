"""A tabular run: what was learned, which beta the sampler chose, and the costs of the final policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tailsafe.risk import quantile
from tailsafe.tabular.baselines import Baseline
from tailsafe.tabular.solution import Learning, TabularSolution
from tailsafe.viz.figures import BLUE, GREY, ORANGE, RED, new_figure, save, tidy

COST_COLOURS = (ORANGE, "#8e44ad", "#16a085", "#2c3e50")
QUANTILES = (0.5, 0.75, 0.9, 0.99)


def draw_solution(solution: TabularSolution, path: Path, baselines: Sequence[Baseline] = ()) -> None:
    """Reward and risk per iteration, the sampler's mass over beta, and cost distributions, ours and the baselines'."""
    learning = solution.learning
    if learning is None:
        raise ValueError("an infeasible problem has no run to draw")
    panels: list[Callable[[Any], None]] = [
        lambda axes: _draw_reward(axes, solution, learning),
        lambda axes: _draw_risks(axes, solution, learning),
        lambda axes: _draw_sampler(axes, solution, learning),
        *(partial(_draw_costs, solution=solution, cost=i) for i in range(solution.statement.problem.num_costs)),
        *(partial(_draw_baseline, solution=solution, baseline=baseline) for baseline in baselines),
    ]
    columns = math.ceil(len(panels) / 2)
    figure = new_figure(5.2 * columns, 7.0)
    for axes, panel in zip(figure.subplots(2, columns).T.flat, panels, strict=False):
        panel(axes)
    for axes in figure.axes[len(panels) :]:
        axes.set_visible(False)
    save(figure, path)


def _draw_reward(axes: Any, solution: TabularSolution, learning: Learning) -> None:
    name = "optimum" if solution.certificate.exhaustive else "best on this grid"
    axes.plot(np.arange(1, learning.iterations + 1), learning.trace.reward, color=BLUE, linewidth=1)
    axes.axhline(
        solution.certificate.optimum,
        color=GREY,
        linestyle="--",
        label=f"{name} {solution.certificate.optimum:.4g}",
    )
    axes.set_xscale("log")
    axes.legend(frameon=False, loc="lower right")
    tidy(axes, "Expected reward of the likeliest policy", "iteration", "discounted reward")


def _draw_risks(axes: Any, solution: TabularSolution, learning: Learning) -> None:
    steps = np.arange(1, learning.iterations + 1)
    for i, limit in enumerate(solution.statement.limits):
        colour = COST_COLOURS[i % len(COST_COLOURS)]
        name = f"{_measure_name(solution, i)} of cost {i}"
        axes.plot(steps, learning.trace.risks[:, i], color=colour, linewidth=1, label=name)
        axes.axhline(
            limit,
            color=colour if len(solution.statement.limits) > 1 else RED,
            linestyle="--",
            label=f"limit {limit:g}",
        )
    axes.set_xscale("log")
    axes.legend(frameon=False, fontsize=8)
    tidy(axes, "Its risk (sub-risk at its β)", "iteration", "risk of discounted cost")


def _measure_name(solution: TabularSolution, cost: int) -> str:
    """The measure whose risk is shown: as given, or the steps that stand for it."""
    measure, steps = solution.statement.measures[cost], solution.statement.spectra[cost]
    return str(measure) if steps.l1_error == 0 else f"{measure} ({steps.cells} steps)"


def _draw_sampler(axes: Any, solution: TabularSolution, learning: Learning) -> None:
    """Bars over beta where it is one number, else over the rank of the joint beta by its certified value."""
    optimal = solution.certificate.optimal_betas(solution.tolerance)
    best = "certified optimal" if solution.certificate.exhaustive else "best on this grid"
    colours = np.where(optimal, BLUE, GREY)
    betas = np.concatenate(solution.betas.betas, axis=1)
    if betas.shape[1] == 1:
        position, label = betas[:, 0], "β"
        width = 0.015 * (float(np.ptp(position)) or 1.0)
    else:
        order = np.argsort(-solution.certificate.values, kind="stable")
        position, label, width = np.argsort(order), "β, ranked by certified optimum (0 = best)", 0.8
    axes.bar(position, learning.sampler, width=width, color=colours)
    if betas.shape[1] != 1:
        axes.set_xlim(-1, min(len(solution.betas), 40))
    axes.set_ylim(0, 1)
    tidy(axes, f"Sampler over β (blue: {best})", label, "probability ξ(β)")


def _draw_costs(axes: Any, solution: TabularSolution, cost: int) -> None:
    best = solution.best
    if best is None:
        axes.text(0.5, 0.5, "no feasible policy yet", ha="center", transform=axes.transAxes)
        tidy(axes, f"Cost {cost} of the final policy", "discounted cost", "probability")
        return
    _draw_distribution(axes, solution, cost, solution.mdp.terminal_cost[:, cost], best.terminal_distribution, BLUE)
    kept = "kept" if solution.statement.keeps(cost, best.risks[cost]) else "broken"
    tidy(axes, f"Cost {cost} of the final policy: limit {kept}", "discounted cost", "probability")


def _draw_baseline(axes: Any, solution: TabularSolution, baseline: Baseline) -> None:
    _draw_distribution(axes, solution, 0, baseline.costs, baseline.distribution, GREY)
    kept = solution.statement.met_by([float(solution.statement.spectra[0].risk(baseline.costs, baseline.distribution))])
    tidy(axes, f"{baseline.name.capitalize()}: {'kept' if kept else 'broken'}", "discounted cost", "probability")


def _draw_distribution(
    axes: Any, solution: TabularSolution, cost: int, sums: np.ndarray, distribution: np.ndarray, colour: str
) -> None:
    """A distribution of cost sums with its quantiles, its risk and the limit marked."""
    limit = solution.statement.limits[cost]
    values, where = np.unique(sums, return_inverse=True)
    mass = np.bincount(where.reshape(-1), distribution)
    span = max(float(solution.mdp.terminal_cost[:, cost].max()), 1e-9)
    axes.bar(values, mass, width=span / 50, color=colour, alpha=0.8)
    labels: dict[float, list[str]] = {}
    for p, x in zip(QUANTILES, quantile(values, np.array(QUANTILES), mass), strict=True):
        labels.setdefault(float(x), []).append(f"{100 * p:g} %")
    top = 1.35 * float(mass.max())
    for x, names in labels.items():
        axes.axvline(x, color=GREY, linewidth=0.8, linestyle=":")
        axes.text(x, top, ", ".join(names) + " ", rotation=90, va="top", ha="right", fontsize=8, color=GREY)
    risk = float(solution.statement.spectra[cost].risk(sums, distribution))
    axes.axvline(risk, color=ORANGE, linewidth=2, label=f"{_measure_name(solution, cost)} = {risk:.4g}")
    axes.axvline(limit, color=RED, linestyle="--", label=f"limit {limit:g}")
    axes.set(xlim=(-0.04 * span, 1.04 * span), ylim=(0, top))
    axes.legend(frameon=False, loc="center right", fontsize=9)
