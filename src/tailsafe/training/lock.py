"""One process per run: a lock of the operating system on a file in the run's folder.

The lock belongs to the open file, so it is gone with the process that held it, however that ended. The file's content
says who holds it, for people.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import socket
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

from tailsafe.errors import InputError
from tailsafe.files import no_link

LOCK = ".lock"
# Of file systems without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


@contextlib.contextmanager
def held(folders: Iterable[Path]) -> Iterator[None]:
    """Hold the locks of these folders, which are made if missing; `InputError` names the process that holds one.

    Folders that were made here and stay empty are removed again.
    """
    with contextlib.ExitStack() as locks:
        for folder in dict.fromkeys(folders):
            locks.enter_context(_held(folder))
        yield


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = no_link(str(path), os.O_RDWR | os.O_CREAT)
    except OSError as error:
        _remove(missing)
        why = "its lock is a link" if error.errno == errno.ELOOP else error.strerror or error
        raise InputError(f"{folder}: {why}") from None
    try:
        _take(handle, folder)
        yield
    finally:
        # Somebody may have removed the folder meanwhile; that is told by what could not be written there.
        with contextlib.suppress(OSError):
            if missing and [child.name for child in folder.iterdir()] == [LOCK]:
                path.unlink()
                _remove(missing)
            else:
                os.ftruncate(handle, 0)
        os.close(handle)


def _take(handle: int, folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # a system without them
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(f"{folder}: is being trained by {_holder(handle)}; wait for it, or stop it first") from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise InputError(f"{folder / LOCK}: {error.strerror or error}") from None
        logging.getLogger("tailsafe").warning("%s: no locks here; train it from one process only", folder)
        return
    who = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now().isoformat(timespec="seconds"),
        "command": " ".join(sys.argv)[:200],
    }
    # A disk that is full: the lock holds all the same, and what needs room says so.
    with contextlib.suppress(OSError):
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(who).encode(), 0)


def _holder(handle: int) -> str:
    try:
        who = json.loads(os.pread(handle, 4096, 0))
        return f"process {int(who['pid'])} on {str(who['host'])[:60]!r} since {str(who['since'])[:30]}"
    except (OSError, ValueError, LookupError, TypeError):
        return "another process"


def _remove(made: list[Path]) -> None:
    """Folders, innermost first; those that are not empty stay."""
    for place in made:
        with contextlib.suppress(OSError):
            place.rmdir()
