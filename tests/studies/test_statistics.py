"""Aggregates and their bounds: against `rliable`, against all resamples there are, and by simulated coverage."""

import itertools

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

import tailsafe as ts
from tailsafe.errors import InputError
from tailsafe.risk.bootstrap import bootstrap_interval
from tailsafe.studies.statistics import (
    estimate,
    expanded,
    improvement,
    interquartile_mean,
    limited_scores,
    performance_profile,
    probability_of_improvement,
    profile,
    risk_over_runs,
)

# Five runs (rows) of three tasks, with a tie on the second one.
X = np.array([[0.6, 0.66, 0.55], [0.42, 0.51, 0.4], [0.61, 0.4, 0.5], [0.48, 0.7, 0.67], [0.62, 0.41, 0.59]])
Y = np.array([[0.62, 0.11, 0.34], [-0.03, 0.13, -0.01], [0.39, 0.13, 0.52], [0.49, 0.4, -0.18], [0.32, 0.44, 0.48]])
THRESHOLDS = [0.1, 0.3, 0.5, 0.7, 0.9]
# What rliable 1.2.0 says about them: 50,000 resamples for the interquartile means, 20,000 for the rest.
RLIABLE = {
    "iqm": ((0.5422222222222222, 0.4733333333, 0.6077777778), (0.3044444444444444, 0.1488888889, 0.4244444444)),
    "improvement": (0.84, 0.6733333333, 0.9733333333),
    "profile": (
        ([1.0, 1.0, 0.6, 0.0, 0.0], [1.0, 1.0, 1 / 3, 0.0, 0.0], [1.0, 1.0, 13 / 15, 0.0, 0.0]),
        ([0.8, 0.6, 2 / 15, 0.0, 0.0], [0.6, 1 / 3, 0.0, 0.0, 0.0], [1.0, 0.8, 1 / 3, 0.0, 0.0]),
    ),
}


def by_task(matrix):
    return list(matrix.T)


@pytest.mark.parametrize(("matrix", "known"), list(zip((X, Y), RLIABLE["iqm"], strict=True)))
def test_the_interquartile_mean_is_rliables(matrix, known):
    found = estimate(interquartile_mean, by_task(matrix), resamples=50_000)
    assert found.mean == pytest.approx(known[0], abs=1e-12)
    # Quantiles of 50,000 resamples of a deviation of 0.07: their own noise is below 0.002.
    assert (found.low, found.high) == pytest.approx(known[1:], abs=0.004)


def test_the_probability_of_improvement_is_rliables():
    value, low, high = RLIABLE["improvement"]
    found = improvement(by_task(X), by_task(Y), resamples=20_000)
    assert found.mean == pytest.approx(value, abs=1e-12)
    # It moves in steps of 1/150.
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.0101)


@pytest.mark.parametrize(("matrix", "known"), list(zip((X, Y), RLIABLE["profile"], strict=True)))
def test_the_performance_profile_is_rliables(matrix, known):
    found = profile(by_task(matrix), THRESHOLDS, resamples=20_000)
    for name, values in zip(("mean", "low", "high"), known, strict=True):
        assert [getattr(one, name) for one in found] == pytest.approx(values, abs=1e-9)


def test_bounds_are_those_of_all_resamples():
    """27 resamples of three runs: their quantiles, each with its exact weight."""
    runs = np.array([0.0, 1.0, 5.0])
    everything = sorted(np.mean(drawn) for drawn in itertools.product(runs, repeat=3))
    found = estimate(interquartile_mean, [runs], confidence=0.8, resamples=100_000)
    assert (found.low, found.high) == pytest.approx((everything[2], everything[-3]), abs=1e-9)


def test_strata_keep_their_runs():
    """Two tasks whose runs are equal: nothing is left to chance, however far apart the tasks are."""
    found = estimate(interquartile_mean, [np.zeros(4), np.ones(2)])
    assert (found.mean, found.low, found.high) == (0.25, 0.25, 0.25)


values = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=7)


@given(st.lists(values, min_size=1, max_size=4))
def test_aggregates_by_their_definitions(tasks):
    scores = [np.array(task) for task in tasks]
    joined = np.concatenate(scores)
    assert interquartile_mean(scores) == pytest.approx(scipy.stats.trim_mean(joined, 0.25))
    assert performance_profile(scores, [0.0]) == pytest.approx([np.mean([value > 0 for value in joined])])
    assert probability_of_improvement(scores, scores) == pytest.approx(0.5)


@given(values, values)
def test_improvement_and_its_opposite_are_everything(first, second):
    x, y = [np.array(first)], [np.array(second)]
    pairs = [(a > b) + 0.5 * (a == b) for a in first for b in second]
    assert probability_of_improvement(x, y) == pytest.approx(np.mean(pairs))
    assert probability_of_improvement(x, y) + probability_of_improvement(y, x) == pytest.approx(1.0)


# --- safety -----------------------------------------------------------------------------------------------------------


def test_the_risk_over_runs_is_the_mean_of_their_risks():
    generator = np.random.default_rng(0)
    measure, runs = ts.CVaR(0.75), [scale * generator.exponential(size=80) for scale in (1.0, 2.0, 3.0)]
    found = risk_over_runs(measure, runs)
    risks = [float(measure.risk(run)) for run in runs]
    assert found.mean == pytest.approx(np.mean(risks))
    assert found.low < min(risks) + 0.5
    assert found.high > max(risks) - 0.5
    alone = risk_over_runs(measure, runs[:1], resamples=2000)
    one = bootstrap_interval(measure, runs[0], resamples=2000)
    assert (alone.low, alone.high) == pytest.approx((one.lower, one.upper))


def test_runs_that_are_alike_leave_the_noise_of_their_episodes():
    """Of equal policies (no variance between) the bootstrap's deviation is that of the mean of all episodes."""
    generator = np.random.default_rng(1)
    runs = [generator.normal(size=400) for _ in range(20)]
    found = risk_over_runs(ts.Mean(), runs, confidence=0.9)
    reach = (found.high - found.low) / 2
    # Both levels see the noise of episodes: between sqrt(1/n) and sqrt(2/n), times Student's 1.73 (19 degrees).
    assert 1.64 / np.sqrt(8000) < reach < np.sqrt(2) * 1.9 / np.sqrt(8000)


def test_percentiles_are_taken_as_far_out_as_student_does():
    assert expanded(0.95, 5) == pytest.approx(2 * scipy.stats.norm.cdf(np.sqrt(5 / 4) * 2.7764451) - 1, abs=1e-9)
    assert expanded(0.95, 100_000) == pytest.approx(0.95, abs=1e-4)


def test_bounds_on_the_risk_cover_it_where_pooled_episodes_do_not():
    """Five policies with exponential costs of log-normal means (deviation 0.3): CVaR is the mean times 1 + log 4."""
    truth, measure, generator = 1 + np.log(4), ts.CVaR(0.75), np.random.default_rng(3)
    covered, pooled, repetitions = 0, 0, 150
    for i in range(repetitions):
        means = np.exp(0.3 * generator.normal(size=5) - 0.3**2 / 2)
        runs = [mean * generator.exponential(size=60) for mean in means]
        found = risk_over_runs(measure, runs, resamples=1000, seed=i)
        covered += found.low <= truth <= found.high
        joined = bootstrap_interval(measure, np.concatenate(runs), resamples=200, seed=i)
        pooled += joined.lower <= truth <= joined.upper
    # 0.94 with 400 repetitions of 100 episodes (docs/studies.md); two deviations of 150 repetitions are 0.04.
    assert covered / repetitions > 0.90
    assert pooled / repetitions < 0.75


# --- the score --------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(-10, 10), st.booleans()), min_size=1, max_size=6))
def test_reward_counts_where_limits_are_kept(runs):
    rewards, kept = zip(*runs, strict=True)
    scores = limited_scores(rewards, kept, -5.0, 5.0)
    for reward, within, score in zip(rewards, kept, scores, strict=True):
        assert score == pytest.approx(min(max((reward + 5) / 10, 0), 1) if within else 0.0)


def test_scores_of_an_empty_range():
    assert limited_scores([3.0, 3.0], [True, False], 3.0, 3.0).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: estimate(interquartile_mean, []), "no scores"),
        (lambda: estimate(interquartile_mean, [np.ones(2), np.ones(0)]), "one of every task"),
        (lambda: estimate(interquartile_mean, [np.array([np.nan])]), "finite"),
        (lambda: estimate(interquartile_mean, [np.ones(2)], confidence=1.0), "confidence is 1"),
        (lambda: improvement([np.ones(2)], [np.ones(2)] * 2), "same tasks"),
        (lambda: limited_scores([1.0], [True, False], 0, 1), "one each per run"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(InputError, match=words):
        call()
