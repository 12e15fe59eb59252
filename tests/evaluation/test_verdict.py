"""Evaluation: verdicts and units on constructed samples, exact figures against enumeration, the commands end to end."""

import dataclasses
import json
import shutil

import gymnasium
import numpy as np
import pytest

import tailsafe as ts
from tailsafe.errors import InputError
from tailsafe.evaluation.bounds import Interval, largest_return, mean_report
from tailsafe.evaluation.constraint_report import constraint_report, verdict
from tailsafe.evaluation.episodes import Episodes, play
from tailsafe.evaluation.exact import evaluate_on_problem, tabulate
from tailsafe.evaluation.verdict import evaluate
from tailsafe.learning.actions import BoxActions
from tailsafe.learning.chunks import Transition
from tailsafe.learning.interface import EnvironmentSpec
from tailsafe.policies.policy import load_policy
from tailsafe.risk.bootstrap import bootstrap_interval
from tailsafe.tabular.augmented import augment
from tests.policies.hand_made import box_description, constraint, describe, finite_description, reseal, save
from tests.tabular.problems import gamble, random_problem, trajectories


def episodes_with(discounted, costs=None, length=10.0):
    """Episodes with given discounted costs (n,) of one cost; the rest is plain."""
    column = np.asarray(discounted, float)[:, None]
    rows = np.full(len(column), 1.0)
    return Episodes(rows, rows, length * rows, column if costs is None else costs, column)


def one_cost(spec="cvar:0.75", limit=1.0, unit="discounted", discounted_limit=None, gamma=0.9, largest=1.0, length=10):
    environment = EnvironmentSpec("box", 3, BoxActions(1), ("cost",), length, (largest,))
    return describe(environment, [constraint("cost", spec, limit, unit, discounted_limit)], gamma)


# --- verdicts, units, bounds ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.1, 0.9, "met"),
        (0.1, 1.0, "met"),
        (0.5, 1.1, "cannot tell"),
        (1.0, 1.1, "cannot tell"),
        (1.1, 2.0, "violated"),
        (0.2, np.inf, "cannot tell"),
        (1.2, np.inf, "violated"),
    ],
)
def test_verdict(low, high, expected):
    assert verdict(Interval(low, high), 1.0) == expected


def test_constructed_samples_get_the_verdict_they_deserve():
    # 0.9^10: the largest discounted sum is (1 - 0.349) / 0.1 = 6.51 for costs up to 1.
    description = one_cost(limit=3.0)
    assert largest_return(description, 0) == pytest.approx((1 - 0.9**10) / 0.1, rel=1e-5)
    rng = np.random.default_rng(0)
    for samples, expected in [
        (rng.uniform(0, 0.5, 5000), "met"),
        (rng.uniform(3.5, 6, 5000), "violated"),
        # CVaR_0.75 of U(1.5, 3.1) is 2.9: too near to the limit for 40 episodes.
        (rng.uniform(1.5, 3.1, 40), "cannot tell"),
    ]:
        report = constraint_report(description, 0, episodes_with(samples), 0.95)
        assert report.verdict == expected
        assert report.free.low <= report.bootstrap.low <= report.risk <= report.bootstrap.high <= report.free.high
        assert report.risk == float(ts.CVaR(0.75).risk(samples))


def test_a_few_episodes_cannot_confirm_a_limit_and_say_how_many_could():
    description = one_cost(limit=1.0)
    samples = np.tile([0.0, 0.0, 0.0, 0.5], 10)
    report = constraint_report(description, 0, episodes_with(samples), 0.95)
    assert report.verdict == "cannot tell"
    needed = report.episodes_needed
    assert needed > 40
    enough = constraint_report(description, 0, episodes_with(np.tile(samples, needed // 40)), 0.95)
    assert enough.verdict == "met"
    assert enough.episodes_needed is None
    by_bootstrap = constraint_report(description, 0, episodes_with(samples), 0.95, "bootstrap")
    # CVaR_0.75 of 40 episodes rests on 10 of them; of 200, on 50.
    assert by_bootstrap.tail_episodes == pytest.approx(10)
    assert by_bootstrap.verdict == "cannot tell"
    by_bootstrap = constraint_report(description, 0, episodes_with(np.tile(samples, 5)), 0.95, "bootstrap")
    assert by_bootstrap.verdict == "met (bootstrap, no guarantee)"
    shown = by_bootstrap.to_json()
    assert (shown["low"], shown["high"]) == (shown["bootstrap"]["low"], shown["bootstrap"]["high"])


def test_the_bootstrap_says_nothing_of_costs_that_are_all_zero():
    """One episode in 200 costs the most; a hundred that did not meet one are no proof."""
    report = constraint_report(one_cost(limit=0.1), 0, episodes_with(np.zeros(200)), 0.95, "bootstrap")
    assert report.bootstrap == report.free
    assert report.bootstrap.high > 0.1
    assert report.verdict == "cannot tell"


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


def test_units():
    samples = np.linspace(0, 2, 201)
    for unit, limit, factor in [("discounted", 1.0, 1.0), ("step", 0.1, 0.1), ("episode", 1.0, 10 * 0.1)]:
        description = one_cost("mean", limit, unit, 1.0)
        report = constraint_report(description, 0, episodes_with(samples, costs=3 * samples[:, None]), 0.9)
        assert report.risk == pytest.approx(factor * 1.0)
        assert report.discounted_risk == pytest.approx(1.0)
        # 3 per episode of 10 steps
        assert report.cost_rate == pytest.approx(0.3)
        assert report.to_json()["limit"] == limit


def test_units_of_a_finite_problem_and_of_a_limit_of_zero():
    # gamma 1, horizon 2: a limit of 1 per step is one of 2 on the sum.
    description = finite_description(gamble(), [constraint("cost", "mean", 1.0, "step", 2.0)])
    assert description.unit_factor(description.constraints[0]) == 0.5
    for unit, factor in [("discounted", 1.0), ("step", 0.5), ("episode", 1.0)]:
        description = finite_description(gamble(), [constraint("cost", "mean", 0.0, unit)])
        assert description.unit_factor(description.constraints[0]) == factor
    for unit, factor in [("discounted", 1.0), ("step", 0.1), ("episode", 1.0)]:
        description = one_cost("mean", 0.0, unit)
        assert description.unit_factor(description.constraints[0]) == pytest.approx(factor)


def test_no_upper_bound_without_a_largest_cost_or_with_a_wrong_one():
    samples = np.linspace(0, 2, 100)
    unknown = constraint_report(one_cost(limit=1.8, largest=np.inf), 0, episodes_with(samples), 0.95)
    assert unknown.to_json()["high"] is None
    assert unknown.verdict == "cannot tell"
    wrong = constraint_report(one_cost(largest=0.1), 0, episodes_with(samples), 0.95)
    assert wrong.to_json()["high"] is None
    json.dumps(unknown.to_json(), allow_nan=False)
    # The critics' cap is no bound on what the environment can do.
    capped = dataclasses.replace(one_cost(limit=1.8, largest=np.inf), largest_return=(1000.0,))
    assert constraint_report(capped, 0, episodes_with(samples), 0.95).verdict == "cannot tell"


def test_bounds_of_a_mean():
    report = mean_report(np.array([1.0, 2.0, 3.0, 4.0]), 0.95, 0)
    # mean 2.5, std 1.2910, t_{3, 0.975} = 3.1824: half width 3.1824 * 1.2910 / 2 = 2.0543
    assert report.mean == 2.5
    assert report.student.high == pytest.approx(2.5 + 2.0543, abs=1e-4)
    assert 1.0 <= report.bootstrap.low < 2.5 < report.bootstrap.high <= 4.0


def test_bootstrap_covers_about_as_often_as_it_says(report):
    """CVaR_0.75 of an exponential is 1 + log 4; 200 samples, 200 repetitions."""
    rng, truth, hits = np.random.default_rng(0), 1 + np.log(4), 0
    for k in range(200):
        low, high = bootstrap_interval(ts.CVaR(0.75), rng.exponential(size=200), 0.9, resamples=300, seed=k)
        hits += low <= truth <= high
    report("bootstrap CVaR coverage at 0.9", hits / 200)
    assert 0.8 <= hits / 200 <= 0.97


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


# --- exactly ----------------------------------------------------------------------------------------------------------


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
