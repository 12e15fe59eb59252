"""The Gymnasium environments, rendering and the checker."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import tailsafe
from tailsafe.envs.checking import check_environment
from tailsafe.envs.declarations import declared_costs
from tailsafe.envs.rendering import gl_backends, open_gl_context
from tailsafe.envs.single import TaskEnv
from tailsafe.errors import InputError
from tailsafe.tasks import TASKS
from tests.recorded import NAVIGATION

assert tailsafe  # importing it registers the tasks


@pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))
def test_gymnasium_check(task: Any) -> None:
    env = gymnasium.make(task.gymnasium_id)
    with warnings.catch_warnings():
        # Velocities and accelerations have no bounds, which Gymnasium finds unusual.
        warnings.filterwarnings("ignore", message=".*Box observation space m.*")
        warnings.filterwarnings("ignore", message=".*different from the unwrapped version.*")
        # The legged robots' actions are joint angles, with the original's bounds.
        warnings.filterwarnings("ignore", message=".*symmetric and normalized space.*")
        check_env(env.unwrapped, skip_render_check=True)
    env.close()


def test_an_episode_truncates_and_then_asks_for_reset() -> None:
    env = gymnasium.make("tailsafe/PointGoal-v0").unwrapped
    with pytest.raises(InputError, match="reset"):
        env.step(np.zeros(2))
    env.reset(seed=0)
    for step in range(1000):
        observation, reward, terminated, truncated, info = env.step(np.zeros(2))
        assert truncated == (step == 999)
    assert not terminated
    assert info["cost"].shape == (1,)
    assert isinstance(reward, float)
    with pytest.raises(InputError, match="ended"):
        env.step(np.zeros(2))
    assert not np.array_equal(env.reset()[0], observation)
    env.close()


def test_a_batch_of_one_is_the_single_environment() -> None:
    env = gymnasium.make("tailsafe/CarGoal-v0")
    envs = tailsafe.make_vec("tailsafe/CarGoal-v0", 3, "mujoco")
    np.testing.assert_array_equal(env.reset(seed=4)[0], envs.reset(seed=4)[0][0])
    for action in np.random.default_rng(0).uniform(-1, 1, (20, 2)):
        np.testing.assert_array_equal(env.step(action)[0], envs.step(np.tile(action, (3, 1)))[0][0])
    env.close()
    envs.close()


def needs_gl() -> None:
    try:
        open_gl_context(16, 16).free()
    except InputError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", NAVIGATION)
def test_pictures_show_the_scene(name: str) -> None:
    """The colours of goal, hazards and robot are all in the picture, and it changes as time goes by."""
    needs_gl()
    env = gymnasium.make(TASKS[name].gymnasium_id, render_mode="rgb_array", width=200, height=160)
    env.reset(seed=1)
    first = env.render()
    assert first.shape == (160, 200, 3)
    assert first.dtype == np.uint8
    pixels = first.reshape(-1, 3).astype(int)
    red, green, blue = pixels.T
    assert (blue > red + 40).sum() > 50, "hazards"
    assert (green > red + 20).sum() > 20, "goal"
    assert (red > blue + 60).sum() > 5, "robot or buttons"
    for _ in range(10):
        env.step(np.asarray([1.0, 0.3]))
    assert not np.array_equal(env.render(), first)
    env.close()


@pytest.mark.parametrize("name", ["quadruped", "biped"])
def test_the_camera_follows_a_walking_robot(name: str) -> None:
    """The picture is the same wherever the robot is, and another if it lies on its back; an arrow shows its command."""
    needs_gl()
    env = gymnasium.make(TASKS[name].gymnasium_id, render_mode="rgb_array", width=200, height=200).unwrapped
    env.reset(seed=3)
    start = env._batch.episode

    def picture(place: float, quaternion: Any) -> Any:
        qpos = np.array(start.physics.qpos)
        qpos[:, 0], qpos[:, 3:7] = place, quaternion
        env._batch.episode = replace(start, physics=replace(start.physics, qpos=qpos))
        return env.render().astype(int)

    # Two metres of checkers are one period.
    upright, elsewhere, turned = picture(0, [1, 0, 0, 0]), picture(20, [1, 0, 0, 0]), picture(0, [0, 1, 0, 0])
    moved, flipped = (np.abs(upright - other).mean() for other in (elsewhere, turned))
    assert flipped > 2
    assert moved < 0.2 * flipped
    red, green, blue = np.moveaxis(upright, -1, 0)
    rows, _ = np.nonzero((green > red + 30) & (green > blue + 30))
    assert rows.size > 10
    assert rows.max() < 100  # above the base, which is in the middle
    env.close()


def test_no_renderer_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailsafe.envs.rendering.gl_backends", lambda: ("no_such_backend",))
    with pytest.raises(InputError, match=r"install libegl1 .* or libosmesa6"):
        open_gl_context(16, 16)


def test_backends_without_a_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    assert gl_backends() == ("egl", "osmesa")
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    assert gl_backends() == ("osmesa",)


def test_render_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="render_mode"):
        TaskEnv("point-goal", render_mode="hologram")
    env = gymnasium.make("tailsafe/PointGoal-v0").unwrapped
    env.reset(seed=0)
    with pytest.raises(InputError, match="render_mode"):
        env.render()
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    human = gymnasium.make("tailsafe/PointGoal-v0", render_mode="human").unwrapped
    with pytest.raises(InputError, match="display"):
        human.reset(seed=0)


class Gamble(gymnasium.Env[Any, Any]):
    """Ten steps, a reward, a cost: nothing is wrong with it."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.see(), 1.0, False, self.steps >= 10, self.tell()

    def see(self) -> np.ndarray:
        return np.full(2, self.np_random.uniform(), np.float32)

    def tell(self) -> dict[str, Any]:
        return {"cost": np.asarray([0.0, 1.0])}


class NoCost(Gamble):
    def tell(self) -> dict[str, Any]:
        return {}


class NegativeCost(Gamble):
    def tell(self) -> dict[str, Any]:
        return {"cost": -1.0}


class NanCost(Gamble):
    def tell(self) -> dict[str, Any]:
        return {"cost": np.nan}


class ShapeShifter(Gamble):
    def tell(self) -> dict[str, Any]:
        return {"cost": np.zeros(self.steps)}


class NanObservation(Gamble):
    def see(self) -> np.ndarray:
        return np.asarray([np.nan, 0.0])


class Unseeded(Gamble):
    def see(self) -> np.ndarray:
        return np.random.default_rng().uniform(size=2)


class Endless(Gamble):
    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        return np.zeros(2), 0.0, False, False, self.tell()


class Unbounded(Gamble):
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))


def test_a_good_environment_is_fit() -> None:
    assert all(finding.passed for finding in check_environment(Gamble))
    assert all(finding.passed for finding in check_environment(Buttons))


class Buttons(gymnasium.Env[Any, Any]):
    """Two discrete actions, of which the second costs; three steps."""

    observation_space = gymnasium.spaces.Box(0.0, 3.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        return np.full(1, self.time, np.float32), float(action), self.time == 3, False, {"cost": float(action)}


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        (NoCost, "no info"),
        (NegativeCost, "cost -1"),
        (NanCost, "costs must be finite"),
        (ShapeShifter, "changed its shape"),
        (NanObservation, "observation with NaN"),
        (Unseeded, "differs from step 0"),
        (Endless, "no end within 50 steps"),
        (Unbounded, "no bounds"),
        (dict, "not a gymnasium.Env"),
    ],
)
def test_unfit_environments_are_told_why(environment: Any, problem: str) -> None:
    problems = [finding.problem for finding in check_environment(environment, max_steps=50) if not finding.passed]
    assert len(problems) == 1
    assert problem in problems[0]


def test_costs_are_declared_for_wrappers() -> None:
    env = gymnasium.wrappers.TimeLimit(gymnasium.make("tailsafe/Quadruped-v0"), 5)
    costs = declared_costs(env, 3)
    env.close()
    assert costs.names == tuple(limit.name for limit in TASKS["quadruped"].limits)
    assert costs.largest == (1.0, 1.0, 1.0)
