"""Spectral constraints as arrays, and their sub-risk: what a learner needs of a risk measure.            Sections 5, 6

One run has C constraints, each a step spectrum (eta, alpha) and a limit d on the discounted cost sum. Everything here
is a leaf of a pytree, so runs with other measures or limits train side by side under `vmap`, as long as they have the
same number of levels M; `stack_constraints` pads shorter spectra with levels that do not rise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from tailsafe.learning.limit_range import LimitRange
from tailsafe.risk import dual
from tailsafe.risk.step import StepSpectrum


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Constraints:
    """The constraints of a run.

    eta (C, M): levels. alpha (C, M-1): break points. limit (C,): d_i, on the discounted sum; of a range the lowest.
    largest_return (C,): the largest discounted cost sum there can be, C_max / (1 - gamma); no beta above it is of use.
    range: of limits, None for one limit each.

    `delta` below stands for what networks are conditioned on: increments of all dual variables in [0, 1], all
    constraints side by side, and with a range behind them the position of the limit (see `limit_range`).
    """

    eta: Float[Array, "C M"]
    alpha: Float[Array, "C M-1"]
    limit: Float[Array, " C"]
    largest_return: Float[Array, " C"]
    range: LimitRange | None = None

    @property
    def num_betas(self) -> int:
        """How many dual variables there are in all: C (M - 1)."""
        return self.alpha.shape[-1] * self.alpha.shape[-2]

    @property
    def delta_width(self) -> int:
        """Entries of `delta`."""
        return self.num_betas + (self.range is not None)

    @property
    def num_inputs(self) -> int:
        """How many numbers networks see of `delta`."""
        return self.num_betas + (0 if self.range is None else self.range.regions)

    def shown(self, delta: Float[Array, "... n"]) -> Float[Array, "... i"]:
        """What networks see of `delta`: the increments and, of a position, how much it belongs to each region."""
        if self.range is None:
            return delta
        return jnp.concatenate([delta[..., :-1], self.range.memberships(delta[..., -1])], axis=-1)

    def limits(self, delta: Float[Array, "... n"]) -> Float[Array, "... C"]:
        """The limits in force; (C,) where there is one for all."""
        return self.limit if self.range is None else self.limit * self.range.factors(delta[..., -1])

    def knot_limits(self) -> Float[Array, "R C"]:
        """Of a range: the limits at its knots."""
        assert self.range is not None
        return self.limit * self.range.factors(self.range.knots)

    def with_limit(self, limit: Float[Array, " C"]) -> Constraints:
        """The same constraints with this one limit each."""
        return replace(self, limit=limit, range=None)

    def beta(self, delta: Float[Array, "... n"]) -> Float[Array, "C ... M-1"]:
        """Dual variables by stick-breaking from increments.

        beta[k] = beta[k-1] + delta[k] (bound[k] - beta[k-1]): ordered, inside the bounds that every feasible beta
        obeys, and able to reach all of them. With one break point (CVaR) it is beta = delta d.
        """
        bounds = jax.vmap(dual.beta_bounds)(self.eta, self.alpha, self.limit)
        if self.range is not None:  # bounds are proportional to limits
            factors = jnp.moveaxis(self.range.factors(delta[..., -1]), -1, 0)
            delta = delta[..., :-1]
            bounds = bounds.reshape(bounds.shape[0], *(1,) * (delta.ndim - 1), bounds.shape[1]) * factors[..., None]
            bounds = jnp.minimum(bounds, self.largest_return.reshape(-1, *(1,) * delta.ndim))
        else:
            bounds = jnp.minimum(bounds, self.largest_return[:, None])
            bounds = bounds.reshape(bounds.shape[0], *(1,) * (delta.ndim - 1), bounds.shape[1])
        delta = jnp.moveaxis(delta.reshape(*delta.shape[:-1], *self.alpha.shape), -2, 0)
        bounds = jnp.broadcast_to(bounds, delta.shape)
        betas: list[Array] = []
        for k in range(delta.shape[-1]):
            previous = betas[-1] if betas else jnp.zeros_like(delta[..., 0])
            # Rounding must not push a later bound below an earlier beta.
            betas.append(previous + delta[..., k] * jnp.maximum(bounds[..., k] - previous, 0.0))
        return jnp.stack(betas, axis=-1)

    def increments(self, beta: Float[Array, "C M-1"], share: Float[Array, " C"] | float = 1.0) -> Float[Array, " n"]:
        """The increments of these dual variables, cut at `share` of their bounds: the inverse of `beta`."""
        bounds = jax.vmap(dual.beta_bounds)(self.eta, self.alpha, self.limit)
        bounds = jnp.minimum(bounds, self.largest_return[:, None])
        previous, found = jnp.zeros_like(beta[:, 0]), []
        for k in range(beta.shape[-1]):
            kept = jnp.clip(beta[:, k], previous, jnp.maximum(share * bounds[:, k], previous))
            room = bounds[:, k] - previous
            found.append(jnp.where(room > 0, (kept - previous) / jnp.where(room > 0, room, 1.0), 0.0))
            previous = kept
        return jnp.stack(found, axis=-1).reshape(-1)

    @property
    def tail(self) -> Float[Array, " C"]:
        """1 - level of constraints on CVaR (1 for the mean): the inverse of the highest level of the spectrum."""
        return 1 / self.eta[:, -1]

    @property
    def deviations(self) -> Float[Array, " C"]:
        """k with risk(X) = mean + k std for Gaussian X: int sigma(u) Phi^-1(u) du = sum_k jump_k phi(Phi^-1(alpha_k)).

        1.2711 for CVaR_0.75.
        """
        return (jnp.diff(self.eta) * norm.pdf(ndtri(self.alpha))).sum(-1)

    def state_wise(self, atoms: Float[Array, "C ... K"]) -> Float[Array, "C ..."]:
        """The risk of every set of K equally likely atoms by itself, beta at its own quantiles (not differentiated).

        beta[k] is atom number floor(alpha_k K) of the sorted ones, counted from 0.
        """
        count = atoms.shape[-1]
        place = jnp.minimum(jnp.floor(self.alpha * count).astype(int), count - 1)
        ordered = jax.lax.stop_gradient(jnp.sort(atoms, axis=-1))
        beta = jax.vmap(lambda row, place: row[..., place])(ordered, place)
        return self.g(atoms, beta).mean(-1) + self.conjugate_integral(beta)

    def conjugate_integral(self, beta: Float[Array, "C ... M-1"]) -> Float[Array, "C ..."]:
        """I_i(beta_i), see `risk.dual.conjugate_integral`."""
        integral: Array = jax.vmap(dual.conjugate_integral)(beta, self.eta, self.alpha)
        return integral

    def g(self, total: Float[Array, "C ... K"], beta: Float[Array, "C ... M-1"]) -> Float[Array, "C ... K"]:
        """g_beta of K atoms of each discounted cost sum."""

        def of_one(total: Array, beta: Array, eta: Array) -> Any:
            return dual.g_beta(total, beta[..., None, :], eta)

        value: Array = jax.vmap(of_one)(total, beta, self.eta)
        return value

    def budget(
        self, beta: Float[Array, "C ... M-1"], cost_so_far: Float[Array, "... C"], discount: Float[Array, " ..."]
    ) -> Float[Array, "C ... M-1"]:
        """What is left of beta at an augmented state, in costs counted from there: (beta - D)_+ / b.

        By positive homogeneity g_beta(D + b Z) / b equals g_budget(Z) up to a constant that no action can change, for
        Z >= 0 (above a budget that is used up every atom counts with its full slope either way). In this form nothing
        large is subtracted from anything large, however small b has become.
        """
        left = jnp.maximum(beta - jnp.moveaxis(cost_so_far, -1, 0)[..., None], 0.0) / discount[..., None]
        # Beyond the largest return a budget cannot be reached; the cap only keeps it finite.
        return jnp.minimum(left, 2 * self.largest_return.reshape(-1, *(1,) * (left.ndim - 1)))


def stack_constraints(
    spectra: Sequence[StepSpectrum],
    limits: Sequence[float],
    largest_return: Sequence[float],
    least_cells: int = 2,
    highest: Sequence[float] | None = None,
    regions: int = 0,
) -> Constraints:
    """The arrays of constraints with these spectra and limits (on the discounted sums).

    least_cells: how many levels they have at least. Two: a policy always has a dual variable to be conditioned on.
    highest: where limits are ranges that begin at `limits`, where they end. regions: of such a range.
    """
    cells = max(least_cells, *(spectrum.cells for spectrum in spectra))

    def padded(spectrum: StepSpectrum) -> tuple[np.ndarray, np.ndarray]:
        missing = cells - spectrum.cells
        eta = np.pad(spectrum.eta, (0, missing), mode="edge")
        return eta, np.pad(spectrum.alpha, (0, missing), constant_values=1.0)

    eta, alpha = zip(*map(padded, spectra), strict=True)
    return Constraints(
        eta=jnp.asarray(np.stack(eta), float),
        alpha=jnp.asarray(np.stack(alpha), float),
        limit=jnp.asarray(limits, float),
        largest_return=jnp.asarray(largest_return, float),
        range=None if highest is None else LimitRange.create(_spread(limits, highest), regions),
    )


def _spread(lowest: Sequence[float], highest: Sequence[float]) -> Float[Array, " C"]:
    """log(highest / lowest), 0 for a single limit (which may be zero)."""
    pairs = zip(lowest, highest, strict=True)
    return jnp.asarray([0.0 if high == low else math.log(high / low) for low, high in pairs], float)
