"""Result files: checked before the work, written whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tailsafe.errors import InputError


def check_writable(path: Path) -> None:
    """Refuse a result file that could not be written, before any work is spent on it."""
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise InputError(f"{path}: is a folder")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{path}: the folder {path.parent} is not writable")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file next to `path` to write to; it takes the name `path` when the block ends well, and vanishes otherwise."""
    partial = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield partial
        os.replace(partial, path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    finally:
        partial.unlink(missing_ok=True)


def check_new(path: Path) -> None:
    """Refuse a result that exists already or could not be written; an empty folder may stand where one is to be."""
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise InputError(f"{path}: exists already; remove it or choose another place")
    if not path.is_dir():
        check_writable(path)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder next to `path` to fill; it takes the name `path` when the block ends well, and vanishes otherwise."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.mkdir()
        yield partial
        if path.is_dir():
            path.rmdir()  # an empty one; any other stays and is an error
        os.rename(partial, path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """An object as JSON for people and programs, whole or not at all. NaN and infinities are no JSON."""
    with replacing(path) as partial:
        partial.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
