"""The pseudo-lidar: 16 sectors around the robot, filled from the centres of objects. No rays are cast."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

BINS = 16
RANGE = 3.0


def pseudo_lidars(
    position: Float[Array, " 3"], rotation: Float[Array, "3 3"], groups: Sequence[Float[Array, "_ 2"]]
) -> Float[Array, "G 16"]:
    """Nearness (1 at the robot, 0 from 3 m on) of the nearest object in each of 16 sectors, for each group of objects.

    Sector 0 starts at the robot's +x axis and sectors go counter-clockwise. An object at fraction f of its sector
    also shows in the next sector, scaled by f, and in the previous one, scaled by 1 - f.

    Args:
      position: robot origin in the world [m], height included: a tilted robot sees the difference in height.
      rotation: robot frame to world frame.
      groups: object centres on the floor [m]; the objects' own heights play no part.
    """
    centres = jnp.concatenate(groups)
    offset = (centres - position[:2]) @ rotation[:2, :2] - position[2] * rotation[2, :2]
    x, y = offset[:, 0], offset[:, 1]
    nearness = jnp.maximum(0.0, RANGE - jnp.sqrt(x * x + y * y)) / RANGE

    # The angle is taken within a quadrant: in float32, 2 pi leaves too few digits for the fraction of a sector.
    quadrant = jnp.where(y >= 0, jnp.where(x > 0, 0, 1), jnp.where(x < 0, 2, 3))
    along = jnp.select([quadrant == 0, quadrant == 1, quadrant == 2], [x, y, -x], -y)
    across = jnp.select([quadrant == 0, quadrant == 1, quadrant == 2], [y, -x, -y], x)
    sectors = jnp.arctan2(across, along) * (BINS / (2 * jnp.pi))
    # Held here, or XLA repeats the arc tangent for each of the sixteen sectors.
    nearness, sectors, quadrant = jax.lax.optimization_barrier((nearness, sectors, quadrant))  # type: ignore[no-untyped-call]
    whole = jnp.floor(sectors)
    fraction = (sectors - whole)[:, None]
    sector = quadrant * (BINS // 4) + whole.astype(jnp.int32)

    steps_ahead = (jnp.arange(BINS) - sector[:, None]) % BINS
    weight = jnp.select(
        [steps_ahead == 0, steps_ahead == 1, steps_ahead == BINS - 1], [1.0, fraction, 1.0 - fraction], 0.0
    )
    readings = weight * nearness[:, None]
    ends = np.cumsum([len(group) for group in groups])
    return jnp.stack([jnp.max(part, axis=0) for part in jnp.split(readings, ends[:-1])])
