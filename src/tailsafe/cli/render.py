"""`tailsafe render`: see the policy of a run at work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailsafe.cli.app import JsonFlag, app, console, emit_json


@app.command()
def render(
    run: Annotated[Path, typer.Argument(help="A run folder, or the folder or file of a saved policy.")],
    out: Annotated[
        Path | None, typer.Option(help="FILE.png (moments side by side), .gif or .mp4. Default: film.gif in the run.")
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, max=100, help="How many episodes to play.")] = 1,
    steps: Annotated[int | None, typer.Option(min=1, help="Stop an episode after this many steps.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of environments (never training's) and actions.")] = 0,
    deterministic: Annotated[bool, typer.Option("--deterministic", help="Play the likeliest actions.")] = False,
    size: Annotated[int, typer.Option(min=64, max=2048, help="Width and height of a frame in pixels.")] = 480,
    json: JsonFlag = False,
) -> None:
    """Play the policy in its navigation task (engine mujoco) and write a picture or a film; no display is needed."""
    from tailsafe.runs.policy import load_policy
    from tailsafe.viz.video import check_film, film

    target = out or (run if run.is_dir() else run.parent) / "film.gif"
    policy = load_policy(run)
    check_film(target)
    scenes = film(policy, target, episodes=episodes, steps=steps, seed=seed, deterministic=deterministic, size=size)
    last = {scene.episode: scene for scene in scenes}.values()
    played = [{"steps": s.step, "reward": s.reward, "costs": s.costs.tolist()} for s in last]
    if json:
        emit_json({"file": str(target), "frames": len(scenes), "episodes": played})
        return
    for scene in last:
        names = policy.description.task.cost_names
        costs = ", ".join(f"{name} {cost:g}" for name, cost in zip(names, scene.costs, strict=True))
        console().print(f"episode {scene.episode}: {scene.step} steps, reward {scene.reward:.4g}, cost {costs}")
    console().print(f"{'picture' if target.suffix.lower() == '.png' else 'film'}: {target}")
