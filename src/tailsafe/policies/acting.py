"""A trained policy at work: observation in, action out, and the costs of the running episodes."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from numpy.typing import ArrayLike, NDArray

from tailsafe.errors import InputError
from tailsafe.learning.networks import Policy
from tailsafe.learning.normalizer import Normalizer
from tailsafe.policies.metadata import PolicyDescription

# As the learner shows it to its networks: costs so far in units of the limit, cut here.
LARGEST_COST_INPUT = 10.0


class LoadedPolicy:
    """A trained policy: observation in, action in the environment's own units out.

    Actions are drawn at random, since the policy whose risk was constrained is the random one; `deterministic=True`
    gives the likeliest. Every call advances the policy's own key; `seed` in a call draws with that seed instead.

    An *augmented* policy also looks at the episode so far: D, the discounted costs up to now (one per cost), and
    b = gamma^t. Either call `reset()` before an episode and `observe_cost(cost)` after every step, or pass
    `cost_so_far` and `discount`. `discount=1, cost_so_far=0` is the beginning of an episode.
    """

    def __init__(
        self, description: PolicyDescription, policy: Policy, normalizer: Normalizer, delta: Array, seed: int = 0
    ) -> None:
        """delta: the sampler's mode; with a range of limits those of its regions, (R, n)."""
        self.description = description
        self.modes = delta
        self._constraints = description.arrays()
        self._place(jnp.asarray(description.position, float))
        self.actions = description.actions.build()
        self.network = policy
        self.normalizer = normalizer
        self._key = jax.random.key(seed)
        self._episode: _SoFar | None = None
        self._awaits_cost = False
        self._outputs_of = jax.jit(self._outputs)
        self._choose = jax.jit(self._chosen, static_argnames="deterministic")

    @property
    def augmented(self) -> bool:
        """Whether actions depend on the costs so far."""
        return self.description.network.augmented

    @property
    def beta(self) -> list[list[float]]:
        """The dual variables it acts with, one sorted list per constraint, in units of the discounted cost sum.

        An empty list for a policy whose algorithm knows no beta.
        """
        if not self.delta.shape[0]:
            return []
        rows: list[list[float]] = np.asarray(self._constraints.beta(self.delta), np.float64).tolist()
        return rows

    def across(self, points: int) -> list[LoadedPolicy]:
        """The same policy, asked for limits across its range, the lowest first: equal ratios apart."""
        requests = [self.description.request_at(i / max(points - 1, 1)) for i in range(points)]
        return [self.asked(request) for request in requests]

    def asked_by_rows(self, limits: Float[NDArray[Any], "N C"]) -> LoadedPolicy:
        """The same policy for batches of N observations, each row asked for its own limits."""
        other = LoadedPolicy(self.description, self.network, self.normalizer, self.modes)
        other._place(jnp.asarray(self.description.positions(limits)))
        return other

    def _place(self, position: Float[Array, ...]) -> None:
        """Act at this position of a range of limits, or at one for each row: increments of beta, and the limits there,
        by which the learner scaled costs so far.
        """
        arrays = self._constraints
        self.delta: Array = self.modes if arrays.range is None else arrays.range.delta_at(self.modes, position)
        limits = arrays.limit if arrays.range is None else arrays.limit * arrays.range.factors(position)
        scale = jnp.where(limits > 0, limits, arrays.largest_return)
        self.cost_scale: Array | NDArray[np.float32] = np.asarray(scale, np.float32)

    @property
    def conditions(self) -> Float[NDArray[np.float32], " i"]:
        """What the network sees beside observation, costs so far and discount: the same at every step."""
        return np.asarray(self._constraints.shown(self.delta))

    @property
    def limit(self) -> tuple[float, ...]:
        """The limit of each cost that it is asked for, or was trained for, in the unit of training."""
        return self.description.request

    def asked(self, limit: float | Sequence[float]) -> LoadedPolicy:
        """The same policy, asked for another limit of its range, in the unit of training."""
        return LoadedPolicy(self.description.asked(limit), self.network, self.normalizer, self.modes)

    def __call__(
        self,
        observation: Any,
        *,
        deterministic: bool = False,
        seed: int | None = None,
        cost_so_far: ArrayLike | None = None,
        discount: ArrayLike | None = None,
    ) -> Any:
        """An action for one observation, or one for each of a batch.

        observation: as the environment gives it (an array, a number, a dict), or flat (O,); a batch has a leading axis
        N in every array. Box: an array of the action space's shape, in its bounds. Discrete: an integer or (N,)
        integers. cost_so_far: (C,) or (N, C); discount: () or (N,).
        """
        rows, single = self._rows(observation)
        so_far = self._so_far(len(rows), cost_so_far, discount)
        if seed is not None:
            key = jax.random.key(seed)
        else:
            self._key, key = jax.random.split(self._key)
        actions = self.to_environment(self.choose(rows, *so_far, key, deterministic=deterministic))
        if not single:
            return actions
        return self.description.actions.one(actions[0])

    def reset(self, num_envs: int = 1) -> None:
        """Begin an episode (or `num_envs` of them, for batches): nothing was paid yet."""
        self._episode = _SoFar.begin(num_envs, len(self.description.constraints))
        self._awaits_cost = False

    def observe_cost(self, cost: ArrayLike, done: ArrayLike | None = None) -> None:
        """What the latest step cost: (C,), or (N, C) for a batch; a number where there is one cost and environment.

        done (N,): where an episode ended and the next one begins.
        """
        if self._episode is None:
            raise InputError("observe_cost() without an episode: call reset() first")
        self._episode = self._episode.after(cost, done, self.description.gamma)
        self._awaits_cost = False

    def action_probabilities(
        self,
        observation: ArrayLike,
        cost_so_far: ArrayLike | None = None,
        discount: ArrayLike | None = None,
    ) -> NDArray[np.float64]:
        """P(action) for discrete actions: (A,) for one observation (O,), (N, A) for a batch."""
        if self.description.actions.kind != "discrete":
            raise InputError("this policy's actions are a box: single actions have no probabilities")
        rows, single = self._rows(observation)
        outputs = self.outputs(rows, *self._so_far(len(rows), cost_so_far, discount)).astype(np.float64)
        odds = np.exp(outputs - outputs.max(-1, keepdims=True))
        probabilities: NDArray[np.float64] = odds / odds.sum(-1, keepdims=True)
        return probabilities[0] if single else probabilities

    def choose(
        self,
        observation: Float[NDArray[np.float32], "N O"],
        cost_so_far: Float[NDArray[np.float32], "N C"],
        discount: Float[NDArray[np.float32], " N"],
        key: PRNGKeyArray,
        *,
        deterministic: bool = False,
    ) -> Float[NDArray[np.float32], "N A"]:
        """Embedded actions, as a learner's environments take them: in [-1, 1], or one-hot. Touches no state."""
        return np.asarray(self._choose(observation, cost_so_far, discount, key, deterministic=deterministic))

    def outputs(
        self,
        observation: Float[NDArray[np.float32], "N O"],
        cost_so_far: Float[NDArray[np.float32], "N C"],
        discount: Float[NDArray[np.float32], " N"],
    ) -> Float[NDArray[np.float32], "N D"]:
        """What the network returns, see `learning.actions`: means and log standard deviations, or logits."""
        return np.asarray(self._outputs_of(observation, cost_so_far, discount))

    @property
    def tensors(self) -> tuple[Policy, Normalizer, Array, Array]:
        """The network, the observations' statistics, the increments of beta and the unit of costs so far: all arrays
        that it acts with.
        """
        return self.network, self.normalizer, self.delta, jnp.asarray(self.cost_scale)

    def with_tensors(self, tensors: tuple[Policy, Normalizer, Array, Array]) -> LoadedPolicy:
        """The same policy with other arrays, which may be those of a program that is being traced."""
        other = copy(self)
        other.network, other.normalizer, other.delta, other.cost_scale = tensors
        return other

    def sampled(
        self,
        observation: Float[Array, "N O"],
        cost_so_far: Float[Array, "N C"],
        discount: Float[Array, " N"],
        key: PRNGKeyArray,
    ) -> Float[Array, "N A"]:
        """What `choose` draws, inside JAX."""
        return self._chosen(observation, cost_so_far, discount, key, deterministic=False)

    def to_environment(self, embedded: Float[NDArray[np.float32], "N A"]) -> NDArray[Any]:
        """Embedded actions in the environment's own units."""
        return self.description.actions.decode(embedded)

    def _rows(self, observation: ArrayLike) -> tuple[NDArray[np.float32], bool]:
        rows, single = self.description.task.observation_space.encode(observation)
        if not np.isfinite(rows).all():
            raise InputError("observations hold NaN or infinity")
        return rows, single

    def _so_far(
        self, count: int, cost_so_far: ArrayLike | None, discount: ArrayLike | None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(D, b) of every row: as passed, else from the bookkeeping; zeros and ones where the policy ignores them."""
        costs = len(self.description.constraints)
        if (cost_so_far is None) != (discount is None):
            raise InputError("pass cost_so_far and discount together, or neither")
        if cost_so_far is not None and discount is not None:
            try:
                paid = np.broadcast_to(np.asarray(cost_so_far, np.float32), (count, costs))
                weight = np.broadcast_to(np.asarray(discount, np.float32), (count,))
            except (TypeError, ValueError):
                raise InputError(
                    f"cost_so_far must be numbers of shape ({costs},) or ({count}, {costs}), discount () or ({count},)"
                ) from None
            return paid, weight
        if not self.augmented:
            return np.zeros((count, costs), np.float32), np.ones(count, np.float32)
        if self._episode is None:
            raise InputError(
                "this policy looks at the costs so far: call reset() before an episode and observe_cost(cost) after "
                "every step, or pass cost_so_far= and discount="
            )
        if self._awaits_cost:
            raise InputError(
                "what did the last step cost? Call observe_cost(cost) after every step, or reset() for a new episode"
            )
        if self._episode.discount.size != count:
            raise InputError(
                f"{count} observations for {self._episode.discount.size} running episodes: call reset({count})"
            )
        self._awaits_cost = True
        return self._episode.cost_so_far.astype(np.float32), self._episode.discount.astype(np.float32)

    def _outputs(self, observation: Array, cost_so_far: Array, discount: Array) -> Array:
        """What the network returns; the learner's own features, see `ActorCritic.features`."""
        network = self.description.network
        parts = [self.normalizer(observation, network.clip_observation)]
        if network.augmented:
            parts += [jnp.minimum(cost_so_far / self.cost_scale, LARGEST_COST_INPUT), discount[:, None]]
        shown = self._constraints.shown(self.delta)
        shown = jnp.broadcast_to(shown, (observation.shape[0], shown.shape[-1]))
        return self.network(jnp.concatenate([*parts, shown], axis=-1))

    def _chosen(
        self, observation: Array, cost_so_far: Array, discount: Array, key: PRNGKeyArray, *, deterministic: bool
    ) -> Array:
        outputs = self._outputs(observation, cost_so_far, discount)
        if deterministic:
            return self.actions.embed(self.actions.mode(outputs))
        return self.actions.embed(self.actions.sample(outputs, self.actions.noise(key, outputs.shape[:-1])))


@dataclass(frozen=True)
class _SoFar:
    """D (N, C) and b (N,) of running episodes, in double precision."""

    cost_so_far: NDArray[np.float64]
    discount: NDArray[np.float64]

    @staticmethod
    def begin(rows: int, costs: int) -> _SoFar:
        return _SoFar(np.zeros((rows, costs)), np.ones(rows))

    def after(self, cost: ArrayLike, done: ArrayLike | None, gamma: float) -> _SoFar:
        shape = self.cost_so_far.shape
        paid = np.asarray(cost, np.float64)
        if paid.size != self.cost_so_far.size or not np.isfinite(paid).all():
            raise InputError(f"costs have shape {paid.shape}; they must be finite numbers of shape {shape}")
        ended = np.zeros(shape[0], bool) if done is None else np.asarray(done, bool).reshape(-1)
        if ended.size != shape[0]:
            raise InputError(f"done has {ended.size} entries for {shape[0]} episodes")
        total = self.cost_so_far + self.discount[:, None] * paid.reshape(shape)
        return _SoFar(np.where(ended[:, None], 0.0, total), np.where(ended, 1.0, self.discount * gamma))
