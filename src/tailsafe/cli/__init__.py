"""The command line. Nothing else imports this package."""

from tailsafe.cli import (
    bench,
    check_env,
    evaluate,
    export,
    plot,
    render,
    report,
    risk,
    settings,
    spectrum,
    study,
    tabular,
    tasks,
    train,
)
from tailsafe.cli.app import app, main

# Importing a command's module adds the command.
__all__ = [
    "app",
    "bench",
    "check_env",
    "evaluate",
    "export",
    "main",
    "plot",
    "render",
    "report",
    "risk",
    "settings",
    "spectrum",
    "study",
    "tabular",
    "tasks",
    "train",
]
