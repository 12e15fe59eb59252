"""The command line. Nothing else imports this package."""

from tailsafe.cli.app import app, main

__all__ = ["app", "main"]
