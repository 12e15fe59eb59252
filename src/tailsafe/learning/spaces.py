"""What an environment's own observations and actions are, and how they become a learner's vectors and back.

One map for training, evaluation, the policy file and ONNX. Observations are flattened in Gymnasium's order (Dict by
key, categories one-hot). Actions are scaled from [-1, 1] to their bounds, or counted in one list of choices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from tailsafe.errors import InputError

# Processes that step environments need this module and not JAX.
if TYPE_CHECKING:
    from tailsafe.learning.actions import Actions, BoxActions, DiscreteActions

# Several choices at once (MultiDiscrete) are one choice among all combinations: at most this many.
MOST_COMBINATIONS = 1024


@dataclass(frozen=True)
class ObservationPart:
    """One array of an observation: a Box, or the categories of a Discrete or MultiDiscrete space.

    path: keys of Dict and places of Tuple spaces that lead to it. shape: of the array. counts: how many categories
    each entry has, None for plain numbers. starts: the first category of each entry.
    """

    path: tuple[str | int, ...]
    shape: tuple[int, ...]
    counts: tuple[int, ...] | None = None
    starts: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """How many entries of the flat observation it takes."""
        return math.prod(self.shape) if self.counts is None else sum(self.counts)

    def find(self, observation: Any) -> Any:
        """Its value in a nested observation."""
        for key in self.path:
            if isinstance(key, str) and not isinstance(observation, Mapping):
                raise InputError(f"an observation must be a dict with {key!r}, is {type(observation).__name__}")
            try:
                observation = observation[key]
            except (KeyError, IndexError, TypeError):
                raise InputError(f"an observation lacks {key!r}") from None
        return observation

    def encode(self, values: NDArray[Any]) -> Float[NDArray[np.float32], "N W"]:
        """(N, *shape) -> (N, width)."""
        rows = values.reshape(len(values), -1)
        if self.counts is None:
            return rows.astype(np.float32)
        chosen = rows - np.asarray(self.starts)
        if not (np.mod(chosen, 1) == 0).all() or (chosen < 0).any() or (chosen >= np.asarray(self.counts)).any():
            raise InputError(f"{self._name} has a category that its space does not have")
        offsets = np.concatenate([[0], np.cumsum(self.counts)[:-1]]).astype(int)
        hot = np.zeros((len(rows), self.width), np.float32)
        np.put_along_axis(hot, chosen.astype(int) + offsets, 1.0, axis=1)
        return hot

    def array(self, value: Any) -> NDArray[Any]:
        """As an array of numbers."""
        try:
            array = np.asarray(value)
        except Exception as error:  # lists of unequal lengths, and objects that refuse
            raise InputError(f"{self._name} is not an array: {' '.join(str(error).split())}") from None
        if array.dtype.kind not in "biuf":
            raise InputError(f"{self._name} must be numbers, is {type(value).__name__}")
        return array

    @property
    def _name(self) -> str:
        return "an observation" + "".join(f"[{key!r}]" for key in self.path)

    def to_json(self) -> dict[str, Any]:
        counts = None if self.counts is None else list(self.counts)
        return {"path": list(self.path), "shape": list(self.shape), "counts": counts, "starts": list(self.starts)}


@dataclass(frozen=True)
class ObservationSpace:
    """The parts of an observation, in the order in which they are flattened."""

    parts: tuple[ObservationPart, ...]

    @staticmethod
    def flat(size: int) -> ObservationSpace:
        """A vector."""
        return ObservationSpace((ObservationPart((), (size,)),))

    @property
    def size(self) -> int:
        """Of the flat observation."""
        return sum(part.width for part in self.parts)

    def rows(self, observations: Sequence[Any]) -> Float[NDArray[np.float32], "N O"]:
        """One observation of the environment each -> (N, O)."""
        return self._joined([self._stacked(part, observations) for part in self.parts])

    def encode(self, observation: Any) -> tuple[Float[NDArray[np.float32], "N O"], bool]:
        """(N, O) from one observation of the environment, or from a batch (arrays with a leading axis N).

        Flat ones, (O,) or (N, O), are taken as they are. The flag: whether it was a single one.
        """
        if not any(part.path for part in self.parts):
            array = self.parts[0].array(observation)
            native = array.shape == self.parts[0].shape or array.shape[1:] == self.parts[0].shape
            categories = self.parts[0].counts is not None and array.dtype.kind in "iu"
            flat = array.ndim in (1, 2) and array.shape[-1] == self.size and not (native and categories)
            if flat and (array.shape != self.parts[0].shape or array.ndim == 1):
                return np.atleast_2d(array.astype(np.float32)), array.ndim == 1
        elif isinstance(observation, np.ndarray) and observation.shape[-1:] == (self.size,) and observation.ndim < 3:
            return np.atleast_2d(self.parts[0].array(observation).astype(np.float32)), observation.ndim == 1
        arrays = [part.array(part.find(observation)) for part in self.parts]
        single = arrays[0].shape == self.parts[0].shape
        for part, array in zip(self.parts, arrays, strict=True):
            if (array.shape if single else array.shape[1:]) != part.shape or (not single and array.ndim == 0):
                raise InputError(
                    f"observations have shape {array.shape}; this policy takes {self._shapes(part)}"
                    + (f" at {'.'.join(map(str, part.path))}" if part.path else "")
                )
        batches = [array[None] if single else array for array in arrays]
        if len({len(batch) for batch in batches}) != 1:
            raise InputError("the parts of an observation have batches of different lengths")
        return self._joined([part.encode(batch) for part, batch in zip(self.parts, batches, strict=True)]), single

    def _shapes(self, part: ObservationPart) -> str:
        inner = ", ".join(map(str, part.shape))
        plain = f"({inner}{',' if len(part.shape) == 1 else ''}) or (N{', ' if inner else ','}{inner})"
        return plain if part.shape == (self.size,) or part.path else f"{plain}, flat ({self.size},) or (N, {self.size})"

    def _stacked(self, part: ObservationPart, observations: Sequence[Any]) -> NDArray[np.float32]:
        arrays = [part.array(part.find(observation) if part.path else observation) for observation in observations]
        for array in arrays:
            if array.shape != part.shape:
                raise InputError(f"an observation has shape {array.shape}; its space says {part.shape}")
        return part.encode(np.stack(arrays))

    @staticmethod
    def _joined(columns: list[NDArray[np.float32]]) -> NDArray[np.float32]:
        return columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)

    def to_json(self) -> list[dict[str, Any]]:
        return [part.to_json() for part in self.parts]


@dataclass(frozen=True)
class ActionDescription:
    """What an environment takes, and how a learner's actions become that.

    `box`: `size` numbers in [low, high], of `shape` and `dtype`; integers are rounded. `discrete`: one of `size`
    actions, counted from `start`; with `counts`, each action is a combination of several choices (MultiDiscrete, an
    array of `shape` and `dtype`), the last of which changes fastest, counted from `starts`.
    """

    kind: Literal["box", "discrete"]
    size: int
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    start: int = 0
    shape: tuple[int, ...] | None = None
    dtype: str = "float32"
    counts: tuple[int, ...] | None = None
    starts: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        actions: Actions,
        low: Sequence[float] | None = None,
        high: Sequence[float] | None = None,
        start: int = 0,
    ) -> ActionDescription:
        """From a learner's actions and the environment's own bounds (default: [-1, 1]) or first action."""
        from tailsafe.learning.actions import DiscreteActions

        if isinstance(actions, DiscreteActions):
            return cls("discrete", actions.size, start=start)
        ones = (1.0,) * actions.size
        low = tuple(-x for x in ones) if low is None else tuple(float(x) for x in low)
        return cls("box", actions.size, low, ones if high is None else tuple(float(x) for x in high))

    def build(self) -> BoxActions | DiscreteActions:
        """What the networks work with."""
        from tailsafe.learning.actions import BoxActions, DiscreteActions

        return DiscreteActions(self.size) if self.kind == "discrete" else BoxActions(self.size)

    @property
    def whole(self) -> bool:
        """Whether the numbers of a box are integers."""
        return self.kind == "box" and np.dtype(self.dtype).kind in "iu"

    def decode(self, embedded: Float[NDArray[np.floating[Any]], "N A"]) -> NDArray[Any]:
        """Embedded actions (N, A) in the environment's own units: (N, *shape) in [low, high], or (N,) integers."""
        if self.low is None or self.high is None:
            return self._chosen(np.argmax(embedded, axis=-1))
        # Bounds are double precision: those of float32 spaces are exact in it, those of others are not left.
        low, high = np.asarray(self.low), np.asarray(self.high)
        scaled = low + (np.asarray(embedded, np.float64) + 1) / 2 * (high - low)
        scaled = np.clip(np.rint(scaled) if self.whole else scaled, low, high)
        shape = (self.size,) if self.shape is None else self.shape
        return np.asarray(scaled, self.dtype).reshape(len(scaled), *shape)

    def one(self, decoded: Any) -> Any:
        """A single decoded action as an environment takes it: an array, or an integer."""
        return int(decoded) if self.kind == "discrete" and self.counts is None else np.asarray(decoded)

    def combinations(self) -> NDArray[np.int64] | None:
        """(size, number of choices): what each number of an action stands for; None where it stands for itself."""
        if self.counts is None:
            return None
        table = np.stack(np.unravel_index(np.arange(self.size), self.counts), axis=-1)
        return np.asarray(table + np.asarray(self.starts), np.int64)

    def _chosen(self, index: NDArray[np.int64]) -> NDArray[Any]:
        table = self.combinations()
        if table is None:
            return np.asarray(self.start + index)
        return table[index].astype(self.dtype).reshape(len(index), *(self.shape or ()))

    def to_json(self) -> dict[str, Any]:
        def plain(values: Sequence[Any] | None) -> list[Any] | None:
            return None if values is None else list(values)

        described: dict[str, Any] = {
            "kind": self.kind,
            "size": self.size,
            "low": plain(self.low),
            "high": plain(self.high),
        }
        described |= {"start": self.start, "shape": plain(self.shape), "dtype": self.dtype}
        return described | {"counts": plain(self.counts), "starts": list(self.starts)}
