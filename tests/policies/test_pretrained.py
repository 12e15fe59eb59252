"""Policies that come with the package: each is judged, and none is ever written to."""

import dataclasses
import json
import runpy
import shutil
import sys
from pathlib import Path

import pytest

import tailsafe as ts
from tailsafe.files import read_object
from tailsafe.policies import pretrained
from tailsafe.policies.policy import load_policy, policy_digest
from tailsafe.policies.pretrained import HOME, own_copy, pretrained_names
from tailsafe.training.config import TrainConfig
from tailsafe.training.start import following, read_start
from tests.policies.hand_made import finite_description, save
from tests.tabular.problems import gamble

SCRIPT = Path(__file__).parents[2] / "scripts" / "pretrained.py"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("name", pretrained_names())
def test_every_one_is_small_and_judged(name):
    folder = HOME / name
    policy = load_policy(f"pretrained:{name}")
    assert sum(map(len, contents(folder).values())) < 4_000_000
    judged = read_object(folder / "evaluation.json")
    assert judged["episodes"] >= 2000
    assert judged["steps"] == policy.description.steps
    assert "violated" not in [one["verdict"] for one in judged["constraints"]]
    if policy.description.task.problem is not None:
        assert judged["exact"]["feasible"]
    else:
        assert all(one["risk"] <= one["limit"] for one in judged["constraints"])
    if (folder / "certificate.json").is_file():
        certificate = read_object(folder / "certificate.json")
        assert certificate["certified"]
        assert certificate["policy"] == policy_digest(folder)


def test_what_is_found_out_goes_into_the_users_folder(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = contents(HOME)
    code, out, _ = call("evaluate", "pretrained:two-roads", "--episodes", 20, "--json")
    assert code == 0
    assert json.loads(out)["run"] == "runs/pretrained-two-roads"
    own = Path("runs/pretrained-two-roads")
    assert read_object(own / "evaluation.json")["episodes"] == 20
    # Found at once, in a folder that was never searched: limit 4 is twice the risk.
    proof = ts.certify("pretrained:two-roads", 4.0, "discounted", episodes=512)
    assert proof.certified
    assert read_object(own / "policy" / "policy.json")["certificate"]["limit"] == 4.0
    assert ts.export("pretrained:two-roads").path == own / "export"
    code, _, _ = call("report", "pretrained:two-roads", "--out", "page.html")
    assert code == 0
    assert contents(HOME) == before
    # A copy of an earlier version is not taken for this one.
    (own / "policy" / "policy.safetensors").write_bytes(b"another")
    code, _, err = call("evaluate", "pretrained:two-roads")
    assert (code, err.count("\n")) == (2, 1)
    assert "another policy" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["evaluate", "pretrained:two-rods"], "did you mean pretrained:two-roads?"),
        (["evaluate", "pretrained:biped-that-flies"], "there are pretrained:"),
        (["render", "pretrained:../two-roads"], "no pretrained policy"),
        (["resume", "pretrained:two-roads"], "--from pretrained:two-roads"),
        (["train", "pretrained:two-roads"], "start from it with tailsafe train TASK --from pretrained:two-roads"),
    ],
)
def test_what_is_not_there_is_one_line_and_writes_nothing(call, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err
    assert not list(tmp_path.iterdir())


def test_tasks_say_what_is_there(call):
    _, out, _ = call("tasks")
    assert all(f"pretrained:{name}" in out for name in pretrained_names())
    _, out, _ = call("tasks", "--json")
    listed = json.loads(out)
    names = [name for task in [*listed["tasks"], listed["finite"]] for name in task["pretrained"]]
    assert sorted(names) == [f"pretrained:{name}" for name in pretrained_names()]


def test_a_run_can_start_from_one():
    start = read_start("pretrained:two-roads")
    settings = following(TrainConfig(task="finite", start="pretrained:two-roads"), start).settings
    assert settings["policy_hidden"] == start.policy.description.network.hidden
    assert settings["problem"] == start.policy.description.task.problem


def test_other_paths_are_left_alone():
    assert own_copy(Path("runs/a")) == Path("runs/a")


# --- the script that adds one -----------------------------------------------------------------------------------------


def add(monkeypatch: pytest.MonkeyPatch, home: Path, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments), "--home", str(home)])
    runpy.run_path(str(SCRIPT), run_name="__main__")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of a random policy."""
    folder = tmp_path / "run"
    save(folder, finite_description(gamble()))
    shutil.copy(HOME / "two-roads" / "config.json", folder)
    rows = "".join(f"{i},{i}.0\n" for i in range(1, 502))
    (folder / "metrics.csv").write_text("steps,reward\n" + rows, encoding="utf-8")
    return folder


def test_a_policy_is_added_with_verdict_and_certificate(run, tmp_path, monkeypatch):
    home = tmp_path / "home"
    add(monkeypatch, home, run, "gamble", "--episodes", 50, "--limit", "9.9/discounted", "--even-so")
    added = home / "gamble"
    assert (added / "policy/policy.safetensors").read_bytes() == (run / "policy/policy.safetensors").read_bytes()
    assert read_object(added / "evaluation.json")["episodes"] == 50
    certificate = read_object(added / "certificate.json")
    assert certificate["policy"] == policy_digest(run)
    rows = (added / "metrics.csv").read_text().splitlines()
    assert len(rows) <= 201
    assert rows[-1] == "501,501.0"
    assert "device" not in read_object(added / "config.json")
    monkeypatch.setattr(pretrained, "HOME", home)
    assert pretrained_names("finite") == ["gamble"]
    assert load_policy("pretrained:gamble").description.certificate["limit"] == 9.9
    with pytest.raises(SystemExit, match="exists already"):
        add(monkeypatch, home, run, "gamble", "--episodes", 50)


def test_a_policy_that_breaks_its_limit_is_not_added(run, tmp_path, monkeypatch):
    # A random network gambles now and then; its risk is far above a hundredth.
    described = finite_description(gamble())
    strict = dataclasses.replace(described.constraints[0], limit=0.01, discounted_limit=0.01)
    save(run, dataclasses.replace(described, constraints=(strict,)))
    home = tmp_path / "home"
    with pytest.raises(SystemExit, match="exceeds the limit"):
        add(monkeypatch, home, run, "gamble", "--episodes", 50)
    assert not list(home.iterdir())
