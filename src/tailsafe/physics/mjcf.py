"""MJCF of the navigation worlds, written in code: no mesh, texture or XML files.

Everything that can touch something is here: floor, robot, vases, gremlins, buttons. Hazards and the goal never
touch anything; they are arrays of the layout, and only the render model (`decorations`) shows them.

One compiled model serves every environment of a batch, so nothing in it depends on a layout:
  - the point's slides lie along the world axes and its rest pose is the origin. The original lets them run along
    the robot's axes at spawn; both slides have the same damping and no limits, so this is the same motion in
    other coordinates: (x, y) = spawn + Rz(yaw) q, heading = yaw + q_z;
  - buttons are mocap bodies, placed per environment through `mocap_pos`;
  - a gremlin's mocap body sits at the gremlin's target itself and the weld holds relative pose zero. The original
    offsets the weld by the gremlin's home and moves the mocap body around the origin: same error, same Jacobian.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

RobotName = Literal["point", "car"]
EngineName = Literal["mujoco", "mjx"]

RED = "0.7412 0.0431 0.1843 1"
BLUE = "0.0039 0.1529 0.3961 1"

SPAWN_HEIGHT = 0.1
VASE_HEIGHT = 0.1 - 4e-5
BUTTON_HEIGHT = 0.1
BOX_HALF_SIZE = 0.1
BUTTON_RADIUS = 0.1
# MuJoCo 2.3.3 regularised the weld's rotation with the translational inverse weight, 150 times smaller for a
# gremlin; the torque scale restores that behaviour in later engines.
WELD_TORQUE_SCALE = 150.0**0.5

# Who meets whom. In the C engine everything that collides meets everything else, as in the original. MJX prepares
# every possible contact in advance, so there only pairs with the robot remain, and vases meet the floor:
#   - MJX has no cylinder-box routine: the wheels' cylinders meet floor and buttons, another shape in their place
#     meets the boxes;
#   - MJX's plane-box routine keeps only corners within a millimetre of the deepest: the vase's corners are points;
#   - chassis and floor, gremlins and floor, gremlins and buttons or each other: never seen in the recordings.
_FLOOR, _BOX, _BUTTON = 1, 2, 4
_Collisions = dict[str, str]


def _collisions(engine: EngineName) -> _Collisions:
    """Collision attributes of each kind of geom."""
    kinds = ("floor", "robot", "wheel", "wheel_stand_in", "rear", "box", "corner", "button")
    if engine == "mujoco":
        return dict.fromkeys(kinds, 'contype="1" conaffinity="1"')
    being = {"floor": _FLOOR, "box": _BOX, "button": _BUTTON}
    meeting = {
        "robot": _BOX | _BUTTON,
        "wheel": _FLOOR | _BUTTON,
        "wheel_stand_in": _BOX,
        "rear": _FLOOR | _BOX | _BUTTON,
        "corner": _FLOOR,
    }
    return {kind: f'contype="{being.get(kind, 0)}" conaffinity="{meeting.get(kind, 0)}"' for kind in kinds}


@dataclass(frozen=True)
class World:
    """Which bodies a navigation world holds."""

    robot: RobotName
    vases: int = 0
    gremlins: int = 0
    buttons: int = 0

    @property
    def timestep(self) -> float:
        """Physics step in seconds."""
        return 0.002 if self.robot == "point" else 0.004

    @property
    def touchable(self) -> tuple[str, ...]:
        """Geoms whose contact with the robot is reported, in the order of `Readings.touches`."""
        return (
            *(f"button{i}" for i in range(self.buttons)),
            *(f"gremlin{i}" for i in range(self.gremlins)),
            *(f"vase{i}" for i in range(self.vases)),
        )


def navigation_mjcf(world: World, engine: EngineName, *, all_sensors: bool = False, decorations: str = "") -> str:
    """The world as MJCF text.

    Args:
      engine: `mujoco` adds one contact sensor per touchable geom, counting its contacts with the robot; `mjx`
        reads its contact arrays instead, and has fewer collision pairs.
      all_sensors: also the sensors whose values follow from the joint state (velocimeter, gyro, magnetometer, ball
        joint). The tasks compute these from the state; tests compare the two.
      decorations: bodies for the eye only, without contacts.
    """
    meets = _collisions(engine)
    point = world.robot == "point"
    sensors = '<accelerometer name="accelerometer" site="agent"/>'
    if all_sensors:
        sensors += _STATE_SENSORS + ("" if point else _BALL_SENSORS)
    if engine == "mujoco":
        sensors += "".join(
            f'<contact name="touch_{name}" subtree1="agent" geom2="{name}" data="found" num="1"/>'
            for name in world.touchable
        )
    return f"""
<mujoco model="tailsafe-{world.robot}">
  <compiler angle="radian"/>
  <option timestep="{world.timestep}" magnetic="0 -0.5 0"><flag autoreset="disable"/></option>
  {_mjx_limits(world) if engine == "mjx" else ""}
  <visual><global offwidth="1024" offheight="1024"/><headlight ambient="0.4 0.4 0.4"/></visual>
  <default>
    <geom condim="6" density="{1 if point else 5}"/>
    <joint damping="0.001"/>
  </default>
  <worldbody>
    <light pos="0 0 5" dir="0 0 -1" diffuse="0.5 0.5 0.5" castshadow="false"/>
    <camera name="top" pos="0 0 6" fovy="45"/>
    <geom name="floor" type="plane" size="3.5 3.5 0.1" {meets["floor"]} rgba="0.85 0.85 0.85 1"/>
    {_point(meets) if point else _car(world, meets, engine)}
    {"".join(_box("vase", i, VASE_HEIGHT, 4, "0 1 1 1", meets, engine) for i in range(world.vases))}
    {"".join(_box("gremlin", i, BOX_HALF_SIZE, 5, "0.5 0 1 1", meets) for i in range(world.gremlins))}
    {"".join(_gremlin_target(i) for i in range(world.gremlins))}
    {"".join(_button(i, meets) for i in range(world.buttons))}
    {decorations}
  </worldbody>
  <contact>{_POINT_FLOOR_EXCLUSION if point else ""}</contact>
  <equality>{"".join(_weld(i) for i in range(world.gremlins))}</equality>
  <actuator>{_POINT_ACTUATORS if point else _CAR_ACTUATORS}</actuator>
  <sensor>{sensors}</sensor>
</mujoco>"""


def _mjx_limits(world: World) -> str:
    """How many nearest pairs of each two shapes MJX looks at closely, and how many deepest contacts it keeps.

    Every contact kept costs ten rows of the solver, touching or not; the limits are the smallest with which the
    recordings are met as well as without (docs/tasks.md has the table). A vase stands on 4 corners and meets one
    sphere, or a box's deepest corner; the car stands on 5 points. Gremlins hover: of these worlds' contacts only the
    robot's remain, with one object at a time, seldom two (the car with several of its boxes).
    """
    pairs, contacts = {"point": (2, 5), "car": (6, 16)}[world.robot]
    nearest = f'<numeric name="max_geom_pairs" data="{pairs}"/>' if world.gremlins else ""
    return f'<custom>{nearest}<numeric name="max_contact_points" data="{contacts}"/></custom>'


def _point(meets: _Collisions) -> str:
    return f"""
<body name="agent" pos="0 0 {SPAWN_HEIGHT}">
  <joint name="x" type="slide" axis="1 0 0" damping="0.01"/>
  <joint name="y" type="slide" axis="0 1 0" damping="0.01"/>
  <joint name="z" type="hinge" axis="0 0 1" damping="0.005"/>
  <geom name="agent" type="sphere" size="0.1" friction="1 0.01 0.01" {meets["robot"]} rgba="{RED}"/>
  <geom name="pointarrow" type="box" size="0.05 0.05 0.05" pos="0.1 0 0" {meets["robot"]} rgba="{BLUE}"/>
  <site name="agent" rgba="0 0 0 0"/>
</body>"""


# The force limit applies before the gear: any |a[0]| >= 0.05 is full thrust.
_POINT_ACTUATORS = """
<motor name="x" site="agent" gear="0.3 0 0 0 0 0" ctrllimited="true" ctrlrange="-1 1"
       forcelimited="true" forcerange="-0.05 0.05"/>
<velocity name="z" joint="z" gear="0.3" kv="1" ctrllimited="true" ctrlrange="-1 1"
          forcelimited="true" forcerange="-0.05 0.05"/>"""

# The point's sphere touches the floor at distance exactly 0 and cannot move vertically: that contact never carries
# a force, and in single precision rounding would turn it into spurious friction.
_POINT_FLOOR_EXCLUSION = '<exclude body1="world" body2="agent"/>'

_CAR_ACTUATORS = """
<motor name="left" joint="left" ctrllimited="true" ctrlrange="-1 1" forcelimited="true" forcerange="-0.02 0.02"/>
<motor name="right" joint="right" ctrllimited="true" ctrlrange="-1 1" forcelimited="true" forcerange="-0.02 0.02"/>"""

_STATE_SENSORS = """
<velocimeter name="velocimeter" site="agent"/>
<gyro name="gyro" site="agent"/>
<magnetometer name="magnetometer" site="agent"/>"""

_BALL_SENSORS = """
<ballangvel name="ballangvel_rear" joint="rear"/>
<ballquat name="ballquat_rear" joint="rear"/>"""


def _car(world: World, meets: _Collisions, engine: EngineName) -> str:
    chassis = meets["robot"]
    return f"""
<body name="agent" pos="0 0 {SPAWN_HEIGHT}">
  <freejoint name="agent"/>
  <geom name="agent" type="box" size="0.1 0.1 0.05" {chassis} rgba="{RED}"/>
  <geom name="back_bumper" type="box" size="0.1 0.01 0.05" pos="0 0.15 0" {chassis} rgba="{BLUE}"/>
  <geom name="back_connector" type="box" size="0.01 0.025 0.03" pos="0 0.125 0" {chassis} rgba="{BLUE}"/>
  <geom name="front_bumper" type="box" size="0.05 0.01 0.05" pos="0 -0.165 0" {chassis} rgba="{BLUE}"/>
  <geom name="front_connector" type="box" size="0.05 0.03 0.01" pos="0 -0.13 0.04" {chassis} rgba="{BLUE}"/>
  <site name="agent" rgba="0 0 0 0"/>
  {_wheel("left", -1, world, meets, engine)}
  {_wheel("right", 1, world, meets, engine)}
  <body name="rear" pos="0 -0.1 -0.05">
    <joint name="rear" type="ball"/>
    <geom name="rear" type="sphere" size="0.05" {meets["rear"]} rgba="{RED}"/>
  </body>
</body>"""


_ALONG_X = 'quat="0.7071067811865476 0 -0.7071067811865476 0"'


def _wheel(name: str, side: int, world: World, meets: _Collisions, engine: EngineName) -> str:
    # A vase meets a wheel from the side: a sphere flush with the wheel's outer face, its inner half hidden in the
    # chassis. A hovering gremlin meets it from above: a capsule with the wheel's upper edge, whose caps stick out
    # lower down only. Both massless: the cylinder keeps the inertia.
    shape = f'type="capsule" size="0.05 0.02" pos="{side * 0.025} 0 0" {_ALONG_X}'
    if not world.gremlins:
        shape = f'type="sphere" size="0.05" pos="{side * 0.005} 0 0"'
    stand_in = f'<geom name="{name}_stand_in" {shape} mass="0" {meets["wheel_stand_in"]} rgba="0 0 0 0"/>'
    return f"""
<body name="{name}" pos="{side * 0.1} 0.1 -0.05">
  <joint name="{name}" type="hinge" axis="1 0 0"/>
  <geom name="{name}" type="cylinder" size="0.05 0.025" pos="{side * 0.03} 0 0"
        {_ALONG_X} {meets["wheel"]} rgba="{RED}"/>
  {stand_in if engine == "mjx" else ""}
</body>"""


def _box(
    kind: str, index: int, height: float, group: int, rgba: str, meets: _Collisions, engine: EngineName = "mujoco"
) -> str:
    """A free box of half size 0.1 and mass 8e-6 kg: a vase, or the body of a gremlin."""
    corners = "".join(
        f'<geom type="sphere" size="1e-9" pos="{x} {y} {z}" mass="0" {meets["corner"]} rgba="0 0 0 0"/>'
        for x, y, z in itertools.product((-BOX_HALF_SIZE, BOX_HALF_SIZE), repeat=3)
    )
    return f"""
<body name="{kind}{index}" pos="{2 + index} 2 {height}">
  <freejoint name="{kind}{index}"/>
  <geom name="{kind}{index}" type="box" size="{BOX_HALF_SIZE} {BOX_HALF_SIZE} {BOX_HALF_SIZE}" density="0.001"
        {meets["box"]} group="{group}" rgba="{rgba}"/>
  {corners if engine == "mjx" else ""}
</body>"""


def _gremlin_target(index: int) -> str:
    return f"""
<body name="gremlin{index}_target" mocap="true" pos="{2 + index} 2 {BOX_HALF_SIZE}">
  <geom type="box" size="{BOX_HALF_SIZE} {BOX_HALF_SIZE} {BOX_HALF_SIZE}" contype="0" conaffinity="0" group="5"
        rgba="0.5 0 1 0.1"/>
</body>"""


def _button(index: int, meets: _Collisions) -> str:
    return f"""
<body name="button{index}" mocap="true" pos="{2 + index} 3 {BUTTON_HEIGHT}">
  <geom name="button{index}" type="sphere" size="{BUTTON_RADIUS}" {meets["button"]} group="1" rgba="1 0.5 0 1"/>
</body>"""


def _weld(index: int) -> str:
    return (
        f'<weld body1="gremlin{index}_target" body2="gremlin{index}" relpose="0 0 0 1 0 0 0" anchor="0 0 0"'
        f' solref="0.02 1.5" torquescale="{WELD_TORQUE_SCALE}"/>'
    )
