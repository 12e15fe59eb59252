"""Point-goal and car-goal: reach the goal disc again and again, past eight hazards and one vase."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from tailsafe.physics.interface import Mocap, PhysicsState, Readings, Scalar
from tailsafe.physics.mjcf import VASE_HEIGHT, World
from tailsafe.tasks.base import Outcome
from tailsafe.tasks.navigation import (
    GOAL_RGBA,
    HAZARD_KEEPOUT,
    ROBOT_KEEPOUT,
    NavigationTask,
    disc_mjcf,
    hazard_positions,
    hazards_mjcf,
    in_hazard,
    judge,
    lidar_parts,
    planar_distance,
)
from tailsafe.tasks.placement import draw_goal, place, uniform
from tailsafe.tasks.robots import Robot
from tailsafe.tasks.rotations import yaw_quaternion

GOAL_RADIUS = 0.3
GOAL_KEEPOUT = 0.305
VASE_KEEPOUT = 0.15
HAZARDS = 8
_KEEPOUTS = (ROBOT_KEEPOUT, GOAL_KEEPOUT, *(HAZARD_KEEPOUT,) * HAZARDS, VASE_KEEPOUT)
_OTHERS_KEEPOUT = (ROBOT_KEEPOUT, *(HAZARD_KEEPOUT,) * HAZARDS, VASE_KEEPOUT)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GoalState:
    """Layout and bookkeeping of one episode: positions on the floor [m], headings [rad].

    goals: how many have been reached; distance: from the robot to the current goal after the last step.
    """

    robot: Float[Array, " 2"]
    robot_yaw: Scalar
    hazards: Float[Array, "8 2"]
    vase: Float[Array, " 2"]
    vase_yaw: Scalar
    goal: Float[Array, " 2"]
    goals: Int[Array, ""]
    distance: Scalar
    key: PRNGKeyArray


@dataclass(frozen=True)
class GoalTask(NavigationTask):
    """Goal tasks. The vase is in the way and in the lidar; touching it costs nothing at this level."""

    purpose = "goal"

    @property
    def observation_parts(self) -> tuple[tuple[str, int], ...]:
        return (*self.robot.sensor_parts, *lidar_parts("goal", "hazards", "vases"))

    def scenery(self) -> str:
        return hazards_mjcf(HAZARDS) + disc_mjcf("goal", GOAL_RADIUS, 0.15, GOAL_RGBA)

    def scenery_positions(self, state: GoalState) -> dict[str, Float[Array, " 3"]]:
        return {"goal": jnp.append(state.goal, 0.16), **hazard_positions(state.hazards)}

    def try_reset(self, key: PRNGKeyArray) -> tuple[GoalState, Bool[Array, ""]]:
        place_key, yaw_key, goal_key = jax.random.split(key, 3)
        positions, placed = place(place_key, _KEEPOUTS)
        yaws = uniform(yaw_key, (2,), 0.0, 2 * jnp.pi)
        robot, hazards, vase = positions[0], positions[2:-1], positions[-1]
        # The goal only reserved room so far; it is drawn again, like every later one.
        others = _others(robot, hazards, vase)
        goal, found = draw_goal(goal_key, jnp.int32(0), GOAL_KEEPOUT, others, _OTHERS_KEEPOUT)
        state = GoalState(
            robot=robot,
            robot_yaw=yaws[0],
            hazards=hazards,
            vase=vase,
            vase_yaw=yaws[1],
            goal=goal,
            goals=jnp.int32(0),
            distance=planar_distance(robot, goal),
            key=goal_key,
        )
        return state, placed & found

    def spawn(self, state: GoalState) -> PhysicsState:
        vase = jnp.concatenate([state.vase, jnp.full(1, VASE_HEIGHT, float), yaw_quaternion(state.vase_yaw)])
        return self._start(state.robot, state.robot_yaw, vase[None])

    def mocap(self, state: GoalState, time: Scalar) -> Mocap:
        return Mocap(position=jnp.zeros((0, 3), float), quaternion=jnp.zeros((0, 4), float))

    def advance(
        self, state: GoalState, controls: Float[Array, " U"], physics: PhysicsState, readings: Readings
    ) -> tuple[GoalState, Outcome]:
        robot = self.robot_position(physics)
        distance = planar_distance(robot, state.goal)
        success = distance <= GOAL_RADIUS
        vase = self.boxes(physics, 1)[0, :2]
        goals = state.goals + success
        others = _others(robot, state.hazards, vase)
        drawn, found = draw_goal(state.key, goals, GOAL_KEEPOUT, others, _OTHERS_KEEPOUT, needed=success)
        goal = jnp.where(success & found, drawn, state.goal)
        after = replace(state, goal=goal, goals=goals, distance=planar_distance(robot, goal))
        outcome = judge(
            progress=state.distance - distance,
            success=success,
            components={"hazards": in_hazard(robot, state.hazards)},
            terminated=success & ~found,
        )
        return after, outcome

    def observe(self, state: GoalState, physics: PhysicsState, readings: Readings) -> Float[Array, " O"]:
        vase = self.boxes(physics, 1)[:, :2]
        felt, lidars = self._sense(physics, readings, state.goal[None], state.hazards, vase)
        return jnp.concatenate([felt, lidars.reshape(-1)])


def goal_task(robot: Robot) -> GoalTask:
    """The goal task of a robot."""
    return GoalTask(robot=robot, world=World(robot.name, vases=1))


def _others(robot: Float[Array, " 2"], hazards: Float[Array, "8 2"], vase: Float[Array, " 2"]) -> Float[Array, "10 2"]:
    return jnp.concatenate([robot[None], hazards, vase[None]])
