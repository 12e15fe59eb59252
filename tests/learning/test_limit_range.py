"""A range of limits: positions, regions, and everything per limit as a run for that limit alone has it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from tailsafe.learning.constraints import stack_constraints
from tailsafe.learning.limit_range import LimitRange
from tailsafe.learning.regions import nearest_region
from tailsafe.learning.sampler import Sampler
from tailsafe.risk import CVaR, Wang

SPECTRA = [CVaR(0.75).discretize(2), Wang(0.5).discretize(5)]
LOW, HIGH = [0.5, 1.0], [4.0, 1.0]  # the second cost has one limit
REGIONS = 4


def make(regions=REGIONS):
    return stack_constraints(SPECTRA, LOW, [100.0, 100.0], highest=HIGH, regions=regions)


@given(st.floats(0, 1), st.sampled_from([2, 8]))
@examples(max_examples=15)
def test_memberships_interpolate_linearly_between_the_two_nearest_knots(position, regions):
    limits = LimitRange.create(jnp.ones(1), regions)
    shares = np.asarray(limits.memberships(jnp.asarray(position)))
    assert shares.sum() == pytest.approx(1, abs=1e-5)
    assert (shares > 1e-6).sum() <= 2
    assert shares @ np.asarray(limits.knots) == pytest.approx(position, abs=1e-5)
    assert bool(nearest_region(limits, jnp.asarray(position))[shares.argmax()])


def test_limits_are_spaced_by_equal_ratios():
    # 0.5 to 4 in 4 knots: ratios of 2; the other cost keeps its limit.
    np.testing.assert_allclose(make().knot_limits(), [[0.5, 1], [1, 1], [2, 1], [4, 1]], rtol=1e-6)


def test_every_region_gets_the_same_share_of_episodes():
    limits = LimitRange.create(jnp.ones(1), 5)
    position = limits.draw(jax.random.key(0), 40_000)
    assert 0 == float(position.min()) < float(position.max()) == 1
    np.testing.assert_allclose(limits.memberships(position).mean(0), 0.2, atol=0.006)


@given(st.floats(0, 1), st.lists(st.floats(0, 1), min_size=8, max_size=8))
@examples(max_examples=15)
def test_betas_at_a_position_are_those_of_constraints_with_that_limit_alone(position, delta):
    with jax.enable_x64(True):
        ranged = make()
        limit = [0.5 * 8**position, 1.0]
        single = stack_constraints(SPECTRA, limit, [100.0, 100.0])
        row = jnp.asarray([*delta, position])
        np.testing.assert_allclose(ranged.limits(row), limit, rtol=1e-12)
        np.testing.assert_allclose(ranged.beta(row), single.beta(row[:-1]), rtol=1e-9)
        # Many rows at once, each with its own limit.
        rows = jnp.stack([row, jnp.asarray([*delta, 1 - position])])
        np.testing.assert_allclose(ranged.beta(rows)[:, 0], ranged.beta(row), rtol=1e-12)
        assert ranged.with_limit(jnp.asarray(limit)).range is None


def test_bounds_of_betas_end_at_the_largest_return_in_a_range_too():
    ranged = stack_constraints(SPECTRA[:1], [0.5], [1.0], highest=[4.0], regions=3)
    np.testing.assert_allclose(ranged.beta(jnp.asarray([[1.0, 0.0], [1.0, 1.0]]))[0, :, 0], [0.5, 1.0], rtol=1e-6)


def test_networks_see_increments_and_regions():
    ranged = make()
    assert (ranged.num_betas, ranged.delta_width, ranged.num_inputs) == (8, 9, 8 + REGIONS)
    shown = ranged.shown(jnp.asarray([*np.arange(8) / 8, 1 / 3]))
    np.testing.assert_allclose(shown, [*np.arange(8) / 8, 0, 1, 0, 0], atol=1e-6)


def test_a_sampler_between_two_regions_has_the_mean_of_their_modes():
    sampler = Sampler(jnp.asarray([[0.0], [2.0]]), jnp.float32(0.1))
    between = sampler.between(jnp.asarray([[1.0, 0.0], [0.5, 0.5]]))
    modes = np.asarray(sampler.mode)[:, 0]
    np.testing.assert_allclose(between.mode[:, 0], [modes[0], modes.mean()], rtol=1e-6)
