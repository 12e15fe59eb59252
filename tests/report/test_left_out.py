"""What a page leaves out, and says so: runs without a log, verdicts on policies that no longer exist."""

import json

from tests.report.folders import make_run, make_study


def test_runs_that_were_killed_early_do_not_spoil_the_page(page, tmp_path):
    study = make_study(tmp_path / "study")
    for place in ("toll_cppo/seed-0", "toll_cppo/seed-1", "crossing_cppo/seed-1"):
        log = study / place / "metrics.csv"
        log.write_text(log.read_text().splitlines()[0] + "\n")
    found = page(study)
    assert "Without a log: toll_cppo" in found.text
    (block,) = found.data["blocks"]
    assert [run["name"] for run in block["runs"]] == ["crossing_cppo", "crossing_srcpo", "toll_srcpo"]


def test_a_verdict_on_a_policy_that_has_changed_since_is_not_shown(page, tmp_path):
    folder = make_run(tmp_path / "run")
    evaluation = folder / "evaluation.json"
    evaluation.write_text(json.dumps({**json.loads(evaluation.read_text()), "steps": 1024}))
    (folder / "policy").mkdir()
    for steps, shown in ((1024, True), (20480, False)):
        (folder / "policy" / "policy.json").write_text(json.dumps({"steps": steps}))
        text = page(folder).text
        assert ("Evaluated after 1,024 steps, but training went on since" in text) is not shown
        assert ("judged by" in text) is shown


def test_seeds_that_were_given_up_are_named(page, tmp_path):
    study = make_study(tmp_path / "study")
    (study / "toll_cppo" / "seed-1" / "failed.json").write_text(json.dumps({"error": "update 7: a loss is not finite"}))
    alone = page(study / "toll_cppo").text
    assert "Given up: seed-1: update 7: a loss is not finite." in alone
    assert "Given up" not in page(study / "toll_srcpo").text
