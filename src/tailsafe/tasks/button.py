"""Point-button and car-button: press the designated one of four buttons, among hazards and moving gremlins."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from tailsafe.physics.interface import Mocap, PhysicsState, Readings, Scalar
from tailsafe.physics.mjcf import BOX_HALF_SIZE, BUTTON_HEIGHT, World
from tailsafe.tasks.base import Outcome
from tailsafe.tasks.navigation import (
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
from tailsafe.tasks.placement import draw_index, place, uniform
from tailsafe.tasks.robots import Robot
from tailsafe.tasks.rotations import yaw_quaternion

BUTTONS = 4
HAZARDS = 4
GREMLINS = 4
TIMER_STEPS = 10
GREMLIN_TRAVEL = 0.35
# The original's mocap bodies start on the floor while the gremlins start 0.1 above it, and the weld keeps that
# difference: the gremlins hover with their underside at 0.1.
GREMLIN_HOVER = 2 * BOX_HALF_SIZE
_MARKER_KEEPOUT = 0.4
_KEEPOUTS = (
    ROBOT_KEEPOUT,
    *(0.2,) * BUTTONS,
    _MARKER_KEEPOUT,  # the goal marker takes up room although it is moved onto a button afterwards
    *(HAZARD_KEEPOUT,) * HAZARDS,
    *(0.4,) * GREMLINS,
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ButtonState:
    """Layout and bookkeeping of one episode: positions on the floor [m], headings [rad].

    designated: index of the button to press; presses: how often the right one was pressed; timer: control steps
    during which wrong buttons are free and the buttons' lidar is blank; distance: from the robot to the designated
    button after the last step.
    """

    robot: Float[Array, " 2"]
    robot_yaw: Scalar
    buttons: Float[Array, "4 2"]
    hazards: Float[Array, "4 2"]
    gremlins: Float[Array, "4 2"]
    gremlin_yaws: Float[Array, " 4"]
    designated: Int[Array, ""]
    presses: Int[Array, ""]
    timer: Int[Array, ""]
    distance: Scalar
    key: PRNGKeyArray


@dataclass(frozen=True)
class ButtonTask(NavigationTask):
    """Button tasks. Success ignores the timer: a button drawn again while still touched pays again at once."""

    purpose = "button"

    @property
    def observation_parts(self) -> tuple[tuple[str, int], ...]:
        return (*self.robot.sensor_parts, *lidar_parts("buttons", "goal", "hazards", "gremlins"))

    def scenery(self) -> str:
        return hazards_mjcf(HAZARDS) + disc_mjcf("goal", 0.2, 0.1, "0 1 0 0.1")

    def scenery_positions(self, state: ButtonState) -> dict[str, Float[Array, " 3"]]:
        marker = jnp.append(state.buttons[state.designated], 0.11)
        return {"goal": marker, **hazard_positions(state.hazards)}

    def try_reset(self, key: PRNGKeyArray) -> tuple[ButtonState, Bool[Array, ""]]:
        place_key, yaw_key, button_key = jax.random.split(key, 3)
        positions, placed = place(place_key, _KEEPOUTS)
        yaws = uniform(yaw_key, (1 + GREMLINS,), 0.0, 2 * jnp.pi)
        robot = positions[0]
        buttons = positions[1 : 1 + BUTTONS]
        hazards = positions[2 + BUTTONS : 2 + BUTTONS + HAZARDS]
        designated = draw_index(button_key, jnp.int32(0), BUTTONS)
        state = ButtonState(
            robot=robot,
            robot_yaw=yaws[0],
            buttons=buttons,
            hazards=hazards,
            gremlins=positions[-GREMLINS:],
            gremlin_yaws=yaws[1:],
            designated=designated,
            presses=jnp.int32(0),
            timer=jnp.int32(0),
            distance=planar_distance(robot, buttons[designated]),
            key=button_key,
        )
        return state, placed

    def spawn(self, state: ButtonState) -> PhysicsState:
        height = jnp.full((GREMLINS, 1), BOX_HALF_SIZE, float)
        boxes = jnp.concatenate([state.gremlins, height, yaw_quaternion(state.gremlin_yaws)], axis=1)
        return self._start(state.robot, state.robot_yaw, boxes)

    def mocap(self, state: ButtonState, time: Scalar) -> Mocap:
        """Gremlin targets circle their homes in 2 pi seconds, all in phase; buttons stand still."""
        circle = GREMLIN_TRAVEL * jnp.stack([jnp.sin(time), jnp.cos(time)])
        targets = _at_height(state.gremlins + circle, GREMLIN_HOVER)
        buttons = _at_height(state.buttons, BUTTON_HEIGHT)
        upright = jnp.zeros((BUTTONS, 4), float).at[:, 0].set(1.0)
        return Mocap(
            position=jnp.concatenate([targets, buttons]),
            quaternion=jnp.concatenate([yaw_quaternion(state.gremlin_yaws), upright]),
        )

    def advance(
        self, state: ButtonState, controls: Float[Array, " U"], physics: PhysicsState, readings: Readings
    ) -> tuple[ButtonState, Outcome]:
        robot = self.robot_position(physics)
        pressed, gremlins_touched = readings.touches[:BUTTONS], readings.touches[BUTTONS:]
        wrong = pressed & (jnp.arange(BUTTONS) != state.designated)
        distance = planar_distance(robot, state.buttons[state.designated])
        success = pressed[state.designated]
        presses = state.presses + success
        drawn = draw_index(state.key, presses, BUTTONS, needed=success)
        designated = jnp.where(success, drawn, state.designated)
        after = replace(
            state,
            designated=designated,
            timer=jnp.where(success, TIMER_STEPS, jnp.maximum(0, state.timer - 1)).astype(state.timer.dtype),
            distance=planar_distance(robot, state.buttons[designated]),
            presses=presses,
        )
        outcome = judge(
            progress=state.distance - distance,
            success=success,
            components={
                "buttons": jnp.any(wrong) & (state.timer == 0),
                "hazards": in_hazard(robot, state.hazards),
                "gremlins": jnp.any(gremlins_touched),
            },
            terminated=jnp.bool_(False),
        )
        return after, outcome

    def observe(self, state: ButtonState, physics: PhysicsState, readings: Readings) -> Float[Array, " O"]:
        felt, lidars = self._sense(
            physics,
            readings,
            state.buttons,
            state.buttons[state.designated][None],
            state.hazards,
            self.boxes(physics, GREMLINS)[:, :2],
        )
        shown = lidars.at[0].multiply(state.timer == 0)
        return jnp.concatenate([felt, shown.reshape(-1)])


def button_task(robot: Robot) -> ButtonTask:
    """The button task of a robot."""
    return ButtonTask(robot=robot, world=World(robot.name, gremlins=GREMLINS, buttons=BUTTONS))


def _at_height(points: Float[Array, "K 2"], height: float) -> Float[Array, "K 3"]:
    return jnp.concatenate([points, jnp.full((len(points), 1), height, points.dtype)], axis=1)
