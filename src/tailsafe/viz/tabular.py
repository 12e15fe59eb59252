"""A tabular run: what was learned, which beta the sampler chose, and the costs of the final policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tailsafe.risk import quantile
from tailsafe.tabular.solution import Learning, TabularSolution
from tailsafe.viz.figures import BLUE, GREY, ORANGE, RED, new_figure, save, tidy

COST_COLOURS = (ORANGE, "#8e44ad", "#16a085", "#2c3e50")
QUANTILES = (0.5, 0.75, 0.9, 0.99)


def draw_solution(solution: TabularSolution, path: Path) -> None:
    """Reward and risk per iteration, the sampler's mass over beta, and the final cost distributions."""
    learning = solution.learning
    if learning is None:
        raise ValueError("an infeasible problem has no run to draw")
    costs = solution.statement.problem.num_costs
    figure = new_figure(13.5, 3.6 * max(2, costs) if costs > 1 else 6.6)
    grid = figure.add_gridspec(2, 3 if costs == 1 else 2 + 1)
    _draw_reward(figure.add_subplot(grid[0, 0]), solution, learning)
    _draw_risks(figure.add_subplot(grid[1, 0]), solution, learning)
    _draw_sampler(figure.add_subplot(grid[0, 1]), solution, learning)
    _draw_entropy(figure.add_subplot(grid[1, 1]), learning)
    right = grid[:, 2].subgridspec(costs, 1)
    for i in range(costs):
        _draw_costs(figure.add_subplot(right[i]), solution, i)
    save(figure, path)


def _draw_reward(axes: Any, solution: TabularSolution, learning: Learning) -> None:
    axes.plot(np.arange(1, learning.iterations + 1), learning.trace.reward, color=BLUE, linewidth=1)
    axes.axhline(
        solution.certificate.optimum,
        color=GREY,
        linestyle="--",
        label=f"optimum {solution.certificate.optimum:.4g}",
    )
    axes.set_xscale("log")
    axes.legend(frameon=False, loc="lower right")
    tidy(axes, "Expected reward of the likeliest policy", "iteration", "discounted reward")


def _draw_risks(axes: Any, solution: TabularSolution, learning: Learning) -> None:
    steps = np.arange(1, learning.iterations + 1)
    for i, limit in enumerate(solution.statement.limits):
        colour = COST_COLOURS[i % len(COST_COLOURS)]
        name = f"{solution.statement.measures[i]} of cost {i}"
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


def _draw_sampler(axes: Any, solution: TabularSolution, learning: Learning) -> None:
    """Bars over beta where it is one number, else over the rank of the joint beta by its certified value."""
    optimal = solution.certificate.optimal_betas(solution.tolerance)
    colours = np.where(optimal, BLUE, GREY)
    betas = np.concatenate(solution.betas.betas, axis=1)
    if betas.shape[1] == 1:
        position, label = betas[:, 0], "β"
        width = 0.8 * np.min(np.diff(np.unique(position)), initial=max(0.05 * np.ptp(position), 1e-3) or 1.0)
        width = max(width, 0.012 * float(np.ptp(position)))
    else:
        order = np.argsort(-solution.certificate.values, kind="stable")
        position, label, width = np.argsort(order), "β, ranked by certified optimum (0 = best)", 0.8
    axes.bar(position, learning.sampler, width=width, color=colours)
    if betas.shape[1] != 1:
        axes.set_xlim(-1, min(len(solution.betas), 40))
    axes.set_ylim(0, 1)
    tidy(axes, "Where the sampler puts its mass (blue: certified optimal)", label, "probability ξ(β)")


def _draw_entropy(axes: Any, learning: Learning) -> None:
    axes.plot(np.arange(1, learning.iterations + 1), learning.trace.entropy, color=BLUE, linewidth=1)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    tidy(axes, "The sampler makes up its mind", "iteration", "entropy of ξ (nats)")


def _draw_costs(axes: Any, solution: TabularSolution, cost: int) -> None:
    best = solution.best
    limit = solution.statement.limits[cost]
    if best is None:
        axes.text(0.5, 0.5, "no feasible policy yet", ha="center", transform=axes.transAxes)
        tidy(axes, f"Cost {cost} of the final policy", "discounted cost", "probability")
        return
    sums = solution.mdp.terminal_cost[:, cost]
    values, where = np.unique(sums, return_inverse=True)
    mass = np.bincount(where, best.terminal_law)
    span = max(float(np.ptp(values)), 1e-9)
    axes.bar(values, mass, width=span / 60, color=BLUE, alpha=0.75)
    marks = quantile(values, np.array(QUANTILES), mass)
    seen: dict[float, list[str]] = {}
    for p, x in zip(QUANTILES, marks, strict=True):
        seen.setdefault(float(x), []).append(f"{100 * p:g} %")
    top = 1.18 * float(mass.max())
    for x, names in seen.items():
        axes.axvline(x, color=GREY, linewidth=0.8, linestyle=":")
        axes.text(x, top, " " + ", ".join(names), rotation=90, va="top", ha="right", fontsize=8, color=GREY)
    risk = best.risks[cost]
    axes.axvline(risk, color=ORANGE, label=f"{solution.statement.measures[cost]} = {risk:.4g}")
    axes.axvline(limit, color=RED, linestyle="--", label=f"limit {limit:g}")
    axes.set_ylim(0, top)
    axes.legend(frameon=False, loc="upper center")
    tidy(axes, f"Cost {cost} of the final policy, with quantiles", "discounted cost", "probability")
