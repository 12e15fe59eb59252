"""Validation: the policy that a run would ship plays fresh episodes while training goes on.

Critics and training episodes estimate the risks of policies that change; fresh episodes of the averaged policy know its
risks up to their own standard error. They are cheap, since nothing is learned from them and a discounted sum is settled
long before a long episode ends. They correct what the learner aims with, and of the policies that were validated late
in a run the most rewarding one ships whose risks stay under the limits by a standard error.
"""

from __future__ import annotations

import csv
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from tailsafe.envs.finite import FiniteEnvironments
from tailsafe.envs.vector import make_batch
from tailsafe.errors import InputError
from tailsafe.evaluation.environments import BatchStage, Stage
from tailsafe.evaluation.episodes import LONGEST_EPISODE
from tailsafe.files import replacing
from tailsafe.policies.acting import LoadedPolicy
from tailsafe.policies.policy import load_policy
from tailsafe.tasks import TASKS
from tailsafe.training.plan import Plan
from tailsafe.training.policy_file import describe_policy, share_policy
from tailsafe.training.settled import DevicePlay, FinitePlay, SettledEpisodes, play_settled

FOLDER, TABLE = "validation", "validation.csv"
POLICY = "policy"
# Validations left out at first, while policies change too fast for them to matter (a number of validations, not a share
# of the run: a run that is trained further must take the path of a longer one).
_LEFT_OUT = 5
# What is shipped is among the policies of this share of the updates, the latest.
_CANDIDATES_FROM = 0.5
# In the end the best so many policies play at least so many episodes more; on finite problems, where they are cheap, as
# many as so many validations.
_FINALISTS, _FINAL_EPISODES, _FINITE_ROUNDS = 3, 1024, 8
# Standard errors that the shipped policy's risks stay under the limits.
_CAUTION = 1.5
# Below this discount nothing changes a discounted sum any more.
_SETTLED = 0.02
# Seeds of validation: none that training, evaluation or certificates use. Of finalists: the same for all.
_FIRST, _APART = 400_000_009, 100_003


@dataclass(frozen=True)
class Entry:
    """A validated policy. reward: per step. risks, errors (C,): of the discounted sums."""

    updates: int
    steps: int
    reward: float
    risks: tuple[float, ...]
    errors: tuple[float, ...]

    @property
    def folder(self) -> str:
        return f"policy-{self.steps}"

    def upper(self) -> NDArray[np.float64]:
        """(C,): what the risks are taken for when one policy is preferred to another."""
        return np.asarray(self.risks) + _CAUTION * np.asarray(self.errors)


@dataclass(frozen=True)
class Choice:
    """What is shipped. kept: whether its risks stay under the limits by `_CAUTION` standard errors; if not, it is the
    one that exceeds that least.
    """

    entry: Entry
    kept: bool
    finalists: int


class Validation:
    """The validations of one run; its table and policies are in `RUN/validation`."""

    def __init__(self, plan: Plan, seed: int, run: Path) -> None:
        self._plan, self._seed = plan, seed
        self._run, self._folder = run, run / FOLDER
        self._measures = [constraint.spectrum for constraint in plan.constraints]
        self._limits = np.asarray(plan.discounted_limits)
        self.costs = plan.spec.cost_names
        self._entries: list[Entry] = []

    def cut(self, updates: int) -> None:
        """Read what was validated before; forget what came after `updates`."""
        if (self._folder / TABLE).exists():
            self._entries = [entry for entry in _read(self._folder / TABLE) if entry.updates <= updates]
            self._write()

    def policy(self, learner: Any, steps: int) -> LoadedPolicy:
        """What would be shipped now."""
        algorithm = self._plan.algorithm
        return LoadedPolicy(
            describe_policy(self._plan, steps),
            algorithm.shared_policy(learner),
            learner.normalizer,
            algorithm.shared_delta(learner),
        )

    def add(self, played: SettledEpisodes, learner: Any, updates: int, steps: int) -> Entry:
        """Write down what the current policy has played, and keep it."""
        entry = self._entry(played, updates, steps)
        self._entries.append(entry)
        share_policy(self._folder / entry.folder, self._plan, learner, steps)
        self._write()
        return entry

    def row(self) -> dict[str, float | None]:
        """For the log: the latest validation, risks in the unit of their limits."""
        latest = self._entries[-1] if self._entries else None
        found = {} if latest is None else {"reward": latest.reward * (self._plan.spec.episode_length or 1)}
        names = ["reward"]
        for i, cost in enumerate(self._plan.logged_costs):
            names.append(f"risk_{cost.name}")
            if latest is not None:
                found[names[-1]] = latest.risks[i] * cost.factor
        return {f"validation_{name}": found.get(name) for name in names}

    def finalists(self) -> list[tuple[Entry, LoadedPolicy]]:
        """The best late policies, as far as their files are as they were."""
        late = [entry for entry in self._entries if entry.updates >= _CANDIDATES_FROM * self._plan.total_updates]
        kept = [(entry, policy) for entry in late if (policy := self._kept(entry)) is not None]
        return sorted(kept, key=lambda pair: self._rank(pair[0]))[:_FINALISTS]

    def ship(self, played: Sequence[tuple[Entry, SettledEpisodes]]) -> Choice | None:
        """Let the episodes that finalists have played choose, and make the chosen policy that of the run."""
        if not played:
            return None
        chosen = min((self._entry(fresh, one.updates, one.steps) for one, fresh in played), key=self._rank)
        for file in (self._folder / chosen.folder).iterdir():
            with replacing(self._run / POLICY / file.name) as partial:
                shutil.copyfile(file, partial)
        return Choice(chosen, bool((chosen.upper() <= self._limits).all()), len(played))

    def _kept(self, entry: Entry) -> LoadedPolicy | None:
        """The policy that was validated; None if its file was damaged since."""
        try:
            return load_policy(self._folder / entry.folder)
        except InputError:
            return None

    def _rank(self, entry: Entry) -> tuple[bool, float]:
        """The smallest is the best: within the limits the most rewarding, beyond them the least excess."""
        unit = np.where(self._limits > 0, self._limits, 1.0)
        excess = float(((entry.upper() - self._limits) / unit).max())
        return (excess > 0, excess if excess > 0 else -entry.reward)

    def _entry(self, played: SettledEpisodes, updates: int, steps: int) -> Entry:
        risks, errors = played.risks(self._measures)
        return Entry(updates, steps, float(played.reward.mean()), tuple(risks.tolist()), tuple(errors.tolist()))

    def episodes(self, number: int) -> int:
        """The seed of episodes number `number` of this run: one after so many updates; negative: those of finalists."""
        return (_FIRST + _APART * self._seed + number) % 2**31

    def _write(self) -> None:
        names = [constraint.name for constraint in self._plan.constraints]
        header = ["updates", "steps", "reward", *(f"{what}_{name}" for what in ("risk", "error") for name in names)]
        rows = [[e.updates, e.steps, e.reward, *e.risks, *e.errors] for e in self._entries]
        self._folder.mkdir(exist_ok=True)
        with replacing(self._folder / TABLE) as partial, partial.open("w", newline="", encoding="utf-8") as handle:
            csv.writer(handle, lineterminator="\n").writerows([header, *rows])


def _read(table: Path) -> list[Entry]:
    """The entries of a table; none of a damaged one."""
    try:
        with table.open(newline="", encoding="utf-8") as handle:
            rows = list(csv.reader(handle))[1:]
        entries = []
        for updates, steps, reward, *rest in rows:
            numbers = tuple(map(float, rest))
            half = len(numbers) // 2
            entries.append(Entry(int(updates), int(steps), float(reward), numbers[:half], numbers[half:]))
    except (OSError, ValueError, csv.Error):
        return []
    return entries


class Validations:
    """Those of all runs of a program, which share environments. runs: plan, seed and folder of each."""

    def __init__(self, runs: Sequence[tuple[Plan, int, Path]], updates: int) -> None:
        plan = runs[0][0]
        self.every = plan.validation_updates
        self._stages = Stages(plan, len(runs))
        self._each = [Validation(*run) for run in runs] if self.every else []
        enough = math.ceil(_FINAL_EPISODES / plan.values["validation_episodes"])
        self._batches = enough if plan.problem is None else _FINITE_ROUNDS
        for validation in self._each:
            validation.cut(updates)

    def due(self, updates: int) -> bool:
        """Whether there is one after so many updates."""
        return bool(self.every) and updates % self.every == 0 and updates > _LEFT_OUT * self.every

    def of(
        self, learners: Mapping[int, Any], updates: int, steps: int
    ) -> tuple[Float[NDArray[np.float64], "R C"], Float[NDArray[np.float64], "R C"]]:
        """Validate runs by their number. Returns risks and standard errors of all; zeros of the others."""
        found = np.zeros((2, len(self._each), len(self._each[0].costs)))
        policies = {i: self._each[i].policy(learner, steps) for i, learner in learners.items()}
        for i, played in self._played(policies, updates).items():
            entry = self._each[i].add(played, learners[i], updates, steps)
            found[:, i] = entry.risks, entry.errors
        return found[0], found[1]

    def row(self, i: int) -> dict[str, float | None]:
        """For the log of one run."""
        return self._each[i].row() if self.every else {}

    def ship(self, runs: Sequence[int]) -> dict[int, Choice]:
        """At the end: the finalists of each run play the same fresh episodes, and the best one ships."""
        if not self.every:
            return {}
        finalists = {i: self._each[i].finalists() for i in runs}
        heard: dict[int, list[tuple[Entry, SettledEpisodes]]] = {i: [] for i in runs}
        for place in range(_FINALISTS):
            pairs = {i: own[place] for i, own in finalists.items() if place < len(own)}
            policies = {i: policy for i, (_, policy) in pairs.items()}
            rounds = [self._played(policies, -number) for number in range(1, self._batches + 1)]
            for i, (entry, _) in pairs.items():
                heard[i].append((entry, reduce(SettledEpisodes.followed_by, [each[i] for each in rounds])))
        choices = {i: self._each[i].ship(played) for i, played in heard.items()}
        return {i: choice for i, choice in choices.items() if choice is not None}

    def close(self) -> None:
        self._stages.close()

    def _played(self, policies: Mapping[int, LoadedPolicy], number: int) -> dict[int, SettledEpisodes]:
        """Episodes number `number` of the runs with these policies."""
        seeds = [self._each[i].episodes(number) for i in policies]
        played = self._stages.play(list(policies.values()), seeds)
        return dict(zip(policies, played, strict=True))


class Stages:
    """Environments for validation beside those of training, opened when the first validation is due."""

    def __init__(self, plan: Plan, runs: int) -> None:
        self._plan, self._runs = plan, runs
        self._episodes = int(plan.values["validation_episodes"])
        gamma, length = plan.values["gamma"], plan.spec.episode_length
        settled = math.inf if gamma >= 1 else math.ceil(math.log(_SETTLED) / math.log(gamma))
        self._steps = int(min(settled, length or LONGEST_EPISODE))
        self._open: Stage | None = None
        self._program: DevicePlay | FinitePlay | None = None

    def play(self, policies: Sequence[LoadedPolicy], seeds: Sequence[int]) -> list[SettledEpisodes]:
        """`validation_episodes` fresh episodes of each policy, until their costs are settled."""
        if self._plan.on_device:
            self._program = self._program or self._programmed()
            return self._program.play(policies, seeds)
        self._open = self._open or self._made()
        stage = self._open
        return [play_settled(policy, stage, seed, self._steps) for policy, seed in zip(policies, seeds, strict=True)]

    def close(self) -> None:
        """Stop what was opened."""
        if self._open is not None:
            self._open.close()

    def _programmed(self) -> DevicePlay | FinitePlay:
        plan = self._plan
        if plan.problem is not None:
            return FinitePlay(FiniteEnvironments(plan.problem, self._episodes), self._runs)
        task = TASKS[plan.spec.name]
        return DevicePlay(task, plan.config.backend, self._runs, self._episodes, self._steps)

    def _made(self) -> Stage:
        return BatchStage(make_batch(TASKS[self._plan.spec.name], self._episodes, self._plan.config.backend))
