"""`tailsafe front`: which limit should I choose? Reward against risk."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailsafe.cli.app import MOST_EPISODES, EnvArgs, EnvName, JsonFlag, TrustFlag, app, console, emit_json
from tailsafe.cli.evaluate import EpisodeBar
from tailsafe.errors import InputError
from tailsafe.extras import install_hint
from tailsafe.files import check_writable
from tailsafe.terminal import escaped

if TYPE_CHECKING:
    from tailsafe.evaluation.front import Front


@app.command()
def front(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders of one task.")],
    points: Annotated[int, typer.Option(min=1, help="Limits to ask a policy for that was trained for a range.")] = 8,
    episodes: Annotated[int, typer.Option(min=2, max=MOST_EPISODES, help="Fresh episodes for each point.")] = 500,
    seed: Annotated[
        int, typer.Option(min=0, max=2**31 - 1, help="Of environments (never training's) and actions.")
    ] = 0,
    confidence: Annotated[float, typer.Option(help="Probability that an interval holds.")] = 0.95,
    backend: Annotated[str, typer.Option(help="Engine of the built-in tasks.")] = "auto",
    env: EnvName = None,
    env_arg: EnvArgs = None,
    trust: TrustFlag = False,
    out: Annotated[
        Path | None, typer.Option(help="The picture; front.json is beside it (default: in the run, or here).")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Reward against risk with bounds, over the limits that were trained for.

    A run for one limit is one point: give several. Writes front.json and a picture.
    """
    from tailsafe.envs.finding import parse_arguments
    from tailsafe.evaluation.front import FILE_NAME
    from tailsafe.evaluation.front import front as evaluate_all
    from tailsafe.policies.pretrained import own_copy

    drawable = importlib.util.find_spec("matplotlib") is not None
    if out is not None:
        from tailsafe.viz.figures import check_target

        check_target(out)
    runs = [own_copy(run) for run in runs]
    for run in runs:
        if not run.exists():
            raise InputError(f"{run}: no such run")
    target = out or (runs[0] if len(runs) == 1 and runs[0].is_dir() else Path()) / "front.png"
    check_writable(target.parent / FILE_NAME)
    with EpisodeBar(quiet=json, total=episodes) as bar:
        found = evaluate_all(
            runs,
            points,
            episodes,
            seed,
            confidence=confidence,
            environment=env,
            env_args=parse_arguments(env_arg or ()),
            trust=trust,
            backend=backend,
            progress=lambda _, done, total: bar(done, total),
        )
    report = found.to_json()
    found.save(target.parent / FILE_NAME)
    if drawable:
        from tailsafe.viz.front import draw_front

        draw_front(report["points"], list(found.costs), target, report["points"][0]["unit"])
    if json:
        emit_json(report)
        return
    _print(found)
    console().print(f"points: {target.parent / FILE_NAME}", markup=False)
    console().print(
        f"picture: {target}" if drawable else f"no picture: it needs matplotlib ({install_hint('plot')})",
        markup=False,
    )


def _print(found: Front) -> None:
    from rich.table import Table

    played = found.points[0].evaluation.played
    if played.trained_in is not None:
        console().print(f"played in {played.name}; trained in {played.trained_in}", markup=False)
    table = Table("run", "limit", "reward", *(f"risk of {escaped(name)}" for name in found.costs))
    for point in found.points:
        reward = point.evaluation.reward
        reports = point.evaluation.constraints
        limits = ", ".join(f"{report.description.limit:g}/{report.description.unit}" for report in reports)
        risks = [f"{r.risk:.4g} \\[{r.free.low:.4g}, {r.free.high:.4g}]" for r in reports]
        table.add_row(
            escaped(str(point.run)),
            limits,
            f"{reward.mean:.5g} \\[{reward.student.low:.4g}, {reward.student.high:.4g}]",
            *risks,
        )
    console().print(table)
