"""Configurations: what is refused and how, and that files give back what was put in."""

import json
import math

import numpy as np
import pytest

import tailsafe as ts
from tailsafe.algorithms.srcpo_state import Settings, SrcpoConfig
from tailsafe.training.config import TrainConfig, parse_limit, parse_settings
from tailsafe.training.plan import make_plan
from tailsafe.training.settings import FAMILIES, PRESETS, known_settings, parsed, resolved_values
from tests.training.tiny import FINITE_LIMIT, TINY, TWO_ROADS, finite_config


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("max_lk", "0.1", "did you mean max_kl?"),
        ("policy_hiden", "8", "did you mean policy_hidden?"),
        ("num_envs", "0", "num_envs is 0; it must be in [1, inf)"),
        ("num_envs", "2.5", "whole number"),
        ("num_envs", "many", "whole number"),
        ("gamma", "1", "gamma is 1; it must be in [0, 1)"),
        ("max_kl", "-1", "it must be in (0, inf)"),
        ("max_kl", "nan", "it must be in (0, inf)"),
        ("critic_rate", "inf", "it must be in (0, inf)"),
        ("estimator", "vistied", "one of visited, initial, shifted, episodes"),
        ("augmented", "maybe", "true or false"),
        ("policy_hidden", "8,x", "whole number"),
        ("policy_hidden", "8,0", "it must be in [1, inf)"),
        ("cells", "1", "it must be in [2, 64]"),
    ],
)
def test_a_bad_setting_is_named_with_what_is_allowed(key, value, reason):
    with pytest.raises(ts.InputError) as error:
        parsed(key, value)
    assert reason in str(error.value)


def test_settings_from_text():
    texts = ["policy_hidden=64,32", "augmented=true", "fixed_log_std=none", "kl_decay=inf", "max_kl=1e-3", "seeds=3"]
    with pytest.raises(ts.InputError, match="unknown setting 'seeds'"):
        parse_settings(texts)
    values = parse_settings(texts[:-1])
    assert values == {
        "policy_hidden": (64, 32),
        "augmented": True,
        "fixed_log_std": None,
        "kl_decay": math.inf,
        "max_kl": 0.001,
    }
    with pytest.raises(ts.InputError, match="write KEY=VALUE"):
        parse_settings(["max_kl"])


def test_every_field_of_the_algorithm_has_a_key():
    fields = {*SrcpoConfig.__dataclass_fields__, *Settings.__dataclass_fields__} - {"constraints", "horizon"}
    assert fields <= set(known_settings())


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("family", FAMILIES)
def test_presets_are_complete_and_consistent(preset, family):
    values = resolved_values(preset, family, {})
    assert set(values) == set(known_settings())
    assert values["augmented"] is (family == "finite")


def test_the_paper_preset_is_the_papers():
    values = resolved_values("paper", "navigation", {})
    expected = {
        "num_envs": 5,
        "chunk_steps": 200,
        "replay_chunks": 100,
        "batch_chunks": 10,
        "policy_hidden": (512, 512),
        "critic_hidden": (512, 512),
        "critic_rate": 3e-4,
        "critic_iterations": 40,
        "quantiles": 25,
        "max_kl": 0.001,
        "sampler_rate": 3e-4,
        "sampler_deviation": 0.05,
        "strategy": "release",
        "groups": 1,
        "gamma": 0.99,
        "trace": 0.97,
        "estimator": "visited",
        "projection": "interpolate",
        "initialization": "small",
        "beta_per": "chunk",
    }
    assert {key: values[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"groups": 3}, "groups is 3; it must divide num_envs, which is 4"),
        ({"batch_chunks": 4}, "batch_chunks is 4; it must not exceed replay_chunks, which is 3"),
        ({"gamma": 0.5}, "gamma of the task finite is its problem's discount"),
    ],
)
def test_settings_must_fit_together(tmp_path, change, reason):
    with pytest.raises(ts.InputError) as error:
        make_plan(finite_config(tmp_path, 1, settings=change))
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        ("0.025/step", None, (0.025, "step")),
        ("2.5/discounted", None, (2.5, "discounted")),
        ("25/episode", None, (25.0, "episode")),
        ("2", "discounted", (2.0, "discounted")),
    ],
)
def test_limits(text, unit, expected):
    assert parse_limit(text, unit) == expected


@pytest.mark.parametrize("text", ["2", "2/rate", "x/step", "-1/step", "inf/step", "/step"])
def test_bad_limits(text):
    with pytest.raises(ts.InputError, match="limit"):
        parse_limit(text)


def test_units_of_limits():
    # gamma = 0.99: a rate of 0.025 and 25 per episode of 1000 steps are both 2.5 on the discounted sum.
    for limit, unit in ((0.025, "step"), (2.5, "discounted"), (25.0, "episode")):
        constraint = ts.Constraint("collision", ts.CVaR(0.75), limit, unit)
        plan = make_plan(ts.TrainConfig("point-goal", constraints=[constraint], backend="mujoco", settings=TINY))
        plan.environments.close()
        assert plan.discounted_limits == pytest.approx((2.5,))
        assert float(plan.settings.constraints.limit[0]) == pytest.approx(2.5)
        assert float(plan.settings.constraints.largest_return[0]) == pytest.approx(100.0)


def test_limits_of_a_finite_problem_count_its_horizon(tmp_path):
    # Discounted length of an episode: sum of gamma^t over the horizon, 1 + 0.95 + ... (see two_roads.json).
    problem = ts.FiniteCMDP.load(TWO_ROADS)
    length = sum(problem.discount**t for t in range(problem.horizon))
    config = finite_config(tmp_path, 1)
    plan = make_plan(TrainConfig("finite", constraints=[ts.Constraint("cost", "mean", 0.5, "step")], **_rest(config)))
    assert plan.discounted_limits == pytest.approx((0.5 * length,))
    assert float(plan.settings.horizon) == pytest.approx(length)
    assert float(plan.settings.gamma) == pytest.approx(problem.discount)


def test_limits_without_a_unit(tmp_path):
    """As on the command line: discounted for finite problems, refused elsewhere."""
    config = finite_config(tmp_path, 1)
    plan = make_plan(TrainConfig("finite", constraints=[ts.Constraint("cost", "mean", 0.5)], **_rest(config)))
    assert plan.discounted_limits == (0.5,)
    assert plan.config.constraints[0].unit == "discounted"
    with pytest.raises(ts.InputError, match="say in which unit"):
        make_plan(ts.TrainConfig("point-goal", constraints=[ts.Constraint("collision", "mean", 0.5)], settings=TINY))


def _rest(config):
    return {"settings": config.settings, "preset": "laptop"}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: ts.TrainConfig("finite", algorithm="ppo"), "unknown algorithm 'ppo'"),
        (lambda: ts.TrainConfig("finite", backend="bullet"), "unknown backend 'bullet'"),
        (lambda: ts.TrainConfig("finite", preset="huge"), "unknown preset 'huge'"),
        (lambda: ts.TrainConfig("finite", seed=-1), "seed is -1"),
        (lambda: ts.TrainConfig("finite", seeds=0), "seeds is 0"),
        (lambda: ts.TrainConfig("finite", total_steps=0), "total_steps is 0"),
        (lambda: ts.Constraint("cost", 0.75, 1.0), "is not a risk measure"),
        (lambda: ts.Constraint("cost", "cvar:0.75", -1.0), "limit is -1.0"),
        (lambda: ts.Constraint("cost", "cvar:0.75", 1.0, "rate"), "one of step, discounted, episode"),
        (lambda: make_plan(ts.TrainConfig("finite")), "needs a problem"),
        (lambda: make_plan(ts.TrainConfig("point-gaol")), "unknown task 'point-gaol'"),
        (lambda: make_plan(ts.TrainConfig("no_such_module:Env")), "cannot import 'no_such_module'"),
        (lambda: make_plan(ts.TrainConfig("tests.training.tiny:Nothing")), "has no 'Nothing'"),
        (lambda: make_plan(ts.TrainConfig(3)), "task must be a name"),
        (
            lambda: make_plan(ts.TrainConfig("point-goal", constraints=[FINITE_LIMIT])),
            "for each of its costs: collision",
        ),
        (lambda: make_plan(ts.TrainConfig("tests.training.tiny:Corridor")), "no limits of its own"),
    ],
)
def test_mistakes_are_told_before_any_work(make, reason):
    with pytest.raises(ts.InputError) as error:
        make()
    assert reason in str(error.value)


def test_json_gives_back_the_same_run(tmp_path):
    config = finite_config(tmp_path, 4, seed=5, settings={"kl_cap": math.inf, "cells": 3})
    first = make_plan(config)
    text = json.dumps(first.config.to_json(), allow_nan=False)
    again = make_plan(TrainConfig.from_json(json.loads(text)))
    assert again.config.to_json() == first.config.to_json()
    assert again.constraints == first.constraints
    assert again.algorithm.config == first.algorithm.config
    assert again.discounted_limits == first.discounted_limits
    for name in Settings.__dataclass_fields__:
        if name != "constraints":
            assert getattr(again.settings, name) == getattr(first.settings, name)
    assert np.array_equal(again.problem.transitions, first.problem.transitions)


def test_a_measure_given_as_a_function_survives_the_file(tmp_path):
    squared = ts.Spectrum(lambda u: 3 * u**2)
    config = finite_config(tmp_path, 1, settings={"cells": 4})
    config = TrainConfig("finite", constraints=[ts.Constraint("cost", squared, 2.0, "discounted")], **_rest(config))
    plan = make_plan(config)
    again = make_plan(TrainConfig.from_json(plan.config.to_json()))
    assert np.allclose(plan.spectra[0].eta, squared.discretize(4).eta, atol=1e-12)
    assert np.array_equal(again.settings.constraints.eta, plan.settings.constraints.eta)
    assert np.array_equal(again.settings.constraints.alpha, plan.settings.constraints.alpha)
