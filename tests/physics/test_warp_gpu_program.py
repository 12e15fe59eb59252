"""What XLA makes of engine `warp` for a GPU, compiled without one: `pip install jax-cuda13-plugin jax-cuda13-pjrt`.

The kernels step a state in place. A GPU's XLA lets a call write straight into a slice of a longer array where it may,
and then the state that should be stepped is not there: every environment of a batch of 128 or more stepped zeros, on a
GPU alone. Results cannot be seen here, but the program can.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from tailsafe.envs.device import DeviceBatch
from tailsafe.envs.episodes import environment_keys
from tailsafe.physics.interface import Mocap, PhysicsState
from tailsafe.physics.warp_engine import WarpEngine, warp_installed
from tailsafe.tasks import TASKS, action_size

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not warp_installed(), reason="warp-lang is not installed"),
    pytest.mark.skipif(find_spec("jax_cuda13_plugin") is None, reason="jax-cuda13-plugin is not installed"),
]

# Slices begin where XLA may write from this many environments on: it wants them aligned to 128 bytes.
ENVIRONMENTS = 256
H200 = """
platform_name: "CUDA" device_description_str: "NVIDIA H200"
dnn_version_info { major: 9 minor: 1 patch: 1 } runtime_version { major: 13 minor: 0 patch: 0 }
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  memory_bandwidth: 4800000000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 144978640896
  cuda_compute_capability { major: 9 minor: 0 }
}
"""


@cache
def gpu() -> SingleDeviceSharding:
    with pytest.MonkeyPatch.context() as patch, suppress(jax.errors.JaxRuntimeError):  # it may be registered already
        patch.setenv("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")  # neither a GPU nor its libraries are needed
        import_module("jax_plugins.xla_cuda13").initialize()
    topology = topologies.get_topology_desc("1x1x1", "cuda", target_config=H200, topology="1x1x1")
    return SingleDeviceSharding(topology.devices[0])


def program(function: Any, *arguments: Any) -> str:
    """The text of a jitted function as it would run on the GPU; arguments are only looked at."""
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=gpu()), arguments)
    lowered = jax.jit(function).trace(*shapes).lower(lowering_platforms=("cuda",))
    return lowered.compile(compiler_options={"xla_gpu_autotune_level": 0}).as_text()


def sliced_calls(text: str) -> list[str]:
    """Names of the computations in which a call of the kernels is fused with slices."""
    fused = set(re.findall(r"calls=%?([\w.\-]*)", "\n".join(re.findall(r".*dynamic_slice_fusion.*", text))))
    bodies = {part.split(" ", 1)[0].lstrip("%"): part for part in re.split(r"\n(?=%|ENTRY)", text)}
    return sorted(name for name in fused if "ffi_call" in bodies.get(name, ""))


def test_a_call_that_is_fused_with_slices_is_seen() -> None:
    """The mistake itself: states of all substeps stacked as they come from the kernels."""
    engine = WarpEngine(TASKS["point-goal"])
    template = engine._mjx.make_data(engine._host, impl="warp", naconmax=8192, njmax=64)

    def stacked(qpos: Any) -> Any:
        def step(data: Any, _: Any) -> Any:
            data = engine._mjx.step(engine._model, data)
            return data, data.qpos

        return jax.lax.scan(step, template.replace(qpos=qpos), None, 3)[1]

    assert sliced_calls(program(jax.vmap(stacked), jnp.zeros((ENVIRONMENTS, engine._host.nq))))


@pytest.mark.parametrize("name", list(TASKS))
def test_control_steps_write_to_no_slice(name: str) -> None:
    engine = WarpEngine(TASKS[name])
    host = engine._host
    physics = PhysicsState(*(jnp.zeros((ENVIRONMENTS, *shape)) for shape in ((), (host.nq,), (host.nv,))))
    mocap = Mocap(*(jnp.zeros((ENVIRONMENTS, host.nmocap, size)) for size in (3, 4)))

    def steps(physics: Any, controls: Any, mocap: Any) -> Any:
        return jax.vmap(lambda p, c, m: engine.step_counted(p, c, lambda _: m))(physics, controls, mocap)

    text = program(steps, physics, jnp.zeros((ENVIRONMENTS, host.nu)), mocap)
    assert "ffi_call" in text
    assert not sliced_calls(text)


def test_rollouts_write_to_no_slice() -> None:
    """Whole environments, all of whose steps are kept."""
    task = TASKS["point-goal"]
    batch = DeviceBatch(task, WarpEngine(task))

    def rollout(keys: Any, actions: Any) -> Any:
        return jax.lax.scan(batch.step, batch.init(keys), actions)

    keys, actions = environment_keys(0, ENVIRONMENTS), jnp.zeros((3, ENVIRONMENTS, action_size(task)))
    text = program(lambda data, actions: rollout(jax.random.wrap_key_data(data), actions), _words(keys), actions)
    assert "ffi_call" in text
    assert not sliced_calls(text)


def _words(keys: Any) -> Any:
    return jax.random.key_data(keys)
