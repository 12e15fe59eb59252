"""`tailsafe render`: see the policy of a run at work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tailsafe.cli.app import EnvArgs, EnvName, JsonFlag, TrustFlag, app, console, emit_json
from tailsafe.errors import InputError


@app.command()
def render(
    run: Annotated[Path, typer.Argument(help="A run folder, a saved policy, or pretrained:NAME.")],
    out: Annotated[
        Path | None, typer.Option(help="FILE.png (moments side by side), .gif or .mp4. Default: video.gif in the run.")
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, max=100, help="How many episodes to play.")] = 1,
    steps: Annotated[int | None, typer.Option(min=1, help="Stop an episode after this many steps.")] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**31 - 1, help="Of environments (never training's) and actions.")
    ] = 0,
    deterministic: Annotated[bool, typer.Option("--deterministic", help="Play the likeliest actions.")] = False,
    size: Annotated[int, typer.Option(min=64, max=2048, help="Width and height of a frame in pixels.")] = 480,
    map: Annotated[
        bool,
        typer.Option(
            "--map", help="Draw trajectories from above instead (.png, .svg, .pdf); needs no graphics library."
        ),
    ] = False,
    env: EnvName = None,
    env_arg: EnvArgs = None,
    trust: TrustFlag = False,
    json: JsonFlag = False,
) -> None:
    """Play the policy in its task (engine mujoco) and write a picture or a video; no display is needed.

    An environment of your own draws itself, with render_mode="rgb_array" and in its own size.
    """
    from tailsafe.envs.finding import parse_arguments
    from tailsafe.policies.policy import load_policy
    from tailsafe.policies.pretrained import own_copy

    run = own_copy(run)
    target = out or (run if run.is_dir() else run.parent) / ("paths.png" if map else "video.gif")
    policy = load_policy(run)
    if map:
        if env is not None or env_arg:
            raise InputError("--map draws built-in tasks; leave --env and --env-arg out")
        from tailsafe.viz.paths import draw_paths

        last: list[Any] = draw_paths(
            policy, target, episodes=episodes, steps=steps, seed=seed, deterministic=deterministic
        )
        frames = len(last)
    else:
        from tailsafe.viz.video import render_video

        scenes = render_video(
            policy,
            target,
            episodes=episodes,
            steps=steps,
            seed=seed,
            deterministic=deterministic,
            size=size,
            environment=env,
            env_args=parse_arguments(env_arg or ()),
            trust=trust,
        )
        last = list({scene.episode: scene for scene in scenes}.values())
        frames = len(scenes)
    played = [{"steps": s.step, "reward": s.reward, "costs": s.costs.tolist()} for s in last]
    if json:
        emit_json({"file": str(target), "frames": frames, "episodes": played})
        return
    for scene in last:
        names = policy.description.task.cost_names
        costs = ", ".join(f"{name} {cost:g}" for name, cost in zip(names, scene.costs, strict=True))
        console().print(
            f"episode {scene.episode}: {scene.step} steps, reward {scene.reward:.4g}, cost {costs}", markup=False
        )
    console().print(f"{'video' if target.suffix.lower() in ('.gif', '.mp4') else 'picture'}: {target}", markup=False)
