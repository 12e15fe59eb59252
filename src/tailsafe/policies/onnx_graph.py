"""A saved policy as one ONNX graph: observation and noise in, action in the environment's own units out.

Only operators that runtimes have had for years, no shapes computed at run time, and one axis that is free: the rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from tailsafe._version import __version__
from tailsafe.learning.actions import LOG_STD_RANGE
from tailsafe.learning.networks import SLOPE
from tailsafe.policies.acting import LARGEST_COST_INPUT, LoadedPolicy

if TYPE_CHECKING:
    from onnx import ModelProto

# Old enough for the runtimes on robots (ONNX 1.8, of 2020); nothing here has changed in meaning since.
OPSET, IR_VERSION = 13, 7


def build_model(policy: LoadedPolicy) -> ModelProto:
    """All of a `LoadedPolicy` but its bookkeeping; inputs and outputs as `meanings` has them. Needs onnx alone."""
    from onnx import TensorProto, helper

    described = policy.description
    box, size = described.actions.kind == "box", described.actions.size
    graph = _Graph()
    outputs = _box_actions(graph, policy) if box else _discrete_actions(graph, policy)
    widths = {"observation": described.task.observation_size, "noise": size}
    if policy.augmented:
        widths |= {"cost_so_far": len(described.constraints), "discount": 1}
    if described.ranged:
        widths |= {"limit": len(described.constraints)}
    words = meanings(policy)

    def entry(name: str, kind: int, shape: list[str | int]) -> Any:
        return helper.make_tensor_value_info(name, kind, shape, doc_string=words[name])

    choices = [] if described.actions.counts is None else [len(described.actions.counts)]
    action = (
        entry("action", TensorProto.FLOAT, ["N", size]) if box else entry("action", TensorProto.INT64, ["N", *choices])
    )
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "policy",
            [entry(name, TensorProto.FLOAT, ["N", width]) for name, width in widths.items()],
            [action, *(entry(name, TensorProto.FLOAT, ["N", size]) for name in outputs)],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="tailsafe",
        producer_version=__version__,
        doc_string=f"A policy for {described.task.name}, trained by tailsafe ({described.algorithm}).",
    )
    helper.set_model_props(model, metadata(policy))
    return model


def meanings(policy: LoadedPolicy) -> Mapping[str, str]:
    """What every input and output is. N: rows; O: observation; A: actions; C: costs."""
    described = policy.description
    space = described.task.observations
    words = {
        "observation": "(N, O), as the environment gives it" + ("" if space is None else ", flattened: `observations`")
    }
    if described.actions.kind == "box":
        words |= {
            "noise": "(N, A) independent standard normal draws; zeros give the likeliest action",
            "action": "(N, A) in the environment's own units and bounds, flattened",
            "mean": "(N, A) of the normal distribution before tanh and scaling",
            "log_std": "(N, A) log standard deviation of the normal distribution before tanh and scaling",
        }
    else:
        words |= {
            "noise": "(N, A) independent standard Gumbel draws, -log(-log(uniform)); zeros give the likeliest action",
            "action": f"(N,) numbers of actions, the first one is {described.actions.start}"
            if described.actions.counts is None
            else "(N, K) one number for each of K choices",
            "logits": "(N, A) log odds of the actions",
        }
    if policy.augmented:
        names = ", ".join(described.task.cost_names)
        words |= {
            "cost_so_far": f"(N, C) discounted sums of the episode's costs before this step: {names}",
            "discount": "(N, 1) gamma^t, 1 at the beginning of an episode",
        }
    if described.ranged:
        spans = "; ".join(f"{one.name} {one.ends[0]:g} to {one.ends[1]:g}/{one.unit}" for one in described.constraints)
        words["limit"] = f"(N, C) what the policy is asked for, beyond the ends as at the ends: {spans}"
    return words


def metadata(policy: LoadedPolicy) -> dict[str, str]:
    """What people want to know of a file they find; lists and objects are JSON."""
    described = policy.description
    values = {
        "task": described.task.name,
        "algorithm": described.algorithm,
        "steps": described.steps,
        "gamma": described.gamma,
        "constraints": [constraint.to_json() for constraint in described.constraints],
        "beta": policy.beta,
        "actions": described.actions.to_json(),
        "observations": described.task.observation_space.to_json(),
        "meanings": dict(meanings(policy)),
        "trained_with": described.version,
        "tailsafe": __version__,
    }
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}


class _Graph:
    """Nodes and constants in the order they are needed. Every node is named after the one tensor it gives."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, name: str, values: ArrayLike, kind: type[np.generic] = np.float32) -> str:
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(np.asarray(values, kind), name))
        return name

    def node(self, operator: str, inputs: list[str], name: str, **attributes: Any) -> str:
        from onnx import helper

        self.nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def linear(self, x: str, weight: ArrayLike, bias: ArrayLike, layer: str, name: str) -> str:
        """x weight + bias. layer: what the constants are called, as in policy.safetensors."""
        tensors = [self.constant(f"weights.{layer}", weight), self.constant(f"biases.{layer}", bias)]
        return self.node("Gemm", [x, *tensors], name)

    def clip(self, x: str, low: float, high: float, name: str) -> str:
        bounds = [self.constant(f"{name}.low", low), self.constant(f"{name}.high", high)]
        return self.node("Clip", [x, *bounds], name)


def _features(graph: _Graph, policy: LoadedPolicy) -> str:
    """The normalised observation; for an augmented policy (D, b); of a range of limits, what the request makes of it.

    With one limit, delta is part of the first layer's biases.
    """
    clip = policy.description.network.clip_observation
    mean = graph.constant("normalizer.mean", policy.normalizer.mean)
    deviation = graph.constant("normalizer.deviation", policy.normalizer.deviation)
    scaled = graph.node("Div", [graph.node("Sub", ["observation", mean], "centred"), deviation], "scaled")
    parts = [graph.clip(scaled, -clip, clip, "normalized")]
    position = _position(graph, policy) if policy.description.ranged else None
    if policy.augmented:
        scale = graph.constant("cost_scale", policy.cost_scale) if position is None else _scale(graph, policy, position)
        relative = graph.node("Div", ["cost_so_far", scale], "relative_cost")
        paid = graph.node("Min", [relative, graph.constant("largest_cost_input", LARGEST_COST_INPUT)], "paid")
        parts += [paid, "discount"]
    if position is not None:
        parts += _conditions(graph, policy, position)
    return parts[0] if len(parts) == 1 else graph.node("Concat", parts, "features", axis=1)


def _position(graph: _Graph, policy: LoadedPolicy) -> str:
    """(N, 1): where in the range the policy acts, see `PolicyDescription.positions`."""
    spans = [(i, one.span) for i, one in enumerate(policy.description.constraints) if one.span is not None]
    columns = graph.constant("limit.columns", [i for i, _ in spans], np.int64)
    asked = graph.node("Gather", ["limit", columns], "ranged_limits", axis=1)
    low = graph.constant("limit.low", [span.trained_low for _, span in spans])
    width = graph.constant("limit.width", [math.log(span.high / span.trained_low) for _, span in spans])
    of_low = graph.node("Div", [graph.node("Max", [asked, low], "at_least_low"), low], "of_low")
    places = graph.node("Div", [graph.node("Log", [of_low], "above"), width], "places")
    requested = graph.clip(graph.node("ReduceMin", [places], "place", axes=[1], keepdims=1), 0.0, 1.0, "requested")
    answers = policy.description.answers
    if answers is None:
        return requested
    # A staircase: every step that the request has reached adds its rise, the first one in any case.
    steps, rises = [0.0, *answers.requests[1:]], np.diff(answers.places, prepend=0.0)[:, None]
    reached = graph.node("GreaterOrEqual", [requested, graph.constant("answers.requests", steps)], "reached")
    return graph.node(
        "MatMul",
        [graph.node("Cast", [reached], "reached_ones", to=1), graph.constant("answers.rises", rises)],
        "position",
    )


def _scale(graph: _Graph, policy: LoadedPolicy, position: str) -> str:
    """(N, C): the limits on the discounted sums at a position, which costs so far are measured by."""
    arrays = policy.description.arrays()
    assert arrays.range is not None
    low = np.where(arrays.limit > 0, arrays.limit, arrays.largest_return)
    rise = graph.node("Mul", [position, graph.constant("limit.spread", arrays.range.spread)], "rise")
    return graph.node("Mul", [graph.node("Exp", [rise], "factor"), graph.constant("limit.lowest", low)], "scale")


def _conditions(graph: _Graph, policy: LoadedPolicy, position: str) -> list[str]:
    """Increments of beta (N, n) and memberships (N, R) of a position, see `LimitRange`."""
    regions = policy.description.regions
    place = graph.node("Mul", [position, graph.constant("regions.last", float(regions - 1))], "region_place")
    apart = graph.node("Sub", [place, graph.constant("regions.numbers", np.arange(regions))], "from_region")
    near = graph.node("Sub", [graph.constant("regions.reach", 1.0), graph.node("Abs", [apart], "distance")], "near")
    regions_of = graph.node("Relu", [near], "memberships")
    return [graph.node("MatMul", [regions_of, graph.constant("modes", policy.modes)], "increments"), regions_of]


def _hidden(graph: _Graph, policy: LoadedPolicy) -> tuple[str, np.ndarray, np.ndarray]:
    """What the last layer sees, and that layer's weights (i, o) and biases (o,)."""
    body = policy.network.body
    weights = [np.asarray(weight, np.float64) for weight in body.weights]
    biases = [np.asarray(bias, np.float64) for bias in body.biases]
    if not policy.description.ranged:
        delta = np.asarray(policy.delta, np.float64)
        # The sampler's mode is the same in every row: its part of the first layer is a constant.
        seen = len(weights[0]) - delta.size
        biases[0] = biases[0] + delta @ weights[0][seen:]
        weights[0] = weights[0][:seen]
    x = _features(graph, policy)
    for layer, (weight, bias) in enumerate(zip(weights[:-1], biases[:-1], strict=True)):
        x = graph.linear(x, weight, bias, str(layer), f"layer_{layer}")
        x = graph.node("LeakyRelu", [x], f"hidden_{layer}", alpha=SLOPE)
    return x, weights[-1], biases[-1]


def _box_actions(graph: _Graph, policy: LoadedPolicy) -> list[str]:
    """tanh(mean + exp(log_std) noise), from [-1, 1] to the bounds."""
    described = policy.description
    size, fixed = described.actions.size, described.network.fixed_log_std
    x, weight, bias = _hidden(graph, policy)
    last = len(policy.network.body.weights) - 1
    mean = graph.linear(x, weight[:, :size], bias[:size], f"{last}.mean", "mean")
    if fixed is None:
        weight, bias = weight[:, size:], bias[size:]
    else:  # A layer that says the same of every row: it has the free axis without asking for its length.
        weight, bias = np.zeros((len(weight), size)), np.full(size, fixed)
    free = graph.linear(x, weight, bias, f"{last}.log_std", "unbounded_log_std")
    log_std = graph.clip(free, *LOG_STD_RANGE, "log_std")
    spread = graph.node("Mul", [graph.node("Exp", [log_std], "std"), "noise"], "spread")
    squashed = graph.node("Tanh", [graph.node("Add", [mean, spread], "raw")], "squashed")
    # As `ActionDescription.decode` computes it, operation by operation: halving is exact wherever it stands.
    bounds = [np.asarray(bound, np.float32) for bound in (described.actions.low, described.actions.high)]
    low, high = graph.constant("action.low", bounds[0]), graph.constant("action.high", bounds[1])
    half = graph.constant("action.half_range", (bounds[1] - bounds[0]) / 2)
    above = graph.node("Add", [squashed, graph.constant("one", 1.0)], "above_low")
    inside = graph.node("Add", [low, graph.node("Mul", [above, half], "from_low")], "own_units")
    if described.actions.whole:
        inside = graph.node("Round", [inside], "rounded")
    graph.node("Min", [graph.node("Max", [inside, low], "not_below"), high], "action")
    return [mean, log_std]


def _discrete_actions(graph: _Graph, policy: LoadedPolicy) -> list[str]:
    """The largest of logits + noise: with Gumbel noise a draw from the policy, without any its likeliest action."""
    x, weight, bias = _hidden(graph, policy)
    logits = graph.linear(x, weight, bias, str(len(policy.network.body.weights) - 1), "logits")
    index = graph.node("ArgMax", [graph.node("Add", [logits, "noise"], "perturbed")], "index", axis=1, keepdims=0)
    table = policy.description.actions.combinations()
    if table is None:
        graph.node("Add", [index, graph.constant("start", policy.description.actions.start, np.int64)], "action")
    else:
        graph.node("Gather", [graph.constant("combinations", table, np.int64), index], "action", axis=0)
    return [logits]
