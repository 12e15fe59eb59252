"""One adapter for users' environments: the same spaces, the same complaints, wherever one is used."""

from __future__ import annotations

import gc
import json
import multiprocessing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tailsafe.envs.checking import check_environment
from tailsafe.envs.copies import Copies, seeds_of
from tailsafe.envs.declarations import declared_costs
from tailsafe.envs.finding import Source, find_environment, parse_arguments
from tailsafe.envs.metrics import Metric, Running
from tailsafe.envs.spaces import action_space, observation_space
from tailsafe.envs.trust import check_trusted, chosen_source, is_known, remember
from tailsafe.envs.user import GymnasiumEnvironments, user_environments
from tailsafe.envs.wrappers import CostFromStep
from tailsafe.errors import InputError
from tests.envs.own import ACTIONS, OBSERVATIONS, WRONG, BadEnd, Moves, Own, SixValues, SpeedCost, variant


@pytest.mark.parametrize("kind", OBSERVATIONS)
def test_observations_are_flattened_as_gymnasium_does(kind: str) -> None:
    space = OBSERVATIONS[kind]
    space.seed(1)
    samples = [space.sample() for _ in range(5)]
    wanted = np.stack([spaces.flatten(space, sample) for sample in samples]).astype(np.float32)
    described = observation_space(space)
    np.testing.assert_array_equal(described.rows(samples), wanted)
    one, single = described.encode(samples[0])
    assert single
    np.testing.assert_array_equal(one, wanted[:1])
    flat, single = described.encode(wanted)
    assert not single
    np.testing.assert_array_equal(flat, wanted)
    batch = gymnasium.vector.utils.concatenate(space, samples, gymnasium.vector.utils.create_empty_array(space, 5))
    rows, single = described.encode(batch)
    assert not single
    np.testing.assert_array_equal(rows, wanted)


@pytest.mark.parametrize("kind", ACTIONS)
def test_actions_fill_their_space(kind: str) -> None:
    """Every action is one of the space's, ends are reached, and numbers of choices are all different."""
    space = ACTIONS[kind]
    described = action_space(space)
    if described.kind == "discrete":
        actions = described.decode(np.eye(described.size))
        assert len({str(action) for action in actions}) == described.size
    else:
        actions = described.decode(np.linspace(-1.5, 1.5, 7)[:, None] * np.ones(described.size))
        assert np.array_equal(actions[0], space.low)
        assert np.array_equal(actions[-1], space.high)
    for action in actions:
        assert space.contains(described.one(action))


def played(make: Any) -> None:
    """As training does."""
    environments = GymnasiumEnvironments(find_environment(make), 2)
    environments.reset(0)
    for _ in range(5):
        environments.step(np.zeros((2, environments.spec.actions.size), np.float32))


@pytest.mark.parametrize("reason", WRONG)
def test_what_is_wrong_is_refused_alike(reason: str) -> None:
    """By the checker with one finding, and by training's environments with the same words."""
    make, words = WRONG[reason]
    (problem,) = [finding.problem for finding in check_environment(make) if not finding.passed]
    assert words in problem
    assert "\n" not in problem
    with pytest.raises(InputError) as failure:
        played(make)
    assert words in str(failure.value)


@pytest.mark.parametrize("reason", WRONG)
def test_what_is_wrong_at_once_is_refused_when_it_is_built(reason: str) -> None:
    """Before a run's folder is made, which would be in the way of the next attempt."""
    make, words = WRONG[reason]
    with pytest.raises(InputError) as failure:
        user_environments(find_environment(make), 2)
    assert words in str(failure.value)


@pytest.mark.parametrize("when", ["built", "reset", "stepped"])
def test_the_current_folder_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    """A run with a relative name would end up elsewhere, or in two places."""
    (tmp_path / "theirs").mkdir()
    monkeypatch.chdir(tmp_path)

    def moves() -> Moves:
        return Moves(str(tmp_path / "theirs"), when)

    environments = user_environments(find_environment(moves), 2)
    assert Path.cwd() == tmp_path
    environments.reset(0)
    assert Path.cwd() == tmp_path
    environments.step(np.zeros((2, environments.spec.actions.size), np.float32))
    assert Path.cwd() == tmp_path
    assert [record.message for record in caplog.records] == [
        f"environment moves: changed the current folder to {tmp_path / 'theirs'}; it is {tmp_path} again, where the "
        "files of this run go"
    ]


def test_an_observation_beyond_single_precision_is_one_error(recwarn: pytest.WarningsRecorder) -> None:
    """Not a warning of NumPy's before it, nor a FloatingPointError where somebody has asked for those."""
    space = spaces.Box(1e299, 1e300, (2,), np.float64)
    with np.errstate(over="raise"), pytest.raises(InputError, match="NaN or infinity"):
        played(variant(observation_space=space))
    with pytest.raises(InputError, match="NaN or infinity"):
        played(variant(observation_space=space))
    assert not recwarn.list


def test_an_error_while_closing_hides_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Not even a SystemExit(0), which would end a program as if all were well."""
    copies = Copies(BadEnd, 2, "bad end")
    copies.close()
    assert [record.message.partition(" (")[0] for record in caplog.records] == [
        "environment bad end: close raised an error: SystemExit: 0"
    ] * 2


@pytest.mark.parametrize("observed", OBSERVATIONS)
def test_every_space_is_fit(observed: str) -> None:
    for space in ACTIONS.values():
        env = variant(observation_space=OBSERVATIONS[observed], action_space=space)
        assert all(finding.passed for finding in check_environment(env))


def test_advice_is_no_obstacle() -> None:
    def limited() -> Any:
        return gymnasium.wrappers.TimeLimit(Own(length=9), 4)

    findings = check_environment(limited)
    assert all(finding.passed for finding in findings)
    advice = " ".join(finding.advice for finding in findings)
    for words in ("after 4 steps the episode was truncated", "declare largest_costs", "no name leads to it"):
        assert words in advice
    assert Copies(limited, 1, "limited").layout.episode_length == 4


def test_costs_are_declared_by_wrappers_too() -> None:
    wrapped = gymnasium.wrappers.TimeLimit(SpeedCost(Own()), 5)
    costs = declared_costs(wrapped, 1)
    assert (costs.names, costs.largest) == (("speed",), (1.0,))
    assert Copies(lambda: wrapped, 1, "wrapped").layout.costs == costs


def test_six_values() -> None:
    """As they are, and through the wrapper that lets others wrap them."""
    for make in (SixValues, lambda: gymnasium.wrappers.TimeLimit(CostFromStep(SixValues()), 2)):
        copies = Copies(make, 1, "six")
        copies.reset([0])
        assert copies.step(np.zeros((1, 2), np.float32)).costs.tolist() == [[0.5]]


def test_six_values_inside_of_another_wrapper_are_explained() -> None:
    with pytest.raises(InputError, match=r"six values.*ts\.CostFromStep\(env\) belongs inside"):
        Copies(lambda: gymnasium.wrappers.TimeLimit(SixValues(), 2), 1, "six")


def test_metrics_sum_up_an_episode() -> None:
    metrics = {"speed": 3.0, "mean:speed": 2.0, "sum:speed": 6.0, "min:speed": 1.0, "max:success": 1.0}
    running = Running([Metric.parse(text) for text in metrics], 1)
    for time in (1, 2, 3):
        running.add(0, {"speed": float(time), "success": time == 2})
    assert running.values[0].tolist() == list(metrics.values())
    environments = GymnasiumEnvironments(find_environment(Own), 2, metrics=[Metric("success")])
    environments.reset(0)
    assert environments.followed() == {"success": None}
    for _ in range(3):
        environments.step(np.zeros((2, 2), np.float32))
    assert environments.followed() == {"success": 1.0}
    # Before anything of a run is written.
    with pytest.raises(InputError, match="environment own: info has no 'distance'"):
        Copies(Own, 1, "own", [Metric("distance")])
    with pytest.raises(InputError, match="WAY"):
        Metric.parse("often:success")


@pytest.mark.slow
def test_processes_step_as_this_one_does() -> None:
    """Bit for bit, with errors of a process as one line here."""
    found = find_environment("tests.envs.own:Own")
    here, there = (GymnasiumEnvironments(found, 4, workers=w, metrics=[Metric("speed")]) for w in (1, 2))
    try:
        np.testing.assert_array_equal(here.reset(3), there.reset(3))
        for step in range(7):
            actions = np.random.default_rng(step).uniform(-1, 1, (4, 2)).astype(np.float32)
            one, two = here.step(actions), there.step(actions)
            for leaf in ("next_observation", "observation", "reward", "costs", "terminated", "truncated"):
                np.testing.assert_array_equal(getattr(one, leaf), getattr(two, leaf))
        assert here.followed() == there.followed() == {"speed": 3.0}
    finally:
        there.close()


@pytest.mark.parametrize(
    ("name", "num_envs", "words"),
    [
        ("Dies", 2, "one of its processes ended unexpectedly"),
        # In the block of this process, while the others still step theirs.
        ("FailsAtHome", 4, "step raised an error: RuntimeError: not here"),
    ],
)
def test_a_process_that_fails_is_one_line(
    name: str, num_envs: int, words: str, recwarn: pytest.WarningsRecorder
) -> None:
    """Nothing is left of the others, and closing what is left of it hides that line no more."""
    environments = user_environments(find_environment(f"tests.envs.own:{name}"), num_envs, workers=2)
    environments.reset(0)
    actions = np.zeros((num_envs, 2), np.float32)
    environments.step(actions)
    with pytest.raises(InputError, match=words):
        environments.step(actions)
    environments.close()
    del environments
    gc.collect()
    assert not multiprocessing.active_children()
    assert not recwarn.list


def test_what_gymnasium_s_robots_need_is_said() -> None:
    def make() -> Any:
        raise ModuleNotFoundError("No module named 'imageio'", name="imageio")

    with pytest.raises(InputError, match=r"pip install 'gymnasium\[mujoco\]'"):
        user_environments(find_environment(make), 1)


# --- names and trust --------------------------------------------------------------------------------------------------

MODULE = """
import gymnasium
from tests.envs.own import Own

class Mine(Own):
    pass

def make_mine(length=3):
    return Mine(length)

number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "mine.py"


def test_forms_of_names(module: Path) -> None:
    for name, arguments in (("mine:Mine", {"length": 7}), ("mine:make_mine", {"length": 7}), ("./mine.py:Mine", {})):
        found = find_environment(name, arguments)
        assert found.make().length == arguments.get("length", 3)
        assert found.source is not None
        again = find_environment(Source.from_json(json.loads(json.dumps(found.source.to_json()))))
        assert again.make().length == arguments.get("length", 3)
    assert found.source.reference == f"{module}:Mine"
    assert parse_arguments(["size=5", "name=five", "flag=true", "list=[1, 2]"]) == {
        "size": 5,
        "name": "five",
        "flag": True,
        "list": [1, 2],
    }


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sys:exit", "Python itself"),
        ("builtins:input", "Python itself"),
        ("os:system", "Python itself"),
        (":X", "form MODULE:CLASS"),
        ("mine:number", "neither a Gymnasium environment"),
        ("mine:Mime", "did you mean Mine"),
        ("gone.py:Mine", "no such file"),
        ("numpy:zeros", "neither a Gymnasium environment"),
        ("no_such_module:X", "there is no module 'no_such_module'"),
        ("broken:X", "broken.py, line 2"),
        ("needy:X", "needy.py, line 1"),
        ("leaves:X", "leaves.py, line 2"),
    ],
)
def test_what_is_no_environment_is_one_line(module: Path, name: str, words: str) -> None:
    (module.parent / "broken.py").write_text("x = 1\nclass X(:\n")
    (module.parent / "needy.py").write_text("import no_such_dependency\n")
    (module.parent / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(InputError) as failure:
        find_environment(name)
    assert words in str(failure.value)
    assert "\n" not in str(failure.value)


def test_the_place_of_a_missing_dependency_is_the_users_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of Python's own library, which was asked to import it: Gymnasium finds its environments this way."""
    (tmp_path / "lazy.py").write_text(
        "import importlib\n\ndef make():\n    return importlib.import_module('no_such_dependency')\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"No module named 'no_such_dependency' \(.*lazy\.py, line 4\)$"):
        user_environments(find_environment("lazy:make"), 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, r"missing 1 required positional argument: 'size'; its arguments .* are: size, colour='red'$"),
        ({"siz": 3}, r"unexpected keyword argument 'siz'.*; its arguments .* are: size, colour='red'$"),
        # Its own mistake, whose place is said.
        ({"size": "x"}, r"line 3\)$"),
    ],
)
def test_wrong_arguments_are_told_the_right_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], words: str
) -> None:
    (tmp_path / "sized.py").write_text("def make(size, colour='red'):\n    # Not of a text.\n    return size - 1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=words):
        user_environments(find_environment("sized:make", arguments), 1)


def test_a_strangers_run_imports_nothing(module: Path, tmp_path: Path) -> None:
    """Unless the user has trained on exactly this, or says so now."""
    source = find_environment("mine:Mine", {"length": 4}).source
    assert source is not None
    marker = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(marker)!r}, 'w')\n")
    evil = Source("evil:Evil", {}, str(tmp_path))
    for stranger in (source, evil):
        with pytest.raises(InputError, match="--trust"):
            check_trusted(stranger)
        with pytest.raises(InputError, match="--trust"):
            chosen_source(stranger)
    assert not marker.exists()
    remember(source)
    assert is_known(source)
    assert chosen_source(source) == source
    for other in (Source("mine:Mine", {"length": 5}, source.folder), Source("mine:Mine", {"length": 4}, "/elsewhere")):
        assert not is_known(other)
    assert chosen_source(evil, "mine:Mine").reference == "mine:Mine"
    assert chosen_source(evil, trust=True) == evil
    check_trusted(Source("CartPole-v1"))
    with pytest.raises(InputError, match="--trust"):
        check_trusted(Source("CartPole-v1", {"render_mode": "human"}))


def test_a_copy_is_built_once_more_than_needed_by_nobody() -> None:
    built: list[int] = []

    def make() -> Own:
        built.append(1)
        return Own()

    user_environments(find_environment(make), 3)
    assert len(built) == 3
    assert seeds_of(3, 4)[:2] == seeds_of(3, 4)[:2]
    assert len(set(seeds_of(3, 4))) == 4
