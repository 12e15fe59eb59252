"""Pages: what they say is what the files say, they need nothing but themselves, and nothing in a file can act."""

import base64
import csv
import hashlib
import json
import math
import re

import numpy as np
import pytest
import scipy.stats

from tailsafe.evaluation.constraint_report import BOOTSTRAP_MET
from tests.report.folders import (
    Page,
    config,
    evaluation,
    make_run,
    make_study,
    metrics,
    samples,
    write_evaluation,
    write_metrics,
)

# --- content ----------------------------------------------------------------------------------------------------------


def lines_of(panel, run=0):
    return {line["label"]: line for line in panel["lines"] if line["run"] == run}


def test_curves_are_those_of_the_log(page, tmp_path):
    folder = make_run(tmp_path / "first")
    (block,) = page(folder).data["blocks"]
    with (folder / "metrics.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert block["runs"] == [{"name": "first", "mark": 0, "x": [int(row["steps"]) for row in rows], "seeds": []}]
    panels = {panel["title"]: panel for panel in block["panels"]}
    shown = {
        "Reward per episode": [("", "reward")],
        "collision: risk": [("", "risk_collision"), ("critics", "sub_risk_collision")],
        "collision: cost rate": [("", "cost_rate_collision")],
        "β": [("", "beta_collision")],
        "KL of an update": [("", "kl")],
        "Violations": [("", "violated")],
    }
    assert list(panels) == list(shown)
    for title, columns in shown.items():
        lines = lines_of(panels[title])
        assert set(lines) == {label for label, _ in columns}
        for label, column in columns:
            wanted = [None if row[column] == "" else pytest.approx(float(row[column]), rel=1e-5) for row in rows]
            assert lines[label]["mean"] == wanted
    # One unit: the limit as it was given, and what is compared with it.
    assert (panels["collision: risk"]["limits"], panels["collision: risk"]["per"]) == ([0.025], "/step")
    assert "Dashed: the limit 0.025/step." in page(folder).text
    assert panels["collision: risk"]["unit"] == "discounted cost of an episode, per step"
    assert panels["KL of an update"]["log"] is True


def test_numbers_of_the_environment_s_own_are_shown(page, tmp_path):
    folder = make_run(tmp_path / "run", metric_success=[None, 0.25, 0.5, 0.75])
    path = folder / "evaluation.json"
    mean = {"name": "success", "mean": 0.625, "low": 0.5, "high": 0.75, "interval": "student"}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"metrics": [mean]}))
    found = page(folder)
    (panel,) = [panel for panel in found.data["blocks"][0]["panels"] if panel["title"] == "success"]
    assert panel["lines"][0]["mean"] == [None, 0.25, 0.5, 0.75]
    assert "success per episode 0.625 [0.5, 0.75]" in found.text


def test_seeds_are_a_mean_between_extremes(page, tmp_path):
    folder = make_run(tmp_path / "many", seeds=(0, 2, 10))
    # One seed was stopped early: the mean continues with the others.
    write_metrics(folder / "seed-10", metrics(rows=3, shift=5.0))
    found = page(folder)
    (block,) = found.data["blocks"]
    assert block["runs"][0]["seeds"] == ["seed-0", "seed-2", "seed-10"]
    line = lines_of(block["panels"][0])[""]
    assert line["mean"] == [None, *(pytest.approx(x) for x in (1.25 + 2, 2.5 + 2, 3.75 + 0.5))]
    assert line["low"] == [None, 1.25, 2.5, 3.75]
    assert line["high"] == [None, 6.25, 7.5, 4.75]
    assert line["seeds"] == [[None, 1.25, 2.5, 3.75], [None, 2.25, 3.5, 4.75], [None, 6.25, 7.5, None]]
    assert found.of("input", type="checkbox")
    assert found.table("steps", "many")[-1][1] == "4.25 [3.75, 4.75]"
    rewards = [f"{x:.4g} [{x - 0.75:.4g}, {x + 0.75:.4g}]" for x in (samples(seed)[:, 0].mean() for seed in (0, 2, 10))]
    wanted = zip(("seed-0", "seed-2", "seed-10"), rewards, strict=True)
    assert found.table("seed", "reward") == [[name, reward, "40", "drawn"] for name, reward in wanted]
    assert "The limit on collision is kept by all of 3 seeds" in found.text


def test_verdicts_and_episodes(page, tmp_path):
    folder = make_run(tmp_path / "first")
    written = json.loads((folder / "evaluation.json").read_text())
    (judged,) = written["constraints"]
    found = page(folder)
    for words in (
        "srcpo trained a policy for point-goal in 400 steps, with cvar:0.75 of collision at most 0.025/step.",
        "The limit on collision is kept without a guarantee, judged by bootstrap bounds at confidence 0.95 on 40 ",
        "limit 0.025/step",
        f"≈ {BOOTSTRAP_MET}",
    ):
        assert words in found.text
    assert found.table("run", "verdict") == [
        [
            "first",
            BOOTSTRAP_MET,
            f"{judged['risk']:.4g}/step",
            "[0.004307, 0.187]",
            "[0.00998, 0.02496]",
            "0.006515/step",
        ]
    ]
    reward = written["reward"]
    told = f"{reward['mean']:.4g} [{reward['low']:.4g}, {reward['high']:.4g}]"
    assert f"reward per episode {told} steps 400" in found.text
    costs = np.sort(samples()[:, 4]) / 100
    # The smallest cost that this share of the episodes does not exceed.
    wanted = [[f"{100 * p:g} %", f"{costs[math.ceil(p * 40) - 1]:.4g}"] for p in (0.5, 0.75, 0.9, 0.95, 0.99)]
    words = "discounted cost of an episode, per step"
    assert found.table("percentile", words) == wanted
    assert sum(int(count) for _, count in found.table(words, "episodes")) == 40
    (label,) = [a["aria-label"] for a in found.of("svg", role="img") if a["aria-label"].startswith("collision")]
    assert f"risk {judged['risk']:.4g}, limit 0.025" in label


def share(text):
    return float(text.removesuffix("%"))


def test_pictures_are_to_scale(page, tmp_path):
    found = page(make_run(tmp_path / "first"))
    (judged,) = evaluation(samples())["constraints"]
    # Limit, estimate and bounds, on an axis that begins with zero.
    unit = share(found.of("line", **{"class": "limit-line"})[0]["x1"]) / judged["limit"]
    bars = found.of("rect", **{"class": "bar-range"})
    for bar, kind in zip(bars, ("distribution_free", "bootstrap"), strict=True):
        ends = share(bar["x"]), share(bar["x"]) + share(bar["width"])
        assert ends == pytest.approx([unit * judged[kind][end] for end in ("low", "high")], abs=0.02)
    points = found.of("circle", **{"class": "bar-point"})
    assert [share(dot["cx"]) for dot in points] == [pytest.approx(unit * judged["risk"], abs=0.02)] * 2
    # Costs: two lines give the scale, the others follow it.
    costs = np.sort(samples()[:, 4]) / 100
    limit = share(found.of("line", **{"class": "limit-line"})[-1]["x1"])
    risk = share(found.of("line", **{"class": "risk-line"})[0]["x1"])
    unit = (risk - limit) / (judged["risk"] - 0.025)
    marks = [share(line["x1"]) for line in found.of("line", **{"class": "percentile"})]
    values = [costs[math.ceil(p * 40) - 1] for p in (0.5, 0.75, 0.9, 0.95, 0.99)]
    assert marks == pytest.approx([limit + unit * (value - 0.025) for value in values], abs=0.05)
    # The spectrum of CVaR 0.75: nothing up to the worst quarter, then four.
    (line,) = found.of("path", **{"class": "sigma-line"})
    steps = re.fullmatch(r"M0 100.00H([\d.]+)V40.00H100", line["d"])
    assert float(steps[1]) == pytest.approx(limit + unit * (costs[30] - 0.025), abs=0.05)
    assert "σ 4" in found.text
    low, high = "[0.004307, 0.187]", "[0.00998, 0.02496]"
    assert f"distribution-free {judged['risk']:.4g} {low} bootstrap {judged['risk']:.4g} {high}" in found.text


def test_no_upper_bound_and_what_is_not_decided(page, tmp_path):
    folder = make_run(tmp_path / "first")
    undecided = {"verdict": "cannot tell", "interval": "distribution-free", "deterministic": True}
    write_evaluation(folder, samples(), high=None, **undecided)
    found = page(folder)
    assert found.table("run", "verdict")[0][3] == "[0.004307, ∞)"
    assert "? cannot tell" in found.text
    assert "The limit on collision may or may not be kept, judged by distribution-free bounds" in found.text
    assert "40 fresh episodes, played with the likeliest actions." in found.text
    assert "About 12,800 episodes would confirm" in found.text


def test_exact_results_of_a_finite_problem(page, tmp_path):
    folder = make_run(tmp_path / "finite")
    exact = {"reward": 3.03539, "risks": [1.92509], "limits": [2.0], "optimum": 3.15476, "feasible": True}
    write_evaluation(folder, samples(), exact=exact)
    assert "discounted reward 3.03539, the optimum is 3.15476; risk 1.92509, limit 2: kept" in page(folder).text


def test_a_run_for_a_range_of_limits_has_its_range_and_its_front(page, tmp_path):
    folder = make_run(tmp_path / "ranged")
    entry = {"name": "collision", "risk_measure": "cvar:0.75", "limit": [0.01, 0.05], "unit": "step"}
    (folder / "config.json").write_text(json.dumps(config(constraints=[entry])))
    exact = {"reward": 3.0, "risks": [1.9], "limits": [2.0], "optimum": 3.1, "feasible": True}
    write_evaluation(folder, samples(), exact=[exact, exact | {"limits": [2.5], "reward": 3.25}])
    points = [
        {
            "run": str(folder),
            "limit": [limit],
            "unit": ["step"],
            "reward": {"mean": reward, "low": reward - 1, "high": reward + 1},
            "risks": [{"name": "collision", "risk": limit / 2, "low": 0.0, "high": None, "verdict": "cannot tell"}],
        }
        for limit, reward in ((0.01, 5.0), (0.05, 9.0))
    ]
    (folder / "front.json").write_text(json.dumps({"points": points}))
    found = page(folder)
    assert "collision at most 0.01 to 0.05/step" in found.text
    assert "discounted reward 3.25, the optimum is 3.1; risk 1.9, limit 2.5: kept" in found.text
    rows = found.table("asked for", "reward")
    assert [row[0] for row in rows] == ["0.01/step", "0.05/step"]
    assert rows[1][1:] == ["9 [8, 10]", "0.025 [0, ∞)", "cannot tell"]


def test_settings_versions_and_device(page, tmp_path):
    found = page(make_run(tmp_path / "first"))
    assert ["max_kl", "0.00123"] in found.table("setting", "value")
    assert ["policy_hidden", "[64, 64]"] in found.table("setting", "value")
    assert ["jax", "9.8.7"] in found.table("package", "version")
    assert "cpu, x86_64" in found.text
    # Times and steps are those of the last row.
    for words in ("steps 400", "seconds 2", "seeds 1"):
        assert words in found.text


def test_without_an_evaluation_the_page_says_how_to_get_one(call, page, tmp_path):
    folder = make_run(tmp_path / "my run", evaluated=False)
    found = page(folder)
    assert f"tailsafe evaluate '{folder}'" in found.text
    assert "Episodes" not in found.text
    code, out, _ = call(folder, "--out", tmp_path / "page.html", "--json")
    told = json.loads(out.splitlines()[-1])
    assert code == 0
    assert told["not_evaluated"] == [str(folder)]
    assert told["bytes"] == (tmp_path / "page.html").stat().st_size
    # The older form of evaluation: nothing but the report.
    (folder / "evaluation.json").write_text(json.dumps(evaluation(samples())))
    assert "No episodes.csv beside the evaluation" in page(folder).text


def test_episodes_of_another_evaluation_are_not_shown(page, tmp_path):
    folder = make_run(tmp_path / "first")
    (folder / "evaluation.json").write_text(json.dumps(evaluation(samples(seed=7))))
    found = page(folder)
    assert "episodes.csv is of another evaluation" in found.text
    assert not found.of("svg", role="img")


# --- several ----------------------------------------------------------------------------------------------------------


def test_runs_are_compared(page, tmp_path):
    one = make_run(tmp_path / "one", verdict="violated")
    many = make_run(tmp_path / "many", seeds=(0, 1, 2))
    write_evaluation(many / "seed-2", samples(2), verdict="cannot tell")
    log = make_run(tmp_path / "log", evaluated=False)
    other = make_run(tmp_path / "other", cost="tilt", described=config("biped", "tilt"))
    found = page(one, many, log, other)
    assert "The limit on collision is kept by 2 of 3 seeds, and may be by the others" in found.text
    counted = "1 with every limit met by bootstrap, without a guarantee, 1 with a violated limit, 1 undecided"
    assert f"4 runs: {counted}, 1 not evaluated." in found.text
    first, second = [table for table in found.tables if table[0][0] == "run" and "seconds" in table[0]]
    costs = ["collision: verdict", "collision: risk"]  # a phone shows two columns
    assert first[0] == ["run", *costs, "reward", "algorithm", "seeds", "steps", "seconds"]
    rows = [dict(zip(first[0], (cell.strip() for cell in row), strict=True)) for row in first[1:]]
    assert [row["run"] for row in rows] == ["one", "many", "log"]
    assert [row["collision: verdict"] for row in rows] == ["✕ violated", "? cannot tell, 1 of 3", "not evaluated"]
    written = json.loads((one / "evaluation.json").read_text())
    assert rows[0]["collision: risk"] == f"{written['constraints'][0]['risk']:.4g}/step [0.00998, 0.02496]"
    # Student's bounds over seeds, by another route than the page's.
    rewards = [samples(seed)[:, 0].mean() for seed in (0, 1, 2)]
    low, high = scipy.stats.t.interval(0.95, 2, np.mean(rewards), scipy.stats.sem(rewards))
    assert rows[1]["reward"] == f"{np.mean(rewards):.4g} [{low:.4g}, {high:.4g}]"
    assert rows[2]["reward"] == "3.75 logged"
    assert [row["seeds"] for row in rows] == ["1", "3", "1"]
    assert second[0][1:3] == ["tilt: verdict", "tilt: risk"]
    # Runs on one task share their charts; marks stay those of the comparison.
    blocks = found.data["blocks"]
    assert [[run["name"] for run in block["runs"]] for block in blocks] == [["one", "many", "log"], ["other"]]
    assert blocks[1]["runs"][0]["mark"] == 3


def test_runs_of_one_name_are_told_apart(page, tmp_path):
    folders = [make_run(tmp_path / name / "run") for name in ("a", "b")]
    (block,) = page(*folders).data["blocks"]
    assert [run["name"] for run in block["runs"]] == [str(folder) for folder in folders]


def test_a_long_log_is_thinned_and_the_page_stays_small(page, tmp_path):
    folder = make_run(tmp_path / "long", evaluated=False, seeds=range(5))
    for seed in range(5):
        write_metrics(folder / f"seed-{seed}", metrics(rows=3000, shift=seed))
    found = page(folder)
    (block,) = found.data["blocks"]
    x = block["runs"][0]["x"]
    assert len(x) == 400
    assert (x[0], x[-1]) == (100, 300_000)
    assert np.diff(x).max() <= 1000
    kept = [1.25 * (step / 100 - 1) + 2 for step in x[1:]]
    assert lines_of(block["panels"][0])[""]["mean"][1:] == pytest.approx(kept, rel=1e-5)
    assert "up to 400 of the logged updates" in found.text
    assert (tmp_path / "page.html").stat().st_size < 600_000


def test_any_study(page, tmp_path):
    found = page(make_study(tmp_path / "study"))
    assert found.table("method", "toll") == [["srcpo", "5.1 ± 0.2"], ["cppo", "7.3 ± 1.0"]]
    assert found.table("problem", "method")[0] == ["toll", "srcpo", "2", "0.05123 [-0.2, 0.3]"]
    assert "toll, wcsac: the loss is not finite <b>" in found.text
    (picture,) = found.of("img")
    assert base64.b64decode(picture["src"].removeprefix("data:image/png;base64,")).startswith(b"\x89PNG")
    (block,) = found.data["blocks"]
    names = ["crossing_cppo", "crossing_srcpo", "toll_cppo", "toll_srcpo"]
    assert [run["name"] for run in block["runs"]] == names


def test_many_groups_of_a_study_are_drawn_problem_by_problem(page, tmp_path):
    study = make_study(tmp_path / "study", problems=("a b", "c"), methods=[f"m{i}" for i in range(5)])
    (study / "results.json").unlink()  # under way
    (study / "table.md").unlink()
    (study / "c_later").mkdir()
    (study / "c_later" / "config.json").write_text("{}")
    found = page(study, make_run(tmp_path / "run"))
    blocks = found.data["blocks"]
    assert [len(block["runs"]) for block in blocks] == [1, 5, 5]
    for words in ("a b: learning curves", "c: learning curves", "Not finished", "Without a log: c_later"):
        assert words in found.text


# --- videos -----------------------------------------------------------------------------------------------------------


def test_videos_and_trajectories(call, page, tmp_path):
    folder = make_run(tmp_path / "first")
    (folder / "video.gif").write_bytes(b"GIF89a made up")
    (folder / "paths.png").write_bytes(b"\x89PNG made up")
    found = page(folder)
    video, trajectories = found.of("img")
    assert base64.b64decode(video["src"].removeprefix("data:image/gif;base64,")) == b"GIF89a made up"
    assert trajectories["src"].startswith("data:image/png;base64,")
    assert all(picture["alt"] for picture in (video, trajectories))
    # Folded, since it plays by itself.
    assert found.of("details", **{"class": "video"}) == [{"class": "video"}]
    (folder / "video.gif").unlink()
    with (folder / "video.mp4").open("wb") as handle:
        handle.truncate(8_000_001)
    code, out, _ = call(folder, "--out", tmp_path / "page.html", "--json")
    assert code == 0
    (line,) = json.loads(out.splitlines()[-1])["left_out"]
    assert "video.mp4: 8.0 MB, left out" in line
    text = (tmp_path / "page.html").read_text()
    assert "left out" in text
    assert len(text) < 1_000_000
    (folder / "video.mp4").write_bytes(b"made up")
    (video,) = page(folder).of("video")
    assert "autoplay" not in video
    assert "controls" in video


def test_a_video_is_made_on_request(call, page, tmp_path, monkeypatch):
    folder = make_run(tmp_path / "first")
    made = []

    def render_video(policy, path, **_):
        made.append(policy)
        path.write_bytes(b"GIF89a")
        return []

    monkeypatch.setattr("tailsafe.viz.video.render_video", render_video)
    target = tmp_path / "page.html"
    code, out, _ = call(folder, "--out", target, "--video", "--json")
    # There is no policy in this folder: the page is made, and says what is missing.
    assert (code, made) == (0, [])
    assert "no video" in json.loads(out.splitlines()[-1])["left_out"][0]
    monkeypatch.setattr("tailsafe.policies.policy.load_policy", lambda place: place)
    assert call(folder, "--out", target, "--video")[0] == 0
    assert call(folder, "--out", target, "--video")[0] == 0
    assert made == [folder]
    assert Page(target.read_text()).of("img")[0]["src"].startswith("data:image/gif")


# --- nothing gets out, nothing gets in --------------------------------------------------------------------------------

HOSTILE = "<img src=x onerror=alert(1)>"


def test_what_files_hold_is_shown_and_never_acts(page, tmp_path):
    ending = "</script><script>alert(1)</script>"
    quoted = "\"' onmouseover='alert(1)' x=\""
    described = config(cost=ending, **{quoted: ending, "name": ending, "device": {"kind": ending}})
    described["settings"] = {ending: quoted, "url": "<!--<script>", "nested": {"deep": [ending] * 9}}
    folder = make_run(tmp_path / HOSTILE, cost=ending, described=described)
    found = page(folder)
    assert not found.of("img")
    assert len(found.of("script")) == 2
    assert not [key for _, attrs in found.elements for key in attrs if key.startswith("on")]
    assert [attrs.get("type") for attrs in found.of("script")] == ["application/json", None]
    assert HOSTILE in found.text
    assert [ending, quoted] in found.table("setting", "value")
    assert found.data["blocks"][0]["runs"][0]["name"] == HOSTILE
    assert found.data["blocks"][0]["panels"][1]["title"] == f"{ending}: risk"
    other = make_run(tmp_path / "other")
    assert not page(folder, other).of("img")
    study = make_study(tmp_path / "study")
    (study / "table.md").write_text(f"| {HOSTILE} | b |\n|---|---|\n| {ending} | {quoted} | extra |\n| short |\n")
    found = page(study)
    assert found.table(HOSTILE, "b") == [[ending, quoted], ["short", ""]]
    assert len(found.of("img")) == 1


def test_the_page_needs_nothing_but_itself(page, tmp_path):
    found = page(make_run(tmp_path / "first"), make_run(tmp_path / "many", seeds=(0, 1)), make_study(tmp_path / "s"))
    text = (tmp_path / "page.html").read_text()
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", text)
    assert not found.of("link")
    for tag, attrs in found.elements:
        assert attrs.get("src", "data:").startswith("data:")
        assert attrs.get("href", "#").startswith("#"), tag
    anchors = {attrs["id"] for _, attrs in found.elements if "id" in attrs}
    assert {attrs["href"].removeprefix("#") for attrs in found.of("a")} <= anchors
    (policy,) = found.of("meta", **{"http-equiv": "Content-Security-Policy"})
    rules = dict(rule.strip().split(" ", 1) for rule in policy["content"].split(";"))
    style, script = (
        base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        for code in (found.styles[0], found.scripts[1])
    )
    assert rules == {
        "default-src": "'none'",
        "style-src": f"'sha256-{style}'",
        "script-src": f"'sha256-{script}'",
        "img-src": "data:",
        "media-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_landmarks_names_and_labels(page, tmp_path):
    found = page(make_run(tmp_path / "first"), make_run(tmp_path / "many", seeds=(0, 1)))
    assert found.of("html") == [{"lang": "en"}]
    assert found.of("meta", name="viewport", content="width=device-width, initial-scale=1")
    for landmark in ("header", "main", "nav", "footer", "h1"):
        assert len(found.of(landmark)) == 1
    assert found.elements[[tag for tag, _ in found.elements].index("body") + 1][1]["href"] == "#main"
    plots = [attrs for _, attrs in found.elements if attrs.get("class") == "plot"]
    assert len(plots) == 6
    assert all(plot["tabindex"] == "0" and plot["role"] == "group" for plot in plots)
    first = plots[0]["aria-label"]
    assert first == "Reward per episode over environment steps: first from 1.25 to 3.75; many from 1.5 to 4. " + (
        "Arrow keys read its values."
    )
    for shown in (found, page(tmp_path / "first"), page(make_study(tmp_path / "study"))):
        levels = [int(tag[1]) for tag, _ in shown.elements if re.fullmatch("h[1-6]", tag)]
        assert levels[0] == 1
        assert max(np.diff(levels)) == 1  # no level is skipped on the way down
    scrolled = [attrs for _, attrs in found.elements if attrs.get("class") == "scroll"]
    assert all(box["tabindex"] == "0" and box["aria-label"] for box in scrolled)
    # A table of the numbers for every chart.
    assert sum(table[0][0] == "steps" for table in found.tables) == len(plots)


def themes():
    from importlib import resources

    style = resources.files("tailsafe.viz.report").joinpath("style.css").read_text(encoding="utf-8")
    found = [
        dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6})", block)) for block in re.findall(r":root \{(.*?)\}", style, re.S)
    ]
    return [(name, colours) for name, colours in zip(("light", "dark"), found, strict=True)]


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("name", "colours"), themes())
def test_contrast(name, colours):
    """Ratios of the accessibility guidelines (WCAG 2.2): 4.5 for words, 3 for lines and shapes."""

    def contrast(a, b):
        light, dark = sorted((luminance(colours[a]), luminance(colours[b])), reverse=True)
        return (light + 0.05) / (dark + 0.05)

    for words in ("--ink", "--soft", "--accent", "--limit", "--broken", "--sigma"):
        assert min(contrast(words, "--paper"), contrast(words, "--card")) >= 4.5, words
    for verdict in ("--met", "--broken", "--open"):
        assert contrast(verdict, f"{verdict}-back") >= 4.5, verdict
    for shape in (*(f"--c{i}" for i in range(8)), "--counts"):
        assert contrast(shape, "--card") >= 3, shape
