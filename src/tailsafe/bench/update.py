"""How fast one update of the learner is, against the rate of this machine's matrix products in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from tailsafe.algorithms.srcpo import Srcpo
from tailsafe.algorithms.srcpo_state import Settings, SrcpoConfig
from tailsafe.algorithms.srcpo_state import SrcpoState as LearnerState
from tailsafe.algorithms.state import ENSEMBLE, PRECISIONS
from tailsafe.learning.actions import BoxActions
from tailsafe.learning.chunks import Chunk
from tailsafe.learning.constraints import stack_constraints
from tailsafe.learning.critics import ADAM, fit_critics
from tailsafe.risk import CVaR

# Point-goal: what the paper's own runs see.
OBSERVATIONS, ACTIONS, GAMMA = 60, 2, 0.99
_ROUNDS = 3
_PRODUCTS = 20


def bench_update(precision: str = "float32", runs: int = 1, **changes: Any) -> dict[str, Any]:
    """Measure an update at the paper's sizes (or with `changes` to them).

    The critic phase is the regression: critic_iterations full-batch steps on fixed targets. Its work is counted as the
    matrix products that cannot be avoided, three per layer and network (the first layer needs no gradient of its
    input). Times are medians. With `runs` > 1 that many runs are updated by one program.

    Returns:
      matmul_gflops: of (B, H) x (H, H) in the same precision; critic_gflops, critic_ratio, critic_seconds;
      update_seconds, update_over_critic; compile_seconds: of the update.
    """
    config = SrcpoConfig(
        **{"precision": precision, "batch_chunks": 10, "replay_chunks": 10, "beta_per": "chunk", **changes}
    )
    algorithm = Srcpo(config, OBSERVATIONS, BoxActions(ACTIONS), 1)
    settings = paper_settings()
    keys = jax.random.split(jax.random.key(0), runs)

    def prepare(key: Array) -> tuple[LearnerState, Chunk]:
        state = algorithm.init(key, settings)
        chunk = _chunk(algorithm, state, key)
        for _ in range(config.replay_chunks):
            state = replace(state, replay=state.replay.add(chunk))
        return state, chunk

    def update(state: LearnerState, chunk: Chunk, key: Array) -> Any:
        return algorithm.update(state, settings, chunk, key)

    state, chunk = jax.jit(jax.vmap(prepare))(keys)
    started = time.perf_counter()
    program = jax.jit(jax.vmap(update)).lower(state, chunk, keys).compile()
    compile_seconds = time.perf_counter() - started

    rows = config.batch_chunks * config.num_envs * config.chunk_steps
    inputs = OBSERVATIONS + settings.constraints.num_betas + ACTIONS
    width = config.critic_hidden[0]

    precise = PRECISIONS[precision]

    def fit(state: LearnerState, key: Array) -> Any:
        features = jax.random.normal(key, (rows, inputs))
        targets = jnp.sort(jax.random.normal(key, (2, rows, config.target_quantiles)))
        with jax.default_matmul_precision(precise.products):
            return fit_critics(
                state.critics,
                state.critic_optimizer,
                ADAM,
                features,
                targets,
                settings.constraints.largest_return,
                settings.critic_rate,
                config.critic_iterations,
                config.critic_minibatches,
                precise.critics,
            )

    def products(left: Array, right: Array) -> Array:
        with jax.default_matmul_precision(precise.products):
            product: Array = jax.lax.fori_loop(0, _PRODUCTS, lambda _, left: left @ right, left)
        return product

    left, right = (leaf.astype(precise.critics or leaf.dtype) for leaf in (jnp.ones((rows, width)), jnp.eye(width)))
    run_fit, run_products = jax.jit(jax.vmap(fit)), jax.jit(products)
    seconds = _alternate(
        lambda: run_products(left, right), lambda: run_fit(state, keys), lambda: program(state, chunk, keys)
    )
    matmul_rate = 2 * rows * width * width * _PRODUCTS / seconds[0] / 1e9
    sizes = (inputs, *config.critic_hidden, config.quantiles)
    passes = [2, *(3 for _ in sizes[2:])]
    products_per_row = sum(n * i * o for n, i, o in zip(passes, sizes[:-1], sizes[1:], strict=True))
    used = rows // config.critic_minibatches
    work = runs * config.critic_iterations * 2 * ENSEMBLE * used * 2 * products_per_row
    critic_rate = work / seconds[1] / 1e9
    return {
        "device": jax.devices()[0].device_kind,
        "precision": precision,
        "runs": runs,
        "rows": rows,
        "matmul_gflops": matmul_rate,
        "critic_gflops": critic_rate,
        "critic_ratio": critic_rate / matmul_rate,
        "critic_seconds": seconds[1],
        "update_seconds": seconds[2],
        "update_over_critic": seconds[2] / seconds[1],
        "compile_seconds": compile_seconds,
    }


def paper_settings() -> Settings:
    """CVaR_0.75 below 0.025 per step, with the paper's constants."""
    largest = 1 / (1 - GAMMA)
    return Settings(
        constraints=stack_constraints([CVaR(0.75).discretize(2)], [0.025 * largest], [largest]),
        gamma=jnp.asarray(GAMMA),
        trace=jnp.asarray(0.97),
        horizon=jnp.asarray(largest),
        max_kl=jnp.asarray(0.001),
        kl_decay=jnp.asarray(jnp.inf),
        critic_rate=jnp.asarray(3e-4),
        sampler_rate=jnp.asarray(3e-4),
        sampler_deviation=jnp.asarray(0.05),
        margin=jnp.asarray(0.0),
        uniform_share=jnp.asarray(0.0),
        calibration=jnp.asarray(0.0),
        smoothing=jnp.asarray(0.0),
        proportional=jnp.asarray(0.0),
        integral=jnp.asarray(0.0),
        warmup=jnp.asarray(0.0),
    )


def _chunk(algorithm: Srcpo, state: LearnerState, key: Array) -> Chunk:
    """Plausible numbers in the shape of a chunk."""
    like: Chunk = jax.tree.map(lambda ring: ring[0], state.replay.chunks)
    observation = jax.random.normal(key, like.observation.shape)
    return replace(
        like,
        observation=observation,
        next_observation=observation + 0.1,
        raw_action=jax.random.normal(key, like.raw_action.shape),
        discount=jnp.ones_like(like.discount),
        delta=jnp.full_like(like.delta, 0.5),
    )


def _alternate(*measured: Callable[[], Any]) -> list[float]:
    """Median seconds of each, taken in turns after one run of each that is not counted."""
    times: list[list[float]] = [[] for _ in measured]
    ready: Callable[[Any], Any] = jax.block_until_ready
    for round_ in range(_ROUNDS + 1):
        for run, taken in zip(measured, times, strict=True):
            started = time.perf_counter()
            ready(run())
            if round_:
                taken.append(time.perf_counter() - started)
    return [median(taken) for taken in times]
