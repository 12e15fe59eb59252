"""Pages of the site that are written from the code: settings, commands, changelog. MkDocs calls these functions.

`docs/settings.md` and `docs/commands.md` are introductions; what they introduce is put at the end of the page.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))  # The code beside the pages, whatever else is installed.


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """CHANGELOG.md lies outside of docs."""
    files.append(File.generated(config, "changelog.md", abs_src_path=str(ROOT / "CHANGELOG.md")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """What stands in Markdown files, and what is generated."""
    generated = {"settings.md": settings, "commands.md": commands}.get(page.file.src_uri)
    return markdown if generated is None else "\n".join([markdown, *generated()])


def settings() -> Iterator[str]:
    """One table per algorithm. Defaults are those of navigation tasks; other families follow where they differ."""
    from tailsafe.algorithms.registry import ALGORITHMS
    from tailsafe.training.settings import FAMILIES, PRESETS
    from tailsafe.training.settings_page import describe_settings, written

    for algorithm in ALGORITHMS:
        yield f'\n## {algorithm}\n\n<div class="settings" markdown>\n'
        yield f"| setting | {' | '.join(PRESETS)} | allowed | meaning |"
        yield "|---" * (3 + len(PRESETS)) + "|"
        families = {family: describe_settings(algorithm, family) for family in FAMILIES}
        for row, setting in enumerate(families["navigation"]):
            cells = []
            for preset in PRESETS:
                usual = written(setting.defaults[preset])
                others = {family: written(found[row].defaults[preset]) for family, found in families.items()}
                differ = [f"{family}: {value}" for family, value in others.items() if value != usual]
                cells.append("<br>".join([usual, *differ]))
            allowed = setting.allowed.replace(" | ", ", ")
            yield f"| `{setting.key}` | {' | '.join(cells)} | {allowed} | {setting.meaning} |"
        yield "\n</div>"


def commands() -> Iterator[str]:
    """Every command with its arguments and options, from the signatures that `--help` is made of."""
    from tailsafe.cli import app

    functions = ((info.name, info.callback) for info in app.registered_commands if info.callback)
    found = {name or function.__name__: function for name, function in functions}
    for name, function in sorted(found.items()):
        parameters = [_Parameter.of(*pair) for pair in _annotated(function)]
        usage = " ".join(p.label if p.default == "required" else f"[{p.label}]" for p in parameters if not p.option)
        yield f"\n## {name}\n"
        yield f"```\ntailsafe {name} {usage + ' ' if usage else ''}[OPTIONS]\n```\n"
        yield f"{inspect.getdoc(function)}\n"
        yield "| | meaning | default |\n|---|---|---|"
        for p in parameters:
            yield f"| `{p.label}` | {p.help} | {p.default} |"


def _annotated(function: Callable[..., Any]) -> Iterator[tuple[inspect.Parameter, Any]]:
    hints = get_type_hints(function, include_extras=True)
    return ((parameter, hints[name]) for name, parameter in inspect.signature(function).parameters.items())


class _Parameter(NamedTuple):
    """A row of a command's table."""

    option: bool
    label: str
    help: str
    default: str

    @staticmethod
    def of(parameter: inspect.Parameter, hint: Any) -> _Parameter:
        import typer

        kind, info = get_args(hint)[:2]
        # X | None and lists of X take an X each.
        kind = next((part for part in get_args(kind) or [kind] if part is not type(None)), kind)
        kind = next(iter(get_args(kind)), kind)
        given = getattr(parameter.default, "value", parameter.default)
        default = "" if given is None or given is False else f"`{given}`"
        if parameter.default is parameter.empty:
            default = "required"
        text = " ".join((info.help or "").split()).replace("|", "\\|")
        if isinstance(info, typer.models.ArgumentInfo):
            return _Parameter(False, info.metavar or parameter.name.upper(), text, default)
        # In Annotated the first name of an option stands where its default would be.
        named = [name for name in (info.default, *(info.param_decls or ())) if isinstance(name, str)]
        flag = next(iter(named), "--" + parameter.name.replace("_", "-"))
        return _Parameter(True, flag if kind is bool else f"{flag} {info.metavar or _values(kind)}", text, default)


def _values(kind: Any) -> str:
    """What stands after an option."""
    if issubclass(kind, Enum):
        return ",".join(choice.value for choice in kind)
    return {int: "NUMBER", float: "NUMBER", Path: "PATH"}.get(kind, "TEXT")
