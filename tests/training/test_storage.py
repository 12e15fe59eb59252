"""Nothing is lost: unreadable checkpoints stay, one process per run, a full disk is one line."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tailsafe as ts
from tailsafe.checkpoints import UNREADABLE, Checkpoints, _ignore_closed_loops
from tailsafe.errors import InputError
from tailsafe.files import replacing, write_json
from tailsafe.training.failures import failure
from tailsafe.training.lock import LOCK, held
from tailsafe.training.logs import CsvLog, session_starts
from tailsafe.training.plan import make_plan
from tailsafe.training.restart import set_run_aside
from tailsafe.training.train import check_log, resume, write_configs
from tests.training.test_resume import arguments
from tests.training.tiny import PER_UPDATE, assert_same_arrays, finite_config, last_arrays, rows_without_times

UPDATES = 6
LAST = UPDATES * PER_UPDATE


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight") / "run"
    ts.train(finite_config(folder, UPDATES), progress=False)
    return folder


@pytest.fixture
def run(straight, tmp_path):
    shutil.copytree(straight, tmp_path / "run")
    return tmp_path / "run"


def contents(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != LOCK
    }


def test_checkpoints_that_cannot_be_read_are_never_deleted(run, straight, call):
    for steps in Checkpoints(run / "checkpoints").steps():
        shutil.rmtree(run / "checkpoints" / str(steps) / "state")
    before = contents(run)
    code, out, err = call("resume", run, "--json")
    assert (code, out) == (2, "")
    assert f"none of its checkpoints can be used ({LAST // 2}: " in err.splitlines()[-1]
    assert f"tailsafe resume --restart {run}" in err
    assert contents(run) == before
    assert resume(run, restart=True, progress=False).steps == LAST
    assert_same_arrays(last_arrays(run), last_arrays(straight))
    assert rows_without_times(run) == rows_without_times(straight)
    (aside,) = run.glob("set-aside-*")
    kept = {path: content for path, content in before.items() if path.name != "config.json"}
    assert contents(aside) == kept


def test_what_was_found_out_about_a_policy_is_set_aside_with_it(tmp_path):
    found = ["certificate.json", "evaluation.bootstrap.json", "front.json", "episodes.csv", "diagnosis.png"]
    for name in [*found, "metrics.csv", "config.json", "my_environment.py"]:
        (tmp_path / name).write_text(name)
    for name in ("validation", "certificate", "policy"):
        (tmp_path / name).mkdir()
    aside = set_run_aside(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "my_environment.py", aside.name}
    moved = {*found, "metrics.csv", "validation", "certificate", "policy"}
    assert {path.name for path in aside.iterdir()} == moved
    assert set_run_aside(tmp_path) is None


def test_a_misfit_in_the_newest_falls_back_to_the_one_before(run, straight):
    checkpoints = Checkpoints(run / "checkpoints")
    arrays, meta = checkpoints.load(LAST)
    checkpoints.close()
    shutil.rmtree(run / "checkpoints" / str(LAST))
    name = next(name for name, array in arrays.items() if array.ndim == 2)
    checkpoints.save(LAST, arrays | {name: np.zeros((3, 3), np.float32)}, meta)
    checkpoints.close()
    assert resume(run, progress=False).steps == LAST
    assert_same_arrays(last_arrays(run), last_arrays(straight))
    assert [path.name for path in (run / UNREADABLE).iterdir()] == [str(LAST)]


def test_a_policy_beside_an_empty_folder_of_checkpoints_is_not_trained_over(run):
    for steps in Checkpoints(run / "checkpoints").steps():
        shutil.rmtree(run / "checkpoints" / str(steps))
    before = contents(run)
    with pytest.raises(InputError, match="no checkpoints to resume from"):
        resume(run, progress=False)
    assert contents(run) == before


def test_a_log_without_checkpoints_is_not_emptied(tmp_path, call):
    """Both may have been removed to save room; the log is all that is left then."""
    folder = tmp_path / "run"
    plan = make_plan(finite_config(folder, UPDATES))
    folder.mkdir()
    write_configs(plan, folder)
    first = plan.checkpoint_updates
    (folder / "metrics.csv").write_text(f"steps,updates\n32,1\n{(first + 1) * PER_UPDATE},{first + 1}\n")
    before = contents(folder)
    code, out, err = call("resume", folder, "--json")
    assert (code, out) == (2, "")
    assert f"has a log of {(first + 1) * PER_UPDATE} steps but no checkpoints" in err.splitlines()[-1]
    assert contents(folder) == before
    # Rows up to the first checkpoint are what a stop before it leaves.
    (folder / "metrics.csv").write_text(f"steps,updates\n{first * PER_UPDATE},{first}\n")
    check_log(plan, folder)


@pytest.mark.parametrize(
    ("content", "last"), [("", 0), ("a,b\n1,2\n", 0), ("updates\n2\n40\n4", 40), ("updates\n" + "9" * 5000, 0)]
)
def test_how_far_a_log_reaches(tmp_path, content, last):
    assert CsvLog(tmp_path / "metrics.csv").last() == 0
    (tmp_path / "metrics.csv").write_text(content)
    assert CsvLog(tmp_path / "metrics.csv").last() == last


def test_only_names_that_tailsafe_gives_are_checkpoints(tmp_path):
    for name in ("7", "12", "²", "012", "٣", "x", "12.tmp"):
        (tmp_path / name).mkdir()
    assert Checkpoints(tmp_path).steps() == [7, 12]


@pytest.mark.parametrize(
    "content", ["[]", "null", "{}", "[" * 10_000, "3", '{"begun": {"a": 1}}', '{"begun": [1e400]}']
)
def test_notes_of_a_run_may_be_damaged(tmp_path, content):
    for name in ("failed.json", "sessions.json"):
        (tmp_path / name).write_text(content)
    assert failure(tmp_path) is None
    assert session_starts(tmp_path) == [0]


# --- the log ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (b"steps,updates\n32,1\n64,2\n96,3\n12", [["32", "1"], ["64", "2"]]),
        (b"steps,updates\n32,1\n64,two\n96,3\n", [["32", "1"]]),
        (b"steps,updates\n32,1\n64," + b"9" * 5000 + b"\n96,2\n", [["32", "1"], ["96", "2"]]),
        (b"steps,updates\n32,1\n64,2\n96\n", [["32", "1"], ["64", "2"]]),
        (b'steps,updates\n32,1\n"64,2\n96,3\n', [["32", "1"]]),
        (b'steps,updates\n32,1\n"64,2\n96,3', [["32", "1"]]),
        (b"stXps,upXates\n32,1\n", None),
        (b"steps,updates\n32,\xff\n", None),
    ],
)
def test_a_damaged_log_is_kept(tmp_path, content, kept):
    path = tmp_path / "metrics.csv"
    path.write_bytes(content)
    CsvLog(path).cut(2)
    cut_short = content.endswith(b"12")
    aside = tmp_path / "metrics.damaged.csv"
    assert aside.exists() != cut_short
    assert cut_short or aside.read_bytes() == content
    assert path.exists() == (kept is not None)
    if kept is not None:
        assert [line.split(",") for line in path.read_text().splitlines()[1:]] == kept


# --- locks ------------------------------------------------------------------------------------------------------------


HOLD = """
import sys, time
from pathlib import Path
from tailsafe.training.lock import held
with held([Path(sys.argv[1])]):
    print("held", flush=True)
    time.sleep(600)
"""


def test_one_process_per_run_and_the_lock_dies_with_its_holder(run, call):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, run], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        code, _, err = call("resume", run, "--json")
        assert code == 2
        assert f"{run}: is being trained by process {holder.pid} on " in err
        assert err.count("\n") == 1
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    assert resume(run, progress=False).steps == LAST


def test_a_lock_needs_no_room(tmp_path, monkeypatch):
    """On a full disk a run says what is safe; a lock that could not say who holds it would come before that."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with held([tmp_path]), pytest.raises(InputError, match="is being trained by another process"), held([tmp_path]):
        pass


def test_locks_of_several_folders_are_all_or_none(tmp_path):
    places = [tmp_path / "new" / "a", tmp_path / "new" / "b"]
    with (
        held(places),
        pytest.raises(InputError, match="is being trained by process"),
        held([tmp_path / "c", places[1]]),
    ):
        pass
    assert list(tmp_path.iterdir()) == []  # nothing was put into them
    with held(places):
        (places[0] / "config.json").write_text("{}")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["a"]
    with held([places[0]]):
        who = json.loads((places[0] / LOCK).read_text())
        assert who["pid"] > 0


def test_what_is_written_stays_in_the_folder(tmp_path):
    """A stranger's run may hold links: a lock is not taken, and a log not written, through one."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    run = tmp_path / "run"
    run.mkdir()
    (run / LOCK).symlink_to(precious)
    with pytest.raises(InputError, match="its lock is a link"), held([run]):
        pass
    (run / "metrics.csv").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic link"):
        CsvLog(run / "metrics.csv").write({"steps": 1})
    assert precious.read_text() == "precious"


def test_a_folder_that_vanishes_hides_no_error(tmp_path):
    def work():
        with held([tmp_path / "run"]):
            shutil.rmtree(tmp_path / "run")
            raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        work()


# --- disks ------------------------------------------------------------------------------------------------------------


def test_a_run_that_cannot_write_says_so_in_one_line_and_goes_on_later(run, straight):
    """A limit on the size of files stands for a full disk: the last checkpoint does not fit."""
    shutil.rmtree(run / "checkpoints" / str(LAST))
    half = max(path.stat().st_size for path in (run / "checkpoints").rglob("*") if path.is_file()) // 2
    program = f"""
import resource, sys
from tailsafe.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, ({half}, {half}))
main(sys.argv[1:])
"""
    words = [sys.executable, "-c", program, "resume", run, "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    told, *more = done.stderr.splitlines()
    assert f"the checkpoint at {LAST // 2} steps is good" in told
    assert told.endswith(f"tailsafe resume {run}")
    assert not more, done.stderr
    assert resume(run, progress=False).steps == LAST
    assert_same_arrays(last_arrays(run), last_arrays(straight))
    assert rows_without_times(run) == rows_without_times(straight)


def test_threads_of_a_failed_write_are_not_heard(tmp_path, monkeypatch):
    """Orbax's report to a loop that it has closed; whatever else cannot be raised still is."""
    heard = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: heard.append(str(told.exc_value)))
    _ignore_closed_loops.cache_clear()
    Checkpoints(tmp_path)
    for error in (RuntimeError("Event loop is closed"), RuntimeError("another"), ZeroDivisionError("zero")):
        sys.unraisablehook(SimpleNamespace(exc_value=error, object=None))
    assert heard == ["another", "zero"]
    _ignore_closed_loops.cache_clear()


def test_the_first_error_is_the_one_that_is_told(tmp_path, monkeypatch):
    """A folder that became read-only refuses the file, and then to remove what was never there."""

    def refuse(self, missing_ok=False):
        raise PermissionError(13, "second")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(InputError, match=r"x\.json: first"), replacing(tmp_path / "x.json"):
        raise OSError(30, "first")


@pytest.mark.parametrize("place", ["/proc/nowhere/run", "/dev/null/run"])
def test_a_place_that_takes_nothing(call, place):
    code, out, err = call(*arguments(place))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert place in err


def test_results_survive_a_loss_of_power(tmp_path, monkeypatch):
    """The content is on the disk before the name is, and the name before anybody hears of success."""
    order = []
    monkeypatch.setattr("tailsafe.files.sync", lambda path: order.append(path.name))
    monkeypatch.setattr("os.replace", lambda source, target: order.append("replace"))
    write_json(tmp_path / "x.json", {})
    partial, *rest = order
    assert partial.startswith(".x.")
    assert rest == ["replace", tmp_path.name]
