"""The confidence bounds: valid for any distribution, never below nominal, and tight in the tails."""

import functools
import itertools

import numpy as np
import pytest
from scipy import stats

import tailsafe as ts
from tailsafe.risk import betting
from tailsafe.risk.band import band_bounds, cdf_band
from tailsafe.risk.interval import UPPER_SHARE

UPPER = 20.0
MEASURES = [ts.Mean(), ts.CVaR(0.75), ts.CVaR(0.95), ts.Pow(0.75), ts.Wang(1.0)]
# Light and heavy tails, atoms, and nearly nothing but an atom with a rare disaster; each clipped to [0, UPPER].
DISTRIBUTIONS = {
    "uniform": lambda rng, shape: rng.uniform(0, UPPER, shape),
    "half-normal": lambda rng, shape: np.abs(rng.normal(size=shape)),
    "pareto": lambda rng, shape: rng.pareto(1.2, shape),
    "binomial": lambda rng, shape: rng.binomial(8, 0.2, shape).astype(float),
    "rare disaster": lambda rng, shape: UPPER * (rng.uniform(size=shape) < 0.01),
    "rarer disaster": lambda rng, shape: 0.1 + UPPER * (rng.uniform(size=shape) < 0.001),
    "nothing": lambda rng, shape: np.zeros(shape),
}

# F^{-1} of each: a truth that was sampled itself would count as a miss now and then.
QUANTILES = {
    "uniform": lambda u: UPPER * u,
    "half-normal": lambda u: stats.norm.ppf((1 + u) / 2),
    "pareto": lambda u: (1 - u) ** (-1 / 1.2) - 1,
    "binomial": lambda u: stats.binom.ppf(u, 8, 0.2),
    "rare disaster": lambda u: UPPER * (u > 0.99),
    "rarer disaster": lambda u: 0.1 + UPPER * (u > 0.999),
    "nothing": np.zeros_like,
}


def draw(distribution, rng, shape):
    return np.clip(DISTRIBUTIONS[distribution](rng, shape), 0, UPPER)


@functools.cache
def truth_of(distribution, measure):
    """The risk itself: of two million quantiles, whose steps cost less than a ten-thousandth of it."""
    levels = (np.arange(2_000_000) + 0.5) / 2_000_000
    return float(measure.risk(np.clip(QUANTILES[distribution](levels), 0, UPPER)))


def misses_of(interval, truth):
    return (interval.lower > truth * (1 + 1e-9)) | (truth > interval.upper * (1 + 1e-9))


def misses(interval, truth):
    return np.mean(misses_of(interval, truth))


@pytest.mark.parametrize(("n", "rows"), [(20, 400), (200, 400), (1000, 300)])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_coverage_is_never_below_nominal(distribution, n, rows):
    samples = draw(distribution, np.random.default_rng(0), (rows, n))
    for measure in (ts.CVaR(0.75), ts.Wang(1.0)):
        truth = truth_of(distribution, measure)
        interval = measure.risk_interval(samples, 0.95, UPPER)
        assert misses(interval, truth) <= 0.05
        assert np.all(interval.lower <= measure.risk(samples) + 1e-12)
        assert np.all(measure.risk(samples) <= interval.upper + 1e-12)
        # The bounds of a sequence only ever become tighter: the last ones miss if any did.
        assert misses(measure.risk_sequence(samples, 0.8, UPPER), truth) <= 0.2


@pytest.mark.slow
@pytest.mark.parametrize("n", [20, 200, 2000])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_coverage_over_many_experiments(distribution, n):
    rng = np.random.default_rng(1)
    experiments, at_once = 3000, 300 if n <= 200 else 60
    for measure in MEASURES:
        truth = truth_of(distribution, measure)
        missed = {0.8: [], 0.95: [], "sequence": []}
        for _ in range(experiments // at_once):
            samples = draw(distribution, rng, (at_once, n))
            for confidence in (0.8, 0.95):
                missed[confidence].append(misses(measure.risk_interval(samples, confidence, UPPER), truth))
            missed["sequence"].append(misses(measure.risk_sequence(samples, 0.95, UPPER), truth))
        assert np.mean(missed[0.8]) <= 0.2
        assert np.mean(missed[0.95]) <= 0.05
        assert np.mean(missed["sequence"]) <= 0.05


@pytest.mark.parametrize("probability", [0.02, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("measure", [ts.Mean(), ts.CVaR(0.5), ts.Pow(0.5)], ids=str)
def test_the_probability_of_a_wrong_bound_without_sampling(measure, probability):
    """All 2^12 sequences of 12 costs in {0, 1}: the chance of a wrong bound is a sum, and at most the error."""
    coins = np.array(list(itertools.product([0.0, 1.0], repeat=12)))
    chance = np.prod(np.where(coins > 0, probability, 1 - probability), axis=1)
    truth = float(measure.risk([0.0, 1.0], [1 - probability, probability]))
    for horizon in (12, None):
        for error in (0.05, 0.3):
            high = betting.upper_bound(measure, coins, 1.0, error, horizon)
            low = betting.lower_bound(measure, coins, error, horizon)
            assert chance[high < truth].sum() <= error
            assert chance[low > truth + 1e-12].sum() <= error


def test_no_cost_at_all_is_not_certainty():
    """A cost of `upper` in a share p of episodes is overlooked in n of them with probability (1 - p)^n."""
    for n in (50, 500, 5000):
        for measure in MEASURES:
            high = measure.risk_interval(np.zeros(n), 0.95, UPPER).upper
            mass = 1 - (0.05 * UPPER_SHARE) ** (1 / n)
            unseen = measure.risk([0.0, UPPER], [1 - mass, mass])
            assert unseen <= high <= min(UPPER, 1.4 * unseen)
            assert measure.risk_sequence(np.zeros(n), 0.95, UPPER).upper > 0


def test_costs_like_those_of_point_goal():
    """Sums in [0, 100] with mean 0.6: a few percent above the estimate and what an unseen mass at 100 costs."""
    rng, measure = np.random.default_rng(0), ts.CVaR(0.75)
    costs = rng.exponential(1.45, (10, 10_000)) * (rng.uniform(size=(10, 10_000)) < 0.42)
    truth = 1.45 * (1 + np.log(0.42 / 0.25))
    assert truth == pytest.approx(2.2, abs=0.01)
    for n, allowed in ((2000, 0.35), (10_000, 0.1)):
        bounds = measure.risk_interval(costs[:, :n], 0.95, 100.0)
        sequence = measure.risk_sequence(costs[:, :n], 0.95, 100.0)
        assert np.all(bounds.upper >= truth)
        assert np.median(bounds.upper) <= truth * (1 + allowed)
        assert np.median(sequence.upper) <= truth * (1 + allowed)
        assert np.median(bounds.lower) >= truth * (1 - allowed)


@pytest.mark.parametrize("distribution", ["pareto", "rare disaster"])
def test_sorted_samples_do_no_harm(distribution):
    """Bets on the smallest costs first would find a bound that is far too low."""
    samples = np.sort(draw(distribution, np.random.default_rng(0), (300, 500)), axis=1)
    measure = ts.CVaR(0.75)
    assert misses(measure.risk_interval(samples, 0.95, UPPER), truth_of(distribution, measure)) <= 0.05


@pytest.mark.parametrize("measure", [ts.Mean(), ts.CVaR(0.75)], ids=str)
@pytest.mark.parametrize("n", [8, 20, 150])
def test_sorted_samples_of_few_values_do_no_harm(n, measure):
    """Sorted files of n zeros and ones are n + 1: the chance of a wrong bound is a sum over them, for every share."""
    ones = np.arange(n + 1)
    interval = measure.risk_interval((np.arange(n) >= n - ones[:, None]).astype(float), 0.95, 1.0)
    for share in np.linspace(0.001, 0.999, 333):
        chances = stats.binom.pmf(ones, n, share)
        assert chances @ misses_of(interval, measure.risk([0.0, 1.0], [1 - share, share])) <= 0.05


def test_the_same_samples_give_the_same_bounds_and_the_unit_does_not_matter():
    x = np.random.default_rng(0).exponential(size=300)
    assert ts.Pow(0.9).risk_interval(x, 0.9, UPPER) == ts.Pow(0.9).risk_interval(x.copy(), 0.9, UPPER)
    bounds, scaled = (ts.Pow(0.9).risk_sequence(unit * x, 0.9, unit * UPPER) for unit in (1, 7))
    assert scaled == pytest.approx([7 * bounds.lower, 7 * bounds.upper], rel=1e-9)


def test_bounds_of_a_sequence_only_become_tighter():
    x = np.random.default_rng(0).pareto(2.0, 3000).clip(0, UPPER)
    for measure in (ts.CVaR(0.75), ts.Wang(1.0)):
        looks = [measure.risk_sequence(x[:n], 0.95, UPPER) for n in (1, 2, 17, 100, 500, 3000)]
        assert all(b.lower >= a.lower and b.upper <= a.upper for a, b in itertools.pairwise(looks))
        assert looks[0].upper == UPPER
        assert 0 < looks[-1].lower < measure.risk(x) < looks[-1].upper < UPPER


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
    assert band_bounds(measure, x, 0.95, UPPER)[1] < 0.7 * dkw_upper
    assert measure.risk_interval(x, 0.95, UPPER).upper < 0.6 * dkw_upper


def test_at_worst_three_percent_wider_than_dkw_alone():
    x = np.sort(np.random.default_rng(0).uniform(0, UPPER, size=100_000))
    radius = np.sqrt(np.log(2 / 0.05) / (2 * x.size))
    edges = np.maximum(np.arange(x.size + 1) / x.size - radius, 0)
    dkw_upper = x @ np.diff(edges) + (1 - edges[-1]) * UPPER
    _, high = band_bounds(ts.Mean(), x, 0.95, UPPER)
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
