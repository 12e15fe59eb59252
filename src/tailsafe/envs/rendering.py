"""Pictures of an episode: physics model, scenery (hazards, goal), lidars as rings of dots, commands as arrows."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Protocol

import jax
import mujoco
import numpy as np
from numpy.typing import NDArray

from tailsafe.envs.episodes import Episode
from tailsafe.envs.host import float64_on_host
from tailsafe.errors import InputError
from tailsafe.tasks.base import Task

_INSTALL = "install libegl1 (EGL) or libosmesa6 (OSMesa), e.g. `apt-get install libegl1 libgl1-mesa-dri`"
_MAX_GEOMS = 1000
_TRAIL_DOT, _TRAIL_HEIGHT, _TRAIL_COLOUR = 0.025, 0.02, (0.75, 0.1, 0.1)
# More dots than this along a trail are thinned out.
_TRAIL_DOTS = 300
_LIDAR_RADIUS, _LIDAR_HEIGHT, _LIDAR_SPACING, _LIDAR_DOT = 0.15, 0.35, 0.06, 0.02
_LIDAR_COLOURS = {
    "goal_lidar": (0.0, 1.0, 0.0),
    "hazards_lidar": (0.0, 0.0, 1.0),
    "vases_lidar": (0.0, 1.0, 1.0),
    "buttons_lidar": (1.0, 0.5, 0.0),
    "gremlins_lidar": (0.5, 0.0, 1.0),
}


# Wanted and actual velocity of a robot that follows commands: an arrow of this many metres per m/s.
_ARROW_LENGTH, _ARROW_WIDTH, _ARROW_HEIGHT = 0.4, 0.015, 0.3
_COMMAND_COLOUR, _VELOCITY_COLOUR = (0.1, 0.6, 0.1), (0.1, 0.3, 0.8)


class SceneRenderer(Protocol):
    """Draws an episode (of a batch of one)."""

    def draw(self, episode: Episode) -> NDArray[np.uint8] | None: ...
    def close(self) -> None: ...


def make_renderer(task: Task[Any], mode: str, width: int, height: int) -> SceneRenderer:
    """A renderer for render mode `rgb_array` or `human`."""
    return WindowRenderer(task) if mode == "human" else ImageRenderer(task, width, height)


class RenderScene:
    """The render model of a task and where everything stands in it."""

    def __init__(self, task: Task[Any]) -> None:
        self.task = task
        self.model = mujoco.MjModel.from_xml_string(task.mjcf("mujoco", decorations=task.scenery()))
        self.data = mujoco.MjData(self.model)
        starts = np.cumsum([0, *(width for _, width in task.observation_parts)])
        self._columns = {
            name: slice(start, start + width)
            for (name, width), start in zip(task.observation_parts, starts, strict=False)
        }

    def set(self, episode: Episode) -> None:
        """Take over the episode's state."""
        with float64_on_host():
            one = jax.tree.map(lambda leaf: leaf[0], episode)
            mocap = self.task.mocap(one.task, one.physics.time)
            scenery = self.task.scenery_positions(one.task)
        self.data.time = float(one.physics.time)
        self.data.qpos[:] = one.physics.qpos
        self.data.qvel[:] = one.physics.qvel
        self.data.mocap_pos[:] = mocap.position
        self.data.mocap_quat[:] = mocap.quaternion
        for name, position in scenery.items():
            self.model.body(name).pos = np.asarray(position)
        mujoco.mj_forward(self.model, self.data)
        self._observation = np.asarray(one.observation)

    @property
    def centre(self) -> NDArray[np.float64] | None:
        """Where the camera looks at [m], if it follows the robot."""
        return None if self.task.followed is None else self.data.body(self.task.followed).xpos

    def add_marks(self, scene: mujoco.MjvScene) -> None:
        """What the robot is told and sees."""
        if "linear_command" in self._columns:
            self._add_velocities(scene)
        lidars = [name for name in self._columns if name in _LIDAR_COLOURS]
        if lidars:
            self._add_lidars(scene, lidars)

    def _add_velocities(self, scene: mujoco.MjvScene) -> None:
        """Arrows above the robot: the commanded velocity and, a little lower, the one it has."""
        base = self.data.body(self.task.followed)
        rotation = base.xmat.reshape(3, 3)
        heading = np.arctan2(-rotation[0, 1], rotation[0, 0])
        turn = np.array([[np.cos(heading), -np.sin(heading)], [np.sin(heading), np.cos(heading)]])
        marks = (("linear_command", _COMMAND_COLOUR, 0.08), ("linear_velocity", _VELOCITY_COLOUR, 0.0))
        for name, colour, lift in marks:
            if scene.ngeom >= scene.maxgeom:
                return
            tail = base.xpos + np.array([0.0, 0.0, _ARROW_HEIGHT + lift])
            tip = tail + _ARROW_LENGTH * np.append(turn @ self._observation[self._columns[name]][:2], 0.0)
            arrow = scene.geoms[scene.ngeom]
            shape = mujoco.mjtGeom.mjGEOM_ARROW
            mujoco.mjv_initGeom(
                arrow, shape, np.zeros(3), np.zeros(3), np.zeros(9), np.asarray([*colour, 1], np.float32)
            )
            mujoco.mjv_connector(arrow, shape, _ARROW_WIDTH, tail, tip)
            scene.ngeom += 1

    def _add_lidars(self, scene: mujoco.MjvScene, names: list[str]) -> None:
        """One ring of dots per lidar above the robot: the nearer an object, the more opaque its sector."""
        robot = self.data.body("agent")
        rotation = robot.xmat.reshape(3, 3)
        for ring, name in enumerate(names):
            readings = self._observation[self._columns[name]]
            angles = (np.arange(len(readings)) + 0.5) * 2 * np.pi / len(readings)
            for angle, reading in zip(angles, readings, strict=True):
                if scene.ngeom >= scene.maxgeom:
                    return
                offset = _LIDAR_RADIUS * np.asarray([np.cos(angle), np.sin(angle), 0.0])
                position = robot.xpos + rotation @ offset
                position[2] = _LIDAR_HEIGHT + ring * _LIDAR_SPACING
                mujoco.mjv_initGeom(
                    scene.geoms[scene.ngeom],
                    mujoco.mjtGeom.mjGEOM_SPHERE,
                    np.full(3, _LIDAR_DOT),
                    position,
                    np.eye(3).reshape(9),
                    np.asarray([*_LIDAR_COLOURS[name], 0.1 + 0.9 * float(np.clip(reading, 0, 1))], np.float32),
                )
                scene.ngeom += 1

    def add_trail(self, scene: mujoco.MjvScene, trail: NDArray[np.float64]) -> None:
        """Dots on the floor where the robot has been; trail (n, 2): its positions [m]."""
        for x, y in trail[:: 1 + len(trail) // _TRAIL_DOTS]:
            if scene.ngeom >= scene.maxgeom:
                return
            mujoco.mjv_initGeom(
                scene.geoms[scene.ngeom],
                mujoco.mjtGeom.mjGEOM_SPHERE,
                np.full(3, _TRAIL_DOT),
                np.asarray([x, y, _TRAIL_HEIGHT]),
                np.eye(3).reshape(9),
                np.asarray([*_TRAIL_COLOUR, 0.8], np.float32),
            )
            scene.ngeom += 1


class ImageRenderer:
    """Off-screen images, seen from above and behind."""

    def __init__(self, task: Task[Any], width: int, height: int) -> None:
        self._stage = RenderScene(task)
        self._gl = open_gl_context(width, height)
        self._gl.make_current()
        model = self._stage.model
        model.vis.global_.offwidth, model.vis.global_.offheight = width, height
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._context)
        self._scene = mujoco.MjvScene(model, maxgeom=_MAX_GEOMS)
        self._view = mujoco.MjrRect(0, 0, width, height)
        self._camera = overview_camera() if task.followed is None else following_camera()
        self._options = visible_groups()

    def draw(self, episode: Episode, trail: NDArray[np.float64] | None = None) -> NDArray[np.uint8]:
        """An RGB image (height, width, 3); `trail` (n, 2): positions on the robot's way to be marked [m]."""
        self._stage.set(episode)
        if self._stage.centre is not None:
            self._camera.lookat[:] = self._stage.centre
        self._gl.make_current()
        everything = mujoco.mjtCatBit.mjCAT_ALL.value
        stage = self._stage
        mujoco.mjv_updateScene(stage.model, stage.data, self._options, None, self._camera, everything, self._scene)
        stage.add_marks(self._scene)
        if trail is not None:
            stage.add_trail(self._scene, trail)
        mujoco.mjr_render(self._view, self._scene, self._context)
        image = np.empty((self._view.height, self._view.width, 3), np.uint8)
        mujoco.mjr_readPixels(image, None, self._view, self._context)
        return image[::-1].copy()

    def close(self) -> None:
        """Free the graphics context."""
        self._context.free()
        self._gl.free()


class WindowRenderer:
    """An interactive window."""

    def __init__(self, task: Task[Any]) -> None:
        if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            raise InputError("render_mode 'human' needs a display; use 'rgb_array' on a machine without one")
        import mujoco.viewer

        self._stage = RenderScene(task)
        self._viewer = mujoco.viewer.launch_passive(self._stage.model, self._stage.data, show_left_ui=False)
        with self._viewer.lock():
            self._viewer.opt.geomgroup[:] = 1

    def draw(self, episode: Episode) -> None:
        """Show the episode as it is now."""
        with self._viewer.lock():
            self._stage.set(episode)
            if self._stage.centre is not None:
                self._viewer.cam.lookat[:] = self._stage.centre
            self._viewer.user_scn.ngeom = 0
            self._stage.add_marks(self._viewer.user_scn)
        self._viewer.sync()

    def close(self) -> None:
        """Close the window."""
        self._viewer.close()


def open_gl_context(width: int, height: int) -> Any:
    """An off-screen OpenGL context: the display's if there is one, else EGL, else OSMesa.

    MuJoCo's own choice is made by MUJOCO_GL when it is first imported, long before anyone wants a picture; here a
    context of the right kind is opened when it is needed. A user's MUJOCO_GL still decides.
    """
    failures = []
    for name in gl_backends():
        try:
            return importlib.import_module(f"mujoco.{name}").GLContext(width, height)
        except Exception as error:
            # Missing libraries surface as ImportError, AttributeError, RuntimeError or a driver's own type.
            failures.append(f"{name}: {type(error).__name__}")
    raise InputError(f"cannot render here ({', '.join(failures)}): {_INSTALL}")


def gl_backends() -> tuple[str, ...]:
    """MuJoCo's context modules worth trying, best first."""
    chosen = os.environ.get("MUJOCO_GL", "").lower().strip()
    if chosen in ("egl", "osmesa", "glfw", "cgl"):
        return (chosen,)
    if sys.platform != "linux" or os.environ.get("DISPLAY"):
        return ("cgl", "glfw") if sys.platform == "darwin" else ("glfw", "egl", "osmesa")
    return ("egl", "osmesa")


def overview_camera() -> mujoco.MjvCamera:
    """The whole arena, from an angle."""
    camera = mujoco.MjvCamera()
    camera.lookat[:] = (0.0, 0.0, 0.0)
    camera.distance, camera.azimuth, camera.elevation = 5.0, 90.0, -60.0
    return camera


def following_camera() -> mujoco.MjvCamera:
    """A walking robot from the side, wherever it walks."""
    camera = mujoco.MjvCamera()
    camera.distance, camera.azimuth, camera.elevation = 2.6, 120.0, -15.0
    return camera


def visible_groups() -> mujoco.MjvOption:
    """Every group of geoms that MuJoCo can show."""
    options = mujoco.MjvOption()
    options.geomgroup[:] = 1
    return options
