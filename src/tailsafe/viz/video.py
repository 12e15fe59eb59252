"""Pictures and films of a policy at work in a navigation task, without a display."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from tailsafe.envs.host import HostBatch
from tailsafe.errors import InputError
from tailsafe.files import check_writable, replacing
from tailsafe.runs.episodes import SEED_OFFSET
from tailsafe.runs.policy import LoadedPolicy
from tailsafe.tasks import TASKS, Task

FORMATS = (".png", ".gif", ".mp4")
# A picture shows this many moments of each episode side by side.
MOMENTS = 4
# A film has at most this many frames in all; steps in between are left out.
MOST_FRAMES = 300
_GIF_FPS, _MP4_FPS = 25, 50


@dataclass(frozen=True, eq=False)
class Scene:
    """A moment: episode and step number, the image (height, width, 3), and what the episode brought so far."""

    episode: int
    step: int
    image: NDArray[np.uint8]
    reward: float
    costs: NDArray[np.float64]


def check_film(path: Path) -> None:
    """Refuse a film or picture that could not be written, before any work is spent on it."""
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise InputError(f"{path}: a picture or film ends in {', '.join(FORMATS)}")
    if suffix == ".mp4" and importlib.util.find_spec("imageio") is None:
        raise InputError(f"{path}: mp4 needs imageio (pip install imageio imageio-ffmpeg); .gif and .png do not")
    if suffix != ".mp4" and importlib.util.find_spec("PIL") is None:
        raise InputError("pictures need pillow: pip install 'tailsafe[plot]'")
    check_writable(path)


def film(
    policy: LoadedPolicy,
    path: Path,
    *,
    episodes: int = 1,
    steps: int | None = None,
    seed: int = 0,
    deterministic: bool = False,
    size: int = 480,
) -> list[Scene]:
    """Play `episodes` episodes of at most `steps` steps and write them to `path`; returns the scenes that it shows.

    A .png shows moments of each episode side by side, one row per episode, with the robot's way as dots. Episodes are
    drawn from evaluation's environments (see `SEED_OFFSET`).
    """
    check_film(path)
    task = _task_of(policy)
    length = min(steps or task.episode_length, task.episode_length)
    if path.suffix.lower() == ".png":
        wanted = set(np.linspace(0, length, MOMENTS).round().astype(int).tolist())
    else:
        wanted = set(range(0, length + 1, 1 + episodes * length // MOST_FRAMES))
    scenes = list(_play(policy, task, episodes, length, wanted, seed, deterministic, size))
    with replacing(path) as partial:
        if path.suffix.lower() == ".png":
            _write_sheet(partial, scenes, episodes)
        elif path.suffix.lower() == ".gif":
            _write_gif(partial, scenes)
        else:
            _write_mp4(partial, scenes)
    return scenes


def _task_of(policy: LoadedPolicy) -> Task[Any]:
    name = policy.description.task.name
    for task in TASKS.values():
        if name in (task.name, task.gymnasium_id):
            return task
    raise InputError(f"task {name!r} cannot be shown; there are pictures of: {', '.join(TASKS)}")


def _play(
    policy: LoadedPolicy,
    task: Task[Any],
    episodes: int,
    length: int,
    wanted: set[int],
    seed: int,
    deterministic: bool,
    size: int,
) -> Iterator[Scene]:
    """The wanted steps of each episode, and its last one if it ends before them."""
    from tailsafe.envs.rendering import ImageRenderer

    renderer = ImageRenderer(task, size, size)
    batch = HostBatch(task, num_envs=1)
    key = jax.random.fold_in(jax.random.key(seed), SEED_OFFSET)
    gamma, costs = policy.description.gamma, len(policy.description.constraints)
    try:
        batch.reset(seed + SEED_OFFSET)
        for episode in range(episodes):
            if episode:
                batch.renew(np.ones(1, bool))
            paid, weight = np.zeros((1, costs)), np.ones(1)
            reward, total = 0.0, np.zeros(costs)
            trail = [_robot(batch.rows)]
            yield Scene(episode, 0, renderer.draw(batch.episode, np.asarray(trail)), reward, total)
            for step in range(1, length + 1):
                actions = policy.choose(
                    batch.observation.astype(np.float32),
                    paid.astype(np.float32),
                    weight.astype(np.float32),
                    jax.random.fold_in(jax.random.fold_in(key, episode), step),
                    deterministic=deterministic,
                )
                moved = batch.step(np.asarray(actions, np.float64), renew=False)
                cost = np.asarray(moved.costs, np.float64)
                reward, total = reward + float(moved.reward[0]), total + cost[0]
                paid, weight = paid + weight[:, None] * cost, weight * gamma
                trail.append(_robot(batch.rows))
                ended = bool(np.asarray(moved.done)[0])
                if step in wanted or ended:
                    yield Scene(episode, step, renderer.draw(batch.episode, np.asarray(trail)), reward, total)
                if ended:
                    break
    finally:
        batch.close()
        renderer.close()


def _robot(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where the robot of a batch of one stands (2,) [m]. rows: (time, qpos, qvel); robots' qpos begin with it."""
    return rows[0, 1:3].copy()


def _write_sheet(path: Path, scenes: Sequence[Scene], episodes: int) -> None:
    """One row per episode; a row that ended early repeats its last moment."""
    from PIL import Image

    rows = [[scene.image for scene in scenes if scene.episode == episode] for episode in range(episodes)]
    width = max(map(len, rows))
    full = [np.concatenate(row + [row[-1]] * (width - len(row)), axis=1) for row in rows]
    Image.fromarray(np.concatenate(full, axis=0)).save(path)


def _write_gif(path: Path, scenes: Sequence[Scene]) -> None:
    from PIL import Image

    # One palette for all frames: colours do not flicker, and the file stays small.
    palette = Image.fromarray(scenes[len(scenes) // 2].image).quantize(128)
    frames = [Image.fromarray(scene.image).quantize(palette=palette, dither=Image.Dither.NONE) for scene in scenes]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=1000 // _GIF_FPS, loop=0, optimize=False)


def _write_mp4(path: Path, scenes: Sequence[Scene]) -> None:
    # imageio is no dependency: found by name, so that type checks do not ask for it either.
    imageio = importlib.import_module("imageio")
    try:
        imageio.mimsave(path, [scene.image for scene in scenes], fps=_MP4_FPS)
    except (ImportError, ValueError, OSError) as error:
        raise InputError(f"mp4 needs ffmpeg (pip install imageio-ffmpeg): {error}") from None
