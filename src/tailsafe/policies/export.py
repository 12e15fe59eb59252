"""Policies for other programs: a folder to share (safetensors), or one file that any ONNX runtime plays.

Both are compared with the policy they come from before they take their name: a file that acts differently is not left.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from tailsafe.errors import InputError
from tailsafe.extras import install_hint
from tailsafe.files import check_new, new_folder, replacing
from tailsafe.learning.spaces import ActionDescription
from tailsafe.policies.acting import LARGEST_COST_INPUT, LoadedPolicy
from tailsafe.policies.policy import JSON_NAME, TENSORS_NAME, load_policy, save_policy
from tailsafe.policies.pretrained import own_copy

Format = Literal["safetensors", "onnx"]
# What a run's exports are called where nothing else is asked for.
DEFAULT_NAMES: Mapping[str, str] = {"safetensors": "export", "onnx": "policy.onnx"}
OBSERVATIONS = 1000
# Of the range of an action; of logits, relative to the largest (at least 1).
TOLERANCE = 1e-5
# Where single precision is worse than that, as for networks with large weights: multiples of what JAX itself loses.
_ROUNDING = 10.0
_LARGEST_TOLERANCE = 1e-3
# How far from the mean the compared observations are at most drawn, in deviations, where nothing is cut before.
_FARTHEST = 20.0


@dataclass(frozen=True)
class Exported:
    """What was written, and how it compares with the policy it was made from.

    largest_difference: of any action to that of JAX in double precision, in parts of the action's range; for discrete
    actions, of any logit, or of the chosen action to the best one, relative to the largest logit (at least 1).
    relative_to: which of both. rounding: the same of JAX in single precision. tolerance: what largest_difference was
    compared with. compared_with: the program that played the file. Tensors are compared bit for bit, and all this is 0.
    """

    path: Path
    format: Format
    observations: int
    largest_difference: float
    rounding: float
    tolerance: float
    relative_to: Literal["action range", "largest logit", "tensors"]
    compared_with: str

    def to_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "format": self.format,
            "observations": self.observations,
            "largest_difference": self.largest_difference,
            "rounding": self.rounding,
            "tolerance": self.tolerance,
            "relative_to": self.relative_to,
            "compared_with": self.compared_with,
        }


def export(run: Path | str, out: Path | str | None = None, format: Format = "safetensors") -> Exported:
    """Write the policy of a run, or one in its own folder or file, for other programs.

    Args:
      run: a run folder, a policy's folder or file, or `pretrained:NAME`.
      out: where to.
      format: `safetensors`: the folder `out` (default: `export` in the run) with policy.safetensors and policy.json,
        for `load_policy`. `onnx`: the file `out` (default: policy.onnx in the run), see `export_onnx`.

    Returns:
      What was written.

    Examples:
      >>> exported = ts.export("pretrained:two-roads", "shared")
      >>> policy = ts.load_policy("shared")
    """
    run = own_copy(Path(run)) if out is None else Path(run)
    target = target_of(run, None if out is None else Path(out), format)
    policy = load_policy(run)
    return export_onnx(policy, target) if format == "onnx" else export_safetensors(policy, target)


def target_of(run: Path, out: Path | None, format: str) -> Path:
    """Where the export of `run` will be; refuses formats, packages and places that will not do before any work."""
    if format not in DEFAULT_NAMES:
        raise InputError(f"format is {format!r}; it must be {' or '.join(DEFAULT_NAMES)}")
    if format == "onnx" and importlib.util.find_spec("onnx") is None:
        raise InputError(f"ONNX files need onnx: {install_hint('onnx')}")
    home = run.parent if run.name in (JSON_NAME, TENSORS_NAME) else run
    if out is None and not home.is_dir():
        raise InputError(f"{run}: no such run")
    target = home / DEFAULT_NAMES[format] if out is None else out
    if format == "onnx" and target.suffix.lower() != ".onnx":
        raise InputError(f"{target}: an ONNX file ends in .onnx")
    if format == "safetensors" and target.suffix.lower() in (".safetensors", ".json", ".onnx"):
        raise InputError(f"{target}: {TENSORS_NAME} and {JSON_NAME} belong together; name a folder for both")
    check_new(target)
    if format == "onnx" and target.is_dir():
        raise InputError(f"{target}: is a folder")
    return target


def export_safetensors(policy: LoadedPolicy, folder: Path | str) -> Exported:
    """Write policy.safetensors and policy.json into a new folder, and read them again: bit for bit the same policy."""
    target = Path(folder)
    check_new(target)
    with new_folder(target) as partial:
        save_policy(partial, policy.network, policy.normalizer, policy.modes, policy.description)
        again = load_policy(partial)
        parts = [(p.network, p.normalizer, p.modes, p.cost_scale) for p in (policy, again)]
        if not eqx.tree_equal(*parts) or again.description != policy.description:
            raise InputError(f"{target}: not written, since what was read again is another policy")
    return Exported(target, "safetensors", 0, 0.0, 0.0, 0.0, "tensors", "tailsafe")


def export_onnx(policy: LoadedPolicy, path: Path | str) -> Exported:
    """Write one ONNX file with everything inside: normaliser, the sampler's mode, network, squashing, action bounds.

    Inputs (N, ...) in float32: `observation`; `noise`, standard normal or, for discrete actions, Gumbel draws (zeros
    give the likeliest action); for an augmented policy `cost_so_far` (N, C) and `discount` (N, 1); for one that was
    trained for a range of limits `limit` (N, C), what it is asked for, in the unit of training. Outputs: `action`,
    and `mean` and `log_std` before squashing, or `logits`. Played by onnxruntime, else by onnx's own evaluator, the
    file has to act as JAX does.
    """
    from onnx import checker

    from tailsafe.policies.onnx_graph import build_model

    target = Path(path)
    check_new(target)
    model = build_model(policy)
    checker.check_model(model, full_check=True)
    with replacing(target) as partial:
        partial.write_bytes(model.SerializeToString())
        player, play = onnx_player(partial)
        found = compare(policy, play)
        if not math.isfinite(found.rounding):
            raise InputError(f"{target}: not written, since the policy itself gives actions that are not finite")
        # Written this way round, NaN is refused too.
        if not found.largest_difference <= found.tolerance:
            raise InputError(
                f"{target}: not written, since {player} acts differently from JAX: "
                f"by {found.largest_difference:.2g}, where {found.tolerance:.2g} is allowed"
            )
    return Exported(
        path=target,
        format="onnx",
        observations=OBSERVATIONS,
        largest_difference=found.largest_difference,
        rounding=found.rounding,
        tolerance=found.tolerance,
        relative_to="action range" if policy.description.actions.kind == "box" else "largest logit",
        compared_with=player,
    )


# --- comparison -------------------------------------------------------------------------------------------------------

# From inputs by name to outputs by name.
Play = Callable[[Mapping[str, NDArray[np.float32]]], Mapping[str, NDArray[Any]]]


@dataclass(frozen=True)
class Answers:
    """outputs (N, D): of the network. action: (N, A) in the environment's own units, or (N,) integers."""

    outputs: NDArray[Any]
    action: NDArray[Any]


@dataclass(frozen=True)
class Comparison:
    """As in `Exported`."""

    largest_difference: float
    rounding: float
    tolerance: float


def onnx_player(path: Path) -> tuple[str, Play]:
    """What plays the file at `path`, and its name with version."""
    if importlib.util.find_spec("onnxruntime") is None:
        import onnx
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(str(path))
        names = list(evaluator.output_names)
        return f"onnx {onnx.__version__}", lambda inputs: dict(
            zip(names, evaluator.run(None, dict(inputs)), strict=True)
        )
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors alone
    options.intra_op_num_threads = 1  # small matrices
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return f"onnxruntime {onnxruntime.__version__}", lambda inputs: dict(
        zip(names, session.run(names, dict(inputs)), strict=True)
    )


def compare(policy: LoadedPolicy, play: Play, rows: int = OBSERVATIONS, seed: int = 0) -> Comparison:
    """Hold the player of a file against the policy at random observations, near the mean and beyond the cut.

    The reference is the policy's own code in double precision; what it loses in single precision is measured as well.
    """
    inputs = questions(policy, rows, seed)
    with jax.enable_x64(True):
        exact = _answers(policy, inputs, np.float64)
    with jax.default_matmul_precision("highest"):
        single = _answers(policy, inputs, np.float32)
    actions = policy.description.actions
    rounding = _difference(actions, single, exact, inputs["noise"])
    names = {"observation", "noise"}
    names |= {"cost_so_far", "discount"} if policy.augmented else set()
    names |= {"limit"} if policy.description.ranged else set()
    played = play({name: inputs[name] for name in inputs if name in names})
    outputs = [played[name] for name in ("mean", "log_std", "logits") if name in played]
    found = Answers(np.concatenate(outputs, axis=-1), played["action"])
    largest = _difference(actions, found, exact, inputs["noise"])
    return Comparison(largest, rounding, min(max(TOLERANCE, _ROUNDING * rounding), _LARGEST_TOLERANCE))


def questions(policy: LoadedPolicy, rows: int, seed: int) -> dict[str, NDArray[np.float32]]:
    """Inputs of a policy: half of the observations about as in training, half far out; half of the noise zero.

    Costs so far reach twice beyond where networks see them cut; most are small. Limits are from all of the range.
    """
    rng = np.random.default_rng(seed)
    mean, deviation = np.asarray(policy.normalizer.mean), np.asarray(policy.normalizer.deviation)
    reach = min(2 * abs(policy.description.network.clip_observation), _FARTHEST)
    wide = np.where(np.arange(rows) % 2 == 0, 1.0, rng.uniform(1, max(reach / 2, 1), rows))
    observation = mean + deviation * wide[:, None] * rng.normal(size=(rows, mean.size))
    size = policy.description.actions.size
    kind = policy.description.actions.kind
    noise = rng.normal(size=(rows, size)) if kind == "box" else rng.gumbel(size=(rows, size))
    noise *= (np.arange(rows) % 4 < 2)[:, None]
    scale = np.where(np.isfinite(policy.cost_scale), policy.cost_scale, 1.0)
    paid = 2 * LARGEST_COST_INPUT * scale * rng.uniform(size=(rows, scale.size)) ** 3
    inputs = {
        "observation": observation,
        "noise": noise,
        "cost_so_far": paid,
        "discount": rng.uniform(size=(rows, 1)),
        "limit": _limits(policy, rng.uniform(size=(rows, scale.size))),
    }
    return {name: values.astype(np.float32) for name, values in inputs.items()}


def _limits(policy: LoadedPolicy, position: Float[NDArray[np.float64], "N C"]) -> Float[NDArray[np.float64], "N C"]:
    """Limits of each cost at these places of its range."""
    low, high = np.array([constraint.ends for constraint in policy.description.constraints]).T
    return np.asarray(low * np.where(low > 0, high / np.where(low > 0, low, 1.0), 1.0) ** position)


def _answers(
    policy: LoadedPolicy, inputs: Mapping[str, NDArray[np.float32]], precision: type[np.floating[Any]]
) -> Answers:
    """What the policy's own code says, computed in `precision`."""
    observation, noise, paid, discount, limit = (
        inputs[name].astype(precision) for name in ("observation", "noise", "cost_so_far", "discount", "limit")
    )
    if policy.description.ranged:
        policy = policy.asked_by_rows(limit)
    outputs = policy.outputs(observation, paid, discount[:, 0])
    embedded = policy.actions.embed(policy.actions.sample(jnp.asarray(outputs), jnp.asarray(noise)))
    return Answers(outputs, _flat_actions(policy.to_environment(np.asarray(embedded))))


def _flat_actions(actions: NDArray[Any]) -> NDArray[Any]:
    """As a file gives them: (N, A) whatever the shape of the action space, or (N,)."""
    return actions.reshape(len(actions), -1) if actions.ndim > 1 else actions


def _indices(actions: ActionDescription, chosen: NDArray[Any]) -> NDArray[np.int64]:
    """The numbers (N,) of actions that are given as the environment takes them; -1 for what is none of them."""
    table = actions.combinations()
    if table is None:
        return np.asarray(chosen - actions.start)
    found = (chosen[:, None, :] == table).all(-1)
    return np.where(found.any(-1), found.argmax(-1), -1)


def _difference(
    actions: ActionDescription, found: Answers, exact: Answers, noise: Float[NDArray[np.float32], "N A"]
) -> float:
    """See `Exported.largest_difference`."""
    if actions.low is not None and actions.high is not None:
        # Bounds that meet leave nothing to choose; rounding to integers is exact but where it is a toss-up.
        reach = np.subtract(actions.high, actions.low)
        apart = np.abs(found.action.astype(np.float64) - exact.action)
        apart = np.maximum(apart - 1.0, 0.0) if actions.whole else apart
        return float(np.max(apart / np.where(reach > 0, reach, 1.0)))
    index = _indices(actions, found.action)
    if np.any((index < 0) | (index >= actions.size)):
        return math.inf
    perturbed = exact.outputs + noise
    worse = perturbed.max(-1) - np.take_along_axis(perturbed, index[:, None], -1)[:, 0]
    scale = np.maximum(np.abs(exact.outputs).max(-1), 1.0)
    return float(np.max(np.maximum(np.abs(found.outputs - exact.outputs).max(-1), worse) / scale))
