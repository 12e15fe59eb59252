"""PROBLEM.json: what is read, and how each kind of mistake is named."""

import json
from pathlib import Path

import numpy as np
import pytest

import tailsafe as ts
from tests.tabular.problems import random_problem

EXAMPLE = Path(__file__).parents[2] / "examples" / "two_roads.json"


def valid():
    return random_problem(0, states=2, actions=2, horizon=3).to_dict()


def test_the_example_loads():
    problem = ts.FiniteCMDP.load(EXAMPLE)
    assert (problem.states, problem.actions, problem.num_costs, problem.horizon) == (4, 2, 1, 6)


def test_round_trip(tmp_path):
    problem = random_problem(1, costs=2)
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(problem.to_dict()))
    again = ts.FiniteCMDP.load(path)
    for name in ("initial", "transitions", "rewards", "costs"):
        np.testing.assert_allclose(getattr(again, name), getattr(problem, name), rtol=1e-15)


def test_probabilities_typed_with_six_digits_are_made_exact():
    data = valid() | {"initial": [0.333333, 0.666667]}
    data["transitions"][0][0] = [0.333333, 0.666666]
    problem = ts.FiniteCMDP.from_dict(data)
    assert problem.transitions.sum(-1) == pytest.approx(1.0, abs=1e-15)


def spoil(path, value):
    data = valid()
    target = data
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return data


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ([], "a problem is an object"),
        ({"horizon": 3}, "lacks discount, initial, transitions, rewards, costs"),
        (valid() | {"gamma": 0.9}, "unknown key 'gamma'"),
        (valid() | {"horizon": 0}, "horizon is 0"),
        (valid() | {"horizon": 2.5}, "horizon is 2.5"),
        (valid() | {"horizon": "three"}, "horizon is 'three'"),
        (valid() | {"horizon": True}, "horizon is True"),
        (valid() | {"discount": 0}, "discount is 0"),
        (valid() | {"discount": 1.1}, "discount is 1.1"),
        (valid() | {"discount": float("nan")}, "discount is nan"),
        (spoil(["transitions", 1, 0], [0.5, 0.4]), r"transitions\[1\]\[0\] sums to 0.9"),
        (spoil(["transitions", 1, 0], [1.5, -0.5]), r"transitions\[1\]\[0\]\[1\] is -0.5"),
        (spoil(["transitions", 1, 1], [1.0]), r"transitions\[1\]\[1\] is a list of 1, its neighbours are a list of 2"),
        (spoil(["transitions", 0, 1], 3), r"transitions\[0\]\[1\] is a number, its neighbours are a list of 2"),
        (valid() | {"transitions": [[[1.0]]]}, r"initial has shape \(2,\); it must be initial\[S\] with S = 1"),
        (valid() | {"transitions": [[[0.5, 0.5]]]}, r"transitions has shape \(1, 1, 2\)"),
        (valid() | {"initial": [0.5, 0.6]}, "initial sums to 1.1"),
        (valid() | {"initial": [1.0]}, r"initial has shape \(1,\)"),
        (spoil(["rewards", 0, 1], float("nan")), r"rewards\[0\]\[1\] is nan"),
        (spoil(["rewards", 0, 1], "much"), r"rewards\[0\]\[1\] is 'much'"),
        (spoil(["costs", 0, 1, 0], -1.0), r"costs\[0\]\[1\]\[0\] is -1"),
        (valid() | {"costs": [[0.0, 1.0], [1.0, 0.0]]}, r"costs has shape \(2, 2\)"),
        (spoil(["rewards", 0, 1], "1"), r"rewards\[0\]\[1\] is '1'"),
        (spoil(["rewards", 0, 1], True), r"rewards\[0\]\[1\] is True"),
        (spoil(["rewards", 0, 1], None), r"rewards\[0\]\[1\] is None"),
        (spoil(["rewards", 0, 1], 10**400), "rewards: int too large"),
        (valid() | {"horizon": 10**400}, "horizon is inf"),
        (valid() | {"horizon": 10**13}, "from 1 to 1000"),
        (valid() | {"discount": 1e-6}, "shorten the horizon"),
        (valid() | {"costs": []}, r"costs has shape \(0,\)"),
        (valid() | {"rewards": [[1.0, 0.0]]}, r"rewards has shape \(1, 2\); it must be rewards\[S\]\[A\] with S = 2"),
    ],
)
def test_mistakes_are_named_by_place(data, reason):
    with pytest.raises(ts.InputError, match=reason):
        ts.FiniteCMDP.from_dict(data)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not a problem"),
        (b"1" * 5000, "not a problem"),
        (b"\xff\xfe\x00", "not a text file"),
        (b"[1]", "a problem is an object"),
        (None, "No such file"),
    ],
)
def test_unreadable_files_are_named(tmp_path, content, reason):
    path = tmp_path / "problem.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ts.InputError, match=rf"problem\.json: .*{reason}"):
        ts.FiniteCMDP.load(path)
