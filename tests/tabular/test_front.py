"""The exact front: every point is the optimum at its limit, from the smallest risk to that of a careless policy."""

import itertools
import json

import numpy as np
import pytest

import tailsafe as ts
from tailsafe.tabular.augmented import augment
from tailsafe.tabular.front import exact_front
from tailsafe.tabular.values import expected_reward, occupancy
from tests.tabular.problems import gamble, random_problem

CVAR = ts.CVaR(0.75)


def deterministic(mdp):
    """Reward and CVaR of every deterministic policy, by enumeration."""
    sizes = [layer.reward.shape for layer in mdp.layers]
    for choice in itertools.product(*(range(actions) for states, actions in sizes for _ in range(states))):
        picks = np.split(np.array(choice), np.cumsum([states for states, _ in sizes])[:-1])
        policy = [np.eye(actions)[pick] for pick, (_, actions) in zip(picks, sizes, strict=True)]
        yield expected_reward(mdp, policy), float(CVAR.risk(mdp.terminal_cost[:, 0], occupancy(mdp, policy)[-1]))


def test_against_all_deterministic_policies():
    problem = random_problem(1, states=2, horizon=2)
    policies = list(deterministic(augment(problem)))
    front = exact_front(problem, CVAR, 5)
    assert front.smallest[0] == pytest.approx(min(risk for _, risk in policies), abs=1e-9)
    assert front.points[-1].reward == pytest.approx(max(reward for reward, _ in policies), abs=1e-7)
    for point in front.points:
        # Random policies may be better than the best deterministic one, never worse.
        best = max((reward for reward, risk in policies if risk <= point.limits[0]), default=-np.inf)
        assert point.reward >= best - 1e-7
        assert point.risks[0] <= point.limits[0] + 1e-7


def test_points_are_the_optima_that_the_solver_certifies():
    front = exact_front(gamble(), CVAR, 4)
    assert front.exhaustive
    rewards = [point.reward for point in front.points]
    assert rewards == sorted(rewards)
    for point in front.points[1:]:
        assert ts.solve_tabular(gamble(), CVAR, point.limits, iterations=1).optimum == pytest.approx(point.reward)


def test_the_command(tmp_path, call):
    file = tmp_path / "problem.json"
    file.write_text(json.dumps(random_problem(2, states=2, horizon=2, costs=2).to_dict()))
    code, out, _ = call("tabular", file, "--front", "3", "--json")
    assert code == 0
    points = json.loads(out.splitlines()[-1])["points"]
    assert len(points) == 3
    for point in points:
        assert len(point["limit"]) == len(point["risks"]) == 2
        assert point["reward"]["low"] <= point["reward"]["mean"] <= point["reward"]["high"]
        assert set(point["risks"][0]) == {"risk", "low", "high"}
    code, out, _ = call(
        "tabular", file, "--front", "2", "--risk", "mean", "--limit", "0..1", "--plot", tmp_path / "front.png"
    )
    assert code == 0
    assert "no policy" in out or "best reward" in out
    assert (tmp_path / "front.png").stat().st_size > 1000
    for words, reason in [
        (["--front", "1"], "front"),
        (["--front", "3", "--limit", "2"], "LOW..HIGH"),
        (["--front", "3", "--limit", "3..2"], "first number"),
        (["--risk", "mean"], "--limit"),
        (["--limit", "2"], "--risk"),
    ]:
        code, _, err = call("tabular", file, *words)
        assert code == 2
        assert reason in err
