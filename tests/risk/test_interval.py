"""The confidence bounds: valid for any distribution, never below nominal, and tight in the tails."""

import numpy as np
import pytest
from scipy import stats

import tailsafe as ts
from tailsafe.risk.interval import cdf_band

UPPER = 20.0
MEASURES = [ts.Mean(), ts.CVaR(0.75), ts.CVaR(0.95), ts.Pow(0.75), ts.Wang(1.0)]
# Light and heavy tails, atoms, and nearly nothing but an atom with a rare disaster; each clipped to [0, UPPER].
LAWS = {
    "uniform": lambda rng, shape: rng.uniform(0, UPPER, shape),
    "half-normal": lambda rng, shape: np.abs(rng.normal(size=shape)),
    "pareto": lambda rng, shape: rng.pareto(1.2, shape),
    "binomial": lambda rng, shape: rng.binomial(8, 0.2, shape).astype(float),
    "rare disaster": lambda rng, shape: UPPER * (rng.uniform(size=shape) < 0.01),
}


def draw(law, rng, shape):
    return np.clip(LAWS[law](rng, shape), 0, UPPER)


@pytest.mark.parametrize("n", [20, 200, 2000])
@pytest.mark.parametrize("law", LAWS)
def test_coverage_is_never_below_nominal(law, n):
    """400 experiments; the true risk is that of 400,000 draws, whose own error is far below the bounds' width."""
    rng = np.random.default_rng(0)
    truth_samples = draw(law, rng, 400_000)
    samples = draw(law, rng, (400, n))
    for measure in MEASURES:
        truth = measure.risk(truth_samples)
        for confidence in (0.9, 0.99):
            low, high = measure.risk_interval(samples, confidence, UPPER)
            assert np.mean((low <= truth) & (truth <= high)) >= confidence
            assert np.all(low <= measure.risk(samples) + 1e-12)
            assert np.all(measure.risk(samples) <= high + 1e-12)


def test_the_band_holds_simultaneously():
    """Uniform samples: F(X_(j)) = X_(j), so the band can be checked at every order statistic at once."""
    rng = np.random.default_rng(0)
    for n in (5, 50, 500):
        below, above = cdf_band(n, 0.9)
        x = np.sort(rng.uniform(size=(4000, n)), axis=1)
        # F >= below[j] from X_(j) on, F <= above[j - 1] up to X_(j).
        inside = np.all(below[1:] <= x, axis=1) & np.all(x <= above[:-1], axis=1)
        assert inside.mean() >= 0.9


def test_lower_order_statistics_use_beta_quantiles():
    """One sample: all we know is that F(X) is uniform, and below[1] is a quantile of Beta(1, 1) = U(0, 1)."""
    below, above = cdf_band(1, 0.9)
    assert below.tolist() == pytest.approx([0.0, 0.1 * 0.2 / 2])
    assert above.tolist() == pytest.approx([1 - 0.1 * 0.2 / 2, 1.0])
    # The largest of n: P(F(X_(n)) < q) = q^n.
    below, _ = cdf_band(1000, 0.95)
    ranks = 18  # 1, 2, 3, 5, 9, ..., 129 from either end
    assert below[-1] == pytest.approx((0.05 * 0.2 / (2 * ranks)) ** (1 / 1000), rel=1e-9)
    assert stats.beta.cdf(below[-1], 1000, 1) == pytest.approx(0.05 * 0.2 / (2 * ranks), rel=1e-6)


@pytest.mark.parametrize("measure", [ts.CVaR(0.75), ts.CVaR(0.95), ts.Wang(1.0)], ids=str)
def test_tighter_in_the_tail_than_dkw_alone(measure):
    x = np.sort(np.random.default_rng(0).exponential(size=500))
    radius = np.sqrt(np.log(2 / 0.05) / (2 * 500))
    edges = np.maximum(np.arange(501) / 500 - radius, 0)
    s = measure.integral(edges)
    dkw_upper = x @ np.diff(s) + (1 - s[-1]) * UPPER
    assert measure.risk_interval(x, 0.95, UPPER).upper < 0.7 * dkw_upper


def test_at_worst_three_percent_wider_than_dkw_alone():
    x = np.sort(np.random.default_rng(0).uniform(0, UPPER, size=100_000))
    radius = np.sqrt(np.log(2 / 0.05) / (2 * x.size))
    edges = np.maximum(np.arange(x.size + 1) / x.size - radius, 0)
    dkw_upper = x @ np.diff(edges) + (1 - edges[-1]) * UPPER
    high = ts.Mean().risk_interval(x, 0.95, UPPER).upper
    assert high - x.mean() <= 1.03 * (dkw_upper - x.mean())


def test_shrinks_with_the_sample_and_widens_with_confidence():
    x = np.random.default_rng(0).exponential(size=10_000)
    widths = [np.subtract(*ts.CVaR(0.9).risk_interval(x[:n], 0.95, UPPER)[::-1]) for n in (100, 1000, 10_000)]
    assert widths[0] > widths[1] > widths[2]
    wide, narrow = ts.CVaR(0.9).risk_interval(x, 0.99, UPPER), ts.CVaR(0.9).risk_interval(x, 0.9, UPPER)
    assert wide.lower < narrow.lower < narrow.upper < wide.upper


def test_without_an_upper_end_there_is_only_a_lower_bound():
    low, high = ts.CVaR(0.5).risk_interval([1.0, 2.0, 3.0] * 100)
    assert 0 < low < 3
    assert high == np.inf


@pytest.mark.parametrize(
    ("samples", "confidence", "upper", "reason"),
    [
        ([1.0, -2.0], 0.95, 10.0, r"samples\[1\] is -2"),
        ([1.0, 12.0], 0.95, 10.0, r"samples\[1\] is 12; .*upper = 10"),
        ([1.0], 1.0, 10.0, "confidence is 1"),
        ([1.0], 0.0, 10.0, "confidence is 0"),
        ([1.0], 0.95, -1.0, "upper is -1"),
        ([1.0], 0.95, float("nan"), "upper is nan"),
        ([float("nan")], 0.95, 1.0, r"samples\[0\] is nan"),
    ],
)
def test_bad_input_is_refused(samples, confidence, upper, reason):
    with pytest.raises(ts.InputError, match=reason):
        ts.CVaR(0.5).risk_interval(samples, confidence, upper)
