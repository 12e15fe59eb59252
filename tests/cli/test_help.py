"""How help reads: in the order of a person's work, with examples, flags without a type; and completion."""

import re

import pytest

from tailsafe.cli import app, main
from tailsafe.cli.help import _ORDER, EXAMPLES


@pytest.fixture
def shown(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "dumb")

    def show(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--help"])
        assert ended.value.code == 0
        return capsys.readouterr().out

    return show


def test_commands_are_in_the_order_of_work(shown):
    text = shown()
    names = [c.name or c.callback.__name__.replace("_", "-") for c in app.registered_commands]
    assert set(names) <= set(_ORDER), "a new command needs a place in cli/help.py"
    places = [re.search(rf"^│ {name} ", text, flags=re.MULTILINE).start() for name in _ORDER if name in names]
    assert places == sorted(places)
    assert set(EXAMPLES) == {"", *names}, "a new command needs an example"
    for words in EXAMPLES[""]:
        assert words in text
    assert "--install-completion" in text


@pytest.mark.parametrize("command", sorted({*EXAMPLES} - {""}))
def test_flags_have_no_type_and_examples_are_there(shown, command):
    text = shown(command)
    assert "<bool>" not in text
    assert "list[" not in text
    assert "`" not in text
    for words in EXAMPLES[command]:
        assert words in text


def test_examples_are_commands_with_these_options():
    """Every long option of an example is one of its command."""
    from typer.main import get_command

    commands = get_command(app).commands
    for example in (one for group in EXAMPLES.values() for one in group):
        words = example.split()
        known = {option for parameter in commands[words[1]].params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known
