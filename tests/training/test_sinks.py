"""Where rows of the log go: TensorBoard, W&B and MLflow; and what notebooks show."""

import json
import struct

import pytest

import tailsafe as ts
from tailsafe.errors import InputError
from tailsafe.extras import install_hint
from tailsafe.training import sinks
from tailsafe.training.progress import Lines, Notebook, summary
from tailsafe.training.sinks import check_sinks, hyperparameters, open_sinks, tag
from tests.training.tiny import finite_config

ROW = {
    "steps": 64,
    "updates": 2,
    "seconds": 1.0,
    "recent_episodes": 8,
    "reward": 1.5,
    "risk_cost": 0.03,
    "limit_cost": 0.025,
    "beta_cost": 0.01,
    "kl": None,
    "steps_per_second": 10.0,
}
CONFIG = {
    "task": "finite",
    "algorithm": "srcpo",
    "seed": 3,
    "constraints": [{"name": "cost", "risk_measure": "cvar:0.75", "limit": 2.0, "unit": "discounted"}],
    "settings": {"max_kl": 0.001, "policy_hidden": [8, 8], "problem": {"horizon": 6}},
}


def test_tags_are_grouped():
    names = ("reward", "risk_a_b", "limit_a_b", "sub_risk_a_b", "cost_rate_a", "beta_a_0", "kl", "steps_per_second")
    names += ("metric_success", "metric_max:speed", "validation_reward", "validation_risk_a_b")
    assert [tag(name) for name in names] == [
        "episode/reward",
        "risk/a_b",
        "risk/a_b_limit",
        "risk/a_b_critics",
        "cost_rate/a",
        "beta/a_0",
        "update/kl",
        "time/steps_per_second",
        "metric/success",
        "metric/max:speed",
        "validation/reward",
        "validation/risk_a_b",
    ]


def test_hyperparameters_are_flat_and_plain():
    assert hyperparameters(CONFIG) == {
        "task": "finite",
        "algorithm": "srcpo",
        "seed": 3,
        "risk/cost": "cvar:0.75",
        "limit/cost": "2.0/discounted",
        "max_kl": 0.001,
        "policy_hidden": "[8, 8]",
    }


def records(path):
    """The payloads of an event file: length (8 bytes), checksum (4), payload, checksum (4)."""
    content, place, found = path.read_bytes(), 0, []
    while place < len(content):
        (length,) = struct.unpack_from("<Q", content, place)
        found.append(content[place + 12 : place + 12 + length])
        place += 16 + length
    return found


def test_tensorboard_gets_scalars_and_hyperparameters(tmp_path):
    (sink,) = open_sinks(["csv", "tensorboard", "tensorboard"], tmp_path, CONFIG, 0)
    sink.write(ROW)
    sink.close()
    (file,) = (tmp_path / "tensorboard").glob("events.out.tfevents.*")
    written = b"".join(records(file))
    for words in (b"risk/cost", b"risk/cost_limit", b"episode/reward", b"hparams", b"max_kl", b"cvar:0.75"):
        assert words in written
    assert b"update/kl" not in written  # nothing was logged there


def test_sinks_that_are_not_there_are_refused_before_the_work(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="unknown log 'paper'; there are: csv, tensorboard, wandb, mlflow"):
        check_sinks(["paper"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None)
    with pytest.raises(InputError, match=r"the log wandb needs a package that is missing: pip install .*wandb"):
        ts.train(finite_config(tmp_path / "run", 1, log=["wandb"]), progress=False)
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError, match="it must be a list"):
        finite_config(tmp_path / "run", 1, log="wandb")


def test_a_tracker_that_fails_does_not_end_the_run(tmp_path, monkeypatch, caplog):
    class Broken:
        def write(self, row):
            raise OSError("no route\nto host")

        close = None  # not even callable

    monkeypatch.setattr(sinks, "_SINKS", {"wandb": lambda *_: Broken()})
    (sink,) = open_sinks(["wandb"], tmp_path, CONFIG, 0)
    sink.write(ROW)
    sink.write(ROW)
    sink.close()
    assert [record.getMessage() for record in caplog.records] == ["the log wandb missed a row: no route to host"]

    def refuse(*_):
        raise OSError("no\nserver")

    monkeypatch.setattr(sinks, "_SINKS", {"wandb": refuse})
    with pytest.raises(InputError, match="the log wandb cannot be written: no server"):
        open_sinks(["wandb"], tmp_path, CONFIG, 0)


def test_hints_name_packages():
    """What an index or a clone can install alike."""
    for extra in ("plot", "onnx", "wandb", "mlflow"):
        assert install_hint(extra).startswith("pip install ")
        assert "tailsafe" not in install_hint(extra)


@pytest.mark.slow
def test_wandb_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for steps in (0, 64):  # started, then resumed
        (sink,) = open_sinks(["wandb"], tmp_path, CONFIG, steps)
        sink.write(ROW | {"steps": 64 + steps})
        sink.close()
    (identity,) = json.loads((tmp_path / "trackers.json").read_text()).values()
    assert len(list((tmp_path / "wandb").glob(f"offline-run-*-{identity}"))) >= 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_offline(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    for steps in (0, 64):
        (sink,) = open_sinks(["mlflow"], tmp_path, CONFIG, steps)
        sink.write(ROW | {"steps": 64 + steps})
        sink.close()
    client = mlflow.MlflowClient()
    identity = json.loads((tmp_path / "trackers.json").read_text())["mlflow"]
    history = client.get_metric_history(identity, "risk/cost")
    assert [(one.step, one.value) for one in history] == [(64, 0.03), (128, 0.03)]
    assert client.get_run(identity).data.params["max_kl"] == "0.001"


# --- what a person sees -----------------------------------------------------------------------------------------------


def test_the_console_speaks_the_limits_unit_and_says_how_many_episodes():
    shown = dict(summary(ROW, 128, {"cost": "/step"}))
    assert shown["risk cost"] == "0.03 > 0.025/step (8 episodes)"
    assert shown["steps"] == "64 (50 %)"
    lines = []
    progress = Lines(lines.append, every=0.0)
    progress.start("finite seed 0", 128, {"cost": "/step"})
    progress.row(ROW)
    assert "risk cost 0.03 > 0.025/step (8 episodes)" in lines[-1]


def test_a_notebook_gets_a_bar_and_a_table():
    shown = []

    class Handle:
        def update(self, content):
            shown.append(content._repr_html_())

    def display(content, display_id=False):
        shown.append(content._repr_html_())
        return Handle()

    progress = Notebook(display)
    progress.start("finite <seed 0>", 128, {"cost": "/step"})
    progress.row(ROW)
    progress.say("risk > limit")
    progress.stop()
    assert "finite &lt;seed 0&gt;" in shown[0]
    assert '<progress value="64" max="128"' in shown[1]
    assert "<td>0.03 &gt; 0.025/step (8 episodes)</td>" in shown[1]
    assert shown[2] == "<p>risk &gt; limit</p>"
