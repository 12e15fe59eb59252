"""What a certificate may be about: the limits that a policy can be asked for, late checkpoints, and their episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from tailsafe.evaluation.environments import Stage
from tailsafe.evaluation.episodes import Episodes, play
from tailsafe.evaluation.late import late_policies
from tailsafe.evaluation.recordings import Recordings
from tailsafe.evaluation.sequential import Proof, in_sequence, with_shares
from tailsafe.policies.acting import LoadedPolicy
from tailsafe.policies.policy import POINTS, load_policy

# Of the error, for checkpoints before the last. It makes the bound of the policy itself a few percent wider.
LATE_SHARE = 0.2
# Environments of certificates begin at seeds that neither training nor evaluation uses. A batch that begins with
# episode i has seed _FIRST + _APART * seed + _SIDE * i; single environments number their seeds from there.
_FIRST, _APART, _SIDE = 20_000_003, 10_000_000, 8


@dataclass(frozen=True)
class Candidate:
    """Something to be tested. request: the limits that the policy is asked for, as stated in training. share: of the
    error, where shares are used.
    """

    name: str
    request: tuple[float, ...]
    load: Callable[[], LoadedPolicy]
    share: float = 1.0


@dataclass(frozen=True)
class Search:
    """Candidates in the order of the search. rule: see `sequential`."""

    candidates: tuple[Candidate, ...]
    rule: Literal["sequence", "shares"]

    def run(self, tested: Callable[[int, float], Proof], error: float) -> list[Proof]:
        if self.rule == "sequence":
            return in_sequence(tested, len(self.candidates), error)
        return with_shares(tested, [candidate.share for candidate in self.candidates], error)


def requests_of(run: Path, points: int = POINTS) -> Search:
    """What the run's policy can be asked for: one that was trained for one limit, that one alone.

    points: how many limits of a policy that takes the limit as an input, which would be a `sequence`, the smallest
    first.
    """
    policy = load_policy(run)
    described = policy.description
    if not described.ranged:
        return Search((Candidate("policy", described.request, lambda: policy),), "shares")
    asked = [
        Candidate(f"request-{i}", one.limit, lambda one=one: one)  # type: ignore[misc]
        for i, one in enumerate(policy.across(points), 1)
    ]
    return Search(tuple(asked), "sequence")


def search_of(run: Path) -> Search:
    """The requests of the run and, for a policy of one limit, its late checkpoints with a small share of the error."""
    search = requests_of(run)
    if search.rule == "sequence":
        return search
    (shipped,) = search.candidates
    late = late_policies(run, shipped.load())
    if not late:
        return search
    others = [
        Candidate(f"checkpoint-{steps}", shipped.request, lambda policy=policy: policy, LATE_SHARE / len(late))  # type: ignore[misc]
        for steps, policy in late.items()
    ]
    return Search((replace(shipped, share=1 - LATE_SHARE), *others), "shares")


class Player:
    """Episodes of one candidate, by number: recorded ones first, then fresh ones."""

    def __init__(
        self,
        candidate: Candidate,
        seed: int,
        recordings: Recordings,
        stage: Stage,
        report: Callable[[int], None],
    ) -> None:
        self._report = report
        self._policy, self._name, self._seed = candidate.load(), candidate.name, seed
        self._recordings, self._stage = recordings, stage
        self._played = recordings.read(candidate.name)

    @property
    def played(self) -> Episodes:
        assert self._played is not None
        return self._played

    def draw(self, first: int, count: int) -> Float[NDArray[np.float64], "n C"]:
        have = 0 if self._played is None else len(self._played)
        if have < first + count:
            fresh = play(
                self._policy,
                self._stage,
                first + count - have,
                _FIRST + _APART * self._seed + _SIDE * have,
                progress=lambda done, _: self._report(have + done),
            )
            self._played = fresh if self._played is None else self._played.followed_by(fresh)
            self._recordings.write(self._name, self._played)
        costs: NDArray[np.float64] = self.played.discounted_costs[first : first + count]
        return costs
