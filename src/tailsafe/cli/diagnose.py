"""`tailsafe diagnose`: where does learning stand, and what would help?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailsafe.cli.app import MOST_EPISODES, EnvArgs, EnvName, JsonFlag, TrustFlag, app, console, emit_json
from tailsafe.terminal import escaped

if TYPE_CHECKING:
    from tailsafe.training.diagnosis import Diagnosis


@app.command()
def diagnose(
    run: Annotated[Path, typer.Argument(help="The folder of a run, finished or stopped.")],
    rollouts: Annotated[
        int, typer.Option(min=2, max=10_000, help="Independent chunks to collect, policy held still.")
    ] = 16,
    episodes: Annotated[
        int, typer.Option(min=2, max=MOST_EPISODES, help="Whole episodes to play for the truth.")
    ] = 200,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Of everything random here.")] = 0,
    env: EnvName = None,
    env_arg: EnvArgs = None,
    trust: TrustFlag = False,
    plot: Annotated[Path | None, typer.Option(help="Picture (default: diagnosis.png in the run).")] = None,
    json: JsonFlag = False,
) -> None:
    """Signal to noise of the gradients, bias and noise of the risk estimates, calibration of the critics.

    Loads the newest checkpoint, collects fresh rollouts with the policy held still, and says what to change. Writes
    diagnosis.json and diagnosis.png into the run folder; the run itself stays as it is.
    """
    import importlib.util

    from tailsafe.envs.finding import parse_arguments
    from tailsafe.files import check_writable, write_json
    from tailsafe.training.diagnosis import FILE_NAME, PICTURE_NAME
    from tailsafe.training.diagnosis import diagnose as measure
    from tailsafe.training.train import quiet_stdout

    drawable = plot is not None or importlib.util.find_spec("matplotlib") is not None
    if plot is not None:
        from tailsafe.viz.figures import check_target

        check_target(plot)
    check_writable(run / FILE_NAME)
    with quiet_stdout():
        arguments = parse_arguments(env_arg or ())
        found = measure(run, rollouts=rollouts, episodes=episodes, seed=seed, task=env, env_args=arguments, trust=trust)
    write_json(run / FILE_NAME, found.to_json())
    picture = plot or run / PICTURE_NAME
    if drawable:
        from tailsafe.viz.diagnosis import draw_diagnosis

        draw_diagnosis(found, picture)
    if json:
        emit_json(found.to_json())
        return
    _print(found)
    if drawable:
        console().print(f"picture: {picture}", markup=False)


def _print(found: Diagnosis) -> None:
    from rich.table import Table

    out = console()
    out.print(f"{found.run} at {found.steps:,} steps, policy held still", markup=False)
    gradients = Table(title=f"gradients: agreement of the two halves of an update's {found.signals[0].rows:,} rows")
    for column in ("of", "cosine", "rows for a cosine of 0.5"):
        gradients.add_column(column)
    for signal in found.signals:
        needed = "no signal found" if signal.needed is None else f"{signal.needed:,}"
        gradients.add_row(escaped(signal.name), f"{signal.cosine:.2f}", needed)
    out.print(gradients)
    risks = Table(title=f"risk at the current beta: the learner's estimate against {found.episodes} episodes")
    for column in ("cost", "estimate", "std", "episodes", "bias", "target"):
        risks.add_column(column)
    for each in found.estimates:
        numbers = (each.mean, each.std, each.seen, each.bias, each.target)
        risks.add_row(escaped(each.name), *(f"{number:.3g}" for number in numbers))
    out.print(risks)
    quantiles = Table(title="discounted sums: quantiles by the critics, and of the episodes")
    quantiles.add_column("of")
    for level in found.calibrations[0].levels:
        quantiles.add_column(f"{level:g}")
    for critic in found.calibrations:
        pairs = zip(critic.predicted, critic.seen, strict=True)
        quantiles.add_row(escaped(critic.name), *(f"{predicted:.3g} | {seen:.3g}" for predicted, seen in pairs))
    out.print(quantiles)
    for beta in found.betas:
        out.print(f"beta of {escaped(beta.name)}: {beta.value:.3g}; the quantile it should follow: {beta.quantile:.3g}")
    if found.violated is not None:
        out.print(f"updates that found a limit exceeded, lately: {found.violated:.0%}")
    for advice in found.advice():
        out.print(f"- {advice}", markup=False)
    if not found.advice():
        out.print("nothing stands out")
