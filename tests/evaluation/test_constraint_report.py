"""Verdicts, units and bounds of one constraint, on constructed samples."""

import dataclasses
import json

import numpy as np
import pytest

import tailsafe as ts
from tailsafe.evaluation.bounds import Interval, largest_return, mean_report
from tailsafe.evaluation.constraint_report import constraint_report, verdict
from tailsafe.evaluation.episodes import Episodes
from tailsafe.risk.bootstrap import bootstrap_interval
from tests.policies.hand_made import constraint, finite_description, one_cost
from tests.tabular.problems import gamble


def episodes_with(discounted, costs=None, length=10.0):
    """Episodes with given discounted costs (n,) of one cost; the rest is plain."""
    column = np.asarray(discounted, float)[:, None]
    rows = np.full(len(column), 1.0)
    return Episodes(rows, rows, length * rows, column if costs is None else costs, column)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.1, 0.9, "met"),
        (0.1, 1.0, "met"),
        (0.5, 1.1, "cannot tell"),
        (1.0, 1.1, "cannot tell"),
        (1.1, 2.0, "violated"),
        (0.2, np.inf, "cannot tell"),
        (1.2, np.inf, "violated"),
    ],
)
def test_verdict(low, high, expected):
    assert verdict(Interval(low, high), 1.0) == expected


def test_constructed_samples_get_the_verdict_they_deserve():
    # 0.9^10: the largest discounted sum is (1 - 0.349) / 0.1 = 6.51 for costs up to 1.
    description = one_cost(limit=3.0)
    assert largest_return(description, 0) == pytest.approx((1 - 0.9**10) / 0.1, rel=1e-5)
    rng = np.random.default_rng(0)
    for samples, expected in [
        (rng.uniform(0, 0.5, 5000), "met"),
        (rng.uniform(3.5, 6, 5000), "violated"),
        # CVaR_0.75 of U(1.5, 3.1) is 2.9: too near to the limit for 40 episodes.
        (rng.uniform(1.5, 3.1, 40), "cannot tell"),
    ]:
        report = constraint_report(description, 0, episodes_with(samples), 0.95)
        assert report.verdict == expected
        assert report.free.low <= report.bootstrap.low <= report.risk <= report.bootstrap.high <= report.free.high
        assert report.risk == float(ts.CVaR(0.75).risk(samples))


def test_a_few_episodes_cannot_confirm_a_limit_and_say_how_many_could():
    description = one_cost(limit=1.0)
    samples = np.tile([0.0, 0.0, 0.0, 0.5], 10)
    report = constraint_report(description, 0, episodes_with(samples), 0.95)
    assert report.verdict == "cannot tell"
    needed = report.episodes_needed
    assert needed > 40
    enough = constraint_report(description, 0, episodes_with(np.tile(samples, needed // 40)), 0.95)
    assert enough.verdict == "met"
    assert enough.episodes_needed is None
    by_bootstrap = constraint_report(description, 0, episodes_with(samples), 0.95, "bootstrap")
    # CVaR_0.75 of 40 episodes rests on 10 of them; of 200, on 50.
    assert by_bootstrap.tail_episodes == pytest.approx(10)
    assert by_bootstrap.verdict == "cannot tell"
    by_bootstrap = constraint_report(description, 0, episodes_with(np.tile(samples, 5)), 0.95, "bootstrap")
    assert by_bootstrap.verdict == "met (bootstrap, no guarantee)"
    shown = by_bootstrap.to_json()
    assert (shown["low"], shown["high"]) == (shown["bootstrap"]["low"], shown["bootstrap"]["high"])


def test_the_bootstrap_says_nothing_of_costs_that_are_all_zero():
    """One episode in 200 costs the most; a hundred that did not meet one are no proof."""
    report = constraint_report(one_cost(limit=0.1), 0, episodes_with(np.zeros(200)), 0.95, "bootstrap")
    assert report.bootstrap == report.free
    assert report.bootstrap.high > 0.1
    assert report.verdict == "cannot tell"


def test_units():
    samples = np.linspace(0, 2, 201)
    for unit, limit, factor in [("discounted", 1.0, 1.0), ("step", 0.1, 0.1), ("episode", 1.0, 10 * 0.1)]:
        description = one_cost("mean", limit, unit, 1.0)
        report = constraint_report(description, 0, episodes_with(samples, costs=3 * samples[:, None]), 0.9)
        assert report.risk == pytest.approx(factor * 1.0)
        assert report.discounted_risk == pytest.approx(1.0)
        # 3 per episode of 10 steps
        assert report.cost_rate == pytest.approx(0.3)
        assert report.to_json()["limit"] == limit


def test_units_of_a_finite_problem_and_of_a_limit_of_zero():
    # gamma 1, horizon 2: a limit of 1 per step is one of 2 on the sum.
    description = finite_description(gamble(), [constraint("cost", "mean", 1.0, "step", 2.0)])
    assert description.unit_factor(description.constraints[0]) == 0.5
    for unit, factor in [("discounted", 1.0), ("step", 0.5), ("episode", 1.0)]:
        description = finite_description(gamble(), [constraint("cost", "mean", 0.0, unit)])
        assert description.unit_factor(description.constraints[0]) == factor
    for unit, factor in [("discounted", 1.0), ("step", 0.1), ("episode", 1.0)]:
        description = one_cost("mean", 0.0, unit)
        assert description.unit_factor(description.constraints[0]) == pytest.approx(factor)


def test_no_upper_bound_without_a_largest_cost_or_with_a_wrong_one():
    samples = np.linspace(0, 2, 100)
    unknown = constraint_report(one_cost(limit=1.8, largest=np.inf), 0, episodes_with(samples), 0.95)
    assert unknown.to_json()["high"] is None
    assert unknown.verdict == "cannot tell"
    wrong = constraint_report(one_cost(largest=0.1), 0, episodes_with(samples), 0.95)
    assert wrong.to_json()["high"] is None
    json.dumps(unknown.to_json(), allow_nan=False)
    # The critics' cap is no bound on what the environment can do.
    capped = dataclasses.replace(one_cost(limit=1.8, largest=np.inf), largest_return=(1000.0,))
    assert constraint_report(capped, 0, episodes_with(samples), 0.95).verdict == "cannot tell"


def test_bounds_of_a_mean():
    report = mean_report(np.array([1.0, 2.0, 3.0, 4.0]), 0.95, 0)
    # mean 2.5, std 1.2910, t_{3, 0.975} = 3.1824: half width 3.1824 * 1.2910 / 2 = 2.0543
    assert report.mean == 2.5
    assert report.student.high == pytest.approx(2.5 + 2.0543, abs=1e-4)
    assert 1.0 <= report.bootstrap.low < 2.5 < report.bootstrap.high <= 4.0


def test_bootstrap_covers_about_as_often_as_it_says(report):
    """CVaR_0.75 of an exponential is 1 + log 4; 200 samples, 200 repetitions."""
    rng, truth, hits = np.random.default_rng(0), 1 + np.log(4), 0
    for k in range(200):
        low, high = bootstrap_interval(ts.CVaR(0.75), rng.exponential(size=200), 0.9, resamples=300, seed=k)
        hits += low <= truth <= high
    report("bootstrap CVaR coverage at 0.9", hits / 200)
    assert 0.8 <= hits / 200 <= 0.97
