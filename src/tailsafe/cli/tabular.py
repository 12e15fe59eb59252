"""`tailsafe tabular`: solve a finite problem exactly and certify the answer."""

from __future__ import annotations

import math
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailsafe.cli.app import MOST_CELLS, JsonFlag, app, console, emit_json
from tailsafe.cli.bars import Bars
from tailsafe.errors import InputError
from tailsafe.files import check_writable, replacing

if TYPE_CHECKING:
    from tailsafe.tabular import TabularSolution
    from tailsafe.tabular.baselines import Baseline
    from tailsafe.tabular.solution import Statement

NOT_SOLVED = 1
PHASES = {"optimum": "optimum by linear programs", "policy": "learning policy and sampler", "front": "limits"}


@app.command()
def tabular(
    problem: Annotated[
        Path, typer.Argument(help="PROBLEM.json: horizon, discount, initial, transitions, rewards, costs.")
    ],
    risk: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SPEC",
            help="Risk measure, repeated in the order of the costs; one applies to all. --front: cvar:0.75.",
        ),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="D", help="Limit on the risk of the discounted cost sum; repeats like --risk. --front: LOW..HIGH."
        ),
    ] = None,
    front: Annotated[
        int | None, typer.Option(min=2, help="Instead: the best reward at so many limits, by linear programs.")
    ] = None,
    cells: Annotated[
        int, typer.Option(max=MOST_CELLS, help="Levels of the step spectrum (CVaR needs 2 and is exact).")
    ] = 3,
    iterations: Annotated[int, typer.Option(help="Most iterations; fewer if the certified gap closes.")] = 20_000,
    strategy: Annotated[
        str, typer.Option(help="How gradients are weighed: proposed, sdac, cpo, pcpo, crpo, p3o or ipo.")
    ] = "proposed",
    tolerance: Annotated[float, typer.Option(help="Relative gap to the optimum at which to stop.")] = 5e-4,
    max_betas: Annotated[int, typer.Option(help="Beyond this many dual variables, search a coarser grid.")] = 512,
    memory_limit: Annotated[float, typer.Option(help="GiB that the augmented states and tables may take.")] = 2.0,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also show what a limit on the mean, or on state-wise risk, would choose.")
    ] = False,
    policy: Annotated[
        Path | None, typer.Option(help="Write the policy (.json): action probabilities by step, state and cost so far.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the run and the final cost distribution.")] = None,
    json: JsonFlag = False,
) -> None:
    """Find the best policy of a finite problem under risk limits, and prove how close to optimal it is.

    Exit code 1 if the problem is infeasible (the smallest reachable risk is named) or no feasible policy was found.
    """
    if front is not None:
        _front(problem, risk, limit, front, cells, max_betas, memory_limit, plot, json)
        return
    if not risk or not limit:
        raise InputError(f"missing option {'--limit' if risk else '--risk'}; only --front can do without")
    limits = [_limit(text) for text in limit]
    # What could not be written, or compared, is refused before the work.
    if policy is not None:
        check_writable(policy)
    if plot is not None:
        from tailsafe.viz.figures import check_target

        check_target(plot)
    from tailsafe.risk import parse_spectrum
    from tailsafe.tabular import FiniteCMDP, solve_tabular
    from tailsafe.tabular import srcpo as method
    from tailsafe.tabular.augmented import GIB

    measures = [parse_spectrum(text) for text in risk]
    stated = FiniteCMDP.load(problem)
    if compare and stated.num_costs != 1:
        raise InputError(f"--compare is for problems with one cost; this one has {stated.num_costs}")
    with Bars(PHASES.__getitem__, quiet=json) as progress:
        solution = solve_tabular(
            stated,
            measures,
            limits,
            cells=cells,
            iterations=iterations,
            tolerance=tolerance,
            settings=method.Settings(strategy=strategy),  # type: ignore[arg-type]
            max_betas=max_betas,
            memory_limit=memory_limit * GIB,
            progress=progress,
        )
    baselines, notes = _baselines(solution, memory_limit * GIB) if compare else ([], [])
    if plot is not None and solution.learning is not None:
        from tailsafe.viz.tabular import draw_solution

        draw_solution(solution, plot, baselines)
        notes.append(f"picture: {plot}")
    elif plot is not None:
        notes.append("no picture written: nothing was learned")
    if policy is not None and solution.policy is not None:
        with replacing(policy) as partial:
            partial.write_text(dumps({"steps": solution.policy_json()}, allow_nan=False) + "\n", encoding="utf-8")
        notes.append(f"policy: {policy}")
    elif policy is not None:
        notes.append("no policy written: no feasible one was found")
    if json:
        emit_json(
            solution.to_json() | ({"rivals": [_baseline_json(solution, r) for r in baselines]} if compare else {})
        )
    else:
        _print(solution, baselines)
        for note in notes:
            console().print(note)
    if not solution.feasible:
        raise typer.Exit(NOT_SOLVED)


def _front(
    problem: Path,
    risk: list[str] | None,
    limit: list[str] | None,
    points: int,
    cells: int,
    max_betas: int,
    memory_limit: float,
    plot: Path | None,
    json: bool,
) -> None:
    """The exact front: printed, or as JSON, or drawn."""
    if plot is not None:
        from tailsafe.viz.figures import check_target

        check_target(plot)
    from rich.table import Table

    from tailsafe.risk import CVaR, parse_spectrum
    from tailsafe.tabular import FiniteCMDP
    from tailsafe.tabular.augmented import GIB
    from tailsafe.tabular.front import exact_front

    measures = [parse_spectrum(text) for text in risk] if risk else [CVaR(0.75)]
    stated = FiniteCMDP.load(problem)
    with Bars(PHASES.__getitem__, quiet=json) as progress:
        found = exact_front(
            stated,
            measures if len(measures) > 1 else measures[0],
            points,
            _ranges(limit, stated.num_costs) if limit else None,
            cells=cells,
            max_betas=max_betas,
            memory_limit=memory_limit * GIB,
            progress=lambda done, total: progress("front", done, total),
        )
    report = found.to_json()
    if plot is not None:
        from tailsafe.viz.front import draw_front

        names = ["the cost"] if stated.num_costs == 1 else [f"cost {i}" for i in range(stated.num_costs)]
        draw_front(report["points"], [f"{name} ({m})" for name, m in zip(names, found.measures, strict=True)], plot)
    if json:
        emit_json(report)
        return
    table = Table("limit", "best reward", "its risk")
    for point in found.points:
        reward = "no policy" if point.reward is None else f"[bold]{point.reward:.6g}[/]"
        shown = (", ".join(f"{x:.6g}" for x in row) for row in (point.limits, point.risks))
        first, last = shown
        table.add_row(first, reward, last)
    console().print(table)
    if not found.exhaustive:
        console().print("dual variables were searched on a grid: raise --max-betas for the exact optimum")
    if plot is not None:
        console().print(f"picture: {plot}", markup=False)


def _ranges(texts: list[str], costs: int) -> tuple[list[float], list[float]]:
    """`LOW..HIGH` for each cost, or one for all -> lowest and highest limits."""
    pairs = [text.split("..") for text in texts]
    if any(len(pair) != 2 for pair in pairs) or len(pairs) not in (1, costs):
        raise InputError(f"with --front, --limit is LOW..HIGH, once or for each of the {costs} costs; or leave it out")
    ends = [(_limit(low), _limit(high)) for low, high in pairs] * (costs if len(pairs) == 1 else 1)
    if any(low > high for low, high in ends):
        raise InputError("--limit LOW..HIGH: the first number must not be above the second")
    return [low for low, _ in ends], [high for _, high in ends]


def _limit(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(
            f"limit {text!r} is not a number; for finite problems it bounds the discounted cost sum"
        ) from None
    if not math.isfinite(value):
        raise InputError(f"limit is {value}; it must be finite")
    return value


def _baselines(solution: TabularSolution, memory_limit: float) -> tuple[list[Baseline], list[str]]:
    """The optima of simpler formulations, for a problem with one cost, and what was skipped."""
    from tailsafe.tabular.baselines import best_for_state_wise_risk, best_for_the_mean

    statement = solution.statement
    found = [best_for_the_mean(solution.mdp, statement.limits[0])]
    notes = []
    try:
        found.append(
            best_for_state_wise_risk(statement.problem, statement.spectra[0], statement.limits[0], memory_limit)
        )
    except InputError as error:
        notes.append(f"comparison skipped: {error}")
    return [baseline for baseline in found if baseline is not None], notes


def _baseline_json(solution: TabularSolution, baseline: Baseline) -> dict[str, object]:
    risk = float(solution.statement.spectra[0].risk(baseline.costs, baseline.distribution))
    return {
        "name": baseline.name,
        "reward": baseline.reward,
        "risk": risk,
        "feasible": solution.statement.met_by([risk]),
    }


def _print(solution: TabularSolution, baselines: list[Baseline]) -> None:
    from rich.table import Table

    out = console()
    statement = solution.statement
    out.print(
        f"{solution.mdp.nodes} augmented states, {len(solution.betas)} dual variables "
        + ("(all that can be optimal)" if solution.certificate.exhaustive else "(a grid: too many to try them all)")
    )
    table = Table("constraint", "risk measure", "limit", "risk", "verdict")
    for i, (measure, steps) in enumerate(zip(statement.measures, statement.spectra, strict=True)):
        name = str(measure) if steps.l1_error == 0 else f"{measure} in {steps.cells} steps"
        limit = f"{statement.limits[i]:.6g}"
        table.add_row(f"cost {i}", name, limit, *_risk_cells(solution, i))
        if solution.best is not None and steps.l1_error > 0:
            exact = solution.best.spectrum_risks[i]
            table.add_row("", f"{measure} itself", limit, f"{exact:.6g}", _kept(statement, i, exact))
    out.print(table)
    for line in _verdict(solution):
        out.print(line)
    for baseline in baselines:
        shown = _baseline_json(solution, baseline)
        verdict = "keeps it" if shown["feasible"] else "[red]breaks it[/red]"
        out.print(f"a {baseline.name} would choose reward {baseline.reward:.6g}, risk {shown['risk']:.6g}: {verdict}")


def _kept(statement: Statement, cost: int, risk: float) -> str:
    return "[green]kept[/green]" if statement.keeps(cost, risk) else "[red]broken[/red]"


def _risk_cells(solution: TabularSolution, cost: int) -> list[str]:
    """Risk and verdict of one constraint."""
    if solution.risks is not None:
        return [f"{solution.risks[cost]:.6g}", _kept(solution.statement, cost, solution.risks[cost])]
    if solution.smallest_risks is not None:
        return [f"at least {solution.smallest_risks[cost].bound:.6g}", "-"]
    return ["-", "-"]


def _verdict(solution: TabularSolution) -> list[str]:
    """The result in words."""
    certificate = solution.certificate
    if solution.smallest_risks is not None:
        outcome = {
            "infeasible": "[red]infeasible[/red]: no policy keeps these limits",
            "undecided": "undecided: no feasible policy on this grid of dual variables; raise --max-betas",
            "unfinished": f"unfinished: no feasible iterate yet (optimum {solution.optimum}); raise --iterations, "
            "or widen a limit that leaves no room",
        }[solution.status]
        reach = ", ".join(f"{s.value:.6g}" for s in solution.smallest_risks)
        return [f"{outcome}. Smallest reachable risk, each cost by itself: {reach}"]
    assert solution.best is not None
    assert solution.learning is not None
    found = "optimum" if certificate.exhaustive else "best on this grid"
    lines = [
        f"reward [bold]{solution.reward:.6g}[/bold], {found} {solution.optimum:.6g} by linear programming, "
        f"gap {solution.gap:.3g} ({solution.status})"
    ]
    if not certificate.exhaustive:
        hint = "" if solution.status == "optimal" else "; raise --max-betas to close the bracket"
        lines.append(f"no policy at all exceeds {certificate.upper_bound:.6g}{hint}")
    beta = "; ".join(", ".join(f"{x:.6g}" for x in b) or "none" for b in solution.beta or [])
    lines.append(
        f"beta {beta}; the sampler has {100 * (solution.sampler_mass or 0):.1f} % of its mass on the best ones "
        f"({solution.learning.iterations} iterations, {solution.seconds:.1f} s)"
    )
    if solution.feasible and not solution.feasible_as_given:
        lines.append(
            "[yellow]The limits hold for the step spectra, which the problem was solved for, but not for the measure "
            "itself: raise --cells or lower --limit[/yellow]"
        )
    return lines
