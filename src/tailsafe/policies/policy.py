"""A policy to keep or share: tensors in policy.safetensors, everything else in policy.json.

Neither file can execute anything: tensors are plain numbers, the JSON is read field by field, and no name in it is
imported. Loading needs neither optimisers nor checkpoints nor the environments.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from numpy.typing import ArrayLike, NDArray

from tailsafe.errors import InputError
from tailsafe.files import read_object, replacing, write_json
from tailsafe.learning.networks import Policy
from tailsafe.learning.normalizer import Normalizer
from tailsafe.policies.digests import SEAL, check_seals, sealed, seals
from tailsafe.policies.metadata import PolicyDescription
from tailsafe.policies.pretrained import is_pretrained, pretrained_folder

JSON_NAME, TENSORS_NAME = "policy.json", "policy.safetensors"
FOLDER = "policy"
# As the learner shows it to its networks: costs so far in units of the limit, cut here.
LARGEST_COST_INPUT = 10.0
# Limits that a policy for a range of them is asked for, where nobody says how many.
POINTS = 8


def save_policy(
    folder: Path | str, policy: Policy, normalizer: Normalizer, delta: ArrayLike, description: PolicyDescription
) -> None:
    """Write policy.safetensors and policy.json into `folder` (made if missing), each replaced whole, the JSON last.

    delta (n,): the sampler's mode; (R, n) with a range of limits: those of its regions. It is stored with the tensors
    too, and read from there: a reader between the two replacements, or after a crash there, still gets a network, a
    normaliser and a beta that belong together. Each file holds the digest of its own content (see `digests`), for
    `load_policy` to check.
    """
    from safetensors.numpy import save

    folder = Path(folder)
    mode = np.asarray(delta, np.float32).reshape(description.modes_shape)
    tensors = tensors_of(policy) | {"normalizer.mean": normalizer.mean, "normalizer.variance": normalizer.variance}
    arrays = {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in tensors.items()} | {"delta": mode}
    content = sealed(description.to_json(mode.reshape(-1).tolist()))
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror or error}") from None
    with replacing(folder / TENSORS_NAME) as partial_file:
        # Not save_file: it makes a file that its owner alone may read, whatever the umask says.
        partial_file.write_bytes(save(arrays, seals(arrays, content)))
    with replacing(folder / JSON_NAME) as partial_file:
        partial_file.write_text(text, encoding="utf-8")


def attach_certificate(
    path: Path | str, certificate: Mapping[str, Any], request: Sequence[float] | None = None
) -> Path:
    """Write into policy.json what was certified about the policy. Returns the file.

    request: of a policy for a range of limits, what it is asked for from now on if nobody asks for anything else.
    """
    file = _policy_folder(Path(path)) / JSON_NAME
    content = read_object(file) | {"certificate": dict(certificate)}
    if request is not None:
        content["request"] = list(request)
    # A policy of a version without digests stays one.
    write_json(file, sealed({key: content[key] for key in content if key != SEAL}) if SEAL in content else content)
    return file


def policy_digest(path: Path | str) -> str:
    """SHA-256 of the file of tensors, which says which policy a statement is about."""
    file = _policy_folder(Path(path)) / TENSORS_NAME
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"{file}: {error.strerror or error}") from None


def load_policy(path: Path | str, seed: int = 0, limit: float | Sequence[float] | None = None) -> LoadedPolicy:
    """The policy in a run folder, in its `policy` folder, beside a policy.json, or one that comes with the package
    (`pretrained:NAME`).

    Args:
      path: where it is.
      seed: of its random actions.
      limit: what a policy for a range of limits is asked for, in the unit of training: one for all costs or one for
        each. None: what its file says, which is the lowest limit, or the certified one.

    Returns:
      A function of an observation, or of a batch of them; it keeps what the cost so far of an episode needs.

    Examples:
      >>> policy = ts.load_policy("pretrained:two-roads")
      >>> policy.description.task.name
      'finite'
    """
    folder = _policy_folder(Path(path))
    content = read_object(folder / JSON_NAME)
    description = _described(folder / JSON_NAME, content)
    if limit is not None:
        description = _asked(path, description, limit)
    return _assemble(folder / TENSORS_NAME, description, content, seed)


class LoadedPolicy:
    """A trained policy: observation in, action in the environment's own units out.

    Actions are drawn at random, since the policy whose risk was constrained is the random one; `deterministic=True`
    gives the likeliest. Every call advances the policy's own key; `seed` in a call draws with that seed instead.

    An *augmented* policy also looks at the episode so far: D, the discounted costs up to now (one per cost), and
    b = gamma^t. Either call `reset()` before an episode and `observe_cost(cost)` after every step, or pass
    `cost_so_far` and `discount`. `discount=1, cost_so_far=0` is the beginning of an episode.
    """

    def __init__(
        self, description: PolicyDescription, policy: Policy, normalizer: Normalizer, delta: Array, seed: int = 0
    ) -> None:
        """delta: the sampler's mode; with a range of limits those of its regions, (R, n)."""
        self.description = description
        self.modes = delta
        self._constraints = description.arrays()
        ranged = self._constraints.range
        self.delta = delta if ranged is None else ranged.delta_at(delta, jnp.asarray(description.position, float))
        self.actions = description.actions.build()
        self.network = policy
        self.normalizer = normalizer
        # The limits at that position, as the learner scaled by them; only those of the request with a single cost.
        in_force = description.asked(description.request_at(description.position))
        limits = [constraint.discounted_limit for constraint in in_force.constraints]
        scales = zip(limits, description.largest_return, strict=True)
        self.cost_scale = np.asarray([limit if limit > 0 else largest for limit, largest in scales], np.float32)
        self._key = jax.random.key(seed)
        self._episode: _SoFar | None = None
        self._awaits_cost = False
        self._outputs_of = jax.jit(self._outputs)
        self._choose = jax.jit(self._chosen, static_argnames="deterministic")

    @property
    def augmented(self) -> bool:
        """Whether actions depend on the costs so far."""
        return self.description.network.augmented

    @property
    def beta(self) -> list[list[float]]:
        """The dual variables it acts with, one sorted list per constraint, in units of the discounted cost sum.

        An empty list for a policy whose algorithm knows no beta.
        """
        if not self.delta.shape[0]:
            return []
        rows: list[list[float]] = np.asarray(self._constraints.beta(self.delta), np.float64).tolist()
        return rows

    def across(self, points: int) -> list[LoadedPolicy]:
        """The same policy, asked for limits across its range, the lowest first: equal ratios apart."""
        requests = [self.description.request_at(i / max(points - 1, 1)) for i in range(points)]
        return [self.asked(request) for request in requests]

    def asked_by_rows(self, limits: Float[NDArray[Any], "N C"]) -> LoadedPolicy:
        """The same policy for batches of N observations, each row asked for its own limits."""
        ranged = self._constraints.range
        assert ranged is not None
        other = LoadedPolicy(self.description, self.network, self.normalizer, self.modes)
        position = jnp.asarray(self.description.positions(limits))
        other.delta = ranged.delta_at(self.modes, position)
        scale = self._constraints.limit * ranged.factors(position)
        other.cost_scale = np.asarray(jnp.where(scale > 0, scale, self._constraints.largest_return))
        return other

    @property
    def conditions(self) -> Float[NDArray[np.float32], " i"]:
        """What the network sees beside observation, costs so far and discount: the same at every step."""
        return np.asarray(self._constraints.shown(self.delta))

    @property
    def limit(self) -> tuple[float, ...]:
        """The limit of each cost that it is asked for, or was trained for, in the unit of training."""
        return self.description.request

    def asked(self, limit: float | Sequence[float]) -> LoadedPolicy:
        """The same policy, asked for another limit of its range, in the unit of training."""
        return LoadedPolicy(self.description.asked(limit), self.network, self.normalizer, self.modes)

    def __call__(
        self,
        observation: Any,
        *,
        deterministic: bool = False,
        seed: int | None = None,
        cost_so_far: ArrayLike | None = None,
        discount: ArrayLike | None = None,
    ) -> Any:
        """An action for one observation, or one for each of a batch.

        observation: as the environment gives it (an array, a number, a dict), or flat (O,); a batch has a leading axis
        N in every array. Box: an array of the action space's shape, in its bounds. Discrete: an integer or (N,)
        integers. cost_so_far: (C,) or (N, C); discount: () or (N,).
        """
        rows, single = self._rows(observation)
        so_far = self._so_far(len(rows), cost_so_far, discount)
        if seed is not None:
            key = jax.random.key(seed)
        else:
            self._key, key = jax.random.split(self._key)
        actions = self.to_environment(self.choose(rows, *so_far, key, deterministic=deterministic))
        if not single:
            return actions
        return self.description.actions.one(actions[0])

    def reset(self, num_envs: int = 1) -> None:
        """Begin an episode (or `num_envs` of them, for batches): nothing was paid yet."""
        self._episode = _SoFar.begin(num_envs, len(self.description.constraints))
        self._awaits_cost = False

    def observe_cost(self, cost: ArrayLike, done: ArrayLike | None = None) -> None:
        """What the latest step cost: (C,), or (N, C) for a batch; a number where there is one cost and environment.

        done (N,): where an episode ended and the next one begins.
        """
        if self._episode is None:
            raise InputError("observe_cost() without an episode: call reset() first")
        self._episode = self._episode.after(cost, done, self.description.gamma)
        self._awaits_cost = False

    def action_probabilities(
        self,
        observation: ArrayLike,
        cost_so_far: ArrayLike | None = None,
        discount: ArrayLike | None = None,
    ) -> NDArray[np.float64]:
        """P(action) for discrete actions: (A,) for one observation (O,), (N, A) for a batch."""
        if self.description.actions.kind != "discrete":
            raise InputError("this policy's actions are a box: single actions have no probabilities")
        rows, single = self._rows(observation)
        outputs = self.outputs(rows, *self._so_far(len(rows), cost_so_far, discount)).astype(np.float64)
        odds = np.exp(outputs - outputs.max(-1, keepdims=True))
        probabilities: NDArray[np.float64] = odds / odds.sum(-1, keepdims=True)
        return probabilities[0] if single else probabilities

    def choose(
        self,
        observation: Float[NDArray[np.float32], "N O"],
        cost_so_far: Float[NDArray[np.float32], "N C"],
        discount: Float[NDArray[np.float32], " N"],
        key: PRNGKeyArray,
        *,
        deterministic: bool = False,
    ) -> Float[NDArray[np.float32], "N A"]:
        """Embedded actions, as a learner's environments take them: in [-1, 1], or one-hot. Touches no state."""
        return np.asarray(self._choose(observation, cost_so_far, discount, key, deterministic=deterministic))

    def outputs(
        self,
        observation: Float[NDArray[np.float32], "N O"],
        cost_so_far: Float[NDArray[np.float32], "N C"],
        discount: Float[NDArray[np.float32], " N"],
    ) -> Float[NDArray[np.float32], "N D"]:
        """What the network returns, see `learning.actions`: means and log standard deviations, or logits."""
        return np.asarray(self._outputs_of(observation, cost_so_far, discount))

    @property
    def tensors(self) -> tuple[Policy, Normalizer, Array]:
        """The network, the observations' statistics and the increments of beta: all arrays that it acts with."""
        return self.network, self.normalizer, self.delta

    def with_tensors(self, tensors: tuple[Policy, Normalizer, Array]) -> LoadedPolicy:
        """The same policy with other arrays, which may be those of a program that is being traced."""
        other = copy(self)
        other.network, other.normalizer, other.delta = tensors
        return other

    def sampled(
        self,
        observation: Float[Array, "N O"],
        cost_so_far: Float[Array, "N C"],
        discount: Float[Array, " N"],
        key: PRNGKeyArray,
    ) -> Float[Array, "N A"]:
        """What `choose` draws, inside JAX."""
        return self._chosen(observation, cost_so_far, discount, key, deterministic=False)

    def to_environment(self, embedded: Float[NDArray[np.float32], "N A"]) -> NDArray[Any]:
        """Embedded actions in the environment's own units."""
        return self.description.actions.decode(embedded)

    def _rows(self, observation: ArrayLike) -> tuple[NDArray[np.float32], bool]:
        rows, single = self.description.task.observation_space.encode(observation)
        if not np.isfinite(rows).all():
            raise InputError("observations hold NaN or infinity")
        return rows, single

    def _so_far(
        self, count: int, cost_so_far: ArrayLike | None, discount: ArrayLike | None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(D, b) of every row: as passed, else from the bookkeeping; zeros and ones where the policy ignores them."""
        costs = len(self.description.constraints)
        if (cost_so_far is None) != (discount is None):
            raise InputError("pass cost_so_far and discount together, or neither")
        if cost_so_far is not None and discount is not None:
            try:
                paid = np.broadcast_to(np.asarray(cost_so_far, np.float32), (count, costs))
                weight = np.broadcast_to(np.asarray(discount, np.float32), (count,))
            except (TypeError, ValueError):
                raise InputError(
                    f"cost_so_far must be numbers of shape ({costs},) or ({count}, {costs}), discount () or ({count},)"
                ) from None
            return paid, weight
        if not self.augmented:
            return np.zeros((count, costs), np.float32), np.ones(count, np.float32)
        if self._episode is None:
            raise InputError(
                "this policy looks at the costs so far: call reset() before an episode and observe_cost(cost) after "
                "every step, or pass cost_so_far= and discount="
            )
        if self._awaits_cost:
            raise InputError(
                "what did the last step cost? Call observe_cost(cost) after every step, or reset() for a new episode"
            )
        if self._episode.discount.size != count:
            raise InputError(
                f"{count} observations for {self._episode.discount.size} running episodes: call reset({count})"
            )
        self._awaits_cost = True
        return self._episode.cost_so_far.astype(np.float32), self._episode.discount.astype(np.float32)

    def _outputs(self, observation: Array, cost_so_far: Array, discount: Array) -> Array:
        """What the network returns; the learner's own features, see `ActorCritic.features`."""
        network = self.description.network
        parts = [self.normalizer(observation, network.clip_observation)]
        if network.augmented:
            parts += [jnp.minimum(cost_so_far / self.cost_scale, LARGEST_COST_INPUT), discount[:, None]]
        shown = self._constraints.shown(self.delta)
        shown = jnp.broadcast_to(shown, (observation.shape[0], shown.shape[-1]))
        return self.network(jnp.concatenate([*parts, shown], axis=-1))

    def _chosen(
        self, observation: Array, cost_so_far: Array, discount: Array, key: PRNGKeyArray, *, deterministic: bool
    ) -> Array:
        outputs = self._outputs(observation, cost_so_far, discount)
        if deterministic:
            return self.actions.embed(self.actions.mode(outputs))
        return self.actions.embed(self.actions.sample(outputs, self.actions.noise(key, outputs.shape[:-1])))


@dataclass(frozen=True)
class _SoFar:
    """D (N, C) and b (N,) of running episodes, in double precision."""

    cost_so_far: NDArray[np.float64]
    discount: NDArray[np.float64]

    @staticmethod
    def begin(rows: int, costs: int) -> _SoFar:
        return _SoFar(np.zeros((rows, costs)), np.ones(rows))

    def after(self, cost: ArrayLike, done: ArrayLike | None, gamma: float) -> _SoFar:
        shape = self.cost_so_far.shape
        paid = np.asarray(cost, np.float64)
        if paid.size != self.cost_so_far.size or not np.isfinite(paid).all():
            raise InputError(f"costs have shape {paid.shape}; they must be finite numbers of shape {shape}")
        ended = np.zeros(shape[0], bool) if done is None else np.asarray(done, bool).reshape(-1)
        if ended.size != shape[0]:
            raise InputError(f"done has {ended.size} entries for {shape[0]} episodes")
        total = self.cost_so_far + self.discount[:, None] * paid.reshape(shape)
        return _SoFar(np.where(ended[:, None], 0.0, total), np.where(ended, 1.0, self.discount * gamma))


# --- files ------------------------------------------------------------------------------------------------------------


def policy_folders(path: Path) -> list[Path]:
    """The folder itself, or those of its seeds where it holds one run for each."""
    folder = path.parent if path.name in (JSON_NAME, TENSORS_NAME) else path
    seeds = [child for child in folder.glob("seed-*") if (child / FOLDER / JSON_NAME).is_file()]
    if not seeds or (folder / FOLDER / JSON_NAME).is_file() or (folder / JSON_NAME).is_file():
        return [folder]
    return sorted(seeds, key=lambda child: (len(child.name), child.name))


def _policy_folder(path: Path) -> Path:
    if is_pretrained(path):
        return pretrained_folder(path) / FOLDER
    if path.name in (JSON_NAME, TENSORS_NAME):
        return path.parent
    for folder in (path / FOLDER, path):
        if (folder / JSON_NAME).is_file():
            return folder
    if not path.exists():
        raise InputError(f"{path}: no such run")
    if seeds := sorted(child.name for child in path.glob("seed-*") if child.is_dir()):
        raise InputError(f"{path}: holds a run for each seed; name one of them, as in {path / seeds[0]}")
    raise InputError(f"{path}: holds no {JSON_NAME}; give a run folder, its policy folder or the file itself")


def _described(path: Path, content: dict[str, Any]) -> PolicyDescription:
    try:
        return PolicyDescription.from_json(content)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _asked(path: Path | str, description: PolicyDescription, limit: float | Sequence[float]) -> PolicyDescription:
    try:
        return description.asked(limit)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _assemble(path: Path, description: PolicyDescription, content: dict[str, Any], seed: int) -> LoadedPolicy:
    """The network around the tensors: every tensor must be there, of its shape, and finite."""
    inputs = description.task.observation_size + description.num_inputs
    inputs += len(description.constraints) + 1 if description.network.augmented else 0
    build = partial(
        Policy,
        inputs=inputs,
        actions=description.actions.build(),
        hidden=description.network.hidden,
        initialization="small",
        fixed_log_std=description.network.fixed_log_std,
    )
    skeleton = eqx.filter_eval_shape(build, jax.random.key(0))
    wanted = {name: tensor.shape for name, tensor in tensors_of(skeleton).items()}
    size = (description.task.observation_size,)
    wanted |= {"normalizer.mean": size, "normalizer.variance": size, "delta": description.modes_shape}
    tensors = _read_tensors(path, wanted, content)
    policy = eqx.tree_at(
        lambda policy: list(tensors_of(policy).values()), skeleton, [tensors[n] for n in tensors_of(skeleton)]
    )
    normalizer = Normalizer(jnp.float32(1.0), tensors["normalizer.mean"], tensors["normalizer.variance"])
    return LoadedPolicy(description, policy, normalizer, tensors["delta"], seed)


def tensors_of(policy: Policy) -> dict[str, Any]:
    """The parameters of a policy's network by name, as in policy.safetensors."""
    layers = range(len(policy.body.weights))
    weights = {f"body.weights.{layer}": policy.body.weights[layer] for layer in layers}
    return weights | {f"body.biases.{layer}": policy.body.biases[layer] for layer in layers}


def _read_tensors(path: Path, wanted: dict[str, tuple[int, ...]], content: dict[str, Any]) -> dict[str, Array]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise InputError(f"{path}: no such file; {JSON_NAME} needs it beside itself")
    arrays: dict[str, NDArray[Any]] = {}
    try:
        with safe_open(path, framework="numpy") as file:
            there, found = set(file.keys()), file.metadata() or {}
            for name, shape in wanted.items():
                if name not in there:
                    raise InputError(f"{path}: lacks the tensor {name!r}")
                # Shapes are compared before anything is read.
                entry = file.get_slice(name)
                if tuple(entry.get_shape()) != shape:
                    raise InputError(
                        f"{path}: the tensor {name!r} has shape {tuple(entry.get_shape())}; {JSON_NAME} says {shape}"
                    )
                if entry.get_dtype() != "F32":
                    raise InputError(f"{path}: the tensor {name!r} is {entry.get_dtype()}; it must be F32")
                tensor = file.get_tensor(name)
                if not np.isfinite(tensor).all():
                    raise InputError(f"{path}: the tensor {name!r} holds NaN or infinity")
                if name == "normalizer.variance" and (tensor < 0).any():
                    raise InputError(f"{path}: the tensor {name!r} holds negative numbers")
                arrays[name] = tensor
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a safetensors file ({error})") from None
    check_seals(found, arrays, content, path.with_name(JSON_NAME), path)
    return {name: jnp.asarray(array) for name, array in arrays.items()}
