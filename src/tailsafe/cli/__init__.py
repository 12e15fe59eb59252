"""The command line. Nothing else imports this package."""

from tailsafe.cli import bench, check_env, evaluate, plot, render, report, risk, spectrum, study, tabular, tasks, train
from tailsafe.cli.app import app, main

# Importing a command's module adds the command.
__all__ = [
    "app",
    "bench",
    "check_env",
    "evaluate",
    "main",
    "plot",
    "render",
    "report",
    "risk",
    "spectrum",
    "study",
    "tabular",
    "tasks",
    "train",
]
