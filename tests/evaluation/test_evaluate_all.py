"""`scripts/device/evaluate_all.py`: many runs judged by a process per core."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tailsafe.evaluation.environments import open_stage
from tailsafe.evaluation.episodes import play
from tailsafe.policies.policy import load_policy
from tailsafe.policies.pretrained import pretrained_folder

ROOT = Path(__file__).parents[2]


def judge(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/device/evaluate_all.py", *map(str, arguments)]
    paths = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    return subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be kept on one core here")
def test_runs_are_judged_in_parts_and_only_once(tmp_path):
    run, missing, out = pretrained_folder("pretrained:two-roads"), tmp_path / "missing", tmp_path / "out.jsonl"
    done = judge(out, 300, run, missing, "--seed", 2)
    assert done.returncode == 1, done.stderr
    judged, failed = map(json.loads, out.read_text().splitlines())
    policy = load_policy(run)
    first, second = (
        play(policy, open_stage(policy.description, size), size, seed) for size, seed in ((256, 2000), (44, 2001))
    )
    episodes = first.followed_by(second)
    assert (judged["run"], judged["episodes"], judged["seed"]) == (str(run), 300, 2)
    assert judged["reward"]["mean"] == episodes.reward.mean()
    constraint = policy.description.constraints[0]
    assert judged["constraints"][0]["discounted_risk"] == constraint.measure.risk(episodes.discounted_costs[:, 0])
    assert failed["run"] == str(missing)
    assert "no such run" in failed["error"]
    # The report is there already; what failed is tried again.
    again = judge(out, 300, run, missing, "--seed", 2)
    assert again.returncode == 1
    assert "1 runs to judge, 1 are there" in again.stderr
    assert [json.loads(line)["run"] for line in out.read_text().splitlines()[2:]] == [str(missing)]
