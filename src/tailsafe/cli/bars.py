"""Progress bars of commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tailsafe.cli.app import console

if TYPE_CHECKING:
    from rich.progress import TaskID


class Bars:
    """Bars on stderr, one for each part of the work that reports; silent if asked, or if nobody watches.

    title: what stands before the bar of a part.
    """

    def __init__(self, title: Callable[[str], str], quiet: bool) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        err = console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._title = title
        self._shown = err.is_terminal and not quiet
        self._bars = Progress(*columns, console=err, transient=True)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Bars:
        if self._shown:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._bars.stop()

    def __call__(self, part: str, done: int, total: int) -> None:
        if not self._shown:
            return
        if part not in self._tasks:
            self._tasks[part] = self._bars.add_task(self._title(part), total=total)
        self._bars.update(self._tasks[part], completed=done, total=total)
