"""Sequential proofs: how often they are wrong on finite problems whose risks are known, and what they can do."""

import numpy as np
import pytest

import tailsafe as ts
from tailsafe.evaluation.sequential import BATCH, Limit, Proof, in_sequence, prove, with_shares
from tailsafe.tabular.augmented import augment
from tailsafe.tabular.values import occupancy
from tests.tabular.problems import random_policy, random_problem

MEASURE = ts.CVaR(0.5)
ERROR = 0.05


def known(problem_seed, policies=6):
    """Policies of a finite problem by increasing risk: (risk, outcomes, chances) of each, and the largest outcome."""
    mdp = augment(random_problem(problem_seed))
    sums = mdp.terminal_cost[:, 0]
    chances = [occupancy(mdp, random_policy(mdp, seed))[-1] for seed in range(policies)]
    return sorted(((float(MEASURE.risk(sums, p)), p) for p in chances), key=lambda row: row[0]), sums


def sampler(rng, sums, chances):
    # Inverse transform: faster than Generator.choice in 500 repetitions.
    edges = np.cumsum(chances / chances.sum())
    return lambda first, count: sums[np.searchsorted(edges, rng.uniform(size=count)).clip(max=sums.size - 1)][:, None]


@pytest.mark.parametrize(("problem_seed", "unsafe"), [(0, 0), (1, 2)])
def test_wrongly_certified_in_at_most_five_percent_of_500_searches(problem_seed, unsafe):
    """The limit is just below the risk of one of six policies: certifying that or a riskier one is wrong."""
    policies, sums = known(problem_seed)
    limit = Limit(MEASURE, policies[unsafe][0] - 1e-6, float(sums.max()))
    wrong, useful = 0, 0
    for repetition in range(500):
        rng = np.random.default_rng([problem_seed, repetition])

        def run(candidate, error, rng=rng):
            return prove([limit], sampler(rng, sums, policies[candidate][1]), error, 4 * BATCH)

        found = in_sequence(run, len(policies), ERROR)
        certified = [i for i, tested in enumerate(found) if tested.outcome == "certified"]
        wrong += any(policies[i][0] > limit.limit for i in certified)
        useful += bool(certified)
    print(f"wrongly certified {wrong} of 500, something certified {useful}")
    assert wrong <= 25
    # Where there are safer policies, some are found.
    assert useful > wrong or unsafe == 0


def test_shares_keep_the_error_over_several_unsafe_candidates():
    policies, sums = known(0)
    chances = policies[2][1]
    limit = Limit(MEASURE, policies[2][0] - 1e-6, float(sums.max()))
    wrong = 0
    for repetition in range(300):
        rng = np.random.default_rng(repetition)

        def run(candidate, error, rng=rng):
            return prove([limit], sampler(rng, sums, chances), error, 2 * BATCH)

        wrong += with_shares(run, [0.5, 0.25, 0.25], ERROR)[-1].outcome == "certified"
    assert wrong <= 0.05 * 300


def test_stops_as_soon_as_it_is_proven_refuted_or_out_of_reach():
    budget = 40 * BATCH
    for bound, outcome in [(0.5, "certified"), (0.05, "violated"), (0.195, "out of reach")]:
        coin = sampler(np.random.default_rng(1), np.array([0.0, 1.0]), np.array([0.9, 0.1]))
        proof = prove([Limit(ts.CVaR(0.5), bound, 1.0)], coin, ERROR, budget)
        assert proof.outcome == outcome
        assert proof.episodes < budget
    assert prove([Limit(ts.CVaR(0.5), 0.22, 1.0)], coin, ERROR, BATCH).outcome == "undecided"


def test_all_limits_of_a_candidate_must_be_proven():
    rng = np.random.default_rng(0)

    def draw(first, count):
        return np.stack([rng.uniform(0, 0.1, count), rng.uniform(0, 1, count)], axis=1)

    easy, hard = Limit(ts.Mean(), 0.2, 1.0), Limit(ts.Mean(), 0.3, 1.0)
    assert prove([easy, Limit(ts.Mean(), 0.8, 1.0)], draw, ERROR, 2000).outcome == "certified"
    assert prove([easy, hard], draw, ERROR, 2000).outcome == "violated"


def test_no_cost_in_any_episode_is_no_proof_of_a_small_limit():
    zeros = Limit(ts.CVaR(0.75), 0.5, 100.0)
    tested = prove([zeros], lambda first, count: np.zeros((count, 1)), ERROR, 1000)
    assert tested.outcome != "certified"
    # A cost of 100 in a share p of all episodes stays unseen in n with probability (1 - p)^n.
    mass = 1 - ERROR ** (1 / tested.episodes)
    assert tested.uppers[0] >= ts.CVaR(0.75).risk([0.0, 100.0], [1 - mass, mass])


def test_limits_that_nothing_can_break_and_costs_that_cannot_be():
    draw = lambda first, count: np.ones((count, 1))  # noqa: E731
    assert prove([Limit(ts.Mean(), 2.0, 1.0)], draw, ERROR, 10).outcome == "certified"
    with pytest.raises(ts.InputError, match="largest_costs is wrong"):
        prove([Limit(ts.Mean(), 0.2, 0.5)], draw, ERROR, 10)
    with pytest.raises(ts.InputError, match="without a bound"):
        Limit(ts.Mean(), 1.0, np.inf)


def test_a_sequence_ends_at_the_first_failure_and_shares_at_the_first_success():
    outcomes = ["certified", "certified", "violated", "certified"]
    asked = []

    def run(candidate, error):
        asked.append((candidate, error))
        return Proof(outcomes[candidate], 10, error, (1.0,), (2.0,))

    assert [tested.outcome for tested in in_sequence(run, 4, 0.1)] == outcomes[:3]
    assert asked == [(0, 0.1), (1, 0.1), (2, 0.1)]
    asked.clear()
    outcomes[:2] = ["undecided", "violated"]
    with_shares(run, [0.8, 0.1, 0.05, 0.05], 0.1)
    assert [candidate for candidate, _ in asked] == [0, 1, 2, 3]
    assert sum(error for _, error in asked) == pytest.approx(0.1)
