"""The command line. Nothing else imports this package."""

from tailsafe.cli import bench, risk, spectrum, tabular
from tailsafe.cli.app import app, main

# Importing a command's module adds the command.
__all__ = ["app", "bench", "main", "risk", "spectrum", "tabular"]
