"""The deep learner held against linear programs: finite problems whose optimum is known, preset `laptop`.

The learned policy is walked through the augmented state space with its own probabilities, so that its reward and risks
are exact. On two_roads a limit on the mean, or on the expected state-wise risk, gives policies that break this one.
"""

import pytest

import tailsafe as ts
from tests.tabular.problems import gamble, random_problem
from tests.tabular.test_convergence import draw
from tests.training.tiny import TWO_ROADS

# Share of the optimum that may be missing.
GAP = 0.03
# The same at every limit of a range.
RANGE_GAP = 0.05


PROBLEMS = {
    "two roads": lambda: (ts.FiniteCMDP.load(TWO_ROADS), ts.CVaR(0.75), [2.0], 2),
    "rare large costs": lambda: (gamble(), ts.CVaR(0.75), [2.0], 2),
    "five steps": lambda: (random_problem(1, horizon=5), ts.CVaR(0.75), [1.4333], 2),
    "two constraints, CVaR": lambda: draw(13),
    "two constraints, Wang": lambda: draw(16),
    "three cells, Pow": lambda: draw(27),
    "three cells, Wang": lambda: draw(10),
}


def learned(folder, name, **settings):
    """The exact evaluation of a policy trained on a problem."""
    problem, measure, limits, cells = PROBLEMS[name]()
    names = [f"cost{i}" for i in range(len(limits))] if len(limits) > 1 else ["cost"]
    config = ts.TrainConfig(
        "finite",
        constraints=[ts.Constraint(n, measure, limit, "discounted") for n, limit in zip(names, limits, strict=True)],
        preset="laptop",
        out=folder / "run",
        settings={"problem": problem, "cells": cells, **settings},
    )
    return ts.train(config, progress=False).evaluate().exact


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_srcpo_reaches_the_optimum_and_keeps_the_limits(tmp_path, name):
    found = learned(tmp_path, name)
    print(f"{name}: reward {found.reward:.4f} of {found.optimum:.4f}, risks {found.risks}, limits {found.limits}")
    assert found.feasible
    assert found.gap <= GAP * found.optimum


@pytest.mark.slow
def test_one_run_for_a_range_of_limits_is_near_the_optimum_at_each_of_them(tmp_path):
    config = ts.TrainConfig(
        "finite",
        constraints=[ts.Constraint("cost", ts.CVaR(0.75), (1.9, 4.0), "discounted")],
        preset="laptop",
        seed=1,
        out=tmp_path / "run",
        settings={"problem": ts.FiniteCMDP.load(TWO_ROADS), "cells": 2},
    )
    found = ts.train(config, progress=False).evaluate().exact_front
    assert len(found) == 8
    for exact in found:
        print(
            f"limit {exact.limits[0]:.3f}: reward {exact.reward:.4f} of {exact.optimum:.4f}, risk {exact.risks[0]:.4f}"
        )
    assert all(exact.feasible for exact in found)
    assert all(exact.gap <= RANGE_GAP * exact.optimum for exact in found)
