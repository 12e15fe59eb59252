"""The `tailsafe` program: which commands there are, and how every one of them fails.

Each command lives in a module of its own and imports what it needs inside the function, so that
`tailsafe --help` and a typing mistake answer at once. Bad input (`InputError`, or a wrong option) becomes
one line on stderr and exit code 2; any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailsafe._version import __version__
from tailsafe.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

BAD_INPUT = 2
INTERRUPTED = 130

app = typer.Typer(
    name="tailsafe",
    help="Find the best policy whose spectral risks stay under your limits.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Spec = Annotated[
    str,
    typer.Argument(metavar="SPEC", help="mean, cvar:0.75, pow:0.9, wang:1.0, or steps:ETA1,ETA2,…/ALPHA1,…"),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")]


def console(stderr: bool = False) -> Console:
    """Where people read results; plain text when the output is not a terminal."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=not stderr)


def emit_json(result: Mapping[str, Any]) -> None:
    """Print `result` as one line. Infinities and NaN are no JSON: they must be None by now."""
    typer.echo(json.dumps(result, allow_nan=False))


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
    try:
        code = app(args=None if arguments is None else list(arguments), standalone_mode=False)
    except InputError as error:
        _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
    except Exception as error:
        # A wrong option or argument. Typer carries its own copy of click's exceptions since 0.26, older
        # versions raise click's: both know how to say what was wrong.
        if not hasattr(error, "format_message"):
            raise
        if not error.format_message():  # no arguments at all: the help has been printed
            sys.exit(0)
        _fail(error.format_message())
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> None:
    typer.echo("error: " + " ".join(message.split()), err=True)
    sys.exit(BAD_INPUT)
