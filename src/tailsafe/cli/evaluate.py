"""`tailsafe evaluate`: how good and how safe is the policy of a run?"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from tailsafe.cli.app import MOST_EPISODES, EnvArgs, EnvName, JsonFlag, TrustFlag, app, console, emit_json
from tailsafe.errors import InputError
from tailsafe.extras import install_hint
from tailsafe.files import check_writable
from tailsafe.terminal import escaped

if TYPE_CHECKING:
    from tailsafe.evaluation.bounds import Interval
    from tailsafe.evaluation.constraint_report import ConstraintReport
    from tailsafe.evaluation.report import Evaluation
    from tailsafe.policies.metadata import PolicyDescription

COLOURS = {"met": "green", "met (bootstrap, no guarantee)": "cyan", "violated": "red", "cannot tell": "yellow"}


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder, a saved policy, or pretrained:NAME.")],
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIMIT", help="Ask a policy for a range of limits for this one, as 0.02/step; one for each cost."
        ),
    ] = None,
    episodes: Annotated[int, typer.Option(min=2, max=MOST_EPISODES, help="Fresh episodes to play.")] = 500,
    seed: Annotated[
        int, typer.Option(min=0, max=2**31 - 1, help="Of environments (never training's) and actions.")
    ] = 0,
    confidence: Annotated[float, typer.Option(help="Probability that an interval holds.")] = 0.95,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Play the likeliest actions; the limits are on the random policy.")
    ] = False,
    interval: Annotated[
        str, typer.Option(help="Which bounds decide: distribution-free (no assumption) or bootstrap (narrower).")
    ] = "distribution-free",
    backend: Annotated[str, typer.Option(help="Engine of the built-in tasks: auto, mujoco, warp or mjx.")] = "auto",
    env: EnvName = None,
    env_arg: EnvArgs = None,
    trust: TrustFlag = False,
    plot: Annotated[Path | None, typer.Option(help="Where to draw (default: evaluation.png in the run).")] = None,
    json: JsonFlag = False,
) -> None:
    """Reward, cost rate and each risk of a trained policy with confidence bounds, and a verdict per constraint.

    Writes evaluation.json, episodes.csv (reward, length and costs of every episode) and evaluation.png into the run
    folder. A folder with several seeds gives a report for each; their JSON is then a list under "runs".
    """
    if plot is not None:
        from tailsafe.viz.figures import check_target

        check_target(plot)
    from tailsafe.envs.finding import parse_arguments
    from tailsafe.evaluation.episodes import TABLE_NAME
    from tailsafe.evaluation.report import FILE_NAME
    from tailsafe.evaluation.verdict import evaluate as play_and_judge
    from tailsafe.policies.policy import load_policy, policy_folders
    from tailsafe.policies.pretrained import own_copy
    from tailsafe.training.versions import warn_of_differences

    folders = _healthy(policy_folders(own_copy(run)))
    if plot is not None and len(folders) > 1:
        raise InputError(f"{run} holds {len(folders)} runs, which one picture cannot show: evaluate one without --plot")
    policies = [load_policy(folder) for folder in folders]
    wanted = [requested(policy.description, limit) for policy in policies]
    for folder in folders:
        check_writable(folder / FILE_NAME)
        check_writable(folder / TABLE_NAME)
    for folder in folders:
        warn_of_differences(folder / "config.json")
    reports = []
    for folder, policy, asked in zip(folders, policies, wanted, strict=True):
        with EpisodeBar(quiet=json, total=episodes) as progress:
            result = play_and_judge(
                policy,
                episodes,
                seed,
                limit=asked,
                confidence=confidence,
                deterministic=deterministic,
                interval=cast(Literal["distribution-free", "bootstrap"], interval),
                environment=env,
                env_args=parse_arguments(env_arg or ()),
                trust=trust,
                backend=backend,
                progress=progress,
            )
        result = replace(result, folder=folder)
        told = result.keep(folder)
        if told is not None:
            console(stderr=True).print(told, markup=False)
        reports.append({"run": str(folder)} | result.to_json())
        picture = _draw(result, plot, folder / "evaluation.png")
        if not json:
            _print(result)
            console().print(f"report: {folder / FILE_NAME}", markup=False)
            console().print(picture, markup=False)
            console().print(f"next: {result.next_step}", markup=False)
    if json:
        emit_json(reports[0] if len(reports) == 1 else {"runs": reports})


def requested(described: PolicyDescription, texts: list[str] | None) -> list[float] | None:
    """The limits of --limit in the units of training; None without any. An `InputError` outside of the range."""
    if not texts:
        return None
    from tailsafe.training.config import parse_limit

    stated = [parse_limit(text, described.constraints[0].unit) for text in texts]
    costs = len(described.constraints)
    if len(stated) not in (1, costs):
        raise InputError(f"{len(stated)} limits for {costs} costs ({', '.join(described.task.cost_names)})")
    wanted = [described.in_own_unit(i, *stated[i % len(stated)]) for i in range(costs)]
    described.asked(wanted)
    return wanted


def _healthy(folders: list[Path]) -> list[Path]:
    """Of several seeds, those that were trained to the end; the others are named."""
    from tailsafe.training.failures import FAILED

    given_up = [folder for folder in folders if (folder / FAILED).exists()]
    if len(folders) == 1 or not given_up:
        return folders
    for folder in given_up:
        console(stderr=True).print(f"{folder}: was given up in training ({FAILED}), left out", markup=False)
    if len(given_up) == len(folders):
        raise InputError("all of these runs were given up in training; name one of them to evaluate it all the same")
    return [folder for folder in folders if folder not in given_up]


def _draw(result: Evaluation, wanted: Path | None, default: Path) -> str:
    """Draw if that is possible here; says where, or why not."""
    if wanted is None and importlib.util.find_spec("matplotlib") is None:
        return f"no picture: it needs matplotlib ({install_hint('plot')})"
    from tailsafe.viz.run import draw_evaluation

    draw_evaluation(result, wanted or default)
    return f"picture: {wanted or default}"


class EpisodeBar:
    """A bar of finished episodes on stderr; silent if asked, or if nobody watches."""

    def __init__(self, quiet: bool, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        err = console(stderr=True)
        self._shown = err.is_terminal and not quiet
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=err, transient=True)
        self._task = self._bar.add_task("episodes", total=total)

    def __enter__(self) -> EpisodeBar:
        if self._shown:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)


def _print(result: Evaluation) -> None:
    from rich.markup import escape
    from rich.table import Table

    out = console()
    described, reward = result.policy, result.reward
    kind = "its likeliest actions" if result.deterministic else "actions drawn from the policy"
    out.print(
        f"{escaped(result.where)}, {escaped(described.algorithm)} after {described.steps} steps: "
        f"{len(result.episodes)} fresh episodes with {kind}, bounds at confidence {result.confidence:g}"
    )
    out.print(f"reward [bold]{reward.mean:.5g}[/bold] {_range(reward.student)} per episode")
    for name, measured in result.metrics.items():
        out.print(escape(f"{name} {measured.mean:.5g} ") + f"{_range(measured.student)} per episode")
    # One column per constraint: bounds side by side would not fit into a terminal.
    table = Table("constraint", *(escaped(report.description.name) for report in result.constraints))
    for name, cell in _ROWS.items():
        table.add_row(name, *(cell(report) for report in result.constraints))
    out.print(table)
    for report in result.constraints:
        if report.verdict != "cannot tell" or result.exact is not None:
            continue
        if math.isinf(report.largest_return):
            out.print(
                f"{escaped(report.description.name)}: no upper bound, since the environment does not say what a step "
                "can cost at most: give it an attribute largest_costs"
            )
        elif report.episodes_needed is not None and report.decided_by == "distribution-free":
            out.print(
                f"{escaped(report.description.name)}: about {report.episodes_needed} episodes would confirm the limit "
                f"whatever the distribution of the costs (--episodes {report.episodes_needed})"
            )
    for exact in result.exact_front or ([] if result.exact is None else [result.exact]):
        kept = "[green]kept[/]" if exact.feasible else "[red]broken[/]"
        risks = ", ".join(f"{risk:.6g}" for risk in exact.risks)
        limits = ", ".join(f"{limit:g}" for limit in exact.limits)
        best = "no policy keeps the limits" if exact.optimum is None else f"optimum {exact.optimum:.6g}"
        gap = "" if exact.gap is None else f", gap {exact.gap:.3g}"
        out.print(f"without sampling: reward [bold]{exact.reward:.6g}[/bold] (discounted), {best}{gap}")
        out.print(f"without sampling: risk {risks}, limit {limits}: {kept}")


def _range(interval: Interval) -> str:
    high = f"{interval.high:.4g}]" if math.isfinite(interval.high) else "∞)"
    # The first bracket is escaped: rich would read it as markup.
    return f"\\[{interval.low:.4g}, {high}"


def _marked(report: ConstraintReport, name: str, interval: Interval) -> str:
    """Bounds, with a mark at those that decide."""
    return _range(interval) + (" ←" if report.decided_by == name else "")


def _short(spec: str) -> str:
    return spec if len(spec) <= 24 else spec[:23] + "…"


_ROWS: Mapping[str, Callable[[ConstraintReport], str]] = {
    "risk measure": lambda report: escaped(_short(report.description.risk_measure)),
    "limit": lambda report: f"{report.description.limit:g}/{report.description.unit}",
    "risk": lambda report: f"[bold]{report.risk:.4g}[/]",
    "distribution-free bounds": lambda report: _marked(report, "distribution-free", report.free),
    "bootstrap bounds": lambda report: _marked(report, "bootstrap", report.bootstrap),
    "cost rate": lambda report: f"{report.cost_rate:.4g}/step",
    "verdict": lambda report: f"[{COLOURS[report.verdict]}]{report.verdict}[/]",
}
