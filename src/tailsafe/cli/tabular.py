"""`tailsafe tabular`: solve a finite problem exactly and certify the answer."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailsafe.cli.app import JsonFlag, app, console, emit_json
from tailsafe.errors import InputError

if TYPE_CHECKING:
    from rich.progress import TaskID

    from tailsafe.tabular import TabularSolution
    from tailsafe.tabular.rivals import Rival

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
    tolerance: Annotated[float, typer.Option(help="Relative gap to the optimum at which to stop.")] = 5e-4,
    max_betas: Annotated[int, typer.Option(help="Beyond this many dual variables, search a coarser grid.")] = 512,
    memory_limit: Annotated[float, typer.Option(help="GiB that the augmented states and tables may take.")] = 2.0,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also show what a limit on the mean, or on state-wise risk, would choose.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the run and the final cost distribution.")] = None,
    json: JsonFlag = False,
) -> None:
    """Find the best policy of a finite problem under risk limits, and prove how close to optimal it is.

    Exit code 1 if the problem is infeasible (the smallest reachable risk is named) or no feasible policy was found.
    """
    limits = [_limit(text) for text in limit]
    if plot is not None:
        from tailsafe.viz.figures import check_target

        check_target(plot)  # before the work, not after it
    from tailsafe.risk import parse_spectrum
    from tailsafe.tabular import FiniteCMDP, solve_tabular
    from tailsafe.tabular.augmented import GIB

    measures = [parse_spectrum(text) for text in risk]
    stated = FiniteCMDP.load(problem)
    with _ProgressBars(quiet=json) as progress:
        solution = solve_tabular(
            stated,
            measures,
            limits,
            cells=cells,
            iterations=iterations,
            tolerance=tolerance,
            max_betas=max_betas,
            memory_limit=memory_limit * GIB,
            progress=progress,
        )
    rivals = _rivals(solution) if compare else []
    if plot is not None and solution.learning is not None:
        from tailsafe.viz.tabular import draw_solution

        draw_solution(solution, plot, rivals)
    if json:
        emit_json(solution.to_json() | ({"rivals": [_rival_json(solution, r) for r in rivals]} if compare else {}))
    else:
        _print(solution, rivals, plot if solution.learning is not None else None)
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
        self._bars = Progress(*columns, console=err, disable=quiet or not err.is_terminal, transient=True)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> _ProgressBars:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def __call__(self, phase: str, done: int, total: int) -> None:
        if phase not in self._tasks:
            self._tasks[phase] = self._bars.add_task(PHASES[phase], total=total)
        self._bars.update(self._tasks[phase], completed=done)


def _rivals(solution: TabularSolution) -> list[Rival]:
    """The optima of simpler formulations, for a problem with one cost."""
    from tailsafe.tabular.rivals import best_for_state_wise_risk, best_for_the_mean

    statement = solution.statement
    if statement.problem.num_costs != 1:
        raise InputError(f"--compare is for problems with one cost; this one has {statement.problem.num_costs}")
    found = [
        best_for_the_mean(solution.mdp, statement.limits[0]),
        best_for_state_wise_risk(statement.problem, statement.spectra[0], statement.limits[0]),
    ]
    return [rival for rival in found if rival is not None]


def _rival_json(solution: TabularSolution, rival: Rival) -> dict[str, object]:
    risk = float(solution.statement.spectra[0].risk(rival.costs, rival.law))
    return {"name": rival.name, "reward": rival.reward, "risk": risk, "feasible": solution.statement.met_by([risk])}


def _print(solution: TabularSolution, rivals: list[Rival], plot: Path | None) -> None:
    from rich.table import Table

    out = console()
    certificate, statement = solution.certificate, solution.statement
    out.print(
        f"{solution.mdp.nodes} augmented states, {len(solution.betas)} dual variables "
        + ("(all that can be optimal)" if certificate.exhaustive else "(a coarse grid: the optimum is bracketed)")
    )
    table = Table("constraint", "risk measure", "limit", "risk", "verdict")
    for i, (measure, limit) in enumerate(zip(statement.measures, statement.limits, strict=True)):
        risk = solution.risks[i] if solution.risks else None
        if risk is not None:
            verdict = "[green]kept[/green]" if statement.keeps(i, risk) else "[red]broken[/red]"
            row = [f"{risk:.6g}", verdict]
        elif solution.smallest_risks:
            row = [f"at least {solution.smallest_risks[i]:.6g}", "-"]
        else:
            row = ["-", "-"]
        table.add_row(f"cost {i}", str(measure), f"{limit:.6g}", *row)
    out.print(table)
    for line in _verdict(solution):
        out.print(line)
    for rival in rivals:
        shown = _rival_json(solution, rival)
        verdict = "keeps it" if shown["feasible"] else "[red]breaks it[/red]"
        out.print(f"a {rival.name} would choose reward {rival.reward:.6g}, risk {shown['risk']:.6g}: {verdict}")
    if plot is not None:
        out.print(f"picture: {plot}")


def _verdict(solution: TabularSolution) -> list[str]:
    """The result in words."""
    if solution.smallest_risks is not None:
        proof = (
            "[red]infeasible[/red]: no policy keeps these limits"
            if solution.status == "infeasible"
            else "undecided: no feasible policy on this grid of dual variables; raise --max-betas"
        )
        reach = ", ".join(f"{r:.6g}" for r in solution.smallest_risks)
        return [f"{proof}. Smallest reachable risk, each cost by itself: {reach}"]
    assert solution.optimum is not None
    if solution.reward is None or solution.gap is None or solution.learning is None:
        return [f"unfinished: no feasible iterate yet (optimum {solution.optimum:.6g}); raise --iterations"]
    lines = [
        f"reward [bold]{solution.reward:.6g}[/bold], optimum {solution.optimum:.6g} by linear programming, "
        f"gap {solution.gap:.3g} ({solution.status})"
    ]
    if not solution.certificate.exhaustive:
        lines.append(f"no policy at all exceeds {solution.certificate.upper_bound:.6g}")
    beta = "; ".join(", ".join(f"{x:.6g}" for x in b) or "none" for b in solution.beta or [])
    lines.append(
        f"beta {beta}; the sampler has {100 * (solution.sampler_mass or 0):.1f} % of its mass on optimal ones "
        f"({solution.learning.iterations} iterations, {solution.seconds:.1f} s)"
    )
    approximate = [s.l1_error > 0 for s in solution.statement.spectra]
    if solution.best is not None and any(approximate):
        exact = ", ".join(f"{r:.6g}" for r in solution.best.spectrum_risks)
        lines.append(f"limits are on the step spectra; risks of the measures as given: {exact}")
    return lines
