"""What a page leaves out, and says so: runs without a log, verdicts on policies that no longer exist."""

import json

from tests.report.folders import make_run, make_study, samples, write_evaluation


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


def test_numbers_of_another_environment_are_not_the_run_s_own(page, tmp_path):
    folder, other = make_run(tmp_path / "run"), make_run(tmp_path / "other")
    table = samples()
    table[:, 0] += 1000
    environment = {"name": "icy:Road", "arguments": {"size": 5}, "costs": ["collision"]}
    write_evaluation(folder, table, environment=environment, trained_in="point-goal")
    alone = page(folder).text
    assert (
        "Not evaluated where it was trained, but in another environment, icy:Road(size=5): run tailsafe eval" in alone
    )
    assert "In another environment: icy:Road(size=5)" in alone
    assert "The limit on collision" not in alone
    both = page(folder, other)
    (row,) = [cells for cells in both.table("run", "collision: verdict") if cells[0].strip() == "run"]
    assert row[1] == "not evaluated"
    assert "1 not evaluated" in both.text
    assert not any(cell.startswith("10") for cell in row)
    # In its own environment nothing changes.
    write_evaluation(folder, table, environment=environment, trained_in=None)
    assert "The limit on collision is kept" in page(folder).text
