"""Exact figures of a policy of a finite problem, against enumeration."""

import json

import numpy as np
import pytest

import tailsafe as ts
from tailsafe.errors import InputError
from tailsafe.evaluation.exact import evaluate_on_problem, tabulate
from tailsafe.evaluation.verdict import evaluate
from tailsafe.policies.policy import load_policy
from tailsafe.tabular.augmented import augment
from tests.policies.hand_made import constraint, finite_description, reseal, save
from tests.tabular.problems import gamble, random_problem, trajectories


@pytest.mark.parametrize(("augmented", "costs", "spec"), [(True, 2, "cvar:0.5"), (False, 1, "wang:0.5")])
def test_exact_evaluation_is_enumeration(tmp_path, augmented, costs, spec):
    problem = random_problem(5, states=3, actions=3, horizon=3, costs=costs, cost_values=(0.0, 0.4, 1.0))
    given = [constraint(f"c{i}", spec, 1.2) for i in range(costs)]
    save(tmp_path, finite_description(problem, given, augmented=augmented), seed=2)
    policy = load_policy(tmp_path)
    exact = evaluate_on_problem(policy)

    # Enumeration that asks the policy itself at every step, with the costs it counted on the way.
    def walk(t, state, paid, earned, chance):
        if t == problem.horizon:
            yield chance, earned, paid
            return
        observation = np.concatenate([np.eye(problem.states)[state], np.eye(problem.horizon)[t]])
        probabilities = policy.action_probabilities(observation, paid, problem.discount**t)
        for action, p in enumerate(probabilities):
            weight = problem.discount**t
            after = paid + weight * problem.costs[:, state, action]
            for target, q in enumerate(problem.transitions[state, action]):
                if p * q > 0:
                    reward = earned + weight * problem.rewards[state, action]
                    yield from walk(t + 1, target, after, reward, chance * p * q)

    ends = [end for s in range(problem.states) for end in walk(0, s, np.zeros(costs), 0.0, problem.initial[s])]
    chances, rewards, sums = (np.array(column) for column in zip(*ends, strict=True))
    assert chances.sum() == pytest.approx(1.0)
    assert exact.reward == pytest.approx(chances @ rewards, rel=1e-6)
    measure = ts.parse_spectrum(spec)
    for i in range(costs):
        assert exact.spectrum_risks[i] == pytest.approx(float(measure.risk(sums[:, i], chances)), rel=1e-6)
        assert exact.risks[i] == pytest.approx(float(given[i].steps.risk(sums[:, i], chances)), rel=1e-6)
    assert exact.feasible == all(risk <= 1.2 for risk in exact.risks)
    # The tables behind it agree with the tabular tests' own enumeration too.
    mdp = augment(problem)
    other = sum(p * r for p, _, r, _ in trajectories(mdp, tabulate(policy, mdp)))
    assert exact.reward == pytest.approx(other, rel=1e-9)
    likeliest = tabulate(policy, mdp, deterministic=True)
    assert all(set(np.unique(table)) <= {0.0, 1.0} and (table.sum(1) == 1).all() for table in likeliest)


def test_the_optimum_is_the_known_one(tmp_path):
    """See `gamble`: a limit of 2 on CVaR_0.75 allows to gamble with probability 1/2, which earns 1/2."""
    save(tmp_path, finite_description(gamble(), [constraint(limit=2.0)]))
    exact = evaluate_on_problem(load_policy(tmp_path))
    assert exact.optimum == pytest.approx(0.5, abs=1e-7)
    assert exact.gap == pytest.approx(0.5 - exact.reward)
    # Gambling with probability q has reward q and risk 4 q.
    assert exact.risks[0] == pytest.approx(4 * exact.reward, rel=1e-6)
    assert exact.feasible == (exact.reward <= 0.5)
    save(tmp_path, finite_description(gamble(), [constraint(limit=-1.0)]))
    hopeless = evaluate_on_problem(load_policy(tmp_path))
    assert (hopeless.optimum, hopeless.gap, hopeless.feasible) == (None, None, False)


def test_exact_evaluation_refuses_another_discount(tmp_path):
    save(tmp_path, finite_description(random_problem(0)))
    path = tmp_path / "policy" / "policy.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"gamma": 0.5}))
    reseal(tmp_path / "policy")
    with pytest.raises(InputError, match=r"gamma 0.5.*discount 0.9"):
        evaluate(tmp_path, 2)
