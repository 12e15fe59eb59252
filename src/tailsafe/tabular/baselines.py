"""What simpler formulations of the same limit would choose, solved exactly: the reason for this method.

- The mean: keep E[cost] under the limit. Says nothing about bad days.
- Expected state-wise risk: keep E_{s0}[R(cost | s0)] under the limit, the risk of each start state by itself, averaged.
  A spectral risk is concave in the distribution, so the average of the parts is below the risk of the whole: a policy
  whose true risk is far above the limit can meet it.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from tailsafe.errors import InputError
from tailsafe.risk.step import StepSpectrum
from tailsafe.tabular.augmented import DEFAULT_MEMORY_LIMIT, AugmentedMDP, augment
from tailsafe.tabular.betas import sorted_tuples
from tailsafe.tabular.lp import OccupancyLP
from tailsafe.tabular.problem import FiniteCMDP
from tailsafe.tabular.values import occupancy

MOST_PROGRAMS = 5000


@dataclass(frozen=True, eq=False)
class Baseline:
    """The exact optimum of another formulation: its J_R and its discounted cost sums with their probabilities (K,)."""

    name: str
    reward: float
    costs: np.ndarray
    distribution: np.ndarray


def best_for_the_mean(mdp: AugmentedMDP, limit: float) -> Baseline | None:
    """max J_R subject to E[cost] <= limit, for a problem with one cost; None if infeasible."""
    inner = OccupancyLP(mdp).maximise_reward(mdp.terminal_cost, np.array([limit]))
    if inner.policy is None:
        return None
    return Baseline("limit on the mean", inner.reward, mdp.terminal_cost[:, 0], occupancy(mdp, inner.policy)[-1])


def best_for_state_wise_risk(
    problem: FiniteCMDP, spectrum: StepSpectrum, limit: float, memory_limit: float = DEFAULT_MEMORY_LIMIT
) -> Baseline | None:
    """max J_R subject to E_{s0}[R(cost | s0)] <= limit, for a problem with one cost; None if infeasible.

    The start state is made part of the state and gets a cost of its own, zero when another one was drawn. With a beta
    per start state the constraint is sum_s0 E[g_{beta_s0}(D_s0)] + rho(s0) I(beta_s0) <= limit: linear, as g_beta(0) =
    0.
    """
    mdp = augment(_with_start_in_state(problem), memory_limit)
    starts = np.flatnonzero(problem.initial)
    sums = [mdp.attainable(i) for i in range(starts.size)]
    programs = math.prod(math.comb(x.size + spectrum.cells - 2, spectrum.cells - 1) for x in sums)
    if programs > MOST_PROGRAMS:
        raise InputError(f"the state-wise comparison needs {programs} linear programs, more than {MOST_PROGRAMS}")
    tuples = [sorted_tuples(x, spectrum.cells - 1) for x in sums]
    program = OccupancyLP(mdp)
    best = None
    for betas in itertools.product(*tuples):
        constant = sum(
            rho * spectrum.conjugate_integral(beta) for rho, beta in zip(problem.initial[starts], betas, strict=True)
        )
        if constant > limit:
            continue
        value = sum(spectrum.g_beta(mdp.terminal_cost[:, i], beta) for i, beta in enumerate(betas))
        inner = program.maximise_reward(np.asarray(value)[:, None], np.array([limit - constant]))
        if inner.policy is not None and (best is None or inner.reward > best.reward):
            best = inner
    if best is None or best.policy is None:
        return None
    distribution = occupancy(mdp, best.policy)[-1]
    return Baseline("limit on expected state-wise risk", best.reward, mdp.terminal_cost.sum(1), distribution)


def _with_start_in_state(problem: FiniteCMDP) -> FiniteCMDP:
    """States (s0, s) for every possible start s0, and one copy of the cost per start."""
    starts = np.flatnonzero(problem.initial)
    blocks, states = starts.size, problem.states
    transitions = np.zeros((blocks, states, problem.actions, blocks, states))
    initial = np.zeros((blocks, states))
    costs = np.zeros((blocks, blocks, states, problem.actions))
    for i, start in enumerate(starts):
        transitions[i, :, :, i] = problem.transitions
        initial[i, start] = problem.initial[start]
        costs[i, i] = problem.costs[0]
    size = blocks * states
    return FiniteCMDP(
        problem.horizon,
        problem.discount,
        initial.reshape(size),
        transitions.reshape(size, problem.actions, size),
        np.tile(problem.rewards, (blocks, 1)),
        costs.reshape(blocks, size, problem.actions),
    )
