"""Tuning: what is searched, what trials are compared by, and that a search can be killed anywhere."""

import importlib.util
import json
import math

import pytest

import tailsafe as ts
from tailsafe.algorithms.registry import ALGORITHMS
from tailsafe.errors import InputError
from tailsafe.training import tune as tuning
from tailsafe.training.search_space import Choices, Range, as_text, default_space, parse_space, refused_dropped
from tailsafe.training.settings import FAMILIES, PRESETS, known_settings, resolved_values
from tailsafe.training.train import Run
from tailsafe.training.trials import Outcome, excess, row_score, score
from tests.training.tiny import TWO_ROADS, finite_config

needs_optuna = pytest.mark.skipif(importlib.util.find_spec("optuna") is None, reason="needs optuna")


# --- what is searched -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_default_space_is_around_the_preset_and_within_what_is_allowed(algorithm):
    for preset in PRESETS:
        for family in FAMILIES:
            values = resolved_values(preset, family, {}, algorithm)
            space = default_space(values, {}, algorithm)
            assert 6 <= len(space) <= 14
            assert not {"total_steps", "gamma", "problem", "cells"} & set(space)
            for key, one in space.items():
                assert values[key] in one, (preset, family, key)
                setting = known_settings(algorithm)[key]
                ends = one.values if isinstance(one, Choices) else (one.low, one.high, one.value(one.high))
                assert len(set(ends)) > 1
                for value in ends:
                    assert setting.parse(value) == value
                    assert setting.parse(as_text(value)) == value


def test_the_default_ranges():
    values = {**resolved_values("laptop", "navigation", {}), "critic_rate": 1e-3, "margin": 0.1, "caution": 0.0}
    space = default_space(values, {"max_kl": 0.02})
    assert "max_kl" not in space
    assert space["critic_rate"] == Range(2e-4, 5e-3, log=True, whole=False)
    # [0, 1): a third of it to both sides; zero is within, one is not.
    assert space["margin"] == Range(0.0, pytest.approx(0.1 + 1 / 3), log=False, whole=False)
    assert space["caution"] == Range(0.0, 1.0, log=False, whole=False)
    assert space["critic_iterations"] == Range(20, 80, log=True, whole=True)
    assert space["num_envs"] == Choices((16, 32, 64))
    assert space["policy_hidden"] == Choices(((32, 32), (64, 64), (128, 128)))
    assert space["estimator"].values == ("visited", "initial", "shifted", "episodes")


def test_ranges_that_somebody_writes():
    space = parse_space(
        [
            "max_kl=0.001..0.1",
            "margin=0..0.2",
            "replay_chunks = 2,4",
            "policy_hidden=64,64/128",
            "critic_iterations=4..8",
        ]
    )
    assert space["max_kl"] == Range(0.001, 0.1, log=True, whole=False)
    assert space["margin"] == Range(0.0, 0.2, log=False, whole=False)
    assert space["replay_chunks"] == Choices((2, 4))
    assert space["policy_hidden"] == Choices(((64, 64), (128,)))
    assert str(space["policy_hidden"]) == "64,64/128"
    assert space["critic_iterations"] == Range(4, 8, log=False, whole=True)
    assert parse_space({"policy_hidden": [(8,), (8, 8)], "max_kl": "0.01..0.02"})["policy_hidden"].values == (
        (8,),
        (8, 8),
    )
    # A number that is trained with can be written down, and is inside.
    assert space["max_kl"].value(0.0123456789) == 0.01235
    assert space["margin"].value(0.2) == 0.2
    assert Range(0.12344, 0.2, False, False).value(0.12344) == 0.12344


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_kl", "write KEY=LOW..HIGH or KEY=a,b,c"),
        ("maxkl=1..2", "unknown setting 'maxkl'; did you mean max_kl?"),
        ("barrier=1..2", "srcpo has no setting 'barrier'; it belongs to sdpo"),
        ("max_kl=0..1", "max_kl is 0; it must be in"),
        ("max_kl=0.2..0.1", "from a smaller to a larger"),
        ("kl_decay=1..inf", "from a smaller to a larger"),
        ("estimator=visited..initial", "estimator has no range"),
        ("estimator=visited,nowhere", "estimator is 'nowhere'"),
        ("gamma=0.9..0.99", "gamma cannot be searched"),
        ("critic_rate=0.1..0.2", "critic_rate is both set and searched"),
    ],
)
def test_mistakes_in_ranges(text, words):
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        parse_space([text], {"critic_rate": 0.1})


def test_choices_that_cannot_be_trained_are_left_out():
    odd = InputError("must be even")
    space = {"num_envs": Choices((3, 4, 6)), "max_kl": Range(1, 2, False, False)}
    kept = refused_dropped(space, lambda key, value: odd if value % 2 else None)
    assert kept == {"num_envs": Choices((4, 6)), "max_kl": space["max_kl"]}
    with pytest.raises(InputError, match="num_envs: none of 3 can be used: must be even"):
        refused_dropped({"num_envs": Choices((3,))}, lambda key, value: odd)


# --- what trials are compared by --------------------------------------------------------------------------------------


def test_the_score_by_hand():
    # (3 - 2) / 2 + 0 + 0.25, the last limit being zero.
    assert excess([3.0, 1.0, 0.25], [2.0, 1.0, 0.0]) == 0.75
    assert excess([2.0], [2.0]) == 0.0
    assert score(-5000.0, 0.0) == -5000.0
    # Worse than any reward within the limits; the nearer the better, whatever it earns.
    assert score(1e6, 0.2) < score(-1e6, 0.0)
    assert score(0.0, 0.2) > score(1e6, 0.3)
    row = {"reward": 4.0, "limit_a": 2.0, "risk_a": 1.0, "limit_b": 1.0, "risk_b": 1.5}
    assert row_score({**row, "risk_b": 1.0}) == 4.0
    assert row_score(row) == score(4.0, 0.5)
    assert row_score({**row, "risk_b": None}) is None
    assert row_score({**row, "reward": None}) is None


def test_rows_are_reported_at_twentieths_until_one_is_to_stop():
    reported = []

    def report(value, point):
        reported.append((value, point))
        return point >= 7

    follow = tuning._Follower(1000, seed=3, seen=[2], report=report)

    def row(steps, seed=3, reward=1.0):
        return {"steps": steps, "seed": seed, "reward": reward, "risk_a": 0.0, "limit_a": 1.0}

    # Too early, twice the same twentieth, one that was reported before, another seed, no episode yet.
    answers = [follow(row(steps)) for steps in (49, 50, 60, 100)]
    answers += [follow(row(150, seed=4)), follow(row(200, reward=None)), follow(row(299, reward=2.0))]
    assert reported == [(1.0, 1), (2.0, 5)]
    assert all(answers)
    assert follow(row(350)) is False
    assert follow.stopped == 0.35
    # The end is never too late to be measured.
    late = tuning._Follower(1000, 3, [], lambda value, point: True)
    assert late(row(1000)) is True


# --- the search -------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """As by kill -9: nothing of the tuning catches it."""


@pytest.fixture
def pretend(monkeypatch):
    """Trials that train and play nothing: `max_kl` = x earns x, and exceeds a limit from 0.05 on."""
    ran = []

    def trained(config, folder, progress, callback):
        ran.append((folder.name, config.settings["max_kl"]))
        folder.mkdir(exist_ok=True)
        return Run(folder, 1, 0.0)

    def judged(run, episodes, seed):
        x = ran[-1][1]
        return Outcome(x, max(x / 0.05 - 1, 0.0), ({"name": "cost", "risk": x, "limit": 0.05},))

    monkeypatch.setattr(tuning, "_trained", trained)
    monkeypatch.setattr(tuning, "_judged", judged)
    return ran


def tune(folder, trials, **changes):
    arguments = {"search": ["max_kl=0.001..0.2"], "progress": False, **changes}
    return ts.tune(finite_config(folder, 30, algorithm="srcpo"), trials, **arguments)


@needs_optuna
def test_it_finds_the_best_within_the_limit(pretend, tmp_path):
    found = tune(tmp_path / "t", 14)
    assert len(pretend) == len(found.trials) == 14
    assert found.best.met
    assert 0.03 < found.best.settings["max_kl"] <= 0.05
    assert pretend[0][1] == resolved_values("laptop", "finite", {})["max_kl"]  # the preset itself
    assert len({x for _, x in pretend}) == 14
    written = json.loads((tmp_path / "t" / "best.json").read_text())
    assert written == found.to_json()
    assert written["best"]["reward"] == max(x for _, x in pretend if x <= 0.05)
    assert f"--set max_kl={found.best.settings['max_kl']}" in found.command
    assert found.command.startswith(
        "tailsafe train finite --algo srcpo --preset laptop --risk cvar:0.75 --limit 2.0/disc"
    )
    assert f"--set problem={TWO_ROADS} " in found.command
    assert " --steps 960 " in found.command
    # Again: nothing is left to do. More of them: only those.
    assert tune(tmp_path / "t", 14) == found
    assert len(pretend) == 14
    assert len(tune(tmp_path / "t", 15).trials) == len(pretend) == 15


@needs_optuna
def test_a_killed_trial_is_continued_and_the_search_takes_the_same_path(pretend, tmp_path, monkeypatch):
    import optuna

    tune(tmp_path / "straight", 12)
    straight, judged = list(pretend), tuning._judged
    pretend.clear()
    for killed in (0, 11):  # the first one, and one by the sampler's model

        def judge(run, episodes, seed, killed=killed):
            if run.folder.name == f"trial-{killed:03d}":
                raise Killed
            return judged(run, episodes, seed)

        monkeypatch.setattr(tuning, "_judged", judge)
        with pytest.raises(Killed):
            tune(tmp_path / "killed", 12)
    monkeypatch.setattr(tuning, "_judged", judged)
    found = tune(tmp_path / "killed", 12)
    # Each of the killed ones twice, under its own name and with its own settings.
    assert pretend == [one for i, one in enumerate(straight) for _ in range(1 + (i in (0, 11)))]
    assert [trial.number for trial in found.trials] == list(range(12))
    study = optuna.load_study(study_name="tailsafe", storage=f"sqlite:///{tmp_path / 'killed' / 'study.db'}")
    assert [one.state.name for one in study.trials] == ["COMPLETE"] * 12


def test_what_a_killed_trial_has_left_is_resumed_or_begun_again(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "train", lambda config, **options: ("train", config.out, options["callback"]))
    monkeypatch.setattr(tuning, "resume", lambda folder, **options: ("resume", folder, options["task"]))
    place = tmp_path / "trial-000"
    config = finite_config(place, 1)
    assert tuning._trained(config, place, False, print) == ("train", place, print)
    (place / "seed-0").mkdir(parents=True)
    (place / "seed-0" / "config.json").write_text("{}")  # killed before the run's own was written
    assert tuning._trained(config, place, False, print) == ("train", place, print)
    assert not place.exists()
    place.mkdir()
    (place / "config.json").write_text("{}")
    assert tuning._trained(config, place, False, print) == ("resume", place, None)


@needs_optuna
def test_failures_count_and_are_told(pretend, tmp_path, monkeypatch):
    trained = tuning._trained

    def fail(config, folder, progress, callback):
        if folder.name == "trial-001":
            raise tuning.NonFiniteError("the loss is not finite")
        if folder.name == "trial-002":
            raise InputError("these do not go together")
        return trained(config, folder, progress, callback)

    monkeypatch.setattr(tuning, "_trained", fail)
    found = tune(tmp_path / "t", 4)
    assert found.to_json()["trials"] == {"complete": 2, "pruned": 0, "failed": 2}
    assert [str(one) for one in found.trials[1:3]] == [
        "failed: the loss is not finite",
        "failed: these do not go together",
    ]

    # Where the preset itself cannot be trained, something else is wrong.
    def refuse(config, folder, progress, callback):
        raise InputError("no room")

    monkeypatch.setattr(tuning, "_trained", refuse)
    with pytest.raises(InputError, match="no room"):
        tune(tmp_path / "other", 2)


@needs_optuna
def test_a_trial_behind_the_median_is_stopped(pretend, tmp_path, monkeypatch):
    def trained(config, folder, progress, callback):
        x = config.settings["max_kl"]
        for point in (2, 4, 5, 7):  # of twenty
            value = -1.0 if folder.name == "trial-006" else 1.0
            row = {"steps": 48 * point, "seed": 0, "reward": value, "risk_cost": 0.0, "limit_cost": 2.0}
            if callback(row) is False:
                break
        pretend.append((folder.name, x))
        return Run(folder, 1, 0.0)

    monkeypatch.setattr(tuning, "_trained", trained)
    found = tune(tmp_path / "t", 7)
    assert found.trials[6].state == "pruned"
    assert str(found.trials[6]).startswith("stopped early: behind the median at 25 % of its steps")
    assert found.trials[6].outcome is None
    assert {one.state for one in found.trials[:6]} == {"complete"}


@needs_optuna
def test_another_tuning_s_folder_is_refused(pretend, tmp_path):
    tune(tmp_path / "t", 1)
    with pytest.raises(InputError, match="is a tuning with another search"):
        tune(tmp_path / "t", 1, search=["max_kl=0.001..0.3"])
    with pytest.raises(InputError, match=r"is a tuning with another episodes \(500, not 40\)"):
        tune(tmp_path / "t", 1, episodes=40)
    (tmp_path / "t" / "study.db").write_text("no database")
    with pytest.raises(InputError, match=r"study.db: cannot be used as an Optuna study \("):
        tune(tmp_path / "t", 2)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not a tuning's folder"):
        tune(tmp_path / "other", 1)
    for trials in (0, True, 2.0):
        with pytest.raises(InputError, match="trials is"):
            tune(tmp_path / "new", trials)
    assert not (tmp_path / "new").exists()


@needs_optuna
def test_on_the_command_line_with_real_trainings(call, tmp_path):
    small = {"num_envs": 4, "chunk_steps": 8, "policy_hidden": 8, "critic_hidden": 8, "quantiles": 5}
    small |= {"critic_iterations": 1, "policy_iterations": 2, "log_every": 1, "window": 16, "problem": TWO_ROADS}
    words = [word for key, value in small.items() for word in ("--set", f"{key}={value}")]
    words += ["--tune", "multiplier_rate=0.01..1", "--limit", 2, "--steps", 320, "--episodes", 20, "--preset", "laptop"]
    command = ["tune", "finite", "--algo", "cppo", *words, "--out", tmp_path / "t"]
    code, out, err = call(*command, "--trials", 2)
    assert code == 0, err
    assert "trial 1 of 2: multiplier_rate=0.1" in err
    assert "best of 2 trials" in out
    assert "next: tailsafe evaluate" in out
    # One more.
    code, out, err = call(*command, "--trials", 3, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out.splitlines()[-1])
    assert found["trials"] == {"complete": 3, "pruned": 0, "failed": 0}
    assert math.isfinite(found["best"]["reward"])
    kept = json.loads((tmp_path / "t" / "trial-002" / "evaluation.json").read_text())
    assert kept["episodes"] == 20


def test_without_optuna_one_line_names_the_command(call, monkeypatch, tmp_path):
    real = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None if name == "optuna" else real(name, *rest))
    code, out, err = call("tune", "finite", "--out", tmp_path / "t")
    assert (code, out) == (2, "")
    assert err.startswith("error: tuning needs a package that is missing: pip install ")
    assert "optuna" in err
    assert not (tmp_path / "t").exists()
