"""What a policy file says about a constraint: its measure, its limit and the unit of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, cast, get_args

from tailsafe.errors import InputError
from tailsafe.policies.reading import Fields
from tailsafe.risk import SpectralRisk, StepSpectrum, parse_spectrum

Unit = Literal["step", "discounted", "episode"]
# Of a limit that is asked for, where it stands at an end of the range.
_ROUNDING = 1e-6


class LimitSpan(NamedTuple):
    """Limits that one policy can be asked for, in their unit. discounted_low: the lowest, on the discounted cost sum.

    below: how far training went on below the lowest, as a share of it: what answers the lowest request may lie there.
    """

    low: float
    high: float
    discounted_low: float
    below: float = 0.0

    @property
    def trained_low(self) -> float:
        """The lowest limit of training."""
        return self.low * (1 - self.below)


@dataclass(frozen=True)
class ConstraintDescription:
    """One constraint: the measure as given, its limit in the unit as given, and what the learner made of them.

    risk_measure: SPEC. discounted_limit: on the discounted cost sum. eta (M,), alpha (M-1,): the step spectrum.
    span: the limits that the policy was trained for, None if it was for one; `limit` is then the one it is asked for.
    """

    name: str
    risk_measure: str
    limit: float
    unit: Unit
    discounted_limit: float
    eta: tuple[float, ...]
    alpha: tuple[float, ...]
    span: LimitSpan | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest limit that it can be asked for."""
        return (self.limit, self.limit) if self.span is None else (self.span.low, self.span.high)

    def asked(self, limit: float) -> ConstraintDescription:
        """The same for another limit of its range; an `InputError` outside."""
        low, high = self.ends
        if not low - _ROUNDING * abs(low) <= limit <= high + _ROUNDING * abs(high):
            allowed = f"{low:g}..{high:g}/{self.unit}" if self.span else f"{low:g}/{self.unit} alone"
            raise InputError(f"limit {limit:g}/{self.unit} of {self.name}: this policy was trained for {allowed}")
        if self.span is None:
            return self
        limit = min(max(limit, low), high)
        return replace(self, limit=limit, discounted_limit=self.span.discounted_low * (limit / low))

    @property
    def measure(self) -> SpectralRisk:
        """The measure as given."""
        return parse_spectrum(self.risk_measure)

    @property
    def steps(self) -> StepSpectrum:
        """The step spectrum that stands for it."""
        return StepSpectrum.normalized(self.eta, self.alpha)

    def to_json(self) -> dict[str, Any]:
        """What a policy file says; of a range where it begins and ends, since requests come and go."""
        lowest = self.asked(self.ends[0])
        return {
            "name": self.name,
            "risk_measure": self.risk_measure,
            "limit": lowest.limit,
            "unit": self.unit,
            "discounted_limit": lowest.discounted_limit,
            "eta": list(self.eta),
            "alpha": list(self.alpha),
        } | ({} if self.span is None else {"highest": self.span.high, "below": self.span.below})

    @classmethod
    def from_json(cls, fields: Fields) -> ConstraintDescription:
        described = cls(
            name=fields.text("name"),
            risk_measure=fields.text("risk_measure"),
            limit=fields.number("limit"),
            unit=cast(Unit, fields.choice("unit", get_args(Unit))),
            discounted_limit=fields.number("discounted_limit"),
            eta=fields.numbers("eta"),
            alpha=fields.numbers("alpha"),
        )
        highest = fields.optional("highest", fields.number)
        if highest is not None:
            if not 0 < described.limit < highest:
                raise InputError(f"{fields.place}.highest must be above the limit, which must be above zero")
            below = fields.optional("below", fields.number) or 0.0
            if not 0 <= below < 1:
                raise InputError(f"{fields.place}.below is {below:g}; it must be in [0, 1)")
            span = LimitSpan(described.limit, highest, described.discounted_limit, below)
            described = replace(described, span=span)
        try:
            _ = described.measure, described.steps
        except InputError as error:
            raise InputError(f"{fields.place}: {error}") from None
        return described


def discounted_length(gamma: float, steps: int | None) -> float:
    """The discounted sum of ones over `steps` steps, or over endless ones."""
    if steps is None:
        return 1 / (1 - gamma) if gamma < 1 else math.inf
    return float(steps) if gamma == 1 else (1 - gamma**steps) / (1 - gamma)
