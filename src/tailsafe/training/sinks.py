"""Where rows of the log go beside metrics.csv: TensorBoard, Weights & Biases, MLflow.

Trackers get numbers under grouped names (`risk/collision`, `update/kl`) over the control steps, and the run's
hyper-parameters. Where a tracker sends them is its own business (WANDB_MODE, MLFLOW_TRACKING_URI): tailsafe sends
nothing anywhere by itself. A resumed run continues its entry in the tracker.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tailsafe.errors import InputError
from tailsafe.extras import need
from tailsafe.files import read_object, write_json
from tailsafe.training.logs import Row

TENSORBOARD = "tensorboard"
CSV = "csv"
# In a run's folder: the identities of its entries in trackers.
_ENTRIES = "trackers.json"
_PROJECT = "tailsafe"
Hyperparameters = Mapping[str, str | float | int | bool]

# Columns by how their names begin; what no rule is about belongs to the update.
_GROUPS = (
    ("risk_", "risk/{}"),
    ("limit_", "risk/{}_limit"),
    ("sub_risk_", "risk/{}_critics"),
    ("cost_rate_", "cost_rate/{}"),
    ("beta_", "beta/{}"),
    ("multiplier_", "multiplier/{}"),
    ("metric_", "metric/{}"),
    ("validation_", "validation/{}"),
)
_TAGS = {
    "reward": "episode/reward",
    "episode_length": "episode/length",
    "episodes": "episode/count",
    "recent_episodes": "episode/recent",
    "seconds": "time/seconds",
    "steps_per_second": "time/steps_per_second",
    "updates": "time/updates",
}


class Sink(Protocol):
    """Takes rows of the log."""

    def write(self, row: Row) -> None: ...
    def close(self) -> None: ...


def tag(column: str) -> str:
    """The grouped name of a column: `risk_collision` is `risk/collision`, `kl` is `update/kl`."""
    if column in _TAGS:
        return _TAGS[column]
    for prefix, form in _GROUPS:
        if column.startswith(prefix):
            return form.format(column.removeprefix(prefix))
    return f"update/{column}"


def hyperparameters(config: Mapping[str, Any]) -> dict[str, str | float | int | bool]:
    """config.json as flat names and plain values: settings by their own names, `limit/COST` and `risk/COST`."""
    flat = {key: config[key] for key in ("task", "algorithm", "seed", "preset", "backend", "start") if key in config}
    for constraint in config["constraints"]:
        flat[f"risk/{constraint['name']}"] = constraint["risk_measure"]
        flat[f"limit/{constraint['name']}"] = f"{constraint['limit']}/{constraint['unit']}"
    flat |= {key: value for key, value in config["settings"].items() if key != "problem"}
    return {key: value if isinstance(value, str | float | int | bool) else str(value) for key, value in flat.items()}


def check_sinks(names: Sequence[str]) -> None:
    """An `InputError` unless all of these can be written to here."""
    for name in names:
        if name not in NAMES:
            raise InputError(f"unknown log {name!r}; there are: {', '.join(NAMES)}")
        if name not in (CSV, TENSORBOARD):
            need(name, f"the log {name} needs a package that is missing", name)


def open_sinks(names: Sequence[str], folder: Path, config: Mapping[str, Any], steps: int) -> list[Sink]:
    """The sinks of a run that is at `steps` steps, in its folder. config: as in config.json."""
    values = hyperparameters(config)
    return [_opened(name, folder, values, steps) for name in dict.fromkeys(names) if name != CSV]


def _opened(name: str, folder: Path, values: Hyperparameters, steps: int) -> Sink:
    if name == TENSORBOARD:  # a disk that is full ends the run
        return TensorBoardLog(folder, values, steps)
    try:
        return _Guarded(name, _SINKS[name](folder, values, steps))
    except Exception as error:  # whatever a tracker raises that cannot be reached
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"the log {name} cannot be written: {reason}") from None


def _numbers(row: Row) -> dict[str, float]:
    """What a tracker gets of a row."""
    return {tag(name): value for name, value in row.items() if name != "steps" and _is_finite(value)}  # type: ignore[misc]


def _is_finite(value: float | int | None) -> bool:
    return value is not None and math.isfinite(value)


class _Guarded:
    """A tracker whose failures do not end the run: metrics.csv has every row. The first failure is reported."""

    def __init__(self, name: str, sink: Sink) -> None:
        self._name, self._sink, self._failed = name, sink, False

    def write(self, row: Row) -> None:
        """Hand the row on."""
        self._try(lambda: self._sink.write(row))

    def close(self) -> None:
        """Close the tracker."""
        self._try(self._sink.close)

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # whatever a tracker raises
            if not self._failed:
                reason = " ".join(str(error).split())[:300]
                logging.getLogger("tailsafe").warning("the log %s missed a row: %s", self._name, reason)
            self._failed = True


class TensorBoardLog:
    """RUN/tensorboard: event files. Hyper-parameters are in its tab HPARAMS."""

    def __init__(self, folder: Path, values: Hyperparameters, steps: int) -> None:
        logging.getLogger("tensorboardX").setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its dependencies, about themselves
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto import event_pb2
            from tensorboardX.summary import hparams, scalar

        # Not SummaryWriter: its thread prints a traceback for every event that a full disk refuses.
        (folder / TENSORBOARD).mkdir(parents=True, exist_ok=True)
        self._event, self._scalar = event_pb2.Event, scalar
        self._writer = EventsWriter(str(folder / TENSORBOARD / "events"))
        if steps:
            began = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._writer.write_event(self._event(wall_time=time.time(), step=steps, session_log=began))
        for summary in hparams(dict(values), {tag("reward"): 0.0}):
            self._writer.write_event(self._event(wall_time=time.time(), summary=summary))

    def write(self, row: Row) -> None:
        """One scalar per column."""
        for name, value in _numbers(row).items():
            summary = self._scalar(name, value)
            self._writer.write_event(self._event(wall_time=time.time(), step=row["steps"], summary=summary))
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class WandbLog:
    """An entry in Weights & Biases, project `tailsafe` unless WANDB_PROJECT says another."""

    def __init__(self, folder: Path, values: Hyperparameters, steps: int) -> None:
        import os

        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=folder.name,
            id=_entry(folder, "wandb", lambda: uuid.uuid4().hex[:12]),
            resume="allow",
            dir=str(folder),
            config=dict(values),
            reinit="create_new",  # several seeds are several entries at once
            settings=wandb.Settings(silent=True, console="off"),
        )

    def write(self, row: Row) -> None:
        """One step of the entry."""
        self._run.log(_numbers(row), step=int(row["steps"] or 0))

    def close(self) -> None:
        """Finish the entry."""
        self._run.finish()


class MlflowLog:
    """A run in MLflow, experiment `tailsafe` unless MLFLOW_EXPERIMENT_NAME says another."""

    def __init__(self, folder: Path, values: Hyperparameters, steps: int) -> None:
        import os

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its dependencies, about themselves
            from mlflow import MlflowClient

            self._client = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found is not None else self._client.create_experiment(name)
        known = _known(folder).get("mlflow")
        if known is None:
            self._id = self._client.create_run(experiment, run_name=folder.name).info.run_id
            _entry(folder, "mlflow", lambda: self._id)
            for key, value in values.items():
                self._client.log_param(self._id, key, value)
        else:
            self._id = known

    def write(self, row: Row) -> None:
        """One batch of metrics."""
        from mlflow.entities import Metric

        now, steps = int(1000 * time.time()), int(row["steps"] or 0)
        self._client.log_batch(self._id, [Metric(name, value, now, steps) for name, value in _numbers(row).items()])

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._id)


def _known(folder: Path) -> dict[str, str]:
    try:
        return {key: str(value) for key, value in read_object(folder / _ENTRIES).items()}
    except InputError:
        return {}


def _entry(folder: Path, tracker: str, make: Callable[[], str]) -> str:
    """The run's identity in a tracker: the one it has, or a new one that is written down."""
    known = _known(folder)
    if tracker not in known:
        known[tracker] = make()
        write_json(folder / _ENTRIES, known)
    return known[tracker]


_SINKS: Mapping[str, Callable[[Path, Hyperparameters, int], Sink]] = {
    TENSORBOARD: TensorBoardLog,
    "wandb": WandbLog,
    "mlflow": MlflowLog,
}
NAMES = (CSV, *_SINKS)
