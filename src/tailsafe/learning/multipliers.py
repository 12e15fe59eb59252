"""How Lagrange multipliers follow the errors of their constraints.

error (C,): (risk - target) / unit, positive where a constraint is violated. Multipliers are never negative.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float


def climbed(
    multiplier: Float[Array, " C"], error: Float[Array, " C"], rate: Float[Array, ""], largest: Float[Array, ""]
) -> Float[Array, " C"]:
    """Gradient ascent of the dual: lambda <- (lambda + rate error)_+, at most `largest`."""
    return jnp.clip(multiplier + rate * error, 0.0, largest)


class Gains(NamedTuple):
    """Of the controller: K_P, K_I, K_D. smoothing: what P and D keep of earlier errors."""

    proportional: Float[Array, ""]
    integral: Float[Array, ""]
    derivative: Float[Array, ""]
    smoothing: Float[Array, ""]


class Controller(NamedTuple):
    """integral (C,): K_I times the sum of errors. error (C,): the smoothed one of before."""

    integral: Float[Array, " C"]
    error: Float[Array, " C"]


def controlled(
    before: Controller, error: Float[Array, " C"], gains: Gains, largest: Float[Array, ""]
) -> tuple[Controller, Float[Array, " C"]]:
    """The controller after another error, and the multipliers (Stooke et al. 2020, Algorithm 2):

        I <- (I + K_I error)_+,    lambda = (K_P error + I + K_D (error - error')_+)_+

    Neither I nor lambda exceeds `largest`: what cannot act is not summed up either, so nothing has to be unwound when
    the constraint is met again. The derivative counts while the error grows alone.
    """
    smooth = gains.smoothing * before.error + (1 - gains.smoothing) * error
    integral = jnp.clip(before.integral + gains.integral * error, 0.0, largest)
    rise = jnp.maximum(smooth - before.error, 0.0)
    multiplier = gains.proportional * smooth + integral + gains.derivative * rise
    return Controller(integral, smooth), jnp.clip(multiplier, 0.0, largest)
