"""The empirical spectral risk: against the definition, in both array libraries, at both ends of n."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tailsafe as ts
from tailsafe.risk import quantile

MEASURES = [
    ts.Mean(),
    ts.CVaR(0.75),
    ts.CVaR(0.33),
    ts.Pow(0.75),
    ts.Wang(1.0),
    ts.StepSpectrum([0.5, 1.0, 3.0], [0.5, 0.875]),
    ts.Spectrum(lambda u: 3 * u**2),
]


def risk_by_quadrature(measure, samples, weights):
    """int F^{-1}(u) sigma(u) du with the quantile function looked up at two million midpoints."""
    order = np.argsort(samples)
    cumulative = np.cumsum(weights[order]) / weights.sum()
    u = (np.arange(2_000_000) + 0.5) / 2_000_000
    index = np.minimum(np.searchsorted(cumulative, u, side="left"), samples.size - 1)
    return np.mean(samples[order][index] * measure.sigma(u))


@pytest.mark.parametrize("measure", MEASURES, ids=str)
def test_agrees_with_quadrature_of_the_definition(measure):
    rng = np.random.default_rng(0)
    samples, weights = rng.lognormal(size=40), rng.uniform(size=40)
    # 1e-3 is the quadrature's own error next to Wang's infinite sigma(1); the others are far below it.
    assert measure.risk(samples, weights) == pytest.approx(risk_by_quadrature(measure, samples, weights), rel=1e-3)
    assert measure.risk(samples) == pytest.approx(risk_by_quadrature(measure, samples, np.ones(40)), rel=1e-3)


@pytest.mark.parametrize("measure", MEASURES, ids=str)
def test_integer_weights_are_repetitions(measure):
    samples, counts = np.array([3.0, -1.0, 2.0, 7.0]), np.array([2, 5, 0, 1])
    assert measure.risk(samples, counts) == pytest.approx(measure.risk(np.repeat(samples, counts)), rel=1e-12)


@pytest.mark.parametrize("measure", MEASURES, ids=str)
def test_one_sample_is_its_own_risk(measure):
    assert measure.risk([4.25]) == 4.25
    assert measure.risk([4.25], weights=[0.1]) == pytest.approx(4.25, rel=1e-15)
    assert measure.risk([[1.0], [2.0]]).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("measure", MEASURES, ids=str)
def test_leading_axes_are_separate_samples(measure):
    samples = np.random.default_rng(0).normal(size=(2, 3, 11))
    weights = np.random.default_rng(1).uniform(size=(3, 11))
    assert measure.risk(samples, weights).shape == (2, 3)
    expected = [[measure.risk(samples[i, j], weights[j]) for j in range(3)] for i in range(2)]
    np.testing.assert_allclose(measure.risk(samples, weights), expected, rtol=1e-12)


@pytest.mark.parametrize("measure", [ts.CVaR(0.9), ts.Pow(0.9), ts.Wang(1.0)], ids=str)
def test_ten_million_samples_lose_no_precision(measure):
    # The uniform quantiles (j - 1/2)/n: the risk is sum_j (j - 1/2)/n (S(j/n) - S((j-1)/n)), and summing by parts
    # it tends to 1 - int_0^1 S with an error far below 1/n.
    n = 10_000_000
    u = np.linspace(0, 1, 200_001)
    s = measure.integral(u)
    expected = 1 - np.sum((s[1:] + s[:-1]) / 2) / 200_000
    samples = (np.random.default_rng(0).permutation(n) + 0.5) / n
    assert measure.risk(samples) == pytest.approx(expected, abs=2e-9)
    single = measure.risk(jnp.asarray(samples, dtype=jnp.float32))
    assert single == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize("measure", MEASURES, ids=str)
def test_jax_agrees_with_numpy_and_traces(measure):
    rng = np.random.default_rng(0)
    samples, weights = rng.normal(size=(4, 30)), rng.uniform(size=30)
    for jitted in (measure.risk, jax.jit(measure.risk)):
        np.testing.assert_allclose(jitted(jnp.asarray(samples)), measure.risk(samples), rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(
            jitted(jnp.asarray(samples), jnp.asarray(weights)), measure.risk(samples, weights), rtol=2e-5, atol=1e-6
        )
    assert measure.risk(jnp.arange(4)).dtype == jnp.float32


@pytest.mark.parametrize("measure", MEASURES, ids=str)
def test_gradients_agree_with_finite_differences(measure):
    rng = np.random.default_rng(0)
    samples, weights = rng.normal(size=9), rng.uniform(0.2, 1.0, size=9)
    with jax.enable_x64(True):
        by_samples, by_weights = jax.grad(measure.risk, argnums=(0, 1))(jnp.asarray(samples), jnp.asarray(weights))
    step = 1e-6
    for j in range(9):
        bump = step * np.eye(9)[j]
        slope = (measure.risk(samples + bump, weights) - measure.risk(samples - bump, weights)) / (2 * step)
        assert by_samples[j] == pytest.approx(slope, abs=1e-8)
        slope = (measure.risk(samples, weights + bump) - measure.risk(samples, weights - bump)) / (2 * step)
        assert by_weights[j] == pytest.approx(slope, abs=1e-6)
    # The weights of the risk are a probability: moving every sample by one moves the risk by one.
    assert np.asarray(by_samples).sum() == pytest.approx(1.0, rel=1e-12)


def test_gradient_survives_zero_weights_under_an_unbounded_spectrum():
    gradient = jax.grad(ts.Wang(1.0).risk, argnums=1)(jnp.arange(4.0), jnp.array([1.0, 1.0, 0.0, 0.0]))
    assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize("weights", [None, [1, 1, 1, 1], [0.3, 0.3, 0.3, 0.1]])
def test_quantile_is_the_smallest_sample_whose_cdf_reaches_p(weights):
    samples, p = np.array([4.0, 1.0, 3.0, 2.0]), np.array([0.0, 0.25, 0.26, 0.5, 0.99, 1.0])
    order = np.argsort(samples)
    cdf = np.cumsum(np.ones(4) / 4 if weights is None else np.array(weights)[order] / np.sum(weights))
    expected = [samples[order][min(int(np.sum(cdf < x)), 3)] for x in p]
    assert quantile(samples, p, weights).tolist() == expected
    assert quantile(jnp.asarray(samples), p, None if weights is None else jnp.asarray(weights)).tolist() == expected


@pytest.mark.parametrize(
    ("samples", "weights", "reason"),
    [
        ([1.0, np.nan], None, r"samples\[1\] is nan"),
        ([[1.0, 2.0], [3.0, np.inf]], None, r"samples\[1\]\[1\] is inf"),
        ([], None, "at least one entry"),
        (3.0, None, "at least one entry"),
        (["a"], None, "must be numbers"),
        ([[1.0], [2.0, 3.0]], None, "must be numbers"),
        ([1.0, 2.0], [1.0], "does not match samples"),
        ([[1.0, 2.0]] * 2, [[1.0, 2.0]] * 3, "does not match samples"),
        ([1.0, 2.0], ["a", "b"], "weights must be numbers"),
        ([1.0 + 2.0j], None, "must be real numbers"),
        ([1.0, 2.0], [1.0, -1.0], r"weights\[1\] is -1"),
        ([1.0, 2.0], [0.0, 0.0], "sum to zero"),
    ],
)
def test_bad_samples_are_refused_by_place(samples, weights, reason):
    with pytest.raises(ts.InputError, match=reason):
        ts.CVaR(0.5).risk(samples, weights)


def test_shapes_are_checked_under_jax_too():
    with pytest.raises(ts.InputError, match="does not match samples"):
        ts.CVaR(0.5).risk(jnp.ones(3), jnp.ones(1))
    with pytest.raises(ts.InputError, match="at least one entry"):
        ts.CVaR(0.5).risk(jnp.ones(0))


@pytest.mark.parametrize("p", [[1.5], [-0.1], [np.nan]])
def test_quantiles_outside_the_unit_interval_are_refused(p):
    with pytest.raises(ts.InputError, match=r"probabilities\[0\] is"):
        quantile([1.0, 2.0], p)


def test_sub_risk_checks_its_samples_and_weights():
    steps = ts.CVaR(0.5).discretize(2)
    with pytest.raises(ts.InputError, match=r"samples\[1\] is nan"):
        steps.sub_risk([1.0, np.nan], [0.0])
    with pytest.raises(ts.InputError, match=r"weights\[0\] is -1"):
        steps.sub_risk([1.0, 2.0], [0.0], [-1.0, 3.0])
