"""Policies for a range of limits: what they are asked for, and that they act as in training at every limit."""

import json

import jax
import numpy as np
import pytest

import tailsafe as ts
from tailsafe.errors import InputError
from tailsafe.evaluation.candidates import requests_of
from tailsafe.evaluation.certificate import certify, check
from tailsafe.evaluation.exact import evaluate_on_problem
from tailsafe.learning.batches import AugmentedStates
from tailsafe.policies.policy import load_policy
from tests.policies.hand_made import constraint, finite_description, save, save_learner
from tests.tabular.problems import gamble, random_problem

LOW, HIGH = 0.5, 4.0


def described(problem=None):
    return finite_description(problem or gamble(), [constraint("cost", limit=LOW, highest=HIGH)])


@pytest.fixture
def run(tmp_path):
    save(tmp_path / "run", described())
    return tmp_path / "run"


@pytest.mark.parametrize("limit", [LOW, 1.3, HIGH])
def test_a_policy_asked_for_a_limit_does_what_the_training_network_does(tmp_path, limit):
    problem = random_problem(0, states=3, actions=4)
    algorithm, settings, state = save_learner(tmp_path, described(problem))
    policy = load_policy(tmp_path, limit=limit)
    assert policy.limit == (limit,)
    rng = np.random.default_rng(0)
    observation = np.eye(7, dtype=np.float32)[rng.integers(3, size=6)]
    paid, weight = rng.uniform(0, 3, size=(6, 1)).astype(np.float32), rng.uniform(size=6).astype(np.float32)
    limits = settings.constraints.range
    delta = limits.delta_at(state.sampler.mode, np.full(6, np.log(limit / LOW) / np.log(HIGH / LOW), np.float32))
    networks = algorithm.networks(state, settings)
    features = networks.features(AugmentedStates(observation, delta, paid, weight))
    wanted = jax.nn.softmax(state.policy(features))
    np.testing.assert_allclose(policy.action_probabilities(observation, paid, weight), wanted, atol=1e-5)
    np.testing.assert_allclose(policy.beta[0], settings.constraints.beta(delta)[0, 0], rtol=1e-5)
    # Rows with limits of their own.
    rows = policy.asked_by_rows(np.full((6, 1), limit))
    np.testing.assert_allclose(rows.outputs(observation, paid, weight), policy.outputs(observation, paid, weight), 1e-4)


def test_it_is_asked_for_the_lowest_limit_where_nobody_says_which(run):
    policy = load_policy(run)
    assert policy.limit == (LOW,)
    assert [one.limit[0] for one in policy.across(4)] == pytest.approx([0.5, 1, 2, 4])
    other = policy.asked(2.0)
    assert other.limit == (2.0,)
    assert other.description.constraints[0].discounted_limit == 2.0
    assert load_policy(run).description == policy.description


@pytest.mark.parametrize("limit", [np.float32(2.0), np.int64(2), np.array(2.0), np.array([2.0], np.float32)])
def test_a_limit_may_be_a_number_of_numpy(run, limit):
    assert load_policy(run, limit=limit).limit == (2.0,)


@pytest.mark.parametrize("limit", [0.4, 4.5, float("nan"), [1.0, 1.0], "much"])
def test_a_limit_outside_of_the_range_is_refused_in_one_line(run, limit):
    with pytest.raises(InputError) as error:
        load_policy(run, limit=limit)
    assert "\n" not in str(error.value)
    assert str(run) in str(error.value)


def test_a_policy_for_one_limit_can_be_asked_for_that_one_alone(tmp_path):
    save(tmp_path, finite_description(gamble()))
    assert load_policy(tmp_path, limit=1.0).limit == (1.0,)
    with pytest.raises(InputError, match="was trained for 1/discounted alone"):
        load_policy(tmp_path, limit=2.0)


def test_limits_of_several_costs_move_together_and_the_most_cautious_one_counts():
    problem = random_problem(0, costs=2)
    names = finite_description(problem).task.cost_names
    both = [constraint(names[0], limit=1.0, highest=4.0), constraint(names[1], limit=10.0, highest=20.0)]
    description = finite_description(problem, both)
    assert description.asked([2.0, 20.0]).position == pytest.approx(0.5)  # 2 is half way from 1 to 4
    assert description.asked([4.0, 10.0]).position == 0.0
    assert description.request_at(0.5) == pytest.approx((2.0, 200**0.5))


def test_the_command_line_asks_for_a_limit(run, call):
    code, out, _ = call("evaluate", run, "--limit", "2/discounted", "--episodes", "40", "--json")
    assert code == 0
    result = json.loads(out.splitlines()[-1])
    assert result["constraints"][0]["limit"] == 2.0
    assert result["exact"]["limits"] == [2.0]
    # Without one, exact results of limits across the range.
    code, out, _ = call("evaluate", run, "--episodes", "40", "--json")
    exact = json.loads(out.splitlines()[-1])["exact"]
    assert len(exact) == 8
    assert exact[0]["limits"] == [LOW]
    assert exact[-1]["limits"] == pytest.approx([HIGH])
    code, _, err = call("evaluate", run, "--limit", "5/discounted")
    assert (code, err.count("\n")) == (2, 1)
    assert "0.5..4/discounted" in err


def test_a_front_asks_for_limits_across_the_range(run, call):
    code, out, _ = call("front", run, "--points", "3", "--episodes", "40", "--json")
    assert code == 0
    points = json.loads(out.splitlines()[-1])["points"]
    assert [point["limit"][0] for point in points] == pytest.approx([LOW, 2**0.5, HIGH])
    assert json.loads((run / "front.json").read_text())["points"] == points


def test_certificates_are_tested_from_the_most_cautious_request_upwards(run, call):
    policy = load_policy(run)
    risks = [evaluate_on_problem(asked).risks[0] for asked in policy.across(8)]
    found = certify(run, 1.5 * max(risks), episodes=4000)
    assert found.certified
    assert [finding.candidate.request[0] for finding in found.findings] == pytest.approx(
        [policy.description.request_at(i / 7)[0] for i in range(8)]
    )
    # The most rewarding one is what the file asks for from now on.
    chosen = load_policy(run)
    assert chosen.limit == pytest.approx(found.chosen.candidate.request)
    assert chosen.description.certificate["request"] == pytest.approx(chosen.limit[0])
    again = check(run / "certificate.json")
    assert again.identical
    assert again.confirmed
    # Nothing is tested after the first that is not certified.
    assert len(certify(run, 0.5 * risks[0], episodes=1000, keep=False).findings) == 1


def test_a_run_for_one_limit_is_no_sequence(tmp_path):
    save(tmp_path, finite_description(gamble()))
    assert [candidate.name for candidate in requests_of(tmp_path).candidates] == ["policy"]


def test_the_package_names_how_a_policy_is_asked(run):
    assert ts.load_policy(run, limit=1.0).limit == (1.0,)
