"""Evaluation: what is played, users' environments, the commands end to end."""

import dataclasses
import json
import shutil

import gymnasium
import numpy as np
import pytest

from tailsafe.errors import InputError
from tailsafe.evaluation.episodes import play
from tailsafe.evaluation.verdict import evaluate
from tailsafe.learning.actions import BoxActions
from tailsafe.learning.chunks import Transition
from tailsafe.learning.interface import EnvironmentSpec
from tailsafe.policies.policy import load_policy
from tests.policies.hand_made import box_description, constraint, finite_description, one_cost, reseal, save
from tests.tabular.problems import gamble, random_problem

# --- playing ----------------------------------------------------------------------------------------------------------


class Counter:
    """Environment i: episodes of 2 + i steps, reward 1 a step, cost 1 in the first step, 2 in the others."""

    def __init__(self, num_envs):
        self.num_envs = num_envs
        self.spec = EnvironmentSpec("counter", 3, BoxActions(1), ("cost",), 10, (2.0,))
        self.lengths = 2 + np.arange(num_envs)

    def reset(self, seed):
        self.time = np.zeros(self.num_envs, int)
        return np.zeros((self.num_envs, 3))

    def step(self, actions):
        assert actions.shape == (self.num_envs, 1)
        costs = np.where(self.time == 0, 1.0, 2.0)[:, None]
        self.time += 1
        done = self.time == self.lengths
        self.time[done] = 0
        zeros = np.zeros((self.num_envs, 3))
        return Transition(zeros, zeros, np.ones(self.num_envs), costs, done, np.zeros_like(done))

    def close(self):
        pass


def test_every_environment_plays_its_share(tmp_path):
    save(tmp_path, one_cost())
    policy = load_policy(tmp_path)
    episodes = play(policy, Counter(3), 7)
    # Shares 3, 2, 2: short episodes are not preferred.
    assert sorted(episodes.length) == [2, 2, 2, 3, 3, 4, 4]
    np.testing.assert_array_equal(episodes.reward, episodes.length)
    for length, cost, discounted, earned in zip(
        episodes.length, episodes.costs, episodes.discounted_costs, episodes.discounted_reward, strict=True
    ):
        assert cost == 1 + 2 * (length - 1)
        assert discounted == pytest.approx(1 + 2 * sum(0.9**t for t in range(1, int(length))))
        assert earned == pytest.approx(sum(0.9**t for t in range(int(length))))
    assert episodes.cost_rate[0] == pytest.approx(episodes.costs.sum() / 20)
    with pytest.raises(InputError, match="did not end within 10 steps"):
        play(policy, Counter(12), 12)


def test_sampled_and_exact_agree_on_a_finite_task(tmp_path):
    problem = random_problem(3, horizon=4, costs=2)
    names = [constraint("cost0", "cvar:0.5", 1.5), constraint("cost1", "mean", 1.0)]
    save(tmp_path, finite_description(problem, names))
    policy = load_policy(tmp_path)
    result = evaluate(policy, 1000, confidence=0.999)
    assert result.discounted_reward.student.low <= result.exact.reward <= result.discounted_reward.student.high
    for sampled, exact in zip(result.constraints, result.exact.risks, strict=True):
        assert sampled.free.low <= exact <= sampled.free.high
    # Playing again gives the same episodes, whatever the policy did in between.
    again = evaluate(policy, 1000, exact=False)
    np.testing.assert_array_equal(result.episodes.discounted_costs, again.episodes.discounted_costs)
    other = evaluate(policy, 1000, seed=1, exact=False)
    assert not np.array_equal(result.episodes.discounted_costs, other.episodes.discounted_costs)
    assert other.exact is None
    assert "cvar:0.5" in str(result)


# --- users' environments ----------------------------------------------------------------------------------------------


class Drift(gymnasium.Env):
    """Actions in [0, 4] x [-1, 0]; cost is how far the first one is from 2."""

    observation_space = gymnasium.spaces.Box(-1, 1, (5,))
    action_space = gymnasium.spaces.Box(np.array([0.0, -1.0]), np.array([4.0, 0.0]), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.normal(size=5).astype(np.float32), {}

    def step(self, action):
        assert self.action_space.contains(np.asarray(action, np.float64))
        self.steps += 1
        cost = [abs(float(action[0]) - 2) / 2, 0.0]
        return self.np_random.normal(size=5).astype(np.float32), 1.0, False, self.steps == 10, {"cost": cost}


def test_a_user_s_environment(tmp_path):
    save(tmp_path, box_description(low=(0.0, -1.0), high=(4.0, 0.0)))
    result = evaluate(tmp_path, 5, environment=Drift)
    assert list(result.episodes.length) == [10.0] * 5
    assert result.reward.mean == 10.0
    assert 0 < result.constraints[0].cost_rate < 1
    assert result.constraints[1].risk == 0.0
    path = tmp_path / "policy" / "policy.json"
    for name, words in [
        (f"{__name__}:Drift", None),
        ("os:getcwd", "is a module of Python itself"),
        ("no_such_module_at_all:Env", "cannot import"),
        ("nonsense", "no name leads to the environment"),
    ]:
        data = json.loads(path.read_text())
        data["task"]["name"] = name
        path.write_text(json.dumps(data))
        reseal(tmp_path / "policy")
        if words is None:
            assert evaluate(tmp_path, 5, trust=True).reward.mean == 10.0
            continue
        with pytest.raises(InputError, match=words):
            evaluate(tmp_path, 5, trust=True)


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finite_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "finite"
    folder.mkdir()
    save(folder, finite_description(random_problem(3, horizon=3), [constraint(limit=1.0)]))
    return folder


def test_evaluate_command(call, finite_run):
    code, out, err = call("evaluate", finite_run, "--episodes", 100, "--seed", 3, "--json")
    assert (code, err) == (0, "")
    shown = json.loads(out.splitlines()[-1])
    assert shown["episodes"] == 100
    assert set(shown["reward"]) >= {"mean", "low", "high"}
    (one,) = shown["constraints"]
    assert set(one) >= {"name", "risk_measure", "limit", "unit", "risk", "low", "high", "cost_rate", "verdict"}
    assert (one["risk_measure"], one["limit"], one["unit"]) == ("cvar:0.75", 1.0, "discounted")
    assert one["verdict"] in ("met", "violated", "cannot tell")
    assert set(shown["exact"]) >= {"reward", "risks", "optimum", "gap", "feasible"}
    assert {"run": str(finite_run)} | json.loads((finite_run / "evaluation.json").read_text()) == shown
    assert (finite_run / "evaluation.png").read_bytes().startswith(b"\x89PNG")
    code, out, _ = call("evaluate", finite_run / "policy", "--episodes", 50, "--deterministic", "--confidence", 0.8)
    assert code == 0
    for words in ("without sampling", "optimum", "cvar:0.75", "1/discounted", "likeliest"):
        assert words in out


def test_a_verdict_by_other_bounds_is_not_overwritten(tmp_path, call):
    save(tmp_path, finite_description(gamble()))
    for words, told in [
        ([], False),
        (["--seed", "1"], False),
        (["--interval", "bootstrap"], True),
        (["--interval", "bootstrap"], False),
    ]:
        code, _, err = call("evaluate", tmp_path, "--episodes", "20", "--json", *words)
        assert code == 0
        assert ("the evaluation by other bounds (cost: " in err) == told
    first = json.loads((tmp_path / "evaluation.distribution-free.json").read_text())
    assert (first["seed"], first["constraints"][0]["interval"]) == (1, "distribution-free")
    assert json.loads((tmp_path / "evaluation.json").read_text())["constraints"][0]["interval"] == "bootstrap"


def test_evaluate_every_seed_of_a_run(call, finite_run, tmp_path):
    for seed in (2, 10):
        shutil.copytree(finite_run / "policy", tmp_path / f"seed-{seed}" / "policy")
    code, out, _ = call("evaluate", tmp_path, "--episodes", 10, "--json")
    assert code == 0
    shown = json.loads(out.splitlines()[-1])["runs"]
    assert [entry["run"] for entry in shown] == [str(tmp_path / "seed-2"), str(tmp_path / "seed-10")]
    assert all((tmp_path / f"seed-{seed}" / "evaluation.png").is_file() for seed in (2, 10))
    assert call("evaluate", tmp_path, "--plot", tmp_path / "x.png")[0] == 2


def test_evaluate_without_matplotlib_says_so_and_goes_on(call, finite_run, monkeypatch):
    from tailsafe.cli import evaluate as module

    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    code, out, _ = call("evaluate", finite_run, "--episodes", 10)
    assert code == 0
    assert "no picture" in out


def test_mistakes_are_one_line(call, finite_run, tmp_path):
    for arguments, words in [
        (["evaluate", tmp_path / "nothing"], "no such run"),
        (["evaluate", finite_run, "--confidence", 2], "confidence"),
        (["evaluate", finite_run, "--interval", "guess"], "distribution-free or bootstrap"),
        (["evaluate", finite_run, "--episodes", 1], "episodes"),
        (["evaluate", finite_run, "--plot", tmp_path / "x.txt"], "picture ends in"),
        (["plot", tmp_path / "nothing"], "no such run"),
        (["plot", finite_run], "metrics.csv"),
    ]:
        code, out, err = call(*arguments)
        assert code == 2
        assert words in err
        assert err.count("\n") == 1
        assert out == ""


@pytest.mark.parametrize("task", ["point-goal", "tailsafe/PointGoal-v0"])
def test_a_policy_that_names_a_task_it_does_not_fit_is_one_line(call, tmp_path, task):
    described = box_description()
    save(tmp_path, dataclasses.replace(described, task=dataclasses.replace(described.task, name=task)))
    commands = (["evaluate"], ["certify", "--limit", "3/discounted"], ["render"], ["render", "--map"])
    for name, *options in commands:
        code, out, err = call(name, tmp_path, *options)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert "the policy takes 5" in err


METRICS = """steps,updates,seconds,reward,cost_rate_cost,risk_cost,limit_cost,sub_risk_cost,beta_cost_0,kl,violated
100,1,0.5,,0.1,,0.025,0.3,0.5,0.001,1.0
200,2,1.0,1.5,0.05,0.04,0.025,0.2,0.4,0.001,0.5
300,3,1.5,2.5,0.02,0.02,0.025,0.1,0.3,0.002,0.0
"""


def test_plot_command(call, tmp_path):
    for name in ("a", "b/seed-0", "b/seed-1"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "metrics.csv").write_text(METRICS)
    # A crash may cut the last line short.
    (tmp_path / "a" / "metrics.csv").write_text(METRICS + "400,4,2.0,3")
    code, out, _ = call("plot", tmp_path / "a")
    assert code == 0
    assert (tmp_path / "a" / "curves.png").read_bytes().startswith(b"\x89PNG")
    code, out, _ = call("plot", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "all.svg", "--json")
    assert json.loads(out.splitlines()[-1]) == {
        "picture": str(tmp_path / "all.svg"),
        "runs": ["a", "b/seed-0", "b/seed-1"],
    }
    assert (tmp_path / "all.svg").stat().st_size > 1000
