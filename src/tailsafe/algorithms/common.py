"""Parts of an update that algorithms share, on their states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jaxtyping import Array, Float, PRNGKeyArray

from tailsafe.algorithms.learner import Metrics
from tailsafe.algorithms.state import PRECISIONS, TraceConfig, TraceSettings
from tailsafe.learning.actor_critic import ActorCritic
from tailsafe.learning.chunks import Chunk
from tailsafe.learning.critics import critic_optimizer, fit_critics, shuffled


def remember(state: Any, chunk: Chunk, *, normalize: bool) -> Any:
    """The state with a new chunk in its memory and in its normaliser."""
    normalizer = state.normalizer.update(chunk.observation) if normalize else state.normalizer
    return replace(state, replay=state.replay.add(chunk), normalizer=normalizer)


def learn_critics(
    networks: ActorCritic,
    state: Any,
    settings: TraceSettings,
    config: TraceConfig,
    segments: Chunk,
    targets: Float[Array, "S T B K"],
    key: PRNGKeyArray,
) -> tuple[Any, Metrics]:
    """The state after quantile regression of the critics on the targets of these steps."""
    inputs, wanted = shuffled(networks.inputs_of_steps(segments), targets, config.critic_minibatches, key)
    critics, optimizer, losses = fit_critics(
        state.critics,
        state.critic_optimizer,
        critic_optimizer(config.critic_clip),
        inputs,
        wanted,
        networks.largest_return,
        settings.critic_rate * settings.slowing(state.updates),
        config.critic_iterations,
        config.critic_minibatches,
        PRECISIONS[config.precision].critics,
    )
    metrics = {"reward_critic_loss": losses[0]} | ({"cost_critic_loss": losses[1:]} if losses.shape[0] > 1 else {})
    return replace(state, critics=critics, critic_optimizer=optimizer), metrics
