"""Pictures and videos of a policy at work in a task, without a display."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tailsafe.errors import InputError
from tailsafe.evaluation.environments import built_in
from tailsafe.extras import install_hint
from tailsafe.files import check_writable, replacing
from tailsafe.policies.acting import LoadedPolicy
from tailsafe.viz.scenes import Scene, user_scenes
from tailsafe.viz.walk import task_of, walk

FORMATS = (".png", ".gif", ".mp4")
# A picture shows this many moments of each episode side by side.
MOMENTS = 4
# A video has at most this many frames in all; steps in between are left out.
MOST_FRAMES = 300
_GIF_FPS, _MP4_FPS = 25, 50
_PALETTE_FRAMES = 16


def check_video(path: Path) -> None:
    """Refuse a video or picture that could not be written, before any work is spent on it."""
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise InputError(f"{path}: a picture or video ends in {', '.join(FORMATS)}")
    if suffix == ".mp4" and importlib.util.find_spec("imageio") is None:
        raise InputError(f"{path}: mp4 needs imageio (pip install imageio imageio-ffmpeg); .gif and .png do not")
    if suffix != ".mp4" and importlib.util.find_spec("PIL") is None:
        raise InputError(f"pictures need pillow: {install_hint('plot')}")
    check_writable(path)


def render_video(
    policy: LoadedPolicy,
    path: Path,
    *,
    episodes: int = 1,
    steps: int | None = None,
    seed: int = 0,
    deterministic: bool = False,
    size: int = 480,
    environment: str | Callable[..., Any] | None = None,
    env_args: Mapping[str, Any] | None = None,
    trust: bool = False,
) -> list[Scene]:
    """Play `episodes` episodes of at most `steps` steps and write them to `path`; returns the scenes that it shows.

    A .png shows moments of each episode side by side, one row per episode, the trajectory as dots. Episodes are
    drawn from evaluation's environments (see `SEED_OFFSET`).

    A user's environment draws itself (`render_mode="rgb_array"`), in its own size; environment, env_args, trust: as in
    `evaluate`.
    """
    check_video(path)
    sheet = path.suffix.lower() == ".png"
    if environment is None and (built_in(policy.description) or policy.description.task.problem is not None):
        if env_args:
            name = policy.description.task.name
            raise InputError(f"arguments (--env-arg) are for environments of your own; {name} takes none")
        scenes = _of_task(policy, sheet, episodes, steps, seed, size, deterministic=deterministic)
    else:
        scenes = user_scenes(
            policy,
            episodes,
            steps,
            seed,
            MOST_FRAMES,
            deterministic=deterministic,
            environment=environment,
            env_args=env_args,
            trust=trust,
        )
        scenes = _moments(scenes, episodes) if sheet else scenes
    with replacing(path) as partial:
        if sheet:
            _write_sheet(partial, scenes, episodes)
        elif path.suffix.lower() == ".gif":
            _write_gif(partial, scenes)
        else:
            _write_mp4(partial, scenes)
    return scenes


def _of_task(
    policy: LoadedPolicy, sheet: bool, episodes: int, steps: int | None, seed: int, size: int, *, deterministic: bool
) -> list[Scene]:
    """Scenes of a built-in task."""
    from tailsafe.envs.rendering import ImageRenderer

    task = task_of(policy)
    length = min(steps or task.episode_length, task.episode_length)
    if sheet:
        wanted = set(np.linspace(0, length, MOMENTS).round().astype(int).tolist())
    else:
        wanted = set(range(0, length + 1, 1 + episodes * length // MOST_FRAMES))
    renderer = ImageRenderer(task, size, size)
    try:
        # An episode that ends before the wanted moments shows its last one.
        return [
            Scene(now.episode, now.step, renderer.draw(now.state, now.trail), now.reward, now.costs)
            for now in walk(policy, task, episodes, length, seed, deterministic=deterministic)
            if now.step in wanted or now.last
        ]
    finally:
        renderer.close()


def _moments(scenes: Sequence[Scene], episodes: int) -> list[Scene]:
    """Of each episode so many as a picture shows."""
    chosen: list[Scene] = []
    for episode in range(episodes):
        own = [scene for scene in scenes if scene.episode == episode]
        kept = np.unique(np.linspace(0, len(own) - 1, MOMENTS).round().astype(int))
        chosen.extend(own[i] for i in kept.tolist())
    return chosen


def _write_sheet(path: Path, scenes: Sequence[Scene], episodes: int) -> None:
    """One row per episode; a row that ended early repeats its last moment."""
    from PIL import Image

    rows = [[scene.image for scene in scenes if scene.episode == episode] for episode in range(episodes)]
    width = max(map(len, rows))
    full = [np.concatenate(row + [row[-1]] * (width - len(row)), axis=1) for row in rows]
    Image.fromarray(np.concatenate(full, axis=0)).save(path)


def _write_gif(path: Path, scenes: Sequence[Scene]) -> None:
    from PIL import Image

    # One palette for all frames: colours do not flicker, and the file stays small. A few frames have its colours.
    some = np.unique(np.linspace(0, len(scenes) - 1, _PALETTE_FRAMES).round().astype(int))
    palette = Image.fromarray(np.concatenate([scenes[i].image for i in some.tolist()])).quantize(128)
    frames = [Image.fromarray(scene.image).quantize(palette=palette, dither=Image.Dither.NONE) for scene in scenes]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=1000 // _GIF_FPS, loop=0, optimize=False)


def _write_mp4(path: Path, scenes: Sequence[Scene]) -> None:
    # imageio is not a dependency: found by name, so that type checks do not ask for it either.
    imageio = importlib.import_module("imageio")
    try:
        imageio.mimsave(path, [scene.image for scene in scenes], fps=_MP4_FPS)
    except (ImportError, ValueError, OSError) as error:
        raise InputError(f"mp4 needs ffmpeg (pip install imageio-ffmpeg): {error}") from None
