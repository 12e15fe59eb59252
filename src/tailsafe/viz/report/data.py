"""What a report shows, read from the folders of runs: plain values, checked on the way in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from tailsafe.errors import InputError
from tailsafe.evaluation.bounds import Interval
from tailsafe.evaluation.constraint_report import BOOTSTRAP_MET, Verdict
from tailsafe.evaluation.episodes import TABLE_NAME, Episodes, read_episodes
from tailsafe.evaluation.front import FILE_NAME as FRONT
from tailsafe.evaluation.played_environment import environment_text
from tailsafe.evaluation.report import FILE_NAME
from tailsafe.files import open_text, read_object
from tailsafe.policies.policy import FOLDER as POLICY
from tailsafe.policies.policy import JSON_NAME as POLICY_NAME
from tailsafe.policies.reading import Fields
from tailsafe.risk import SpectralRisk, parse_spectrum
from tailsafe.training.failures import failure
from tailsafe.viz.report.media import Media, is_regular, read_media
from tailsafe.viz.run import METRICS_NAME, Curves, read_curves, run_folders

CONFIG = "config.json"
VERDICTS: tuple[Verdict, ...] = ("met", BOOTSTRAP_MET, "violated", "cannot tell")
MEDIA = ("video.mp4", "video.gif", "paths.png")


@dataclass(frozen=True)
class Judged:
    """One constraint of evaluation.json. risk, limit and both intervals in the limit's unit; cost_rate per step."""

    name: str
    measure: SpectralRisk
    limit: float
    unit: str
    risk: float
    free: Interval
    bootstrap: Interval
    decided_by: str
    cost_rate: float
    verdict: Verdict
    discounted_risk: float
    discounted_limit: float
    episodes_needed: int | None

    @property
    def factor(self) -> float:
        """The unit of the limit per discounted sum."""
        if self.limit > 0 and self.discounted_limit > 0:
            return self.limit / self.discounted_limit
        return self.risk / self.discounted_risk if self.discounted_risk > 0 else 1.0

    @property
    def deciding(self) -> Interval:
        """The bounds behind the verdict."""
        return self.bootstrap if self.decided_by == "bootstrap" else self.free


@dataclass(frozen=True)
class Exact:
    """Task `finite`, without sampling. optimum: None where no policy keeps the limits."""

    reward: float
    risks: tuple[float, ...]
    limits: tuple[float, ...]
    optimum: float | None
    feasible: bool


@dataclass(frozen=True)
class Metric:
    """The mean per episode of a number that the environment gives itself, with Student's bounds."""

    name: str
    mean: float
    bounds: Interval


@dataclass(frozen=True)
class Evaluated:
    """evaluation.json: reward per episode with Student's bounds, and a verdict per constraint. place: the environment
    of the episodes where that is not the one of training, else empty.
    """

    place: str
    episodes: int
    confidence: float
    deterministic: bool
    reward: float
    reward_bounds: Interval
    constraints: tuple[Judged, ...]
    exact: tuple[Exact, ...]
    metrics: tuple[Metric, ...] = ()


@dataclass(frozen=True)
class FrontPoint:
    """A point of front.json: what the policy was asked for, and what it did. limits, units, risks (C,)."""

    run: str
    limits: tuple[float, ...]
    units: tuple[str, ...]
    reward: float
    reward_bounds: Interval
    risks: tuple[tuple[float, Interval], ...]
    verdicts: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Seed:
    """One trained policy: its log and, where it was evaluated, the report and the episodes behind it.

    stale: there are episodes, but of another evaluation. outdated: steps of the policy that was evaluated, where
    training has continued since; its verdicts are not shown. given_up: why its training ended early, if it did.
    elsewhere: an evaluation in another environment than that of training, which says nothing of the run's own limits.
    """

    name: str
    folder: Path
    curves: Curves
    evaluated: Evaluated | None
    episodes: Episodes | None
    stale: bool
    outdated: int | None = None
    given_up: str | None = None
    elsewhere: Evaluated | None = None

    def last(self, column: str) -> float:
        """The last entry of a column of the log that is a number; NaN if there is none."""
        values = self.curves.columns.get(column, np.zeros(0))
        known = values[np.isfinite(values)]
        return float(known[-1]) if known.size else math.nan


@dataclass(frozen=True)
class Limit:
    """A constraint as config.json has it. unit: empty where it is not said. lowest: where `limit` ends a range."""

    name: str
    measure: str
    limit: float
    unit: str
    lowest: float | None = None

    @property
    def words(self) -> str:
        """The limit or the range, without the unit."""
        return f"{self.limit:g}" if self.lowest is None else f"{self.lowest:g} to {self.limit:g}"


@dataclass(frozen=True, eq=False)
class Run:
    """Policies that differ in their seeds alone. config: config.json as it is, None without one."""

    name: str
    folder: Path
    task: str
    algorithm: str
    limits: tuple[Limit, ...]
    config: Mapping[str, Any] | None
    seeds: tuple[Seed, ...]
    media: tuple[Media, ...]
    front: tuple[FrontPoint, ...] = ()

    @property
    def steps(self) -> int:
        """Of the seed that came furthest."""
        return max(int(seed.curves.columns["steps"][-1]) for seed in self.seeds)

    @property
    def seconds(self) -> float:
        """Of the seed that took longest; seeds that train in one program share its time. NaN where not logged."""
        known = [seconds for seed in self.seeds if math.isfinite(seconds := seed.last("seconds"))]
        return max(known, default=math.nan)

    @property
    def evaluations(self) -> tuple[Evaluated, ...]:
        """Those of its seeds that have one, in the environment of training."""
        return tuple(seed.evaluated for seed in self.seeds if seed.evaluated is not None)

    @property
    def costs(self) -> tuple[str, ...]:
        """Names of the costs."""
        named = [limit.name for limit in self.limits] or self.seeds[0].curves.named("risk_")
        return tuple(named)


def is_run(folder: Path) -> bool:
    """Whether a run logs there, itself or one of its seeds."""
    return any(_logged(place) for place in (folder, *folder.glob("seed-*")))


def _logged(folder: Path) -> bool:
    """Whether there is a log with more than its header, which is all that a run has that was killed early."""
    try:
        with open_text(folder / METRICS_NAME) as handle:
            return not (handle.readline().startswith("steps,") and not handle.readline())
    except OSError:
        return False
    except UnicodeDecodeError:  # `read_curves` says what is wrong with it
        return True


def read_run(folder: Path) -> Run:
    """A run with all of its seeds."""
    if not is_run(folder):
        if (folder / CONFIG).is_file():
            raise InputError(f"{folder}: no update has been logged yet")
        raise InputError(
            f"{folder}: is neither a run ({METRICS_NAME}, or seed-N folders with one) nor a study (study.txt)"
        )
    places = [place for place in run_folders([folder]) if _logged(place)]
    seeds = tuple(_read_seed(place) for place in places)
    path = folder / CONFIG
    config = read_object(path) if path.is_file() else None
    task, algorithm, limits = _described(config, path)
    several = places != [folder]
    return Run(
        name=folder.resolve().name if several else seeds[0].curves.name or folder.resolve().name,
        folder=folder,
        task=task or "a task",
        algorithm=algorithm or "an unknown algorithm",
        limits=limits,
        config=config,
        seeds=seeds,
        media=_media([folder, *places] if several else places),
        front=_read_front(folder / FRONT),
    )


def distinguished(runs: Sequence[Run]) -> list[Run]:
    """Runs whose folders have the same name are called by their paths."""
    names = [run.name for run in runs]
    return [replace(run, name=str(run.folder)) if names.count(run.name) > 1 else run for run in runs]


def _read_seed(folder: Path) -> Seed:
    curves = read_curves(folder)
    steps = curves.columns["steps"]
    if not np.isfinite(steps).all():
        raise InputError(f"{folder / METRICS_NAME}: the column 'steps' holds something that is not a number")
    path = folder / FILE_NAME
    evaluated = _read_evaluation(path) if path.is_file() else None
    outdated = _outdated(path, folder / POLICY / POLICY_NAME)
    if outdated is not None:
        evaluated = None
    elsewhere = None
    if evaluated is not None and evaluated.place:
        evaluated, elsewhere = None, evaluated
    table = folder / TABLE_NAME
    episodes, stale = None, False
    if evaluated is not None and table.is_file():
        episodes, names = read_episodes(table)
        stale = (
            len(episodes) != evaluated.episodes
            or names != tuple(judged.name for judged in evaluated.constraints)
            or not math.isclose(float(episodes.reward.mean()), evaluated.reward, rel_tol=1e-9, abs_tol=1e-12)
        )
    given_up = failure(folder)
    shown = None if stale else episodes
    return Seed(folder.resolve().name, folder, curves, evaluated, shown, stale, outdated, given_up, elsewhere)


def _outdated(evaluation: Path, policy: Path) -> int | None:
    """Steps of the evaluated policy, if the one beside it has learned for another number of them."""
    if not (evaluation.is_file() and policy.is_file()):
        return None
    before, now = read_object(evaluation).get("steps"), read_object(policy).get("steps")
    return before if isinstance(before, int) and isinstance(now, int) and before != now else None


def _read_evaluation(path: Path) -> Evaluated:
    fields = Fields(read_object(path), str(path))
    reward = fields.object("reward")
    return Evaluated(
        place=_place(fields),
        episodes=fields.whole("episodes", 1),
        confidence=fields.number("confidence"),
        deterministic=fields.flag("deterministic"),
        reward=reward.number("mean"),
        reward_bounds=_interval(reward),
        constraints=tuple(_judged(entry) for entry in fields.objects("constraints")),
        exact=_read_exact(fields),
        metrics=tuple(
            Metric(entry.text("name"), entry.number("mean"), _interval(entry))
            for entry in (fields.optional("metrics", fields.objects) or ())
        ),
    )


def _place(fields: Fields) -> str:
    """Files of earlier versions do not say where they were played."""
    if fields.optional("trained_in", fields.text) is None:
        return ""
    environment = fields.object("environment")
    return environment_text(environment.text("name"), environment.object("arguments").data)


def _judged(fields: Fields) -> Judged:
    spec = fields.text("risk_measure")
    try:
        measure = parse_spectrum(spec)
    except InputError as error:
        raise InputError(f"{fields.place}.risk_measure: {error}") from None
    verdict, decided_by = (
        fields.choice("verdict", VERDICTS),
        fields.choice("interval", ("distribution-free", "bootstrap")),
    )
    if verdict == "met" and decided_by == "bootstrap":
        # As earlier versions said it.
        verdict = BOOTSTRAP_MET
    return Judged(
        name=fields.text("name"),
        measure=measure,
        limit=fields.number("limit"),
        unit=fields.text("unit"),
        risk=fields.number("risk"),
        free=_interval(fields.object("distribution_free")),
        bootstrap=_interval(fields.object("bootstrap")),
        decided_by=decided_by,
        cost_rate=fields.number("cost_rate"),
        verdict=cast(Verdict, verdict),
        discounted_risk=fields.number("discounted_risk"),
        discounted_limit=fields.number("discounted_limit"),
        episodes_needed=fields.optional("episodes_needed", lambda key: fields.whole(key, 1)),
    )


def _read_exact(fields: Fields) -> tuple[Exact, ...]:
    """One, or of a policy for a range of limits one for each limit that it was asked for."""
    entries = fields.objects("exact") if isinstance(fields.data.get("exact"), list) else None
    if entries is None:
        one = fields.optional("exact", lambda key: _exact(fields.object(key)))
        return () if one is None else (one,)
    return tuple(_exact(entry) for entry in entries)


def _read_front(path: Path) -> tuple[FrontPoint, ...]:
    if not path.is_file():
        return ()
    return tuple(_front_point(entry) for entry in Fields(read_object(path), str(path)).objects("points"))


def _front_point(fields: Fields) -> FrontPoint:
    reward, risks = fields.object("reward"), fields.objects("risks")
    limits, units = fields.numbers("limit", len(risks)), fields.texts("unit")
    if len(units) != len(risks) or not risks:
        raise InputError(f"{fields.place}.unit has {len(units)} entries for {len(risks)} risks")
    return FrontPoint(
        run=fields.text("run"),
        limits=limits,
        units=units,
        reward=reward.number("mean"),
        reward_bounds=_interval(reward),
        risks=tuple((risk.number("risk"), _interval(risk)) for risk in risks),
        verdicts=tuple(risk.choice("verdict", VERDICTS) for risk in risks),
    )


def _exact(fields: Fields) -> Exact:
    return Exact(
        reward=fields.number("reward"),
        risks=fields.numbers("risks"),
        limits=fields.numbers("limits"),
        optimum=fields.optional("optimum", fields.number),
        feasible=fields.flag("feasible"),
    )


def _interval(fields: Fields) -> Interval:
    high = fields.optional("high", fields.number)
    return Interval(fields.number("low"), math.inf if high is None else high)


def _described(config: Mapping[str, Any] | None, path: Path) -> tuple[str | None, str | None, tuple[Limit, ...]]:
    """Task, algorithm and limits. A run whose environment had no name has a name all the same."""
    if config is None:
        return None, None, ()
    fields = Fields(config, str(path))
    entries = fields.objects("constraints") if "constraints" in config else []
    limits = tuple(_limit(entry) for entry in entries)
    task = fields.optional("name", fields.text) or fields.optional("task", fields.text)
    return task, fields.optional("algorithm", fields.text), limits


def _limit(entry: Fields) -> Limit:
    unit = entry.optional("unit", entry.text) or ""
    if isinstance(entry.get("limit"), list):
        lowest, highest = entry.numbers("limit", 2)
        return Limit(entry.text("name"), entry.text("risk_measure"), highest, unit, lowest)
    return Limit(entry.text("name"), entry.text("risk_measure"), entry.number("limit"), unit)


def _media(places: Sequence[Path]) -> tuple[Media, ...]:
    """The video of the run, or of the first seed that has one; the same for its trajectories from above."""
    videos = [place / name for place in places for name in MEDIA[:2]]
    trajectories = [place / MEDIA[2] for place in places]
    first = [next((path for path in paths if is_regular(path)), None) for paths in (videos, trajectories)]
    return tuple(read_media(path) for path in first if path is not None)
