"""The biped: a Cassie of 33.3 kg with ten motors, its legs with springs and closed kinematic loops.

Each leg is a chain from hip to foot with two rods beside it (achilles, plantar) that point constraints tie to the heel
spring and to the foot. Bodies are given for the left leg; the right one is its mirror image. Every hinge turns about
its body's z axis.

The controllers tau = kp (u - q) - kd q', clipped and only then multiplied by the gear, are actuators of the model: they
act on every physics step, and `actuator_force` is what they ask for before the gear.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from tailsafe.physics.mjcf import EngineName
from tailsafe.tasks.legged_model import legged_mjcf, numbers

SIDES = ("left", "right")

_DEFAULTS = """
<joint limited="auto" armature="0" damping="0"/>
<geom condim="6" friction="1 0.005 0.0001" solref="0.005 1" rgba="0.55 0.45 0.3 1"/>
<equality solref="0.005 1"/>"""
_FLOOR = 'contype="0" conaffinity="15" condim="3" friction="1 1 0.0001" solref="0.005 1"'

# Between the pelvis' origin and the site that velocities and heights refer to.
REFERENCE = (0.03155, 0.0, -0.07996)
_PELVIS_HEIGHT = 1.0
# What the vertical slide reads there, and how much higher than its reading the pelvis is.
_SLIDE_AT_HEIGHT = 1.01
HEIGHT_SHIFT = _PELVIS_HEIGHT - _SLIDE_AT_HEIGHT
_MJX_CONTACTS = 6
# Positions to begin with: base, quaternion, then per leg hip roll, yaw, pitch, achilles rod's quaternion, knee, shin,
# tarsus, heel spring, foot crank, plantar rod, foot.
START = (
    *(0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0),
    *(-6.05507670e-04, -9.46848441e-04, 6.88587941e-01, 9.43366294e-01, 2.79908818e-03, 2.57290345e-02),
    *(-3.30741919e-01, -1.46884023, 4.99414927e-03, 1.67887314, 1.56343722e-03, -1.55491322, 1.53641059, -1.65963020),
    *(6.02820781e-04, 9.20671538e-04, 6.88739578e-01, 9.43359484e-01, -2.79838679e-03, -2.57319768e-02),
    *(-3.30761119e-01, -1.46842817, 4.47926175e-03, 1.67906987, 1.58396908e-03, -1.55491322, 1.53641059, -1.65963020),
)


class _Link(NamedTuple):
    """A body of the left leg. inertia: about the centre of mass in body axes, xx yy zz xy xz yz."""

    name: str
    offset: tuple[float, float, float]
    quat: tuple[float, float, float, float]
    mass: float
    centre: tuple[float, float, float]
    inertia: tuple[float, float, float, float, float, float]


_UNTURNED = (1.0, 0.0, 0.0, 0.0)
_HALF = 0.70710678
_PELVIS = _Link(
    "base",
    (0.0, 0.0, _PELVIS_HEIGHT),
    _UNTURNED,
    10.33,
    (0.05066, 0.000346, 0.02841),
    (0.085821, 0.049222, 0.08626, 1.276e-05, -0.00016022, -0.000414),
)
_LINKS = {
    link.name: link
    for link in (
        _Link(
            "hip_roll",
            (0.021, 0.135, 0.0),
            (_HALF, 0.0, _HALF, 0.0),
            1.82,
            (-0.01793, 0.0001, -0.04428),
            (0.003431, 0.003793, 0.002135, -6.65e-07, -0.00084, 3.99e-06),
        ),
        _Link(
            "hip_yaw",
            (0.0, 0.0, -0.07),
            (_HALF, 0.0, -_HALF, 0.0),
            1.171,
            (0.0, -1e-05, -0.034277),
            (0.002443, 0.002803, 0.000842, -4e-08, 2.462e-07, -2.71e-08),
        ),
        _Link(
            "hip_pitch",
            (0.0, 0.0, -0.09),
            (-0.5, -0.5, -0.5, 0.5),
            5.52,
            (0.05946, 5e-05, -0.03581),
            (0.010898, 0.029714, 0.030257, -0.0002669, -5.721e-05, 9.17e-06),
        ),
        _Link(
            "achilles_rod",
            (0.0, 0.0, 0.045),
            (0.94651416, -0.01450651, 0.042981046, -0.31945756),
            0.1567,
            (0.24719, 0.0, 0.0),
            (3.754e-06, 0.004487, 0.004488, -3.74e-08, -1.61e-08, 0.0),
        ),
        _Link(
            "knee",
            (0.12, 0.0, 0.0045),
            (0.92387953, 0.0, 0.0, -0.38268343),
            0.7578,
            (0.023, 0.03207, -0.002181),
            (0.001376, 0.0010335, 0.0021637, -0.00039744, -4.085e-05, -5.374e-05),
        ),
        _Link(
            "knee_spring",
            (0.06068, 0.08241, 0.0),
            _UNTURNED,
            0.186,
            (0.0836, 0.0034, 0.0),
            (5.215e-05, 0.00041205, 0.0003669, 6.87e-06, 0.0, 0.0),
        ),
        _Link(
            "shin",
            (0.06068, 0.04741, 0.0),
            _UNTURNED,
            0.577,
            (0.18338, 0.001169, 0.0002123),
            (0.00035939, 0.014728, 0.014707, -0.00020981, 2.266e-05, -1.2e-07),
        ),
        _Link(
            "tarsus",
            (0.43476, 0.02, 0.0),
            (0.87461961, 0.0, 0.0, 0.48480979),
            0.782,
            (0.11046, -0.03058, -0.00131),
            (0.00039238, 0.013595, 0.013674, 0.00023651, -4.987e-05, -4.82e-06),
        ),
        _Link(
            "heel_spring",
            (-0.01269, -0.03059, 0.00092),
            (0.20935484, 0.010860572, -0.037555833, 0.97705791),
            0.126,
            (0.081, 0.0022, 0.0),
            (2.959e-05, 0.00022231, 0.0002007, 7.15e-06, -6e-07, 1e-07),
        ),
        _Link(
            "foot_crank",
            (0.058, -0.034, 0.02275),
            _UNTURNED,
            0.1261,
            (0.00493, 2e-05, -0.00215),
            (2.6941e-05, 4.9621e-05, 6.3362e-05, -2.1e-09, -3.9623e-06, -1.09e-08),
        ),
        _Link(
            "plantar_rod",
            (0.055, 0.0, -0.00791),
            _UNTURNED,
            0.1186,
            (0.17792, 0.0, 0.0),
            (2.779e-06, 0.001774, 0.001775, -2.34e-08, -8.1e-09, 0.0),
        ),
        _Link(
            "foot",
            (0.408, -0.04, 0.0),
            _UNTURNED,
            0.1498,
            (0.00474, 0.02748, -0.00014),
            (0.00017388, 0.00016793, 0.00033261, 0.00011814, 1.36e-06, -4e-07),
        ),
    )
}


class _Hinge(NamedTuple):
    """degrees: range of the left leg, None where free. at_reference: what it reads in the links' pose, in degrees."""

    degrees: tuple[float, float] | None
    damping: float = 0.0
    armature: float = 0.0
    stiffness: float = 0.0
    at_reference: float = 0.0


_HINGES = {
    "hip_roll": _Hinge((-15, 22.5), 1, 0.038125),
    "hip_yaw": _Hinge((-22.5, 22.5), 1, 0.038125),
    "hip_pitch": _Hinge((-50, 80), 1, 0.09344),
    "knee": _Hinge((-164, -37), 1, 0.09344, at_reference=-45),
    "shin": _Hinge((-20, 20), 0.1, stiffness=1500),
    "tarsus": _Hinge((50, 170), 0.1, at_reference=58),
    "heel_spring": _Hinge(None, stiffness=1250),
    "foot_crank": _Hinge((-140, -30), 1),
    "plantar_rod": _Hinge(None),
    "foot": _Hinge((-140, -30), 1, 0.01225),
}


class _Motor(NamedTuple):
    """largest: of the control, before the gear. kp, kd: of the controller, per radian of the joint."""

    gear: float
    largest: float
    kp: float
    kd: float


_MOTORS = {
    "hip_roll": _Motor(25, 4.5, 100, 10),
    "hip_yaw": _Motor(25, 4.5, 100, 10),
    "hip_pitch": _Motor(16, 12.2, 88, 8),
    "knee": _Motor(16, 12.2, 96, 9.6),
    "foot": _Motor(50, 0.9, 50, 5),
}
MOTORS = tuple(_MOTORS)
# The right hip roll and yaw turn the other way than their targets: signs of the ten targets.
MIRRORED = (1, 1, 1, 1, 1, -1, -1, 1, 1, 1)
# Who carries whom, children in the order of their coordinates.
_CHILDREN = {
    "hip_roll": ("hip_yaw",),
    "hip_yaw": ("hip_pitch",),
    "hip_pitch": ("achilles_rod", "knee"),
    "knee": ("knee_spring", "shin"),
    "shin": ("tarsus",),
    "tarsus": ("heel_spring", "foot_crank", "foot"),
    "foot_crank": ("plantar_rod",),
}
# Left capsules: radius, from, to.
_CAPSULES = {
    "hip_pitch": (0.08, (0.0, 0.0, -0.04), (0.12, 0.0, -0.0355)),
    "shin": (0.04, (0.0, 0.0, 0.0), (0.43476, 0.02, 0.0)),
    "tarsus": (0.04, (-0.01269, -0.03059, 0.00092), (0.408, -0.04, 0.0)),
    "foot": (0.02, (-0.052821, 0.092622, 0.0), (0.069746, -0.010224, 0.0)),
}


def motor_constants() -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """kp, kd and the largest control of the ten motors."""
    motors = [_MOTORS[name] for _ in SIDES for name in MOTORS]
    return tuple(m.kp for m in motors), tuple(m.kd for m in motors), tuple(m.largest for m in motors)


def biped_mjcf(engine: EngineName = "mujoco", *, touchable: Sequence[str] = (), decorations: str = "") -> str:
    """The robot on its floor."""
    robot = f"""
<body name="base" pos="{numbers(*_PELVIS.offset)}">
  <joint name="base_x" type="slide" axis="1 0 0"/>
  <joint name="base_y" type="slide" axis="0 1 0"/>
  <joint name="base_z" type="slide" axis="0 0 1" ref="{_SLIDE_AT_HEIGHT}"/>
  <joint name="base_ball" type="ball"/>
  {_inertial(_PELVIS)}
  <site name="base" pos="{numbers(*REFERENCE)}" rgba="0 0 0 0"/>
  <geom name="torso" type="sphere" size="0.15" pos="0.02 0 0.02" contype="1" conaffinity="0"/>
  {"".join(_body(side, "hip_roll") for side in SIDES)}
</body>"""
    equality = "".join(
        f'<connect body1="{side}_{rod}" body2="{side}_{end}" anchor="{reach} 0 0"/>'
        for side in SIDES
        for rod, end, reach in (("plantar_rod", "foot", 0.35012), ("achilles_rod", "heel_spring", 0.5012))
    )
    actuators = "".join(_actuator(side, motor) for side in SIDES for motor in MOTORS)
    return legged_mjcf(
        "biped",
        engine,
        defaults=_DEFAULTS,
        floor=_FLOOR,
        robot=robot,
        equality=equality,
        actuators=actuators,
        mjx_contacts=_MJX_CONTACTS,
        touchable=touchable,
        decorations=decorations,
    )


def _body(side: str, name: str) -> str:
    link = _LINKS[name] if side == "left" else _mirrored(_LINKS[name])
    children = "".join(_body(side, child) for child in _CHILDREN.get(name, ()))
    return f"""
<body name="{side}_{name}" pos="{numbers(*link.offset)}" quat="{numbers(*link.quat)}">
  {_joint(side, name)}
  {_inertial(link)}
  {_capsule(side, name)}
  {children}
</body>"""


def _mirrored(link: _Link) -> _Link:
    """The right leg's body. Hip roll and yaw are mirrored in their y axis, all others in z."""
    x, y, z = link.offset
    a, b, c = link.centre
    xx, yy, zz, xy, xz, yz = link.inertia
    if link.name in ("hip_roll", "hip_yaw"):
        # The hip roll's centre of mass lies on the same side of both legs.
        centre = link.centre if link.name == "hip_roll" else (a, -b, c)
        return link._replace(offset=(x, -y, z), centre=centre, inertia=(xx, yy, zz, -xy, xz, -yz))
    mirrored = link._replace(centre=(a, b, -c), inertia=(xx, yy, zz, xy, -xz, -yz))
    if link.name == "hip_pitch":  # hangs below the hip yaw in the same way on both sides
        return mirrored
    w, i, j, k = link.quat
    return mirrored._replace(offset=(x, y, -z), quat=(w, -i, -j, k))


def _inertial(link: _Link) -> str:
    return f'<inertial mass="{link.mass!r}" pos="{numbers(*link.centre)}" fullinertia="{numbers(*link.inertia)}"/>'


def _joint(side: str, name: str) -> str:
    label = f"{side}_{name}"
    if name == "knee_spring":  # rigidly part of the knee
        return ""
    if name == "achilles_rod":
        return f'<joint name="{label}" type="ball" damping="0.01"/>'
    hinge = _HINGES[name]
    limits = ""
    if hinge.degrees is not None:
        low, high = hinge.degrees
        if side == "right" and name == "hip_roll":
            low, high = -high, -low
        limits = f'range="{numbers(math.radians(low), math.radians(high))}"'
    return (
        f'<joint name="{label}" {limits} damping="{hinge.damping}" armature="{hinge.armature}"'
        f' stiffness="{hinge.stiffness}" ref="{math.radians(hinge.at_reference)!r}"/>'
    )


def _actuator(side: str, name: str) -> str:
    """An actuator measures its joint's position and velocity times the gear."""
    gear, largest, kp, kd = _MOTORS[name]
    return (
        f'<general name="{side}_{name}" joint="{side}_{name}" gear="{gear}" biastype="affine" gainprm="{kp}"'
        f' biasprm="{numbers(0, -kp / gear, -kd / gear)}" forcerange="{-largest} {largest}"/>'
    )


def _capsule(side: str, name: str) -> str:
    """Hips meet the floor alone; the lower legs meet the floor and those of the other leg."""
    if name not in _CAPSULES:
        return ""
    mirror = 1 if side == "left" else -1
    radius, *ends = _CAPSULES[name]
    points = [value for x, y, z in ends for value in (x, y, mirror * z)]
    being, meeting = (1, 0) if name == "hip_pitch" else (2, 4) if side == "left" else (4, 2)
    return (
        f'<geom name="{side}_{name}" type="capsule" size="{radius}" fromto="{numbers(*points)}"'
        f' contype="{being}" conaffinity="{meeting}"/>'
    )
