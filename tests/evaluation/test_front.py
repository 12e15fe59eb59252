"""`tailsafe front` on hand-made policies of a finite problem."""

import json

import pytest

from tests.policies.hand_made import constraint, finite_description, save
from tests.tabular.problems import gamble, random_problem


def test_runs_for_several_limits_are_a_front(tmp_path, call):
    runs = []
    for seed, limit in enumerate((0.5, 2.0)):
        runs.append(tmp_path / f"run{seed}")
        save(runs[-1], finite_description(gamble(), [constraint("cost", limit=limit)]), seed)
    picture = tmp_path / "front.png"
    code, out, _ = call("front", *runs, "--episodes", "60", "--out", picture, "--json")
    assert code == 0
    result = json.loads(out.splitlines()[-1])
    assert [point["limit"] for point in result["points"]] == [[0.5], [2.0]]
    for point in result["points"]:
        assert point["reward"]["low"] <= point["reward"]["mean"] <= point["reward"]["high"]
        (risk,) = point["risks"]
        assert risk["low"] <= risk["risk"] <= risk["high"]
    assert json.loads((tmp_path / "front.json").read_text()) == result
    assert picture.stat().st_size > 1000
    # One run by itself is a point; what it wrote is in its folder.
    code, out, _ = call("front", runs[0], "--episodes", "20")
    assert code == 0
    assert (runs[0] / "front.json").is_file()
    assert "0.5/discounted" in out


@pytest.mark.parametrize("words", [["nowhere"], ["RUN", "--episodes", "1"], ["RUN", "OTHER"]])
def test_bad_input_is_refused(tmp_path, words, call):
    save(tmp_path / "run", finite_description(gamble()))
    save(tmp_path / "other", finite_description(random_problem(0, costs=2)))
    named = {"RUN": tmp_path / "run", "OTHER": tmp_path / "other"}
    assert call("front", *[named.get(word, word) for word in words])[0] == 2
    assert not (tmp_path / "run" / "front.json").exists()
