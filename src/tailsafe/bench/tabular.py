"""How the cost of the exact tabular method grows with the horizon and the number of betas."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from tailsafe.risk import CVaR
from tailsafe.tabular import srcpo
from tailsafe.tabular.augmented import augment
from tailsafe.tabular.betas import beta_set
from tailsafe.tabular.certificate import certify
from tailsafe.tabular.problem import FiniteCMDP

ITERATIONS = 100
REPEATS = 3


def bench_tabular(horizons: Sequence[int] = (3, 4, 5, 6, 7, 8), betas: Sequence[int] = (16, 64)) -> dict[str, Any]:
    """One row per horizon and cap on the number of betas.

    work is the number of (augmented state, action, successor, beta) visits of one iteration; time_ratio and work_ratio
    compare a row with the first one, so a time_ratio below the work_ratio means the fixed cost is being amortised.
    """
    rows: list[dict[str, Any]] = []
    for horizon in horizons:
        problem = _problem(horizon)
        mdp = augment(problem)
        limit = [float(np.median(mdp.terminal_cost[:, 0])) + 1.0]
        steps = [CVaR(0.75).discretize(2)]
        sizes = set()
        for cap in betas:
            chosen = beta_set(mdp, steps, limit, cap)
            if len(chosen) in sizes:
                continue  # the horizon has no more betas than that
            sizes.add(len(chosen))
            started = time.perf_counter()
            certify(mdp, chosen, limit)
            lp_seconds = time.perf_counter() - started
            with jax.enable_x64(True):
                arrays, _, _ = srcpo.normalise(mdp, chosen, limit)
                rates = srcpo.Rates.of(srcpo.Settings(), np.array([10.0]))
                fixed = (arrays, rates, problem.discount, problem.effective_horizon, ITERATIONS)
                state = srcpo.iterate(srcpo.start(arrays), *fixed)[0]
                state.sampler.block_until_ready()
                times = []
                for _ in range(REPEATS):
                    started = time.perf_counter()
                    state = srcpo.iterate(state, *fixed)[0]
                    state.sampler.block_until_ready()
                    times.append((time.perf_counter() - started) / ITERATIONS)
            work = len(chosen) * sum(layer.successor.size for layer in mdp.layers)
            rows.append(
                {
                    "horizon": horizon,
                    "augmented_states": mdp.nodes,
                    "betas": len(chosen),
                    "lp_seconds_per_beta": lp_seconds / len(chosen),
                    "iteration_seconds": min(times),
                    "time_ratio": min(times) / (rows[0]["iteration_seconds"] if rows else min(times)),
                    "work_ratio": work / (rows[0]["work"] if rows else work),
                    "work": work,
                }
            )
    return {"results": rows}


def _problem(horizon: int) -> FiniteCMDP:
    """3 states, 2 actions, one binary cost that only the second action in some states incurs."""
    rng = np.random.default_rng(0)
    transitions = rng.dirichlet(np.ones(3), size=(3, 2))
    costs = np.array([[[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]])
    return FiniteCMDP(horizon, 0.9, np.full(3, 1 / 3), transitions, rng.uniform(size=(3, 2)), costs)
