"""The paper's algorithm on tables: one softmax policy per beta, and a softmax sampler over the betas.     Algorithm 1

For every beta at once (vmap), each iteration evaluates the policy exactly, picks weights by a strategy, and takes
a natural-policy-gradient step, which for tables is

    theta(s, a) += alpha_t h ( w_R A_R(s, a) - sum_i w_i A_{i,g}(s, a) ),        h = 1 / (1 - gamma),

in every augmented state. The sampler's natural-gradient step is phi(beta) += rate * J(pi_beta; beta) with
J = J_R - K sum_i (J_Ci - d_i)_+.                                                                 Eq. (sampler update)

Rewards are divided by their spread and costs by their maximum first, so step sizes mean the same on every problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from tailsafe.errors import InputError
from tailsafe.optimization import strategies
from tailsafe.tabular.augmented import AugmentedMDP, Layer
from tailsafe.tabular.betas import BetaSet
from tailsafe.tabular.values import evaluate

jax.tree_util.register_dataclass(
    Layer, data_fields=["state", "cost_so_far", "reward", "successor", "probability"], meta_fields=[]
)


@dataclass(frozen=True)
class Settings:
    """Step sizes of the two loops, for rewards in units of their spread and costs in units of their maximum.

    radius, decay: trust region eps_t = radius / (t + 1)^decay; 1/2 < decay <= 1 is the Robbins-Monro condition.
    max_weight: lambda_max, the cap on a cost's weight. clip: (g_min, g_max) of the step length; below g_min the steps
    shrink with the gradient, which keeps nearly deterministic policies from leaping.
    strategy: how gradients are weighed, see `optimization.strategies.weights_of`; ipo_kappa, p3o_kappa: of these two.
    sampler_rate: of the sampler's natural gradient. penalty: the paper's K; None takes the paper's 10, or more where
    the multipliers of the linear programs demand it.
    """

    radius: float = 0.3
    decay: float = 0.6
    max_weight: float = 100.0
    clip: tuple[float, float] = (1.0, 1e8)
    sampler_rate: float = 1.0
    penalty: float | None = None
    strategy: strategies.Strategy = "proposed"
    ipo_kappa: float = 0.01
    p3o_kappa: float = 20.0

    def __post_init__(self) -> None:
        if not 0.5 < self.decay <= 1:
            raise InputError(f"decay is {self.decay:g}; the Robbins-Monro condition needs it in (0.5, 1]")
        for name in ("radius", "max_weight", "sampler_rate", "ipo_kappa", "p3o_kappa"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name):g}; it must be positive")
        if self.strategy not in get_args(strategies.Strategy):
            names = ", ".join(get_args(strategies.Strategy))
            raise InputError(f"unknown strategy {self.strategy!r}; there are: {names}")
        if not 0 < self.clip[0] <= self.clip[1]:
            raise InputError(f"clip is {self.clip}; it must be 0 < g_min <= g_max")


class Rates(NamedTuple):
    """`Settings` as arrays, so that other step sizes need no new compilation."""

    radius: Float[Array, ""]
    decay: Float[Array, ""]
    max_weight: Float[Array, ""]
    shortest: Float[Array, ""]
    longest: Float[Array, ""]
    sampler_rate: Float[Array, ""]
    penalty: Float[Array, " N"]
    ipo_kappa: Float[Array, ""]
    p3o_kappa: Float[Array, ""]

    @classmethod
    def of(cls, settings: Settings, penalty: np.ndarray) -> Rates:
        """penalty: (N,), K in units of reward per unit of each cost."""
        s = settings
        numbers = (s.radius, s.decay, s.max_weight, *s.clip, s.sampler_rate, penalty, s.ipo_kappa, s.p3o_kappa)
        return cls(*map(jnp.asarray, numbers))


class Problem(NamedTuple):
    """What the iteration needs, as arrays in normalised units."""

    layers: tuple[Layer, ...]
    initial: Float[Array, " n0"]
    terminal_value: Float[Array, "L N B"]
    room: Float[Array, "N B"]
    """d_i - I_i(beta_i): the sub-risk meets the limit when E[g] <= room."""


class State(NamedTuple):
    """The whole learner: `logits` and `best` (the best feasible iterate) hold one (n_t, A, B) array per layer."""

    iteration: Int[Array, ""]
    logits: tuple[Float[Array, "n A B"], ...]
    best: tuple[Float[Array, "n A B"], ...]
    best_reward: Float[Array, " B"]
    sampler: Float[Array, " B"]


class Record(NamedTuple):
    """Per iteration, in normalised units, of the beta the sampler finds most likely: what a plot shows."""

    reward: Float[Array, " T"]
    excess: Float[Array, "T N"]
    entropy: Float[Array, " T"]


def normalise(mdp: AugmentedMDP, betas: BetaSet, limits: Sequence[float]) -> tuple[Problem, float, np.ndarray]:
    """The problem in units of its rewards' spread and its largest costs: (problem, reward unit, (N,) cost units)."""
    # Every episode has the same length, so a constant added to all rewards changes nothing: their spread is the unit.
    reward_unit = float(np.ptp(mdp.problem.rewards)) or 1.0
    largest = mdp.problem.costs.max((1, 2))
    cost_units = np.where(largest > 0, largest, 1.0)
    layers = tuple(
        Layer(x.state, x.cost_so_far, x.reward / reward_unit, x.successor, x.probability) for x in mdp.layers
    )
    room = ((np.asarray(limits) - betas.constant) / cost_units).T
    terminal_value = np.moveaxis(betas.terminal_value / cost_units, 0, -1)
    problem = Problem(
        jax.tree.map(jnp.asarray, layers), jnp.asarray(mdp.initial), jnp.asarray(terminal_value), jnp.asarray(room)
    )
    return problem, reward_unit, cost_units


def start(problem: Problem) -> State:
    """Uniform policies, so that every action has positive probability, and a uniform sampler."""
    size = problem.room.shape[1]
    logits = tuple(jnp.zeros((*layer.reward.shape, size)) for layer in problem.layers)
    sampler = jnp.full(size, -np.log(size), float)
    return State(jnp.zeros((), int), logits, logits, jnp.full(size, -np.inf, float), sampler)


@partial(jax.jit, static_argnames=("discount", "effective_horizon", "iterations", "strategy"))
def iterate(
    state: State,
    problem: Problem,
    rates: Rates,
    discount: float,
    effective_horizon: float,
    iterations: int,
    strategy: strategies.Strategy = "proposed",
) -> tuple[State, Record]:
    """`iterations` steps of the algorithm."""

    def weigh(gram: Array, excess: Array, radius: Array) -> Array:
        """The coefficients of (A_R, A_1, ..., A_N) in the step of one beta."""
        kappa = strategies.Kappa(rates.ipo_kappa, rates.p3o_kappa)
        weights = strategies.weights_of(strategy, gram, excess, radius, rates.max_weight, kappa)
        return strategies.step_size(gram, weights, radius, (rates.shortest, rates.longest)) * weights.signed()

    def step(state: State, _: None) -> tuple[State, Record]:
        policy = [jax.nn.softmax(x, axis=1) for x in state.logits]
        values = evaluate(problem.layers, problem.initial, policy, problem.terminal_value, discount, effective_horizon)
        reward, excess = values.objective[0], values.objective[1:] - problem.room
        radius = rates.radius / (state.iteration + 1.0) ** rates.decay
        weights = jax.vmap(weigh, in_axes=(-1, -1, None), out_axes=-1)(values.gram, excess, radius)
        stepped = [
            x + effective_horizon * (a * weights).sum(2) for x, a in zip(state.logits, values.advantage, strict=True)
        ]
        logits = tuple(x - x.max(1, keepdims=True) for x in stepped)

        better = jnp.all(excess <= 0, axis=0) & (reward > state.best_reward)
        best = tuple(jnp.where(better, new, old) for new, old in zip(state.logits, state.best, strict=True))
        best_reward = jnp.where(better, reward, state.best_reward)

        objective = reward - rates.penalty @ jnp.maximum(excess, 0.0)
        sampler = jax.nn.log_softmax(state.sampler + rates.sampler_rate * objective)
        mode = jnp.argmax(sampler)
        record = Record(reward[mode], excess[:, mode], -(jnp.exp(sampler) * sampler).sum())
        return State(state.iteration + 1, logits, best, best_reward, sampler), record

    return jax.lax.scan(step, state, length=iterations)
