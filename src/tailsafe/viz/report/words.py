"""What a report says in words: sentences about runs, and their figures over seeds."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tailsafe.evaluation.bounds import Interval, student_interval
from tailsafe.evaluation.constraint_report import BOOTSTRAP_MET, Verdict
from tailsafe.viz.report.charts import number, whole
from tailsafe.viz.report.data import Judged, Metric, Run

# Of bounds over seeds.
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Figure:
    """A number of a run. interval: None where it is a logged one, without bounds. verdicts: of the seeds, if any."""

    value: float
    interval: Interval | None
    verdicts: tuple[Verdict, ...] = ()


def reward_of(run: Run) -> Figure:
    """Reward per episode: evaluated, over seeds where there are several; else the last one of the log."""
    found = run.evaluations
    if not found:
        return Figure(_logged(run, "reward"), None)
    if len(found) == 1:
        return Figure(found[0].reward, found[0].reward_bounds)
    return Figure(*_over_seeds([evaluated.reward for evaluated in found]))


def metrics_of(run: Run) -> dict[str, Figure]:
    """The environment's own numbers per episode, evaluated; over seeds where there are several."""
    found: dict[str, list[Metric]] = {}
    for evaluated in run.evaluations:
        for metric in evaluated.metrics:
            found.setdefault(metric.name, []).append(metric)
    return {
        name: Figure(own[0].mean, own[0].bounds) if len(own) == 1 else Figure(*_over_seeds([one.mean for one in own]))
        for name, own in found.items()
    }


def risk_of(run: Run, cost: str) -> Figure | None:
    """The risk of one cost in the unit of its limit: evaluated, or the last one of the log."""
    judged = judged_by_seed(run, cost)
    if not judged:
        value = _logged(run, f"risk_{cost}")
        return None if math.isnan(value) else Figure(value, None)
    verdicts = tuple(one.verdict for _, one in judged)
    if len(judged) == 1:
        return Figure(judged[0][1].risk, judged[0][1].deciding, verdicts)
    return Figure(*_over_seeds([one.risk for _, one in judged]), verdicts)


def judged_by_seed(run: Run, cost: str) -> list[tuple[str, Judged]]:
    """The evaluated seeds of a run and what they say about one cost."""
    return [
        (seed.name, judged)
        for seed in run.seeds
        if seed.evaluated is not None
        for judged in seed.evaluated.constraints
        if judged.name == cost
    ]


def evaluated_costs(run: Run) -> list[str]:
    """Names of the constraints that were judged."""
    return list(dict.fromkeys(judged.name for one in run.evaluations for judged in one.constraints))


def overall(verdicts: Sequence[Verdict]) -> Verdict | None:
    """One violation is enough; met is what all of them are, and by bootstrap where one of them is."""
    if not verdicts:
        return None
    if "violated" in verdicts:
        return "violated"
    if "cannot tell" in verdicts:
        return "cannot tell"
    return BOOTSTRAP_MET if BOOTSTRAP_MET in verdicts else "met"


def verdict_of(run: Run) -> Verdict | None:
    """All constraints of all evaluated seeds together; None without an evaluation."""
    return overall([judged.verdict for evaluated in run.evaluations for judged in evaluated.constraints])


def count_words(verdicts: Sequence[Verdict]) -> str:
    """`met`, or `met, 2 of 3` where there are several seeds."""
    one = overall(verdicts)
    if one is None:
        return ""
    return one if len(verdicts) == 1 else f"{one}, {sum(verdict == one for verdict in verdicts)} of {len(verdicts)}"


def sentence(run: Run) -> str:
    """What was trained, under which limits, and what the verdict is."""
    what = f"{len(run.seeds)} policies (seeds)" if len(run.seeds) > 1 else "a policy"
    limits = ", ".join(f"{one.measure} of {one.name} at most {one.words}{_slash(one.unit)}" for one in run.limits)
    under = f", with {limits}" if limits else ""
    trained = f"{run.algorithm} trained {what} for {run.task} in {whole(run.steps)} steps{under}"
    return f"{trained}. {verdict_sentence(run)}"


def why_not_evaluated(run: Run) -> str:
    """That it was not, or elsewhere, or that what was evaluated is not the policy any more."""
    outdated = [seed.outdated for seed in run.seeds if seed.outdated is not None]
    if not outdated:
        places = dict.fromkeys(seed.elsewhere.place for seed in run.seeds if seed.elsewhere is not None)
        if places:
            return f"Not evaluated where it was trained, but in another environment, {' and '.join(places)}"
        return "Not evaluated yet"
    return f"Evaluated after {whole(outdated[0])} steps, but training went on since"


def verdict_sentence(run: Run) -> str:
    """What the evaluation says, or how to make one."""
    found = run.evaluations
    if not found:
        return f"{why_not_evaluated(run)}: run {command('evaluate', run)}."
    parts = [
        f"the limit on {cost} {_kept([judged.verdict for _, judged in judged_by_seed(run, cost)])}"
        for cost in evaluated_costs(run)
    ]
    first = found[0]
    by = sorted({judged.decided_by for one in found for judged in one.constraints})
    kind = " and ".join(
        "distribution-free bounds" if name == "distribution-free" else "bootstrap bounds" for name in by
    )
    each = " each" if len(found) > 1 else ""
    how = ", played with the likeliest actions" if any(one.deterministic for one in found) else ""
    judged = "; ".join(parts)
    return (
        f"{judged[:1].upper()}{judged[1:]}, judged by {kind} at confidence {first.confidence:g} on "
        f"{whole(first.episodes)} fresh episodes{each}{how}."
    )


def _slash(unit: str) -> str:
    return f"/{unit}" if unit else ""


def _kept(verdicts: Sequence[Verdict]) -> str:
    one = overall(verdicts)
    if len(verdicts) == 1:
        said: dict[str, str] = {
            "met": "is kept",
            BOOTSTRAP_MET: "is kept without a guarantee",
            "violated": "is violated",
        }
        return said.get(str(one), "may or may not be kept")
    if one in ("met", BOOTSTRAP_MET):
        return f"is kept by all of {len(verdicts)} seeds{'' if one == 'met' else ', without a guarantee'}"
    if one == "violated":
        return f"is violated by {verdicts.count('violated')} of {len(verdicts)} seeds"
    kept = sum(verdict in ("met", BOOTSTRAP_MET) for verdict in verdicts)
    if not kept:
        return f"may or may not be kept by any of {len(verdicts)} seeds"
    return f"is kept by {kept} of {len(verdicts)} seeds, and may be by the others"


def summary(runs: Sequence[Run], studies: Sequence[str]) -> str:
    """The lead of a page about several things."""
    parts = []
    if runs:
        verdicts = [verdict_of(run) for run in runs]
        counted = [
            f"{verdicts.count('met')} with every limit met",
            f"{verdicts.count(BOOTSTRAP_MET)} with every limit met by bootstrap, without a guarantee",
            f"{verdicts.count('violated')} with a violated limit",
            f"{verdicts.count('cannot tell')} undecided",
            f"{verdicts.count(None)} not evaluated",
        ]
        kept = ", ".join(words for words in counted if not words.startswith("0 "))
        parts.append(f"{len(runs)} run{'s' if len(runs) > 1 else ''}: {kept}.")
    if studies:
        parts.append(f"{'Studies' if len(studies) > 1 else 'A study'}: {'; '.join(studies)}.")
    return " ".join(parts)


def command(name: str, run: Run) -> str:
    """A command line about a run, as one would type it."""
    return f"tailsafe {name} {shlex.quote(str(run.folder))}"


def figure_text(figure: Figure) -> str:
    """The number with its bounds."""
    if figure.interval is None:
        return number(figure.value)
    high = number(figure.interval.high)
    return f"{number(figure.value)} [{number(figure.interval.low)}, {high}{')' if high == '∞' else ']'}"


def _logged(run: Run, column: str) -> float:
    values = [value for seed in run.seeds if math.isfinite(value := seed.last(column))]
    return float(np.mean(values)) if values else math.nan


def _over_seeds(values: Sequence[float]) -> tuple[float, Interval]:
    """Mean of n >= 2 seeds, with Student's bounds."""
    return float(np.mean(values)), student_interval(np.asarray(values), CONFIDENCE)
