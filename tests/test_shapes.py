"""The checker of shapes that every other test runs under."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Bool, Float, Int, TypeCheckError, jaxtyped
from numpy.typing import NDArray

from tailsafe.learning.trust_region import inner_products
from tests.shapes import checked, fitted


@jaxtyped(typechecker=checked)
def weighed(gram: Float[Array, "1+C 1+C"], excess: Float[Array, " C"] | float) -> Float[Array, " 1+C"]:
    return gram.sum(-1) if jnp.ndim(excess) == 0 else jnp.concatenate([gram[:1, 0], excess])


@jaxtyped(typechecker=checked)
def paired(
    rows: Float[Array, "*S T"], kept: Bool[NDArray[np.bool_], " T"]
) -> tuple[Float[Array, "*S"], Int[Array, ""]]:
    return rows.sum(-1), jnp.int32(kept.sum())


def test_axes_of_one_signature_agree_in_any_order():
    assert weighed(jnp.ones((4, 4)), jnp.ones(3)).shape == (4,)
    assert weighed(jnp.ones((4, 4)), 0.5).shape == (4,)
    for gram, excess in [(jnp.ones((4, 4)), jnp.ones(4)), (jnp.ones((4, 3)), jnp.ones(3)), (jnp.ones(4), jnp.ones(3))]:
        with pytest.raises(TypeCheckError):
            weighed(gram, excess)


def test_kinds_of_numbers_and_what_is_returned():
    kept = np.ones(5, bool)
    assert paired(jnp.ones((2, 3, 5)), kept)[0].shape == (2, 3)
    assert paired(jnp.ones(5), kept)[0].shape == ()
    with pytest.raises(TypeCheckError):
        paired(jnp.ones((2, 4)), kept)
    with pytest.raises(TypeCheckError):
        paired(jnp.ones((2, 5), int), kept)

    @jaxtyped(typechecker=checked)
    def summed(rows: Float[Array, "T N"]) -> Float[Array, " T"]:
        return rows.sum(0)

    with pytest.raises(TypeCheckError, match="return"):
        summed(jnp.ones((2, 3)))


@pytest.mark.parametrize(
    ("axes", "shape", "sizes"),
    [
        ("C M-1", (3, 4), {"C": 3, "M": 5}),
        ("1+2C", (7,), {"C": 3}),
        ("1+2C", (6,), None),
        ("... 3 n", (5, 6, 3, 2), {"n": 2}),
        ("T 3 ...", (5, 4), None),
        ("#C", (1,), {}),
        ("F+G F+G", (4, 4), {"F+G": 4}),
        ("F+G F+G", (4, 5), None),
        ("", (1,), None),
    ],
)
def test_axes(axes, shape, sizes):
    assert fitted(axes, shape, {}) == sizes


def test_the_packages_are_checked():
    with pytest.raises(TypeCheckError):
        inner_products(jnp.ones((2, 5)), jnp.ones((2, 6)))
