"""`tailsafe certify`: is it proven that the policy of a run keeps the limits?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailsafe.cli.app import EnvArgs, EnvName, JsonFlag, TrustFlag, app, console, emit_json
from tailsafe.cli.bars import Bars
from tailsafe.errors import InputError
from tailsafe.files import check_writable
from tailsafe.terminal import escaped

if TYPE_CHECKING:
    from tailsafe.evaluation.certificate import Check
    from tailsafe.evaluation.search_outcome import Certificate, Finding

NOT_CERTIFIED = 1


@app.command()
def certify(
    run: Annotated[Path | None, typer.Argument(help="A run folder, a saved policy, or pretrained:NAME.")] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="LIMIT", help="Your limit: 0.025/step, 2.5/discounted or 25/episode; one for each cost."),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Probability that nothing is certified wrongly.")] = 0.95,
    episodes: Annotated[int, typer.Option(min=2, help="Play at most so many; fewer if they decide.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Of environments (never training's) and actions.")] = 0,
    backend: Annotated[str, typer.Option(help="Engine of the built-in tasks.")] = "auto",
    env: EnvName = None,
    env_arg: EnvArgs = None,
    trust: TrustFlag = False,
    check: Annotated[Path | None, typer.Option(help="Replay a certificate.json instead.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw how the bound came down to the limit.")] = None,
    json: JsonFlag = False,
) -> None:
    """Prove that the risk of a trained policy is below a limit, without assumptions on the distribution of its costs.

    Plays episodes until the proof is found or out of reach, and writes certificate.json into the run folder. An
    interrupted search resumes. Exit code 1 if nothing was certified, or if --check does not confirm.
    """
    from tailsafe.envs.finding import parse_arguments

    if (run is None) == (check is None):
        raise InputError("give either a run to certify or --check FILE")
    if plot is not None:
        from tailsafe.viz.figures import check_target

        check_target(plot)
    if check is not None:
        if plot is not None:
            raise InputError("--check draws nothing: give --plot when you certify")
        _check(check, backend, env, parse_arguments(env_arg or ()), trust, json)
        return
    assert run is not None
    if not limit:
        raise InputError("say which limit is to be certified, as in --limit 0.025/step")
    from tailsafe.evaluation.advice import after_search
    from tailsafe.evaluation.certificate import certify as search
    from tailsafe.evaluation.search_outcome import FILE_NAME
    from tailsafe.policies.policy import load_policy
    from tailsafe.policies.pretrained import own_copy
    from tailsafe.training.config import parse_limit

    run = own_copy(run)
    finite = load_policy(run).description.task.problem is not None
    stated = [parse_limit(text, "discounted" if finite else None) for text in limit]
    target = (run if run.is_dir() else run.parent) / FILE_NAME
    check_writable(target)
    with Bars(_title, quiet=json) as bar:
        certificate = search(
            run,
            [value for value, _ in stated],
            [unit for _, unit in stated],
            confidence=confidence,
            episodes=episodes,
            seed=seed,
            environment=env,
            env_args=parse_arguments(env_arg or ()),
            trust=trust,
            backend=backend,
            progress=bar,
        )
    if plot is not None:
        from tailsafe.viz.certificate import draw_certificate

        draw_certificate(certificate, plot)
    if json:
        emit_json(certificate.to_json())
    else:
        _print(certificate)
        console().print(f"certificate: {target}", markup=False)
        told = after_search(
            run,
            certificate.policy.task.name,
            certificate.policy.steps,
            [f"{value:g}/{unit}" for value, unit in zip(certificate.limits, certificate.units, strict=True)],
            certified=certificate.certified,
            above=certificate.above,
            episodes=certificate.wanted,
            options=certificate.played.options,
        )
        console().print(f"next: {told}", markup=False)
    if not certificate.certified:
        raise typer.Exit(NOT_CERTIFIED)


def _check(file: Path, backend: str, env: str | None, env_args: dict[str, Any], trust: bool, json: bool) -> None:
    from tailsafe.evaluation.certificate import check as replay

    with Bars(_title, quiet=json) as bar:
        result = replay(file, environment=env, env_args=env_args, trust=trust, backend=backend, progress=bar)
    if json:
        emit_json(result.to_json())
    else:
        _print_check(result, file)
    if not result.confirmed:
        raise typer.Exit(NOT_CERTIFIED)


def _print(certificate: Certificate) -> None:
    from rich.table import Table

    from tailsafe.evaluation.search_outcome import CERTIFIED

    out = console()
    described, shown = certificate.policy, certificate.shown
    trained = certificate.played.trained_in
    place = described.task.name if trained is None else f"{certificate.played.name} (trained in {trained})"
    out.print(f"{place}, {described.algorithm} after {described.steps} steps", markup=False)
    table = Table("cost", "risk measure", "limit", "risk", f"proven at {certificate.confidence:g}")
    for i, constraint in enumerate(described.constraints):
        limit = f"{certificate.limits[i]:g}/{certificate.units[i]}"
        kept = shown.uppers[i] <= certificate.limits[i]
        proven = f"[{'green' if kept else 'yellow'}]at most {shown.uppers[i]:.4g}[/]"
        risk = f"[bold]{shown.risks[i]:.4g}[/]"
        table.add_row(escaped(constraint.name), escaped(constraint.risk_measure), limit, risk, proven)
    out.print(table)
    spread = shown.reward_interval
    out.print(f"reward [bold]{shown.reward:.5g}[/bold] \\[{spread.low:.4g}, {spread.high:.4g}] per episode")
    if len(certificate.findings) > 1:
        for finding in certificate.findings:
            out.print(_line(finding), markup=False)
    if certificate.certified:
        out.print(
            f"[green]certified[/green] after {shown.proof.episodes} episodes: this policy keeps the limit in this "
            f"simulator, with confidence {certificate.confidence:g}"
        )
        if shown is not certificate.findings[0] and certificate.rule == "shares":
            out.print(f"not the last policy but {shown.candidate.name}, which is now in the run's folder {CERTIFIED}")
    else:
        out.print(f"[yellow]not certified[/yellow] after {shown.proof.episodes} episodes ({shown.proof.outcome})")
        out.print(certificate.advice)


def _line(finding: Finding) -> str:
    risks = ", ".join(f"{risk:.4g}" for risk in finding.risks)
    uppers = ", ".join(f"{upper:.4g}" for upper in finding.uppers)
    return f"{finding.candidate.name}: risk {risks}, at most {uppers}: {finding.proof.outcome}"


def _print_check(result: Check, file: Path) -> None:
    out = console()
    if not result.same_policy:
        out.print(f"{file}: is about another policy than the one beside it", markup=False)
        return
    assert result.replayed is not None
    _print(result.replayed)
    out.print("every number is as written" if result.identical else "the numbers differ from those written")
    out.print("[green]confirmed[/green]" if result.confirmed else "[red]not confirmed[/red]")


def _title(name: str) -> str:
    return f"episodes of {name}, at most"
