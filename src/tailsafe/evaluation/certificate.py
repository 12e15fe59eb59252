"""A certificate: with the wanted confidence, this policy keeps the limits in this simulator.

What is tested, in which order and with which share of the error is fixed before an episode is played: see
`sequential`. Episodes are kept, so that an interrupted search resumes and a later one with a larger budget adds to
them: the bounds hold at all numbers of episodes at once.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from tailsafe._version import __version__
from tailsafe.errors import InputError
from tailsafe.evaluation.bounds import Interval, largest_return, student_interval
from tailsafe.evaluation.environments import Stage, open_stage
from tailsafe.evaluation.episodes import Episodes, play
from tailsafe.evaluation.late import late_policies
from tailsafe.evaluation.played import Played, beside, other_place, played_in
from tailsafe.evaluation.recordings import Recordings
from tailsafe.evaluation.sequential import BATCH, Limit, Proof, in_sequence, prove, with_shares
from tailsafe.files import read_object, write_json
from tailsafe.policies.metadata import PolicyDescription, Unit
from tailsafe.policies.policy import (
    POINTS,
    LoadedPolicy,
    attach_certificate,
    load_policy,
    policy_digest,
    save_policy,
)
from tailsafe.policies.pretrained import own_copy
from tailsafe.policies.reading import Fields

FILE_NAME, FOLDER, CERTIFIED = "certificate.json", "certificate", "certified"
FORMAT = 1
# Of the error, for checkpoints before the last. It makes the bound of the policy itself a few percent wider.
LATE_SHARE = 0.2
# Episodes at most, unless the user says otherwise.
BUDGET = 10_000
# A picture of the proof begins at so many episodes.
_FEWEST_DRAWN = 64
# Environments of certificates begin at seeds that neither training nor evaluation uses. A batch that begins with
# episode i has seed _FIRST + _APART * seed + _SIDE * i; single environments number their seeds from there.
_FIRST, _APART, _SIDE = 20_000_003, 10_000_000, 8
_LARGEST_SEED, _MOST_EPISODES = 150, 1_000_000
# What a certificate says that a replay does not compute but take from it or from the policy.
_CLAIMS = ("algorithm", "cost", "risk_measure", "limit", "unit", "confidence", "rule", "statement")
STATEMENT = (
    "about this policy in this simulator, at the stated confidence; it says nothing about other versions of either"
)

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Candidate:
    """Something to be tested. request: the limits that the policy is asked for, as stated in training. share: of the
    error, where shares are used.
    """

    name: str
    request: tuple[float, ...]
    load: Callable[[], LoadedPolicy]
    share: float = 1.0


@dataclass(frozen=True)
class Search:
    """Candidates in the order of the search. rule: see `sequential`."""

    candidates: tuple[Candidate, ...]
    rule: Literal["sequence", "shares"]

    def run(self, tested: Callable[[int, float], Proof], error: float) -> list[Proof]:
        if self.rule == "sequence":
            return in_sequence(tested, len(self.candidates), error)
        return with_shares(tested, [candidate.share for candidate in self.candidates], error)


def requests_of(run: Path, points: int = POINTS) -> Search:
    """What the run's policy can be asked for: one that was trained for one limit, that one alone.

    points: how many limits of a policy that takes the limit as an input, which would be a `sequence`, the smallest
    first.
    """
    policy = load_policy(run)
    described = policy.description
    if not described.ranged:
        return Search((Candidate("policy", described.request, lambda: policy),), "shares")
    asked = [
        Candidate(f"request-{i}", one.limit, lambda one=one: one)  # type: ignore[misc]
        for i, one in enumerate(policy.across(points), 1)
    ]
    return Search(tuple(asked), "sequence")


def search_of(run: Path) -> Search:
    """The requests of the run and, for a policy of one limit, its late checkpoints with a small share of the error."""
    search = requests_of(run)
    if search.rule == "sequence":
        return search
    (shipped,) = search.candidates
    late = late_policies(run, shipped.load())
    if not late:
        return search
    others = [
        Candidate(f"checkpoint-{steps}", shipped.request, lambda policy=policy: policy, LATE_SHARE / len(late))  # type: ignore[misc]
        for steps, policy in late.items()
    ]
    return Search((replace(shipped, share=1 - LATE_SHARE), *others), "shares")


@dataclass(frozen=True, eq=False)
class Finding:
    """One tested candidate with its episodes; risks and uppers are in the unit of the stated limits.

    costs: discounted sums of its episodes, in the order in which they were played.
    """

    candidate: Candidate
    proof: Proof
    costs: Float[NDArray[np.float64], "n C"]
    risks: tuple[float, ...]
    uppers: tuple[float, ...]
    reward: float
    reward_interval: Interval

    @property
    def certified(self) -> bool:
        return self.proof.outcome == "certified"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.candidate.name,
            "request": _plain(self.candidate.request),
            "outcome": self.proof.outcome,
            "risk": _plain(self.risks),
            "upper": _plain(self.uppers),
            "error": self.proof.error,
            "episodes": self.proof.episodes,
            "reward": self.reward,
            "reward_interval": self.reward_interval.to_json(),
        }


@dataclass(frozen=True, eq=False)
class Certificate:
    """The outcome of a search. played: what it is about. limits: as the user stated them, one per cost. chosen: the
    most rewarding candidate that was certified, None if none was.
    """

    played: Played
    digest: str
    limits: tuple[float, ...]
    units: tuple[Unit, ...]
    confidence: float
    budget: int
    seed: int
    rule: str
    findings: tuple[Finding, ...]

    @property
    def policy(self) -> PolicyDescription:
        """What the policy is, in the environment that was played."""
        return self.played.description

    @property
    def chosen(self) -> Finding | None:
        certified = [finding for finding in self.findings if finding.certified]
        return max(certified, key=lambda finding: finding.reward, default=None)

    @property
    def certified(self) -> bool:
        return self.chosen is not None

    @property
    def shown(self) -> Finding:
        """The finding to report: the chosen one, else the one closest to the limits."""
        return self.chosen or min(self.findings, key=self._excess)

    def _excess(self, finding: Finding) -> float:
        pairs = zip(finding.risks, self.limits, strict=True)
        return max(risk / limit if limit > 0 else (math.inf if risk > 0 else 0.0) for risk, limit in pairs)

    def course(self, cost: int, points: int = 24) -> Float[NDArray[np.float64], "K 3"]:
        """How the proof of `shown` came about: numbers of episodes, the risk seen in them and its upper bound.

        The bounds hold at all of these numbers at once. They and the risks are in the unit of the cost's limit.
        """
        finding, factor = self.shown, self.policy.factor_of(self.units[cost])
        measure = self.policy.constraints[cost].measure
        limit = Limit(measure, self.limits[cost] / factor, _largest(self.policy, cost))
        sums = finding.costs[:, cost]
        counts = np.unique(np.geomspace(min(_FEWEST_DRAWN, sums.size), sums.size, points).round().astype(int))
        rows = [
            (count, measure.risk(sums[:count]) * factor, limit.upper(sums[:count], finding.proof.error) * factor)
            for count in counts
        ]
        return np.asarray(rows, float)

    @property
    def advice(self) -> str:
        """What would help where nothing was certified."""
        if self.above:
            return (
                "the risk is above the limit: train longer (tailsafe resume), for a smaller limit (--limit), or with "
                "a larger --set margin=..."
            )
        return (
            f"the risk seen is below the limit, but {self.shown.proof.episodes} episodes leave too much room for costs "
            f"that were not: more episodes (--episodes {self.wanted}), or a policy with a smaller risk"
        )

    @property
    def above(self) -> bool:
        """Whether the risk of `shown` is seen to exceed its limit."""
        return self.shown.proof.outcome == "violated" or self._excess(self.shown) >= 1

    @property
    def wanted(self) -> int:
        """Episodes that another search should play at most."""
        return max(4 * self.budget, 20_000)

    def to_json(self) -> dict[str, Any]:
        """What `tailsafe certify --json` prints and certificate.json holds."""
        shown = self.shown
        return {
            "format": FORMAT,
            "certified": self.certified,
            "limit": _plain(self.limits),
            "unit": _plain(self.units),
            "request": _plain(shown.candidate.request) if self.certified else None,
            "candidate": shown.candidate.name,
            "risk": _plain(shown.risks),
            "upper": _plain(shown.uppers),
            "confidence": self.confidence,
            "episodes": shown.proof.episodes,
            "reward": shown.reward,
            "reward_interval": shown.reward_interval.to_json(),
            "tested": [finding.to_json() for finding in self.findings],
            "rule": self.rule,
            "advice": None if self.certified else self.advice,
            "task": self.policy.task.name,
            **self.played.to_json(),
            "algorithm": self.policy.algorithm,
            "risk_measure": _plain([constraint.risk_measure for constraint in self.policy.constraints]),
            "cost": _plain(list(self.policy.task.cost_names)),
            "policy": self.digest,
            "seed": self.seed,
            "budget": self.budget,
            "versions": {"tailsafe": __version__, "python": platform.python_version(), "numpy": np.__version__},
            "statement": STATEMENT,
        }

    def keep(self, run: Path) -> None:
        """Write certificate.json beside the policy and, if something was certified, what into the policy file.

        A certified checkpoint becomes a policy of its own, in the folder `certified`; the run's policy stays. Of a
        policy for a range of limits the file then asks for what was certified. A file about another environment becomes
        certificate.ENVIRONMENT.json, and what was certified in the environment of training stays in the policy file.
        """
        report = self.to_json()
        path = _home(run) / FILE_NAME
        place = None
        with suppress(InputError):  # what cannot be read is of no use to anybody
            place = other_place(read_object(path), self.played) if path.is_file() else None
        if place is not None:
            os.replace(path, beside(path, place))
        if self.chosen is not None:
            about = ("task", "environment", "trained_in", "statement")
            names = (*about, "limit", "unit", "request", "risk_measure", "upper", "confidence", "episodes")
            proven = {name: report[name] for name in names}
            if self.chosen is self.findings[0] or self.rule == "sequence":
                before = load_policy(run).description.certificate
                if self.played.trained_in is None or before is None or before.get("trained_in") is not None:
                    attach_certificate(run, proven, self.chosen.candidate.request if self.rule == "sequence" else None)
            else:
                policy = self.chosen.candidate.load()
                described = replace(policy.description, certificate=proven)
                save_policy(_home(run) / CERTIFIED, policy.network, policy.normalizer, policy.modes, described)
        write_json(path, report)


def certify(
    run: Path | str,
    limit: float | Sequence[float],
    unit: Unit | Sequence[Unit] | None = None,
    *,
    confidence: float = 0.95,
    episodes: int = BUDGET,
    seed: int = 0,
    environment: str | Callable[..., Any] | None = None,
    env_args: Mapping[str, Any] | None = None,
    trust: bool = False,
    backend: str = "auto",
    keep: bool = True,
    progress: Progress = lambda name, done, total: None,
) -> Certificate:
    """Play until the risks of a run's policy are proven to be below the limits, or until that is out of reach.

    Args:
      run: a run folder, a policy's folder or file, or `pretrained:NAME`.
      limit: the user's limit, one for all costs or one for each; it may differ from the one trained for.
      unit: `step`, `discounted` or `episode`; None: the unit the run was trained with.
      confidence: P(nothing is certified wrongly) is at least this, over the whole search.
      episodes: at most, for each candidate. Those of an earlier call count.
      seed: of environments and actions. Trying seeds until one certifies proves nothing.
      environment: the environment in place of the one that the policy names: its name, or what builds it. The
        certificate is about this one.
      env_args: arguments of the environment in place of those of the run, one by one.
      trust: build the environment that the policy names, though you have not trained on it on this machine.
      backend: engine of the built-in tasks.
      keep: write certificate.json, the episodes, and the certificate into the policy file.
      progress: called with a candidate's name, its episodes and the most there can be.

    Returns:
      What was proven, for which candidate, and of all that were tried.

    Examples:
      >>> certificate = ts.certify("pretrained:two-roads", limit=5.0, episodes=2000, keep=False)
      >>> certificate.certified
      True
    """
    run = own_copy(Path(run)) if keep else Path(run)
    _check_arguments(confidence, episodes, seed)
    search = search_of(run)
    trained = search.candidates[0].load().description
    stage = open_stage(trained, BATCH, environment, backend, env_args=env_args, trust=trust)
    with closing(stage):
        played = played_in(trained, stage)
        description = played.description
        limits, units = _stated(description, limit, unit)
        factors = [description.factor_of(each) for each in units]
        wanted = [
            Limit(constraint.measure, stated / factor, _largest(description, i))
            for i, (constraint, stated, factor) in enumerate(zip(description.constraints, limits, factors, strict=True))
        ]
        digest = policy_digest(run)
        folder = _home(run) / FOLDER
        # What was played in the environment of training stays.
        folder = folder if played.trained_in is None else beside(folder, played.name)
        recordings = Recordings(folder if keep else None, digest, seed, played)
        findings: list[Finding] = []

        def tested(index: int, error: float) -> Proof:
            candidate = search.candidates[index]

            def report(done: int) -> None:
                progress(candidate.name, done, episodes)

            player = _Player(candidate, seed, recordings, stage, report)
            result = prove(wanted, player.draw, error, episodes, report)
            reward = player.played.reward[: result.episodes]
            findings.append(
                Finding(
                    candidate,
                    result,
                    player.played.discounted_costs[: result.episodes],
                    tuple(risk * factor for risk, factor in zip(result.risks, factors, strict=True)),
                    tuple(upper * factor for upper, factor in zip(result.uppers, factors, strict=True)),
                    float(reward.mean()),
                    student_interval(reward, confidence),
                )
            )
            return result

        search.run(tested, 1 - confidence)
    certificate = Certificate(played, digest, limits, units, confidence, episodes, seed, search.rule, tuple(findings))
    if keep:
        certificate.keep(run)
    return certificate


@dataclass(frozen=True)
class Check:
    """A certificate that was replayed. same_policy: its policy is the one in the folder. identical: all numbers are as
    written (on another machine they need not be). confirmed: the replay proves the same.
    """

    same_policy: bool
    identical: bool
    confirmed: bool
    replayed: Certificate | None

    def to_json(self) -> dict[str, Any]:
        report = {} if self.replayed is None else self.replayed.to_json()
        return report | {
            "same_policy": self.same_policy,
            "identical": self.identical,
            "confirmed": self.confirmed,
        }


def check(
    file: Path | str,
    *,
    environment: str | Callable[..., Any] | None = None,
    env_args: Mapping[str, Any] | None = None,
    trust: bool = False,
    backend: str = "auto",
    progress: Progress = lambda name, done, total: None,
) -> Check:
    """Replay a certificate: play its episodes again with the policy beside it and compare. Writes nothing.

    Of an environment that is not the run's, name it again (`environment`, `env_args`): a file names code that nobody
    has asked for.
    """
    file = Path(file)
    content = read_object(file)
    written = Fields(content, file.name)
    if written.get("format") != FORMAT:
        raise InputError(f"{file}: format is {content.get('format')!r}; this version of tailsafe reads format {FORMAT}")
    if policy_digest(file.parent) != written.text("policy"):
        return Check(False, False, False, None)
    limits, units = _listed(written.get("limit")), _listed(written.get("unit"))
    replayed = certify(
        file.parent,
        limits,
        units,
        confidence=written.number("confidence"),
        episodes=written.whole("budget", 2),
        seed=written.whole("seed", 0),
        environment=environment,
        env_args=env_args,
        trust=trust,
        backend=backend,
        keep=False,
        progress=progress,
    )
    again = replayed.to_json()
    identical = all(again[key] == content.get(key) for key in ("certified", "risk", "upper", "reward", "tested"))
    # Numbers may differ by rounding; what they are about may not.
    same = all(again[key] == content.get(key) for key in _CLAIMS) and _same_environment(again, content)
    proven = {finding.candidate.name for finding in replayed.findings if finding.certified}
    confirmed = content.get("certified") is True and same and written.text("candidate") in proven
    return Check(True, identical, confirmed, replayed)


def _same_environment(again: Mapping[str, Any], written: Mapping[str, Any]) -> bool:
    """Whether two certificates are about one environment. FILE.py may be in another folder here."""
    mine, other = again["environment"], written.get("environment")
    pairs = [(again["task"], written.get("task"))]
    if other is not None:  # files of earlier versions name the task alone
        facts = ("arguments", "costs", "largest_costs", "episode_length")
        if not isinstance(other, dict) or any(mine[key] != other.get(key) for key in facts):
            return False
        pairs.append((mine["name"], other.get("name")))
    return all(isinstance(name, str) and Path(name).name == Path(own).name for own, name in pairs)


class _Player:
    """Episodes of one candidate, by number: recorded ones first, then fresh ones."""

    def __init__(
        self,
        candidate: Candidate,
        seed: int,
        recordings: Recordings,
        stage: Stage,
        report: Callable[[int], None],
    ) -> None:
        self._report = report
        self._policy, self._name, self._seed = candidate.load(), candidate.name, seed
        self._recordings, self._stage = recordings, stage
        self._played = recordings.read(candidate.name)

    @property
    def played(self) -> Episodes:
        assert self._played is not None
        return self._played

    def draw(self, first: int, count: int) -> Float[NDArray[np.float64], "n C"]:
        have = 0 if self._played is None else len(self._played)
        if have < first + count:
            fresh = play(
                self._policy,
                self._stage,
                first + count - have,
                _FIRST + _APART * self._seed + _SIDE * have,
                progress=lambda done, _: self._report(have + done),
            )
            self._played = fresh if self._played is None else self._played.followed_by(fresh)
            self._recordings.write(self._name, self._played)
        costs: NDArray[np.float64] = self.played.discounted_costs[first : first + count]
        return costs


def _stated(
    description: PolicyDescription, limit: float | Sequence[float], unit: Unit | Sequence[Unit] | None
) -> tuple[tuple[float, ...], tuple[Unit, ...]]:
    """One limit and unit per cost, in the order of the costs."""
    costs = len(description.constraints)
    limits = list(limit) if isinstance(limit, Sequence) else [limit]
    own = [constraint.unit for constraint in description.constraints]
    units = own if unit is None else [unit] if isinstance(unit, str) else list(unit)
    for name, given in (("limits", limits), ("units", units)):
        if len(given) not in (1, costs):
            raise InputError(f"{len(given)} {name} for {costs} costs ({', '.join(description.task.cost_names)})")
    limits, units = (each * costs if len(each) == 1 else each for each in (limits, units))  # type: ignore[assignment]
    for each in limits:
        if isinstance(each, bool) or not isinstance(each, int | float) or not 0 <= each < math.inf:
            raise InputError(f"limit is {each!r}; it must be finite and not negative")
    for word in units:
        if word not in ("step", "discounted", "episode"):
            raise InputError(f"unit is {word!r}; it must be one of step, discounted, episode")
    return tuple(float(each) for each in limits), tuple(units)


def _check_arguments(confidence: float, episodes: int, seed: int) -> None:
    if not 0 < confidence < 1:
        raise InputError(f"confidence is {confidence:g}; it must be in (0, 1)")
    if not 2 <= episodes <= _MOST_EPISODES:
        raise InputError(f"episodes is {episodes}; a certificate takes 2 to {_MOST_EPISODES:,}")
    if not 0 <= seed <= _LARGEST_SEED:
        raise InputError(f"seed is {seed}; a certificate takes 0 to {_LARGEST_SEED}")


def _largest(description: PolicyDescription, index: int) -> float:
    largest = largest_return(description, index)
    if not math.isfinite(largest):
        raise InputError(
            f"nothing can be proven about {description.task.cost_names[index]}: the environment does not say what a "
            "step can cost at most; give it an attribute largest_costs"
        )
    return largest


def _home(run: Path) -> Path:
    return run if run.is_dir() else run.parent


def _plain(values: Sequence[Any]) -> Any:
    """One value where there is one cost, else the list."""
    return values[0] if len(values) == 1 else list(values)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
