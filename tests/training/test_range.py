"""Training for a range of limits: what may be said, what is refused, and that runs resume and start from each other."""

import json
from dataclasses import replace

import numpy as np
import pytest

import tailsafe as ts
from tailsafe.policies.policy import load_policy
from tailsafe.training.config import Constraint, TrainConfig, parse_limit, parse_limits
from tailsafe.training.plan import make_plan
from tests.training.tiny import TWO_ROADS, assert_same_arrays, command_settings, finite_config, last_arrays

RANGE = Constraint("cost", ts.CVaR(0.75), (1.9, 4.0), "discounted")


def ranged(folder, updates, **settings):
    config = finite_config(
        folder, updates, settings={"regions": 3, "sampler_rate": 0.1, "request_episodes": 0, **settings}
    )
    return replace(config, constraints=[RANGE])


def test_ranges_are_parsed():
    assert parse_limits("0.01..0.05/step") == ((0.01, 0.05), "step")
    assert parse_limits("1e-2..5e-2/step") == ((0.01, 0.05), "step")
    assert parse_limits("2..4", "discounted") == ((2.0, 4.0), "discounted")
    assert parse_limits("0.025/step") == (0.025, "step")


@pytest.mark.parametrize(
    "text", ["0.05..0.01/step", "0..1/step", "1../step", "..1/step", "1..inf/step", "1..2..3/step"]
)
def test_bad_ranges_are_refused(text):
    with pytest.raises(ts.InputError) as error:
        parse_limits(text)
    assert repr(text) in str(error.value)


def test_where_one_limit_is_needed_a_range_is_refused():
    with pytest.raises(ts.InputError, match="a single limit is needed"):
        parse_limit("1..2/step")


@pytest.mark.parametrize("limit", [(2.0, 1.0), (0.0, 1.0), (1.0,), (1.0, "2"), (1.0, float("inf")), (True, 2.0)])
def test_bad_ranges_of_constraints_are_refused(limit):
    with pytest.raises(ts.InputError, match="0 < lowest < highest"):
        Constraint("cost", ts.CVaR(0.75), limit, "step")


def test_a_configuration_with_a_range_comes_back_from_its_file():
    config = TrainConfig("point-goal", constraints=[Constraint("collision", ts.CVaR(0.75), (0.01, 0.05), "step")])
    again = TrainConfig.from_json(json.loads(json.dumps(config.to_json())))
    assert again.constraints == config.constraints
    assert (again.constraints[0].lowest, again.constraints[0].highest) == (0.01, 0.05)


def test_limits_of_a_plan_are_on_discounted_sums():
    plan = make_plan(TrainConfig("point-goal", preset="laptop"), limits=[((0.01, 0.05), "step")])
    assert plan.discounted_limits == pytest.approx((5.0,))
    assert plan.lowest_limits == pytest.approx((1.0,))
    assert plan.settings.constraints.range.regions == 8
    np.testing.assert_allclose(plan.settings.constraints.knot_limits()[[0, -1], 0], [1.0, 5.0], rtol=1e-5)


@pytest.mark.parametrize(
    ("algorithm", "settings", "words"),
    [
        ("ppo_lag", {}, "range of limits needs srcpo"),
        ("srcpo", {"sampler_gradient": "natural"}, "another rule"),
        ("srcpo", {"validation_every": 40}, "must be 0 with a range"),
    ],
)
def test_what_cannot_keep_a_range_says_so_in_one_line(algorithm, settings, words, tmp_path, call):
    arguments = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    out = tmp_path / "run"
    code, _, err = call(
        "train", "point-goal", "--limit", "0.01..0.05/step", "--algo", algorithm, *arguments, "--out", out
    )
    assert (code, err.count("\n")) == (2, 1)
    assert words in err
    assert not out.exists()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranged") / "run"
    ts.train(ranged(folder, 4), progress=False)
    return folder


def test_a_run_for_a_range_ships_one_policy_for_all_of_it(trained):
    policy = load_policy(trained, limit=3.0)
    assert policy.modes.shape == (3, policy.description.num_betas)
    assert policy.description.constraints[0].ends == (1.9, 4.0)
    rows = (trained / "metrics.csv").read_text().splitlines()
    assert {"region_use_0", "region_use_2", "region_beta_0"} <= set(rows[0].split(","))


def test_a_stopped_run_ends_as_one_that_was_not(trained, tmp_path):
    ts.train(ranged(tmp_path / "run", 4), progress=False, callback=lambda row: row["updates"] < 2)
    ts.resume(tmp_path / "run", progress=False)
    assert_same_arrays(last_arrays(trained), last_arrays(tmp_path / "run"))


def test_a_run_for_one_limit_starts_from_one_for_a_range_and_the_other_way_round(trained, tmp_path):
    """The policy acts at first as the one that it starts from does."""
    single = replace(finite_config(tmp_path / "single", 1, settings={"warmup": 5}), start=trained)
    ts.train(single, progress=False)
    observation, so_far = np.eye(10, dtype=np.float32)[:4], {"cost_so_far": np.zeros((4, 1)), "discount": np.ones(4)}
    before, after = (
        load_policy(folder).action_probabilities(observation, **so_far) for folder in (trained, single.out)
    )
    np.testing.assert_allclose(after, before, atol=1e-5)
    back = replace(ranged(tmp_path / "back", 1, warmup=5), start=single.out)
    ts.train(back, progress=False)
    again = load_policy(back.out).action_probabilities(observation, **so_far)
    np.testing.assert_allclose(again, after, atol=1e-5)


def test_the_command_line_trains_for_a_range(tmp_path, call):
    words = command_settings(problem=TWO_ROADS, regions=2, request_episodes=64)
    out = tmp_path / "run"
    code, _, err = call("train", "finite", "--limit", "1.9..4", "--steps", "32", *words, "--out", out, "--json")
    assert code == 0, err
    assert json.loads((out / "config.json").read_text())["constraints"][0]["limit"] == [1.9, 4.0]
    assert load_policy(out).limit == (1.9,)


def test_only_finite_problems_answer_requests_by_episodes():
    config = TrainConfig("point-goal", preset="laptop", settings={"request_episodes": 64})
    with pytest.raises(ts.InputError, match="request_episodes must be 0 for point-goal"):
        make_plan(config, limits=[((0.01, 0.05), "step")])


def test_a_run_for_a_range_ships_answers_and_trained_below_its_lowest_limit(tmp_path):
    ts.train(ranged(tmp_path / "run", 2, request_episodes=256), progress=False)
    policy = load_policy(tmp_path / "run")
    span = policy.description.constraints[0].span
    assert (span.low, span.high, span.below) == (1.9, 4.0, 0.05)
    assert policy.description.trained_at(0.0) == pytest.approx((0.95 * 1.9,))
    assert policy.description.answers is not None
    # Every place is known, whatever the request.
    assert 0 <= policy.asked(1.9).description.position <= 1
    # Without, requests are answered where they are.
    ts.train(ranged(tmp_path / "plain", 2, request_episodes=0), progress=False)
    plain = load_policy(tmp_path / "plain")
    assert plain.description.answers is None
    assert plain.asked(4.0).description.position == pytest.approx(1.0)
    assert plain.asked(1.9).description.position == pytest.approx(0.0)
