"""Each family against its definition: hand-worked numbers, its integral, its text form, its refusals."""

import math

import numpy as np
import pytest
from scipy.integrate import quad

import tailsafe as ts
from tailsafe.risk.spectra import WANG_MAX_LEVEL

FAMILIES = [
    ts.Mean(),
    ts.CVaR(0.0),
    ts.CVaR(0.75),
    ts.Pow(0.0),
    ts.Pow(0.5),
    ts.Pow(0.9),
    ts.Wang(0.0),
    ts.Wang(0.5),
    ts.Wang(1.5),
    ts.StepSpectrum([0.2, 0.6, 1.0, 1.4, 1.8], [0.2, 0.4, 0.6, 0.8]),
    ts.Spectrum(lambda u: 3 * u**2),
    ts.Spectrum(lambda u: np.where(u >= 0.75, 4.0, 0.0)),
]


def test_cvar_of_four_numbers_by_hand():
    # The worst half of {1, 2, 3, 4} is {3, 4}: mean 3.5. The worst 30 %: 0.25 of the mass on 4, 0.05 on 3:
    # (0.25 * 4 + 0.05 * 3) / 0.3 = 3.8333...
    assert ts.CVaR(0.5).risk([4, 1, 3, 2]) == pytest.approx(3.5, abs=1e-15)
    assert ts.CVaR(0.7).risk([4, 1, 3, 2]) == pytest.approx(1.15 / 0.3, rel=1e-14)


def test_pow_half_is_the_expected_maximum_of_two_draws():
    # Two draws from {0, 1} with P(1) = 1/4: the maximum is 1 with probability 1 - (3/4)^2 = 7/16.
    assert ts.Pow(0.5).risk([0, 0, 0, 1]) == pytest.approx(7 / 16, rel=1e-14)


def test_wang_shifts_normal_scores():
    # P(X = 1) = 1/2 at level 1: 1 - Phi(Phi^{-1}(1/2) - 1) = Phi(1) = 0.841344746...
    assert ts.Wang(1.0).risk([0, 1]) == pytest.approx(0.8413447460685429, rel=1e-14)


@pytest.mark.parametrize("measure", FAMILIES, ids=str)
def test_integral_is_the_integral_of_sigma(measure):
    for a, b in [(0.0, 0.3), (0.3, 0.74), (0.76, 0.99), (0.1, 0.95)]:
        breaks = [p for p in (0.2, 0.4, 0.6, 0.75, 0.8) if a < p < b]
        expected, _ = quad(lambda u: float(measure.sigma(u)), a, b, points=breaks or None, epsabs=1e-12)
        assert measure.integral(b) - measure.integral(a) == pytest.approx(expected, abs=1e-9)
    assert measure.integral(np.array([0.0, 1.0])) == pytest.approx([0.0, 1.0], abs=1e-12)


@pytest.mark.parametrize("measure", [ts.CVaR(0.0), ts.Pow(0.0), ts.Wang(0.0), ts.Mean()], ids=str)
def test_level_zero_is_the_mean(measure):
    samples = np.random.default_rng(0).exponential(size=101)
    weights = np.random.default_rng(1).uniform(size=101)
    assert measure.risk(samples) == pytest.approx(samples.mean(), rel=1e-13)
    assert measure.risk(samples, weights) == pytest.approx(np.average(samples, weights=weights), rel=1e-13)
    assert measure.discretize(5).eta.tolist() == [1.0]


@pytest.mark.parametrize("family", [ts.CVaR, ts.Pow])
@pytest.mark.parametrize("level", [1.0, -0.1, 1.5, math.nan, math.inf, "high", None])
def test_levels_outside_the_unit_interval_are_refused(family, level):
    with pytest.raises(ts.InputError, match=f"{family.family} level"):
        family(level)


def test_wang_takes_levels_above_one_up_to_its_cap():
    assert ts.Wang(1.5).level == 1.5
    with pytest.raises(ts.InputError, match="wang level is 6"):
        ts.Wang(WANG_MAX_LEVEL + 1)


@pytest.mark.parametrize(
    "text", ["mean", "cvar:0.75", "pow:0.9", "wang:1.0", "steps:0.0,4.0/0.75", "CVaR:0.5", " wang:0.5 "]
)
def test_text_form_round_trips(text):
    measure = ts.parse_spectrum(text)
    again = ts.parse_spectrum(str(measure))
    assert again == measure
    assert hash(again) == hash(measure)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("cvr:0.5", "did you mean cvar"),
        ("entropic:1", "unknown risk measure 'entropic:1'"),
        ("cvar", "needs a level"),
        ("cvar:x", "needs a level"),
        ("mean:0.5", "takes no level"),
        ("cvar:1", r"must be in \[0, 1\)"),
        ("steps:0,4", "levels / break points"),
        ("steps:0,4/a", "are numbers"),
        ("steps:0,3/0.75", "integrates to 0.75"),
        ("steps:2,0/0.5", r"eta\[1\] = 0 is below eta\[0\] = 2"),
        ("steps:0,1,2/0.5,0.2", r"alpha\[1\] = 0.2 is below"),
        ("steps:0,4/0.75,0.8", "one more level than break points"),
        ("steps:-1,5/0.75", r"eta\[0\] is -1"),
        ("", "unknown risk measure"),
    ],
)
def test_bad_text_is_refused_with_the_reason(text, reason):
    with pytest.raises(ts.InputError, match=reason):
        ts.parse_spectrum(text)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda u: u, "integrates to 0.5"),
        (lambda u: 2 - 2 * u, "falls from"),
        (lambda u: 2 * u - 0.5, "negative at u = "),
        (lambda u: np.where(u > 0.5, np.nan, 1.0), "not finite at u = 0.5"),
        (lambda u: "steep", "cannot be evaluated"),
        (lambda u: 1 / 0, "cannot be evaluated"),
        (lambda u: 0 * u, "integrates to 0; it must be 1$"),
        (3.0, "needs a function"),
    ],
)
def test_a_custom_spectrum_is_checked(function, reason):
    with pytest.raises(ts.InputError, match=reason):
        ts.Spectrum(function)


def test_custom_spectrum_agrees_with_the_family_it_copies():
    samples = np.random.default_rng(0).gamma(0.5, size=(3, 200))
    weights = np.random.default_rng(1).uniform(size=200)
    wang = ts.Wang(0.7)
    copies = {
        ts.Pow(2 / 3): ts.Spectrum(lambda u: 3 * u**2),
        ts.CVaR(0.9): ts.Spectrum(lambda u: 10.0 if u >= 0.9 else 0.0),  # a scalar function with a jump
        wang: ts.Spectrum(wang.sigma),  # unbounded at u = 1
        ts.Pow(0.5): ts.Spectrum(lambda u: 2.0 * float(u)),
        ts.CVaR(0.99999): ts.Spectrum(lambda u: np.where(u >= 0.99999, 1e5, 0.0)),
    }
    for original, copy in copies.items():
        np.testing.assert_allclose(copy.risk(samples), original.risk(samples), rtol=1e-9)
        np.testing.assert_allclose(copy.risk(samples, weights), original.risk(samples, weights), rtol=1e-9)
