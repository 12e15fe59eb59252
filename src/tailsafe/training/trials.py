"""What tuning compares: trials, what each is worth, and what was found.

A trial's score is the reward of fresh episodes if their risks keep the limits; otherwise it lies below every such
reward, by the excess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tailsafe.training.logs import Row

State = Literal["complete", "pruned", "failed"]
STATES: tuple[State, ...] = ("complete", "pruned", "failed")
# Every policy that keeps its limits is worth more than every one that does not, whatever rewards are like.
_BROKEN = -1e9


def excess(risks: Sequence[float], limits: Sequence[float]) -> float:
    """By how much risks exceed their limits, as shares of these, in sum; of a limit of zero, the risk itself.

    sum_i (risk_i - limit_i)_+ / limit_i
    """
    pairs = zip(risks, limits, strict=True)
    return sum(max(risk - limit, 0.0) / (limit if limit > 0 else 1.0) for risk, limit in pairs)


def score(reward: float, excess: float) -> float:
    """What trials are compared by: the reward where no limit is exceeded, else minus the excess, below all rewards."""
    return reward if excess <= 0 else _BROKEN - excess


def row_score(row: Row) -> float | None:
    """The score of a run's latest training episodes, from a row of its log; None before the first has ended."""
    names = [column.removeprefix("limit_") for column in row if column.startswith("limit_")]
    risks = [value for name in names if (value := row[f"risk_{name}"]) is not None]
    limits = [value for name in names if (value := row[f"limit_{name}"]) is not None]
    reward = row["reward"]
    if reward is None or len(risks) < len(names):
        return None
    return score(reward, excess(risks, limits))


@dataclass(frozen=True)
class Outcome:
    """What an evaluation says. risks: name, measure, risk, limit and unit of every constraint, of every seed."""

    reward: float
    excess: float
    risks: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Trial:
    """One trial. settings: what was chosen. outcome: None where it was not evaluated. words: why that was."""

    number: int
    state: State
    settings: Mapping[str, Any]
    folder: Path
    outcome: Outcome | None = None
    words: str = ""

    @property
    def met(self) -> bool:
        """Whether every risk, as it was estimated, keeps its limit."""
        return self.outcome is not None and self.outcome.excess <= 0

    def __str__(self) -> str:
        if self.outcome is None:
            return f"{'stopped early' if self.state == 'pruned' else self.state}: {self.words}"
        kept = "every limit kept" if self.met else f"{100 * self.outcome.excess:.3g} % above the limits"
        return f"reward {self.outcome.reward:.4g}, {kept}"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        settings = {key: list(one) if isinstance(one, tuple) else one for key, one in self.settings.items()}
        found: dict[str, Any] = {"trial": self.number, "run": str(self.folder), "settings": settings}
        if self.outcome is None:
            return found
        measured = {"reward": self.outcome.reward, "excess": self.outcome.excess, "met": self.met}
        return found | measured | {"risks": [dict(risk) for risk in self.outcome.risks]}


@dataclass(frozen=True)
class Tuning:
    """What a tuning has found so far. trials: the finished ones. best: the one with the largest score; None where
    none was completed. command: trains with its settings; None for a task without a name.
    """

    folder: Path
    trials: tuple[Trial, ...]
    best: Trial | None
    command: str | None

    def to_json(self) -> dict[str, Any]:
        """What best.json holds."""
        return {
            "folder": str(self.folder),
            "trials": {state: sum(one.state == state for one in self.trials) for state in STATES},
            "best": None if self.best is None else self.best.to_json(),
            "command": self.command,
        }

    def __str__(self) -> str:
        if self.best is None:
            last = f" ({self.trials[-1]})" if self.trials else ""
            return f"{len(self.trials)} trials, none was completed{last}"
        return f"best of {len(self.trials)} trials: {self.best.folder}: {self.best}"
