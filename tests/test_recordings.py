"""Replays recorded steps of the original tasks: set the recorded state, apply the recorded action, compare.

Tolerances are the benchmark's, in two columns. *Clean* steps have no box contact and no
wheel contact (other than the floor) and do not start in the spawn pose: every one of them is bounded. On
*rough* steps MuJoCo itself changed between the recording's version and ours: medians are bounded, and logical
outcomes agree on at least 95 %.

Engine `mjx` computes in float32 and gets ten times the clean column. A few steps (at most 4 %) leave even that, because
the dynamics amplify rounding: the point's velocity servo overshoots by a factor of four per substep while it is not
saturated, and a wheel of the car touches the floor or does not. On those steps the same MJX program must meet the clean
column itself when it runs in float64, so that nothing but rounding is excused; they are counted.

Each test reports its counts: `pytest tests/test_recordings.py -rP`, or the lines at the end of any run.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tailsafe.envs.device import device_engine
from tailsafe.envs.host import float64_on_host
from tailsafe.physics.mujoco_engine import MujocoEngine
from tailsafe.physics.warp_engine import warp_installed
from tailsafe.tasks import PhysicsState, Readings
from tests import recorded
from tests.recorded import Recording

MJX_FACTOR = 10
MJX_ROWS = 100
FLOAT32_SHARE = 0.04
ROUGH_MEDIANS = {"robot qpos": 1e-3, "robot qvel": 5e-2}


@cache
def load(name: str) -> Recording:
    return recorded.load(name)


def tolerances(recording: Recording) -> dict[str, float]:
    point = recording.task.name.startswith("point")
    return {
        "robot qpos": 1e-7 if point else 1e-5,
        "robot qvel": 1e-5 if point else 5e-4,
        "object qpos": 1e-5,
        "object qvel": 2e-4,
        "accelerometer": 1e-3,
        "velocimeter": 2e-4,
        "gyro": 2e-4,
        "magnetometer": 2e-4,
        "ballangvel_rear": 5e-4,
        "ballquat_rear": 5e-4,
        "reward": 1e-6,
    }


# --- one control step ---------------------------------------------------------------------------------------


def controls(recording: Recording) -> np.ndarray:
    """What the recorded actions do to the actuators; navigation tasks remember nothing."""
    return recording.task.controls(recording.arrays["action"], np.zeros((recording.steps, 0)))


def step_mujoco(recording: Recording) -> tuple[PhysicsState, Readings]:
    """One control step of the C engine from the recorded states."""
    task, state = recording.task, recorded.task_state(recording, "before")
    physics = recorded.physics(recording, "before")
    engine = MujocoEngine(task, recording.steps)
    engine.set_mocap(mocap_rows(task, state, physics.time))
    rows = np.concatenate([physics.time[:, None], physics.qpos, physics.qvel], axis=1)
    after, sensors, touches, before = engine.step(rows, controls(recording))
    engine.close()
    nq = physics.qpos.shape[1]
    return (
        PhysicsState(time=after[:, 0], qpos=after[:, 1 : 1 + nq], qvel=after[:, 1 + nq :]),
        Readings(sensors=sensors, touches=touches, before=before),
    )


def mocap_rows(task: Any, state: Any, time: Any) -> np.ndarray:
    """Mocap poses for the C engine: (steps, substeps, 7 per mocap body)."""
    times = time[:, None] + task.timestep * jnp.arange(task.substeps)
    mocap = jax.vmap(lambda state, times: jax.vmap(lambda time: task.mocap(state, time))(times))(state, times)
    flat = [np.asarray(part).reshape(*times.shape, -1) for part in (mocap.position, mocap.quaternion)]
    return np.concatenate(flat, axis=2)


def step_device(recording: Recording, backend: str = "mjx") -> tuple[PhysicsState, Readings]:
    """One control step of `mjx` or `warp` in float32, in chunks of rows."""
    task = recording.task
    engine = device_engine(task, backend)

    @jax.jit
    @jax.vmap
    def step(state: Any, physics: PhysicsState, control: Any) -> tuple[PhysicsState, Readings]:
        return engine.step(physics, control, lambda time: task.mocap(state, time))

    rows = (
        recorded.task_state(recording, "before"),
        recorded.physics(recording, "before"),
        jnp.asarray(controls(recording), float),
    )
    chunks = []
    for start in range(0, recording.steps, MJX_ROWS):
        picked = np.minimum(np.arange(start, start + MJX_ROWS), recording.steps - 1)
        chunks.append(jax.device_get(step(*jax.tree.map(lambda leaf, picked=picked: leaf[picked], rows))))
    return jax.tree.map(lambda *parts: np.concatenate(parts)[: recording.steps], *chunks)


def differences(
    recording: Recording, after: PhysicsState, readings: Readings, outcome: Any, observation: Any
) -> dict[str, np.ndarray]:
    """Largest absolute difference to the recording, per quantity and step."""
    arrays, robot = recording.arrays, recording.task.robot

    def largest(ours: Any, theirs: Any) -> np.ndarray:
        return np.abs(np.asarray(ours, float) - theirs).reshape(recording.steps, -1).max(axis=1)

    qpos, qvel = arrays["after_qpos"], arrays["after_qvel"]
    found = {
        "robot qpos": largest(after.qpos[:, : robot.nq], qpos[:, : robot.nq]),
        "robot qvel": largest(after.qvel[:, : robot.nv], qvel[:, : robot.nv]),
        "object qpos": largest(after.qpos[:, robot.nq :], qpos[:, robot.nq :]),
        "object qvel": largest(after.qvel[:, robot.nv :], qvel[:, robot.nv :]),
        "reward": largest(outcome.reward, arrays["reward"]),
    }
    for name, start, end in recording.parts:
        found[name] = largest(observation[:, start:end], arrays["obs"][:, start:end])
    return found


def judge(recording: Recording, after: PhysicsState, readings: Readings) -> tuple[Any, Any, Any]:
    """Task logic on the result of a step: new task state, outcome, observation (with the goal the original drew)."""
    task = recording.task
    state, outcome = jax.vmap(task.advance)(
        recorded.task_state(recording, "before"), controls(recording), after, readings
    )
    observation = jax.vmap(task.observe)(recorded.with_recorded_goal(recording, state), after, readings)
    return state, outcome, np.asarray(observation)


def agreeing(recording: Recording, state: Any, outcome: Any) -> np.ndarray:
    """Steps whose cost, cost components, success and bookkeeping are the recording's: (steps,) bool."""
    arrays = recording.arrays
    success = np.asarray(outcome.success)
    same = (np.asarray(outcome.costs)[:, 0] == arrays["cost"]) & (success == arrays["goal_met"])
    same &= ~np.asarray(outcome.terminated)
    for name, values in outcome.components.items():
        # The original leaves the buttons' cost out while the timer runs.
        same &= np.asarray(values) == np.nan_to_num(arrays[f"cost_{name}"])
    if hasattr(state, "timer"):
        same &= np.asarray(state.timer) == arrays["after_button_timer"]
        same &= success | (np.asarray(state.designated) == arrays["after_goal_button"])
    else:
        same &= success | np.isclose(state.goal, arrays["after_goal_pos"][:, :2], rtol=0, atol=1e-6).all(axis=1)
    return same


def check_step(recording: Recording, after: PhysicsState, readings: Readings, factor: float, report: Any) -> None:
    """Hold one engine's step against both columns of tolerances; with a `factor`, of a float32 engine."""
    state, outcome, observation = judge(recording, after, readings)
    found = differences(recording, after, readings, outcome, observation)
    same = agreeing(recording, state, outcome)
    clean = ~recording.rough
    rough = recording.rough & ~recording.spawn
    contacts_differ = (np.asarray(readings.touches) != recording.touches).any(axis=1)

    over = {
        name: clean & (found[name] > factor * tolerance)
        for name, tolerance in tolerances(recording).items()
        if name in found
    }
    suspects = np.flatnonzero(np.any(list(over.values()), axis=0))
    if factor > 1 and len(suspects):
        exact = differences_in_float64(recording.pick(suspects))
        for name, steps in over.items():
            steps[suspects] &= exact[name] > tolerances(recording)[name]
    failures = [
        f"{name}: {steps.sum()} clean steps over {factor * tolerances(recording)[name]:g},"
        f" worst {found[name][steps].max():.2g}"
        for name, steps in over.items()
        if steps.any()
    ]
    report(
        f"{recording.steps} steps of {recording.episodes} episodes: {clean.sum()} clean"
        f" ({len(suspects)} of them over, by float32 rounding), {rough.sum()} rough, {recording.spawn.sum()} spawn;"
        " contact flags"
        f" differ on {contacts_differ[clean].sum()} clean, {contacts_differ[rough].sum()} rough; outcomes differ on"
        f" {(~same)[clean].sum()} clean, {(~same)[rough].sum()} rough; reward off by more than 2e-3 on"
        f" {(found['reward'] > 2e-3)[rough & same].sum()} rough; rough medians "
        + ", ".join(f"{name} {np.median(found[name][rough]):.1e}" for name in ROUGH_MEDIANS if rough.any())
        + "; clean maxima "
        + ", ".join(f"{name} {values[clean].max():.1e}" for name, values in found.items() if not name.endswith("lidar"))
    )
    assert not failures, "; ".join(failures)
    assert len(suspects) <= FLOAT32_SHARE * recording.steps
    assert same[clean].all()
    if rough.any():
        for name, bound in ROUGH_MEDIANS.items():
            assert np.median(found[name][rough]) < bound, name
        assert same[rough].mean() >= 0.95
        assert (found["reward"] <= 2e-3)[rough].mean() >= 0.95


def differences_in_float64(recording: Recording) -> dict[str, np.ndarray]:
    """The differences that the MJX program shows in double precision."""
    with float64_on_host():
        after, readings = step_device(recording)
        _, outcome, observation = judge(recording, after, readings)
        return differences(recording, after, readings, outcome, observation)


def quick(*names: str) -> list[Any]:
    """All tasks, marked slow but for these: MJX takes half a minute to compile, twice where float32 is explained."""
    return [name if name in names else pytest.param(name, marks=pytest.mark.slow) for name in recorded.NAVIGATION]


@pytest.mark.parametrize("name", recorded.NAVIGATION)
def test_mujoco_steps_like_the_original(name: str, report: Any) -> None:
    recording = load(name)
    with float64_on_host():
        after, readings = step_mujoco(recording)
        check_step(recording, after, readings, factor=1, report=partial(report, name, "mujoco"))


@pytest.mark.parametrize("name", quick())
def test_mjx_steps_like_the_original(name: str, report: Any) -> None:
    recording = load(name)
    after, readings = step_device(recording)
    check_step(recording, after, readings, factor=MJX_FACTOR, report=partial(report, name, "mjx"))


@pytest.mark.skipif(not warp_installed(), reason="warp-lang is not installed")
@pytest.mark.slow
@pytest.mark.parametrize("name", recorded.NAVIGATION)
def test_warp_steps_like_the_original(name: str, report: Any) -> None:
    """As `mjx`. What float32 is excused for is judged by MJX's program in float64: Warp has single precision only."""
    recording = load(name)
    after, readings = step_device(recording, "warp")
    check_step(recording, after, readings, factor=MJX_FACTOR, report=partial(report, name, "warp"))


@pytest.mark.parametrize("name", quick("point-goal"))
def test_mjx_in_float64(name: str, report: Any) -> None:
    """In double precision MJX meets the bounds of the C engine on every step."""
    recording = load(name)
    with float64_on_host():
        after, readings = step_device(recording)
        check_step(recording, after, readings, factor=1, report=partial(report, name, "mjx float64"))


# --- task logic alone ---------------------------------------------------------------------------------------


def check_logic(recording: Recording, origin: np.ndarray | None, report: Any) -> None:
    """Feed the recorded after-state to the task: lidars and reward to 1e-6, everything else equal, on every step."""
    task = recording.task
    before = recorded.task_state(recording, "before", origin)
    physics = recorded.physics(recording, "after", origin)
    readings = recorded.readings(recording)
    state, outcome = jax.vmap(task.advance)(before, controls(recording), physics, readings)
    after = recorded.with_recorded_goal(recording, state, origin)
    observation = np.asarray(jax.vmap(task.observe)(after, physics, readings), float)
    off = np.abs(observation - recording.arrays["obs"])
    lidar = max(off[:, start:end].max() for name, start, end in recording.parts if name.endswith("lidar"))
    reward = np.abs(np.asarray(outcome.reward, float) - recording.arrays["reward"]).max()
    kept = ~np.asarray(outcome.success)
    distance = np.abs(np.asarray(state.distance, float) - recording.arrays["after_last_dist_goal"])[kept].max()
    events = {"success": int((~kept).sum())}
    events |= {part: int((np.asarray(values) > 0).sum()) for part, values in outcome.components.items()}
    events |= {f"touch {kind}": int(_touching(recording, kind).sum()) for kind in ("button", "gremlin", "vase")}
    report(f"lidar {lidar:.1e}, reward {reward:.1e}, distance {distance:.1e}; events {events}")
    shifted = state if origin is None else recorded.moved_goal(state, origin)
    assert agreeing(recording, shifted, outcome).all()
    assert lidar <= 1e-6
    assert reward <= 1e-6
    assert distance <= 1e-6
    np.testing.assert_allclose(observation, recording.arrays["obs"], rtol=1e-6, atol=2e-6)


def _touching(recording: Recording, kind: str) -> np.ndarray:
    columns = [i for i, geom in enumerate(recording.task.touchable) if geom.startswith(kind)]
    return recording.touches[:, columns].any(axis=1)


@pytest.mark.parametrize("name", recorded.NAVIGATION)
def test_logic_agrees_in_float64(name: str, report: Any) -> None:
    with float64_on_host():
        check_logic(load(name), None, partial(report, name, "logic float64"))


@pytest.mark.parametrize("name", recorded.NAVIGATION)
def test_logic_agrees_in_float32(name: str, report: Any) -> None:
    """The same in single precision, with the robot near the origin of the world.

    A recorded position rounded to float32 is off by up to 6e-8 m, and next to the centre of a hazard that turns
    its bearing by more than 1e-6. Where the world's origin lies is arbitrary, so the recording is moved before
    it is rounded.
    """
    recording = load(name)
    origin = recording.arrays["after_robot_xpos"][:, :2]
    check_logic(recording, origin, partial(report, name, "logic float32"))


@pytest.mark.parametrize("name", recorded.NAVIGATION)
def test_first_observation(name: str) -> None:
    """Reset observations: all but the accelerometer agree; that one is decided by rounding for the car."""
    for path in recorded.recorded_files(name):
        episode = dict(np.load(path, allow_pickle=False))
        if episode["time"][0] != 0:
            continue
        recording = recorded.load_one(path)
        task = recording.task
        with float64_on_host():
            state = jax.tree.map(lambda leaf: leaf[0], recorded.task_state(recording, "before"))
            observation = np.asarray(task.observe(state, task.spawn(state), task.spawn_readings(state)))
        np.testing.assert_allclose(observation[3:], episode["obs_reset"][3:], rtol=0, atol=1e-6)
        if name.startswith("point"):
            np.testing.assert_allclose(observation[:3], episode["obs_reset"][:3], rtol=0, atol=1e-9)


def test_every_event_is_recorded() -> None:
    """The folder must exercise every kind of event, or the tests above prove little."""
    events: dict[str, int] = {}
    for name in recorded.NAVIGATION:
        recording = load(name)
        events["goal" if "goal" in name else "button"] = (
            events.get("goal" if "goal" in name else "button", 0) + recording.arrays["goal_met"].sum()
        )
        for key in ("cost_hazards", "cost_buttons", "cost_gremlins"):
            if key in recording.arrays:
                events[key] = events.get(key, 0) + np.nansum(recording.arrays[key])
        events["vase"] = events.get("vase", 0) + _touching(recording, "vase").sum()
    assert all(count > 0 for count in events.values()), events
