"""Folders of runs and studies, written by hand: what training and evaluation leave behind, without either."""

import csv
import json
from html.parser import HTMLParser

import numpy as np

VOID = {"meta", "img", "br", "input"}


def metrics(rows=4, shift=0.0, cost="collision", every=100, **columns):
    """A log as training writes it: names and columns of plain numbers; None is an empty cell."""
    steps = [every * (i + 1) for i in range(rows)]
    return {
        "steps": steps,
        "updates": list(range(1, rows + 1)),
        "seconds": [0.5 * (i + 1) for i in range(rows)],
        "reward": [None] + [1.25 * i + shift for i in range(1, rows)],
        f"cost_rate_{cost}": [0.1 / (i + 1) for i in range(rows)],
        f"risk_{cost}": [0.03 - 0.004 * i + shift / 100 for i in range(rows)],
        f"limit_{cost}": [0.025] * rows,
        f"beta_{cost}": [0.009 - 0.001 * i for i in range(rows)],
        "kl": [0.01 / (i + 1) for i in range(rows)],
        f"sub_risk_{cost}": [0.033 - 0.003 * i for i in range(rows)],
        "violated": [1.0 - i / rows for i in range(rows)],
    } | columns


def write_metrics(folder, log):
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "metrics.csv").open("w", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(log)
        writer.writerows(zip(*(["" if x is None else x for x in column] for column in log.values()), strict=True))


def config(task="point-goal", cost="collision", **more):
    return {
        "format": 1,
        "task": task,
        "algorithm": "srcpo",
        "constraints": [{"name": cost, "risk_measure": "cvar:0.75", "limit": 0.025, "unit": "step"}],
        "total_steps": 400,
        "seed": 0,
        "seeds": 1,
        "settings": {"num_envs": 32, "max_kl": 0.00123, "policy_hidden": [64, 64], "strategy": "proposed"},
        "name": task,
        "versions": {"tailsafe": "0.1.0", "jax": "9.8.7"},
        "device": {"backend": "cpu", "kind": "cpu", "machine": "x86_64"},
    } | more


def samples(seed=0, count=40):
    """Rewards and costs of episodes: reward, discounted reward, length, cost, discounted cost."""
    rng = np.random.default_rng(seed)
    cost = np.where(rng.random(count) < 0.6, 0.0, rng.exponential(4.0, count))
    return np.column_stack(
        [rng.normal(13, 2, count), rng.normal(1, 0.2, count), np.full(count, 1000.0), 3 * cost, cost]
    )


def evaluation(table, verdict="met", high=0.187, cost="collision", interval="bootstrap", **more):
    """A report on these episodes. Bounds are made up: the page shows what the file says."""
    risk = float(np.sort(table[:, 4])[-len(table) // 4 :].mean())
    mean = float(table[:, 0].mean())
    free, bootstrap = {"low": 0.004307, "high": high}, {"low": 0.00998, "high": 0.02496}
    judged = {
        "name": cost,
        "risk_measure": "cvar:0.75",
        "limit": 0.025,
        "unit": "step",
        "risk": risk / 100,
        **(bootstrap if interval == "bootstrap" else free),
        "cost_rate": 0.006515,
        "verdict": verdict,
        "interval": interval,
        "distribution_free": free,
        "bootstrap": bootstrap,
        "discounted_risk": risk,
        "discounted_limit": 2.5,
        "largest_return": 100.0,
        "episodes_needed": 12800,
    }
    return {
        "task": "point-goal",
        "algorithm": "srcpo",
        "steps": 400,
        "episodes": len(table),
        "seed": 0,
        "confidence": 0.95,
        "deterministic": False,
        "reward": {"mean": mean, "low": mean - 0.75, "high": mean + 0.75, "interval": "student"},
        "constraints": [judged],
    } | more


def write_evaluation(folder, table, cost="collision", **more):
    (folder / "evaluation.json").write_text(json.dumps(evaluation(table, cost=cost, **more)))
    lines = [["reward", "discounted_reward", "length", f"cost_{cost}", f"discounted_cost_{cost}"], *table.tolist()]
    with (folder / "episodes.csv").open("w", newline="") as handle:
        csv.writer(handle, lineterminator="\n").writerows(lines)


def make_run(folder, *, evaluated=True, seeds=(), cost="collision", verdict="met", described=None, **columns):
    """A run, or one folder for each of `seeds`."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(described or config(cost=cost)))
    for place, seed in [(folder / f"seed-{seed}", seed) for seed in seeds] or [(folder, 0)]:
        write_metrics(place, metrics(shift=0.5 * seed, cost=cost, **columns))
        if evaluated:
            write_evaluation(place, samples(seed), cost=cost, verdict=verdict)
    return folder


def make_study(folder, problems=("toll", "crossing"), methods=("srcpo", "cppo")):
    folder.mkdir(parents=True)
    (folder / "study.txt").write_text("any-study smoke\n")
    summary = []
    for problem in problems:
        for method in methods:
            make_run(folder / f"{problem}_{method}", evaluated=False, seeds=(0, 1))
            rows = [{"problem": problem, "method": method, "seed": seed, "gap": 0.1 * seed} for seed in (0, 1)]
            (folder / f"{problem}_{method}" / "result.json").write_text(json.dumps({"rows": rows}))
            gap = {"mean": 0.0512345, "low": -0.2, "high": 0.3}
            summary.append({"problem": problem, "method": method, "seeds": 2, "gap": gap})
    failed = [{"problem": "toll", "method": "wcsac", "error": "the loss is not finite <b>"}]
    results = {"study": "any-study", "scale": "smoke", "summary": summary, "failed": failed, "rows": []}
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "table.md").write_text("| method | toll |\n|---|---|\n| srcpo | 5.1 ± 0.2 |\n| cppo | 7.3 ± 1.0 |\n")
    (folder / "all.png").write_bytes(b"\x89PNG\r\n\x1a\n made up")
    return folder


class Page(HTMLParser):
    """What a browser would make of a page: elements in order, tables as cells, texts, scripts."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.open, self.texts = [], [], []
        self.tables, self.scripts, self.styles = [], [], []
        self.feed(text)
        self.close()
        assert not self.open  # everything that was opened is closed, in order

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag in ("script", "style"):
            (self.scripts if tag == "script" else self.styles).append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "script" in self.open:
            self.scripts[-1] += data
        elif "style" in self.open:
            self.styles[-1] += data
        else:
            self.texts.append(data)
            if {"td", "th"} & set(self.open):
                self.tables[-1][-1][-1] += data

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    @property
    def data(self):
        return json.loads(self.scripts[0])

    def of(self, tag, **wanted):
        return [attrs for name, attrs in self.elements if name == tag and wanted.items() <= attrs.items()]

    def table(self, *header):
        """The body of the first table whose header begins so."""
        return next(table[1:] for table in self.tables if tuple(table[0][: len(header)]) == header)
