"""Result files: checked before the work, written whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

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
        # The content before the name: after a loss of power the name must not stand for an empty file.
        sync(partial)
        os.replace(partial, path)
        sync(path.parent)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    finally:
        # Where even that is refused, the first error is the one to tell.
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """A file's content, or a folder's names, on the disk. File systems that cannot do it are left alone."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """All files below `folder` and its own name on the disk: they survive a loss of power."""
    for place, _, names in os.walk(folder):
        for name in names:
            sync(Path(place) / name)
        sync(Path(place))
    sync(folder.parent)


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
    """An object as JSON for people and programs, whole or not at all. JSON has no NaN and no infinities."""
    with replacing(path) as partial:
        partial.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


# Of JSON files: what is deeper was not written by tailsafe.
DEEPEST = 50


def no_link(path: str, flags: int) -> int:
    """An opener for `open` that follows no link: what is written into a run stays in its folder."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def open_text(path: Path) -> TextIO:
    """A text file that anybody may have put there, open to read, lines as they are.

    `OSError` for what is not a file: reading a pipe may never return, and a device may never end.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return path.open(encoding="utf-8", newline="")


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file that anybody may have written; an `InputError` in one line, whatever is wrong with it.

    NaN and infinities, which JSON does not know, are refused, and so are endless nesting and integers of thousands of
    digits.
    """

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        with open_text(path) as handle:
            content = json.loads(handle.read(), parse_constant=refuse)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path}: is not JSON") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: must hold an object, holds {type(content).__name__}")
    level: list[Any] = [content]
    for _ in range(DEEPEST):
        level = [child for parent in level for child in (parent.values() if isinstance(parent, dict) else parent)]
        level = [child for child in level if isinstance(child, dict | list)]
    if level:
        raise InputError(f"{path}: is nested more than {DEEPEST} levels deep")
    return content


def json_digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of an object as JSON, whatever the order of its keys and the spaces around them."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
