"""Saved policies: the same outputs as in training, one clear line for every bad file, and nothing executed."""

import json
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import tailsafe as ts
from tailsafe.errors import InputError
from tailsafe.learning.batches import AugmentedStates
from tailsafe.policies.metadata import PolicyDescription
from tailsafe.policies.policy import load_policy
from tests.policies.hand_made import box_description, finite_description, reseal, save, save_learner
from tests.tabular.problems import random_problem


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """One policy for all tests that spoil a copy of it."""
    folder = tmp_path_factory.mktemp("saved")
    save(folder, box_description())
    return folder


@pytest.fixture
def run(saved, tmp_path):
    shutil.copytree(saved / "policy", tmp_path / "policy")
    return tmp_path


def features_of(algorithm, settings, state, observation, cost_so_far, discount):
    delta = np.broadcast_to(state.sampler.mode, (len(observation), state.sampler.mode.size))
    states = AugmentedStates(observation, delta, cost_so_far, discount)
    return algorithm.networks(state, settings).features(states)


@pytest.mark.parametrize(("augmented", "fixed_log_std"), [(False, None), (True, -0.7)])
def test_a_loaded_policy_does_what_the_training_network_does(tmp_path, augmented, fixed_log_std):
    description = box_description(augmented=augmented, fixed_log_std=fixed_log_std, clip_observation=1.5)
    algorithm, settings, state = save_learner(tmp_path, description)
    rng = np.random.default_rng(1)
    observation = rng.normal(size=(7, 5)).astype(np.float32)
    paid, weight = rng.uniform(0, 30, size=(7, 2)).astype(np.float32), rng.uniform(size=7).astype(np.float32)
    outputs = state.policy(features_of(algorithm, settings, state, observation, paid, weight))
    policy = ts.load_policy(tmp_path)
    key = jax.random.key(5)
    wanted = algorithm.actions.embed(algorithm.actions.sample(outputs, algorithm.actions.noise(key, (7,))))
    np.testing.assert_allclose(policy.choose(observation, paid, weight, key), wanted, rtol=0, atol=1e-6)
    mode = algorithm.actions.embed(algorithm.actions.mode(outputs))
    actions = policy(observation, deterministic=True, cost_so_far=paid, discount=weight)
    low, high = np.array([-1.0, 0.0]), np.array([3.0, 0.5])
    np.testing.assert_allclose(actions, low + (mode + 1) / 2 * (high - low), atol=1e-5)
    one = policy(observation[3], deterministic=True, cost_so_far=paid[3], discount=weight[3])
    np.testing.assert_allclose(one, actions[3], atol=1e-6)
    np.testing.assert_allclose(
        np.concatenate(policy.beta), settings.constraints.beta(state.sampler.mode).reshape(-1), rtol=1e-6
    )


def test_discrete_actions_are_integers_drawn_with_the_network_s_probabilities(tmp_path):
    problem = random_problem(0, states=3, actions=4)
    algorithm, settings, state = save_learner(tmp_path, finite_description(problem))
    policy = load_policy(tmp_path / "policy" / "policy.json", seed=3)
    observation = np.eye(7, dtype=np.float32)[:2]
    paid, weight = np.array([[0.0], [0.9]], np.float32), np.array([1.0, 0.81], np.float32)
    outputs = state.policy(features_of(algorithm, settings, state, observation, paid, weight))
    probabilities = policy.action_probabilities(observation, paid, weight)
    np.testing.assert_allclose(probabilities, jax.nn.softmax(outputs), atol=1e-6)
    np.testing.assert_allclose(probabilities.sum(1), 1.0, rtol=1e-12)
    action = policy(observation[0], cost_so_far=0.0, discount=1.0)
    assert isinstance(action, int)
    many = policy(np.repeat(observation[:1], 4000, 0), cost_so_far=0.0, discount=1.0)
    assert many.shape == (4000,)
    assert many.dtype.kind == "i"
    # 4000 draws: each share is within 4 standard errors of its probability.
    shares = np.bincount(many, minlength=4) / 4000
    assert np.all(np.abs(shares - probabilities[0]) < 4 * np.sqrt(probabilities[0] * (1 - probabilities[0]) / 4000))
    assert policy(observation[1], deterministic=True, cost_so_far=0.9, discount=0.81) == probabilities[1].argmax()


def test_seeds_decide_the_draws(run):
    observation = np.zeros(5)
    first, second = load_policy(run, seed=1), load_policy(run, seed=1)
    drawn = [first(observation) for _ in range(3)]
    np.testing.assert_array_equal(drawn, [second(observation) for _ in range(3)])
    assert not np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(load_policy(run, seed=2)(observation), drawn[0])
    np.testing.assert_array_equal(first(observation, seed=9), second(observation, seed=9))


def test_an_augmented_policy_keeps_the_books_and_asks_for_what_it_misses(tmp_path):
    save(tmp_path, box_description(augmented=True))
    policy = load_policy(tmp_path)
    observation = np.ones(5)
    with pytest.raises(InputError, match="reset"):
        policy(observation)
    with pytest.raises(InputError, match="reset"):
        policy.observe_cost([1.0, 0.0])
    with pytest.raises(InputError, match="together"):
        policy(observation, cost_so_far=[0.0, 0.0])
    policy.reset()
    # D = 0, b = 1; then D = (1, 2), b = 0.9; then D = (1 + 0.9 * 3, 2), b = 0.81.
    for paid, weight, cost in [([0, 0], 1.0, [1.0, 2.0]), ([1, 2], 0.9, [3.0, 0.0]), ([3.7, 2], 0.81, [0.0, 0.0])]:
        explicit = policy(observation, deterministic=True, cost_so_far=paid, discount=weight)
        np.testing.assert_allclose(policy(observation, deterministic=True), explicit, atol=1e-6)
        with pytest.raises(InputError, match="observe_cost"):
            policy(observation)
        policy.observe_cost(cost)
    policy.reset(2)
    policy(np.ones((2, 5)))
    policy.observe_cost([[1.0, 1.0], [2.0, 2.0]], done=[True, False])
    explicit = policy(np.ones((2, 5)), deterministic=True, cost_so_far=[[0, 0], [2, 2]], discount=[1.0, 0.9])
    np.testing.assert_allclose(policy(np.ones((2, 5)), deterministic=True), explicit, atol=1e-6)
    policy.observe_cost(np.zeros((2, 2)))
    with pytest.raises(InputError, match=r"reset\(3\)"):
        policy(np.ones((3, 5)))


@pytest.mark.parametrize(
    ("observation", "words"),
    [(np.zeros(4), "shape"), (np.zeros((2, 2, 5)), "shape"), (np.full(5, np.nan), "NaN"), (["a"] * 5, "numbers")],
)
def test_bad_observations(run, observation, words):
    with pytest.raises(InputError, match=words):
        load_policy(run)(observation)


def test_the_description_survives_the_file(tmp_path):
    description = box_description(fixed_log_std=-1.0)
    save(tmp_path, description)
    data = json.loads((tmp_path / "policy" / "policy.json").read_text())
    assert PolicyDescription.from_json(data) == description
    assert load_policy(tmp_path).description == description
    assert data["format"] == 1
    assert len(data["delta"]) == 2 * 3  # two constraints, both padded to four levels
    assert sorted(path.name for path in (tmp_path / "policy").iterdir()) == ["policy.json", "policy.safetensors"]


def edit(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(format=2), "format is 2"),
        (lambda d: d.pop("gamma"), "lacks 'gamma'"),
        (lambda d: d.update(gamma="0.9"), "policy.gamma must be a finite number"),
        (lambda d: d.update(gamma=1.5), "gamma is 1.5"),
        (lambda d: d.update(largest_return=[-1.0, 1.0]), "largest_return is -1"),
        (lambda d: d["task"].update(largest_costs=[1.0, -1.0]), "largest_costs is -1"),
        (lambda d: d["network"].update(clip_observation=-3), "clip_observation is -3"),
        (lambda d: d.update(task=[]), "policy.task must be an object"),
        (lambda d: d["task"].update(observation_size=-1), "observation_size must be a whole number"),
        (lambda d: d["task"].update(observation_size=10**9), "shape"),
        (lambda d: d["network"].update(hidden=[16, 17]), "shape"),
        (lambda d: d["network"].update(hidden=[16, 16, 4]), "lacks the tensor"),
        (lambda d: d["actions"].update(kind="gaussian"), "one of box, discrete"),
        (lambda d: d["actions"].update(low=[0.5, 0.0], high=[0.0, 1.0]), "below its lower bound"),
        (lambda d: d["actions"].update(shape=[3]), "does not hold 2 numbers"),
        (lambda d: d["actions"].update(dtype="object"), "one of float16"),
        (
            lambda d: d["task"].update(observations=[{"path": [], "shape": [1], "counts": None, "starts": []}]),
            "make 1 numbers",
        ),
        (lambda d: d["constraints"][0].update(risk_measure="__import__('os')"), "unknown risk measure"),
        (lambda d: d["constraints"][0].update(eta=[5.0, 1.0, 0.0]), "constraints\\[0\\]"),
        (lambda d: (d["network"].update(fixed_log_std=-1.0), d["actions"].update(kind="discrete")), "actions in a box"),
        (lambda d: d["constraints"].pop(), "1 entries for 2 costs"),
        (lambda d: d["constraints"][0].update(limit=10**400), "finite number"),
    ],
)
def test_a_bad_json_is_one_line(run, change, words):
    edit(run / "policy" / "policy.json", change)
    with pytest.raises(InputError, match=words) as failure:
        load_policy(run)
    assert "policy" in str(failure.value)


def test_broken_files_are_one_line(run):
    folder = run / "policy"
    text, tensors = (folder / "policy.json").read_text(), (folder / "policy.safetensors").read_bytes()
    for broken in ("", "{", "[" * 100_000, "\x00\x01"):
        (folder / "policy.json").write_text(broken)
        with pytest.raises(InputError, match=r"policy\.json"):
            load_policy(run)
    (folder / "policy.json").write_text(text)
    for broken in (b"", tensors[:100], tensors[:-10], b"\xff" * 200, (2**62).to_bytes(8, "little") + tensors[8:]):
        (folder / "policy.safetensors").write_bytes(broken)
        with pytest.raises(InputError, match=r"policy\.safetensors: not a safetensors file"):
            load_policy(run)
    (folder / "policy.safetensors").unlink()
    with pytest.raises(InputError, match="no such file"):
        load_policy(run)
    with pytest.raises(InputError, match="no such run"):
        load_policy(run / "elsewhere")
    (run / "study" / "seed-3").mkdir(parents=True)
    with pytest.raises(InputError, match="seed-3"):
        load_policy(run / "study")
    with pytest.raises(InputError, match=r"holds no policy\.json"):
        load_policy(run / "study" / "seed-3")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("body.weights.1"), "lacks the tensor 'body.weights.1'"),
        (lambda t: t.update({"body.biases.0": t["body.biases.0"][:-1]}), r"has shape \(15,\)"),
        (lambda t: t.update({"delta": t["delta"].astype(np.float64)}), "must be F32"),
        (
            lambda t: t.update({"normalizer.variance": -t["normalizer.variance"]}),
            "'normalizer.variance' holds negative",
        ),
        (lambda t: t.update({"normalizer.mean": t["normalizer.mean"] * np.nan}), "NaN"),
    ],
)
def test_wrong_tensors_are_named(run, change, words):
    path = run / "policy" / "policy.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    with pytest.raises(InputError, match=words):
        load_policy(run)


class Touch:
    """What a stranger would like to happen."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_stranger_s_files_execute_nothing(run):
    folder, mark = run / "policy", run / "executed"
    evil = pickle.dumps(Touch(mark))
    tensors = (folder / "policy.safetensors").read_bytes()
    (folder / "policy.safetensors").write_bytes(evil)
    with pytest.raises(InputError):
        load_policy(run)
    (folder / "policy.safetensors").write_bytes(tensors)
    # Names in the JSON are looked at, never imported or called.
    module = run / "evil_module.py"
    module.write_text(f"open({str(mark)!r}, 'w')\nclass Env: pass\n")
    edit(folder / "policy.json", lambda d: d["task"].update(name="evil_module:Env"))
    reseal(folder)
    load_policy(run)(np.zeros(5))
    assert "evil_module" not in sys.modules
    (folder / "policy.json").write_bytes(evil)
    with pytest.raises(InputError):
        load_policy(run)
    assert not mark.exists()


def test_loading_needs_neither_optimisers_nor_checkpoints(run):
    program = f"""
import sys
for name in ("optax", "orbax", "mujoco", "tensorboardX"):
    sys.modules[name] = None
import tailsafe
print(tailsafe.load_policy({str(run)!r})([0.0] * 5).shape)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "(2,)\n"


# --- digests ----------------------------------------------------------------------------------------------------------


def same_policy(first, second):
    """The same numbers and the same description."""
    parts = [jax.tree.leaves((p.network, p.normalizer, p.delta)) for p in (first, second)]
    return first.description == second.description and all(map(np.array_equal, *parts))


@pytest.mark.parametrize("name", ["policy.json", "policy.safetensors"])
def test_a_flipped_bit_is_found_or_harmless(run, name):
    """Spaces between the entries of a JSON file may become other spaces; nothing else may change."""
    path, good, rng = run / "policy" / name, load_policy(run), np.random.default_rng(0)
    content, found = path.read_bytes(), 0
    for place, bit in zip(rng.integers(len(content), size=150), rng.integers(8, size=150), strict=True):
        path.write_bytes(content[:place] + bytes([content[place] ^ (1 << int(bit))]) + content[place + 1 :])
        try:
            assert same_policy(load_policy(run), good), f"bit {bit} of byte {place}"
        except InputError:
            found += 1
    assert found > 100


def test_tensors_of_another_policy_are_refused(run, tmp_path):
    save(tmp_path / "other", box_description(low=(-2.0, 0.0)), seed=1)
    (run / "policy" / "policy.safetensors").write_bytes(
        (tmp_path / "other" / "policy" / "policy.safetensors").read_bytes()
    )
    with pytest.raises(InputError, match=r"is not of the policy\.json beside it"):
        load_policy(run)


def test_a_later_checkpoint_s_tensors_fit(run, tmp_path):
    """What a reader sees between the two replacements."""
    save(tmp_path / "later", replace(box_description(), steps=9999), seed=1)
    tensors = (tmp_path / "later" / "policy" / "policy.safetensors").read_bytes()
    (run / "policy" / "policy.safetensors").write_bytes(tensors)
    assert load_policy(run).description.steps == 1234


def test_files_without_digests_are_said_to_be_unchecked(run, caplog):
    folder = run / "policy"
    tensors = load_file(folder / "policy.safetensors")
    edit(folder / "policy.json", lambda d: d.pop("digest"))
    with pytest.raises(InputError, match=r"policy\.json: is damaged"):
        load_policy(run)
    save_file(tensors, folder / "policy.safetensors")
    load_policy(run)
    assert "whether it is damaged was not checked" in caplog.text
    edit(folder / "policy.json", lambda d: d.update(digest="0"))
    with pytest.raises(InputError, match=r"policy\.safetensors: is damaged"):
        load_policy(run)
