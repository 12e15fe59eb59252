"""Episodes of a policy in a user's own environment, seen through its `rgb_array`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import jax
import numpy as np
from numpy.typing import NDArray

from tailsafe.errors import InputError, place_of
from tailsafe.evaluation.environments import Stage, open_user_stage
from tailsafe.evaluation.episodes import SEED_OFFSET
from tailsafe.policies.acting import LoadedPolicy

# Of an episode whose length nobody states.
_STEPS = 1000
MODE = "rgb_array"


@dataclass(frozen=True, eq=False)
class Scene:
    """A moment: episode and step number, the image (height, width, 3), and what the episode brought so far."""

    episode: int
    step: int
    image: NDArray[np.uint8]
    reward: float
    costs: NDArray[np.float64]


class Camera:
    """Takes the first picture after it was armed: a step that ends an episode is followed by a reset."""

    def __init__(self) -> None:
        self.armed = False
        self.image: NDArray[np.uint8] = np.zeros((1, 1, 3), np.uint8)

    def __call__(self, env: gymnasium.Env[Any, Any]) -> None:
        if self.armed:
            self.image, self.armed = _picture(env), False


def user_scenes(
    policy: LoadedPolicy,
    episodes: int,
    steps: int | None,
    seed: int,
    most: int,
    *,
    deterministic: bool,
    environment: str | Callable[..., Any] | None = None,
    env_args: Mapping[str, Any] | None = None,
    trust: bool = False,
) -> list[Scene]:
    """About `most` scenes of all episodes, evenly spaced, the first and the last moment of each among them.

    Episodes begin at evaluation's seeds. steps: an episode is left after so many.
    """
    description, camera = policy.description, Camera()

    def opened(arguments: Mapping[str, Any]) -> Stage:
        return open_user_stage(description, 1, environment, env_args=arguments, trust=trust, watch=camera)

    given = dict(env_args or {})
    try:
        stage = opened({"render_mode": MODE, **given})
    except InputError:
        # Not every constructor takes it; whatever else was wrong is said now.
        stage = opened(given)
    length = steps or stage.spec.episode_length or _STEPS
    try:
        return [
            scene
            for episode in range(episodes)
            for scene in _episode(policy, stage, camera, episode, seed, length, deterministic, max(4, most // episodes))
        ]
    finally:
        stage.close()


def _episode(
    policy: LoadedPolicy,
    stage: Stage,
    camera: Camera,
    episode: int,
    seed: int,
    length: int,
    deterministic: bool,
    most: int,
) -> list[Scene]:
    """One episode; where it turns out to be longer than `most` scenes, every other one is dropped."""
    gamma, costs = policy.description.gamma, len(policy.description.constraints)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), SEED_OFFSET), episode)
    camera.armed = True
    observation = stage.reset(seed + SEED_OFFSET + episode)
    if camera.armed:
        raise InputError(f"task {policy.description.task.name!r} cannot be shown: it is written in JAX")
    paid, weight = np.zeros((1, costs)), np.ones(1)
    reward, total = 0.0, np.zeros(costs)
    shown, every = [Scene(episode, 0, camera.image, reward, total)], 1
    for step in range(1, length + 1):
        actions = policy.choose(
            np.asarray(observation, np.float32),
            paid.astype(np.float32),
            weight.astype(np.float32),
            jax.random.fold_in(key, step),
            deterministic=deterministic,
        )
        # Drawing can take longer than stepping: what would not be shown is not drawn.
        camera.armed = wanted = step % every == 0 or step == length
        moved = stage.step(actions)
        cost = np.asarray(moved.costs, np.float64)
        reward, total = reward + float(moved.reward[0]), total + cost[0]
        paid, weight = paid + weight[:, None] * cost, weight * gamma
        observation = np.asarray(moved.observation)
        ended = bool(moved.terminated[0] | moved.truncated[0])
        if wanted or ended:
            shown.append(Scene(episode, step, camera.image, reward, total))
        if ended:
            break
        if len(shown) > most:
            shown, every = shown[::2], 2 * every
    return shown


def _picture(env: gymnasium.Env[Any, Any]) -> NDArray[np.uint8]:
    """What `render` returns, checked."""
    name = type(env.unwrapped).__name__
    advice = f"let it return an image (height, width, 3) of uint8 where its render_mode is {MODE!r}"
    try:
        image: Any = env.render()
    except (Exception, SystemExit) as error:
        raise InputError(f"environment {name}: render raised an error: {place_of(error)}; {advice}") from error
    if image is None:
        raise InputError(f"environment {name} cannot be shown: its render returned nothing; {advice}")
    array = np.asarray(image)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] not in (3, 4):
        raise InputError(
            f"environment {name} cannot be shown: its render returned {array.dtype} of shape {array.shape}; {advice}"
        )
    return np.array(array[..., :3])
