"""The solver end to end on problems whose answer is known by hand, and where the classical answers are wrong."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import tailsafe as ts
from tailsafe.tabular import Settings, augment
from tailsafe.tabular.augmented import GIB
from tailsafe.tabular.baselines import best_for_state_wise_risk, best_for_the_mean
from tailsafe.tabular.values import expected_reward, occupancy
from tests.tabular.problems import gamble, random_problem

TWO_ROADS = Path(__file__).parents[2] / "examples" / "two_roads.json"
LIMIT = 2.0
CVAR = ts.CVaR(0.75)


def test_gamble_by_hand():
    solution = ts.solve_tabular(gamble(), CVAR, 2.0)
    assert solution.status == "optimal"
    assert solution.feasible
    assert solution.optimum == pytest.approx(0.5, rel=1e-9)
    assert solution.reward == pytest.approx(0.5, rel=5e-4)
    assert solution.beta == [[0.0]]
    assert solution.risks[0] <= 2.0 + 1e-9
    # The policy is in the augmented state space: layer 0 holds the single start state.
    assert solution.policy[0][0, 1] == pytest.approx(0.5, rel=1e-3)


def test_with_the_mean_as_risk_it_is_an_expectation_constrained_problem():
    # The expected cost of gambling with probability q is q, so a limit of 0.3 allows q = 0.3.
    solution = ts.solve_tabular(gamble(), ts.Mean(), 0.3)
    assert solution.reward == pytest.approx(0.3, rel=1e-3)
    assert solution.beta == [[]]


def test_a_limit_that_never_binds_gives_the_unconstrained_optimum():
    solution = ts.solve_tabular(gamble(), CVAR, 100.0)
    assert solution.reward == pytest.approx(1.0, rel=1e-3)
    assert solution.risks == pytest.approx([4.0], rel=1e-3)


@pytest.fixture(scope="module")
def two_roads():
    return ts.solve_tabular(ts.FiniteCMDP.load(TWO_ROADS), CVAR, LIMIT)


def test_the_best_policy_for_the_mean_breaks_the_risk_limit(two_roads):
    baseline = best_for_the_mean(two_roads.mdp, LIMIT)
    assert baseline.distribution @ baseline.costs <= LIMIT  # fine on average
    assert CVAR.risk(baseline.costs, baseline.distribution) > 1.4 * LIMIT
    assert two_roads.risks[0] <= LIMIT + 1e-9


def test_the_best_policy_for_expected_state_wise_risk_breaks_it_too(two_roads):
    baseline = best_for_state_wise_risk(two_roads.statement.problem, CVAR.discretize(2), LIMIT)
    assert baseline.reward > two_roads.optimum  # better looking,
    assert CVAR.risk(baseline.costs, baseline.distribution) > 1.2 * LIMIT  # and unsafe


def test_state_wise_risk_with_one_start_is_the_risk():
    """With a single start state the two formulations are one: the baseline's optimum is the certified optimum."""
    baseline = best_for_state_wise_risk(gamble(), CVAR.discretize(2), 2.0)
    assert baseline.reward == pytest.approx(0.5, rel=1e-9)
    assert best_for_state_wise_risk(gamble(), CVAR.discretize(2), -1.0) is None
    assert best_for_the_mean(augment(gamble()), -1.0) is None


def test_state_wise_optimum_against_its_definition(two_roads):
    """The baseline's own constraint, recomputed from a policy on the split problem by conditioning on the start."""
    problem = two_roads.statement.problem
    baseline = best_for_state_wise_risk(problem, CVAR.discretize(2), LIMIT)
    # Risks of each road by itself under the certified policy: their average is below the true risk (concavity).
    mdp, policy = two_roads.mdp, two_roads.policy
    parts = []
    for start in (0, 1):
        alone = augment(dataclasses.replace(problem, initial=np.eye(4)[start]))
        index = [
            [
                np.flatnonzero((big.state == s) & np.isclose(big.cost_so_far[:, 0], d))[0]
                for s, d in zip(x.state, x.cost_so_far[:, 0], strict=True)
            ]
            for x, big in zip(alone.layers, mdp.layers, strict=True)
        ]
        distribution = occupancy(alone, [pi[k] for pi, k in zip(policy, index, strict=True)])[-1]
        parts.append(CVAR.risk(alone.terminal_cost[:, 0], distribution))
    assert np.mean(parts) < two_roads.risks[0] - 0.1
    assert np.mean(parts) <= LIMIT  # so our policy is feasible for the baseline, whose reward must be at least as high
    assert baseline.reward >= two_roads.reward - 1e-9


def test_two_roads_is_solved(two_roads):
    assert two_roads.status == "optimal"
    assert two_roads.certificate.exhaustive
    assert two_roads.gap <= 5e-4 * two_roads.optimum
    assert two_roads.sampler_mass > 0.95
    assert 0 < two_roads.beta[0][0] < LIMIT


def test_reported_numbers_are_those_of_the_returned_policy(two_roads):
    mdp, policy = two_roads.mdp, two_roads.policy
    assert expected_reward(mdp, policy) == two_roads.reward
    distribution = occupancy(mdp, policy)[-1]
    assert CVAR.risk(mdp.terminal_cost[:, 0], distribution) == pytest.approx(two_roads.risks[0], rel=1e-12)
    for pi in policy:
        np.testing.assert_allclose(pi.sum(1), 1.0, rtol=1e-12)


def test_infeasible_problems_name_the_smallest_risk():
    problem = ts.FiniteCMDP.load(TWO_ROADS)
    solution = ts.solve_tabular(problem, CVAR, 1.5)
    assert solution.status == "infeasible"
    assert not solution.feasible
    assert solution.optimum is None
    assert solution.learning is None
    # Always slow is the safest there is.
    mdp = solution.mdp
    slow = [np.eye(2)[np.zeros(layer.state.size, int)] for layer in mdp.layers]
    smallest = CVAR.risk(mdp.terminal_cost[:, 0], occupancy(mdp, slow)[-1])
    assert [s.value for s in solution.smallest_risks] == pytest.approx([smallest], rel=1e-9)
    assert ts.solve_tabular(problem, CVAR, smallest * 1.01, iterations=10).certificate.feasible


def test_units_of_reward_and_cost_do_not_matter():
    base = random_problem(0, horizon=4)
    scaled = ts.FiniteCMDP(4, 0.9, base.initial, base.transitions, 1000 * base.rewards, 0.01 * base.costs)
    one, two = ts.solve_tabular(base, CVAR, 2.5), ts.solve_tabular(scaled, CVAR, 0.025)
    assert two.status == one.status == "optimal"
    assert two.optimum == pytest.approx(1000 * one.optimum, rel=1e-6)
    assert two.reward == pytest.approx(two.optimum, rel=1e-3)
    assert two.risks[0] <= 0.025 * (1 + 1e-9)


def test_same_input_same_answer():
    first, second = (ts.solve_tabular(gamble(), CVAR, 2.0).to_json() for _ in range(2))
    assert {**first, "seconds": 0} == {**second, "seconds": 0}


def test_a_coarse_grid_says_so(two_roads):
    solution = ts.solve_tabular(ts.FiniteCMDP.load(TWO_ROADS), CVAR, LIMIT, max_betas=2)
    assert solution.to_json()["certificate"] == "grid"
    assert solution.feasible
    assert solution.status == "feasible"  # good on the grid, not proved to be the best of all
    assert solution.optimum - 1e-9 <= two_roads.optimum <= solution.certificate.upper_bound + 1e-9
    assert solution.to_json()["optimum_upper_bound"] > solution.optimum


def test_steps_that_only_approximate_are_told_apart_from_the_measure():
    solution = ts.solve_tabular(ts.FiniteCMDP.load(TWO_ROADS), ts.Wang(1.0), 2.0, cells=2)
    result = solution.to_json()
    assert result["feasible"]
    assert result["risks"][0] <= 2.0 + 1e-9 < result["spectrum_risks"][0]
    assert not result["feasible_as_given"]


def test_the_policy_can_be_asked(two_roads):
    start = two_roads.action_probabilities(0, state=1, cost_so_far=0.0)
    assert start.sum() == pytest.approx(1.0)
    # After a step in the ditch (cost 0.95) on the mountain: a state of layer 2.
    layer = two_roads.mdp.layers[2]
    row = int(np.flatnonzero((layer.state == 1) & np.isclose(layer.cost_so_far[:, 0], 0.95))[0])
    np.testing.assert_array_equal(two_roads.action_probabilities(2, 1, [0.95]), two_roads.policy[2][row])
    for question in ((0, 1, 0.5), (0, 3, 0.0), (6, 0, 0.0)):
        with pytest.raises(ts.InputError, match="step"):
            two_roads.action_probabilities(*question)


def test_a_rollout_of_the_policy_has_the_certified_reward_and_risk(two_roads):
    """The policy used as a user would, on simulated episodes."""
    problem, rng = two_roads.statement.problem, np.random.default_rng(0)
    rewards, costs = [], []
    for _ in range(3000):
        state, reward, cost = rng.choice(4, p=problem.initial), 0.0, 0.0
        for t in range(problem.horizon):
            action = rng.choice(2, p=two_roads.action_probabilities(t, state, cost))
            reward += problem.discount**t * problem.rewards[state, action]
            cost += problem.discount**t * problem.costs[0, state, action]
            state = rng.choice(4, p=problem.transitions[state, action])
        rewards.append(reward)
        costs.append(cost)
    # Four standard errors.
    assert np.mean(rewards) == pytest.approx(two_roads.reward, abs=4 * np.std(rewards) / np.sqrt(3000))
    low, high = CVAR.risk_interval(costs, 0.999, upper=6.0)
    assert low <= two_roads.risks[0] <= high


def test_mixed_measures_each_with_its_own_limit():
    problem = random_problem(5, horizon=3, costs=2)
    solution = ts.solve_tabular(problem, [ts.CVaR(0.5), ts.Wang(0.5)], [1.5, 1.8])
    assert [s.cells for s in solution.statement.spectra] == [2, 3]
    assert solution.feasible
    assert [len(b) for b in solution.beta] == [1, 2]
    assert np.all(np.array(solution.risks) <= np.array([1.5, 1.8]) + 1e-9)


def test_too_few_iterations_are_reported_honestly():
    # One iteration from the uniform policy, which breaks the limit: there is nothing feasible to return.
    solution = ts.solve_tabular(ts.FiniteCMDP.load(TWO_ROADS), CVAR, LIMIT, iterations=1)
    assert solution.status == "unfinished"
    assert not solution.feasible
    assert solution.reward is None
    assert solution.optimum == pytest.approx(3.154757, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"limits": [1.0, 2.0]}, "2 limits for 1 costs"),
        ({"limits": float("nan")}, "limit 0 is nan"),
        ({"limits": "2.0"}, "is not a limit"),
        ({"risks": "cvar:0.75"}, "is not a risk measure"),
        ({"risks": [CVAR, CVAR]}, "2 risk measures for 1 costs"),
        ({"iterations": 0}, "iterations is 0"),
        ({"tolerance": 0.0}, "tolerance is 0"),
        ({"max_betas": 0}, "max_betas is 0"),
        ({"cells": 0}, "whole number of at least 1"),
        ({"memory_limit": 1e-7 * GIB}, "memory limit"),
    ],
)
def test_bad_arguments_are_refused(arguments, reason):
    with pytest.raises(ts.InputError, match=reason):
        ts.solve_tabular(**{"problem": gamble(), "risks": CVAR, "limits": 2.0} | arguments)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"decay": 0.5}, "Robbins-Monro"), ({"radius": 0.0}, "radius is 0"), ({"clip": (2.0, 1.0)}, "clip is")],
)
def test_bad_settings_are_refused(settings, reason):
    with pytest.raises(ts.InputError, match=reason):
        Settings(**settings)
