"""Sphere against cylinder for MJX: by hand, and against the C engine."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from tailsafe.envs.host import float64_on_host
from tailsafe.physics.mjx_collisions import exact_sphere_cylinder, sphere_cylinder
from tailsafe.physics.mjx_engine import import_mjx

UP = jnp.asarray([0.0, 0.0, 1.0])


@pytest.mark.parametrize(
    ("centre", "distance", "point", "normal"),
    [
        # Side: axis to centre 2.5, less radii 1 and 1; halfway between the surfaces at 1 and 1.5.
        ((2.5, 0.0, 0.3), 0.5, (1.25, 0.0, 0.3), (-1.0, 0.0, 0.0)),
        # Cap: centre 1.5 above a cap at 2, radius 1.
        ((0.5, 0.0, 3.5), 0.5, (0.5, 0.0, 2.25), (0.0, 0.0, -1.0)),
        # Rim: from (1, 0, 2) to (1.3, 0, 2.4) it is 0.5, so they overlap by 0.5; halfway lies 0.25 inside.
        ((1.3, 0.0, 2.4), -0.5, (0.85, 0.0, 1.8), (-0.6, 0.0, -0.8)),
    ],
)
def test_by_hand(
    centre: tuple[float, ...], distance: float, point: tuple[float, ...], normal: tuple[float, ...]
) -> None:
    """A sphere of radius 1 around `centre` and a cylinder of radius 1 and half length 2 along z."""
    one, two = jnp.ones(()), 2 * jnp.ones(())
    found = sphere_cylinder(jnp.asarray(centre), one, jnp.zeros(3), UP, one, two)
    for ours, expected in zip(found, (distance, point, normal), strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-6)


def test_as_in_the_c_engine() -> None:
    """Overlapping pairs in random poses: the same distance, contact point and normal."""
    model = mujoco.MjModel.from_xml_string("""
<mujoco><worldbody>
  <body><freejoint/><geom type="sphere" size="0.1"/></body>
  <body><freejoint/><geom type="cylinder" size="0.05 0.025"/></body>
</worldbody></mujoco>""")
    data = mujoco.MjData(model)
    rng = np.random.default_rng(0)
    met = 0
    with float64_on_host():
        routine = jax.jit(sphere_cylinder)
        for _ in range(300):
            data.qpos[:] = rng.normal(size=14)
            data.qpos[:3] = data.qpos[7:10] + rng.uniform(-0.13, 0.13, 3)
            data.qpos[10:] /= np.linalg.norm(data.qpos[10:])
            mujoco.mj_forward(model, data)
            axis = data.geom_xmat[1].reshape(3, 3)[:, 2]
            distance, point, normal = routine(data.geom_xpos[0], 0.1, data.geom_xpos[1], axis, 0.05, 0.025)
            offset = data.geom_xpos[0] - data.geom_xpos[1]
            along = offset @ axis
            if abs(along) < 0.025 and np.linalg.norm(offset - along * axis) < 0.05:
                continue  # the centre is inside, which no wheel and button get to
            assert (distance < 0) == (data.ncon == 1)
            if data.ncon:
                met += 1
                np.testing.assert_allclose(distance, data.contact.dist[0], atol=1e-12)
                np.testing.assert_allclose(point, data.contact.pos[0], atol=1e-12)
                np.testing.assert_allclose(normal, data.contact.frame[0, :3], atol=1e-12)
    assert met > 100


def test_mjx_gets_its_own_routine_back() -> None:
    mjx = import_mjx()
    table = mjx._src.collision_driver._COLLISION_FUNC
    before = dict(table)
    with exact_sphere_cylinder(mjx):
        assert sum(table[pair] is not before[pair] for pair in before) == 1
    assert table == before
