"""Stopping: the first Ctrl-C is a stop request, which long work asks about; the second one acts at once."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Protocol

STOPPING = b"\nstopping as soon as all is saved; once more stops at once\n"
# Seconds from a signal to the end of a process that has nothing to save, or was asked twice.
PATIENCE, ASKED_TWICE = 5.0, 2.0
_WATCHED = (signal.SIGINT, signal.SIGTERM)


class RunInterrupted(KeyboardInterrupt):
    """A signal stopped the run after it was saved."""

    def __init__(self, folder: Path, steps: int, number: int) -> None:
        super().__init__(f"stopped and saved at {steps:,} steps; continue with: tailsafe resume {folder}")
        self.folder, self.steps, self.signal = folder, steps, number


class Stop(Protocol):
    """Source of stop requests. caught: the signal, if it was one."""

    caught: int | None

    def wanted(self) -> bool:
        """Whether to stop after the running updates."""
        ...

    def settle(self) -> None:
        """Told after the first updates: from now on a stop is worth waiting for."""
        ...


class Signals:
    """While it is entered, the first SIGINT or SIGTERM is a stop request, and the second one acts as it would have
    before. until: from this moment of `time.monotonic` on there is such a request, too.

    May be entered inside of another one, and then knows of the requests that the outer one has caught: commands enter
    one before they import what is slow, since an exception that a signal raises just anywhere may be lost there.

    unsaved: nothing of this process needs saving yet, see `settle`. Until then a request ends the process after
    `PATIENCE`, also where no Python runs: handlers wait while a program compiles or memory is allocated.
    """

    def __init__(self, until: float = math.inf, *, unsaved: bool = False) -> None:
        self.caught: int | None = None
        self._until = until
        self._unsaved = unsaved
        self._before: dict[int, Any] = {}
        self._watch: _Watch | None = None
        self._own_watch = False

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in _WATCHED:
                self._before[number] = signal.signal(number, self._catch)
                outer = getattr(self._before[number], "__self__", None)
                if isinstance(outer, Signals):
                    self._watch = outer._watch
                    if outer.caught is not None:
                        self.caught = outer.caught
            if self._watch is None:
                self._watch, self._own_watch = _Watch(), True
            self._watch.unsaved |= self._unsaved
        return self

    def __exit__(self, *_: object) -> None:
        if self._own_watch and self._watch is not None:
            self._watch.close()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def settle(self) -> None:
        """From now on there is something to save: a request waits for it."""
        if self._watch is not None:
            self._watch.unsaved = False

    def _catch(self, number: int, _: Any) -> None:
        if self.caught is None:
            self.caught = number
            # Past all buffers: a signal may come while one of them is being written.
            with contextlib.suppress(OSError):
                os.write(2, STOPPING)
            return
        root = self._root(number)
        if root is signal.default_int_handler:
            # What is unwound now is not to be interrupted by a third one.
            signal.signal(number, signal.SIG_IGN)
            raise KeyboardInterrupt
        signal.signal(number, root)
        signal.raise_signal(number)

    def _root(self, number: int) -> Any:
        """The handler from outside of all of them."""
        handler = self._before[number]
        outer = getattr(handler, "__self__", None)
        return outer._root(number) if isinstance(outer, Signals) else handler

    def wanted(self) -> bool:
        """Whether to stop."""
        return self.caught is not None or time.monotonic() >= self._until


class _Watch:
    """A thread that receives signals while the main one is inside of compiled code, and ends the process in time.

    All files are written whole or not at all, so the end is as safe as that of a killed process.
    """

    def __init__(self) -> None:
        self.unsaved = False
        self._asked = 0
        self._closed = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        threading.Thread(target=self._listen, name="signals", daemon=True).start()

    def close(self) -> None:
        """In the main thread: nobody listens any more."""
        self._closed = True
        signal.set_wakeup_fd(self._before)
        os.close(self._write)  # the thread reads the end of the pipe

    def _listen(self) -> None:
        while heard := os.read(self._read, 1):
            if heard[0] in _WATCHED:
                self._asked += 1
                delay = PATIENCE if self._asked == 1 else ASKED_TWICE
                timer = threading.Timer(delay, self._end, (heard[0], self._asked))
                timer.daemon = True
                timer.start()
        os.close(self._read)

    def _end(self, number: int, asked: int) -> None:
        if self._closed or (asked == 1 and not self.unsaved):
            return
        shown = b"\x1b[?25h" if sys.stderr.isatty() else b""  # a live table has hidden the cursor
        with contextlib.suppress(OSError):
            os.write(2, shown + b"stopped before there was anything new to save\n" if asked == 1 else shown)
        os._exit(128 + number)
