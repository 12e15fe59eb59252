"""The outcome of a search for a certificate: what was proven about which candidate, as JSON and in a run's folder."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from tailsafe._version import __version__
from tailsafe.errors import InputError
from tailsafe.evaluation.bounds import Interval, largest_return
from tailsafe.evaluation.candidates import Candidate
from tailsafe.evaluation.played_environment import PlayedEnvironment, beside, other_place
from tailsafe.evaluation.sequential import Limit, Proof
from tailsafe.files import read_object, write_json
from tailsafe.policies.described_constraint import Unit
from tailsafe.policies.metadata import PolicyDescription
from tailsafe.policies.policy import attach_certificate, load_policy, save_policy

FILE_NAME, FOLDER, CERTIFIED = "certificate.json", "certificate", "certified"
FORMAT = 1
# A picture of the proof begins at so many episodes.
_FEWEST_DRAWN = 64
STATEMENT = (
    "about this policy in this simulator, at the stated confidence; it says nothing about other versions of either"
)


@dataclass(frozen=True, eq=False)
class Finding:
    """One tested candidate with its episodes; risks and uppers are in the unit of the stated limits.

    costs: discounted sums of its episodes, in the order in which they were played.
    """

    candidate: Candidate
    proof: Proof
    costs: Float[NDArray[np.float64], "n C"]
    risks: tuple[float, ...]
    uppers: tuple[float, ...]
    reward: float
    reward_interval: Interval

    @property
    def certified(self) -> bool:
        return self.proof.outcome == "certified"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.candidate.name,
            "request": _plain(self.candidate.request),
            "outcome": self.proof.outcome,
            "risk": _plain(self.risks),
            "upper": _plain(self.uppers),
            "error": self.proof.error,
            "episodes": self.proof.episodes,
            "reward": self.reward,
            "reward_interval": self.reward_interval.to_json(),
        }


@dataclass(frozen=True, eq=False)
class Certificate:
    """The outcome of a search. played: what it is about. limits: as the user stated them, one per cost. chosen: the
    most rewarding candidate that was certified, None if none was.
    """

    played: PlayedEnvironment
    digest: str
    limits: tuple[float, ...]
    units: tuple[Unit, ...]
    confidence: float
    budget: int
    seed: int
    rule: str
    findings: tuple[Finding, ...]

    @property
    def policy(self) -> PolicyDescription:
        """What the policy is, in the environment that was played."""
        return self.played.description

    @property
    def chosen(self) -> Finding | None:
        certified = [finding for finding in self.findings if finding.certified]
        return max(certified, key=lambda finding: finding.reward, default=None)

    @property
    def certified(self) -> bool:
        return self.chosen is not None

    @property
    def shown(self) -> Finding:
        """The finding to report: the chosen one, else the one closest to the limits."""
        return self.chosen or min(self.findings, key=self._excess)

    def _excess(self, finding: Finding) -> float:
        pairs = zip(finding.risks, self.limits, strict=True)
        return max(risk / limit if limit > 0 else (math.inf if risk > 0 else 0.0) for risk, limit in pairs)

    def course(self, cost: int, points: int = 24) -> Float[NDArray[np.float64], "K 3"]:
        """How the proof of `shown` came about: numbers of episodes, the risk seen in them and its upper bound.

        The bounds hold at all of these numbers at once. They and the risks are in the unit of the cost's limit.
        """
        finding, factor = self.shown, self.policy.factor_of(self.units[cost])
        measure = self.policy.constraints[cost].measure
        limit = Limit(measure, self.limits[cost] / factor, largest_sum(self.policy, cost))
        sums = finding.costs[:, cost]
        counts = np.unique(np.geomspace(min(_FEWEST_DRAWN, sums.size), sums.size, points).round().astype(int))
        rows = [
            (count, measure.risk(sums[:count]) * factor, limit.upper(sums[:count], finding.proof.error) * factor)
            for count in counts
        ]
        return np.asarray(rows, float)

    @property
    def advice(self) -> str:
        """What would help where nothing was certified."""
        if self.above:
            return (
                "the risk is above the limit: train longer (tailsafe resume), for a smaller limit (--limit), or with "
                "a larger --set margin=..."
            )
        return (
            f"the risk seen is below the limit, but {self.shown.proof.episodes} episodes leave too much room for costs "
            f"that were not: more episodes (--episodes {self.wanted}), or a policy with a smaller risk"
        )

    @property
    def above(self) -> bool:
        """Whether the risk of `shown` is seen to exceed its limit."""
        return self.shown.proof.outcome == "violated" or self._excess(self.shown) >= 1

    @property
    def wanted(self) -> int:
        """Episodes that another search should play at most."""
        return max(4 * self.budget, 20_000)

    def to_json(self) -> dict[str, Any]:
        """What `tailsafe certify --json` prints and certificate.json holds."""
        shown = self.shown
        return {
            "format": FORMAT,
            "certified": self.certified,
            "limit": _plain(self.limits),
            "unit": _plain(self.units),
            "request": _plain(shown.candidate.request) if self.certified else None,
            "candidate": shown.candidate.name,
            "risk": _plain(shown.risks),
            "upper": _plain(shown.uppers),
            "confidence": self.confidence,
            "episodes": shown.proof.episodes,
            "reward": shown.reward,
            "reward_interval": shown.reward_interval.to_json(),
            "tested": [finding.to_json() for finding in self.findings],
            "rule": self.rule,
            "advice": None if self.certified else self.advice,
            "task": self.policy.task.name,
            **self.played.to_json(),
            "algorithm": self.policy.algorithm,
            "risk_measure": _plain([constraint.risk_measure for constraint in self.policy.constraints]),
            "cost": _plain(list(self.policy.task.cost_names)),
            "policy": self.digest,
            "seed": self.seed,
            "budget": self.budget,
            "versions": {"tailsafe": __version__, "python": platform.python_version(), "numpy": np.__version__},
            "statement": STATEMENT,
        }

    def keep(self, run: Path) -> None:
        """Write certificate.json beside the policy and, if something was certified, what into the policy file.

        A certified checkpoint becomes a policy of its own, in the folder `certified`; the run's policy stays. Of a
        policy for a range of limits the file then asks for what was certified. A file about another environment becomes
        certificate.ENVIRONMENT.json, and what was certified in the environment of training stays in the policy file.
        """
        report = self.to_json()
        path = home_of(run) / FILE_NAME
        place = None
        with suppress(InputError):  # what cannot be read is of no use to anybody
            place = other_place(read_object(path), self.played) if path.is_file() else None
        if place is not None:
            os.replace(path, beside(path, place))
        if self.chosen is not None:
            about = ("task", "environment", "trained_in", "statement")
            names = (*about, "limit", "unit", "request", "risk_measure", "upper", "confidence", "episodes")
            proven = {name: report[name] for name in names}
            if self.chosen is self.findings[0] or self.rule == "sequence":
                before = load_policy(run).description.certificate
                if self.played.trained_in is None or before is None or before.get("trained_in") is not None:
                    attach_certificate(run, proven, self.chosen.candidate.request if self.rule == "sequence" else None)
            else:
                policy = self.chosen.candidate.load()
                described = replace(policy.description, certificate=proven)
                save_policy(home_of(run) / CERTIFIED, policy.network, policy.normalizer, policy.modes, described)
        write_json(path, report)


def largest_sum(description: PolicyDescription, index: int) -> float:
    """The largest discounted sum of a cost, on which the proof rests; an `InputError` where it is unknown."""
    largest = largest_return(description, index)
    if not math.isfinite(largest):
        raise InputError(
            f"nothing can be proven about {description.task.cost_names[index]}: the environment does not say what a "
            "step can cost at most; give it an attribute largest_costs"
        )
    return largest


def home_of(run: Path) -> Path:
    """The folder of a run or policy, which may be named by one of its files."""
    return run if run.is_dir() else run.parent


def _plain(values: Sequence[Any]) -> Any:
    """One value where there is one cost, else the list."""
    return values[0] if len(values) == 1 else list(values)
