"""What strangers and accidents write into files and arguments: one line each, exit code 2, no escape sequences."""

import json
import logging
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import tailsafe as ts
from tailsafe.cli.app import console
from tailsafe.errors import InputError
from tailsafe.files import open_text
from tailsafe.policies.reading import Fields
from tailsafe.terminal import escaped, printable
from tailsafe.training.train import read_config
from tailsafe.viz.report.media import is_regular
from tests.policies.hand_made import constraint, finite_description, save
from tests.report.folders import metrics, write_metrics
from tests.tabular.problems import gamble
from tests.training.tiny import finite_config

EVIL = "[/red]$\\frac{$\x1b[2J\x07\x9b31m[bold"


def one_line(found, *words):
    code, out, err = found
    assert (code, out) == (2, ""), err
    assert err.count("\n") == 1, err
    assert err.isprintable() or err.rstrip("\n").isprintable()
    assert all(word in err for word in words), err


# --- terminals --------------------------------------------------------------------------------------------------------


def test_names_do_not_reach_the_terminal_as_commands(tmp_path, call):
    described = finite_description(gamble(), [constraint(EVIL)])
    save(tmp_path, replace(described, task=replace(described.task, cost_names=(EVIL,))))
    code, out, err = call("evaluate", tmp_path, "--episodes", "5")
    assert code == 0, err
    assert "\x1b[2J" not in out
    assert "\x9b" not in out
    assert "[/red]" in out


def test_names_in_every_table(tmp_path, call):
    """As they are, also where they look like markup; a bare closing bracket ends rich in a traceback."""
    described = finite_description(gamble(), [constraint("[/r]")])
    run = tmp_path / "[red]run[blue]"
    save(run, replace(described, task=replace(described.task, cost_names=("[/r]",))))
    for words in (["certify", run, "--limit", "9", "--episodes", "64"], ["front", run, "--episodes", "5"]):
        code, out, err = call(*words)
        assert code in (0, 1), err
        assert "[/r]" in out


def test_printable_and_escaped(capfd):
    assert printable("a\x1bb\nc") == "a\N{REPLACEMENT CHARACTER}b\nc"
    console().print(f"[bold]{escaped(EVIL)}[/bold]")
    shown = capfd.readouterr().out
    assert shown.startswith("[/red]")
    assert "\x1b" not in shown


def test_warnings_are_printable(call, caplog):
    call("tasks")
    logging.getLogger("tailsafe").warning("environment %s: close raised an error", EVIL)
    assert "close raised" in caplog.text
    assert "\x1b" not in caplog.text


def test_errors_are_printable(call, tmp_path):
    one_line(call("report", tmp_path / EVIL))


# --- pages ------------------------------------------------------------------------------------------------------------


def test_a_page_takes_no_links(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"GIF89a")
    link = tmp_path / "video.gif"
    link.symlink_to(secret)
    assert is_regular(secret)
    assert not is_regular(link)


# --- files ------------------------------------------------------------------------------------------------------------

GOOD = finite_config("nowhere", 1).to_json()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"3",
        b"[" * 100_000,
        b'{"format": 1, "seed": ' + b"9" * 5000 + b"}",
        b'{"format": NaN}',
        *(
            json.dumps(GOOD | {key: bad}).encode()
            for key in GOOD
            for bad in (None, [], {}, "x", -1, 1e300, [[]], {"a": 1})
        ),
        *(json.dumps({k: v for k, v in GOOD.items() if k != key}).encode() for key in GOOD),
        *(json.dumps(GOOD | {"constraints": [bad]}).encode() for bad in (None, 1, {}, {"name": []}, "x")),
    ],
)
def test_a_configuration_is_read_or_refused_in_one_line(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    told = f"{tmp_path / 'config.json'}: good"
    try:
        read_config(tmp_path)
    except InputError as error:
        told = str(error)
    assert told.startswith(f"{tmp_path / 'config.json'}: ")
    assert "\n" not in told


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999,), }",
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }",
        b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        b"{'descr': '<f8', 'fortran_order': 3, 'shape': None, }",
        b"{'descr': [('a', '<f8', (1, " + b"(" * 200 + b"))], }",
        b"__import__('os').system('true')",
        b"\x00" * 60,
    ],
)
def test_npy_headers(tmp_path, call, header):
    path = tmp_path / "x.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\x00" * 8)
    one_line(call("risk", "cvar:0.5", path), "x.npy")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("metrics.csv", ["plot"]),
        ("metrics.csv", ["report"]),
        ("config.json", ["resume"]),
        ("evaluation.json", ["report"]),
        ("policy/policy.json", ["evaluate"]),
        ("policy/policy.safetensors", ["export"]),
    ],
)
def test_pipes_and_devices_are_not_read(tmp_path, call, name, words):
    """They may never end: one line, or the file counts as missing. A pipe that nobody writes to would block for ever;
    /dev/zero stands for it here, since a test must end.
    """
    write_metrics(tmp_path, metrics())
    save(tmp_path, finite_description(gamble()))
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).symlink_to("/dev/null")
    code, _, err = call(*words, tmp_path, *(["--out", tmp_path / "page.html"] if words == ["report"] else []))
    assert code == (0 if name == "evaluation.json" else 2), err
    with pytest.raises(OSError, match="not a regular file"), open_text(tmp_path / name):
        pass


def test_a_problem_may_come_from_a_pipe_but_not_from_an_endless_device(tmp_path, call, monkeypatch):
    monkeypatch.setattr("tailsafe.tabular.problem._LARGEST_FILE", 10_000)
    one_line(call("tabular", "/dev/zero", "--risk", "mean", "--limit", "1"), "more than 10,000 characters")
    code, out, err = call("tabular", pipe(json.dumps(gamble().to_dict())), "--risk", "mean", "--limit", "9", "--json")
    assert code == 0, err
    assert json.loads(out)["feasible"]


def pipe(text):
    """The name of a pipe that holds the text, as the shell's <(...) is."""
    read, write = os.pipe()
    with os.fdopen(write, "w") as handle:
        handle.write(text)
    return f"/dev/fd/{read}"


def test_whole_numbers_have_an_end():
    fields = Fields({"episodes": 10**400, "low": -(10**400)}, "evaluation")
    with pytest.raises(InputError, match="a whole number"):
        fields.whole("episodes", 1)
    with pytest.raises(InputError, match="a whole number"):
        fields.integer("low")


# --- arguments --------------------------------------------------------------------------------------------------------


def test_problems_beyond_numbers(tmp_path, call):
    problem = gamble().to_dict()
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(problem | {"costs": (1e308 * (np.asarray(problem["costs"]) > 0)).tolist()}))
    one_line(call("tabular", path, "--risk", "cvar:0.75", "--limit", "2"), "costs[0]", "1e+12")
    path.write_text(json.dumps(problem | {"costs": problem["costs"] * 50}))
    one_line(call("tabular", path, "--risk", "cvar:0.75", "--limit", "2"), "50 costs", "up to 8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report", "x" * 300], "name too long"),
        (["plot", "x" * 300], "name too long"),
        (["evaluate", "x" * 300], "name too long"),
        (["resume", "x" * 300], "name too long"),
        (["spectrum", "wang:0.5", "--cells", "1000000"], "cells"),
        (["evaluate", ".", "--seed", "99999999999999999999"], "seed"),
        (["render", ".", "--seed", "99999999999999999999"], "seed"),
        (["train", "finite", "--seed", "99999999999999999999"], "seed"),
        (["train", "finite", "--seeds", "1000000000"], "seeds"),
        (["front", ".", "--seed", "99999999999999999999"], "seed"),
        (["front", ".", "--episodes", "99999999999999999999"], "episodes"),
        (["evaluate", ".", "--episodes", "99999999999999999999"], "episodes"),
        (["diagnose", ".", "--rollouts", "99999999999999999999"], "rollouts"),
        (["train", "finite", "--steps", "99999999999999999999"], "total_steps"),
        (["train", "finite", "--set", "critic_iterations=1e300"], "critic_iterations"),
    ],
)
def test_arguments_beyond_bounds(call, words, said):
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1, err
    assert said in err


def test_seeds_of_an_evaluation(tmp_path):
    save(tmp_path, finite_description(gamble()))
    for seed in (-1, 2**31, 10**20, 0.5, True):
        with pytest.raises(InputError, match="seed is"):
            ts.evaluate(tmp_path, 5, seed)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_terminal_that_knows_few_characters(encoding):
    program = """
import sys
from tailsafe.cli.app import app, console, main
@app.command()
def say():
    console().print("[0, 1] \\u2190", markup=False)
sys.argv[1:] = ["say"]
main()
"""
    own = {**os.environ, "PYTHONIOENCODING": encoding}
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=own)
    assert (told.returncode, told.stdout, told.stderr) == (0, "[0, 1] ?\n", "")


LOST = """
import signal, time
from tailsafe.cli.app import _keep_interrupts
signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts the tests may ignore it
_keep_interrupts()
class Ends:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)
try:
    Ends()
    time.sleep(60)
except KeyboardInterrupt:
    print("heard")
"""


def test_an_interrupt_inside_of_a_destructor_is_not_lost():
    """JAX has a callback of the garbage collector: a Ctrl-C while that runs was a traceback, and nothing stopped."""
    told = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, timeout=50, check=False)
    assert (told.stdout, told.stderr) == ("heard\n", "")


def test_a_third_interrupt_has_nothing_left_to_end():
    """Typer turns Ctrl-C into an exit code; what runs at the end of the process is not interrupted."""
    program = """
import atexit, signal, sys
from tailsafe.cli import app, main
def again():
    signal.raise_signal(signal.SIGINT)
    sorted(range(10))
atexit.register(again)
@app.command()
def wait():
    raise KeyboardInterrupt
sys.argv[1:] = ["wait"]
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("module", ["typer", "gymnasium", "gymnasium.envs.registration"])
def test_an_interrupt_before_the_program_has_begun(module):
    program = f"""
import builtins, sys
sys.argv[0] = "/usr/bin/tailsafe"
original = builtins.__import__
def interrupted(name, *rest, **more):
    if name == {module!r}:
        raise KeyboardInterrupt
    return original(name, *rest, **more)
builtins.__import__ = interrupted
from tailsafe.cli import main
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
