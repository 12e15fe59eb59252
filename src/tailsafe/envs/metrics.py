"""Numbers of a user's own from `info`: a success, a distance. One number per episode."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailsafe.errors import InputError

# From (what the episode's steps came to so far, this step's number, steps so far) to the same with this step.
_WAYS: Mapping[str, Callable[[float, float, int], float]] = {
    "last": lambda before, now, steps: now,
    "sum": lambda before, now, steps: before + now if steps else now,
    "mean": lambda before, now, steps: (before * steps + now) / (steps + 1),
    "max": lambda before, now, steps: max(before, now) if steps else now,
    "min": lambda before, now, steps: min(before, now) if steps else now,
}


@dataclass(frozen=True)
class Metric:
    """The number `info[key]` of an episode's steps, summed up in one `way`: last, sum, mean, max or min."""

    key: str
    way: str = "last"

    @staticmethod
    def parse(text: str) -> Metric:
        """`success` (of the last step), or `max:success`, `mean:speed`, `sum:falls`, `min:distance`."""
        way, colon, key = text.strip().rpartition(":")
        if not colon:
            way = "last"
        if way not in _WAYS:
            raise InputError(f"metric {text!r}: write NAME or WAY:NAME, where WAY is {', '.join(_WAYS)}")
        if not key or not key.isprintable() or "," in key:
            raise InputError(f"metric {text!r}: {key!r} is not a name")
        return Metric(key, way)

    @property
    def text(self) -> str:
        """What `parse` reads."""
        return self.key if self.way == "last" else f"{self.way}:{self.key}"

    def number(self, info: Any) -> float:
        """This step's number."""
        if not isinstance(info, Mapping) or self.key not in info:
            raise InputError(f"info has no {self.key!r}, which --metric {self.text} asks for")
        value = info[self.key]
        array = np.asarray(value)
        if array.size != 1 or array.dtype.kind not in "biuf" or not math.isfinite(array.reshape(-1)[0]):
            raise InputError(f"info[{self.key!r}] is {value!r}; a metric must be a finite number")
        return float(array.reshape(-1)[0])


def parse_metrics(texts: Sequence[str]) -> tuple[Metric, ...]:
    """Metrics from their texts, each once."""
    return tuple(dict.fromkeys(map(Metric.parse, texts)))


class Running:
    """The metrics (N, M) of N running episodes."""

    def __init__(self, metrics: Sequence[Metric], num_envs: int) -> None:
        self._metrics = metrics
        self.values: NDArray[np.float64] = np.zeros((num_envs, len(metrics)))
        self._steps = np.zeros(num_envs, int)

    def add(self, i: int, info: Any) -> None:
        """One step of environment i."""
        steps = int(self._steps[i])
        for m, metric in enumerate(self._metrics):
            self.values[i, m] = _WAYS[metric.way](self.values[i, m], metric.number(info), steps)
        self._steps[i] += 1

    def begin(self, i: int) -> None:
        """A new episode in environment i."""
        self._steps[i] = 0
        self.values[i] = 0.0
