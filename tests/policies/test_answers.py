"""Which place of a range answers a request: against brute force, in files, in ONNX, and on a problem that is known."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailsafe.errors import InputError
from tailsafe.evaluation.exact import evaluate_on_problem
from tailsafe.policies.answers import Answers, answers_from
from tailsafe.policies.export import export_onnx
from tailsafe.policies.policy import load_policy
from tailsafe.training.requests import found_answers
from tests.policies.hand_made import constraint, finite_description, reseal, save
from tests.tabular.problems import gamble, random_problem

LOW, HIGH = 0.5, 4.0


def two_ranges():
    problem = random_problem(0, costs=2)
    names = finite_description(problem).task.cost_names
    both = [constraint(names[0], limit=1.0, highest=4.0), constraint(names[1], limit=10.0, highest=20.0)]
    return finite_description(problem, both)


@given(st.integers(0, 2**31), st.integers(1, 12))
def test_a_request_is_answered_by_the_most_rewarding_place_that_keeps_its_limits(seed, count):
    rng = np.random.default_rng(seed)
    description = two_ranges()
    places = np.sort(rng.uniform(size=count))
    rewards, risks = rng.integers(5, size=count).astype(float), rng.uniform([0.5, 8], [5, 22], size=(count, 2))
    answers = answers_from(places, rewards, risks, description.arrays())
    for request in rng.uniform(size=8):
        limits = np.array([1.0, 10.0]) * np.array([4.0, 2.0]) ** request
        kept = (risks <= limits).all(axis=1)
        chosen = int(np.flatnonzero(places == answers.to(request))[0])
        if kept.any():
            assert kept[chosen]
            assert rewards[chosen] == rewards[kept].max()


def test_where_no_place_keeps_the_highest_limits_the_one_that_exceeds_them_least_answers():
    arrays = finite_description(gamble(), [constraint("cost", limit=LOW, highest=HIGH)]).arrays()
    answers = answers_from(np.array([0.0, 0.5, 1.0]), np.ones(3), np.array([[9.0], [5.0], [7.0]]), arrays)
    assert answers.to([0.0, 0.3, 1.0]).tolist() == [0.5, 0.5, 0.5]


def test_a_limit_that_is_no_range_is_kept_at_every_place():
    problem = random_problem(0, costs=2)
    names = finite_description(problem).task.cost_names
    one = [constraint(names[0], limit=1.0, highest=4.0), constraint(names[1], limit=10.0)]
    arrays = finite_description(problem, one).arrays()
    answers = answers_from(np.array([0.2, 0.9]), np.array([1.0, 2.0]), np.array([[0.9, 9.0], [0.9, 11.0]]), arrays)
    assert answers.places == (0.2,)


def test_beside_a_limit_of_zero_that_no_place_keeps_the_smallest_excess_answers():
    problem = random_problem(0, costs=2)
    names = finite_description(problem).task.cost_names
    given = [constraint(names[0], limit=1.0, highest=4.0), constraint(names[1], limit=0.0)]
    arrays = finite_description(problem, given).arrays()
    answers = answers_from(np.array([0.2, 0.9]), np.ones(2), np.array([[0.5, 0.3], [0.5, 0.1]]), arrays)
    assert answers.places == (0.9,)


@pytest.mark.parametrize(
    "content",
    [
        {"requests": [0.0, 0.5], "places": [0.1]},
        {"requests": [], "places": []},
        {"requests": [0.5, 0.2], "places": [0.1, 0.2]},
        {"requests": [0.0], "places": [1.5]},
        {"requests": [0.0], "places": "all"},
        [1],
    ],
)
def test_bad_answers_of_a_file_are_refused_in_one_line(tmp_path, content):
    save(tmp_path, finite_description(gamble(), [constraint("cost", limit=LOW, highest=HIGH)]))
    file = tmp_path / "policy" / "policy.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"answers": content}))
    reseal(file.parent)
    with pytest.raises(InputError, match="answers") as error:
        load_policy(tmp_path)
    assert "\n" not in str(error.value)


def test_answers_need_a_range():
    with pytest.raises(InputError, match="one limit for each cost"):
        replace(finite_description(gamble()), answers=Answers((0.0,), (0.0,)))


def answering(folder, answers):
    """A random policy for a range, with these answers in its file."""
    description = finite_description(gamble(), [constraint("cost", limit=LOW, highest=HIGH)])
    save(folder, replace(description, answers=answers))
    return load_policy(folder)


def test_a_policy_acts_where_its_answers_say(tmp_path):
    plain = answering(tmp_path / "plain", None)
    policy = answering(tmp_path / "own", Answers((0.25, 0.5), (0.75, 0.1)))
    assert policy.description == load_policy(tmp_path / "own").description
    observation = np.eye(plain.description.task.observation_size, dtype=np.float32)[:1]
    for request, place in [(0.0, 0.75), (0.4, 0.75), (0.6, 0.1), (1.0, 0.1)]:
        asked = policy.asked(policy.description.request_at(request))
        acts = plain.asked(plain.description.request_at(place))
        np.testing.assert_allclose(
            asked.action_probabilities(observation, [[0.5]], [0.9]),
            acts.action_probabilities(observation, [[0.5]], [0.9]),
            atol=1e-6,
        )
        assert asked.limit == pytest.approx(policy.description.request_at(request))  # judged by what was asked for


@pytest.mark.parametrize("answers", [Answers((0.25, 0.5), (0.75, 0.1)), Answers((0.3,), (0.6,))])
def test_an_onnx_file_answers_alike(tmp_path, answers):
    answering(tmp_path, answers)
    export_onnx(load_policy(tmp_path), tmp_path / "policy.onnx")  # compares with the policy on a thousand observations


def test_episodes_find_answers_that_keep_their_limits(tmp_path):
    """Of a random policy on the gamble: exact risks of every answer that can be kept are within the request."""
    policy = answering(tmp_path, None)
    answers = found_answers(policy, 4096, seed=0)
    exact = [evaluate_on_problem(policy.asked(policy.description.request_at(i / 5))) for i in range(6)]
    settled = answering(tmp_path / "settled", answers)
    assert len(answers.places) > 1
    for i, here in enumerate(exact):
        asked = settled.asked(settled.description.request_at(i / 5))
        found = evaluate_on_problem(asked)
        if i / 5 >= answers.requests[0]:
            assert found.feasible
            # Nearly as good as the best place that keeps the limit, of which it knows the risks by samples.
            kept = [one.reward for one in exact if one.risks[0] <= 0.9 * here.limits[0]]
            assert not kept or found.reward >= max(kept) - 0.02
