"""The legged tasks once more, slowly: plain loops over `mj_step`, every quantity asked of MuJoCo itself.

Written from the task's numbers and independent of `tailsafe.tasks`: sites, Jacobians, contacts and actuator forces are
MuJoCo's, where the tasks compute them from joint positions and velocities. As in the engines, the solver starts every
control step anew (`qacc_warmstart` is zero).
"""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

BIPED_JOINTS = ("hip_roll", "hip_yaw", "hip_pitch", "knee", "foot")
NUMBERS: dict[str, dict[str, Any]] = {
    "quadruped": {
        "pose": [0.0, -np.arccos(0.8), 2 * np.arccos(0.8)] * 4,
        "low": [-1.0, -3.0, -2.0] * 4,
        "high": [1.0, 1.5, 2.5] * 4,
        "weight": 0.75,
        "offsets": [0, np.pi, np.pi, 0],
        "height": 0.35,
        "joints": [f"{joint}_{leg}" for leg in ("fr", "fl", "hr", "hl") for joint in ("abduct", "thigh", "knee")],
        "mirror": [1] * 12,
        "feet": ["toe_fr", "toe_fl", "toe_hr", "toe_hl"],
    },
    "biped": {
        "pose": [0.0, 0.0, 0.6882826, -1.5405409, -1.9] * 2,
        "low": np.radians([-15, -22.5, -50, -164, -140] * 2),
        "high": np.radians([22.5, 22.5, 80, -37, -30] * 2),
        "weight": 0.5,
        "offsets": [0, np.pi],
        "height": 0.7,
        "joints": [f"{side}_{joint}" for side in ("left", "right") for joint in BIPED_JOINTS],
        "mirror": [1] * 5 + [-1, -1, 1, 1, 1],
        "feet": ["left_foot", "right_foot"],
    },
}  # fmt: skip


class Reference:
    """One episode of a legged task from given joint positions and velocities."""

    def __init__(self, name: str, model: mujoco.MjModel, start: Any, command: Any) -> None:
        """start: joint positions of the quadruped after its reset, of the biped before its thirty substeps."""
        self.biped = name == "biped"
        self.numbers = {key: np.asarray(value) for key, value in NUMBERS[name].items()}
        self.model, self.data = model, mujoco.MjData(model)
        self.data.qpos[:] = start
        self.command = command
        joints = [model.joint(str(joint)) for joint in self.numbers["joints"]]
        self.positions = [joint.qposadr[0] for joint in joints]
        self.dofs = [joint.dofadr[0] for joint in joints]
        self.feet = [model.geom(str(foot)).id for foot in self.numbers["feet"]]
        nothing = np.zeros(len(joints))
        self.errors, self.velocities, self.targets = [], [], []
        self.filtered = self.numbers["pose"] if self.biped else np.array(start[7:])
        for _ in range(3):
            error, velocity = nothing, nothing
            for _ in range(10 if self.biped else 0):
                error, velocity = self.filtered - self._joints()[0], self._joints()[1]
                self.data.ctrl[:] = self.numbers["mirror"] * self.filtered
                mujoco.mj_step(self.model, self.data)
            self._remember(error, velocity)
        if not self.biped:
            mujoco.mj_forward(model, self.data)
        self.filtered = nothing
        self.count = 0
        self.first, _, _ = self._judge(self._joints(), 0.0)
        self.frozen: Any = None

    def _joints(self) -> tuple[Any, Any]:
        """Positions and velocities as the controllers read them."""
        mirror, data = self.numbers["mirror"], self.data
        return mirror * data.qpos[self.positions], mirror * data.qvel[self.dofs]

    def step(self, action: Any) -> tuple[Any, float, Any]:
        """(observation, reward, costs)."""
        if self.frozen is not None:
            return self.frozen
        numbers, data, mirror = self.numbers, self.data, self.numbers["mirror"]
        wanted = np.minimum(np.maximum(action + numbers["pose"], numbers["low"]), numbers["high"])
        self.filtered = numbers["weight"] * self.filtered + (1 - numbers["weight"]) * wanted
        data.ctrl[:] = mirror * self.filtered
        data.qacc_warmstart[:] = 0
        spent = []
        for _ in range(10):
            entered = self._joints()
            mujoco.mj_step(self.model, data)
            spent.append(np.abs(data.actuator_force * data.qvel[self.dofs]))
        left = self._joints()
        self.count += 1
        position, velocity = entered if self.biped else left
        self._remember(self.filtered - position, velocity)
        power = np.mean(spent) if self.biped else np.sum(spent[-1])
        result = self._judge(left, power)
        if self.gravity[2] / np.linalg.norm(self.gravity) >= 0:
            self.frozen = result
        return result

    def _remember(self, error: Any, velocity: Any) -> None:
        for rows, latest in ((self.errors, error), (self.velocities, velocity), (self.targets, self.filtered)):
            rows.append(np.array(latest))
            del rows[:-3]

    def _judge(self, joints: Any, power: float) -> tuple[Any, float, Any]:
        data, numbers = self.data, self.numbers
        site = data.site("base")
        rotation = site.xmat.reshape(3, 3)
        heading = np.arctan2(-rotation[0, 1], rotation[0, 0])
        turn = np.array(
            [[np.cos(heading), np.sin(heading), 0], [-np.sin(heading), np.cos(heading), 0], [0, 0, 1]]
        )  # transposed
        linear, angular = np.zeros((3, self.model.nv)), np.zeros((3, self.model.nv))
        mujoco.mj_jacSite(self.model, data, linear, angular, self.model.site("base").id)
        speed, spin = turn @ linear @ data.qvel, turn @ angular @ data.qvel
        self.gravity = turn @ rotation @ [0, 0, -9.8]
        touching = np.array([any(foot in pair for pair in data.contact.geom) for foot in self.feet])
        phases = (numbers["offsets"] + 10 * 0.02 * self.count) % (2 * np.pi)
        swing = np.sin(phases) < 0
        costs = [
            float(self.gravity[2] / np.linalg.norm(self.gravity) > -np.cos(np.radians(15))),
            float(site.xpos[2] < numbers["height"]),
            np.mean((swing & touching) | (~swing & ~touching)),
        ]
        v, w = self.command
        error = (w - spin[2]) ** 2 + (speed[0] - v) ** 2 + speed[1] ** 2
        observation = [
            [v, 0, 0, 0, 0, w], self.gravity, speed, spin, *joints,
            np.array([[np.cos(phase), np.sin(phase)] for phase in phases]).ravel(),
            *map(np.ravel, (self.errors, self.velocities, self.targets)), touching, [site.xpos[2]],
        ]  # fmt: skip
        return np.concatenate(observation), 0.1 * (-error - 0.001 * power), np.array(costs)
