"""The parts of a report that are about one run or one study."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tailsafe.training.logs import per
from tailsafe.viz.report.charts import (
    bounds,
    cost_picture,
    number,
    percentiles,
    reward_picture,
    verdict_picture,
    whole,
)
from tailsafe.viz.report.data import VERDICTS, Exact, Judged, Run, Seed
from tailsafe.viz.report.markup import Html, el, join
from tailsafe.viz.report.media import Media
from tailsafe.viz.report.parts import badge, folded, seeded, table_of
from tailsafe.viz.report.study import Study, Table
from tailsafe.viz.report.words import (
    command,
    evaluated_costs,
    figure_text,
    judged_by_seed,
    metrics_of,
    reward_of,
    sentence,
    why_not_evaluated,
)
from tailsafe.viz.run import bins, cost_words

_BOUNDS = (
    "Dots are estimates, bars their bounds: distribution-free ones, and narrower ones by bootstrap. The bold ones "
    "decide the verdict; a bar that ends in an arrow continues."
)


# --- a run ------------------------------------------------------------------------------------------------------------


def run_section(run: Run, key: str, inserted: Html | None = None) -> Html:
    """All about a run. inserted: its curves, where it is the only one."""
    facts = [("reward per episode", figure_text(reward_of(run)))] if run.evaluations else []
    facts += [(f"{name} per episode", figure_text(figure)) for name, figure in metrics_of(run).items()]
    facts += [("steps", whole(run.steps)), ("seconds", whole(run.seconds)), ("seeds", str(len(run.seeds)))]
    facts += _machine(run.config or {})
    return el(
        "section",
        el("h2", run.name, id=f"{key}-title", class_="unseen" if inserted else None),
        el("p", sentence(run), class_="lead") if inserted is None else None,
        el("dl", *(el("div", el("dt", name), el("dd", value)) for name, value in facts), class_="facts"),
        _given_up(run),
        _limits_part(run),
        _front_part(run),
        *_elsewhere(run),
        _media_part(run.media),
        inserted,
        _distributions(run),
        _settings(run),
        id=key,
        aria_labelledby=f"{key}-title",
    )


def _given_up(run: Run) -> Html | None:
    ended = [f"{seed.name}: {seed.given_up}" for seed in run.seeds if seed.given_up is not None]
    return el("p", f"Given up: {'; '.join(ended)}.", class_="note") if ended else None


def _machine(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    device, versions = config.get("device"), config.get("versions")
    found = []
    if isinstance(device, dict):
        found.append(("device", ", ".join(dict.fromkeys(str(value) for value in device.values()))))
    if isinstance(versions, dict) and "tailsafe" in versions:
        found.append(("tailsafe", str(versions["tailsafe"])))
    return found


def _limits_part(run: Run) -> Html:
    costs = evaluated_costs(run)
    missing = [seed.name for seed in run.seeds if seed.evaluated is None]
    if not costs:
        told = el("p", f"{why_not_evaluated(run)}. To get a verdict: ", el("code", command("evaluate", run)))
        return el("div", el("h3", "Limits"), told)
    cards = [_card(judged_by_seed(run, cost)) for cost in costs]
    exact = [
        _exact(seed.name if len(run.seeds) > 1 else "", exact)
        for seed in run.seeds
        for exact in (() if seed.evaluated is None else seed.evaluated.exact)
    ]
    rows = [
        [
            seed.name,
            f"{number(seed.evaluated.reward)} {bounds(seed.evaluated.reward_bounds)}",
            whole(seed.evaluated.episodes),
            "likeliest" if seed.evaluated.deterministic else "drawn",
        ]
        for seed in run.seeds
        if seed.evaluated is not None
    ]
    note = f"Not evaluated: {', '.join(missing)}." if missing else None
    return el(
        "div",
        el("h3", "Limits"),
        el("p", _BOUNDS, class_="note"),
        el("div", *cards, class_="cards"),
        el("p", note, class_="note") if note else None,
        el("ul", *exact, class_="exact") if exact else None,
        table_of(["seed", "reward", "episodes", "actions"], rows, "Reward per episode") if len(rows) > 1 else None,
    )


def _elsewhere(run: Run) -> list[Html]:
    """What evaluations in other environments than that of training found."""
    found = [(seed.name, seed.elsewhere) for seed in run.seeds if seed.elsewhere is not None]
    parts = []
    for place in dict.fromkeys(evaluated.place for _, evaluated in found):
        here = [(name, evaluated) for name, evaluated in found if evaluated.place == place]
        costs = dict.fromkeys(judged.name for _, evaluated in here for judged in evaluated.constraints)
        judged = [
            [(name, one) for name, evaluated in here for one in evaluated.constraints if one.name == cost]
            for cost in costs
        ]
        rows = [[name, f"{number(one.reward)} {bounds(one.reward_bounds)}", whole(one.episodes)] for name, one in here]
        parts.append(
            el(
                "div",
                el("h3", f"In another environment: {place}"),
                el("p", f"These episodes were played in {place}, not where the policy was trained.", class_="note"),
                el("div", *(_card(rows) for rows in judged), class_="cards"),
                table_of(["seed", "reward", "episodes"], rows, f"Reward per episode in {place}"),
            )
        )
    return parts


def _card(rows: Sequence[tuple[str, Judged]]) -> Html:
    """One constraint: verdict, picture, numbers."""
    first = rows[0][1]
    unit = per(first.unit)
    heading = f"{first.measure.spec} of {first.name} at most {first.limit:g}/{first.unit}"
    badges = []
    for verdict in VERDICTS:
        names = [name for name, judged in rows if judged.verdict == verdict]
        if names:
            badges.append(badge(verdict, f"{verdict}: {', '.join(names)}" if len(rows) > 1 else None))
    cells = [
        [
            name,
            judged.verdict,
            f"{number(judged.risk)}{unit}",
            bounds(judged.free),
            bounds(judged.bootstrap),
            f"{number(judged.cost_rate)}/step",
        ]
        for name, judged in rows
    ]
    header = [seeded(rows), "verdict", "risk", "distribution-free bounds", "bootstrap bounds", "cost rate"]
    needed = [
        f"About {whole(judged.episodes_needed)} episodes would confirm the limit without assumptions on the costs."
        for _, judged in rows
        if judged.episodes_needed is not None and judged.decided_by == "distribution-free"
    ]
    return el(
        "div",
        el("h4", heading),
        el("p", *(join(one, " ") for one in badges), class_="badges"),
        verdict_picture(rows),
        el("p", needed[0], class_="note") if needed else None,
        folded("Numbers", table_of(header, cells, heading)),
        class_="card",
    )


def _front_part(run: Run) -> Html | None:
    """Reward against risk, where `tailsafe front` has measured it."""
    if not run.front:
        return None
    several = len({point.run for point in run.front}) > 1
    rows = [
        [
            ", ".join(f"{limit:.4g}/{unit}" for limit, unit in zip(point.limits, point.units, strict=True)),
            *([point.run] if several else []),
            f"{number(point.reward)} {bounds(point.reward_bounds)}",
            ", ".join(f"{number(risk)} {bounds(interval)}" for risk, interval in point.risks),
            ", ".join(dict.fromkeys(point.verdicts)),
        ]
        for point in run.front
    ]
    header = ["asked for", *(["run"] if several else []), "reward", "risk", "verdict"]
    told = el("p", "What each limit costs in reward, measured on fresh episodes with bounds.", class_="note")
    return el("div", el("h3", "Front"), told, table_of(header, rows, "Reward against risk"))


def _exact(name: str, exact: Exact) -> Html:
    best = "no policy keeps the limits" if exact.optimum is None else f"the optimum is {exact.optimum:.6g}"
    risks = ", ".join(f"{risk:.6g}" for risk in exact.risks)
    limits = ", ".join(f"{limit:g}" for limit in exact.limits)
    kept = "kept" if exact.feasible else "broken"
    return el(
        "li",
        f"{name + ', without' if name else 'Without'} sampling: discounted reward {exact.reward:.6g}, {best}; "
        f"risk {risks}, limit {limits}: {kept}.",
    )


def _distributions(run: Run) -> Html | None:
    shown = [seed for seed in run.seeds if seed.episodes is not None]
    stale = [seed.name for seed in run.seeds if seed.stale]
    if not run.evaluations:
        return None
    parts: list[Html] = []
    for i, seed in enumerate(shown):
        figures = _seed_figures(seed)
        parts.append(figures if len(shown) == 1 else folded(f"Episodes of {seed.name}", figures, open_=i == 0))
    if stale:
        told = f"episodes.csv is of another evaluation than evaluation.json ({', '.join(stale)}): "
        parts.append(el("p", told, "repeat ", el("code", command("evaluate", run)), class_="note"))
    elif not shown:
        told = "No episodes.csv beside the evaluation: "
        parts.append(el("p", told, "repeat ", el("code", command("evaluate", run)), class_="note"))
    return el("div", el("h3", "Episodes"), *parts)


def _seed_figures(seed: Seed) -> Html:
    evaluated, episodes = seed.evaluated, seed.episodes
    if evaluated is None or episodes is None:
        return Html("")
    figures = [
        _figure(
            f"Reward of {len(episodes)} episodes",
            reward_picture(episodes.reward, evaluated.reward, evaluated.reward_bounds),
            [("counts", "episodes"), ("mean", f"mean {number(evaluated.reward)} {bounds(evaluated.reward_bounds)}")],
            "sum of rewards",
            episodes.reward,
        )
    ]
    for i, judged in enumerate(evaluated.constraints):
        samples = judged.factor * episodes.discounted_costs[:, i]
        legend = [
            ("counts", "episodes"),
            ("sigma", "weight σ in the risk, right scale"),
            ("risk", f"{judged.measure.spec} = {number(judged.risk)}{per(judged.unit)}"),
            ("limit", f"limit {judged.limit:g}{per(judged.unit)}"),
            ("percentiles", "percentiles"),
        ]
        words = cost_words(judged.unit)
        figures.append(_figure(f"{judged.name}: {words}", cost_picture(samples, judged), legend, words, samples))
    return el("div", *figures, class_="charts")


def _figure(
    title: str, picture: Html, legend: Sequence[tuple[str, str]], unit: str, samples: np.ndarray[Any, Any]
) -> Html:
    keys = [el("li", el("span", class_=f"patch {name}", aria_hidden="true"), words) for name, words in legend]
    counts, edges = np.histogram(samples, bins=bins(samples))
    rows = [
        [f"{number(float(a))} to {number(float(b))}", str(count)]
        for count, a, b in zip(counts.tolist(), edges[:-1], edges[1:], strict=True)
    ]
    marks = [[f"{100 * p:g} %", number(x)] for p, x in percentiles(samples)]
    return el(
        "figure",
        el("h4", title),
        el("div", picture, class_="picture"),
        el("ul", *keys, class_="legend"),
        folded(
            f"Data of {title}",
            table_of(["percentile", unit], marks, f"Percentiles of {title}"),
            table_of([unit, "episodes"], rows, f"Histogram of {title}"),
            class_="data",
        ),
        class_="chart",
    )


def _media_part(media: Sequence[Media]) -> Html | None:
    if not media:
        return None
    return el("div", el("h3", "The policy at work"), el("div", *(_shown(one) for one in media), class_="media"))


def _shown(one: Media) -> Html:
    if one.uri is None:
        return el("p", one.left_out, class_="note")
    if one.kind == ".mp4":
        video = el("video", src=one.uri, controls=True, loop=True, muted=True, playsinline=True, preload="metadata")
        return el("figure", video, el("figcaption", one.path.name))
    picture = el("img", src=one.uri, alt=f"The policy at work ({one.path.name})")
    if one.kind == ".gif":
        # A video that plays by itself: unfolded by the script where the reader has nothing against motion.
        return folded(f"Video of an episode ({one.size / 1e6:.1f} MB)", picture, class_="video")
    return el(
        "figure",
        picture,
        el("figcaption", "Trajectories of the policy from above." if one.path.stem == "paths" else ""),
    )


def _settings(run: Run) -> Html:
    config = run.config
    if config is None:
        return el("p", "No config.json: how it was trained is not known.", class_="note")
    settings = config.get("settings")
    parts: list[Html] = []
    if isinstance(settings, dict) and settings:
        parts.append(table_of(["setting", "value"], [[k, _value(v)] for k, v in settings.items()], "Settings"))
    versions = config.get("versions")
    if isinstance(versions, dict) and versions:
        parts.append(table_of(["package", "version"], [[k, _value(v)] for k, v in versions.items()], "Versions"))
    rest = {key: value for key, value in config.items() if key not in ("settings", "versions")}
    parts.append(table_of(["entry", "value"], [[k, _value(v)] for k, v in rest.items()], "The rest of config.json"))
    return folded("All settings and versions", el("div", *parts, class_="tables"))


def _value(value: Any) -> Html | str:
    if isinstance(value, str):
        return value
    written = json.dumps(_readable(value), ensure_ascii=False)
    return written if len(written) < 80 else el("pre", written)


def _readable(value: Any) -> Any:
    """Numbers with the digits that mean something: 2.5, not the double next to it."""
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, list):
        return [_readable(entry) for entry in value]
    return {key: _readable(entry) for key, entry in value.items()} if isinstance(value, dict) else value


# --- a study ----------------------------------------------------------------------------------------------------------


def study_section(study: Study, key: str, blocks: Sequence[tuple[str, Html]]) -> Html:
    """Table, pictures and failures of a study. blocks: the curves of its groups with their titles."""
    tables, summary = study.tables, study.summary
    state = None if study.finished else "Not finished: what there is so far."
    if study.broken:
        state = f"Not finished: {study.broken} of its groups broke; the same command tries them again."
    pictures = [
        el("p", one.left_out, class_="note")
        if one.uri is None
        else el("figure", el("img", src=one.uri, alt=one.path.name), el("figcaption", one.path.name))
        for one in study.pictures
    ]
    failures = el("div", el("h3", "Failed"), el("ul", *(el("li", line) for line in study.failed), class_="failed"))
    drawn = [
        block if not title else folded(f"{title}: learning curves", block, open_=i == 0)
        for i, (title, block) in enumerate(blocks)
    ]
    return el(
        "section",
        el("h2", f"{study.study} ({study.scale})" if study.scale else study.study, id=f"{key}-title"),
        el("p", state, class_="note") if state else None,
        failures if study.failed else None,
        *(_plain_table(table, table.title or f"Results of {study.study}") for table in tables),
        folded("All numbers", _plain_table(summary, "Summary")) if tables and summary else None,
        _plain_table(summary, "Summary") if summary and not tables else None,
        el("div", *pictures, class_="media") if pictures else None,
        el("h3", "Learning curves") if drawn else None,
        *drawn,
        el("p", f"Without a log: {', '.join(study.left_out)}.", class_="note") if study.left_out else None,
        id=key,
        aria_labelledby=f"{key}-title",
    )


def _plain_table(table: Table, caption: str) -> Html:
    return table_of(table.header, table.rows, caption)
