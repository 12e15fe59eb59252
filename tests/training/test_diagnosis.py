"""What `tailsafe diagnose` says: signals against their closed form, and a whole diagnosis of a tiny run."""

import json
import shutil
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import tailsafe as ts
from tailsafe.learning.trust_region import agreement
from tailsafe.tabular.suite import gamble
from tailsafe.training.diagnosis import signal_of
from tests.training.tiny import finite_config


def test_agreement_of_halves_is_their_cosine():
    halves = jnp.asarray([[[1.0, 0.0], [2.0, 0.0]], [[1.0, 1.0], [0.0, 3.0]]])
    # In the identity's metric: cos 45 degrees, and 0.
    np.testing.assert_allclose(agreement(halves, halves), [np.sqrt(0.5), 0.0], atol=1e-6)
    assert not np.any(np.asarray(agreement(0 * halves, 0 * halves)))


def test_signal_and_rows_needed_of_known_noise():
    """g = (2, 0, ...) + noise of variance 0.08 in 100 coordinates: S^2 = 4, N^2 = 8 with 1,000 rows.

    Halves of an update of 4,000 rows have 2,000 each: cosine 4 / (4 + 8 / 2) = 0.5, so 4,000 rows are just enough.
    """
    rng = np.random.default_rng(0)
    estimates = np.eye(100)[0] * 2 + rng.normal(scale=0.08**0.5, size=(400, 100))
    found = signal_of("reward", estimates @ estimates.T, 1000, 4000)
    assert found.cosine == pytest.approx(0.5, abs=0.02)
    assert found.needed == pytest.approx(4000, rel=0.05)
    # Half of the estimates point one way, half the other: what they share is nothing.
    alternating = np.array([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    silent = signal_of("cost", alternating @ alternating.T, 10, 10)
    assert silent.needed is None
    assert silent.cosine == 0.0


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diagnosis") / "run"
    ts.train(finite_config(folder, 4), progress=False)
    return folder


def test_a_run_is_diagnosed_and_left_as_it_is(run, call):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    code, out, _ = call("diagnose", run, "--rollouts", 3, "--episodes", 8, "--json")
    result = json.loads(out.splitlines()[-1])
    assert code == 0
    assert {"signal", "rows_needed", "estimate", "calibration"} <= result.keys()
    assert -1 <= result["signal"]["reward"] <= 1
    assert len(result["signal"]["costs"]) == len(result["rows_needed"]["costs"]) == 1
    estimate = result["estimate"][0]
    assert estimate["bias"] == pytest.approx(estimate["mean"] - estimate["seen"])
    assert [entry["name"] for entry in result["calibration"]] == ["reward", "cost"]
    assert json.loads((run / "diagnosis.json").read_text()) == result
    assert (run / "diagnosis.png").exists()
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_what_cannot_be_diagnosed(tmp_path, run, call):
    code, out, err = call("diagnose", tmp_path)
    assert (code, out) == (2, "")
    assert "the folder of a run" in err
    copy = tmp_path / "copy"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("checkpoints"))
    code, out, err = call("diagnose", copy)
    assert (code, out) == (2, "")
    assert "no checkpoint" in err


def test_a_strangers_run_is_not_diagnosed_unasked(tmp_path, run, call, monkeypatch):
    """As evaluate and resume: the environment that a run names is code."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("import pathlib; pathlib.Path('ran').touch()\n")
    (tmp_path / "stranger").mkdir()
    config = json.loads((run / "config.json").read_text())
    settings = {key: value for key, value in config["settings"].items() if key != "problem"}
    path = tmp_path / "stranger" / "config.json"
    for source in (None, {"reference": "evil:Evil", "arguments": {}, "folder": str(tmp_path)}):
        path.write_text(json.dumps(config | {"task": "evil:Evil", "source": source, "settings": settings}))
        code, out, err = call("diagnose", tmp_path / "stranger")
        assert (code, out) == (2, "")
        assert "--trust" in err
        assert not (tmp_path / "ran").exists()
    code, _, err = call("diagnose", tmp_path / "stranger", "--trust")
    assert code == 2
    assert "has no 'Evil'" in err
    assert (tmp_path / "ran").exists()


@pytest.mark.slow
def test_the_risk_estimate_of_a_policy_that_stands_still_is_unbiased(tmp_path):
    """The gamble: a policy that never moves gambles with probability 1/2, so D is 10 with probability 0.05, else 0.

    At beta the sub-risk is beta + 4 * 0.05 * (10 - beta). The learner's own estimate, from critics and their correction
    by finished episodes, must agree with it.
    """
    config = finite_config(
        tmp_path / "run",
        400,
        settings={"problem": gamble(), "warmup": 1e9, "calibration": 0.003, "num_envs": 64, "groups": 1},
    )
    ts.train(replace(config, total_steps=400 * 64 * 8), progress=False)
    found = ts.diagnose(tmp_path / "run", rollouts=4, episodes=16)
    (beta,), (estimate,) = found.betas, found.estimates
    exact = beta.value + 4 * 0.05 * (10 - beta.value)
    assert estimate.mean == pytest.approx(exact, rel=0.05)
