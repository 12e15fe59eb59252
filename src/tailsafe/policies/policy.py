"""A policy to keep or share: tensors in policy.safetensors, everything else in policy.json.

Neither file can execute anything: tensors are plain numbers, the JSON is read field by field, and no name in it is
imported. Loading needs neither optimisers nor checkpoints nor the environments.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike, NDArray

from tailsafe.errors import InputError
from tailsafe.files import read_object, replacing, write_json
from tailsafe.learning.networks import Policy
from tailsafe.learning.normalizer import Normalizer
from tailsafe.policies.acting import LoadedPolicy
from tailsafe.policies.digests import SEAL, check_seals, sealed, seals
from tailsafe.policies.metadata import PolicyDescription
from tailsafe.policies.pretrained import is_pretrained, pretrained_folder

JSON_NAME, TENSORS_NAME = "policy.json", "policy.safetensors"
FOLDER = "policy"
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
