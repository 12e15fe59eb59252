"""Beyond the end of a run: training it further, starting another one from its policy, ending it from a callback."""

import json
import shutil

import numpy as np
import pytest

import tailsafe as ts
from tailsafe.checkpoints import Checkpoints
from tailsafe.cli import main
from tailsafe.errors import InputError
from tailsafe.training.loop import HostLoop
from tailsafe.training.plan import make_plan
from tailsafe.training.settings import known_settings
from tailsafe.training.start import following, read_start, started
from tests.training.tiny import (
    PER_UPDATE,
    TINY,
    TWO_ROADS,
    Corridor,
    Switch,
    assert_close_arrays,
    assert_same_arrays,
    finite_config,
    last_arrays,
    rows_without_times,
)

UPDATES = 6
# What learners on the newest chunk alone need.
ONE_CHUNK = {"batch_chunks": 1, "replay_chunks": 1}
SEEN = np.linspace(-1, 1, 3 * 2).reshape(3, 2).astype(np.float32)


def learner(folder, part):
    return {name: array for name, array in last_arrays(folder).items() if name.startswith(f"state/learner.{part}")}


def arrays_at(folder, steps):
    checkpoints = Checkpoints(folder / "checkpoints")
    arrays, _ = checkpoints.load(steps)
    checkpoints.close()
    return arrays


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight") / "run"
    ts.train(finite_config(folder, 2 * UPDATES), progress=False)
    return folder


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    folder = tmp_path_factory.mktemp("half") / "run"
    ts.train(finite_config(folder, UPDATES), progress=False)
    return folder


@pytest.fixture
def own_half(half, tmp_path):
    """A copy that a test may train further."""
    return shutil.copytree(half, tmp_path / "copy")


def corridor_config(out, task=Corridor, **changes):
    settings = {**TINY, "policy_hidden": (6, 7), **changes.pop("settings", {})}
    constraints = changes.pop("constraints", [ts.Constraint("speeding", ts.CVaR(0.5), 0.3, "step")])
    steps = changes.pop("updates", 2) * PER_UPDATE
    return ts.TrainConfig(
        task, constraints=constraints, total_steps=steps, preset="laptop", out=out, settings=settings, **changes
    )


@pytest.fixture(scope="module")
def corridor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corridor") / "run"
    ts.train(corridor_config(folder), progress=False)
    return folder


# --- further ----------------------------------------------------------------------------------------------------------


def test_a_finished_run_that_is_trained_further_equals_a_longer_one_bit_for_bit(straight, own_half, capfd):
    with pytest.raises(SystemExit) as ended:
        main(["resume", str(own_half), "--steps", str(UPDATES * PER_UPDATE), "--json"])
    assert ended.value.code == 0
    assert json.loads(capfd.readouterr().out.splitlines()[-1])["steps"] == 2 * UPDATES * PER_UPDATE
    assert_same_arrays(last_arrays(own_half), last_arrays(straight))
    assert rows_without_times(own_half) == rows_without_times(straight)
    assert json.loads((own_half / "config.json").read_text())["total_steps"] == 2 * UPDATES * PER_UPDATE
    # And it is complete: nothing more to do without --steps.
    assert ts.resume(own_half, progress=False).steps == 2 * UPDATES * PER_UPDATE


def test_all_seeds_are_trained_further_and_one_may_have_gone_ahead(tmp_path):
    folder = tmp_path / "run"
    ts.train(finite_config(folder, 2, seeds=2), progress=False)
    assert ts.resume(folder, steps=PER_UPDATE, progress=False).steps == 2 * 3 * PER_UPDATE
    ts.resume(folder / "seed-1", steps=6 * PER_UPDATE, progress=False)
    totals = [json.loads((folder / name / "config.json").read_text())["total_steps"] for name in ("seed-0", "seed-1")]
    assert totals == [3 * PER_UPDATE, 9 * PER_UPDATE]
    # What is complete stays as it is.
    before = last_arrays(folder / "seed-1")
    ts.resume(folder, progress=False)
    assert_same_arrays(last_arrays(folder / "seed-1"), before)


@pytest.mark.parametrize("steps", [0, -5, 1.5])
def test_steps_that_cannot_be_taken_change_nothing(half, steps):
    before = (half / "config.json").read_text()
    with pytest.raises(InputError, match="total_steps is"):
        ts.resume(half, steps=steps, progress=False)
    assert (half / "config.json").read_text() == before


# --- from another run -------------------------------------------------------------------------------------------------


def test_a_run_starts_from_the_policy_critics_and_normaliser_of_another(corridor, tmp_path):
    folder = tmp_path / "run"
    limit = ts.Constraint("speeding", ts.CVaR(0.5), 0.05, "step")
    ts.train(corridor_config(folder, constraints=[limit], start=corridor), progress=False)
    first, source = arrays_at(folder, 0), last_arrays(corridor)
    for part in ("policy", "critics", "normalizer.", "sampler.phi"):
        names = [name for name in first if name.startswith(f"state/learner.{part}")]
        assert names
        for name in names:
            # A policy is started from as it is shipped: as the average of the latest ones.
            wanted = source[name.replace("learner.policy", "learner.average")]
            np.testing.assert_allclose(first[name], wanted, rtol=1e-5, atol=1e-6, err_msg=name)
    assert int(first["state/learner.updates"]) == 0
    # It needs its own folder alone from there on.
    for path in (folder / "checkpoints").iterdir():
        if path.name != "0":
            shutil.rmtree(path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"start": str(tmp_path / "gone")}))
    assert ts.resume(folder, task=Corridor, progress=False).steps == 2 * PER_UPDATE


def test_a_start_leaves_measure_limit_and_network_as_they_were_unless_told(corridor, tmp_path):
    folder = tmp_path / "run"
    config = ts.TrainConfig(
        Corridor,
        total_steps=PER_UPDATE,
        preset="laptop",
        out=folder,
        start=corridor / "policy",
        settings={key: value for key, value in TINY.items() if "hidden" not in key},
    )
    ts.train(config, progress=False)
    written = json.loads((folder / "config.json").read_text())
    assert written["constraints"][0] == {"name": "speeding", "risk_measure": "cvar:0.5", "limit": 0.3, "unit": "step"}
    assert written["settings"]["policy_hidden"] == [6, 7]
    assert written["settings"]["critic_hidden"] == [8]


@pytest.mark.parametrize("algorithm", ["srcpo", "cppo"])
def test_a_policy_acts_as_before_where_the_new_learner_has_other_dual_variables(corridor, tmp_path, algorithm):
    """From one beta to four, and to an algorithm without any: what is not seen any more is in the first biases."""
    measure = ts.Pow(0.5) if algorithm == "srcpo" else ts.CVaR(0.5)
    settings = {key: value for key, value in TINY.items() if key in known_settings(algorithm)}
    config = ts.TrainConfig(
        Corridor,
        algorithm,
        [ts.Constraint("speeding", measure, 0.3, "step")],
        total_steps=PER_UPDATE,
        preset="laptop",
        settings=settings | {"policy_hidden": (6, 7)} | (ONE_CHUNK if algorithm == "cppo" else {}),
        start=corridor,
    )
    start = read_start(corridor)
    plan = make_plan(following(config, start))
    loop = HostLoop(plan.algorithm, plan.environments, plan.settings, 0)
    state = started(loop.begin(), False, [(start, plan)])
    before = start.policy
    features = np.asarray(before.normalizer(SEEN, 10.0))
    wide = state.learner.policy.body.weights[0].shape[0] - 2
    assert wide == (4 if algorithm == "srcpo" else 0)
    rows = np.concatenate([features, np.full((3, wide), 0.3, np.float32)], axis=1)
    found = np.asarray(state.learner.policy(rows))
    wanted = before.outputs(SEEN, np.zeros((3, 1), np.float32), np.ones(3, np.float32))
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_a_start_of_finite_seeds_in_one_program(half, tmp_path):
    one, both = tmp_path / "one", tmp_path / "both"
    ts.train(finite_config(one, 2, start=half), progress=False)
    ts.train(finite_config(both, 2, start=half, seeds=2), progress=False)
    assert_close_arrays(learner(both / "seed-0", "policy"), learner(one, "policy"))


def test_misfits_are_one_line(half, corridor, tmp_path, capfd):
    out = tmp_path / "run"
    for config, message in (
        (corridor_config(out, start=half), "sees 10 numbers, .* shows 2"),
        (corridor_config(out, Switch, constraints=TWO, start=corridor), "has 1 box actions, .* takes 3 discrete ones"),
        (corridor_config(out, start=corridor, settings={"policy_hidden": (5,)}), r"policy_hidden \(6, 7\), this run"),
        (corridor_config(out, start=tmp_path / "nothing"), "no such run"),
    ):
        with pytest.raises(InputError, match=message) as refused:
            ts.train(config, progress=False)
        assert "\n" not in str(refused.value)
        assert not out.exists()
    words = ["train", "finite", "--from", str(corridor), "--limit", "2", "--set", f"problem={TWO_ROADS}"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--out", str(out)])
    written, err = capfd.readouterr()
    assert (ended.value.code, written, err.count("\n")) == (2, "", 1)
    assert not out.exists()


TWO = [ts.Constraint(name, ts.CVaR(0.5), 0.3, "step") for name in ("cost0", "cost1")]


# --- callbacks --------------------------------------------------------------------------------------------------------


def test_a_callback_sees_every_row_and_ends_the_run(straight, tmp_path):
    folder = tmp_path / "run"
    seen = []

    def callback(row):
        seen.append(row)
        return len(seen) < 2

    run = ts.train(finite_config(folder, 2 * UPDATES), progress=False, callback=callback)
    assert [row["steps"] for row in seen] == [2 * PER_UPDATE, 4 * PER_UPDATE]
    assert run.steps == 4 * PER_UPDATE
    rows = rows_without_times(folder)
    assert len(rows) == 2
    assert set(seen[0]) == {*rows[0], "seconds", "steps_per_second", "seed"}
    # It was saved where it ended, and takes the same path from there on.
    ts.resume(folder, progress=False, callback=lambda row: None)
    assert_same_arrays(last_arrays(folder), last_arrays(straight))


def test_a_callback_ends_all_seeds(tmp_path):
    seen = []

    def callback(row):
        seen.append((row["seed"], row["steps"]))
        return row["seed"] != 1

    finite = ts.train(finite_config(tmp_path / "finite", 8, seeds=2), progress=False, callback=callback)
    assert seen == [(0, 2 * PER_UPDATE), (1, 2 * PER_UPDATE)]
    assert finite.steps == 2 * 2 * PER_UPDATE
    seen.clear()
    host = corridor_config(tmp_path / "host", seeds=2, seed=1, updates=4)
    ts.train(host, progress=False, callback=callback)
    assert seen == [(1, 2 * PER_UPDATE)]
