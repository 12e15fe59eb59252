"""SDAC: risks as those of Gaussians, mean + k std of the critics' atoms, and steps with a recovery mode.

k is 1.2711 for CVaR_0.75; every spectrum has one. Where costs are far from Gaussian (rare and large) the risk is not
what it says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from tailsafe.algorithms.learner import Metrics
from tailsafe.algorithms.primal import Direction, PrimalLearner, Worth
from tailsafe.algorithms.registry import Algorithm
from tailsafe.algorithms.state import PrimalConfig, PrimalSettings, PrimalState
from tailsafe.fields import setting
from tailsafe.learning.batches import Rows, rows_of
from tailsafe.learning.chunks import Chunk
from tailsafe.learning.trust_region import Step, step_of
from tailsafe.optimization.strategies import sdac_step

# A standard deviation counts as at least this share of the largest return: its gradient at zero has no meaning.
_LEAST_DEVIATION = 1e-4
# Of the line search: shrinking factor, tries, and how much of the KL bound a step may take.
_DECAY, _TRIES, _KL_SHARE = 0.8, 10, 1.5


@dataclass(frozen=True)
class SdacConfig(PrimalConfig):
    """Of SDAC. By default one direction from all rows of the batch."""

    critic_clip: float = 1.0
    join_chunks: bool = True
    # Without the factor, predicted changes are that much too small.
    surrogate: Literal["theory", "release"] = setting(
        "theory",
        "theory: surrogates have the factor 1 / (1 - gamma); release: they do not.",
        part="policy",
    )
    line_search: bool = setting(
        False,
        "Shorten a step until its KL divergence fits, satisfied constraints stay so and reward is kept.",
        part="policy",
    )


class Sdac(PrimalLearner[SdacConfig]):
    """Critics Z(s, a) without beta; constraints on mean + k std."""

    def init(self, key: PRNGKeyArray, settings: PrimalSettings) -> PrimalState:
        return PrimalState(**self._primal_beginning(key, settings))

    def _gradient_scale(self, settings: PrimalSettings) -> Float[Array, ""]:
        return settings.horizon if self.config.surrogate == "theory" else jnp.ones(())

    # --- Gaussian risks -----------------------------------------------------------------------------------------------

    def _moments(
        self, state: PrimalState, settings: PrimalSettings, rows: Rows, *, shifted: bool, key: PRNGKeyArray
    ) -> tuple[Array, Array, Array]:
        """E[Z_R] (), and mean and standard deviation (C,) of all cost atoms pooled over states (B rows) and actions.

        shifted: of D + b Z, early states counting most; else of Z, all alike.
        """
        features = self._features(state, settings, rows)
        outputs = state.policy(features)

        def of(actions: Float[Array, "B A"]) -> Float[Array, "1+2C B"]:
            atoms = self._atoms(state, settings, jnp.concatenate([features, actions], axis=-1))
            costs = atoms[1:]
            if shifted:
                costs = jnp.moveaxis(rows.cost_so_far, -1, 0)[..., None] + rows.discount[:, None] * costs
            return jnp.concatenate([atoms[:1].mean(-1), costs.mean(-1), (costs**2).mean(-1)])

        values = self.actions.expectation(outputs, self.actions.noise(key, outputs.shape[:-1]), of)
        weights = rows.discount if shifted else jnp.ones_like(rows.discount)
        # Not a matrix product, which may be of lower precision: the deviation is a difference of large numbers.
        pooled = (values * (weights / weights.sum())).sum(-1)
        mean, square = jnp.split(pooled[1:], 2)
        count = rows.discount.size * self.config.ensemble * self.config.quantiles
        return pooled[0], mean, jnp.sqrt(jnp.maximum(square - mean**2, 0.0) * count / (count - 1))

    def _worth(self, state: PrimalState, settings: PrimalSettings, rows: Rows, key: PRNGKeyArray) -> Worth:
        """mean + k std to first order around the current policy: linear in the law, T + k (T^2 - 2 mean T) / (2 std).

        With T = D + b Z only Z + k (2 D Z + b Z^2 - 2 mean Z) / (2 std) depends on the action, divided by b.
        """
        constraints, shifted = settings.constraints, self.config.estimator != "visited"
        flat = jax.tree.map(lambda leaf: leaf.reshape(rows.discount.size, *leaf.shape[rows.discount.ndim :]), rows)
        _, mean, deviation = self._moments(state, settings, flat, shifted=shifted, key=key)
        deviation = jnp.maximum(deviation, _LEAST_DEVIATION * constraints.largest_return)
        so_far, discount = (
            (jnp.moveaxis(rows.cost_so_far, -1, 0), rows.discount)
            if shifted
            else (jnp.zeros((self.num_costs, *rows.discount.shape)), jnp.ones_like(rows.discount))
        )
        lead = (-1, *(1,) * (rows.discount.ndim + 1))
        slope = (constraints.deviations / (2 * deviation)).reshape(lead)
        centre = mean.reshape(lead)

        def worth(atoms: Float[Array, "S ... K"]) -> Float[Array, "S ..."]:
            costs = atoms[1:]
            spread = 2 * (so_far[..., None] - centre) * costs + discount[..., None] * costs**2
            return jnp.concatenate([atoms[:1].mean(-1), (costs + slope * spread).mean(-1)])

        return worth

    def _critic_values(
        self,
        state: PrimalState,
        settings: PrimalSettings,
        unit: Chunk,
        initial_observation: Float[Array, "N O"],
        estimator: str,
        key: PRNGKeyArray,
    ) -> Float[Array, " 1+C"]:
        rows = self._estimated_rows(unit, initial_observation, estimator)
        reward, mean, deviation = self._moments(state, settings, rows, shifted=estimator != "visited", key=key)
        return jnp.concatenate([reward[None], mean + settings.constraints.deviations * deviation])

    def _finished(self, settings: PrimalSettings, unit: Chunk) -> tuple[Float[Array, " C"], Float[Array, ""]]:
        total = jnp.moveaxis(unit.cost_so_far + unit.discount[:, None] * unit.costs, -1, 0)
        ended = unit.done.astype(total.dtype)
        count = ended.sum()
        weights = ended / jnp.maximum(count, 1.0)
        mean = total @ weights
        deviation = jnp.sqrt(jnp.maximum((total - mean[:, None]) ** 2 @ weights, 0.0))
        return mean + settings.constraints.deviations * deviation, count

    def sampled_risks(self, state: PrimalState, settings: PrimalSettings, total: Float[Array, "C n"]) -> Array:
        return total.mean(-1) + settings.constraints.deviations * total.std(-1)

    # --- steps --------------------------------------------------------------------------------------------------------

    def _combined(
        self, state: PrimalState, settings: PrimalSettings, solved: Array, gram: Array, excess: Array, radius: Array
    ) -> Step:
        coefficients, _ = sdac_step(gram, excess, radius, settings.target.min())
        return step_of(solved, gram, coefficients)

    def _searched(
        self,
        state: PrimalState,
        settings: PrimalSettings,
        units: Chunk,
        step: Float[Array, " P"],
        steps: Direction,
        keys: PRNGKeyArray,
    ) -> tuple[Float[Array, " P"], Metrics]:
        """Shrink the step until the KL is within bounds, no satisfied constraint is broken, and the reward not worse.

        While a constraint is violated the reward may get worse. After the last try the policy stays as it is.
        """
        if not self.config.line_search:
            return step, {}
        parameters, unravel = ravel_pytree(state.policy)
        estimator = "visited" if self.config.estimator == "visited" else "shifted"
        features = self._features(state, settings, rows_of(units))
        old_outputs = state.policy(features)
        bound = _KL_SHARE * settings.radius(state.updates) ** 2 / 2
        scale = self._gradient_scale(settings)

        def values_of(candidate: PrimalState) -> Float[Array, " 1+C"]:
            value = partial(self._critic_values, candidate, settings, estimator=estimator)
            return jax.vmap(lambda unit, key: value(unit, unit.observation, key=key))(units, keys).mean(0)

        before, excess = values_of(state), steps.excess.max(0)

        def acceptable(factor: Float[Array, ""]) -> Array:
            policy = unravel(parameters + factor * step)
            change = scale * (values_of(replace(state, policy=policy)) - before)
            kl = self.actions.kl(old_outputs, policy(features)).mean()
            worse = (change[0] < 0) & jnp.all(excess <= 0)
            return (kl <= bound) & ~worse & jnp.all(change[1:] <= jnp.maximum(-excess, 0.0))

        def shrink(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            tries, factor, _ = carry
            factor = _DECAY * factor
            return tries + 1, factor, acceptable(factor)

        one = jnp.ones(())
        _, factor, good = jax.lax.while_loop(
            lambda carry: ~carry[2] & (carry[0] < _TRIES), shrink, (jnp.int32(0), one, acceptable(one))
        )
        kept = jnp.where(good, factor, 0.0)
        taken = self.actions.kl(old_outputs, unravel(parameters + kept * step)(features)).mean()
        return kept * step, {"step_share": kept, "kl": taken}


ALGORITHM = Algorithm(Sdac, SdacConfig, PrimalSettings)
