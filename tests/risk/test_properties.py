"""What makes a risk measure spectral, and what makes its dual form a dual, for arbitrary inputs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import tailsafe as ts
from tailsafe.risk import beta_bounds

values = st.floats(-100, 100, allow_nan=False).map(lambda x: round(x, 6))
samples_of_ten = arrays(np.float64, 10, elements=values)
weights_of_ten = arrays(np.float64, 10, elements=st.floats(0.01, 1.0))
levels = st.floats(0.0, 0.99)
measures = st.one_of(
    st.builds(ts.CVaR, levels), st.builds(ts.Pow, levels), st.builds(ts.Wang, st.floats(0.0, 3.0)), st.just(ts.Mean())
)


@st.composite
def step_spectra(draw, most_cells=6):
    """Any step spectrum: random increasing levels and break points, normalised."""
    cells = draw(st.integers(1, most_cells))
    rises = draw(arrays(np.float64, cells, elements=st.floats(0.0, 5.0)))
    alpha = np.sort(draw(arrays(np.float64, cells - 1, elements=st.floats(0.0, 0.98))))
    return ts.StepSpectrum.normalized(np.cumsum(rises) + 1e-3, alpha)


def close(a, b, scale=1.0):
    return a == pytest.approx(b, rel=1e-9, abs=1e-9 * max(1.0, scale))


@given(measures, samples_of_ten, weights_of_ten, values)
def test_translation(measure, x, w, shift):
    assert close(measure.risk(x + shift, w), measure.risk(x, w) + shift, 200)


@given(measures, samples_of_ten, weights_of_ten, st.floats(0, 50))
def test_positive_scaling(measure, x, w, factor):
    assert close(measure.risk(factor * x, w), factor * measure.risk(x, w), 100 * factor)


@given(measures, samples_of_ten, arrays(np.float64, 10, elements=st.floats(0, 10)))
def test_monotone(measure, x, more):
    assert measure.risk(x + more) >= measure.risk(x) - 1e-9


@given(measures, samples_of_ten, samples_of_ten)
def test_subadditive(measure, x, y):
    assert measure.risk(x + y) <= measure.risk(x) + measure.risk(y) + 1e-8


@given(measures, samples_of_ten, weights_of_ten)
def test_between_mean_and_maximum(measure, x, w):
    assert np.average(x, weights=w) - 1e-8 <= measure.risk(x, w) <= x.max() + 1e-8


@given(step_spectra(), samples_of_ten, weights_of_ten, st.data())
def test_sub_risk_is_never_below_the_risk(steps, x, w, data):
    beta = np.sort(data.draw(arrays(np.float64, steps.cells - 1, elements=values)))
    assert steps.sub_risk(x, beta, w) >= steps.risk(x, w) - 1e-8 * steps.eta[-1]


@given(step_spectra(), samples_of_ten, weights_of_ten)
def test_sub_risk_equals_the_risk_at_the_quantiles(steps, x, w):
    beta = steps.optimal_beta(x, w)
    assert beta.shape == (steps.cells - 1,)
    assert np.all(np.diff(beta) >= 0)
    assert close(steps.sub_risk(x, beta, w), steps.risk(x, w), 100 * steps.eta[-1])


@given(step_spectra(most_cells=4), st.data())
def test_conjugate_integral_agrees_with_numerical_conjugation(steps, data):
    """g* is a supremum over the kinks of a piecewise linear function; its integral over u is a sum over cells."""
    beta = np.sort(data.draw(arrays(np.float64, steps.cells - 1, elements=st.floats(0, 10))))
    kinks = np.concatenate([[-1e3], beta, [1e3]])  # beyond all kinks on either side, where slopes are eta_1 and eta_M
    conjugate = lambda slope: np.max(kinks * slope - steps.g_beta(kinks, beta))  # noqa: E731
    widths = np.diff(steps.alpha, prepend=0.0, append=1.0)
    expected = sum(width * conjugate(level) for width, level in zip(widths, steps.eta, strict=True))
    assert steps.conjugate_integral(beta) == pytest.approx(expected, rel=1e-8, abs=1e-6)


@given(step_spectra(), arrays(np.float64, 10, elements=st.floats(0, 100)), st.floats(0.1, 50))
def test_no_beta_outside_the_bounds_can_meet_a_limit_on_costs(steps, x, limit):
    steep = np.diff(steps.eta) * (1 - steps.alpha)
    if steps.cells == 1 or steep[-1] < 1e-9:
        return
    bounds = beta_bounds(steps.eta, steps.alpha, limit)
    assert np.all(np.diff(bounds) >= -1e-9 * bounds[-1])
    beyond = np.maximum.accumulate(np.where(np.arange(steps.cells - 1) == steps.cells - 2, 1.01 * bounds, 0.0))
    assert steps.sub_risk(x, beyond) > limit


@given(
    st.one_of(st.builds(ts.Pow, st.floats(0.05, 0.95)), st.just(ts.Spectrum(lambda u: 3 * u**2))), st.integers(2, 12)
)
def test_lemma_on_the_approximation_error(measure, cells):
    """|R_sigma - R_sigma~| <= B ||sigma - sigma~||_1 <= B sigma(1) / M for costs in [0, B]; the worst distribution.

    The difference is int F^{-1} (sigma - sigma~), so costs that are B above some quantile and 0 below are extreme.
    """
    steps = measure.discretize(cells)
    assert steps.l1_error <= float(measure.sigma(1.0)) / cells + 1e-12
    for share in np.linspace(0.05, 0.95, 19):
        distribution = np.array([share, 1 - share])
        difference = abs(measure.risk([0.0, 1.0], distribution) - steps.risk([0.0, 1.0], distribution))
        assert difference <= steps.l1_error / 2 + 1e-9  # both have mass 1, which halves the lemma's first bound


@given(measures, samples_of_ten)
def test_risk_of_the_discretised_measure_is_within_its_l1_error(measure, x):
    steps = measure.discretize(4)
    assert abs(measure.risk(x) - steps.risk(x)) <= steps.l1_error * np.abs(x).max() + 1e-8
