"""The pseudo-lidar: 16 sectors around the robot, filled from the centres of objects. No rays are cast."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

BINS = 16
RANGE = 3.0


def pseudo_lidar(
    position: Float[Array, 3], rotation: Float[Array, "3 3"], centres: Float[Array, "K 3"]
) -> Float[Array, 16]:
    """Nearness (1 at the robot, 0 from 3 m on) of the nearest object centre in each of 16 sectors.

    Sector 0 starts at the robot's +x axis and sectors go counter-clockwise. An object at fraction f of its sector
    also shows in the next sector, scaled by f, and in the previous one, scaled by 1 - f.

    Args:
      position: robot origin in the world [m], height included: a tilted robot sees the difference in height.
      rotation: robot frame to world frame.
      centres: object centres in the world [m]; their height counts as 0.
    """
    ground = centres.at[:, 2].set(0.0)
    offset = (ground - position) @ rotation
    x, y = offset[:, 0], offset[:, 1]
    nearness = jnp.maximum(0.0, RANGE - jnp.sqrt(x * x + y * y)) / RANGE

    # The angle is taken within a quadrant: in float32, 2 pi leaves too few digits for the fraction of a sector.
    quadrant = jnp.where(y >= 0, jnp.where(x > 0, 0, 1), jnp.where(x < 0, 2, 3))
    along = jnp.select([quadrant == 0, quadrant == 1, quadrant == 2], [x, y, -x], -y)
    across = jnp.select([quadrant == 0, quadrant == 1, quadrant == 2], [y, -x, -y], x)
    sectors = jnp.arctan2(across, along) * (BINS / (2 * jnp.pi))
    whole = jnp.floor(sectors)
    fraction = (sectors - whole)[:, None]
    bin_index = quadrant * (BINS // 4) + whole.astype(jnp.int32)

    steps_ahead = (jnp.arange(BINS) - bin_index[:, None]) % BINS
    weight = jnp.select(
        [steps_ahead == 0, steps_ahead == 1, steps_ahead == BINS - 1], [1.0, fraction, 1.0 - fraction], 0.0
    )
    return jnp.max(weight * nearness[:, None], axis=0)
