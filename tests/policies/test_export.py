"""Exports: the file alone does what the policy does, its check can fail, and nothing half-written is left."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import tailsafe as ts
from tailsafe.errors import InputError
from tailsafe.learning.actions import BoxActions, DiscreteActions
from tailsafe.learning.interface import EnvironmentSpec
from tailsafe.policies import export as module
from tailsafe.policies.export import TOLERANCE, compare, export_onnx, export_safetensors, onnx_player
from tailsafe.policies.policy import load_policy
from tests.policies.hand_made import box_description, constraint, describe, finite_description, reseal, save
from tests.tabular.problems import random_problem

onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")

GUIDE = Path(__file__).parents[2] / "docs" / "export.md"


def discrete_description(start=5, **network):
    spec = EnvironmentSpec("switch", 4, DiscreteActions(3), ("a", "b"), 10, (1.0, np.inf))
    # The second limit is zero and its largest sum unknown: costs so far are divided by infinity.
    limits = [constraint("a", "cvar:0.5", 2.0), constraint("b", "mean", 0.0)]
    described = describe(spec, limits, **network)
    return dataclasses.replace(described, actions=dataclasses.replace(described.actions, start=start))


def ranged_box():
    described = box_description(augmented=True)
    ranged = constraint("b", "wang:0.5", 2.0, "episode", 2.0, cells=4, highest=10.0)
    return dataclasses.replace(described, constraints=(described.constraints[0], ranged), regions=4)


KINDS = {
    "box": lambda: box_description(clip_observation=1.5),
    "augmented box": lambda: box_description(augmented=True),
    "fixed deviation": lambda: box_description(augmented=True, fixed_log_std=-0.7),
    "no hidden layer": lambda: box_description(hidden=()),
    "no betas": lambda: dataclasses.replace(box_description(), algorithm="sdac"),
    "no betas, fixed": lambda: dataclasses.replace(box_description(fixed_log_std=1.0, hidden=(8,)), algorithm="cppo"),
    "finite": lambda: finite_description(random_problem(0, states=3, actions=4)),
    "range": lambda: finite_description(random_problem(0), [constraint("cost", limit=0.5, highest=4.0)]),
    "range of one cost of two": lambda: ranged_box(),
    "discrete": lambda: discrete_description(clip_observation=1.5),
    "augmented discrete": lambda: discrete_description(-2, augmented=True),
}


def made(folder, kind):
    save(folder, KINDS[kind]())
    return load_policy(folder)


@pytest.fixture(scope="module")
def box_run(tmp_path_factory):
    """An augmented policy with box actions; tests write elsewhere, or into a copy."""
    folder = tmp_path_factory.mktemp("box")
    made(folder, "augmented box")
    return folder


def conditions_by_hand(description, modes, asked):
    """What a network is conditioned on, and the limits in force, for one row that asks for these limits."""
    limits = [one.discounted_limit for one in description.constraints]
    if not description.ranged:
        return modes, limits
    places = [
        np.log(limit / one.span.low) / np.log(one.span.high / one.span.low)
        for limit, one in zip(asked, description.constraints, strict=True)
        if one.span is not None
    ]
    steps = min(places) * (description.regions - 1)
    near = np.maximum(1 - np.abs(steps - np.arange(description.regions)), 0)
    limits = [
        limit if one.span is None else one.span.discounted_low * (one.span.high / one.span.low) ** min(places)
        for limit, one in zip(limits, description.constraints, strict=True)
    ]
    return [*(near @ modes), *near], limits


def by_hand(folder, description, inputs):
    """Outputs and actions from the tensors on disk, row by row in double precision: nothing of tailsafe or JAX."""
    tensors = {name: values.astype(float) for name, values in load_file(folder / "policy/policy.safetensors").items()}
    network, kind = description.network, description.actions
    outputs, actions = [], []
    for row in range(len(inputs["observation"])):
        scaled = inputs["observation"][row] - tensors["normalizer.mean"]
        scaled = scaled / np.sqrt(tensors["normalizer.variance"] + 1e-8)
        x = [*np.clip(scaled, -network.clip_observation, network.clip_observation)]
        conditions, limits = conditions_by_hand(description, tensors["delta"], inputs["limit"][row])
        if network.augmented:
            for paid, limit in zip(inputs["cost_so_far"][row], limits, strict=True):
                x.append(min(paid / (limit or np.inf), 10.0))
            x.append(inputs["discount"][row, 0])
        x = np.array([*x, *conditions])
        for layer in range(len(network.hidden) + 1):
            x = np.where(x > 0, x, 0.01 * x) if layer else x
            x = x @ tensors[f"body.weights.{layer}"] + tensors[f"body.biases.{layer}"]
        if kind.kind == "discrete":
            actions.append(kind.start + int(np.argmax(x + inputs["noise"][row])))
        else:
            fixed = network.fixed_log_std
            log_std = np.full(kind.size, fixed) if fixed is not None else np.clip(x[kind.size :], -4, 2)
            x = np.concatenate([x[: kind.size], log_std])
            raw = x[: kind.size] + np.exp(log_std) * inputs["noise"][row]
            actions.append(kind.low + (np.tanh(raw) + 1) / 2 * np.subtract(kind.high, kind.low))
        outputs.append(x)
    return np.array(outputs), np.array(actions)


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_alone_does_what_the_policy_does(tmp_path, kind):
    policy = made(tmp_path, kind)
    described = policy.description
    target = tmp_path / "policy.onnx"
    exported = export_onnx(policy, target)
    assert exported.largest_difference < TOLERANCE
    assert exported.compared_with == f"onnxruntime {onnxruntime.__version__}"
    session = onnxruntime.InferenceSession(target, providers=["CPUExecutionProvider"])
    wanted = {"observation", "noise"} | ({"cost_so_far", "discount"} if policy.augmented else set())
    wanted |= {"limit"} if described.ranged else set()
    assert {entry.name for entry in session.get_inputs()} == wanted
    box = described.actions.kind == "box"
    for rows in (1, 40):
        rng, key = np.random.default_rng(rows), jax.random.key(rows)
        inputs = {
            "observation": 2 * rng.normal(size=(rows, described.task.observation_size)),
            "noise": np.array(policy.actions.noise(key, (rows,))),
            "cost_so_far": rng.uniform(0, 30, size=(rows, len(described.constraints))),
            "discount": rng.uniform(size=(rows, 1)),
            "limit": np.array([rng.uniform(*one.ends, size=rows) for one in described.constraints]).T,
        }
        inputs = {name: values.astype(np.float32) for name, values in inputs.items()}
        if described.ranged:
            policy = policy.asked_by_rows(inputs["limit"])
        so_far = inputs["cost_so_far"], inputs["discount"][:, 0]
        given = {name: inputs[name] for name in wanted}
        action, *parameters = session.run(None, given)
        # The same noise: the policy's own random actions.
        drawn = policy.to_environment(policy.choose(inputs["observation"], *so_far, key))
        assert action.shape == drawn.shape
        assert action.dtype == (np.float32 if box else np.int64)
        np.testing.assert_allclose(action, drawn, rtol=0, atol=1e-5)
        outputs, expected = by_hand(tmp_path, described, inputs)
        np.testing.assert_allclose(action, expected, rtol=0, atol=1e-5)
        np.testing.assert_allclose(np.concatenate(parameters, -1), outputs, rtol=1e-5, atol=1e-5)
        # No noise: the likeliest ones.
        likeliest = session.run(["action"], given | {"noise": np.zeros_like(inputs["noise"])})[0]
        asked = {"cost_so_far": so_far[0], "discount": so_far[1]}
        np.testing.assert_allclose(
            likeliest, policy(inputs["observation"], deterministic=True, **asked), rtol=0, atol=1e-5
        )
    assert [entry.name for entry in session.get_outputs()][1:] == (["mean", "log_std"] if box else ["logits"])


def test_actions_never_leave_the_bounds(tmp_path):
    """Bounds that single precision rounds: saturated actions are the bounds themselves."""
    low, high = (-0.1, 0.3), (0.7, 1.1)
    save(tmp_path, box_description(low=low, high=high))
    export_onnx(load_policy(tmp_path), tmp_path / "policy.onnx")
    _, play = onnx_player(tmp_path / "policy.onnx")
    for sign, bound in ((-1, low), (1, high)):
        inputs = {"observation": np.zeros((3, 5), np.float32), "noise": np.full((3, 2), sign * 1e6, np.float32)}
        np.testing.assert_array_equal(play(inputs)["action"], np.float32([bound] * 3))


def test_standard_deviations_stay_in_their_range(tmp_path):
    save(tmp_path, box_description())
    path = tmp_path / "policy/policy.safetensors"
    tensors = load_file(path)
    tensors["body.biases.2"][2:] = [-30.0, 30.0]
    save_file(tensors, path)
    reseal(tmp_path / "policy")
    policy = load_policy(tmp_path)
    export_onnx(policy, tmp_path / "policy.onnx")
    inputs = {name: np.ones((3, size), np.float32) for name, size in (("observation", 5), ("noise", 2))}
    played = onnx_player(tmp_path / "policy.onnx")[1](inputs)
    np.testing.assert_array_equal(played["log_std"], np.float32([[-4.0, 2.0]] * 3))
    raw = played["mean"] + np.exp([-4.0, 2.0])
    np.testing.assert_allclose(played["action"], [-1.0, 0.0] + (np.tanh(raw) + 1) / 2 * [4.0, 0.5], atol=1e-5)


def test_the_file_says_what_it_is(tmp_path, box_run):
    policy = load_policy(box_run)
    export_onnx(policy, tmp_path / "policy.onnx")
    model = onnx.load(tmp_path / "policy.onnx")
    assert model.ir_version == 7
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 13)]
    assert (model.producer_name, model.producer_version) == ("tailsafe", ts.__version__)
    told = {entry.key: entry.value for entry in model.metadata_props}
    assert told["task"] == "box"
    assert told["tailsafe"] == ts.__version__
    assert float(told["gamma"]) == 0.9
    assert json.loads(told["beta"]) == policy.beta
    assert [entry["risk_measure"] for entry in json.loads(told["constraints"])] == ["cvar:0.75", "wang:0.5"]
    entries = [*model.graph.input, *model.graph.output]
    assert json.loads(told["meanings"]) == {entry.name: entry.doc_string for entry in entries}
    for entry in entries:
        first, *_ = entry.type.tensor_type.shape.dim
        assert first.dim_param == "N"


# --- the check --------------------------------------------------------------------------------------------------------


def changed(model, name, by=1.001):
    """The model with one of its constants off by a thousandth."""
    spoiled = type(model)()
    spoiled.CopyFrom(model)
    (tensor,) = [tensor for tensor in spoiled.graph.initializer if tensor.name == name]
    values = onnx.numpy_helper.to_array(tensor)
    tensor.CopyFrom(onnx.numpy_helper.from_array((values * by).astype(values.dtype), name))
    return spoiled


def test_the_check_finds_every_wrong_constant(tmp_path):
    from tailsafe.policies.onnx_graph import build_model

    save(tmp_path, box_description(augmented=True, clip_observation=2.0))
    policy = load_policy(tmp_path)
    model = build_model(policy)
    # What this network never reaches; both have a test of their own.
    names = {tensor.name for tensor in model.graph.initializer} - {"log_std.low", "log_std.high", "action.high"}
    assert {"normalized.low", "cost_scale", "weights.0", "biases.2.log_std", "action.half_range"} < names
    for name in sorted(names):
        path = tmp_path / "spoiled.onnx"
        path.write_bytes(changed(model, name).SerializeToString())
        found = compare(policy, onnx_player(path)[1])
        assert found.largest_difference > 2 * found.tolerance, name
        assert found.tolerance == TOLERANCE


@pytest.mark.parametrize(("kind", "name"), [("box", "weights.1"), ("discrete", "weights.1"), ("discrete", "start")])
def test_a_file_that_acts_differently_is_not_left(tmp_path, monkeypatch, kind, name):
    from tailsafe.policies import onnx_graph

    policy = made(tmp_path / "run", kind)
    right = onnx_graph.build_model(policy)
    monkeypatch.setattr(onnx_graph, "build_model", lambda policy: changed(right, name, 2))
    with pytest.raises(InputError, match=r"policy\.onnx: not written, since onnxruntime .* acts differently from JAX"):
        export_onnx(policy, tmp_path / "policy.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_file_that_plays_nan_is_not_left(box_run, tmp_path, monkeypatch):
    def play(inputs):
        nothing = np.full_like(inputs["noise"], np.nan)
        return {"action": nothing, "mean": nothing, "log_std": nothing}

    monkeypatch.setattr(module, "onnx_player", lambda path: ("a broken runtime", play))
    with pytest.raises(InputError, match="a broken runtime acts differently from JAX: by nan"):
        export_onnx(load_policy(box_run), tmp_path / "policy.onnx")
    assert not any(tmp_path.iterdir())


def test_the_allowance_for_rounding_is_what_jax_loses_and_ends(box_run, tmp_path, monkeypatch):
    policy = load_policy(box_run)
    export_onnx(policy, tmp_path / "policy.onnx")
    _, play = onnx_player(tmp_path / "policy.onnx")
    monkeypatch.setattr(module, "_ROUNDING", 100.0)
    found = compare(policy, play)
    assert 0 < found.rounding < 2e-6
    assert found.tolerance == pytest.approx(max(TOLERANCE, 100 * found.rounding))
    monkeypatch.setattr(module, "_ROUNDING", 1e9)
    assert compare(policy, play).tolerance == 1e-3


def test_without_onnxruntime_the_file_is_played_by_onnx_itself(tmp_path, monkeypatch):
    find = module.importlib.util.find_spec
    monkeypatch.setattr(
        module.importlib.util, "find_spec", lambda name, *rest: None if name == "onnxruntime" else find(name, *rest)
    )
    for kind in ("augmented box", "augmented discrete"):
        exported = export_onnx(made(tmp_path / kind, kind), tmp_path / f"{kind}.onnx")
        assert exported.compared_with == f"onnx {onnx.__version__}"
        assert exported.largest_difference < TOLERANCE


# --- the command ------------------------------------------------------------------------------------------------------


def test_export_onnx_from_the_command_line(call, box_run, tmp_path):
    shutil.copytree(box_run, tmp_path / "run")
    code, out, err = call("export", tmp_path / "run", "--format", "onnx", "--json")
    assert (code, err) == (0, "")
    shown = json.loads(out.splitlines()[-1])
    assert shown["run"] == str(tmp_path / "run")
    assert shown["path"] == str(tmp_path / "run" / "policy.onnx")
    assert shown["observations"] == 1000
    assert 0 < shown["largest_difference"] < shown["tolerance"] == 1e-5
    code, out, _ = call("export", tmp_path / "run/policy/policy.json", "--format", "onnx", "--out", tmp_path / "x.onnx")
    assert code == 0
    assert "1000 observations" in out
    assert (tmp_path / "x.onnx").read_bytes() == (tmp_path / "run/policy.onnx").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "x.onnx"]
    made(tmp_path / "switch", "discrete")
    code, out, _ = call("export", tmp_path / "switch", "--format", "onnx")
    assert code == 0
    assert "of the largest logit" in out


def test_export_safetensors_is_the_same_policy(call, box_run, tmp_path):
    target = tmp_path / "shared"
    target.mkdir()  # an empty folder may be there
    code, out, err = call("export", box_run, "--out", target, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out.splitlines()[-1])["path"] == str(target)
    for name in ("policy.json", "policy.safetensors"):
        assert (target / name).read_bytes() == (box_run / "policy" / name).read_bytes()
    assert sorted(path.name for path in target.iterdir()) == ["policy.json", "policy.safetensors"]
    # To share: whoever may read one file may read the other.
    assert len({path.stat().st_mode for path in target.iterdir()}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["shared"]
    code, out, _ = call("export", target)  # from a policy's own folder, to the usual place
    assert code == 0
    assert "bit for bit" in out
    assert ts.load_policy(target / "export").description == ts.load_policy(box_run).description


def test_the_function_does_what_the_command_does(box_run, tmp_path):
    exported = ts.export(box_run, tmp_path / "policy.onnx", format="onnx")
    assert exported.path == tmp_path / "policy.onnx"
    assert ts.export(str(box_run), str(tmp_path / "folder")).path == tmp_path / "folder"
    shutil.copytree(box_run, tmp_path / "runs" / "seed-1")
    with pytest.raises(InputError, match="seed-1"):
        ts.export(tmp_path / "runs", tmp_path / "other")


def test_every_seed_is_exported(call, box_run, tmp_path):
    for seed in (2, 10):
        shutil.copytree(box_run / "policy", tmp_path / f"seed-{seed}" / "policy")
    code, out, _ = call("export", tmp_path, "--format", "onnx", "--json")
    assert code == 0
    shown = json.loads(out.splitlines()[-1])["runs"]
    assert [entry["path"] for entry in shown] == [str(tmp_path / f"seed-{seed}" / "policy.onnx") for seed in (2, 10)]
    code, _, err = call("export", tmp_path, "--out", tmp_path / "all")
    assert code == 2
    assert "holds 2 runs" in err


def everything(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["run", "--format", "torch"], "format is 'torch'; it must be safetensors or onnx"),
        (["nothing"], "nothing: no such run"),
        (["nothing", "--out", "x"], "nothing: no such run"),
        (["full"], "holds no policy.json"),
        (["run", "--out", "full"], "full: exists already"),
        (["run", "--out", "run/policy"], "exists already"),
        (["run", "--out", "file.onnx", "--format", "onnx"], "file.onnx: exists already"),
        (["run", "--out", "file.onnx/x.onnx", "--format", "onnx"], "does not exist"),
        (["run", "--out", "file.onnx/x"], "does not exist"),
        (["run", "--out", "no/where"], "does not exist"),
        (["run", "--out", "x", "--format", "onnx"], "x: an ONNX file ends in .onnx"),
        (["run", "--out", "empty.onnx", "--format", "onnx"], "is a folder"),
        (["run", "--out", "x.safetensors"], "name a folder for both"),
        (["torn", "--format", "onnx"], "not a safetensors file"),
        (["untold", "--format", "onnx"], "is not JSON"),
        (["negative", "--format", "onnx"], "holds negative numbers"),
    ],
)
def test_mistakes_get_one_line_and_leave_nothing(call, box_run, tmp_path, monkeypatch, arguments, reason):
    for name in ("run", "torn", "untold", "negative"):
        shutil.copytree(box_run, tmp_path / name)
    (tmp_path / "torn/policy/policy.safetensors").write_bytes(b"\xff" * 100)
    (tmp_path / "untold/policy/policy.json").write_text("{")
    negative = tmp_path / "negative/policy/policy.safetensors"
    tensors = load_file(negative)
    save_file(tensors | {"normalizer.variance": -tensors["normalizer.variance"]}, negative)
    reseal(negative.parent)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").write_text("mine")
    (tmp_path / "file.onnx").write_text("mine")
    (tmp_path / "empty.onnx").mkdir()
    before = everything(tmp_path)
    monkeypatch.chdir(tmp_path)
    code, out, err = call("export", *arguments)
    assert (code, out) == (2, "")
    assert reason in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert everything(tmp_path) == before


def test_a_folder_without_the_right_to_write_is_refused(box_run, tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    for target, write in ((tmp_path / "x.onnx", export_onnx), (tmp_path / "x", export_safetensors)):
        with pytest.raises(InputError, match="is not writable"):
            write(load_policy(box_run), target)
    assert not any(tmp_path.iterdir())


def test_an_interrupt_leaves_nothing(box_run, tmp_path, monkeypatch):
    def stop(*_):
        assert any(tmp_path.iterdir())  # on its way
        raise KeyboardInterrupt

    policy = load_policy(box_run)
    monkeypatch.setattr(module, "compare", stop)
    monkeypatch.setattr(module, "load_policy", stop)
    for target, write in ((tmp_path / "x.onnx", export_onnx), (tmp_path / "x", export_safetensors)):
        with pytest.raises(KeyboardInterrupt):
            write(policy, target)
    assert not any(tmp_path.iterdir())


def test_a_copy_that_reads_differently_is_not_left(box_run, tmp_path, monkeypatch):
    save(tmp_path / "other", KINDS["augmented box"](), seed=1)
    policy, other = load_policy(box_run), load_policy(tmp_path / "other")
    monkeypatch.setattr(module, "load_policy", lambda path: other)
    with pytest.raises(InputError, match="another policy"):
        export_safetensors(policy, tmp_path / "x")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_without_onnx_the_extra_is_named_before_the_work(call, box_run, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None)
    monkeypatch.setattr("tailsafe.policies.policy.load_policy", None)
    code, out, err = call("export", box_run, "--format", "onnx")
    assert (code, out) == (2, "")
    assert err.startswith("error: ONNX files need onnx: pip install ")
    assert err.count("\n") == 1


def test_the_readme_s_example_runs(tmp_path, monkeypatch):
    """On a policy of the same shapes."""
    spec = EnvironmentSpec("point-goal", 60, BoxActions(2), ("collision",), 1000, (1.0,))
    save(tmp_path / "run", describe(spec, [constraint("collision")]))
    monkeypatch.chdir(tmp_path)
    ts.export("run", "policy.onnx", format="onnx")
    (example,) = re.findall(
        r"```python\n(import numpy as np, onnxruntime.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL
    )
    names = {}
    exec(example, names)
    policy = load_policy("run")
    wanted = policy(names["observation"], deterministic=True)
    np.testing.assert_allclose(names["likeliest"], wanted, rtol=0, atol=1e-5)
    assert names["action"].shape == wanted.shape
    assert not np.array_equal(names["action"], names["likeliest"])
