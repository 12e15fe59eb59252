"""MJCF of the legged worlds: a flat floor and one robot, from primitive shapes alone."""

from __future__ import annotations

from collections.abc import Sequence

from tailsafe.physics.mjcf import EngineName

TIMESTEP = 0.002


def legged_mjcf(
    name: str,
    engine: EngineName,
    *,
    defaults: str,
    floor: str,
    robot: str,
    equality: str = "",
    actuators: str,
    mjx_contacts: int,
    touchable: Sequence[str],
    decorations: str,
) -> str:
    """A world for one robot as MJCF text; angles in radians.

    defaults: of joints and geoms. floor: attributes of the floor's geom (contacts). robot: its tree of bodies, the
    base named `base` with a site `base` that velocities and heights refer to. equality, actuators: MJCF elements.
    mjx_contacts: how many of the deepest contacts engine `mjx` keeps. touchable: geoms with a contact sensor on engine
    `mujoco`, for contacts with anything. decorations: bodies for the eye alone.
    """
    sensors = "".join(f'<contact name="touch_{geom}" geom1="{geom}" data="found" num="1"/>' for geom in touchable)
    kept = f'<custom><numeric name="max_contact_points" data="{mjx_contacts}"/></custom>'
    return f"""
<mujoco model="tailsafe-{name}">
  <compiler angle="radian"/>
  <option timestep="{TIMESTEP}" gravity="0 0 -9.8" integrator="Euler" solver="Newton" cone="elliptic" impratio="5">
    <flag autoreset="disable"/>
  </option>
  {kept if engine == "mjx" else ""}
  <asset>
    <texture type="skybox" builtin="gradient" rgb1="0.75 0.83 0.92" rgb2="1 1 1" width="64" height="64"/>
    <texture name="floor" type="2d" builtin="checker" rgb1="0.84 0.84 0.84" rgb2="0.72 0.74 0.78"
             width="64" height="64"/>
    <material name="floor" texture="floor" texrepeat="1 1" texuniform="true"/>
  </asset>
  <visual><global offwidth="1024" offheight="1024"/><headlight ambient="0.4 0.4 0.4"/></visual>
  <default>{defaults}</default>
  <worldbody>
    <light directional="true" pos="0 0 5" dir="0 0 -1" diffuse="0.5 0.5 0.5" castshadow="false"/>
    <geom name="floor" type="plane" size="0 0 0.1" {floor} material="floor" rgba="1 1 1 1"/>
    {robot}
    {decorations}
  </worldbody>
  <equality>{equality}</equality>
  <actuator>{actuators}</actuator>
  <sensor>{sensors if engine == "mujoco" else ""}</sensor>
</mujoco>"""


def numbers(*values: float) -> str:
    """Values as an MJCF attribute, without loss."""
    return " ".join(repr(float(value)) for value in values)
