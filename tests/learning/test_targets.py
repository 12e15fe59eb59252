"""TD(lambda) targets against slow float64 references written from the definition, one transition at a time."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailsafe.learning.targets import project, td_lambda

GAMMA, TRACE, COUNT = 0.9, 0.7, 10


def reference_projection(first, second, weight_first, weight_second, count):
    """Linear interpolation over cumulative midpoints of the sorted union."""
    atoms = np.concatenate([first, second])
    mass = np.concatenate(
        [np.full(len(first), weight_first / len(first)), np.full(len(second), weight_second / len(second))]
    )
    mass /= mass.sum()
    order = np.argsort(atoms, kind="stable")
    atoms, mass = atoms[order], mass[order]
    midpoints = np.cumsum(mass) - mass / 2
    return np.interp((np.arange(count) + 0.5) / count, midpoints, atoms)


def reference_targets(signal, next_atoms, ratio, terminated, done):
    """The recursion by its definition, for one segment."""
    steps, count = next_atoms.shape
    one_step = signal[:, None] + GAMMA * (1 - terminated[:, None]) * next_atoms
    target = np.zeros((steps, count))
    lasting, weight = one_step[-1], TRACE
    for t in range(steps - 1, -1, -1):
        if weight > 0:
            target[t] = reference_projection(one_step[t], lasting, 1 - TRACE, weight, count)
        else:
            target[t] = reference_projection(one_step[t], one_step[t], 0.5, 0.5, count)
        if t > 0:
            weight = TRACE * ratio[t] * (1 - done[t - 1]) * (1 - TRACE + weight)
            lasting = signal[t - 1] + GAMMA * (1 - terminated[t - 1]) * target[t]
    return target


def segment(seed, steps=12):
    rng = np.random.default_rng(seed)
    terminated = rng.uniform(size=steps) < 0.2
    done = terminated | (rng.uniform(size=steps) < 0.2)
    atoms = np.sort(rng.normal(size=(steps, COUNT)), axis=-1)
    return rng.normal(size=steps), atoms, rng.uniform(0.2, 2.0, steps), terminated, done


def computed(signal, atoms, ratio, terminated, done, projection):
    with jax.enable_x64(True):
        return np.asarray(
            td_lambda(*map(jnp.asarray, (signal, atoms, ratio, terminated, done)), GAMMA, TRACE, COUNT, projection)
        )


@pytest.mark.parametrize("seed", range(10))
def test_interpolated_targets_equal_the_reference(seed):
    data = segment(seed)
    np.testing.assert_allclose(computed(*data, "interpolate"), reference_targets(*data), atol=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_cell_means_keep_the_mean_of_the_scalar_lambda_return(seed):
    signal, atoms, ratio, terminated, done = data = segment(seed)
    values = atoms.mean(-1)
    one_step = signal + GAMMA * (1 - terminated) * values
    expected = np.zeros(len(signal))
    lasting, weight = one_step[-1], TRACE
    for t in range(len(signal) - 1, -1, -1):
        expected[t] = ((1 - TRACE) * one_step[t] + weight * lasting) / (1 - TRACE + weight)
        weight = TRACE * ratio[t] * (1 - done[t - 1]) * (1 - TRACE + weight)
        lasting = signal[t - 1] + GAMMA * (1 - terminated[t - 1]) * expected[t]
    np.testing.assert_allclose(computed(*data, "cell_mean").mean(-1), expected, atol=1e-12)


@given(
    st.lists(st.floats(-5, 5), min_size=1, max_size=8),
    st.lists(st.floats(-5, 5), min_size=1, max_size=8),
    st.floats(0, 1),
)
@settings(max_examples=60, deadline=None)
def test_cell_means_are_averages_of_the_mixtures_quantile_function(first, second, weight):
    first, second = np.sort(first), np.sort(second)
    with jax.enable_x64(True):
        result = np.asarray(project(jnp.asarray(first), jnp.asarray(second), jnp.asarray(weight), 5, "cell_mean"))
    atoms = np.concatenate([first, second])
    mass = np.concatenate([np.full(len(first), (1 - weight) / len(first)), np.full(len(second), weight / len(second))])
    order = np.argsort(atoms, kind="stable")
    edges = np.concatenate([[0.0], np.cumsum(mass[order])])
    # The integral of the quantile function up to a level is piecewise linear in the level.
    integral = np.concatenate([[0.0], np.cumsum(mass[order] * atoms[order])])
    expected = 5 * np.diff(np.interp(np.linspace(0, 1, 6), edges, integral))
    np.testing.assert_allclose(result, expected, atol=1e-9)
    assert np.all(np.diff(result) >= -1e-12)


@pytest.mark.parametrize("projection", ["cell_mean", "interpolate"])
def test_a_fixed_point_stays(projection):
    """If x = (1 - gamma) v and every atom is v, the target is v."""
    signal, atoms = np.full(6, (1 - GAMMA) * 3.0), np.full((6, COUNT), 3.0)
    never = np.zeros(6, bool)
    np.testing.assert_allclose(computed(signal, atoms, np.ones(6), never, never, projection), 3.0, atol=1e-12)


@pytest.mark.parametrize("projection", ["cell_mean", "interpolate"])
def test_truncation_bootstraps_and_termination_does_not(projection):
    signal, atoms, ratio = np.zeros(3), np.full((3, COUNT), 10.0), np.ones(3)
    first = np.array([True, False, False])
    never = np.zeros(3, bool)
    truncated = computed(signal, atoms, ratio, never, first, projection)
    terminated = computed(signal, atoms, ratio, first, first, projection)
    np.testing.assert_allclose(truncated[0], GAMMA * 10.0)
    np.testing.assert_allclose(terminated[0], 0.0, atol=1e-12)
    # Nothing of the next episode reaches back over an end.
    np.testing.assert_allclose(truncated[1:], terminated[1:])


def test_targets_with_long_traces_are_the_law_of_the_return():
    """A chain that pays 0 or 1 with equal chance for three steps: eight equally likely returns."""
    rng = np.random.default_rng(0)
    segments = 20_000
    signal = rng.integers(0, 2, (3, segments)).astype(float)
    end = np.zeros((3, segments), bool)
    end[-1] = True
    with jax.enable_x64(True):
        targets = td_lambda(
            jnp.asarray(signal), jnp.zeros((3, 8, segments)), jnp.ones((3, segments)), jnp.asarray(end),
            jnp.asarray(end), GAMMA, 1 - 1e-9, 8, "cell_mean",
        )  # fmt: skip
    sampled = np.sort(np.asarray(targets[0]).mean(0))
    exact = np.sort([a + GAMMA * b + GAMMA**2 * c for a in (0, 1) for b in (0, 1) for c in (0, 1)])
    middle = sampled.reshape(8, -1).mean(-1)
    np.testing.assert_allclose(middle, exact, atol=0.03)


@pytest.mark.parametrize("spread", [0.0, 1e-6, 1e-5, 1e-3])
def test_equal_atoms_stay_in_order(spread):
    """A robot that has fallen pays 1 for ever: all returns are 100 but for rounding, and so are all targets."""
    rng = np.random.default_rng(0)
    steps, atoms, rows = 128, 50, 64
    following = np.sort(100 * (1 - spread * rng.random((steps, atoms, rows))), axis=1).astype(np.float32)
    ratio = np.exp(0.3 * rng.normal(size=(steps, rows))).astype(np.float32)
    signal, never = jnp.ones((steps, rows)), jnp.zeros((steps, rows), bool)
    targets = np.asarray(td_lambda(signal, following, ratio, never, never, 0.99, 0.95, atoms, "cell_mean"))
    assert (np.diff(targets, axis=1) >= 0).all()
    np.testing.assert_allclose(targets, 100, rtol=0, atol=100 * spread + 1e-3)
