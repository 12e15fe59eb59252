"""Whole episodes of a saved policy: played in batch, each counted once, none preferred for being short."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from tailsafe.errors import InputError
from tailsafe.evaluation.environments import Stage
from tailsafe.files import open_text, replacing
from tailsafe.policies.acting import LoadedPolicy

# Evaluation seed s begins the environments' sequence of seed s + this, which no training uses: evaluation never repeats
# an episode that was trained on.
SEED_OFFSET = 1_000_003
# More are played for days, and their table does not fit into memory.
MOST_EPISODES = 10_000_000
# Where no episode length is known, an episode that lasts longer than this is taken for an endless one.
LONGEST_EPISODE = 100_000
# Beside evaluation.json: the episodes behind it, one line for each.
TABLE_NAME = "episodes.csv"
_COLUMNS, _COST, _DISCOUNTED = ("reward", "discounted_reward", "length"), "cost_", "discounted_cost_"

ProgressCallback = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Episodes:
    """n finished episodes. reward, discounted_reward, length: (n,). costs, discounted_costs: (n, C) sums.

    metrics (n, M): the user's own numbers, as `description.task.metrics` names them.

    As `play` returns them, their order says nothing about them: environment by environment, not as they finished.
    """

    reward: Float[NDArray[np.float64], " n"]
    discounted_reward: Float[NDArray[np.float64], " n"]
    length: Float[NDArray[np.float64], " n"]
    costs: Float[NDArray[np.float64], "n C"]
    discounted_costs: Float[NDArray[np.float64], "n C"]
    metrics: Float[NDArray[np.float64], "n M"] | None = None

    def __len__(self) -> int:
        return int(self.reward.size)

    @property
    def cost_rate(self) -> Float[NDArray[np.float64], " C"]:
        """Cost per step, over all steps of all episodes."""
        rate: NDArray[np.float64] = self.costs.sum(0) / self.length.sum()
        return rate

    def followed_by(self, others: Episodes) -> Episodes:
        """These, then others."""
        # Without metrics, there are none on either side.
        arrays = [f.name for f in fields(self) if getattr(self, f.name) is not None]
        return Episodes(**{name: np.concatenate([getattr(self, name), getattr(others, name)]) for name in arrays})

    def save(self, path: Path, cost_names: Sequence[str]) -> None:
        """Write a line per episode, whole or not at all; `read_episodes` gets the same numbers back.

        Columns: reward, discounted_reward, length, then cost_NAME and discounted_cost_NAME for each cost.
        """
        header = [*_COLUMNS, *(prefix + name for name in cost_names for prefix in (_COST, _DISCOUNTED))]
        sums = np.stack([self.costs, self.discounted_costs], axis=2).reshape(len(self), -1)
        table = np.column_stack([self.reward, self.discounted_reward, self.length, sums])
        # No line feeds of the platform's own: the same episodes give the same bytes.
        with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as handle:
            csv.writer(handle, lineterminator="\n").writerows([header, *table.tolist()])


def read_episodes(path: Path) -> tuple[Episodes, tuple[str, ...]]:
    """What `Episodes.save` wrote, and the names of the costs."""
    try:
        with open_text(path) as handle:
            header, *rows = list(csv.reader(handle)) or [[]]
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except (UnicodeDecodeError, csv.Error):
        raise InputError(f"{path}: not a text file of comma-separated values") from None
    names = tuple(column.removeprefix(_COST) for column in header[len(_COLUMNS) :: 2])
    if not names or header != [*_COLUMNS, *(prefix + name for name in names for prefix in (_COST, _DISCOUNTED))]:
        raise InputError(f"{path}: its columns are not those that tailsafe evaluate writes")
    if not rows:
        raise InputError(f"{path}: holds no episode")
    table = np.array([_numbers(row, len(header), f"{path}: line {i}") for i, row in enumerate(rows, 2)])
    reward, discounted, length = table[:, : len(_COLUMNS)].T
    return Episodes(reward, discounted, length, table[:, len(_COLUMNS) :: 2], table[:, len(_COLUMNS) + 1 :: 2]), names


def _numbers(cells: Sequence[str], count: int, place: str) -> list[float]:
    if len(cells) != count:
        raise InputError(f"{place} has {len(cells)} cells; the header has {count}")
    try:
        values = [float(cell) for cell in cells]
    except ValueError:
        values = [math.nan]
    if not all(map(math.isfinite, values)):
        raise InputError(f"{place} holds something that is not a finite number")
    return values


def play(
    policy: LoadedPolicy,
    stage: Stage,
    episodes: int,
    seed: int = 0,
    *,
    deterministic: bool = False,
    progress: ProgressCallback = lambda done, total: None,
) -> Episodes:
    """Play `episodes` episodes at the sampler's mode, with the seed's own environments (see `SEED_OFFSET`).

    Every environment plays a number of episodes that is fixed in advance: taking the first to finish would favour short
    ones. progress: called with the number of episodes done and their total.
    """
    if not 1 <= episodes <= MOST_EPISODES:
        raise InputError(f"episodes is {episodes}; it must be from 1 to {MOST_EPISODES:,}")
    gamma, costs = policy.description.gamma, len(policy.description.constraints)
    envs = stage.num_envs
    quota = np.full(envs, episodes // envs) + (np.arange(envs) < episodes % envs)
    longest = stage.spec.episode_length or LONGEST_EPISODE
    observation = stage.reset(seed + SEED_OFFSET)
    key = jax.random.fold_in(jax.random.key(seed), SEED_OFFSET)
    running = np.zeros((envs, 3 + 2 * costs))
    paid, weight = np.zeros((envs, costs)), np.ones(envs)  # D and b
    finished: list[NDArray[np.float64]] = []
    finished_in: list[int] = []
    step = 0
    while quota.any():
        actions = policy.choose(
            np.asarray(observation, np.float32),
            paid.astype(np.float32),
            weight.astype(np.float32),
            jax.random.fold_in(key, step),
            deterministic=deterministic,
        )
        moved = stage.step(actions)
        reward, cost = np.asarray(moved.reward, np.float64), np.asarray(moved.costs, np.float64)
        if cost.shape != (envs, costs):
            raise InputError(
                f"the environments' costs have shape {cost.shape}; the policy was trained on {costs} costs"
            )
        if not (np.isfinite(reward).all() and np.isfinite(cost).all()):
            raise InputError(f"step {step} of the evaluation: reward or cost is not finite")
        # Columns: reward, discounted reward, length, costs, discounted costs.
        earned = np.stack([reward, weight * reward, np.ones(envs)], axis=1)
        running += np.concatenate([earned, cost, weight[:, None] * cost], axis=1)
        done = np.asarray(moved.terminated) | np.asarray(moved.truncated)
        if ((running[:, 2] >= longest) & ~done & (quota > 0)).any():
            raise InputError(f"an episode did not end within {longest} steps: give the environment a time limit")
        if done.any():
            counted = done & (quota > 0)
            latest = getattr(stage, "latest", None)  # a user's environments follow numbers of their own
            own = np.zeros((envs, 0)) if latest is None else latest.metrics
            finished.extend(np.concatenate([running, own], axis=1)[counted])
            finished_in.extend(np.flatnonzero(counted))
            quota -= counted
            running[done] = 0.0
            progress(len(finished), episodes)
        paid = running[:, 3 + costs :]
        weight = np.where(done, 1.0, weight * gamma)
        observation = np.asarray(moved.observation)
        step += 1
    table = np.stack(finished)[np.argsort(finished_in, kind="stable")]
    sums, discounted, metrics = np.split(table[:, 3:], [costs, 2 * costs], axis=1)
    return Episodes(table[:, 0], table[:, 1], table[:, 2], sums, discounted, metrics if metrics.size else None)
