"""What the goal and the button tasks share: one robot on the plane, hazards on the floor, one indicator cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from tailsafe.physics.interface import PhysicsState, Readings
from tailsafe.physics.mjcf import RED, EngineName, World, navigation_mjcf
from tailsafe.tasks.base import AnyArray, CostLimit, Outcome
from tailsafe.tasks.lidar import BINS, pseudo_lidars
from tailsafe.tasks.robots import Robot

HAZARD_RADIUS = 0.2
# Red, green, blue, opacity in models; maps have the same.
HAZARD_RGBA, GOAL_RGBA, ROBOT_RGBA = "0 0 1 0.25", "0 1 0 0.25", RED
ROBOT_KEEPOUT = 0.4
HAZARD_KEEPOUT = 0.18
SUCCESS_BONUS = 1.0
REWARD_BOUND = 10.0
# Enough for the tolerances of the recordings: the point slides freely, the car stands on wheels with friction.
# With 4 for the point 9 clean steps leave them, with 8 for the car 12.
SOLVER_ITERATIONS = {"point": 6, "car": 12}
# On the recordings 8 and 4 did the same (car-goal, point-button), and so did 4 and 3 (point-goal), where 2 changed the
# velocity of a pushed vase.
LINE_SEARCH_ITERATIONS = 3
BOX_QPOS = 7
BOX_QVEL = 6
# The paper allows the robot to be unsafe in one step of forty.
COLLISION_LIMIT = (CostLimit("collision", 0.025),)


@dataclass(frozen=True)
class NavigationTask:
    """Constants and helpers of a navigation task; `goal` and `button` add what differs."""

    robot: Robot
    world: World
    family: str = "navigation"
    episode_length: int = 1000
    substeps: int = 10
    action_reach: tuple[float, ...] = (1.0, 1.0)
    limits: tuple[CostLimit, ...] = field(default=COLLISION_LIMIT)
    lagging: bool = False
    remembered: int = 0
    toucher: str | None = "agent"
    followed: str | None = None
    line_search_iterations: int = LINE_SEARCH_ITERATIONS
    # What the robot is for: the second part of names.
    purpose: ClassVar[str]

    @property
    def name(self) -> str:
        return f"{self.robot.name}-{self.purpose}"

    @property
    def gymnasium_id(self) -> str:
        return f"tailsafe/{self.robot.name.capitalize()}{self.purpose.capitalize()}-v0"

    @property
    def effective_reach(self) -> tuple[float, ...]:
        return self.robot.effective_reach

    @property
    def timestep(self) -> float:
        return self.world.timestep

    @property
    def solver_iterations(self) -> int:
        return SOLVER_ITERATIONS[self.robot.name]

    @property
    def touchable(self) -> tuple[str, ...]:
        return self.world.touchable

    def mjcf(self, engine: EngineName, *, decorations: str = "", all_sensors: bool = False) -> str:
        return navigation_mjcf(self.world, engine, decorations=decorations, all_sensors=all_sensors)

    def spawn_readings(self, state: Any) -> Readings:
        """The same in every episode."""
        return Readings(
            sensors=jnp.asarray(self.robot.spawn_accelerometer, float),
            touches=jnp.zeros(len(self.touchable), bool),
            before=jnp.zeros((0, 0), float),
        )

    def memory(self, state: Any) -> Float[Array, " 0"]:
        return jnp.zeros(0, float)

    def controls(self, action: AnyArray, memory: AnyArray) -> AnyArray:
        clipped: AnyArray = action.clip(-1.0, 1.0)
        return clipped

    def halted(self, state: Any) -> Bool[Array, ""]:
        return jnp.zeros((), bool)

    def robot_position(self, physics: PhysicsState) -> Float[Array, " 2"]:
        """Robot origin on the plane [m]."""
        return self.robot.pose(physics.qpos)[0][:2]

    def boxes(self, physics: PhysicsState, count: int) -> Float[Array, "K 3"]:
        """Centres of the free boxes [m], whose joints follow the robot's in qpos."""
        poses = physics.qpos[self.robot.nq : self.robot.nq + count * BOX_QPOS]
        return poses.reshape(count, BOX_QPOS)[:, :3]

    def _start(self, robot: Float[Array, " 2"], yaw: Float[Array, ""], boxes: Float[Array, "K 7"]) -> PhysicsState:
        qvel = jnp.zeros(self.robot.nv + boxes.shape[0] * BOX_QVEL, float)
        qpos = jnp.concatenate([self.robot.rest(robot, yaw), boxes.reshape(-1)])
        return PhysicsState(time=jnp.zeros((), float), qpos=qpos, qvel=qvel)

    def _sense(
        self, physics: PhysicsState, readings: Readings, *seen: Float[Array, "_ 2"]
    ) -> tuple[Float[Array, " S"], Float[Array, "G 16"]]:
        """Body sensors, and one pseudo-lidar per group of object centres."""
        position, rotation = self.robot.pose(physics.qpos)
        felt = self.robot.feel(physics.qpos, physics.qvel, readings.sensors)
        return felt, pseudo_lidars(position, rotation, seen)


def lidar_parts(*names: str) -> tuple[tuple[str, int], ...]:
    """Observation parts of one pseudo-lidar per name."""
    return tuple((f"{name}_lidar", BINS) for name in names)


def disc_mjcf(name: str, radius: float, half_height: float, rgba: str) -> str:
    """A see-through cylinder without contacts, for the render model."""
    return (
        f'<body name="{name}"><geom type="cylinder" size="{radius} {half_height}" contype="0" conaffinity="0"'
        f' rgba="{rgba}"/></body>'
    )


def hazards_mjcf(count: int) -> str:
    """The hazards, for the render model."""
    return "".join(disc_mjcf(f"hazard{i}", HAZARD_RADIUS, 0.01, HAZARD_RGBA) for i in range(count))


def hazard_positions(hazards: Float[Array, "K 2"]) -> dict[str, Float[Array, " 3"]]:
    """Where the render model shows them [m]."""
    return {f"hazard{i}": jnp.append(centre, 0.02) for i, centre in enumerate(hazards)}


def planar_distance(a: Float[Array, " 2"], b: Float[Array, " 2"]) -> Float[Array, ""]:
    """Distance on the floor [m]."""
    return jnp.sqrt(jnp.sum((a - b) ** 2))


def in_hazard(robot: Float[Array, " 2"], hazards: Float[Array, "K 2"]) -> Bool[Array, ""]:
    """Whether the robot's origin is inside a hazard. On the rim (distance exactly 0.2) it is not."""
    offset = hazards - robot
    return jnp.any(jnp.sqrt(jnp.sum(offset * offset, axis=1)) < HAZARD_RADIUS)


def judge(
    progress: Float[Array, ""],
    success: Bool[Array, ""],
    components: dict[str, Bool[Array, ""]],
    terminated: Bool[Array, ""],
) -> Outcome:
    """Reward: metres gained towards the goal, plus one on success. Cost: 1 if any component is positive."""
    dtype = progress.dtype
    reward = progress + jnp.where(success, SUCCESS_BONUS, 0.0)
    total = jnp.any(jnp.stack(list(components.values())))
    return Outcome(
        reward=jnp.clip(reward, -REWARD_BOUND, REWARD_BOUND),
        costs=total.astype(dtype)[None],
        components={name: flag.astype(dtype) for name, flag in components.items()},
        success=success,
        terminated=terminated,
    )
