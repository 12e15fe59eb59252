"""Two kinds of actions behind one face: boxes (squashed Gaussian) and finite sets (categorical).

A policy network returns `outputs` per state: means and log standard deviations, or logits. A `raw` action is what was
drawn from them: the Gaussian sample before squashing, or a one-hot row. `embed` makes of it what critics see and
environments get.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

LOG_STD_RANGE = (-4.0, 2.0)

# From embedded actions, a copy for each signal, to what is to be raised or lowered: (S, B, A) -> (S, B). Row s of the
# result depends on row s of the actions alone.
ValueOf = Callable[[Array], Array]


class Actions(Protocol):
    """What a learner needs to know about the actions of a task."""

    @property
    def size(self) -> int:
        """Width of a raw or embedded action."""

    @property
    def output_size(self) -> int:
        """How many numbers a policy network returns."""

    def noise(self, key: PRNGKeyArray, rows: tuple[int, ...]) -> Float[Array, "... A"]: ...
    def sample(self, outputs: Float[Array, "... D"], noise: Float[Array, "... A"]) -> Float[Array, "... A"]:
        """A raw action from noise."""

    def mode(self, outputs: Float[Array, "... D"]) -> Float[Array, "... A"]:
        """The likeliest raw action."""

    def embed(self, raw: Float[Array, "... A"]) -> Float[Array, "... A"]: ...
    def shown(self, outputs: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """The distribution as a critic sees it that looks at the policy instead of at an action."""
        ...

    def log_prob(self, outputs: Float[Array, "... D"], raw: Float[Array, "... A"]) -> Float[Array, ...]: ...
    def kl(self, old: Float[Array, "... D"], new: Float[Array, "... D"]) -> Float[Array, ...]: ...
    def entropy(self, outputs: Float[Array, "... D"], noise: Float[Array, "... A"]) -> Float[Array, ...]: ...
    def fisher(self, outputs: Float[Array, "... D"], tangent: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """The Fisher matrix of the distribution in its outputs, times a tangent."""

    def output_gradients(
        self, outputs: Float[Array, "B D"], noise: Float[Array, "B A"], value_of: ValueOf, signals: int
    ) -> tuple[Float[Array, "S B"], Float[Array, "S B D"]]:
        """Expected value of every signal under the policy, and its gradient in the policy's outputs."""

    def expectation(
        self, outputs: Float[Array, "B D"], noise: Float[Array, "B A"], of: Callable[[Array], Array]
    ) -> Float[Array, ...]:
        """E[of(action)] per state; `of` maps (B, A) to (..., B). Exact, or from one sample."""


@dataclass(frozen=True)
class BoxActions:
    """`size` numbers in [-1, 1]: tanh of a diagonal Gaussian. outputs = (mean, log_std), each of width `size`."""

    size: int

    @property
    def output_size(self) -> int:
        return 2 * self.size

    def noise(self, key: PRNGKeyArray, rows: tuple[int, ...]) -> Float[Array, "... A"]:
        return jax.random.normal(key, (*rows, self.size))

    def sample(self, outputs: Float[Array, "... D"], noise: Float[Array, "... A"]) -> Float[Array, "... A"]:
        mean, log_std = self._split(outputs)
        return mean + jnp.exp(log_std) * noise

    def mode(self, outputs: Float[Array, "... D"]) -> Float[Array, "... A"]:
        return self._split(outputs)[0]

    def embed(self, raw: Float[Array, "... A"]) -> Float[Array, "... A"]:
        return jnp.tanh(raw)

    def shown(self, outputs: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """The squashed mean, and log_std: means far beyond the bounds are one action, and must not look like others."""
        mean, log_std = self._split(outputs)
        return jnp.concatenate([jnp.tanh(mean), log_std], axis=-1)

    def log_prob(self, outputs: Float[Array, "... D"], raw: Float[Array, "... A"]) -> Float[Array, ...]:
        """log density of tanh(raw): Gaussian minus log(1 - tanh^2), written so that nothing overflows."""
        mean, log_std = self._split(outputs)
        gaussian = -0.5 * (((raw - mean) * jnp.exp(-log_std)) ** 2 + 2 * log_std + jnp.log(2 * jnp.pi))
        squash = 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))
        return (gaussian - squash).sum(-1)

    def kl(self, old: Float[Array, "... D"], new: Float[Array, "... D"]) -> Float[Array, ...]:
        """KL(old || new); squashing both does not change it."""
        (mean_0, log_std_0), (mean_1, log_std_1) = self._split(old), self._split(new)
        ratio = jnp.exp(2 * (log_std_0 - log_std_1))
        distance = ((mean_0 - mean_1) * jnp.exp(-log_std_1)) ** 2
        return 0.5 * (ratio + distance - 1 - jnp.log(ratio)).sum(-1)

    def entropy(self, outputs: Float[Array, "... D"], noise: Float[Array, "... A"]) -> Float[Array, ...]:
        return -self.log_prob(outputs, self.sample(outputs, noise))

    def fisher(self, outputs: Float[Array, "... D"], tangent: Float[Array, "... D"]) -> Float[Array, "... D"]:
        _, log_std = self._split(outputs)
        along_mean, along_log_std = jnp.split(tangent, 2, axis=-1)
        return jnp.concatenate([along_mean * jnp.exp(-2 * log_std), 2 * along_log_std], axis=-1)

    def output_gradients(
        self, outputs: Float[Array, "B D"], noise: Float[Array, "B A"], value_of: ValueOf, signals: int
    ) -> tuple[Float[Array, "S B"], Float[Array, "S B D"]]:
        """Pathwise: through the critic at a re-parameterised action. Every signal differentiates its own copy of it."""
        action, pull_back = jax.vjp(lambda outputs: self.embed(self.sample(outputs, noise)), outputs)
        values, along_action = jax.vjp(value_of, jnp.broadcast_to(action, (signals, *action.shape)))
        (gradients,) = along_action(jnp.ones_like(values))
        return values, jax.vmap(lambda gradient: pull_back(gradient)[0])(gradients)

    def expectation(
        self, outputs: Float[Array, "B D"], noise: Float[Array, "B A"], of: Callable[[Array], Array]
    ) -> Float[Array, ...]:
        return of(self.embed(self.sample(outputs, noise)))

    def _split(self, outputs: Float[Array, "... D"]) -> tuple[Float[Array, "... A"], Float[Array, "... A"]]:
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        return mean, jnp.clip(log_std, *LOG_STD_RANGE)


@dataclass(frozen=True)
class DiscreteActions:
    """One of `size` actions: categorical with logits `outputs`. Expectations over actions are exact."""

    size: int

    @property
    def output_size(self) -> int:
        return self.size

    def noise(self, key: PRNGKeyArray, rows: tuple[int, ...]) -> Float[Array, "... A"]:
        return jax.random.gumbel(key, (*rows, self.size))

    def sample(self, outputs: Float[Array, "... D"], noise: Float[Array, "... A"]) -> Float[Array, "... A"]:
        return self.mode(outputs + noise)

    def mode(self, outputs: Float[Array, "... D"]) -> Float[Array, "... A"]:
        return jax.nn.one_hot(jnp.argmax(outputs, axis=-1), self.size, dtype=outputs.dtype)

    def embed(self, raw: Float[Array, "... A"]) -> Float[Array, "... A"]:
        return raw

    def shown(self, outputs: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """The logits as they are."""
        return outputs

    def log_prob(self, outputs: Float[Array, "... D"], raw: Float[Array, "... A"]) -> Float[Array, ...]:
        return (jax.nn.log_softmax(outputs) * raw).sum(-1)

    def kl(self, old: Float[Array, "... D"], new: Float[Array, "... D"]) -> Float[Array, ...]:
        log_old, log_new = jax.nn.log_softmax(old), jax.nn.log_softmax(new)
        return (jnp.exp(log_old) * (log_old - log_new)).sum(-1)

    def entropy(self, outputs: Float[Array, "... D"], noise: Float[Array, "... A"]) -> Float[Array, ...]:
        log_probs = jax.nn.log_softmax(outputs)
        return -(jnp.exp(log_probs) * log_probs).sum(-1)

    def fisher(self, outputs: Float[Array, "... D"], tangent: Float[Array, "... D"]) -> Float[Array, "... D"]:
        probs = jax.nn.softmax(outputs)
        return probs * (tangent - (probs * tangent).sum(-1, keepdims=True))

    def output_gradients(
        self, outputs: Float[Array, "B D"], noise: Float[Array, "B A"], value_of: ValueOf, signals: int
    ) -> tuple[Float[Array, "S B"], Float[Array, "S B D"]]:
        """d/d logits of sum_a pi(a) v(a) = pi (v - sum_a pi(a) v(a)), exactly."""

        def of(action: Array) -> Array:
            return value_of(jnp.broadcast_to(action, (signals, *action.shape)))

        values = jnp.moveaxis(self._for_every_action(outputs, of), 0, -1)
        probs = jax.nn.softmax(outputs)
        expected = (probs * values).sum(-1)
        return expected, probs * (values - expected[..., None])

    def expectation(
        self, outputs: Float[Array, "B D"], noise: Float[Array, "B A"], of: Callable[[Array], Array]
    ) -> Float[Array, ...]:
        values = jnp.moveaxis(self._for_every_action(outputs, of), 0, -1)
        return (jax.nn.softmax(outputs) * values).sum(-1)

    def _for_every_action(self, outputs: Float[Array, "B D"], of: Callable[[Array], Array]) -> Array:
        rows = outputs.shape[:-1]
        actions = jnp.broadcast_to(
            jnp.eye(self.size, dtype=outputs.dtype)[:, *(None,) * len(rows), :], (self.size, *rows, self.size)
        )
        return jax.vmap(of)(actions)
