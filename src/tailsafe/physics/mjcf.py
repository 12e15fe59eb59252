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

from dataclasses import dataclass
from typing import Literal

RobotName = Literal["point", "car"]
WheelShape = Literal["cylinder", "capsule"]

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

# Collision groups as bits. The C engine puts everything into ALL; MJX has no cylinder-box routine, so there the
# wheels leave ALL: their cylinders meet floor and buttons (ROUND), a stand-in shape meets the boxes (STAND_IN).
ALL, ROUND, STAND_IN = 1, 2, 4


@dataclass(frozen=True)
class World:
    """Which bodies a navigation world holds. `wheels` is the shape that meets boxes (car only)."""

    robot: RobotName
    vases: int = 0
    gremlins: int = 0
    buttons: int = 0
    wheels: WheelShape = "cylinder"

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


def navigation_mjcf(
    world: World, *, touch_sensors: bool = True, all_sensors: bool = False, decorations: str = ""
) -> str:
    """The world as MJCF text.

    Args:
      touch_sensors: one contact sensor per touchable geom, counting its contacts with the robot (C engine; MJX
        reads its contact arrays instead).
      all_sensors: also the sensors whose values follow from the joint state (velocimeter, gyro, magnetometer, ball
        joint). The tasks compute these from the state; tests compare the two.
      decorations: bodies for the eye only, without contacts.
    """
    body, actuators, density = (_POINT, _POINT_ACTUATORS, 1) if world.robot == "point" else (
        _car(world.wheels), _CAR_ACTUATORS, 5,
    )
    sensors = '<accelerometer name="accelerometer" site="agent"/>'
    if all_sensors:
        sensors += _STATE_SENSORS + (_BALL_SENSORS if world.robot == "car" else "")
    if touch_sensors:
        sensors += "".join(
            f'<contact name="touch_{name}" subtree1="agent" geom2="{name}" data="found" num="1"/>'
            for name in world.touchable
        )
    return f"""
<mujoco model="tailsafe-{world.robot}">
  <compiler angle="radian"/>
  <option timestep="{world.timestep}" magnetic="0 -0.5 0"><flag autoreset="disable"/></option>
  <visual><global offwidth="1024" offheight="1024"/><headlight ambient="0.4 0.4 0.4"/></visual>
  <default>
    <geom condim="6" density="{density}"/>
    <joint damping="0.001"/>
  </default>
  <worldbody>
    <light pos="0 0 5" dir="0 0 -1" diffuse="0.5 0.5 0.5" castshadow="false"/>
    <camera name="top" pos="0 0 6" fovy="45"/>
    <geom name="floor" type="plane" size="3.5 3.5 0.1" contype="{ALL | ROUND}" conaffinity="{ALL | ROUND}"
          rgba="0.85 0.85 0.85 1"/>
    {body}
    {"".join(_box("vase", i, VASE_HEIGHT, 4, "0 1 1 1") for i in range(world.vases))}
    {"".join(_box("gremlin", i, BOX_HALF_SIZE, 5, "0.5 0 1 1") for i in range(world.gremlins))}
    {"".join(_gremlin_target(i) for i in range(world.gremlins))}
    {"".join(_button(i) for i in range(world.buttons))}
    {decorations}
  </worldbody>
  <contact>{_POINT_FLOOR_EXCLUSION if world.robot == "point" else ""}</contact>
  <equality>{"".join(_weld(i) for i in range(world.gremlins))}</equality>
  <actuator>{actuators}</actuator>
  <sensor>{sensors}</sensor>
</mujoco>"""


_POINT = f"""
<body name="agent" pos="0 0 {SPAWN_HEIGHT}">
  <joint name="x" type="slide" axis="1 0 0" damping="0.01"/>
  <joint name="y" type="slide" axis="0 1 0" damping="0.01"/>
  <joint name="z" type="hinge" axis="0 0 1" damping="0.005"/>
  <geom name="agent" type="sphere" size="0.1" friction="1 0.01 0.01" rgba="{RED}"/>
  <geom name="pointarrow" type="box" size="0.05 0.05 0.05" pos="0.1 0 0" rgba="{BLUE}"/>
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


def _car(wheels: WheelShape) -> str:
    return f"""
<body name="agent" pos="0 0 {SPAWN_HEIGHT}">
  <freejoint name="agent"/>
  <geom name="agent" type="box" size="0.1 0.1 0.05" rgba="{RED}"/>
  <geom name="back_bumper" type="box" size="0.1 0.01 0.05" pos="0 0.15 0" rgba="{BLUE}"/>
  <geom name="back_connector" type="box" size="0.01 0.025 0.03" pos="0 0.125 0" rgba="{BLUE}"/>
  <geom name="front_bumper" type="box" size="0.05 0.01 0.05" pos="0 -0.165 0" rgba="{BLUE}"/>
  <geom name="front_connector" type="box" size="0.05 0.03 0.01" pos="0 -0.13 0.04" rgba="{BLUE}"/>
  <site name="agent" rgba="0 0 0 0"/>
  {_wheel("left", -1, wheels)}
  {_wheel("right", 1, wheels)}
  <body name="rear" pos="0 -0.1 -0.05">
    <joint name="rear" type="ball"/>
    <geom name="rear" type="sphere" size="0.05" rgba="{RED}"/>
  </body>
</body>"""


def _wheel(name: str, side: int, wheels: WheelShape) -> str:
    bits = f'contype="{ALL}" conaffinity="{ALL}"' if wheels == "cylinder" else f'contype="{ROUND}" conaffinity="{ROUND}"'
    stand_in = "" if wheels == "cylinder" else _WHEEL_STAND_IN.format(name=name, x=side * 0.03)
    return f"""
<body name="{name}" pos="{side * 0.1} 0.1 -0.05">
  <joint name="{name}" type="hinge" axis="1 0 0"/>
  <geom name="{name}" type="cylinder" size="0.05 0.025" pos="{side * 0.03} 0 0" {_AXIS_ALONG_X}
        {bits} rgba="{RED}"/>
  {stand_in}
</body>"""


_WHEEL_STAND_IN = ""
_AXIS_ALONG_X = 'quat="0.7071067811865476 0 -0.7071067811865476 0"'


def _box(kind: str, index: int, height: float, group: int, rgba: str) -> str:
    """A free box of half size 0.1 and mass 8e-6 kg: a vase, or the body of a gremlin."""
    return f"""
<body name="{kind}{index}" pos="{2 + index} 2 {height}">
  <freejoint name="{kind}{index}"/>
  <geom name="{kind}{index}" type="box" size="{BOX_HALF_SIZE} {BOX_HALF_SIZE} {BOX_HALF_SIZE}" density="0.001"
        contype="{ALL | STAND_IN}" conaffinity="{ALL | STAND_IN}" group="{group}" rgba="{rgba}"/>
</body>"""


def _gremlin_target(index: int) -> str:
    return f"""
<body name="gremlin{index}_target" mocap="true" pos="{2 + index} 2 {BOX_HALF_SIZE}">
  <geom type="box" size="{BOX_HALF_SIZE} {BOX_HALF_SIZE} {BOX_HALF_SIZE}" contype="0" conaffinity="0" group="5"
        rgba="0.5 0 1 0.1"/>
</body>"""


def _button(index: int) -> str:
    return f"""
<body name="button{index}" mocap="true" pos="{2 + index} 3 {BUTTON_HEIGHT}">
  <geom name="button{index}" type="sphere" size="{BUTTON_RADIUS}" contype="{ALL | ROUND}"
        conaffinity="{ALL | ROUND}" group="1" rgba="1 0.5 0 1"/>
</body>"""


def _weld(index: int) -> str:
    return (
        f'<weld body1="gremlin{index}_target" body2="gremlin{index}" relpose="0 0 0 1 0 0 0" anchor="0 0 0"'
        f' solref="0.02 1.5" torquescale="{WELD_TORQUE_SCALE}"/>'
    )
