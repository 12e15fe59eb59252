"""The theorem, tried: on random problems the algorithm's own policy reaches the LP optimum and the sampler finds beta.

Each problem is drawn from its number: 2-4 states, 2-3 actions, horizon 3-6, one or two binary costs, CVaR, Pow or Wang
with up to 3 cells, and limits at 80 % of what the uniform policy risks. Numbers whose problem is infeasible, or whose
limits do not bind (the optimum loses less than 1 % of the unconstrained reward), are left out of the list below: they
would test nothing. `test_the_list_is_complete` checks that no other number up to the last was left out.
"""

import numpy as np
import pytest

import tailsafe as ts
from tailsafe.errors import InputError
from tailsafe.tabular import augment
from tailsafe.tabular.betas import beta_set
from tailsafe.tabular.certificate import certify
from tailsafe.tabular.lp import OccupancyLP
from tailsafe.tabular.solve import state_problem
from tailsafe.tabular.srcpo import Settings
from tailsafe.tabular.values import occupancy
from tests.tabular.problems import random_problem

FAMILIES = ["cvar:0.5", "cvar:0.75", "pow:0.5", "pow:0.75", "wang:0.5", "wang:1.0"]
BINDING = [0, 3, 6, 8, 9, 10, 13, 15, 16, 18, 19, 21, 22, 24, 26, 27, 28, 31]
MORE = [4, 29, 33, 35, 36, 37, 40, 42, 45, 50, 51, 53, 55, 58, 59, 60, 62, 63, 64, 65, 66, 69]
RELATIVE = 1e-3


def draw(number):
    """Problem, measure, limits and cells of a number."""
    rng = np.random.default_rng(number)
    states, actions, costs = rng.integers(2, 5), rng.integers(2, 4), rng.integers(1, 3)
    horizon = rng.integers(3, 7) if costs == 1 else rng.integers(3, 5)
    # Three cells where the product of the constraints' betas stays small.
    cells = 3 if costs == 1 and horizon <= 4 else 2
    problem = random_problem(number, states, actions, int(horizon), costs)
    measure = ts.parse_spectrum(FAMILIES[number % len(FAMILIES)])
    mdp = augment(problem)
    uniform = [np.full(layer.reward.shape, 1 / actions) for layer in mdp.layers]
    distribution = occupancy(mdp, uniform)[-1]
    steps = measure.discretize(cells)
    limits = [0.8 * float(steps.risk(sums, distribution)) for sums in mdp.terminal_cost.T]
    return problem, measure, limits, cells


def binds(number):
    """Whether the limits can be met and cost at least 1 % of the reward."""
    problem, measure, limits, cells = draw(number)
    mdp = augment(problem)
    spectra = state_problem(problem, measure, limits, cells).spectra
    free = OccupancyLP(mdp).maximise_reward(mdp.terminal_cost, mdp.terminal_cost.max(0)).reward
    optimum = certify(mdp, beta_set(mdp, spectra, limits), limits).optimum
    return bool(np.isfinite(optimum) and free - optimum >= 0.01 * free)


@pytest.mark.parametrize("number", [*BINDING, *(pytest.param(n, marks=pytest.mark.slow) for n in MORE)])
def test_converges_to_the_lp_optimum(number):
    problem, measure, limits, cells = draw(number)
    solution = ts.solve_tabular(problem, measure, limits, cells=cells)
    assert solution.certificate.exhaustive
    assert solution.feasible
    assert np.all(np.array(solution.risks) <= np.array(limits) * (1 + 1e-9))
    assert -1e-9 <= solution.gap <= RELATIVE * solution.optimum
    optimal = solution.certificate.optimal_betas(RELATIVE * solution.optimum)
    assert solution.learning.sampler[optimal].sum() > 0.95


@pytest.mark.slow
def test_the_list_is_complete():
    assert [n for n in range(max(MORE) + 1) if binds(n)] == BINDING + MORE


@pytest.mark.parametrize("strategy", ["sdac", "crpo", "p3o"])
@pytest.mark.parametrize("number", [16, 27])
def test_every_strategy_converges(strategy, number):
    """The theorem is about a class of weights, of which the proposed ones are one choice; 16 has two constraints."""
    problem, measure, limits, cells = draw(number)
    solution = ts.solve_tabular(problem, measure, limits, cells=cells, settings=Settings(strategy=strategy))
    assert solution.feasible
    assert solution.gap <= RELATIVE * abs(solution.optimum)


@pytest.mark.parametrize("strategy", ["cpo", "pcpo", "ipo"])
def test_strategies_for_one_constraint_converge_and_refuse_two(strategy):
    problem, measure, limits, cells = draw(27)
    settings = Settings(strategy=strategy)
    solution = ts.solve_tabular(problem, measure, limits, cells=cells, settings=settings)
    assert solution.feasible
    assert solution.gap <= RELATIVE * abs(solution.optimum)
    problem, measure, limits, cells = draw(16)
    with pytest.raises(InputError, match=f"strategy {strategy} takes one constraint; this problem has 2"):
        ts.solve_tabular(problem, measure, limits, cells=cells, settings=settings)


def test_an_unknown_strategy_is_refused():
    with pytest.raises(InputError, match="unknown strategy 'best'; there are: proposed, sdac"):
        Settings(strategy="best")
