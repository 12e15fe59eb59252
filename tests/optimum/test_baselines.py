"""The baselines on problems with a known optimum: one that each can solve, and one made for where it goes wrong."""

import pytest

import tailsafe as ts
from tailsafe.tabular.suite import crossing, toll_or_gamble, two_roads


def learned(folder, algorithm, problem, limit, steps=250_000, **settings):
    """The exact evaluation of a policy trained with preset `laptop`, CVaR_0.75 below `limit`.

    Where the algorithm itself ends: of late policies, fresh episodes would choose one that happens to keep the limit.
    """
    config = ts.TrainConfig(
        "finite",
        algorithm=algorithm,
        constraints=[ts.Constraint("cost", ts.CVaR(0.75), limit, "discounted")],
        total_steps=steps,
        preset="laptop",
        out=folder / "run",
        settings={"problem": problem, "cells": 2, "validation_every": 0, **settings},
    )
    found = ts.train(config, progress=False).evaluate(episodes=10).exact
    print(f"{algorithm}: reward {found.reward:.4f} of {found.optimum:.4f}, risks {found.risks}, limits {found.limits}")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["cppo", "cvar_cpo", "sdac", "sdpo"])
def test_solves_the_crossing(tmp_path, algorithm):
    """Walking alone is 5.3 % from the optimum, which also runs now and then."""
    found = learned(tmp_path, algorithm, crossing(), 2.0)
    assert found.feasible
    assert found.gap <= 0.06 * found.optimum


@pytest.mark.slow
def test_wcsac_solves_what_needs_no_mixing(tmp_path):
    found = learned(tmp_path, "wcsac", toll_or_gamble(), 2.2)
    assert found.feasible
    assert found.gap <= 0.05 * found.optimum


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["cppo", "sdac"])
def test_stays_in_the_local_optimum(tmp_path, algorithm):
    """The gamble pays half of what the toll does at the same risk. Auxiliary variables start at the gamble's quantile,
    0, by which the toll looks four times too risky; on the way from one to the other a Gaussian's risk is above both.
    """
    found = learned(tmp_path, algorithm, toll_or_gamble(), 2.2)
    assert found.reward < 0.6 * found.optimum


@pytest.mark.slow
def test_cvar_cpo_can_lose_its_auxiliary_variable(tmp_path):
    """With beta faster than the multiplier it runs ahead to the costs of running, which nothing exceeds: no action is
    charged for anything, however large the multiplier becomes."""
    rates = {"beta_rate": 0.05, "multiplier_rate": 0.1}
    found = learned(tmp_path, "cvar_cpo", crossing(), 2.0, steps=150_000, **rates)
    assert found.risks[0] > 1.5 * found.limits[0]


def test_the_papers_method_leaves_it():
    """Every beta has a policy of its own, and the sampler finds the best of them."""
    solution = ts.solve_tabular(toll_or_gamble(), ts.CVaR(0.75), 2.2, cells=2)
    assert solution.reward == pytest.approx(1.0, abs=2e-3)
    assert solution.beta[0][0] == pytest.approx(2.0)


@pytest.mark.slow
def test_sdpo_underestimates_the_risk_of_different_starts(tmp_path):
    """The average of the risks of both roads is within the limit, the risk of the whole is not."""
    found = learned(tmp_path, "sdpo", two_roads(), 2.0, steps=400_000)
    assert found.risks[0] > 1.05 * found.limits[0]


@pytest.mark.slow
def test_wcsac_underestimates_the_risk_of_its_own_dice(tmp_path):
    """Each action's risk by itself is averaged: running a third of the time looks like 4 / 3 + 2 / 3, and is 4."""
    found = learned(tmp_path, "wcsac", crossing(), 2.0)
    assert found.risks[0] > 1.5 * found.limits[0]
