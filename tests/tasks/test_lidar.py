"""The pseudo-lidar against numbers worked out by hand."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from tailsafe.tasks.lidar import pseudo_lidars
from tailsafe.tasks.rotations import yaw_matrix

HERE = jnp.asarray([0.0, 0.0, 0.1])
AHEAD = yaw_matrix(jnp.float32(0.0))


def pseudo_lidar(position: jnp.ndarray, rotation: jnp.ndarray, objects: jnp.ndarray) -> np.ndarray:
    """The reading of one group of objects."""
    return np.asarray(pseudo_lidars(position, rotation, [objects])[0])


def at(distance: float, sectors: float) -> jnp.ndarray:
    """An object centre at `distance` m and `sectors` sixteenths of a turn."""
    angle = sectors * np.pi / 8
    return jnp.asarray([[distance * np.cos(angle), distance * np.sin(angle)]], jnp.float32)


@pytest.mark.parametrize("sector", range(16))
def test_an_object_spills_into_the_neighbours(sector: int) -> None:
    # 1.5 m away: nearness (3 - 1.5)/3 = 0.5. A quarter into its sector: 0.25 * 0.5 in the next, 0.75 * 0.5 in
    # the previous.
    reading = np.asarray(pseudo_lidar(HERE, AHEAD, at(1.5, sector + 0.25)))
    expected = np.zeros(16)
    expected[[sector, (sector + 1) % 16, (sector - 1) % 16]] = 0.5, 0.125, 0.375
    np.testing.assert_allclose(reading, expected, atol=5e-7)


def test_the_nearest_object_wins_and_far_ones_vanish() -> None:
    objects = jnp.concatenate([at(2.0, 3.5), at(0.5, 3.5), at(3.5, 9.5)])
    reading = np.asarray(pseudo_lidar(HERE, AHEAD, objects))
    assert reading[3] == pytest.approx(2.5 / 3, abs=1e-6)
    assert reading[8:11].max() == 0.0


def test_sectors_turn_with_the_robot() -> None:
    turned = np.asarray(pseudo_lidar(HERE, yaw_matrix(jnp.float32(np.pi / 4)), at(1.0, 5.3)))
    np.testing.assert_allclose(turned, np.roll(pseudo_lidar(HERE, AHEAD, at(1.0, 5.3)), -2), atol=1e-6)


def test_groups_are_read_apart() -> None:
    groups = [at(1.0, 2.5), jnp.concatenate([at(0.5, 7.5), at(2.0, 2.5)])]
    together = pseudo_lidars(HERE, AHEAD, groups)
    for group, reading in zip(groups, together, strict=True):
        np.testing.assert_array_equal(reading, pseudo_lidar(HERE, AHEAD, group))


def test_a_tilted_robot_sees_the_height() -> None:
    """Tilted by 0.1 rad about y, the floor below lies behind: the object under the robot appears at 0.1 sin(0.1) m."""
    c, s = np.cos(0.1), np.sin(0.1)
    tilted = jnp.asarray([[c, 0, s], [0, 1, 0], [-s, 0, c]], jnp.float32)
    reading = pseudo_lidar(HERE, tilted, jnp.zeros((1, 2), jnp.float32))
    assert reading.max() == pytest.approx((3 - 0.1 * s) / 3, abs=1e-6)
    assert int(reading.argmax()) in (0, 15)
