"""Small problems whose optimum a linear program finds, each made to show something."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tailsafe.risk import CVaR, SpectralRisk
from tailsafe.tabular.problem import FiniteCMDP

# Per action: (probability, costs) of what may happen.
Distribution = Sequence[tuple[float, Sequence[float]]]


@dataclass(frozen=True)
class Known:
    """A problem, what is asked of it, and what it shows."""

    name: str
    build: Callable[[], FiniteCMDP]
    measure: SpectralRisk
    limits: tuple[float, ...]
    shows: str


def bandit(rewards: Sequence[float], outcomes: Sequence[Distribution]) -> FiniteCMDP:
    """One choice, then its price in the second step, without a discount."""
    prices = sorted({tuple(costs) for distribution in outcomes for _, costs in distribution})
    states, actions = 1 + len(prices), len(rewards)
    transitions = np.zeros((states, actions, states))
    for action, distribution in enumerate(outcomes):
        for chance, costs in distribution:
            transitions[0, action, 1 + prices.index(tuple(costs))] += chance
    for state in range(1, states):
        transitions[state, :, state] = 1.0
    earned, paid = np.zeros((states, actions)), np.zeros((len(prices[0]), states, actions))
    earned[0] = rewards
    paid[:, 1:] = np.array(prices).T[..., None]
    return FiniteCMDP(2, 1.0, np.eye(states)[0], transitions, earned, paid)


def two_roads() -> FiniteCMDP:
    """Half of the days lead over the highway, half over an icy pass; fast earns more and slides more often."""
    return FiniteCMDP(
        6,
        0.95,
        np.array([0.5, 0.5, 0.0, 0.0]),
        np.array(
            [
                [[0.98, 0.0, 0.02, 0.0], [0.8, 0.0, 0.2, 0.0]],
                [[0.0, 0.8, 0.0, 0.2], [0.0, 0.4, 0.0, 0.6]],
                [[0.6, 0.0, 0.4, 0.0], [0.6, 0.0, 0.4, 0.0]],
                [[0.0, 0.6, 0.0, 0.4], [0.0, 0.6, 0.0, 0.4]],
            ]
        ),
        np.array([[0.6, 1.0], [0.5, 1.0], [0.0, 0.0], [0.0, 0.0]]),
        np.array([[[0, 0], [0, 0], [1, 1], [1, 1]]], float),
    )


def gamble() -> FiniteCMDP:
    """Safe earns 0. Gambling earns 1 and costs 10 with probability 0.1.

    Gambling with probability q has CVaR_0.75 = 10 * 0.1 q / 0.25 = 4 q, so a limit of 2 allows q = 1/2, reward 1/2, and
    the 0.75-quantile of the cost is beta = 0.
    """
    return bandit([0.0, 1.0], [[(1.0, [0.0])], [(0.9, [0.0]), (0.1, [10.0])]])


def crossing() -> FiniteCMDP:
    """Wait (0.2, free), walk (0.6, costs 1), run (1.0, costs 4). Under CVaR_0.75 <= 2 walking is nearly the best.

    Running with probability p <= 1/4 has CVaR_0.75 = 1 + 12 p: p = 1/12, reward 0.6 + 0.4 / 12 = 0.6333.
    """
    return bandit([0.2, 0.6, 1.0], [[(1.0, [0.0])], [(1.0, [1.0])], [(1.0, [4.0])]])


def toll_or_gamble() -> FiniteCMDP:
    """Gamble (0.5; costs 10 with probability 0.05) or pay a toll of 2 for certain (1.0).

    Gambling has CVaR_0.75 10 * 0.05 / 0.25 = 2 with its quantile at 0; the toll has 2 with its quantile at 2, and is
    twice as good. Measured with beta = 0 the toll's risk is 8: an auxiliary variable that follows the current policy's
    quantile from 0 finds the gamble and stays there.
    """
    return bandit([0.5, 1.0], [[(0.95, [0.0]), (0.05, [10.0])], [(1.0, [2.0])]])


def two_prices() -> FiniteCMDP:
    """Rest (0.1, free), hurry (1.0; time costs 4), shortcut (0.9; wear costs 4), steady (0.5; one of each)."""
    return bandit(
        [0.1, 1.0, 0.9, 0.5],
        [[(1.0, [0.0, 0.0])], [(1.0, [4.0, 0.0])], [(1.0, [0.0, 4.0])], [(1.0, [1.0, 1.0])]],
    )


SUITE = (
    Known("crossing", crossing, CVaR(0.75), (2.0,), "a nearly deterministic optimum"),
    Known("two roads", two_roads, CVaR(0.75), (2.0,), "start states of different danger"),
    Known("gamble", gamble, CVaR(0.75), (2.0,), "rare large costs; the optimum is a coin flip"),
    Known("toll or gamble", toll_or_gamble, CVaR(0.75), (2.2,), "a local optimum at beta = 0"),
    Known("two prices", two_prices, CVaR(0.75), (2.0, 2.0), "two constraints"),
)
