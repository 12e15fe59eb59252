"""At the end of a run for a range of limits: which place of the range answers which request, by fresh episodes.

Regions learn to keep the limits at their knots; what the policy risks between them, and where the front has a jump, is
known only by playing. Episodes of finite problems cost next to nothing, so that every place of a fine grid is played.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tailsafe.envs.finite import FiniteEnvironments
from tailsafe.policies.acting import LoadedPolicy
from tailsafe.policies.answers import Answers, answers_from
from tailsafe.policies.policy import load_policy, save_policy
from tailsafe.risk import StepSpectrum
from tailsafe.tabular.problem import FiniteCMDP
from tailsafe.training.plan import Plan
from tailsafe.training.settled import FinitePlay

PLACES = 129
# Standard errors that a place's risks must stay under a limit to answer for it.
_CAUTION = 2.0
# Neighbours on each side that a place's risks are averaged with.
_AROUND = 2
# Episodes that are played side by side, at most.
_ROWS = 65_536
# None that training, validation or evaluation use.
_FIRST_SEED, _APART = 600_000_011, 100_003


def settle_requests(folder: Path, plan: Plan, seed: int) -> None:
    """Let the policy of a run answer requests as fresh episodes say, if its setting `request_episodes` wants any."""
    episodes = int(plan.values["request_episodes"])
    if plan.lowest_limits is None or plan.problem is None or not episodes:
        return
    policy = load_policy(folder)
    answers = found_answers(policy, episodes, (_FIRST_SEED + _APART * seed) % 2**31)
    described = replace(policy.description, answers=answers)
    save_policy(folder, policy.network, policy.normalizer, policy.modes, described)


def found_answers(policy: LoadedPolicy, episodes: int, seed: int) -> Answers:
    """What `episodes` fresh episodes of its finite problem at each place of a grid say about a policy's requests."""
    description = policy.description
    assert description.task.problem is not None
    places = np.linspace(0.0, 1.0, PLACES)
    side_by_side = min(episodes, _ROWS // PLACES)
    problem = FiniteCMDP.from_dict(description.task.problem)
    environments = FiniteEnvironments(problem, PLACES * side_by_side)
    limits = np.array([description.trained_at(place) for place in places])
    play = FinitePlay(environments)
    rows = policy.asked_by_rows(np.repeat(limits, side_by_side, axis=0))
    played = [play.play([rows], [seed + i])[0] for i in range(math.ceil(episodes / side_by_side))]
    rewards = np.concatenate([_by_place(each.reward) for each in played], axis=1)
    costs = np.concatenate([_by_place(each.costs) for each in played], axis=1)
    risks = _cautious_risks([constraint.steps for constraint in description.constraints], costs)
    return answers_from(places, rewards.mean(axis=1), risks, description.arrays())


def _by_place(leaf: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows (P * E, ...) as (P, E, ...)."""
    return leaf.reshape(PLACES, -1, *leaf.shape[1:])


def _cautious_risks(
    spectra: Sequence[StepSpectrum], costs: Float[NDArray[np.float64], "P E C"]
) -> Float[NDArray[np.float64], "P C"]:
    """What the risks of the discounted sums are taken for at every place: `_CAUTION` standard errors above an estimate.

    A risk is the mean of g_beta at the best beta, up to a constant (Thm. 6.2). Of many places some look safer than they
    are. What a policy risks is continuous in the place, so that its neighbours know better: the larger counts of the
    place's own estimate and the mean around it.
    """
    found, errors = np.zeros((2, len(costs), costs.shape[-1]))
    for i, spectrum in enumerate(spectra):
        for place, samples in enumerate(costs[..., i]):
            values = spectrum.g_beta(samples, spectrum.optimal_beta(samples))
            errors[place, i] = float(np.std(values)) / math.sqrt(len(samples))
            found[place, i] = float(spectrum.risk(samples))
    around = sliding_window_view(np.pad(found, ((_AROUND, _AROUND), (0, 0)), mode="edge"), 2 * _AROUND + 1, axis=0)
    cautious: NDArray[np.float64] = np.maximum(found, around.mean(axis=-1)) + _CAUTION * errors
    return cautious
