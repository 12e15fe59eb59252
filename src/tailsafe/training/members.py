"""The runs of a session: what each of them is, where its files are, and how far it has got."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tailsafe.checkpoints import (
    Checkpoints,
)
from tailsafe.training.failures import failure
from tailsafe.training.logs import last_shipped
from tailsafe.training.plan import Plan

CONFIG, METRICS, CHECKPOINTS, POLICY = "config.json", "metrics.csv", "checkpoints", "policy"


@dataclass(frozen=True)
class PlannedRun:
    """One run of a session: what it is, its seed, where its files are."""

    plan: Plan
    seed: int
    folder: Path


def to_train(members: list[PlannedRun]) -> list[PlannedRun]:
    """Those that can be trained together: without those that somebody trained beyond the end planned here, whose later
    checkpoints must stay; and where the others have no checkpoint in common, without those that are complete.
    """
    further = [member for member in members if max(steps_of(member), default=0) > member.plan.total_steps]
    members = [member for member in members if member not in further] or further[:1]
    if shared_steps(members):
        return members
    left = [member for member in members if max(steps_of(member), default=0) < member.plan.total_steps]
    return left or members


def shared_steps(members: Sequence[PlannedRun]) -> set[int]:
    """At which steps all of these runs have a checkpoint; those that were given up do not count."""
    steps = [set(steps_of(member)) for member in members if len(members) == 1 or failure(member.folder) is None]
    return set.intersection(*steps) if steps else set()


def steps_of(member: PlannedRun) -> list[int]:
    """At which steps a run has checkpoints."""
    return Checkpoints(member.folder / CHECKPOINTS).steps()


def not_shipped(folder: Path, updates: int) -> bool:
    """Whether a run that has reached its end still lacks its policy. Older runs do not say: those that have none."""
    shipped = last_shipped(folder)
    return not (folder / POLICY).is_dir() if shipped is None else shipped < updates
