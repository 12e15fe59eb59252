"""Runs that take seconds, and environments to train on."""

from __future__ import annotations

import csv
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces

import tailsafe as ts
from tailsafe.checkpoints import Checkpoints

ROOT = Path(__file__).parents[2]
TWO_ROADS = str(ROOT / "examples" / "two_roads.json")

# 8 steps of 4 environments per update: 32 steps.
TINY = {
    "num_envs": 4,
    "chunk_steps": 8,
    "groups": 2,
    "beta_per": "episode",
    "replay_chunks": 3,
    "batch_chunks": 2,
    "policy_hidden": (8,),
    "critic_hidden": (8,),
    "quantiles": 5,
    "critic_iterations": 2,
    "log_every": 2,
    "warmup": 0,
    "window": 16,
}
PER_UPDATE = 32
FINITE_LIMIT = ts.Constraint("cost", ts.CVaR(0.75), 2.0, "discounted")


def finite_config(out: Path, updates: int, **changes) -> ts.TrainConfig:
    settings = {**TINY, "problem": TWO_ROADS, "checkpoint_every": 3 * PER_UPDATE, **changes.pop("settings", {})}
    return ts.TrainConfig(
        "finite",
        constraints=[FINITE_LIMIT],
        total_steps=updates * PER_UPDATE,
        preset="laptop",
        out=out,
        settings=settings,
        **changes,
    )


def command_settings(**extra) -> list[str]:
    """The tiny settings as arguments of `tailsafe train`."""
    words = []
    for key, value in {**TINY, **extra}.items():
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        words += ["--set", f"{key}={text}"]
    return words


def last_arrays(folder: Path) -> dict[str, np.ndarray]:
    """What the last checkpoint holds."""
    checkpoints = Checkpoints(folder / "checkpoints")
    arrays, _ = checkpoints.load(checkpoints.steps()[-1])
    checkpoints.close()
    return arrays


def assert_same_arrays(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> None:
    """Bit for bit."""
    assert first.keys() == second.keys()
    different = [name for name in first if first[name].tobytes() != second[name].tobytes()]
    assert not different


def assert_close_arrays(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> None:
    """As of one path in two programs: batched matrix products sum in another order than single ones."""
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_allclose(second[name], array, rtol=2e-3, atol=2e-4, err_msg=name)


def rows_without_times(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    return [{k: v for k, v in row.items() if k not in ("seconds", "steps_per_second")} for row in rows]


class Corridor(gymnasium.Env):
    """Walk right along [0, 1] (two numbers, the second is noise) for 10 steps; fast steps cost."""

    observation_space = spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space = spaces.Box(np.array([-2.0], np.float32), np.array([4.0], np.float32))
    cost_names = ("speeding",)

    def __init__(self) -> None:
        self.seen: list[float] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.place = 0, 0.0
        return self._look(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        speed = float(action[0])
        self.seen.append(speed)
        self.place = float(np.clip(self.place + 0.1 * speed, -5.0, 5.0))
        self.steps += 1
        return self._look(), speed, False, self.steps >= 10, {"cost": self.cost(speed)}

    def cost(self, speed):
        return float(speed > 1)

    def _look(self):
        return np.array([self.place, self.np_random.normal()], np.float32)


class Switch(Corridor):
    """The same with three discrete actions that start at 5, two costs in a vector, and no names for them."""

    action_space = spaces.Discrete(3, start=5)
    cost_names = None

    def step(self, action):
        assert self.action_space.contains(action)
        self.action_space = Corridor.action_space
        try:
            return super().step(np.array([action - 5.0], np.float32))
        finally:
            self.action_space = Switch.action_space

    def cost(self, speed):
        return np.array([speed > 1, speed > 0], float)


class Costless(Corridor):
    def step(self, action):
        return (*super().step(action)[:4], {})


class NanCost(Corridor):
    def cost(self, speed):
        return float("nan") if self.steps > 5 else 0.0


class ShapeShifter(Corridor):
    def cost(self, speed):
        return np.zeros(1 + self.steps // 5)


class Unbounded(Corridor):
    action_space = spaces.Box(-np.inf, np.inf, (1,))
