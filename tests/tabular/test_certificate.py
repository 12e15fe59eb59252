"""The linear programs, the beta sets and the smallest risks, against brute force and duality."""

import dataclasses
import itertools

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import tailsafe as ts
from tailsafe.tabular import augment
from tailsafe.tabular.betas import beta_set, smallest_risk
from tailsafe.tabular.certificate import certify
from tailsafe.tabular.lp import OccupancyLP
from tailsafe.tabular.values import evaluate_exactly, expected_reward, occupancy
from tests.tabular.problems import gamble, random_policy, random_problem

CVAR = ts.CVaR(0.75).discretize(2)


def best_lagrangian(mdp, terminal_value, multiplier):
    """max_pi J_R - multiplier E[g(D_T)] by backward induction."""
    value = -multiplier * terminal_value[:, 0] / mdp.problem.discount**mdp.problem.horizon
    for layer in reversed(mdp.layers):
        value = (layer.reward + mdp.problem.discount * (layer.probability * value[layer.successor]).sum(-1)).max(-1)
    return mdp.initial @ value


@pytest.mark.parametrize("seed", range(6))
def test_lp_optimum_equals_the_lagrangian_dual(seed):
    """Strong duality: min over the multiplier of unconstrained dynamic programs, which share no code with the LP."""
    mdp = augment(random_problem(seed, horizon=4))
    program = OccupancyLP(mdp)
    beta = np.array([1.0])
    terminal = CVAR.g_beta(mdp.terminal_cost, beta[None])
    least = -best_lagrangian(mdp, terminal, 1e9) / 1e9
    room = least + 0.5
    found = program.maximise_reward(terminal, np.array([room]))
    dual = minimize_scalar(
        lambda m: best_lagrangian(mdp, terminal, m) + m * room,
        bounds=(0, 50),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert found.reward == pytest.approx(min(dual.fun, best_lagrangian(mdp, terminal, 0.0)), rel=1e-6)
    # The LP's policy really has that reward, keeps the constraint, and its multiplier is the dual's minimiser.
    values = evaluate_exactly(mdp, found.policy, terminal)
    assert values.objective[0] == pytest.approx(found.reward, rel=1e-9)
    assert values.objective[1] <= room + 1e-9
    at_multiplier = best_lagrangian(mdp, terminal, found.multipliers[0]) + found.multipliers[0] * room
    assert at_multiplier == pytest.approx(found.reward, rel=1e-6)


def test_infeasible_inner_problem_is_recognised():
    mdp = augment(gamble())
    inner = OccupancyLP(mdp).maximise_reward(mdp.terminal_cost, np.array([-0.1]))
    assert inner.reward == -np.inf
    assert inner.policy is None


def test_gamble_by_hand():
    mdp = augment(gamble())
    betas = beta_set(mdp, [CVAR], [2.0])
    assert betas.betas[0].tolist() == [[0.0]]  # 10 is above the limit, so it cannot be part of a feasible beta
    certificate = certify(mdp, betas, [2.0])
    assert certificate.optimum == pytest.approx(0.5, rel=1e-9)
    assert certificate.exhaustive
    # One more unit of limit buys a quarter unit of reward.
    assert certificate.multipliers[0, 0] == pytest.approx(0.25, rel=1e-6)


@pytest.mark.parametrize("measure", [ts.CVaR(0.6), ts.Pow(0.6), ts.Wang(0.8)], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_no_policy_beats_the_optimum_and_some_policy_attains_it(measure, seed):
    mdp = augment(random_problem(seed, horizon=3))
    steps = measure.discretize(3)
    distribution = occupancy(mdp, random_policy(mdp, 0))[-1]
    limit = 0.9 * float(steps.risk(mdp.terminal_cost[:, 0], distribution))
    betas = beta_set(mdp, [steps], [limit], max_betas=5000)
    certificate = certify(mdp, betas, [limit])
    rng = np.random.default_rng(seed)
    deterministic = [[np.eye(2)[rng.integers(2, size=x.state.size)] for x in mdp.layers] for _ in range(300)]
    for policy in [*deterministic, *(random_policy(mdp, k) for k in range(100))]:
        risk = steps.risk(mdp.terminal_cost[:, 0], occupancy(mdp, policy)[-1])
        assert risk > limit or expected_reward(mdp, policy) <= certificate.optimum + 1e-9
    if certificate.feasible:
        k = certificate.best
        best = OccupancyLP(mdp).maximise_reward(betas.terminal_value[k], limit - betas.constant[k]).policy
        assert expected_reward(mdp, best) == pytest.approx(certificate.optimum, rel=1e-9)
        assert steps.risk(mdp.terminal_cost[:, 0], occupancy(mdp, best)[-1]) <= limit + 1e-9


def all_deterministic(mdp):
    nodes = sum(layer.state.size for layer in mdp.layers)
    for choice in itertools.product(range(mdp.problem.actions), repeat=nodes):
        flat, policy = np.array(choice), []
        for layer in mdp.layers:
            policy.append(np.eye(mdp.problem.actions)[flat[: layer.state.size]])
            flat = flat[layer.state.size :]
        yield policy


@pytest.mark.parametrize("measure", [ts.CVaR(0.5), ts.Wang(0.8), ts.Mean()], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_smallest_risk_by_brute_force(measure, seed):
    """The risk is concave in the distribution: some deterministic policy has the smallest, and there are few to try."""
    mdp = augment(random_problem(seed, states=2, horizon=2))
    steps = measure.discretize(3)
    brute = min(steps.risk(mdp.terminal_cost[:, 0], occupancy(mdp, p)[-1]) for p in all_deterministic(mdp))
    value, bound, beta = smallest_risk(mdp, steps, 0)
    assert beta.shape == (steps.cells - 1,)
    assert value == pytest.approx(brute, abs=1e-10)
    assert bound == pytest.approx(brute, abs=1e-10)


def test_betas_within_the_limit_are_all_there():
    mdp = augment(random_problem(0, horizon=4))
    steps = ts.Pow(0.6).discretize(3)
    betas = beta_set(mdp, [steps], [1.5])
    sums = mdp.attainable(0)
    expected = [b for b in itertools.combinations_with_replacement(sums, 2) if steps.conjugate_integral(b) <= 1.5]
    assert betas.exhaustive
    np.testing.assert_allclose(betas.betas[0], expected)
    assert not np.any(betas.slack)


@pytest.mark.parametrize("max_betas", [3, 10, 40])
@pytest.mark.parametrize("seed", [0, 2, 4])
def test_a_coarse_grid_brackets_the_optimum(seed, max_betas):
    mdp = augment(random_problem(seed, horizon=4))
    steps = ts.Pow(0.6).discretize(3)
    distribution = occupancy(mdp, random_policy(mdp, 0))[-1]
    limit = [0.8 * float(steps.risk(mdp.terminal_cost[:, 0], distribution))]
    exact = certify(mdp, beta_set(mdp, [steps], limit, 10_000), limit)
    grid = beta_set(mdp, [steps], limit, max_betas)
    coarse = certify(mdp, grid, limit)
    assert exact.exhaustive
    assert not grid.exhaustive
    assert len(grid) <= max_betas + 1  # the grid, and the beta of the safest policy
    assert coarse.optimum - 1e-9 <= exact.optimum <= coarse.upper_bound + 1e-9


@pytest.mark.parametrize("reward_unit", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("cost_unit", [1e-10, 1.0, 1e10])
def test_the_certificate_does_not_depend_on_units(reward_unit, cost_unit):
    """HiGHS has absolute tolerances; the programs must not."""
    base = random_problem(0, horizon=3)
    plain = augment(base)
    bound = 1.1 * smallest_risk(plain, CVAR, 0).value
    expected = certify(plain, beta_set(plain, [CVAR], [bound]), [bound]).optimum
    scaled = dataclasses.replace(base, rewards=reward_unit * base.rewards, costs=cost_unit * base.costs)
    mdp, limit = augment(scaled), [bound * cost_unit]
    certificate = certify(mdp, beta_set(mdp, [CVAR], limit), limit)
    assert np.isfinite(expected)
    assert certificate.optimum / reward_unit == pytest.approx(expected, rel=1e-7)


def test_a_grid_never_misses_that_a_problem_is_feasible():
    mdp = augment(random_problem(2, horizon=4))
    steps = ts.Pow(0.6).discretize(3)
    smallest = smallest_risk(mdp, steps, 0)
    limit = [smallest.value * 1.001]
    grid = beta_set(mdp, [steps], limit, 2)
    assert not grid.exhaustive
    assert certify(mdp, grid, limit).feasible


def test_the_beta_set_of_two_constraints_is_the_product():
    mdp = augment(random_problem(5, horizon=3, costs=2))
    spectra, limits = [CVAR, ts.Mean().discretize(1)], [1.0, 2.0]
    betas = beta_set(mdp, spectra, limits)
    assert [b.shape[1] for b in betas.betas] == [1, 0]
    assert len(betas) == np.sum(mdp.attainable(0) <= 1.0)
    np.testing.assert_allclose(betas.terminal_value[0, :, 1], mdp.terminal_cost[:, 1])
    assert betas.at(1) == [[pytest.approx(mdp.attainable(0)[1])], []]
