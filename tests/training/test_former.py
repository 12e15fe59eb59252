"""Runs that earlier versions began: what their settings mean today."""

from __future__ import annotations

import pytest

import tailsafe as ts
from tailsafe.training.config import TrainConfig
from tailsafe.training.former import of_this_version
from tailsafe.training.settings import FAMILIES, PRESETS, known_settings, preset_values

# Of a run with preset `laptop`, as it was stored.
STORED = {
    "ensemble": 2,
    "quantiles": 25,
    "target_quantiles": 50,
    "damping": 0.01,
    "conjugate_gradient_iterations": 10,
    "groups": 1,
    "batch_chunks": 2,
    "policy_chunks": 2,
    "join_chunks": True,
    "strategy": "proposed",
    "violated": "control",
    "penalty": 10.0,
    "recovery_share": 0.7,
    "joint_updates": 50.0,
    "max_weight": 1000.0,
    "ipo_kappa": 0.05,
    "p3o_kappa": 20.0,
    "max_kl": 0.005,
}
TODAY = {"quantiles": 25, "groups": 0, "batch_chunks": 2, "strategy": "control", "max_kl": 0.005}


def test_a_stored_run_means_the_same_today():
    assert of_this_version(STORED) == TODAY
    data = TrainConfig("point-goal").to_json()
    assert TrainConfig.from_json({**data, "settings": STORED}).settings == TODAY


@pytest.mark.parametrize(
    ("stored", "today"),
    [
        ({"violated": "paper", "strategy": "proposed"}, {"strategy": "proposed"}),
        ({"violated": "release"}, {"strategy": "release"}),
        ({"violated": "release", "strategy": "cpo"}, {"strategy": "cpo"}),
        ({"violated": "joint", "joint_updates": 40}, {"strategy": "joint"}),
        ({"groups": 8, "join_chunks": False, "batch_chunks": 10}, {"groups": 8, "batch_chunks": 10}),
        # A complete run of a range, from before episodes said how to answer requests.
        ({"num_envs": 8}, {"num_envs": 8, "request_episodes": 0}),
        ({"num_envs": 8, "request_episodes": 64}, {"num_envs": 8, "request_episodes": 64}),
        # Of a single chunk there is nothing to join.
        ({"groups": 8, "join_chunks": True, "batch_chunks": 1}, {"groups": 8, "batch_chunks": 1}),
    ],
)
def test_what_became_one_choice(stored, today):
    assert of_this_version(stored) == today


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"damping": 0.1}, "with damping=0.1; in this version it is 0.01"),
        ({"target_quantiles": 40}, "with target_quantiles=40; in this version it is 50"),
        ({"policy_chunks": 1}, "with policy_chunks=1; in this version it is 2"),
        ({"groups": 4}, "with groups=4; in this version it is 1"),
        ({"violated": "joint"}, "with joint_updates=50.0; in this version it is 40"),
    ],
)
def test_a_run_that_this_version_cannot_continue_is_refused(change, reason):
    with pytest.raises(ts.InputError, match=reason):
        of_this_version({**STORED, **change})


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("family", FAMILIES)
def test_settings_of_this_version_stay_as_they_are(preset, family):
    values = {key: known.default for key, known in known_settings().items()} | preset_values(preset, family)
    assert of_this_version(values) == values
