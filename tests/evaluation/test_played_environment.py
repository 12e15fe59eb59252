"""Verdicts are about the environment that was played, and say so where it is not the one of training."""

import dataclasses
import json
import sys

import pytest

import tailsafe as ts
from tailsafe.envs.finding import find_environment
from tailsafe.envs.user import user_environments
from tailsafe.errors import InputError
from tailsafe.evaluation.certificate import certify, check
from tailsafe.evaluation.front import front
from tailsafe.evaluation.verdict import evaluate
from tests.policies.hand_made import constraint, describe, finite_description, save
from tests.tabular.problems import gamble

# An episode lasts `length` steps, each of which costs `price` or nothing, of at most `most`.
MODULE = """
import gymnasium
import numpy as np

class Toll(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    names = ("toll",)

    def __init__(self, length=5, price=0.5, most=1.0):
        self.length, self.price = length, price
        self.cost_names, self.largest_costs = self.names, None if most is None else (most,)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action):
        self.time += 1
        info = {"cost": self.price * (self.np_random.random() < 0.5)}
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), 1.0, False, False, info

def toll(length=5, **arguments):
    return gymnasium.wrappers.TimeLimit(Toll(length, **arguments), length)

def bridge(length=5, **arguments):
    made = toll(length, **arguments)
    made.env.cost_names = ("bridge",)
    return made
"""
BOTH = """

class Ending(Toll):
    def step(self, action):
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, self.time >= self.length, truncated, info

class Both(Toll):
    def step(self, action):
        *rest, info = super().step(action)
        return *rest, {"cost": np.array([info["cost"], 0.0])}

def both(names=("a", "b")):
    made = gymnasium.wrappers.TimeLimit(Both(most=None), 5)
    made.env.cost_names = tuple(names)
    return made
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A policy that was trained in tolls:toll, with a limit per episode."""
    (tmp_path / "tolls.py").write_text(MODULE + BOTH)
    monkeypatch.chdir(tmp_path)
    made(tmp_path / "run", "tolls:toll", [constraint("toll", "mean", 2.0, "episode", discounted(2.0, 5))])
    return tmp_path / "run"


def made(folder, name, constraints, **arguments):
    found = find_environment(name, arguments)
    environments = user_environments(found, 1)
    described = describe(environments.spec, constraints, 0.9, [-1.0], [1.0])
    environments.close()
    task = dataclasses.replace(described.task, source=found.source.to_json())
    save(folder, dataclasses.replace(described, task=task))


def discounted(limit, length):
    """On the discounted sum, of a limit per episode."""
    return limit / length / (1 - 0.9)


def test_its_own_environment_is_no_other(run):
    report = evaluate(run, 20, trust=True).to_json()
    assert (report["task"], report["trained_in"]) == ("tolls:toll", None)
    assert report["environment"] == {
        "name": "tolls:toll",
        "arguments": {},
        "engine": None,
        "costs": ["toll"],
        "largest_costs": [1.0],
        "episode_length": 5,
    }
    # Named once more, it is still the same.
    assert evaluate(run, 20, environment="tolls:toll").to_json() == report


def test_costs_length_and_units_are_those_of_the_environment_played(run):
    before = evaluate(run, 20, trust=True).constraints[0]
    arguments = {"length": 20, "price": 3.0, "most": 4.0}
    other = evaluate(run, 20, environment="tolls:toll", env_args=arguments)
    report = other.to_json()
    assert report["environment"]["arguments"] == arguments
    assert (report["environment"]["episode_length"], report["episode_length"]) == (20, 20)
    assert report["trained_in"] == "tolls:toll"
    judged = report["constraints"][0]
    # A limit of two per episode is spread over twenty steps, not five.
    assert judged["discounted_limit"] == pytest.approx(discounted(2.0, 20))
    assert judged["risk"] / judged["discounted_risk"] == pytest.approx(20 * (1 - 0.9))
    # Nothing bounds the costs there but what that environment says: the run's own bound would be disproved.
    assert judged["largest_return"] == pytest.approx(4 * (1 - 0.9**20) / 0.1, rel=1e-5)
    assert judged["distribution_free"]["high"] is not None
    assert before.largest_return == pytest.approx((1 - 0.9**5) / 0.1, rel=1e-5)
    assert "trained in tolls:toll" in str(other)
    assert other.played.options == " --env tolls:toll --env-arg length=20 --env-arg price=3.0 --env-arg most=4.0"


def test_a_bound_that_the_environment_does_not_give_is_not_taken_from_the_run(run):
    other = evaluate(run, 20, environment="tolls:toll", env_args={"most": None}).constraints[0]
    assert other.free.high == float("inf")
    with pytest.raises(InputError, match="nothing can be proven about toll"):
        certify(run, 5.0, "discounted", environment="tolls:toll", env_args={"most": None}, episodes=64)


def test_a_bound_given_since_counts(run, tmp_path):
    made(tmp_path / "vague", "tolls:toll", [constraint("toll", "mean", 5.0)], most=None)
    stated = evaluate(tmp_path / "vague", 20, environment="tolls:toll", env_args={"most": 1.0})
    assert stated.constraints[0].free.high < float("inf")


def test_a_limit_per_episode_where_the_length_of_one_is_not_known(run):
    """Nothing says what it would be there: the limit on the discounted sum stays."""
    report = evaluate(run, 20, environment="tolls:Ending").to_json()["constraints"][0]
    assert (report["unit"], report["limit"]) == ("discounted", pytest.approx(discounted(2.0, 5)))
    assert report["largest_return"] == pytest.approx(10, rel=1e-5)


def test_an_environment_that_has_changed_since_is_named(run, tmp_path, monkeypatch):
    (tmp_path / "tolls.py").write_text(MODULE.replace("length=5, **", "length=60, **"))
    monkeypatch.delitem(sys.modules, "tolls")
    assert evaluate(run, 20, trust=True).to_json()["trained_in"] == "tolls:toll, with episodes of 5 steps"


def test_costs_have_the_names_of_the_environment_played(run, tmp_path):
    report = evaluate(run, 20, environment="tolls:bridge")
    assert [one["name"] for one in report.to_json()["constraints"]] == ["bridge"]
    # Limits are by the order of the costs: the same ones in another order are refused.
    made(tmp_path / "two", "tolls:both", [constraint("a"), constraint("b")])
    with pytest.raises(InputError, match="its costs are b, a, in this order"):
        evaluate(tmp_path / "two", 5, environment="tolls:both", env_args={"names": ["b", "a"]})


def test_a_finite_problem_has_no_exact_figures_elsewhere(tmp_path):
    save(tmp_path, finite_description(gamble()))
    found = evaluate(tmp_path, 20)
    assert found.exact is not None
    assert found.to_json()["trained_in"] is None


def test_a_certificate_is_about_the_environment_played(run, call):
    words = ("--episodes", "600", "--env", "tolls:toll", "--env-arg", "price=1.0", "--env-arg", "most=2.0")
    limit = ("--limit", "12/discounted")
    code, out, err = call("certify", run, *limit, *words, "--json")
    assert (code, err) == (0, "")
    content = json.loads(out.splitlines()[-1])
    assert content["environment"]["arguments"] == {"price": 1.0, "most": 2.0}
    assert content["trained_in"] == "tolls:toll"
    attached = ts.load_policy(run).description.certificate
    assert attached["environment"] == content["environment"]
    # Episodes of that environment do not count for this one.
    own = certify(run, 12.0, "discounted", trust=True, episodes=600)
    assert own.shown.risks[0] == pytest.approx(content["risk"] / 2, rel=0.2)
    assert own.to_json()["trained_in"] is None
    # Neither replaces the other, episodes included.
    assert sorted(path.name for path in run.glob("certificate*") if path.is_dir()) == [
        "certificate",
        "certificate.tolls-toll-price-1-0-most-2-0",
    ]
    assert json.loads((run / "certificate.tolls-toll.json").read_text()) == content
    certify(run, 12.0, "discounted", environment="tolls:toll", env_args={"most": 2.0, "price": 1.0}, episodes=600)
    assert ts.load_policy(run).description.certificate["trained_in"] is None
    # A certificate holds where it was made.
    (run / "certificate.json").write_text(json.dumps(content))
    assert not check(run / "certificate.json", trust=True).confirmed
    code, out, _ = call("certify", "--check", run / "certificate.json", *words[2:], "--json")
    assert (code, json.loads(out)["identical"]) == (0, True)
    forged = content["environment"] | {"largest_costs": [1.0]}
    (run / "certificate.json").write_text(json.dumps(content | {"environment": forged}))
    assert call("certify", "--check", run / "certificate.json", *words[2:])[0] == 1


def test_an_evaluation_elsewhere_does_not_replace_the_run_s_own(run, call):
    assert call("evaluate", run, "--episodes", "20", "--trust")[0] == 0
    own = (run / "evaluation.json").read_text()
    code, out, err = call("evaluate", run, "--episodes", "20", "--env", "tolls:toll", "--env-arg", "price=1.0")
    assert code == 0
    assert "tolls:toll(price=1.0) (trained in tolls:toll)" in " ".join(out.split())
    assert "is kept in" in err
    assert (run / "evaluation.tolls-toll.json").read_text() == own


def test_a_front_names_its_environment(run, call):
    code, out, _ = call("front", run, "--episodes", "20", "--env", "tolls:toll", "--env-arg", "price=1.0")
    assert code == 0
    assert "played in tolls:toll(price=1.0); trained in tolls:toll" in out
    found = front([run], 1, 20, trust=True).to_json()
    assert (found["task"], found["trained_in"]) == ("tolls:toll", None)


def test_arguments_are_not_dropped_in_silence(tmp_path, call):
    save(tmp_path / "run", finite_description(gamble()))
    for command in (("evaluate",), ("certify", "--limit", "1"), ("front",), ("render", "--out", tmp_path / "a.png")):
        code, _, err = call(*command, tmp_path / "run", "--env-arg", "size=3")
        assert (code, err.count("\n")) == (2, 1)
        assert "finite takes none" in err


def test_every_command_that_makes_an_environment_takes_its_arguments(call):
    for command in ("train", "resume", "evaluate", "certify", "front", "render", "diagnose", "check-env", "tune"):
        assert "--env-arg" in call(command, "--help")[1], command
