"""What every setting of a run means, what it may be, and what the presets make of it.

`tailsafe settings` and the settings page of the documentation print this. A test holds the meanings against the keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tailsafe.errors import InputError
from tailsafe.runs.config import check_algorithm, plain
from tailsafe.runs.keys import FAMILIES, PRESETS, allowed, key_types, resolved_values

MEANINGS: dict[str, str] = {
    # The run.
    "total_steps": "Control steps over all environments.",
    "checkpoint_every": "Steps between two checkpoints; none: a twentieth of total_steps.",
    "log_every": "Updates between two rows of the log.",
    "cells": "Levels of the step spectra that stand for Pow, Wang and own spectra; CVaR and the mean need no choice.",
    "least_cells": "Spectra with fewer levels are filled up to so many: runs with other measures then fit one program.",
    "problem": "Of the task finite: its problem, a JSON file.",
    "largest_cost": "The most a step can cost, for environments that do not say.",
    "cut_halted": "Training episodes of robots that fell and would lie still end there; evaluation never cuts.",
    # Sizes: what one update sees.
    "num_envs": "Environments that are stepped together.",
    "chunk_steps": "Steps of every environment between two updates: a chunk.",
    "replay_chunks": "How many of the last chunks are kept.",
    "batch_chunks": "Chunks that an update learns from: the newest, and older ones at random.",
    "policy_chunks": "Chunks of the batch that directions of the policy are computed from.",
    "groups": "Groups of environments, with a direction each, which are averaged; divides num_envs.",
    "join_chunks": "One direction from all policy_chunks together instead of one for each.",
    "minibatch": "Transitions of one gradient step.",
    "window": "How many finished episodes the log remembers.",
    # Networks.
    "policy_hidden": "Hidden layers of the policy.",
    "critic_hidden": "Hidden layers of every critic.",
    "initialization": "First weights: normal with deviation 0.01, or scaled by the number of a layer's inputs.",
    "fixed_log_std": "Logarithm of the standard deviation of box actions before squashing; none: it is learned.",
    "initial_log_std": "Where a learned one begins.",
    "ensemble": "Networks per critic, whose atoms are pooled.",
    "quantiles": "Atoms of one critic's law of returns.",
    "target_quantiles": "Atoms of the TD(lambda) targets.",
    "augmented": "Policy and critics also see the discounted cost so far and the discount.",
    "normalize": "Observations by running mean and variance.",
    "clip_observation": "Normalised observations are cut at this many deviations.",
    "precision": "Of matrix products; with bf16 the critics' regression is in bfloat16 and all else in tf32.",
    # Critics.
    "gamma": "Discount; of a finite problem its own.",
    "trace": "lambda of TD(lambda).",
    "critic_rate": "Learning rate of the critics (Adam).",
    "critic_iterations": "Gradient steps of the critics per update.",
    "critic_minibatches": "Parts of the batch, one of which each of these steps takes.",
    "critic_clip": "Largest norm of a critic's gradient.",
    "projection": "How mixtures of laws become atoms: means over cells of equal mass, or interpolated quantiles.",
    "polyak": "Share of the new critics in their slow copies, per step.",
    # The policy's steps.
    "max_kl": "Bound on the KL divergence of an update.",
    "kl_decay": "Updates after which radius and critic_rate begin to fall, as (1 + updates / kl_decay)^-0.6.",
    "kl_cap": "The step is shortened where its KL divergence exceeds this many times the bound.",
    "conjugate_gradient_iterations": "For the product of inverse Fisher matrix and gradient.",
    "damping": "Added to the diagonal of the Fisher matrix.",
    "gradient": "Of reward and risks: through the critics at re-parameterised actions (pathwise), or advantages times "
    "scores (score).",
    "state_weighting": "States count alike, or by gamma^t.",
    "policy_rate": "Learning rate of the policy (Adam); cppo, cvar_cpo and sdpo adapt it to the KL divergence.",
    "policy_iterations": "Gradient steps of the policy per update, at most.",
    "policy_clip": "Largest norm of the policy's gradient.",
    "ratio_clip": "PPO's: how far pi / pi_old counts, around 1.",
    "kl_stop": "Steps of an update end where the KL divergence exceeds this many times its bound.",
    "entropy_weight": "Of the policy's entropy in the objective.",
    "entropy_target": "The entropy that the temperature keeps; none: minus the number of actions, or 3 % of the "
    "largest for discrete ones.",
    "temperature_rate": "Learning rate of the temperature.",
    "line_search": "Shorten a step until its KL divergence fits, satisfied constraints stay so and reward is kept.",
    "surrogate": "theory: surrogates have the factor 1 / (1 - gamma); release: they do not.",
    # Constraints.
    "margin": "Share of every limit that is kept free, because estimates lag and err.",
    "estimator": "How the risks are estimated: by the critics at all visited states as if initial (visited), at "
    "initial ones (initial), at visited ones together with the cost so far (shifted), or by those episodes that ended "
    "(episodes).",
    "calibration": "Weight of the newest finished episodes in the correction of the critics' risks; 0: none.",
    "strategy": "The weights of reward and costs, by the names of the algorithms they come from.",
    "violated": "Of strategy proposed: the paper's program, the release's, or steps that keep the reward in view "
    "(joint) or end at the constraint (linear).",
    "recovery_share": "Of rule joint: the share of the trust region that violated constraints get first.",
    "joint_updates": "Of rule joint: updates after which the reward's part falls as 1 / t.",
    "max_weight": "Largest weight of a cost, in units of the radius.",
    "ipo_kappa": "Of strategy ipo: weight of the barrier.",
    "p3o_kappa": "Of strategy p3o: weight of the violated costs.",
    "multiplier_rate": "Learning rate of the multipliers.",
    "largest_multiplier": "Where multipliers are cut.",
    "beta_rate": "Learning rate of the auxiliary variable of CVaR.",
    "barrier": "The log barrier counts with 1 / barrier.",
    # The sampler of dual variables.
    "beta_per": "A new beta for every episode of an environment, or for every chunk of a group.",
    "sampler_gradient": "How the sampler learns: through the critics' beta input (pathwise), by score functions "
    "(natural), or towards the quantiles of the current policy's costs (explicit).",
    "sampler_rate": "Learning rate of the sampler (Adam).",
    "sampler_deviation": "How widely betas are drawn around the mode; a range of 1 is all that can matter.",
    "uniform_share": "Share of betas drawn uniformly.",
    "penalty": "K: what a violation counts in the sampler's objective.",
}


@dataclass(frozen=True)
class Setting:
    """One setting of an algorithm. defaults: by preset."""

    key: str
    allowed: str
    defaults: dict[str, Any]
    meaning: str

    def to_json(self) -> dict[str, Any]:
        """Plain values; infinity is "inf"."""
        defaults = {preset: plain(value) for preset, value in self.defaults.items()}
        return {"key": self.key, "allowed": self.allowed, "defaults": defaults, "meaning": self.meaning}


def describe_settings(algorithm: str = "srcpo", family: str = "navigation") -> list[Setting]:
    """Every setting of an algorithm in the order of `MEANINGS`, with its defaults for a family of tasks."""
    check_algorithm(algorithm)
    if family not in FAMILIES:
        raise InputError(f"unknown family {family!r}; there are: {', '.join(FAMILIES)}")
    values = {preset: resolved_values(preset, family, {}, algorithm) for preset in PRESETS}
    known = key_types(algorithm)
    return [
        Setting(key, allowed(key, algorithm), {preset: of[key] for preset, of in values.items()}, meaning)
        for key, meaning in MEANINGS.items()
        if key in known
    ]


def written(value: Any) -> str:
    """A value as `--set KEY=VALUE` takes it."""
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    if isinstance(value, bool | None):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:_}" if isinstance(value, int) and value >= 10_000 else str(value)
