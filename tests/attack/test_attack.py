"""The attack: seeded damage to every file of a run, and bad arguments from a grammar. `make attack` counts both.

Whatever is damaged, a command answers with a result or with one line and exit code 2. A damaged policy or checkpoint is
never taken for a good one.
"""

import shutil
from collections import Counter

import numpy as np
import pytest

import tailsafe as ts
from tailsafe.checkpoints import Checkpoints
from tailsafe.cli import main
from tailsafe.errors import InputError
from tailsafe.policies.policy import load_policy
from tailsafe.training.logs import CsvLog, begin_session
from tailsafe.training.train import read_config
from tests.attack.mutations import damaged
from tests.policies.test_policy import same_policy
from tests.training.tiny import assert_same_arrays, finite_config

# The storage layer leaves threads and coroutines behind where a file is damaged.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
PER_FILE, ARGUMENTS = 25, 400


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attacked") / "run"
    ts.train(finite_config(folder, 6), progress=False)
    ts.evaluate(folder, 30).keep(folder)
    ts.certify(folder, 9.0, episodes=64)
    (folder / "failed.json").write_text('{"error": "the parameters of policy are not finite"}')
    return folder


def attempt(capfd, *words):
    """`refused`, or `answered`; a traceback is neither."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    out, err = capfd.readouterr()
    code = int(ended.value.code or 0)
    assert "Traceback" not in out + err, (words, err)
    assert code in (0, 1, 2), (words, code, err)
    if code == 2:
        told = [line for line in err.splitlines() if line.startswith("error: ")]
        assert len(told) == 1, (words, err)
        assert out == "", (words, out)
    return "refused" if code == 2 else "answered"


# What else reads a file, beside the report; none of them compiles much. Of the log and the notes of sessions, `resume`
# is what could lose something: see `log_outcome`.
READERS = {
    "metrics.csv": [["plot"]],
    "config.json": [["plot"]],
    "certificate.json": [["certify", "--check"]],
}


def files_of(run):
    """Every file of a run but the lock, which is empty, and TensorBoard's, which tailsafe does not read."""
    found = [path for path in sorted(run.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    return [path.relative_to(run) for path in found if "tensorboard" not in path.parts]


def test_damage_to_every_file(run, tmp_path, capfd, report):
    rng, counts = np.random.default_rng(0), Counter()
    good, last = load_policy(run), Checkpoints(run / "checkpoints").steps()[-1]
    arrays, meta = Checkpoints(run / "checkpoints").load(last)
    certified = ts.certify(run, 9.0, episodes=64, keep=False).to_json()
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    for name in files_of(run):
        content = (run / name).read_bytes()
        times = PER_FILE if name.parts[0] != "checkpoints" else 4
        for _ in range(times):
            kind, bad = damaged(content, rng)
            (copy / name).write_bytes(bad)
            part = name.parts[0]
            if part == "policy":
                counts[part, policy_outcome(copy, good, (name, kind))] += 1
            elif part == "checkpoints":
                counts[part, checkpoint_outcome(copy, last, arrays, meta, (name, kind))] += 1
            elif part == "config.json":
                counts[part, config_outcome(copy)] += 1
            elif part in ("metrics.csv", "sessions.json"):
                counts[part, log_outcome(copy)] += 1
            elif part == "certificate":
                counts[part, recording_outcome(copy, certified)] += 1
            for reader in READERS.get(part, []):
                place = copy / name if part == "certificate.json" else copy
                out = ["--out", tmp_path / "curves.png"] if reader == ["plot"] else []
                counts[part, " ".join([*reader, attempt(capfd, *reader, place, *out)])] += 1
            if part != "checkpoints":
                counts[part, attempt(capfd, "report", copy, "--out", tmp_path / "page.html")] += 1
        # As it was, whatever else the damage led to.
        for kept in copy.glob("metrics.damaged*"):
            kept.unlink()
        for changed in ("metrics.csv", "sessions.json", "certificate/about.json", "certificate/policy.csv"):
            shutil.copyfile(run / changed, copy / changed)
        (copy / name).write_bytes(content)
    for (part, outcome), count in sorted(counts.items()):
        report("attack", part, outcome, count)
    assert sum(counts.values()) > 200


def policy_outcome(copy, good, about):
    try:
        found = load_policy(copy)
    except InputError:
        return "load: refused"
    assert same_policy(found, good), about
    return "load: the same policy"


def checkpoint_outcome(copy, last, arrays, meta, about):
    checkpoints = Checkpoints(copy / "checkpoints")
    try:
        found, said = checkpoints.load(last)
    except Exception:  # the storage layer raises what it likes; `latest_common` passes over all of it
        return "load: refused"
    finally:
        checkpoints.close()
    assert_same_arrays(found, arrays)
    assert said == meta, about
    return "load: the same state"


def config_outcome(copy):
    try:
        read_config(copy)
    except InputError:
        return "read: refused"
    return "read: another configuration"


def log_outcome(copy):
    """As a session begins: what was in a damaged log is kept, in it or beside it."""
    before = (copy / "metrics.csv").read_bytes()
    CsvLog(copy / "metrics.csv").cut(10**9)
    begin_session(copy, 6)
    left = [path.read_bytes() for path in copy.glob("metrics*.csv")]
    lost = [line for line in before.split(b"\n")[:-1] if line.strip() and not any(line in each for each in left)]
    assert not lost or not before.endswith(b"\n") or any(each == before for each in left), lost
    return "cut: set aside" if before in left and len(left) > 1 else "cut: read on"


def recording_outcome(copy, certified):
    """Damaged episodes do not count: the search plays them again."""
    try:
        found = ts.certify(copy, 9.0, episodes=64).to_json()
    except InputError:
        return "certify: refused"
    assert found["tested"][0]["risk"] == certified["tested"][0]["risk"]
    return "certify: the same certificate"


# --- arguments --------------------------------------------------------------------------------------------------------

NUMBERS = ["-1", "0", "1e400", "nan", "9" * 400, "", "0x10", "1/0", "½", "--", "1e-400", "None"]
TEXTS = [
    "",
    " ",
    "x" * 300,
    "../..",
    "/dev/null",
    "\x1b[2J",
    "[/red]",
    "a\nb",
    "💥",
    ":X",
    "X:",
    "os:system",
    "%s{0}",
    "'; --",
]
COMMANDS = {
    "spectrum": ([TEXTS, ["cvar:", "cvar:2", "pow:x", "steps:1/", "wang:nan", "steps:1,2/0.5"]], ["--cells", "--plot"]),
    "risk": ([TEXTS, TEXTS], ["--confidence", "--upper", "--column"]),
    "tabular": ([TEXTS], ["--risk", "--limit", "--cells", "--iterations", "--plot"]),
    "evaluate": ([TEXTS], ["--episodes", "--seed", "--confidence", "--interval", "--backend"]),
    "render": ([TEXTS], ["--out", "--seed", "--episodes"]),
    "plot": ([TEXTS], ["--out"]),
    "report": ([TEXTS], ["--out"]),
    "export": ([TEXTS], ["--format", "--out"]),
    "resume": ([TEXTS], []),
    "study": ([TEXTS], ["--scale", "--out", "--minutes", "--only"]),
    "bench": ([TEXTS], ["--backend"]),
    "settings": ([], ["--algo"]),
    "train": ([TEXTS], ["--steps", "--seed", "--seeds", "--limit", "--risk", "--preset", "--from", "--set", "--algo"]),
    "certify": ([TEXTS], ["--limit", "--episodes", "--seed", "--confidence", "--check"]),
    "front": ([TEXTS], ["--points", "--episodes", "--seed", "--out"]),
    "diagnose": ([TEXTS], ["--rollouts", "--episodes", "--seed", "--plot"]),
    "check-env": ([TEXTS], ["--max-steps", "--seed"]),
}


def test_bad_arguments(tmp_path, monkeypatch, capfd, report):
    """Every command with arguments from a grammar in which at least one word is bad; none may begin long work."""
    monkeypatch.chdir(tmp_path)
    rng, counts = np.random.default_rng(1), Counter()
    for _ in range(ARGUMENTS):
        command = list(COMMANDS)[rng.integers(len(COMMANDS))]
        places, options = COMMANDS[command]
        words = [command, *(str(rng.choice(np.array(choice, object))) for choice in places[:1])]
        words += [str(rng.choice(np.array(places[1], object)))] if len(places) > 1 and command == "risk" else []
        for option in options:
            if rng.random() < 0.5:
                words += [option, str(rng.choice(np.array(NUMBERS + TEXTS, object)))]
        counts[command, attempt(capfd, *words)] += 1
    for (command, outcome), count in sorted(counts.items()):
        report("attack", "arguments", command, outcome, count)
    assert counts.total() == ARGUMENTS
    assert sum(count for (_, outcome), count in counts.items() if outcome == "refused") > ARGUMENTS / 2
