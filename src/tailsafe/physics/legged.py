"""MJCF of the legged worlds: a flat floor and one robot, from primitive shapes alone."""

from __future__ import annotations

TIMESTEP = 0.002


def legged_mjcf(name: str, *, defaults: str, floor: str, robot: str, equality: str = "", actuators: str) -> str:
    """A world for one robot as MJCF text; angles in radians.

    defaults: of joints and geoms. floor: attributes of the floor's geom (contacts). robot: its tree of bodies, the
    base named `base` with a site `base` that velocities and heights refer to. equality, actuators: MJCF elements.
    """
    return f"""
<mujoco model="tailsafe-{name}">
  <compiler angle="radian"/>
  <option timestep="{TIMESTEP}" gravity="0 0 -9.8" integrator="Euler" solver="Newton" cone="elliptic" impratio="5">
    <flag autoreset="disable"/>
  </option>
  <visual><global offwidth="1024" offheight="1024"/><headlight ambient="0.4 0.4 0.4"/></visual>
  <default>{defaults}</default>
  <worldbody>
    <light pos="0 0 5" dir="0 0 -1" diffuse="0.5 0.5 0.5" castshadow="false"/>
    <geom name="floor" type="plane" size="0 0 0.1" {floor} rgba="0.85 0.85 0.85 1"/>
    {robot}
  </worldbody>
  <equality>{equality}</equality>
  <actuator>{actuators}</actuator>
</mujoco>"""


def numbers(*values: float) -> str:
    """Values as an MJCF attribute, without loss."""
    return " ".join(repr(float(value)) for value in values)
