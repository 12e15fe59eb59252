"""How `--help` reads: commands in the order of a person's work, examples that can be pasted, flags without a type."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

# Panels and their commands, in the order in which somebody meets them; what is not named here comes last.
_PANELS = {
    "Set out": ("tasks", "check-env", "settings"),
    "Train": ("train", "resume", "tune"),
    "Judge": ("evaluate", "certify", "front", "diagnose"),
    "Show and share": ("plot", "render", "report", "export"),
    "Risk measures and exact solutions": ("spectrum", "risk", "tabular"),
    "Studies and speed": ("study", "bench"),
}
_ORDER = [name for names in _PANELS.values() for name in names]

# Of the program itself, and of every command.
EXAMPLES = {
    "": (
        "tailsafe train point-goal --limit 0.025/step --out runs/a",
        "tailsafe evaluate runs/a",
        "tailsafe report runs/a",
    ),
    "tasks": ("tailsafe tasks --json",),
    "check-env": ("tailsafe check-env my_env:MyEnv", "tailsafe check-env ./my_env.py:make_env --env-arg size=5"),
    "settings": ("tailsafe settings --all", "tailsafe settings margin"),
    "train": (
        "tailsafe train point-goal",
        "tailsafe train point-goal --risk cvar:0.9 --limit 0.01/step --seeds 3",
        "tailsafe train my_env:MyEnv --limit 25/episode --steps 500000",
        "tailsafe train point-goal --from runs/a --limit 0.01/step",
    ),
    "resume": ("tailsafe resume runs/a", "tailsafe resume runs/a --steps 1000000"),
    "tune": (
        "tailsafe tune point-goal --trials 30 --steps 500000",
        "tailsafe tune point-goal --trials 30 --tune max_kl=0.002..0.05 --tune critic_rate=0.0003,0.001",
    ),
    "evaluate": ("tailsafe evaluate runs/a --episodes 2000", "tailsafe evaluate runs/a --json"),
    "certify": (
        "tailsafe certify runs/a --limit 0.025/step --episodes 20000",
        "tailsafe certify --check runs/a/certificate.json",
    ),
    "front": ("tailsafe front runs/a runs/b runs/c", "tailsafe front runs/range --points 8"),
    "diagnose": ("tailsafe diagnose runs/a",),
    "plot": ("tailsafe plot runs/a runs/b --out curves.png",),
    "render": ("tailsafe render runs/a --out a.mp4", "tailsafe render runs/a --map --episodes 4"),
    "report": ("tailsafe report runs/a runs/b --out compared.html",),
    "export": ("tailsafe export runs/a --format onnx",),
    "spectrum": ("tailsafe spectrum wang:0.5 --cells 5 --plot wang.png",),
    "risk": ("tailsafe risk cvar:0.75 costs.csv --upper 20",),
    "tabular": ("tailsafe tabular problem.json --risk cvar:0.75 --limit 2",),
    "study": ("tailsafe study benchmark --scale smoke",),
    "bench": ("tailsafe bench envs --json",),
}


class WorkGroup(TyperGroup):
    """The program's commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order of a person's work."""
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """With its panel, its examples, and options that say what they take."""
        command: Any = super().get_command(ctx, cmd_name)
        if command is None:
            return None
        for panel, names in _PANELS.items():
            if cmd_name in names:
                command.rich_help_panel = panel
        if cmd_name in EXAMPLES:
            command.epilog = examples(cmd_name)
        _say_types([*command.params, command.get_help_option(ctx)])
        return command

    def get_params(self, ctx: Any) -> Any:
        """The program's own options, `--help` included."""
        found = super().get_params(ctx)
        _say_types(found)
        return found


def examples(name: str) -> str:
    """The examples of a command, each on a line of its own."""
    return "\n\n".join(["Examples:", *EXAMPLES[name]])


def _say_types(parameters: Any) -> None:
    """A flag takes nothing, an option with a name for its value takes that, and RUN... says that there may be more."""
    for one in parameters:
        flag, option = getattr(one, "is_flag", False), getattr(one, "param_type_name", "") == "option"
        shown = None if flag or not option else getattr(one, "metavar", None)
        if (shown or flag) if option else getattr(one, "nargs", 1) != 1:
            # Typer has no option for it.
            one.display_type_rich = lambda ctx, shown=shown: shown
