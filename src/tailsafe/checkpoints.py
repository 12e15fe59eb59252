"""Checkpoints: whole states of a run in orbax's format, the latest three kept, each with digests of all it holds.

Orbax writes a checkpoint under another name first, so a killed process leaves the earlier ones as they were. Digests
find what a crash of the machine, a full disk or a careless copy may have done to a file: such a checkpoint is passed
over for the one before.
"""

from __future__ import annotations

import functools
import logging
import shutil
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from numpy.typing import NDArray

from tailsafe.files import json_digest, sync_tree

KEPT = 3
# Beside the folder of the checkpoints.
UNREADABLE = "unreadable-checkpoints"
Arrays = dict[str, NDArray[Any]]
Content = tuple[Arrays, dict[str, Any]]


def to_arrays(tree: Any) -> Arrays:
    """The leaves of a pytree by their paths, as NumPy arrays; random keys as their words."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="."): _plain(leaf) for path, leaf in leaves}


def from_arrays(like: Any, arrays: Arrays) -> Any:
    """A pytree like `like` with these leaves. Raises `KeyError` or `ValueError` where they do not fit."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    values = []
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        array = arrays[name]
        if array.shape != _plain_shape(leaf):
            raise ValueError(f"{name} has shape {array.shape}, not {_plain_shape(leaf)}")
        values.append(
            jax.random.wrap_key_data(jax.numpy.asarray(array))
            if _is_key(leaf)
            else jax.numpy.asarray(array, leaf.dtype)
        )
    return jax.tree.unflatten(structure, values)


def _is_key(leaf: Any) -> bool:
    return jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> NDArray[Any]:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _plain_shape(leaf: Any) -> tuple[int, ...]:
    return jax.eval_shape(jax.random.key_data, leaf).shape if _is_key(leaf) else tuple(leaf.shape)


class Checkpoints:
    """The checkpoints in one folder, by the number of control steps."""

    def __init__(self, folder: Path) -> None:
        # Orbax tells at length what it does, and every failure twice; a run's output is its own.
        logging.getLogger("absl").setLevel(logging.CRITICAL)
        _ignore_closed_loops()
        self._folder = folder.resolve()
        self._manager: Any = None

    def steps(self) -> list[int]:
        """Which there are, complete or not, oldest first."""
        if not self._folder.is_dir():
            return []
        names = [path.name for path in self._folder.iterdir()]
        return sorted(int(name) for name in names if name.isascii() and name.isdecimal() and str(int(name)) == name)

    def save(self, steps: int, arrays: Arrays, meta: dict[str, Any]) -> None:
        """Write a checkpoint and drop the oldest beyond the third; returns when it is on the disk."""
        if steps in self.steps():
            return
        # Orbax refuses arrays without entries; `load` makes them from their recorded shapes.
        filled = {name: array for name, array in arrays.items() if array.size}
        shapes = {name: [str(array.dtype), *array.shape] for name, array in arrays.items()}
        digests = {name: _digest(array) for name, array in filled.items()}
        about: dict[str, Any] = {"shapes": shapes, "digests": digests, "meta": meta}
        about["digest"] = json_digest(about)
        content = ocp.args.Composite(state=ocp.args.PyTreeSave(filled), about=ocp.args.JsonSave(about))
        try:
            self._open().save(steps, args=content)
            sync_tree(self._folder / str(steps))
        except OSError:
            raise
        except Exception as error:  # the storage layer has its own words for a full disk
            raise OSError(_one_line(error)) from None

    def load(self, steps: int) -> tuple[Arrays, dict[str, Any]]:
        """A checkpoint's arrays and metadata; any defect raises."""
        about = dict(self._open().restore(steps, args=ocp.args.Composite(about=ocp.args.JsonRestore()))["about"])
        digest = about.pop("digest", None)
        if digest is None:
            # Of a version without it: `updates` and `seconds` are as they are, the arrays have digests of their own.
            logging.getLogger("tailsafe").warning("checkpoint %d: what it says of itself was not checked", steps)
        elif digest != json_digest(about):
            raise ValueError("what it says of itself is not what was written")
        if about["meta"].get("steps", steps) != steps:
            raise ValueError(f"it is one of {about['meta']['steps']} steps under another name")
        wanted = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in about["digests"]}
        restored = self._open().restore(
            steps, args=ocp.args.Composite(state=ocp.args.PyTreeRestore(restore_args=wanted))
        )["state"]
        arrays: Arrays = {}
        for name, (dtype, *shape) in about["shapes"].items():
            arrays[name] = np.asarray(restored[name]) if name in restored else np.zeros(shape, dtype)
            if str(arrays[name].dtype) != dtype or list(arrays[name].shape) != shape:
                raise ValueError(f"{name} is {arrays[name].dtype}{list(arrays[name].shape)}, not {dtype}{shape}")
            if name in about["digests"] and _digest(arrays[name]) != about["digests"][name]:
                raise ValueError(f"{name} is not what was written")
        return arrays, about["meta"]

    def set_aside(self, steps: int) -> None:
        """Move a checkpoint that cannot be used to where no run looks for it: somebody may repair it."""
        self.close()
        place = self._folder.with_name(UNREADABLE)
        place.mkdir(exist_ok=True)
        taken = len(list(place.glob(f"{steps}*")))
        shutil.move(self._folder / str(steps), place / (f"{steps}-{taken}" if taken else str(steps)))

    def drop_after(self, steps: int) -> None:
        """Remove what is newer than `steps`: it belongs to a path that was abandoned."""
        self.close()
        for newer in self.steps():
            if newer > steps:
                shutil.rmtree(self._folder / str(newer))

    def close(self) -> None:
        """Release the folder."""
        if self._manager is not None:
            manager, self._manager = self._manager, None
            manager.close()

    def _open(self) -> Any:
        if self._manager is None:
            options = ocp.CheckpointManagerOptions(max_to_keep=KEPT, enable_async_checkpointing=False, create=True)
            self._manager = ocp.CheckpointManager(self._folder, options=options)
        return self._manager


@functools.cache
def _ignore_closed_loops() -> None:
    """After a write that failed, the storage layer's threads report to an event loop that orbax has closed: dozens of
    tracebacks about nothing. Everything else that cannot be raised is still reported.
    """
    before = sys.unraisablehook

    def hook(told: Any) -> None:
        closed = isinstance(told.exc_value, RuntimeError) and str(told.exc_value) == "Event loop is closed"
        if not (closed and told.object is None):
            before(told)

    sys.unraisablehook = hook


def _digest(array: NDArray[Any]) -> int:
    return zlib.crc32(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data)


def latest_common(checkpoints: list[Checkpoints]) -> tuple[int, list[Content]] | None:
    """The newest checkpoint that every run has whole, with its contents; None if there is none."""
    return next(readable(checkpoints, {}), None)


def readable(checkpoints: list[Checkpoints], passed: dict[int, str]) -> Iterator[tuple[int, list[Content]]]:
    """Those that every run has whole, newest first. `passed` is told which were there and why they cannot be read."""
    common = set.intersection(*(set(one.steps()) for one in checkpoints)) if checkpoints else set()
    for steps in sorted(common, reverse=True):
        try:
            contents = [one.load(steps) for one in checkpoints]
        except Exception as error:  # whatever a broken file makes orbax raise
            pass_over(passed, steps, _one_line(error))
            continue
        yield steps, contents


def pass_over(passed: dict[int, str], steps: int, reason: str) -> None:
    """Note, and say, that a checkpoint cannot be used."""
    passed[steps] = reason
    logging.getLogger("tailsafe").warning("checkpoint %d cannot be read: %s", steps, reason)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
