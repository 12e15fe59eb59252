"""The `tailsafe` program: which commands there are, and how every one of them fails.

Each command lives in a module of its own and imports what it needs inside the function, so that
`tailsafe --help` and a typing mistake answer at once. Bad input (`InputError`, or a wrong option) becomes
one line on stderr and exit code 2; any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailsafe._version import __version__
from tailsafe.cli.help import WorkGroup, examples
from tailsafe.errors import InputError
from tailsafe.terminal import printable

if TYPE_CHECKING:
    from rich.console import Console

BAD_INPUT = 2
INTERRUPTED = 130
# Levels of a step spectrum: the projection is exact far below.
MOST_CELLS = 256
# As `evaluation.episodes.MOST_EPISODES`.
MOST_EPISODES = 10_000_000
# What a path or a disk may answer; other errors of the system are bugs and keep their traceback.
_OF_THE_MACHINE = {
    *(errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    *(errno.EIO, errno.ELOOP, errno.EMFILE, errno.ENFILE, errno.ENOTDIR, errno.ESTALE),
}

app = typer.Typer(
    name="tailsafe",
    help="Find the best policy whose spectral risks stay under your limits.",
    cls=WorkGroup,
    epilog=examples(""),
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Spec = Annotated[
    str,
    typer.Argument(metavar="SPEC", help="mean, cvar:0.75, pow:0.9, wang:1.0, or steps:ETA1,ETA2,…/ALPHA1,…"),
]
EnvArgs = Annotated[
    list[str] | None,
    typer.Option("--env-arg", metavar="NAME=VALUE", help="Argument of an environment of your own; repeats."),
]
EnvName = Annotated[
    str | None, typer.Option("--env", metavar="MODULE:CLASS", help="An environment in place of the one the run names.")
]
TrustFlag = Annotated[
    bool, typer.Option("--trust", help="Run the code of the environment that the run names, whoever trained it.")
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")]


def console(stderr: bool = False) -> Console:
    """Where people read results; plain text when the output is not a terminal."""
    from rich.console import Console
    from rich.text import Text

    class Harmless(Console):
        """Names from files may hold escape sequences; none of them reaches the terminal."""

        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(printable(text), **options)

    return Harmless(stderr=stderr, highlight=False, soft_wrap=not stderr)


def emit_json(result: Mapping[str, Any]) -> None:
    """Print `result` as one line. JSON has no NaN and no infinities: they must be None by now."""
    typer.echo(json.dumps(result, allow_nan=False))


def _harmless(record: logging.LogRecord) -> bool:
    """Warnings may quote what strangers wrote, too."""
    record.msg, record.args = printable(record.getMessage()), ()
    return True


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"tailsafe {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Find the best policy whose spectral risks stay under your limits."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program on `arguments` (default: the process's own) and exit with its code."""
    logging.getLogger("tailsafe").addFilter(_harmless)
    if arguments is None:
        _keep_interrupts()
        if isinstance(sys.stdout, io.TextIOWrapper):
            # Of a terminal or pipe that knows few characters: the others are question marks, not a traceback.
            sys.stdout.reconfigure(errors="replace")
    try:
        code = app(args=None if arguments is None else list(arguments), standalone_mode=False)
    except InputError as error:
        _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        _last_words(arguments)
        typer.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
    except MemoryError as error:
        _fail(f"there is not enough memory for this: {str(error) or 'out of memory'}")
    except OSError as error:
        if error.errno not in _OF_THE_MACHINE:
            raise
        _fail(f"{error.filename or 'a file'}: {error.strerror}")
    except Exception as error:
        # A wrong option or argument. Typer carries its own copy of click's exceptions since 0.26, older
        # versions raise click's: both know how to say what was wrong.
        if not hasattr(error, "format_message"):
            raise
        if not error.format_message():  # no arguments at all: the help has been printed
            sys.exit(0)
        _fail(error.format_message())
    if code == INTERRUPTED:  # Typer has caught it
        _last_words(arguments)
    sys.exit(code if isinstance(code, int) else 0)


def _keep_interrupts() -> None:
    """What a signal raises inside of a destructor or a callback of the garbage collector is lost there, and shown as a
    traceback. A Ctrl-C is raised again instead, a moment later.
    """
    before = sys.unraisablehook

    def hook(told: Any) -> None:
        if told.exc_type is not KeyboardInterrupt:
            before(told)
            return
        again = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
        again.daemon = True
        with contextlib.suppress(RuntimeError):  # the program is ending anyway
            again.start()

    sys.unraisablehook = hook


def _last_words(arguments: Sequence[str] | None) -> None:
    """Where this process is about to end, a third Ctrl-C has nothing left to interrupt."""
    if arguments is None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _fail(message: str) -> None:
    typer.echo("error: " + printable(" ".join(message.split())), err=True)
    sys.exit(BAD_INPUT)
