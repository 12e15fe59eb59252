"""The command line. Nothing else imports this package."""

import sys

try:
    from tailsafe.cli import (
        bench,
        certify,
        check_env,
        diagnose,
        evaluate,
        export,
        front,
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
        tune,
    )
    from tailsafe.cli.app import app, main
except KeyboardInterrupt:
    # In the first half second of the program, before there is anybody to catch it.
    sys.stderr.write("interrupted\n")
    sys.exit(130)

# Importing a command's module adds the command.
__all__ = [
    "app",
    "bench",
    "certify",
    "check_env",
    "diagnose",
    "evaluate",
    "export",
    "front",
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
    "tune",
]
