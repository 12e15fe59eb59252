"""The models against the numbers of the original's compiled ones."""

from __future__ import annotations

import jax
import mujoco
import numpy as np
import pytest

from tailsafe.envs.host import HostBatch, float64_on_host
from tailsafe.tasks import TASKS
from tests.recorded import NAVIGATION


def compiled(name: str, engine: str = "mujoco", **options: bool) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(TASKS[name].mjcf(engine, **options))


@pytest.mark.parametrize("engine", ["mujoco", "mjx"])
def test_point_body(engine: str) -> None:
    agent = compiled("point-goal", engine).body("agent")
    assert agent.mass[0] == pytest.approx(0.0051887902, rel=1e-8)
    np.testing.assert_allclose(agent.ipos, [0.0192723, 0, 0], atol=1e-7)
    np.testing.assert_allclose(sorted(agent.inertia), [1.8421827e-5, 2.6494596e-5, 2.6494596e-5], rtol=1e-7)


@pytest.mark.parametrize("engine", ["mujoco", "mjx"])
def test_car_body(engine: str) -> None:
    model = compiled("car-button", engine)
    agent = model.body("agent")
    assert agent.mass[0] == pytest.approx(0.0239, rel=1e-8)
    np.testing.assert_allclose(agent.ipos, [0, 0.003954, 0.001004], atol=1e-6)
    np.testing.assert_allclose(sorted(agent.inertia), [9.48118e-5, 1.73901e-4, 2.28442e-4], rtol=1e-5)
    assert agent.subtreemass[0] == pytest.approx(0.0304449848, rel=1e-8)
    for wheel in ("left", "right"):
        assert model.body(wheel).mass[0] == pytest.approx(0.0019634954, rel=1e-7)


@pytest.mark.parametrize("engine", ["mujoco", "mjx"])
def test_boxes(engine: str) -> None:
    for name, box in (("point-goal", "vase0"), ("car-goal", "vase0"), ("point-button", "gremlin3")):
        body = compiled(name, engine).body(box)
        assert body.mass[0] == pytest.approx(8e-6, rel=1e-9)
        np.testing.assert_allclose(body.inertia, 5.3333333e-8, rtol=1e-6)


def test_options_and_actuators() -> None:
    point, car = compiled("point-button"), compiled("car-goal")
    assert (point.opt.timestep, car.opt.timestep) == (0.002, 0.004)
    for model in (point, car):
        option = model.opt
        assert (option.integrator, option.solver, option.cone, option.iterations) == (0, 2, 0, 100)
        assert option.tolerance == 1e-8
        np.testing.assert_array_equal(option.gravity, [0, 0, -9.81])
        np.testing.assert_array_equal(option.magnetic, [0, -0.5, 0])
        assert set(model.geom_condim) == {6}
    np.testing.assert_array_equal(point.actuator_forcerange, [[-0.05, 0.05]] * 2)
    np.testing.assert_array_equal(car.actuator_forcerange, [[-0.02, 0.02]] * 2)
    np.testing.assert_array_equal(point.actuator_gear[:, 0], [0.3, 0.3])
    np.testing.assert_allclose(point.eq_data[:, 10], np.sqrt(150))


@pytest.mark.parametrize("name", NAVIGATION)
def test_felt_sensors_are_the_models_sensors(name: str) -> None:
    """The tasks compute velocimeter, gyro, magnetometer and ball joint from the state: MuJoCo measures the same."""
    task = TASKS[name]
    model = compiled(name, all_sensors=True)
    data = mujoco.MjData(model)
    rng = np.random.default_rng(1)
    data.qpos[:] = model.qpos0 + rng.normal(scale=0.4, size=model.nq)
    data.qvel[:] = rng.normal(size=model.nv)
    mujoco.mj_normalizeQuat(model, data.qpos)
    mujoco.mj_forward(model, data)
    with float64_on_host():
        felt = np.asarray(task.robot.feel(data.qpos, data.qvel, data.sensor("accelerometer").data))
    start = 0
    for part, width in task.robot.sensor_parts:
        measured = data.sensor(part).data
        if part == "ballquat_rear":
            matrix = np.zeros(9)
            mujoco.mju_quat2Mat(matrix, measured)
            measured = matrix
        np.testing.assert_allclose(felt[start : start + width], measured, atol=1e-12, err_msg=part)
        start += width


def test_car_spawn_accelerometer() -> None:
    """A car standing on its three wheels, pressed down by a rounding error so that all of them touch."""
    model = compiled("car-goal")
    data = mujoco.MjData(model)
    data.qpos[2] -= 1e-12
    mujoco.mj_forward(model, data)
    np.testing.assert_allclose(
        data.sensor("accelerometer").data, TASKS["car-goal"].robot.spawn_accelerometer, atol=1e-6
    )


@pytest.mark.parametrize("name", ["point-button", "car-button"])
def test_gremlins_hover_and_trail_their_targets(name: str) -> None:
    """After some seconds: height 0.1996, about 0.031 m behind a circle of 0.35 m around home."""
    batch = HostBatch(TASKS[name], num_envs=2)
    batch.reset(seed=1)
    for _ in range(150):
        batch.step(np.zeros((2, 2)), renew=False)
    task, episode = TASKS[name], batch.episode
    with float64_on_host():
        boxes = np.asarray(jax.vmap(lambda physics: task.boxes(physics, 4))(episode.physics))
        targets = np.asarray(jax.vmap(task.mocap)(episode.task, episode.physics.time).position)[:, :4]
    batch.close()
    assert np.abs(boxes[..., 2] - 0.1996).max() < 2e-3
    behind = np.linalg.norm((boxes - targets)[..., :2], axis=-1)
    assert np.abs(behind - 0.031).max() < 5e-3
