"""Tuning: Optuna chooses settings, every trial is a run in its own folder, and fresh episodes say what it is worth.

The study is a SQLite file beside the runs: the same call continues it, and a trial that was killed is resumed from its
last checkpoint, under its own number. What trials are compared by: `training.trials`.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tailsafe.errors import InputError
from tailsafe.extras import need
from tailsafe.files import read_object, write_json
from tailsafe.physics.compilation import prepare_jax
from tailsafe.risk import SpectralRisk
from tailsafe.terminal import printable
from tailsafe.training.config import Limit, TrainConfig, Unit
from tailsafe.training.failures import NonFiniteError
from tailsafe.training.lock import held
from tailsafe.training.logs import Row
from tailsafe.training.members import CONFIG
from tailsafe.training.plan import Plan
from tailsafe.training.search_space import Choices, Range, Space, as_text, default_space, parse_space, refused_dropped
from tailsafe.training.settings import parsed, resolved_values
from tailsafe.training.signals import RunInterrupted, Signals, Stop
from tailsafe.training.sinks import check_sinks
from tailsafe.training.train import Run, planned, resume, train
from tailsafe.training.trials import Outcome, Trial, Tuning, excess, row_score, score

STUDY, DESCRIPTION, BEST = "study.db", "tune.json", "best.json"
# Rows are compared at this many points of a run; in the first quarter nobody is stopped.
_POINTS, _SPARED = 20, 5


def tune(
    config: TrainConfig,
    trials: int,
    *,
    search: Mapping[str, str | Sequence[Any]] | Sequence[str] = (),
    episodes: int = 500,
    progress: bool = True,
    risks: Sequence[str | SpectralRisk] = (),
    limits: Sequence[tuple[Limit, Unit]] = (),
) -> Tuning:
    """Search for settings under which training ends with the largest reward within the limits, by Optuna.

    The first trial is the preset itself. A trial is stopped early where its log is behind the median of the others at
    the same share of their steps. `config.out` is the tuning's folder (default: runs/tune-TASK-ALGORITHM): called again
    with the same arguments, it continues there.

    Args:
      config: of every trial; its settings stay as they are. With several seeds a trial trains all of them: its reward
        is their mean, its excess the largest of theirs.
      trials: how many in all, those of earlier calls included.
      search: what to search in: a mapping from settings to `"LOW..HIGH"`, `"a,b,c"` or a list of values, or such
        `KEY=...` texts. Default: the settings that matter most, around the preset's values.
      episodes: fresh ones that every finished trial is evaluated on.
      progress: show a line for each trial.
      risks, limits: constraints by the order of the costs (command line).

    Returns:
      All trials, and the best one. A program: `examples/tune.py`.
    """
    need("optuna", "tuning needs a package that is missing", "tune")
    for name, value, least in (("trials", trials, 1), ("episodes", episodes, 2)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{name} is {value!r}; it must be a whole number from {least}")
    check_sinks(config.log)
    prepare_jax(mjx=config.backend == "mjx")
    plan = planned(config, risks, limits)
    if not plan.on_device:
        plan.environments.close()  # type: ignore[union-attr]
    if plan.lowest_limits is not None:
        raise InputError("tune compares runs at one limit for each cost, and takes no range of them")
    space = _space(config, plan, search)
    folder = Path(config.out) if config.out is not None else Path("runs") / f"tune-{plan.text}-{config.algorithm}"
    with held([folder]), Signals() as signals:
        searched = {key: str(one) for key, one in space.items()}
        _describe(folder, {**plan.config.to_json(), "search": searched, "episodes": episodes})
        study = _Study(folder, space, plan, config, episodes)
        try:
            return study.search(trials, signals, progress)
        finally:
            study.close()


def _space(config: TrainConfig, plan: Plan, search: Mapping[str, Any] | Sequence[str]) -> Space:
    fixed = config.settings

    def objection(key: str, value: Any) -> InputError | None:
        try:
            resolved_values(str(plan.config.preset), plan.family, {**fixed, key: value}, config.algorithm)
        except InputError as error:
            return error
        return None

    asked = parse_space(search, fixed, config.algorithm)
    return refused_dropped(asked or default_space(plan.values, fixed, config.algorithm), objection)


def _describe(folder: Path, content: Mapping[str, Any]) -> None:
    """Note what is tuned; refuse a folder of something else, and name what differs."""
    path = folder / DESCRIPTION
    if not path.exists():
        if any(not child.name.startswith(".") for child in folder.iterdir()):
            raise InputError(f"{folder}: exists and is not a tuning's folder; choose another with --out")
        write_json(path, content)
        return
    now, before = ({**one, **one["settings"]} for one in (json.loads(json.dumps(content)), read_object(path)))
    differs = [key for key in {**before, **now} if key != "settings" and now.get(key) != before.get(key)]
    if differs:
        was, wanted = (str(one.get(differs[0]))[:80] for one in (before, now))
        raise InputError(
            f"{folder}: is a tuning with another {differs[0]} ({was}, not {wanted}); choose another folder with --out"
        )


# --- one trial --------------------------------------------------------------------------------------------------------


def _trained(config: TrainConfig, folder: Path, progress: bool, callback: Callable[[Row], Any]) -> Run:
    """A new run, or what an earlier call left of it, continued."""
    if (folder / CONFIG).is_file():
        task = None if isinstance(config.task, str) else config.task
        return resume(folder, task=task, progress=progress, callback=callback)
    if folder.exists():  # killed before there was anything to resume
        shutil.rmtree(folder)
    return train(config, progress=progress, callback=callback)


def _judged(run: Run, episodes: int, seed: int) -> Outcome:
    """By fresh episodes: the mean reward of all seeds, the largest excess of theirs."""
    found = run.evaluate(episodes, seed, exact=False)
    found = found if isinstance(found, list) else [found]
    keys = ("name", "risk_measure", "risk", "limit", "unit")
    risks = [[{key: report.to_json()[key] for key in keys} for report in one.constraints] for one in found]
    excesses = [excess([one["risk"] for one in own], [one["limit"] for one in own]) for own in risks]
    reward = float(np.mean([one.reward.mean for one in found]))
    return Outcome(reward, max(excesses), tuple(one for own in risks for one in own))


class _Follower:
    """Called with the rows of a trial's log: reports a score at each twentieth of its steps, until it is to stop.

    seed: whose rows count, where there are several. seen: points that an earlier session has reported. report: says
    whether to stop.
    """

    def __init__(self, total: int, seed: int, seen: Sequence[int], report: Callable[[float, int], bool]) -> None:
        self._total, self._seed, self._report = total, seed, report
        self._seen = set(seen)
        self.stopped: float | None = None

    def __call__(self, row: Row) -> bool:
        share = float(row["steps"] or 0) / self._total
        point, value = int(_POINTS * share), row_score(row)
        if row["seed"] == self._seed and value is not None and 0 < point < _POINTS and point not in self._seen:
            self._seen.add(point)
            if self._report(value, point):
                self.stopped = share
        return self.stopped is None


# --- the study --------------------------------------------------------------------------------------------------------


class _Study:
    """Optuna's study in the tuning's folder, and the runs of its trials."""

    def __init__(self, folder: Path, space: Space, plan: Plan, config: TrainConfig, episodes: int) -> None:
        self._optuna: Any = import_module("optuna")
        self._folder, self._space, self._plan = folder, space, plan
        self._config, self._episodes = replace(config, constraints=plan.constraints), episodes
        with self._quiet():
            self._study = self._opened(folder / STUDY)
            preset = {key: plan.values[key] for key in space}
            # So that the search begins where somebody who does not search would be.
            if not self._trials() and all(preset[key] in one for key, one in space.items()):
                self._study.enqueue_trial({key: _stored(space[key], value) for key, value in preset.items()})

    def close(self) -> None:
        """Release the file."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def search(self, trials: int, stop: Stop, progress: bool) -> Tuning:
        """Continue what was begun, then new trials until there are `trials` finished ones."""
        with self._quiet():
            while True:
                found = self._found()
                write_json(self._folder / BEST, found.to_json())
                if len(found.trials) >= trials:
                    return found
                if stop.wanted():
                    raise RunInterrupted(self._folder, 0, stop.caught or signal.SIGINT)
                trial = self._begun() or self._study.ask()
                self._study.sampler = self._sampler(trial.number)
                self._one(trial, f"trial {len(found.trials) + 1} of {trials}", progress)

    def _one(self, trial: Any, name: str, progress: bool) -> None:
        say = _line if progress else _nothing
        settings = self._chosen(trial)
        say(f"{name}: " + ", ".join(f"{key}={as_text(value)}" for key, value in settings.items()))

        def report(value: float, point: int) -> bool:
            trial.report(value, point)
            return bool(trial.should_prune())

        place, seen = self._place(trial.number), self._trials()[trial.number].intermediate_values
        follow = _Follower(int(self._plan.values["total_steps"]), self._config.seed, list(seen), report)
        states = self._optuna.trial.TrialState
        value, state, words = None, states.FAIL, ""
        try:
            config = replace(self._config, settings={**self._config.settings, **settings}, out=place)
            run = _trained(config, place, progress, follow)
            if follow.stopped is None:
                outcome = _judged(run, self._episodes, self._config.seed)
                trial.set_user_attr("outcome", vars(outcome))
                value, state = score(outcome.reward, outcome.excess), states.COMPLETE
            else:
                state, words = states.PRUNED, f"behind the median at {100 * follow.stopped:.0f} % of its steps"
        except NonFiniteError as error:
            words = str(error)
        except InputError as error:
            # These settings do not go together. Those of the preset do, and so do those of a run that has begun: then
            # something else is wrong, and the trial is continued when that is mended.
            if trial.number == 0 or (place / CONFIG).exists():
                raise
            words = str(error)
        if words:
            trial.set_user_attr("words", words)
        self._study.tell(trial, value, state=state)
        say(f"{name}: {self._read(self._trials()[trial.number])}")

    def _chosen(self, trial: Any) -> dict[str, Any]:
        """What Optuna suggests; of a trial that was begun, what it suggested then."""
        found: dict[str, Any] = {}
        for key, one in self._space.items():
            if isinstance(one, Choices):
                suggested = trial.suggest_categorical(key, one.texts)
            else:
                suggest = trial.suggest_int if one.whole else trial.suggest_float
                suggested = suggest(key, one.low, one.high, log=one.log)
            found[key] = self._value(key, suggested)
        return found

    def _value(self, key: str, suggested: Any) -> Any:
        one = self._space[key]
        return one.value(suggested) if isinstance(one, Range) else parsed(key, suggested, self._config.algorithm)

    def _place(self, number: int) -> Path:
        return self._folder / f"trial-{number:03d}"

    def _begun(self) -> Any:
        """The trial that an earlier call was killed in, under its own number; None if there is none.

        Nobody else is in it: one process at a time holds the folder's lock.
        """
        running = [one for one in self._trials() if one.state == self._optuna.trial.TrialState.RUNNING]
        return self._optuna.trial.Trial(self._study, running[0]._trial_id) if running else None

    def _trials(self) -> Any:
        return self._study.get_trials(deepcopy=False)

    def _found(self) -> Tuning:
        finished = [one for one in self._trials() if one.state.is_finished()]
        trials = tuple(map(self._read, finished))
        complete = [(one.value, -one.number) for one in finished if one.value is not None and _complete(one)]
        number = -max(complete)[1] if complete else None
        best = next((one for one in trials if one.number == number), None)
        return Tuning(self._folder, trials, best, None if best is None else self._command(best.settings))

    def _read(self, frozen: Any) -> Trial:
        settings = {key: self._value(key, frozen.params[key]) for key in self._space if key in frozen.params}
        attributes, place = frozen.user_attrs, self._place(frozen.number)
        if _complete(frozen):
            measured = attributes["outcome"]
            outcome = Outcome(measured["reward"], measured["excess"], tuple(measured["risks"]))
            return Trial(frozen.number, "complete", settings, place, outcome)
        pruned = frozen.state == self._optuna.trial.TrialState.PRUNED
        words = str(attributes.get("words", ""))
        return Trial(frozen.number, "pruned" if pruned else "failed", settings, place, words=words)

    def _command(self, settings: Mapping[str, Any]) -> str | None:
        """`tailsafe train` with the same constraints and these settings."""
        config = self._config
        problem = config.settings.get("problem")
        if not isinstance(config.task, str) or not isinstance(problem, str | Path | None):
            return None
        words = [
            "tailsafe",
            "train",
            config.task,
            "--algo",
            config.algorithm,
            "--preset",
            str(self._plan.config.preset),
        ]
        for one in self._plan.constraints:
            words += ["--risk", one.spectrum.spec, "--limit", f"{one.limit_text}/{one.unit}"]
        words += [] if config.backend == "auto" else ["--backend", config.backend]
        for key, value in {**config.settings, **settings}.items():
            words += ["--steps", str(value)] if key == "total_steps" else ["--set", f"{key}={as_text(value)}"]
        for key, value in config.env_args.items():
            words += ["--env-arg", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
        return shlex.join(words)

    def _opened(self, path: Path) -> Any:
        if "?" in str(path):
            raise InputError(f"{path}: SQLite takes no '?' in a name; choose another folder with --out")
        pruners = self._optuna.pruners
        try:
            self._storage = self._optuna.storages.RDBStorage(f"sqlite:///{path}")
            pruner = pruners.MedianPruner(n_startup_trials=_SPARED, n_warmup_steps=_SPARED)
            return self._optuna.create_study(
                storage=self._storage,
                study_name="tailsafe",
                direction="maximize",
                pruner=pruner,
                sampler=self._sampler(0),
                load_if_exists=True,
            )
        except Exception as error:  # whatever the database's driver raises
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"{path}: cannot be used as an Optuna study ({reason})") from None

    def _sampler(self, number: int) -> Any:
        """With a seed for every trial: a search that was interrupted takes the same path, and repeats no choice."""
        seed = np.random.SeedSequence((self._config.seed, number)).generate_state(1)[0]
        return self._optuna.samplers.TPESampler(seed=int(seed))

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """Optuna's own lines would repeat ours."""
        logging = self._optuna.logging
        before = logging.get_verbosity()
        logging.set_verbosity(logging.WARNING)
        try:
            yield
        finally:
            logging.set_verbosity(before)


def _complete(frozen: Any) -> bool:
    """Finished and measured; what other tools add to the study is not."""
    return str(frozen.state.name) == "COMPLETE" and "outcome" in frozen.user_attrs


def _stored(one: Range | Choices, value: Any) -> Any:
    """A value as Optuna keeps it."""
    return as_text(value) if isinstance(one, Choices) else value


def _line(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


def _nothing(text: str) -> None:
    pass
