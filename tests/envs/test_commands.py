"""The commands `tasks`, `check-env` and `bench envs`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailsafe.bench.envs import bench_envs
from tailsafe.cli import main
from tailsafe.errors import InputError

MODULE = """
import gymnasium, numpy as np

class Good(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))
    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(2, np.float32), {}
    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), 0.0, False, self.steps == 5, self.info()
    def info(self):
        return {"cost": 1.0}

class Free(Good):
    def info(self):
        return {}
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    out, err = capsys.readouterr()
    return int(exit_info.value.code or 0), out, err


def test_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "tasks", "--json")
    rows = json.loads(out.splitlines()[-1])["tasks"]
    assert code == 0
    assert [(row["name"], row["observation_size"]) for row in rows] == [
        ("point-goal", 60),
        ("car-goal", 72),
        ("point-button", 76),
        ("car-button", 88),
        ("quadruped", 160),
        ("biped", 132),
    ]
    assert all(row["limits"] == ["0.025/step"] for row in rows[:4])
    assert all(row["limits"] == ["0.025/step", "0.025/step", "0.4/step"] for row in rows[4:])
    assert "tailsafe/CarButton-v0" in run(capsys, "tasks")[1]


def test_check_env(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_envs_to_check.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "check-env", "my_envs_to_check:Good", "--json")
    assert code == 0
    assert json.loads(out.splitlines()[-1])["fit"] is True
    code, out, _ = run(capsys, "check-env", "my_envs_to_check:Free")
    assert code == 1
    assert "no info['cost']" in out
    (tmp_path / "my_needy.py").write_text("import no_such")
    for name, message in (
        ("my_envs_to_check:Nothing", "has no 'Nothing'"),
        ("no_such_module:X", f"there is no module 'no_such_module' in {tmp_path}, and none is installed"),
        ("my_envs_to_chekc:Good", "did you mean my_envs_to_check?"),
        ("my_needy:X", f"cannot import 'my_needy': ModuleNotFoundError: No module named 'no_such' ({tmp_path}"),
        ("x", "unknown task"),
    ):
        code, out, err = run(capsys, "check-env", name)
        assert code == 2
        assert message in err
        assert len(err.splitlines()) == 1


def test_bench_envs() -> None:
    (row,) = bench_envs(["point-goal"], ["mujoco"], [2], steps=3)["results"]
    assert (row["task"], row["backend"], row["num_envs"]) == ("point-goal", "mujoco", 2)
    assert row["ratio"] == pytest.approx(row["steps_per_second"] / row["raw_steps_per_second"])
    with pytest.raises(InputError, match="backend"):
        bench_envs(["point-goal"], ["bullet"])
    with pytest.raises(InputError, match="unknown task"):
        bench_envs(["maze"])
