"""A user's Gymnasium environments as a learner takes them: copies here, or in several processes."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from tailsafe.envs.copies import Copies, HostStep, Watch, seeds_of
from tailsafe.envs.declarations import staying
from tailsafe.envs.finding import Found, misfit
from tailsafe.envs.jax_env import JaxEnv
from tailsafe.envs.jax_user import JaxUserEnvironments, spec_of
from tailsafe.envs.metrics import Metric
from tailsafe.envs.workers import Workers
from tailsafe.errors import InputError, place_of
from tailsafe.learning.chunks import Transition

# The log's means of metrics are over this many of the latest episodes.
_WINDOW = 100


class GymnasiumEnvironments:
    """`num_envs` copies of what `found` builds. workers: the processes that step them; 1: this one.

    metrics: numbers from `info` to follow. watch: see `Copies`; not with workers. made: copies that are built already.
    """

    def __init__(
        self,
        found: Found,
        num_envs: int,
        *,
        workers: int = 1,
        metrics: Sequence[Metric] = (),
        watch: Watch = lambda env: None,
        made: Sequence[Any] = (),
    ) -> None:
        self.num_envs = num_envs
        self.source = found.source
        self.engine: str | None = None
        self._found = found
        self._metrics = tuple(metrics)
        make = functools.partial(_once, list(made), found.make)
        self._players: Copies | Workers
        if workers == 1:
            self._players = Copies(make, num_envs, found.name, metrics, watch)
        else:
            self._players = Workers(found, make, num_envs, workers, metrics)
        self.layout = self._players.layout
        self.spec = spec_of(self.layout, found.name)
        self._finished: deque[NDArray[np.float64]] = deque(maxlen=_WINDOW)
        self.latest: HostStep | None = None

    @property
    def envs(self) -> list[Any]:
        """The copies of this process."""
        return self._players.envs if isinstance(self._players, Copies) else []

    def reset(self, seed: int) -> Float[NDArray[np.float32], "N O"]:
        """Begin the first episodes of `seed`; later ones draw on with each environment's own randomness."""
        if isinstance(self._players, Workers):
            return self._players.reset(seed)
        return self._players.reset(seeds_of(seed, self.num_envs))

    def step(self, actions: Float[NDArray[np.float32], "N A"]) -> Transition:
        """One step in every copy, and the next episode where one ended."""
        self.latest = rows = self._players.step(np.asarray(actions))
        if self._metrics:
            self._finished.extend(rows.metrics[rows.done])
        leaves: dict[str, Any] = {
            name: getattr(rows, name)
            for name in ("next_observation", "observation", "reward", "costs", "terminated", "truncated")
        }
        return Transition(**leaves)

    def followed(self) -> Mapping[str, float | None]:
        """The mean of each metric over the latest finished episodes; None before the first has ended."""
        if not self._finished:
            return {metric.text: None for metric in self._metrics}
        means = np.mean(self._finished, axis=0).tolist()
        return {metric.text: mean for metric, mean in zip(self._metrics, means, strict=True)}

    def another(self) -> GymnasiumEnvironments:
        """One more copy, by itself, that disturbs none of these."""
        return GymnasiumEnvironments(self._found, 1, metrics=self._metrics)

    def snapshot(self) -> None:
        """Gymnasium environments cannot be saved."""

    def restore(self, snapshot: Any) -> None:
        raise NotImplementedError("a Gymnasium environment cannot be restored")

    def close(self) -> None:
        """Close every copy."""
        self._players.close()


def user_environments(
    found: Found, num_envs: int, *, workers: int = 1, metrics: Sequence[Metric] = (), watch: Watch = lambda env: None
) -> GymnasiumEnvironments | JaxUserEnvironments:
    """Environments of either kind: what is built decides."""
    first = _first(found)
    if not isinstance(first, JaxEnv):
        # One that was built to see what it is becomes the first copy.
        return GymnasiumEnvironments(found, num_envs, workers=workers, metrics=metrics, watch=watch, made=[first])
    if metrics:
        raise InputError(f"environment {found.name}: metrics are of Gymnasium's info, which a JaxEnv does not have")
    if workers > 1:
        raise InputError(f"environment {found.name}: env_workers is for Gymnasium environments; a JaxEnv needs none")
    return JaxUserEnvironments(first, num_envs, found.name)


def _first(found: Found) -> Any:
    try:
        with staying(found.name):
            return found.make()
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        advice = misfit(found.make) if isinstance(error, TypeError) else _missing(error)
        raise InputError(f"environment {found.name}: it could not be built: {place_of(error)}{advice}") from error


def _missing(error: BaseException) -> str:
    """How to get what Gymnasium's robots import without saying so."""
    missing = isinstance(error, ModuleNotFoundError) and error.name == "imageio"
    return "; Gymnasium's robots need: pip install 'gymnasium[mujoco]'" if missing else ""


def _once(made: list[Any], make: Any) -> Any:
    return made.pop() if made else make()
