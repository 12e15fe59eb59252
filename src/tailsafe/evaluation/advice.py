"""What to do after a verdict: one line with the command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Judgement:
    """One constraint's verdict. above: whether the estimate itself exceeds the limit. bounded: whether there is an
    upper bound at all. needed: episodes that would confirm the limit, where that is known.
    """

    verdict: str
    above: bool
    bounded: bool
    needed: int | None = None


def next_step(
    folder: Path, task: str, steps: int, episodes: int, judged: Sequence[Judgement], options: str = ""
) -> str:
    """The command that helps most after these verdicts on a policy after `steps` steps, and why.

    folder: a run's, or a policy's without checkpoints, which can only be started from. options: those that name another
    environment than the run's, where one was played.
    """
    place = shlex.quote(str(folder))
    if all(one.verdict == "met" for one in judged):
        return f"every limit is met; put it on a page with: tailsafe report {place}"
    known = [one.needed for one in judged if one.verdict != "met" and one.needed is not None]
    if all(one.verdict.startswith("met") for one in judged):
        more_of_them = f" --episodes {max(known)}" if known else ""
        return f"met without a guarantee; look for one with: tailsafe evaluate {place}{more_of_them}{options}"
    if any(one.above for one in judged):
        return f"the risk is above its limit; train longer with: {_further(folder, task, steps, options)}"
    if not all(one.bounded for one in judged):
        by = f"--interval bootstrap{options}"
        return f"no upper bound is known; decide by bootstrap with: tailsafe evaluate {place} {by}"
    wanted = max(known) if known else 4 * episodes
    return f"too few episodes to tell; play more with: tailsafe evaluate {place} --episodes {wanted}{options}"


def after_search(
    folder: Path,
    task: str,
    steps: int,
    limits: Sequence[str],
    *,
    certified: bool,
    above: bool,
    episodes: int,
    options: str = "",
) -> str:
    """The same after a search for a certificate. limits: as stated. above: whether the risk seen exceeds its limit.
    episodes: as many as the next search should play.
    """
    place = shlex.quote(str(folder))
    if certified:
        return f"put it on a page with: tailsafe report {place}"
    if above:
        return f"train longer with: {_further(folder, task, steps, options)}"
    stated = " ".join(f"--limit {limit}" for limit in limits)
    return f"play more with: tailsafe certify {place} {stated} --episodes {episodes}{options}"


def _further(folder: Path, task: str, steps: int, options: str) -> str:
    """The command that trains a policy further, for as long again."""
    place, more = shlex.quote(str(folder)), max(steps, 1)
    if not options and (folder / "checkpoints").is_dir():
        return f"tailsafe resume {place} --steps {more}"
    given = options.partition(" --env-arg")
    return f"tailsafe train {shlex.quote(task)} --from {place} --steps {more}{''.join(given[1:])}"
