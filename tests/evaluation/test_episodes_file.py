"""episodes.csv: the samples behind an evaluation, whole or not at all, and the same numbers when read back."""

import csv
import dataclasses
import json

import numpy as np
import pytest

import tailsafe as ts
from tailsafe.errors import InputError
from tailsafe.evaluation.episodes import Episodes, read_episodes
from tests.policies.hand_made import constraint, finite_description, save
from tests.tabular.problems import random_problem


def test_the_episodes_behind_an_evaluation_are_kept(call, tmp_path, monkeypatch):
    run = tmp_path / "run"
    save(run, finite_description(random_problem(3, horizon=3), [constraint(limit=1.0)]))
    code, out, _ = call("evaluate", run, "--episodes", 30, "--json")
    assert code == 0
    shown = json.loads(out.splitlines()[-1])
    with (run / "episodes.csv").open(newline="") as handle:
        header, *rows = csv.reader(handle)
    assert header == ["reward", "discounted_reward", "length", "cost_cost", "discounted_cost_cost"]
    table = np.array(rows, float)
    assert len(table) == 30
    assert table[:, 0].mean() == pytest.approx(shown["reward"]["mean"], rel=1e-12)
    assert (table[:, 2] == 3).all()
    (judged,) = shown["constraints"]
    assert ts.CVaR(0.75).risk(table[:, 4]) == pytest.approx(judged["discounted_risk"], rel=1e-12)
    assert table[:, 3].sum() / table[:, 2].sum() == pytest.approx(judged["cost_rate"], rel=1e-12)
    # The very same numbers come back; with two costs, each in its own columns.
    rng = np.random.default_rng(0)
    one, two = rng.normal(size=(3, 7)), rng.normal(size=(2, 7, 2))
    kept = tmp_path / "new" / "two.csv"
    kept.parent.mkdir()
    Episodes(*one, *two).save(kept, ["a,b", "c"])
    again, names = read_episodes(kept)
    assert names == ("a,b", "c")
    for field, wanted in zip(dataclasses.fields(Episodes)[:5], (*one, *two), strict=True):
        assert np.array_equal(getattr(again, field.name), wanted)
    # A write that fails leaves what was there.
    before = kept.read_bytes()
    monkeypatch.setattr("tailsafe.files.os.replace", refuse)
    with pytest.raises(InputError, match="no room"):
        again.save(kept, ["a", "b"])
    assert [path.name for path in kept.parent.iterdir()] == ["two.csv"]
    assert kept.read_bytes() == before


def refuse(*_):
    raise OSError(28, "no room")


GOOD = "reward,discounted_reward,length,cost_a,discounted_cost_a\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "its columns"),
        ("reward\n1\n", "its columns"),
        (GOOD.replace("discounted_cost_a", "discounted_cost_b") + "1,1,1,1,1\n", "its columns"),
        (GOOD, "holds no episode"),
        (GOOD + "1,1,1,1\n", "line 2 has 4 cells; the header has 5"),
        (GOOD + "1,1,1,1,1\n1,1,1,one,1\n", "line 3 holds something that is not a finite number"),
        (GOOD + "1,1,1,nan,1\n", "line 2 holds something"),
    ],
)
def test_episodes_that_cannot_be_read_name_the_place(tmp_path, content, words):
    path = tmp_path / "episodes.csv"
    path.write_text(content)
    with pytest.raises(InputError, match=words):
        read_episodes(path)
