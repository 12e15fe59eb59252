"""Which place of a range of limits answers which request, as fresh episodes have shown.

A policy for a range acts at a place in [0, 1] of it, a function of the limit it is asked for. What it then risks is not
exactly that limit: between regions, and where the front of reward against risk has a jump, it may use far less of it,
or more. Once episodes have been played at many places, every request can be answered by the most rewarding place whose
risks were seen to keep it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

from tailsafe.errors import InputError
from tailsafe.learning.constraints import Constraints
from tailsafe.policies.reading import Fields


@dataclass(frozen=True)
class Answers:
    """A staircase: a request at place p is answered by acting at `places[k]`, k the last with `requests[k]` <= p.

    requests (A,): ascending, in [0, 1]; those below the first are answered as the first. places (A,): in [0, 1].
    """

    requests: tuple[float, ...]
    places: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.requests or len(self.requests) != len(self.places):
            raise InputError(f"answers has {len(self.requests)} requests for {len(self.places)} places; it needs pairs")
        if list(self.requests) != sorted(set(self.requests)):
            raise InputError("answers.requests must be ascending")
        if not all(0 <= place <= 1 for place in (*self.requests, *self.places)):
            raise InputError("answers.requests and answers.places must be in [0, 1]")

    def to(self, requested: ArrayLike) -> NDArray[Any]:
        """Where to act for requests at these places (...,)."""
        step = np.searchsorted(self.requests, requested, side="right") - 1
        return np.asarray(self.places)[np.maximum(step, 0)]

    def to_json(self) -> dict[str, Any]:
        return {"requests": list(self.requests), "places": list(self.places)}

    @classmethod
    def from_json(cls, fields: Fields) -> Answers:
        return cls(fields.numbers("requests"), fields.numbers("places"))


def answers_from(
    places: Float[NDArray[np.float64], " P"],
    rewards: Float[NDArray[np.float64], " P"],
    risks: Float[NDArray[np.float64], "P C"],
    constraints: Constraints,
) -> Answers:
    """The staircase of the most rewarding places. risks: what is taken for those of the discounted sums, at each place.

    A place that keeps no limit of the range is left out; if all are, the one that exceeds the highest limits least
    answers everything.
    """
    assert constraints.range is not None
    low, spread = np.asarray(constraints.limit, np.float64), np.asarray(constraints.range.spread, np.float64)
    needed = np.array([_first_kept(risk, low, spread) for risk in risks])
    if not np.isfinite(needed).any():
        highest = low * np.exp(spread)
        excess = ((risks - highest) / np.where(highest > 0, highest, 1.0)).max(axis=1)
        return Answers((0.0,), (float(places[int(excess.argmin())]),))
    requests: list[float] = []
    chosen: list[float] = []
    best = -math.inf
    for i in np.lexsort((-rewards, needed)):
        if math.isfinite(needed[i]) and rewards[i] > best:
            requests.append(float(needed[i]))
            chosen.append(float(places[i]))
            best = rewards[i]
    return Answers(tuple(requests), tuple(chosen))


def _first_kept(risk: Float[NDArray[np.float64], " C"], low: NDArray[Any], spread: NDArray[Any]) -> float:
    """The first place of the range whose limits these risks keep; infinite if there is none."""
    place = 0.0
    for one, lowest, width in zip(risk, low, spread, strict=True):
        if one > lowest:
            place = max(place, math.log(one / lowest) / width if width > 0 and lowest > 0 else math.inf)
    return place if place <= 1 else math.inf
