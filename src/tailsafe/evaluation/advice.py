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
        more = max(steps, 1)
        further = f"tailsafe resume {place} --steps {more}"
        if options or not (folder / "checkpoints").is_dir():
            given = options.partition(" --env-arg")
            further = f"tailsafe train {shlex.quote(task)} --from {place} --steps {more}{''.join(given[1:])}"
        return f"the risk is above its limit; train longer with: {further}"
    if not all(one.bounded for one in judged):
        by = f"--interval bootstrap{options}"
        return f"no upper bound is known; decide by bootstrap with: tailsafe evaluate {place} {by}"
    wanted = max(known) if known else 4 * episodes
    return f"too few episodes to tell; play more with: tailsafe evaluate {place} --episodes {wanted}{options}"
