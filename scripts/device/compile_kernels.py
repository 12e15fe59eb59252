"""Warp's kernels for a GPU that is not here: `compile_kernels.py CACHE CAPABILITY [TASK...]`, as 90 for an H200.

A fresh machine would compile them for minutes. Here each task's environments take a step in which nothing is computed:
every kernel that would be launched on a GPU is compiled for it instead, into the folder where Warp looks it up by the
hash of its source and options. One that is missed, or hashed differently there, is compiled there as ever.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

GPU_BLOCK, MULTIPROCESSORS, ENVIRONMENTS, LAYOUTS = 256, 132, 4096, 8


class OnGpu:
    """A device that says it is a GPU, for code that asks."""

    is_cpu, is_cuda, sm_count = False, True, MULTIPROCESSORS

    def __init__(self, device: Any) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


def compile_instead(capability: int, done: dict[str, float]) -> None:
    """Replace what launches kernels by what compiles them."""
    import mujoco.mjx.third_party.mujoco_warp._src.collision_convex as convex
    import warp as wp
    from warp._src.context import Module

    def load(module: Any, device: Any, block_dim: int | None = None, *_: Any) -> Any:
        if device is not None and block_dim == 1:  # what a CPU makes of no wish
            block_dim = GPU_BLOCK
        block = block_dim or module.options["block_dim"]
        name = module.get_module_identifier(block)
        if name not in done:
            began = time.perf_counter()
            options = module.resolved_options[block]
            module._compile(None, output_arch=capability, use_ptx=False, options=options)
            done[name] = time.perf_counter() - began
            print(f"{done[name]:6.1f} s  {name} (block {block})", flush=True)
        return SimpleNamespace(block_dim=block)

    def launch(
        kernel: Any, dim: Any = 0, inputs: Any = (), outputs: Any = (), *, block_dim: Any = None, **_: Any
    ) -> None:
        sizes = dim if isinstance(dim, (tuple, list)) else (dim,)
        if not all(size > 0 for size in sizes):
            return
        if kernel.is_generic:
            kernel = kernel.add_overload(kernel.infer_argument_types([*inputs, *outputs]))
        load(kernel.module, None, block_dim if block_dim and block_dim > 0 else GPU_BLOCK)

    def suggested(kernel: Any, device: Any = None) -> tuple[int, int]:
        load(kernel.module, device)
        return GPU_BLOCK, 2 * MULTIPROCESSORS

    def capture_while(condition: Any, while_body: Any, *_: Any, **arguments: Any) -> None:
        arguments.pop("stream", None)
        while_body(**arguments)

    def capture_if(condition: Any, on_true: Any = None, on_false: Any = None, **arguments: Any) -> None:
        arguments.pop("stream", None)
        for branch in (on_true, on_false):
            if branch is not None:
                branch(**arguments)

    real_device, real_grid = wp.get_device, convex._ccd_grid_size
    Module.load = load
    wp.launch = launch
    wp.launch_tiled = launch
    wp.get_suggested_block_size = suggested
    wp.capture_while, wp.capture_if = capture_while, capture_if
    wp.get_device = lambda ident=None: OnGpu(real_device()) if ident is None else real_device(ident)
    convex._ccd_grid_size = lambda kernel, most, device: real_grid(kernel, most, OnGpu(device))


def main(cache: Path, capability: int, tasks: list[str]) -> None:
    os.environ["WARP_CACHE_PATH"] = str(cache)
    os.environ["TAILSAFE_CACHE"] = ""
    from tailsafe.tasks import TASKS

    if len(tasks) != 1:  # a process each, as on the GPU: what a module holds depends on what was launched before
        for task in tasks or TASKS:
            os.spawnv(os.P_WAIT, sys.executable, [sys.executable, __file__, str(cache), str(capability), task])
        return
    import jax
    import warp as wp

    from tailsafe.envs.device import DeviceBatch, device_engine
    from tailsafe.envs.episodes import environment_keys
    from tailsafe.tasks import action_size, get_task

    wp.init()
    task = get_task(tasks[0])
    batch = DeviceBatch(task, device_engine(task, "warp"))
    done: dict[str, float] = {}
    compile_instead(capability, done)
    # A few layouts, many times: drawing one takes long on a CPU, and nothing is computed with them.
    few = jax.jit(batch.init)(environment_keys(0, LAYOUTS))
    state = jax.tree.map(lambda leaf: leaf[jax.numpy.arange(ENVIRONMENTS) % LAYOUTS], few)
    jax.block_until_ready(jax.jit(batch.move)(state, jax.numpy.zeros((ENVIRONMENTS, action_size(task)))))
    print(f"{task.name}: {len(done)} modules, {sum(done.values()):.0f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), int(sys.argv[2]), sys.argv[3:])
