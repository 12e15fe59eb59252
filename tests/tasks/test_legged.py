"""The legged tasks: against a slow reference, on constructed states, and how episodes begin and end."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from tailsafe.envs.host import HostBatch, float64_on_host
from tailsafe.physics.interface import PhysicsState, Readings
from tailsafe.tasks import TASKS, observation_size, task_units
from tailsafe.tasks.quadruped import toe_heights
from tests.tasks.legged_reference import NUMBERS, Reference
from tests.tasks.test_legged_models import LEFT, RIGHT

NAMES = ("quadruped", "biped")
BIPED_START = [0, 0, 1.0, 1, 0, 0, 0, *LEFT, *RIGHT]


def one(tree: Any, row: int) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf[row]), tree)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [0.02, 1.0])
def test_steps_are_the_references(name: str, size: float) -> None:
    """Observation, reward and costs of every step; with large actions also of the frozen ones after a fall.

    Every step begins where ours does: stiff contacts would let rounding grow from step to step.
    """
    task = TASKS[name]
    batch = HostBatch(task, num_envs=3)
    episode = batch.reset(seed=4)
    model = mujoco.MjModel.from_xml_string(task.mjcf("mujoco"))
    references = []
    for row in range(3):
        start = BIPED_START if name == "biped" else episode.physics.qpos[row]
        references.append(Reference(name, model, start, np.asarray(episode.task.command[row])))
        np.testing.assert_allclose(episode.observation[row], references[row].first, rtol=0, atol=1e-8)
    rng = np.random.default_rng(0)
    steps = 150 if name == "quadruped" else 60
    for index in range(steps):
        actions = task_units(task, size * rng.uniform(-1, 1, (3, len(task.pose))))
        physics = batch.episode.physics
        ours = batch.step(actions)
        for row, reference in enumerate(references):
            reference.data.qpos[:], reference.data.qvel[:] = physics.qpos[row], physics.qvel[row]
            observation, reward, costs = reference.step(actions[row])
            where = f"step {index} of environment {row}"
            np.testing.assert_allclose(ours.observation[row], observation, rtol=0, atol=1e-8, err_msg=where)
            np.testing.assert_allclose(ours.reward[row], reward, rtol=0, atol=1e-8, err_msg=where)
            np.testing.assert_allclose(ours.costs[row], costs, rtol=0, atol=1e-12, err_msg=where)
    fallen = [reference.frozen is not None for reference in references]
    assert any(fallen) == (size == 1.0)
    batch.close()


@pytest.mark.parametrize("name", NAMES)
def test_spaces_have_the_sheets_sizes(name: str) -> None:
    sizes = {"quadruped": (160, 12), "biped": (132, 10)}
    task = TASKS[name]
    assert (observation_size(task), len(task.action_reach)) == sizes[name]
    bounds = {
        "quadruped": [1, 2.3564989, 3.2870022] * 4,
        "biped": [0.3926991, 0.3926991, 1.5609472, 1.3217991, 1.3764012] * 2,
    }
    np.testing.assert_allclose(task.action_reach, bounds[name], atol=1e-7)
    np.testing.assert_allclose(task.pose, NUMBERS[name]["pose"], atol=5e-8)
    assert [(limit.name, limit.value) for limit in task.limits] == [
        ("balance", 0.025), ("height", 0.025), ("foot_timing", 0.4),
    ]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_motors_are_where_the_model_has_them(name: str) -> None:
    task = TASKS[name]
    model = mujoco.MjModel.from_xml_string(task.mjcf("mujoco"))
    assert [model.actuator(i).name for i in range(model.nu)] == NUMBERS[name]["joints"]
    joints = [model.joint(joint) for joint in NUMBERS[name]["joints"]]
    assert list(task.positions) == [joint.qposadr[0] for joint in joints]
    assert list(task.velocities) == [joint.dofadr[0] for joint in joints]
    assert task.nq == model.nq


# --- costs on constructed states ------------------------------------------------------------------------------


def judged(
    name: str, *, tilt: float = 0.0, axis: Any = (0, 1, 0), height: float = 1.0, touches: Any, clock: int
) -> Any:
    """Costs of a step that ends, after `clock` steps, with this tilt [degrees], height of the site [m] and contacts."""
    task = TASKS[name]
    state, _ = task.try_reset(jax.random.key(0))
    physics = task.spawn(state)
    half = math.radians(tilt) / 2
    quaternion = np.array([math.cos(half), *(math.sin(half) * np.asarray(axis))])
    rotation = np.zeros(9)
    mujoco.mju_quat2Mat(rotation, quaternion)
    lift = rotation.reshape(3, 3)[2] @ np.asarray(task.site) + task.height_shift
    pose = jnp.concatenate([jnp.zeros(2), jnp.asarray([height - lift]), jnp.asarray(quaternion), physics.qpos[7:]])
    before = jnp.tile(jnp.concatenate([pose, jnp.zeros_like(physics.qvel)]), (task.remembered, 1))
    after = PhysicsState(time=physics.time, qpos=pose, qvel=jnp.zeros_like(physics.qvel))
    readings = Readings(sensors=jnp.zeros(0), touches=jnp.asarray(touches), before=before)
    controls = jnp.zeros(len(task.pose))
    return task.advance(replace(state, clock=jnp.int32(clock - 1)), controls, after, readings)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("axis", [(1, 0, 0), (0, 1, 0), (0.6, -0.8, 0)])
def test_balance_costs_from_fifteen_degrees_on(name: str, axis: Any) -> None:
    with float64_on_host():
        legs = len(TASKS[name].phases)
        for tilt, cost in (
            (0, 0),
            (14, 0),
            (14.99, 0),
            (15.01, 1),
            (16, 1),
            (89.99, 1),
            (90.01, 1),
            (120, 1),
            (-14, 0),
            (-16, 1),
        ):
            state, outcome = judged(name, tilt=tilt, axis=axis, touches=[False] * legs, clock=1)
            assert outcome.costs[0] == outcome.components["balance"] == cost
            assert bool(state.fallen) == (tilt >= 90)
            assert not outcome.terminated


@pytest.mark.parametrize("name", NAMES)
def test_height_costs_below_the_threshold_alone(name: str) -> None:
    with float64_on_host():
        legs, lowest = len(TASKS[name].phases), {"quadruped": 0.35, "biped": 0.7}[name]
        for tilt in (0, 40):
            for height, cost in ((lowest - 1e-6, 1), (lowest + 1e-6, 0), (0.1, 1), (2.0, 0)):
                _, outcome = judged(name, tilt=tilt, height=height, touches=[False] * legs, clock=1)
                assert outcome.costs[1] == outcome.components["height"] == cost


@pytest.mark.parametrize("name", NAMES)
def test_every_foot_must_keep_time(name: str) -> None:
    """Swing while the sine of a leg's phase is negative. A wrong foot costs its share, either way round."""
    legs = len(TASKS[name].phases)
    first = {"quadruped": [True, False, False, True], "biped": [True, False]}[name]  # stance in the first half turn
    with float64_on_host():
        # The clock is at 0.2 rad after a step and passes pi between steps 15 and 16, 2 pi between 31 and 32.
        for clock, stance in (
            (1, first),
            (15, first),
            (16, [not s for s in first]),
            (31, [not s for s in first]),
            (32, first),
        ):
            for pattern in range(2**legs):
                touches = [bool(pattern >> leg & 1) for leg in range(legs)]
                wrong = sum(touch != wanted for touch, wanted in zip(touches, stance, strict=True))
                _, outcome = judged(name, touches=touches, clock=clock)
                assert outcome.costs[2] == outcome.components["foot_timing"] == wrong / legs


# --- contacts --------------------------------------------------------------------------------------------------


def test_toes_touch_from_a_millimetre_on() -> None:
    """On engine mujoco; their heights at the start are MuJoCo's."""
    task = TASKS["quadruped"]
    model = mujoco.MjModel.from_xml_string(task.mjcf("mujoco"))
    data = mujoco.MjData(model)
    with float64_on_host():
        for seed in range(20):
            state, _ = task.try_reset(jax.random.key(seed))
            data.qpos[:] = state.start
            mujoco.mj_forward(model, data)
            heights = [data.geom(name).xpos[2] - 0.027 for name in task.touchable]
            np.testing.assert_allclose(toe_heights(state.start), heights, atol=1e-12)
            touched = np.asarray(task.spawn_readings(state).touches)
            np.testing.assert_array_equal(touched, data.sensordata > 0)
            # Put the lowest toe to where it just does, and just does not touch.
            for gap, touches in ((0.0009, True), (0.0011, False), (-0.001, True)):
                data.qpos[2] = float(state.start[2]) - min(heights) + gap
                mujoco.mj_forward(model, data)
                assert (data.sensordata > 0).any() == touches


# --- beginnings -------------------------------------------------------------------------------------------------


def test_quadruped_starts_disturbed() -> None:
    task = TASKS["quadruped"]
    states, valid = jax.vmap(task.try_reset)(jax.random.split(jax.random.key(0), 4000))
    assert np.asarray(valid).all()
    start = np.asarray(states.start)
    np.testing.assert_allclose(start[:, :3], np.tile([0, 0, 0.45], (4000, 1)))
    np.testing.assert_allclose(np.linalg.norm(start[:, 3:7], axis=1), 1, atol=1e-6)
    # Unnormalised, entries 1 to 3 are uniform in +-0.1 over one in 1 +- 0.1.
    ratio = start[:, 4:7] / start[:, 3:4]
    assert 0.1 < np.abs(ratio).max() <= 0.1 / 0.9 + 1e-6
    np.testing.assert_allclose(ratio.std(), 0.1 / math.sqrt(3), rtol=0.05)
    noise = start[:, 7:] - np.asarray(task.pose)
    assert 0.099 < np.abs(noise).max() <= 0.1 + 1e-6
    np.testing.assert_allclose(noise.mean(axis=0), 0, atol=0.005)
    np.testing.assert_array_equal(np.asarray(states.targets), np.repeat(start[:, None, 7:], 3, axis=1))
    for leaf in (states.errors, states.velocities, states.target):
        assert not np.asarray(leaf).any()


@pytest.mark.parametrize("name", NAMES)
def test_commands_are_uniform(name: str) -> None:
    states, _ = jax.vmap(TASKS[name].try_reset)(jax.random.split(jax.random.key(1), 4000))
    command = np.asarray(states.command)
    low, high = np.array([[-1, -0.5], [2 if name == "quadruped" else 1, 0.5]])
    assert (command >= low).all()
    assert (command <= high).all()
    np.testing.assert_allclose(
        np.quantile(command, [0.25, 0.75], axis=0), [low + (high - low) * q for q in (0.25, 0.75)], atol=0.05
    )


def test_biped_starts_settled() -> None:
    """The same every time: at 0.893 m and in the air after thirty substeps; the filter begins at zero all the same."""
    batch = HostBatch(TASKS["biped"], num_envs=2)
    episode = batch.reset(seed=0)
    observation = np.asarray(episode.observation)
    np.testing.assert_array_equal(observation[0, 6:], observation[1, 6:])
    assert observation[0, -1] == pytest.approx(0.893, abs=5e-4)
    assert not observation[0, -3:-1].any()
    np.testing.assert_allclose(np.asarray(episode.task.targets[0]), np.tile(TASKS["biped"].pose, (3, 1)))
    assert not np.asarray(episode.task.target).any()
    np.testing.assert_allclose(batch.next_controls(np.zeros((2, 10)))[0], 0.5 * np.asarray(TASKS["biped"].pose))
    batch.close()
