"""The quadruped: a Laikago of 25.2 kg with twelve motors, from boxes, cylinders and spheres.

Legs are front-right, front-left, hind-right, hind-left; each has an abduction, a thigh and a knee joint, in the order
of the actions. Position servos (100 N m/rad, at most 100 N m) track the targets inside the physics step; the joints'
damping (5 N m s/rad) is their derivative gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tailsafe.physics.mjcf import EngineName
from tailsafe.tasks.legged_model import legged_mjcf, numbers

LEGS = ("fr", "fl", "hr", "hl")
JOINTS = ("abduct", "thigh", "knee")
# Positions of the hips in the torso, from there to the leg's plane, and lengths of thigh and shank [m].
HIPS = {
    "fr": (0.21935, -0.0875, 0.0),
    "fl": (0.21935, 0.0875, 0.0),
    "hr": (-0.21935, -0.0875, 0.0),
    "hl": (-0.21935, 0.0875, 0.0),
}
SHOULDER = 0.037
LINK = 0.25
TOE_RADIUS = 0.027
# Contacts count from this distance on [m].
CONTACT_MARGIN = 0.001
# Of the servos: N m / rad, and N m.
TORQUE_STIFFNESS = 100.0
TORQUE_LIMIT = 100.0
_MJX_CONTACTS = 6

_ABDUCT_FRAMES = {
    "fr": (0.629953, 0.350191, 0.35823, 0.593462),
    "fl": (0.593462, 0.35823, 0.350191, 0.629953),
    "hr": (0.35823, 0.593462, 0.629953, 0.350191),
    "hl": (0.350191, 0.629953, 0.593462, 0.35823),
}
_THIGH_RANGE = (-3.92699, 0.523599)
_KNEE_RANGE = (0.610865, 2.77507)
_ALONG_Y = "0.7071067811865476 0.7071067811865476 0 0"

_DEFAULTS = f"""
<joint armature="0.01" frictionloss="0.02" damping="5" limited="true"/>
<geom contype="2" conaffinity="1" condim="3" friction="0.6 0.3 0.3" margin="{CONTACT_MARGIN}" rgba="0.35 0.37 0.42 1"/>
<position kp="{TORQUE_STIFFNESS}" ctrlrange="-40 40" forcerange="{-TORQUE_LIMIT} {TORQUE_LIMIT}"/>"""
# Margins of both sides add up, and the contact distance is the robot's 0.001 m: the floor has none.
_FLOOR = 'contype="1" conaffinity="4" condim="3" friction="1 1 0.0001" margin="0"'


class _Inertia(NamedTuple):
    mass: float
    centre: tuple[float, float, float]
    principal: tuple[float, float, float]
    frame: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)

    def mjcf(self) -> str:
        return (
            f'<inertial mass="{self.mass!r}" pos="{numbers(*self.centre)}" diaginertia="{numbers(*self.principal)}"'
            f' quat="{numbers(*self.frame)}"/>'
        )


_TORSO = _Inertia(
    13.733,
    (0.002284, -4.1e-05, 0.025165),
    (0.254491, 0.250684, 0.0733281),
    (-0.00605949, 0.710803, -0.00734309, 0.703327),
)
_KNEE = _Inertia(
    0.241,
    (-0.002196, -0.000381, -0.12338),
    (0.00619655, 0.00618196, 3.47683e-05),
    (0.712765, 0.000467477, -0.000119366, 0.701402),
)
_TOE = _Inertia(0.001, (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))


def quadruped_mjcf(engine: EngineName = "mujoco", *, touchable: Sequence[str] = (), decorations: str = "") -> str:
    """The robot on its floor."""
    robot = f"""
<body name="base" pos="0 0 0.45">
  <joint name="base" type="free" armature="0" frictionloss="0" damping="0" limited="false"/>
  {_TORSO.mjcf()}
  <site name="base" rgba="0 0 0 0"/>
  <geom name="torso" type="box" size="0.2808 0.086 0.09375" pos="0 0 0.01675"/>
  {"".join(_leg(name) for name in LEGS)}
</body>"""
    actuators = "".join(f'<position name="{joint}_{leg}" joint="{joint}_{leg}"/>' for leg in LEGS for joint in JOINTS)
    return legged_mjcf(
        "quadruped",
        engine,
        defaults=_DEFAULTS,
        floor=_FLOOR,
        robot=robot,
        actuators=actuators,
        mjx_contacts=_MJX_CONTACTS,
        touchable=touchable,
        decorations=decorations,
    )


def _leg(name: str) -> str:
    front = 1 if name[0] == "f" else -1
    left = 1 if name[1] == "l" else -1
    abduct = _Inertia(
        1.096,
        (-front * 0.001568, -left * 0.008134, 0.000864),
        (0.000983491, 0.000885646, 0.000800926),
        _ABDUCT_FRAMES[name],
    )
    thigh = _Inertia(
        1.528,
        (-0.000482, left * 0.02001, -0.031996),
        (0.00992391, 0.00928096, 0.00177389),
        (0.999848, -left * 0.00577968, -0.0153453, left * 0.00595156),
    )
    spread = (-1.0472, 0.872665) if left < 0 else (-0.872665, 1.0472)
    return f"""
<body name="abduct_{name}" pos="{numbers(*HIPS[name])}">
  <joint name="abduct_{name}" axis="1 0 0" range="{numbers(*spread)}"/>
  {abduct.mjcf()}
  <geom name="abduct_{name}" type="cylinder" size="0.041 0.04" pos="{numbers(0, -left * 0.021, 0)}" quat="{_ALONG_Y}"/>
  <body name="thigh_{name}" pos="{numbers(0, left * SHOULDER, 0)}">
    <joint name="thigh_{name}" axis="0 -1 0" range="{numbers(*_THIGH_RANGE)}"/>
    {thigh.mjcf()}
    <geom name="thigh_{name}" type="box" size="0.0215 0.017 0.125" pos="0 0 -0.125"/>
    <body name="knee_{name}" pos="0 0 {-LINK}">
      <joint name="knee_{name}" axis="0 -1 0" range="{numbers(*_KNEE_RANGE)}"/>
      {_KNEE.mjcf()}
      <geom name="shank_{name}" type="box" size="0.008 0.008 0.125" pos="0 0 -0.125"/>
      <body name="toe_{name}" pos="0 0 {-LINK}">
        {_TOE.mjcf()}
        <geom name="toe_{name}" type="sphere" size="{TOE_RADIUS}" rgba="0.1 0.1 0.1 1"/>
      </body>
    </body>
  </body>
</body>"""
