"""Where learning stands: how much of each gradient is signal, and how good critics and risk estimates are.

The policy of the newest checkpoint is held still. Independent rollouts give independent estimates of its gradients and
of its risks; whole episodes say what is true.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from numpy.typing import NDArray

from tailsafe.algorithms import primal
from tailsafe.algorithms.registry import ALGORITHMS, algorithm_of
from tailsafe.algorithms.state import PrimalConfig
from tailsafe.errors import InputError
from tailsafe.evaluation.environments import open_stage
from tailsafe.evaluation.episodes import Episodes, play
from tailsafe.files import open_text
from tailsafe.learning.batches import Minibatch, as_segments, initial_states, minibatches_of
from tailsafe.learning.chunks import Chunk
from tailsafe.learning.trust_region import conjugate_gradient
from tailsafe.policies.acting import LoadedPolicy
from tailsafe.policies.policy import load_policy
from tailsafe.training.config import TrainConfig
from tailsafe.training.members import METRICS
from tailsafe.training.plan import Plan, make_plan
from tailsafe.training.saved_runs import reopen
from tailsafe.training.train import in_environment, read_config

FILE_NAME, PICTURE_NAME = "diagnosis.json", "diagnosis.png"
LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
# A cosine of the two halves of an update that is worth stepping along.
WANTED_COSINE = 0.5
# The last rows of the log that "lately" means.
_LATELY = 20


@dataclass(frozen=True)
class Signal:
    """Of one gradient. cosine: expected between the two halves of an update. rows: of an update, as it is. needed: rows
    of an update whose halves would have a cosine of one half; None where no signal was found.
    """

    name: str
    cosine: float
    rows: int
    needed: int | None


@dataclass(frozen=True)
class RiskEstimate:
    """J_C as the learner estimates it from one update's rows, against finished episodes at the same beta."""

    name: str
    mean: float
    seen: float
    bias: float
    std: float
    target: float


@dataclass(frozen=True)
class Calibration:
    """Quantiles of a discounted sum: by the critics at initial states, and of the episodes played."""

    name: str
    levels: tuple[float, ...]
    predicted: tuple[float, ...]
    seen: tuple[float, ...]


@dataclass(frozen=True)
class Beta:
    """A dual variable of the sampler, and the quantile of the costs that it should follow."""

    name: str
    value: float
    quantile: float


@dataclass(frozen=True)
class Diagnosis:
    """What `tailsafe diagnose` reports. violated: share of the latest updates that found a limit exceeded."""

    run: str
    steps: int
    rollouts: int
    episodes: int
    signals: tuple[Signal, ...]
    estimates: tuple[RiskEstimate, ...]
    calibrations: tuple[Calibration, ...]
    betas: tuple[Beta, ...]
    violated: float | None

    def to_json(self) -> dict[str, Any]:
        reward, *costs = self.signals
        return {
            "run": self.run,
            "steps": self.steps,
            "rollouts": self.rollouts,
            "episodes": self.episodes,
            "signal": {"reward": reward.cosine, "costs": [cost.cosine for cost in costs]},
            "rows": reward.rows,
            "rows_needed": {"reward": reward.needed, "costs": [cost.needed for cost in costs]},
            "estimate": [asdict(each) for each in self.estimates],
            "calibration": [asdict(each) for each in self.calibrations],
            "beta": [asdict(each) for each in self.betas],
            "violated": self.violated,
            "advice": self.advice(),
        }

    def advice(self) -> list[str]:
        """What to change, in plain words; empty where nothing stands out."""
        said = [text for signal in self.signals if (text := _about_signal(signal)) is not None]
        for each in self.estimates:
            scale = max(abs(each.target), 1e-12)
            if abs(each.bias) > 0.25 * scale:
                side = "above" if each.bias > 0 else "below"
                said.append(
                    f"the learner's risk of {each.name} is {abs(each.bias):.3g} {side} that of finished episodes: "
                    "raise calibration or critic_iterations"
                )
            if each.std > 0.25 * scale:
                said.append(
                    f"the risk estimate of {each.name} varies by {each.std:.3g} between updates, with a target of "
                    f"{each.target:.3g}: raise smoothing, or collect more rows per update"
                )
        return said


def _about_signal(signal: Signal) -> str | None:
    if signal.needed is None:
        return f"no signal was found in the gradient of {signal.name}: collect many more rows, or check its critic"
    if signal.cosine >= 0.1:
        return None
    return (
        f"the gradient of {signal.name} is mostly noise (cosine {signal.cosine:.2f}): collect "
        f"{math.ceil(signal.needed / signal.rows)} times more rows per update (num_envs, chunk_steps, batch_chunks)"
    )


def diagnose(
    run: Path | str,
    *,
    rollouts: int = 16,
    episodes: int = 200,
    seed: int = 0,
    task: Any = None,
    env_args: Mapping[str, Any] | None = None,
    trust: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Diagnosis:
    """Diagnose the newest checkpoint of a run; nothing of the run is changed.

    Args:
      run: the folder of one run (of one seed).
      rollouts: independent chunks to collect with the policy held still, at least 2.
      episodes: whole episodes to play for the truth.
      seed: of everything random here.
      task: the environment or factory again, where the run was started with an object; or another name of it.
      env_args: its arguments in place of those of the run, one by one.
      trust: build the environment that the run names, though you have not trained on it on this machine.
      progress: called with the parts done and their number.

    Returns:
      Signal to noise of the gradients, bias and noise of the risk estimates, calibration of the critics, advice.

    Examples:
      >>> found = ts.diagnose("runs/roads", rollouts=2, episodes=10)
    """
    if rollouts < 2:
        raise InputError(f"rollouts is {rollouts}; it must be at least 2, so that they can be compared")
    folder = Path(run)
    plan = _plan(folder, read_config(folder), task, env_args, trust)
    if plan.lowest_limits is not None:
        raise InputError(f"{folder}: was trained for a range of limits; diagnose takes runs for one limit each")
    algorithm: Any = plan.algorithm
    loop, state, steps = reopen(plan, folder)
    batch = algorithm.config.batch_chunks
    try:
        chunks = []
        for i in range(rollouts):
            state, chunk = loop.collect(state, jax.random.fold_in(jax.random.key(seed), i))
            chunks.append(chunk)
            progress(i + 1, rollouts + 1)
    finally:
        if not plan.on_device:
            plan.environments.close()  # type: ignore[union-attr]
    learner, settings = state.learner, plan.settings
    key = jax.random.fold_in(jax.random.key(seed), rollouts)
    measured = jax.jit(_measure, static_argnums=0)(algorithm, learner, settings, jax.tree.map(_stack, *chunks), key)
    gram, values, atoms = jax.device_get(measured)
    policy = load_policy(folder)
    played = _played(policy, episodes, seed, task, env_args, trust)
    progress(rollouts + 1, rollouts + 1)
    names = [constraint.name for constraint in plan.constraints]
    rows = chunks[0].reward.size
    return Diagnosis(
        run=str(folder),
        steps=steps,
        rollouts=rollouts,
        episodes=len(played),
        signals=tuple(
            signal_of(name, matrix, rows, rows * batch) for name, matrix in zip(["reward", *names], gram, strict=True)
        ),
        estimates=_estimates(plan, algorithm, learner, values, played, names),
        calibrations=_calibrations(atoms, played, names),
        betas=_betas(plan, algorithm, learner, played, names),
        violated=_violated(folder),
    )


def _plan(folder: Path, config: TrainConfig, task: Any, env_args: Mapping[str, Any] | None, trust: bool) -> Plan:
    if config.seeds > 1:
        raise InputError(f"{folder} holds {config.seeds} seeds: diagnose one of them, as {folder}/seed-{config.seed}")
    if config.task is None and task is None:
        raise InputError(f"{folder}: was started from an environment object; use ts.diagnose(folder, task=...)")
    config = in_environment(config, task, env_args, trust)
    plan = make_plan(config)
    if not isinstance(plan.algorithm.config, PrimalConfig):
        able = [name for name in ALGORITHMS if issubclass(algorithm_of(name).config, PrimalConfig)]
        raise InputError(
            f"{folder}: {config.algorithm} does not step along gradients in a trust region; diagnose takes runs of "
            f"{' and '.join(able)}"
        )
    return plan


def _played(
    policy: LoadedPolicy, episodes: int, seed: int, task: Any, env_args: Mapping[str, Any] | None, trust: bool
) -> Episodes:
    stage = open_stage(policy.description, episodes, task, env_args=env_args, trust=trust)
    try:
        return play(policy, stage, episodes, seed)
    finally:
        stage.close()


def _stack(*leaves: Array) -> Array:
    stacked: Array = jnp.stack(leaves)
    return stacked


def _measure(
    algorithm: Any, learner: Any, settings: Any, chunks: Chunk, key: PRNGKeyArray
) -> tuple[Float[Array, "S K K"], Float[Array, "K 1+C"], Float[Array, "S Z"]]:
    """Of chunks with a leading axis K of rollouts: inner products in the Fisher metric of every gradient's estimates,
    the learner's estimates of (J_R, J_C), and the critics' atoms at initial states.
    """
    for_taken, for_gradient, for_values, for_atoms = jax.random.split(key, 4)
    config, segments, rollouts = algorithm.config, as_segments(chunks), chunks.reward.shape[0]
    networks, risk = algorithm.networks(learner, settings), algorithm.risk(learner, settings)
    scale = algorithm.gradient_scale(settings)
    _, taken = primal.targets_and_advantages(networks, risk, settings, config, segments, rollouts, for_taken)
    minibatches = minibatches_of(chunks, taken, groups=1)

    def gradient(minibatch: Minibatch, key: Array) -> Array:
        halves, _ = primal.gradients(networks, risk, config, scale, minibatch, key)
        return halves.mean(0)

    gradients = jax.vmap(gradient)(minibatches, jax.random.split(for_gradient, rollouts))
    # One metric for all: that of all rows together.
    whole = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), minibatches)
    _, product = primal.gradients(networks, risk, config, scale, whole, for_gradient)
    flat = gradients.reshape(-1, gradients.shape[-1])
    solved, images = conjugate_gradient(product, flat)
    solved, images = solved.reshape(gradients.shape), images.reshape(gradients.shape)
    gram = jnp.einsum("ksp,lsp->skl", solved, images)
    values = jax.vmap(lambda minibatch, key: primal.estimates(networks, risk, learner, config, minibatch, key))(
        minibatches, jax.random.split(for_values, rollouts)
    )
    delta = algorithm.shared_delta(learner)
    delta = jnp.broadcast_to(delta, (whole.initial_observation.shape[0], delta.shape[0]))
    atoms = networks.atoms_at(initial_states(whole.initial_observation, delta, algorithm.num_costs), for_atoms)
    return (gram + gram.transpose(0, 2, 1)) / 2, values, atoms.reshape(atoms.shape[0], -1)


def signal_of(name: str, gram: Float[NDArray[Any], "K K"], rows: int, used: int) -> Signal:
    """From inner products of K independent estimates of one gradient, each from `rows` rows.

    Products of different estimates have the squared length of the true gradient as their mean, squares have the noise
    on top: S^2 and S^2 + N^2. With m rows the noise is N^2 rows / m, so halves of `used` rows have a cosine of
    S^2 / (S^2 + N^2 rows / (used / 2)), which is one half where used = 2 rows N^2 / S^2.
    """
    count = gram.shape[0]
    squares = float(np.trace(gram)) / count
    signal = (float(gram.sum()) - float(np.trace(gram))) / (count * (count - 1))
    noise = max(squares - signal, 0.0)
    if signal <= 0:
        return Signal(name, 0.0, used, None)
    cosine = signal / (signal + noise * rows / (used / 2))
    return Signal(name, cosine, used, max(1, math.ceil(2 * rows * noise / signal)))


def _estimates(
    plan: Plan, algorithm: Any, learner: Any, values: NDArray[Any], played: Episodes, names: Sequence[str]
) -> tuple[RiskEstimate, ...]:
    total = jnp.asarray(played.discounted_costs.T, jnp.float32)
    risk = algorithm.risk(learner, plan.settings)
    seen = np.asarray(risk.sampled_risks(total, algorithm.shared_delta(learner)))
    targets = np.asarray(plan.settings.target)
    return tuple(
        RiskEstimate(
            name=name,
            mean=float(values[:, 1 + i].mean()),
            seen=float(seen[i]),
            bias=float(values[:, 1 + i].mean() - seen[i]),
            std=float(values[:, 1 + i].std(ddof=1)),
            target=float(targets[i]),
        )
        for i, name in enumerate(names)
    )


def _calibrations(atoms: NDArray[Any], played: Episodes, names: Sequence[str]) -> tuple[Calibration, ...]:
    seen = [played.discounted_reward, *played.discounted_costs.T]
    return tuple(
        Calibration(
            name,
            LEVELS,
            tuple(float(x) for x in np.quantile(atoms[i], LEVELS)),
            tuple(float(x) for x in np.quantile(seen[i], LEVELS)),
        )
        for i, name in enumerate(["reward", *names][: atoms.shape[0]])
    )


def _betas(plan: Plan, algorithm: Any, learner: Any, played: Episodes, names: Sequence[str]) -> tuple[Beta, ...]:
    if not algorithm.delta_width(plan.settings):
        return ()
    betas = np.asarray(plan.settings.constraints.beta(algorithm.shared_delta(learner)))
    found = []
    for i, name in enumerate(names):
        # Levels that fill a spectrum up have no rise, and their beta no meaning.
        alpha = plan.spectra[i].alpha
        quantiles = np.quantile(played.discounted_costs[:, i], alpha)
        found += [Beta(name, float(b), float(q)) for b, q in zip(betas[i], quantiles, strict=False)]
    return tuple(found)


def _violated(folder: Path) -> float | None:
    try:
        with open_text(folder / METRICS) as handle:
            shares = [float(row["violated"]) for row in csv.DictReader(handle) if row.get("violated")]
    except (OSError, ValueError, csv.Error):
        return None
    return float(np.mean(shares[-_LATELY:])) if shares else None
