"""`tailsafe tabular`: solve a finite problem exactly and certify the answer."""

from __future__ import annotations

import math
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailsafe.cli.app import JsonFlag, app, console, emit_json
from tailsafe.errors import InputError
from tailsafe.files import check_writable, replacing

if TYPE_CHECKING:
    from rich.progress import TaskID

    from tailsafe.tabular import TabularSolution
    from tailsafe.tabular.rivals import Rival
    from tailsafe.tabular.solution import Statement

NOT_SOLVED = 1
PHASES = {"optimum": "optimum by linear programs", "policy": "learning policy and sampler"}


@app.command()
def tabular(
    problem: Annotated[
        Path, typer.Argument(help="PROBLEM.json: horizon, discount, initial, transitions, rewards, costs.")
    ],
    risk: Annotated[
        list[str], typer.Option(help="Risk measure, repeated in the order of the costs; one applies to all.")
    ],
    limit: Annotated[
        list[str], typer.Option(help="Limit on the risk of the discounted cost sum; repeats like --risk.")
    ],
    cells: Annotated[int, typer.Option(help="Levels of the step spectrum (CVaR needs 2 and is exact).")] = 3,
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
    with _ProgressBars(quiet=json) as progress:
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
    rivals, notes = _rivals(solution, memory_limit * GIB) if compare else ([], [])
    if plot is not None and solution.learning is not None:
        from tailsafe.viz.tabular import draw_solution

        draw_solution(solution, plot, rivals)
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
        emit_json(solution.to_json() | ({"rivals": [_rival_json(solution, r) for r in rivals]} if compare else {}))
    else:
        _print(solution, rivals)
        for note in notes:
            console().print(note)
    if not solution.feasible:
        raise typer.Exit(NOT_SOLVED)


def _limit(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(
            f"limit {text!r} is no number; for finite problems it bounds the discounted cost sum"
        ) from None
    if not math.isfinite(value):
        raise InputError(f"limit is {value}; it must be finite")
    return value


class _ProgressBars:
    """A rich progress bar on stderr behind the solver's callback; silent if asked, or if nobody watches."""

    def __init__(self, quiet: bool) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        err = console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._shown = err.is_terminal and not quiet
        self._bars = Progress(*columns, console=err, transient=True)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> _ProgressBars:
        if self._shown:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._bars.stop()

    def __call__(self, phase: str, done: int, total: int) -> None:
        if not self._shown:
            return
        if phase not in self._tasks:
            self._tasks[phase] = self._bars.add_task(PHASES[phase], total=total)
        self._bars.update(self._tasks[phase], completed=done)


def _rivals(solution: TabularSolution, memory_limit: float) -> tuple[list[Rival], list[str]]:
    """The optima of simpler formulations, for a problem with one cost, and what was skipped."""
    from tailsafe.tabular.rivals import best_for_state_wise_risk, best_for_the_mean

    statement = solution.statement
    found = [best_for_the_mean(solution.mdp, statement.limits[0])]
    notes = []
    try:
        found.append(
            best_for_state_wise_risk(statement.problem, statement.spectra[0], statement.limits[0], memory_limit)
        )
    except InputError as error:
        notes.append(f"comparison skipped: {error}")
    return [rival for rival in found if rival is not None], notes


def _rival_json(solution: TabularSolution, rival: Rival) -> dict[str, object]:
    risk = float(solution.statement.spectra[0].risk(rival.costs, rival.law))
    return {"name": rival.name, "reward": rival.reward, "risk": risk, "feasible": solution.statement.met_by([risk])}


def _print(solution: TabularSolution, rivals: list[Rival]) -> None:
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
    for rival in rivals:
        shown = _rival_json(solution, rival)
        verdict = "keeps it" if shown["feasible"] else "[red]breaks it[/red]"
        out.print(f"a {rival.name} would choose reward {rival.reward:.6g}, risk {shown['risk']:.6g}: {verdict}")


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
