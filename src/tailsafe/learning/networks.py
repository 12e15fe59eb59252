"""Networks as equinox modules: stacks of linear layers, any number of them side by side.

A `Stack` with leading axes (S, E) is S x E independent networks in one array program: a critic for every signal and
ensemble member, trained together in a few large matrix products.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from tailsafe.learning.actions import Actions

Initialization = Literal["small", "lecun"]
SLOPE = 0.01
# The paper's: every weight and bias from N(0, 0.01^2).
_SMALL = 0.01


class Stack(eqx.Module):
    """Linear layers with LeakyReLU between them. weights[l]: (*lead, in, out); biases[l]: (*lead, out)."""

    weights: tuple[Float[Array, "*S i o"], ...]
    biases: tuple[Float[Array, "*S o"], ...]

    def __init__(
        self,
        key: PRNGKeyArray,
        sizes: Sequence[int],
        initialization: Initialization,
        lead: tuple[int, ...] = (),
        head_scale: float = 1.0,
    ) -> None:
        weights, biases = [], []
        for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
            for_weight, for_bias = jax.random.split(jax.random.fold_in(key, layer))
            if initialization == "small":
                weights.append(_SMALL * jax.random.normal(for_weight, (*lead, inputs, outputs)))
                biases.append(_SMALL * jax.random.normal(for_bias, (*lead, outputs)))
            else:
                last = layer == len(sizes) - 2
                scale = (head_scale if last else 2**0.5) / inputs**0.5
                weights.append(scale * jax.random.normal(for_weight, (*lead, inputs, outputs)))
                biases.append(jnp.zeros((*lead, outputs)))
        self.weights, self.biases = tuple(weights), tuple(biases)

    def __call__(self, x: Float[Array, "*X B i"], dtype: DTypeLike | None = None) -> Float[Array, "*S B o"]:
        """x broadcasts against the leading axes. dtype: what products and hidden layers are computed in, if not x's."""
        given = jnp.result_type(x, self.weights[0])
        x = x.astype(dtype or given)
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if layer:
                x = jnp.maximum(x, SLOPE * x)  # LeakyReLU; as a maximum it is one pass, forward and backward
            wide = given if layer == len(self.weights) - 1 else x.dtype  # the outputs are not rounded
            x = jnp.matmul(x, weight.astype(x.dtype), preferred_element_type=wide) + bias[..., None, :].astype(wide)
        return x


class Policy(eqx.Module):
    """pi(a | s; beta): outputs of the action distribution from (normalised observation, increments of beta)."""

    body: Stack
    fixed_log_std: float | None = eqx.field(static=True)

    def __init__(
        self,
        key: PRNGKeyArray,
        inputs: int,
        actions: Actions,
        hidden: Sequence[int],
        initialization: Initialization,
        fixed_log_std: float | None = None,
        initial_log_std: float = 0.0,
    ) -> None:
        outputs = actions.output_size if fixed_log_std is None else actions.size
        body = Stack(key, (inputs, *hidden, outputs), initialization, head_scale=0.01)
        if initial_log_std and outputs > actions.size:  # means and log standard deviations
            shifted = body.biases[-1].at[actions.size :].add(initial_log_std)
            body = eqx.tree_at(lambda stack: stack.biases[-1], body, shifted)
        self.body = body
        self.fixed_log_std = fixed_log_std

    def __call__(self, features: Float[Array, "... i"]) -> Float[Array, "... D"]:
        outputs = self.body(features)
        if self.fixed_log_std is not None:
            outputs = jnp.concatenate([outputs, jnp.full_like(outputs, self.fixed_log_std)], axis=-1)
        return outputs


class Critics(eqx.Module):
    """Quantile critics Z(s, a; beta) of the reward and of every cost: S = 1 + C signals, E networks each.

    Signal 0 is the reward. Cost quantiles are softplus of the network's output, cut at the largest possible return.
    """

    body: Stack

    def __init__(
        self,
        key: PRNGKeyArray,
        inputs: int,
        signals: int,
        ensemble: int,
        quantiles: int,
        hidden: Sequence[int],
        initialization: Initialization,
    ) -> None:
        self.body = Stack(key, (inputs, *hidden, quantiles), initialization, (signals, ensemble), head_scale=0.1)

    @property
    def signals(self) -> int:
        """S: the reward and the costs."""
        return self.body.weights[0].shape[0]

    @property
    def atoms(self) -> int:
        """K: the quantiles of all networks of a signal."""
        return self.body.weights[0].shape[1] * self.body.weights[-1].shape[-1]

    def __call__(
        self, features: Float[Array, "... B i"], largest_return: Float[Array, " C"], dtype: DTypeLike | None = None
    ) -> Float[Array, "S E B L"]:
        """features: (B, i) seen by all networks, or (S, B, i) per signal. dtype: see `Stack`."""
        if features.ndim == 3:
            features = features[:, None]
        quantiles = self.body(features, dtype)
        cap = largest_return[:, None, None, None]
        costs = jnp.minimum(jax.nn.softplus(quantiles[1:]), cap)
        return jnp.concatenate([quantiles[:1], costs])


def pooled(quantiles: Float[Array, "S E B L"]) -> Float[Array, "S B K"]:
    """The ensemble's quantiles as one set of K = E L atoms per state, unsorted: a plain mixture, no minimum."""
    signals, _, rows, _ = quantiles.shape
    return jnp.swapaxes(quantiles, 1, 2).reshape(signals, rows, -1)
