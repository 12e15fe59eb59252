"""From a finite problem and its limits to the best policy, its exact risks, and a proof of its optimality gap."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import scipy.special

from tailsafe.errors import InputError
from tailsafe.optimization.strategies import SINGLE_CONSTRAINT
from tailsafe.risk import SpectralRisk
from tailsafe.tabular import srcpo
from tailsafe.tabular.augmented import DEFAULT_MEMORY_LIMIT, GIB, AugmentedMDP, augment
from tailsafe.tabular.betas import DEFAULT_MAX_BETAS, BetaSet, beta_set, smallest_risk
from tailsafe.tabular.certificate import Certificate, certify
from tailsafe.tabular.problem import FiniteCMDP
from tailsafe.tabular.solution import LearnedPolicy, Learning, Statement, TabularSolution, Trace
from tailsafe.tabular.values import expected_reward, occupancy

PAPER_PENALTY = 10.0
CHUNK = 250
ENOUGH_MASS = 0.95
MOST_COSTS = 8

# Called with a phase ("optimum" or "policy"), how much of it is done, and how much there is at most.
ProgressCallback = Callable[[str, int, int], None]


def solve_tabular(
    problem: FiniteCMDP,
    risks: SpectralRisk | Sequence[SpectralRisk],
    limits: float | Sequence[float],
    *,
    cells: int = 3,
    iterations: int = 20_000,
    tolerance: float = 5e-4,
    settings: srcpo.Settings | None = None,
    max_betas: int = DEFAULT_MAX_BETAS,
    memory_limit: float = DEFAULT_MEMORY_LIMIT,
    progress: ProgressCallback = lambda phase, done, total: None,
) -> TabularSolution:
    """Maximise the expected discounted reward subject to `risks[i](discounted sum of cost i) <= limits[i]`.

    Args:
      problem: states, actions, rewards and costs.
      risks: one measure per cost, or one for all.
      limits: one per cost, or one for all.
      cells: levels of the step spectra (CVaR needs 2, the mean 1).
      iterations: at most this many; it stops earlier once the certified gap is below `tolerance`, relative to the
        optimum, and the sampler has 95 % of its mass on betas that are optimal within it.
      tolerance: see `iterations`.
      settings: of the algorithm: step lengths, sampler, weights.
      max_betas: beyond this many, beta is searched on a coarser grid.
      memory_limit: bytes.
      progress: called with a phase, what is done of it, and how much there is.

    Returns:
      The policy with its exact risks, the optimum by linear programming and the gap; or that nothing is feasible.

    Examples:
      >>> solution = ts.solve_tabular(ts.FiniteCMDP.load("examples/two_roads.json"), ts.CVaR(0.75), 2.0)
      >>> solution.feasible, bool(0 <= solution.gap < 0.01)
      (True, True)
    """
    started = time.perf_counter()
    if iterations < 1:
        raise InputError(f"iterations is {iterations}; it must be at least 1")
    if not tolerance > 0:
        raise InputError(f"tolerance is {tolerance:g}; it must be positive")
    if problem.num_costs > MOST_COSTS:
        # A dual variable per cost: their combinations, and the active sets of their weights, are all gone through.
        raise InputError(f"this problem has {problem.num_costs} costs; the exact method takes up to {MOST_COSTS}")
    settings = settings or srcpo.Settings()
    statement = state_problem(problem, risks, limits, cells)
    if settings.strategy in SINGLE_CONSTRAINT and problem.num_costs > 1:
        raise InputError(f"strategy {settings.strategy} takes one constraint; this problem has {problem.num_costs}")
    mdp = augment(problem, memory_limit)
    betas = beta_set(mdp, statement.spectra, statement.limits, max_betas)
    _check_memory(mdp, betas, memory_limit)
    certificate = certify(mdp, betas, statement.limits, lambda done: progress("optimum", done, len(betas)))
    learning, wanted_gap = None, 0.0
    if certificate.feasible:
        wanted_gap = tolerance * max(abs(certificate.optimum), 1e-3 * statement.reward_scale)
        learning = _learn(
            statement,
            mdp,
            betas,
            certificate,
            settings,
            iterations,
            wanted_gap,
            lambda done: progress("policy", done, iterations),
        )
    # Without a policy to show, say how much risk there has to be.
    smallest = None
    if learning is None or learning.best is None:
        smallest = [smallest_risk(mdp, spectrum, i) for i, spectrum in enumerate(statement.spectra)]
    seconds = time.perf_counter() - started
    return TabularSolution(statement, mdp, betas, certificate, wanted_gap, seconds, learning, smallest)


def state_problem(
    problem: FiniteCMDP,
    risks: SpectralRisk | Sequence[SpectralRisk],
    limits: float | Sequence[float],
    cells: int,
) -> Statement:
    """Pair each cost with its measure, step spectrum and limit; one value applies to all costs."""
    measures = _one_per_cost("risk measure", risks, SpectralRisk, problem.num_costs)
    bounds = _one_per_cost("limit", limits, int | float | np.number, problem.num_costs)
    for i, limit in enumerate(bounds):
        if not np.isfinite(limit):
            raise InputError(f"limit {i} is {limit}; it must be finite")
    spectra = tuple(measure.discretize(cells) for measure in measures)
    return Statement(problem, measures, spectra, tuple(float(x) for x in bounds))


def _learn(
    statement: Statement,
    mdp: AugmentedMDP,
    betas: BetaSet,
    certificate: Certificate,
    settings: srcpo.Settings,
    iterations: int,
    wanted_gap: float,
    progress: Callable[[int], None],
) -> Learning:
    """Run the algorithm until the certificate is satisfied, in float64 whatever JAX's default precision is."""
    problem = statement.problem
    with jax.enable_x64(True):
        arrays, reward_unit, cost_units = srcpo.normalise(mdp, betas, statement.limits)
        rates = srcpo.Rates.of(settings, _penalty(settings, certificate) * cost_units / reward_unit)
        state = srcpo.start(arrays)
        optimal = certificate.optimal_betas(wanted_gap)
        traces = []
        done = 0
        while done < iterations:
            count = min(CHUNK, iterations - done)
            fixed = (problem.discount, problem.effective_horizon, count, settings.strategy)
            state, trace = srcpo.iterate(state, arrays, rates, *fixed)
            done += count
            traces.append(jax.device_get(trace))
            progress(done)
            sampler = np.exp(np.asarray(state.sampler))
            gaps = certificate.optimum - np.asarray(state.best_reward) * reward_unit
            if gaps[np.argmax(sampler)] <= wanted_gap and sampler[optimal].sum() >= ENOUGH_MASS:
                break
        best = _best_policy(statement, mdp, jax.device_get(state))
    limits = np.asarray(statement.limits)
    risks = np.concatenate([t.excess for t in traces]) * cost_units + limits
    reward = np.concatenate([t.reward for t in traces]) * reward_unit
    return Learning(done, Trace(reward, risks, np.concatenate([t.entropy for t in traces])), sampler, best)


def _best_policy(statement: Statement, mdp: AugmentedMDP, state: srcpo.State) -> LearnedPolicy | None:
    """The best feasible iterate of the most likely beta that has one, evaluated from its action probabilities."""
    found = np.isfinite(state.best_reward)
    if not np.any(found):
        return None
    index = int(np.argmax(np.where(found, state.sampler, -np.inf)))
    policy = [scipy.special.softmax(logits[..., index], axis=1) for logits in state.best]
    distribution = occupancy(mdp, policy)[-1]
    sums = list(mdp.terminal_cost.T)
    return LearnedPolicy(
        policy,
        expected_reward(mdp, policy),
        [float(s.risk(x, distribution)) for s, x in zip(statement.spectra, sums, strict=True)],
        [float(m.risk(x, distribution)) for m, x in zip(statement.measures, sums, strict=True)],
        distribution,
        index,
    )


def _penalty(settings: srcpo.Settings, certificate: Certificate) -> float:
    """K, which must exceed the multipliers of the inner problems for J(pi; beta) to rank the betas rightly."""
    if settings.penalty is not None:
        return settings.penalty
    finite = certificate.multipliers[np.isfinite(certificate.multipliers)]
    return max(PAPER_PENALTY, 1.5 * float(finite.max(initial=0.0)))


def _check_memory(mdp: AugmentedMDP, betas: BetaSet, memory_limit: float) -> None:
    """Refuse before the learner's tables, and the gathers of its largest layer, outgrow the limit."""
    columns = 1 + mdp.problem.num_costs
    per_pair = columns + columns * (columns + 1) // 2
    tables = 4 * mdp.nodes * mdp.problem.actions
    largest = max(layer.reward.size for layer in mdp.layers) * per_pair * 3
    needed = 8.0 * len(betas) * (tables + largest)
    if needed > memory_limit:
        raise InputError(
            f"{len(betas)} betas on {mdp.nodes} augmented states need {needed / GIB:.3g} GiB; the memory limit is "
            f"{memory_limit / GIB:.3g} GiB: raise it or lower max_betas"
        )


def _one_per_cost(name: str, values: Any, kind: Any, costs: int) -> tuple[Any, ...]:
    """`values` as a tuple with one of type `kind` per cost; a single one is repeated."""
    items = tuple(values) if isinstance(values, list | tuple | np.ndarray) else (values,)
    for item in items:
        if not isinstance(item, kind):
            raise InputError(f"{item!r} is not a {name}")
    if len(items) == 1:
        return items * costs
    if len(items) != costs:
        raise InputError(f"{len(items)} {name}s for {costs} costs; give one for all or one for each")
    return items
