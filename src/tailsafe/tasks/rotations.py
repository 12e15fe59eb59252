"""Quaternions (w, x, y, z) and rotation matrices, for one body."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float


def yaw_quaternion(yaw: Float[Array, "*n"]) -> Float[Array, "*n 4"]:
    """Turn by `yaw` [rad] about the vertical."""
    zero = jnp.zeros_like(yaw)
    return jnp.stack([jnp.cos(yaw / 2), zero, zero, jnp.sin(yaw / 2)], axis=-1)


def yaw_matrix(yaw: Float[Array, ""]) -> Float[Array, "3 3"]:
    """Turn by `yaw` [rad] about the vertical, robot frame to world frame."""
    c, s, zero = jnp.cos(yaw), jnp.sin(yaw), jnp.zeros_like(yaw)
    return jnp.stack([jnp.stack([c, -s, zero]), jnp.stack([s, c, zero]), jnp.stack([zero, zero, jnp.ones_like(yaw)])])


def quaternion_matrix(quaternion: Float[Array, " 4"]) -> Float[Array, "3 3"]:
    """Rotation matrix of a quaternion, which need not be normalised."""
    w, x, y, z = quaternion / jnp.linalg.norm(quaternion)
    return jnp.stack(
        [
            jnp.stack([w * w + x * x - y * y - z * z, 2 * (x * y - w * z), 2 * (x * z + w * y)]),
            jnp.stack([2 * (x * y + w * z), w * w - x * x + y * y - z * z, 2 * (y * z - w * x)]),
            jnp.stack([2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z]),
        ]
    )
