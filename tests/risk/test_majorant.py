"""The majorant: a mean that is never below the risk, whatever the spectrum, the vertices and the distribution."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tailsafe as ts
from tailsafe.risk.majorant import Majorant, fit, slopes

UPPER = 10.0
STEPS = ts.StepSpectrum.normalized([0.2, 0.8, 2.0], [0.3, 0.7])
MEASURES = [ts.Mean(), ts.CVaR(0.0), ts.CVaR(0.75), ts.Pow(0.75), ts.Wang(1.0), STEPS, ts.Spectrum(lambda u: 3 * u**2)]
costs = st.lists(st.floats(0, UPPER), min_size=1, max_size=12).map(np.array)


@pytest.mark.parametrize("measure", MEASURES, ids=str)
@given(x=costs, vertices=st.lists(st.floats(0, UPPER), min_size=23, max_size=23))
@settings(max_examples=60, deadline=None)
def test_never_below_the_risk(measure, x, vertices):
    shared = slopes(measure, 1e-3)
    inner = np.sort(vertices)[None, : shared.knots.size]
    mean = Majorant(shared, inner, UPPER)(x[None]).mean()
    assert mean >= measure.risk(x) - 1e-9 * UPPER


def test_is_the_sub_risk_of_a_step_spectrum():
    x, beta = np.array([0.5, 2.0, 9.0]), np.array([[1.0, 4.0]])
    mean = Majorant(slopes(STEPS, 1e-3), beta, UPPER)(x[None]).mean()
    assert mean == pytest.approx(STEPS.sub_risk(x, beta[0]), rel=1e-12)


@pytest.mark.parametrize("measure", [ts.CVaR(0.75), STEPS], ids=["cvar", "steps"])
def test_fitted_vertices_attain_the_risk_of_a_step_spectrum(measure):
    x = np.sort(np.random.default_rng(0).exponential(size=(1, 200)), axis=1)
    best = fit(slopes(measure, 1e-3), x, 1, UPPER)
    assert best(x).mean() == pytest.approx(measure.risk(x[0]), rel=1e-12)


@pytest.mark.parametrize("measure", [ts.Pow(0.75), ts.Pow(0.9), ts.Spectrum(lambda u: 3 * u**2)], ids=str)
def test_fitted_vertices_come_near_the_risk_of_a_smooth_spectrum(measure):
    x = np.sort(np.random.default_rng(0).exponential(size=(1, 5000)), axis=1)
    best = fit(slopes(measure, 1e-3), x, 1, UPPER * 2)
    risk = measure.risk(x[0])
    assert risk <= best(x).mean() <= 1.01 * risk


def test_knots_are_where_the_bound_is_smallest():
    """Brute force over the vertices of three slopes on ten outcomes."""
    x = np.arange(1.0, 11.0)[None]
    shared = slopes(STEPS, 1e-3)
    pairs = itertools.combinations_with_replacement(np.arange(0.0, 10.5, 0.5), 2)
    smallest = min(Majorant(shared, np.array([pair]), 12.0)(x).mean() for pair in pairs)
    assert fit(shared, x, 1, 12.0)(x).mean() == pytest.approx(smallest, rel=1e-12)


@pytest.mark.parametrize("measure", [ts.CVaR(0.6), ts.Pow(0.75), ts.Wang(1.0)], ids=str)
def test_risks_of_blocks_are_too_small_on_average(measure):
    """What the lower bound rests on, for all 3^4 blocks of four draws from three outcomes."""
    outcomes, chances = np.array([0.0, 1.0, 5.0]), np.array([0.5, 0.3, 0.2])
    blocks = np.array(list(itertools.product(range(3), repeat=4)))
    expected = np.prod(chances[blocks], axis=1) @ measure.risk(outcomes[blocks])
    assert expected < measure.risk(outcomes, chances)
