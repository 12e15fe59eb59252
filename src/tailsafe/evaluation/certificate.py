"""A certificate: with the wanted confidence, this policy keeps the limits in this simulator.

What is tested, in which order and with which share of the error is fixed before an episode is played: see
`sequential`. Episodes are kept, so that an interrupted search resumes and a later one with a larger budget adds to
them: the bounds hold at all numbers of episodes at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailsafe.errors import InputError
from tailsafe.evaluation.bounds import student_interval
from tailsafe.evaluation.candidates import Player, search_of
from tailsafe.evaluation.environments import open_stage
from tailsafe.evaluation.played_environment import beside, played_in
from tailsafe.evaluation.recordings import Recordings
from tailsafe.evaluation.search_outcome import FOLDER, FORMAT, Certificate, Finding, home_of, largest_sum
from tailsafe.evaluation.sequential import BATCH, Limit, Proof, prove
from tailsafe.files import read_object
from tailsafe.policies.described_constraint import Unit
from tailsafe.policies.metadata import PolicyDescription
from tailsafe.policies.policy import policy_digest
from tailsafe.policies.pretrained import own_copy
from tailsafe.policies.reading import Fields

# Episodes at most, unless the user says otherwise.
BUDGET = 10_000
_LARGEST_SEED, _MOST_EPISODES = 150, 1_000_000
# What a certificate says that a replay does not compute but take from it or from the policy.
_CLAIMS = ("algorithm", "cost", "risk_measure", "limit", "unit", "confidence", "rule", "statement")
ProgressCallback = Callable[[str, int, int], None]


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
    progress: ProgressCallback = lambda name, done, total: None,
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
            Limit(constraint.measure, stated / factor, largest_sum(description, i))
            for i, (constraint, stated, factor) in enumerate(zip(description.constraints, limits, factors, strict=True))
        ]
        digest = policy_digest(run)
        folder = home_of(run) / FOLDER
        # What was played in the environment of training stays.
        folder = folder if played.trained_in is None else beside(folder, played.name)
        recordings = Recordings(folder if keep else None, digest, seed, played)
        findings: list[Finding] = []

        def tested(index: int, error: float) -> Proof:
            candidate = search.candidates[index]

            def report(done: int) -> None:
                progress(candidate.name, done, episodes)

            player = Player(candidate, seed, recordings, stage, report)
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
    progress: ProgressCallback = lambda name, done, total: None,
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


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
