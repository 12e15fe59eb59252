"""What cannot be shown gets one line, exit code 2, and no page."""

import json

import pytest

from tests.report.folders import evaluation, make_run, samples


def broken(name, tmp_path):
    """A folder with something wrong in it."""
    folder = tmp_path / "run"
    if name == "nothing":
        return folder
    make_run(folder)
    if name == "neither":
        for file in folder.iterdir():
            file.unlink()
    elif name == "not started":
        (folder / "metrics.csv").unlink()
    elif name == "no rows":
        (folder / "metrics.csv").write_text("steps,reward\n")
    elif name == "no steps":
        (folder / "metrics.csv").write_text("steps,reward\nmany,1\n")
    elif name == "study":
        (folder / "study.txt").write_text("x y\n")
        (folder / "results.json").write_text('{"summary": [1]}')
    else:
        file, content = name.split(":", 1)
        (folder / file).write_text(content)
    return folder


JUDGED = evaluation(samples())
UNKNOWN = JUDGED | {"constraints": [JUDGED["constraints"][0] | {"risk_measure": "cvr:0.5"}]}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nothing", "no such run or study"),
        ("neither", "neither a run"),
        ("not started", "no update has been logged yet"),
        ("no rows", "no update has been logged yet"),
        ("no steps", "'steps' holds something that is not a number"),
        ("study", "'summary' must be a list of objects"),
        ("config.json:{", "is not JSON"),
        ('config.json:{"settings": ' + "[" * 60 + "]" * 60 + "}", "nested more than 50 levels"),
        ("config.json:[1]", "must hold an object"),
        ('config.json:{"constraints": 3}', "constraints must be a list"),
        ("evaluation.json:" + "[" * 100_000, "is not JSON"),
        ("evaluation.json:{}", "lacks 'reward'"),
        ('evaluation.json:{"a": NaN}', "is not JSON"),
        ("evaluation.json:" + json.dumps(JUDGED | {"episodes": "many"}), "episodes must be a whole number"),
        ("evaluation.json:" + json.dumps(UNKNOWN), "did you mean cvar"),
        ("episodes.csv:a,b\n1,2\n", "its columns are not those"),
        ("episodes.csv:", "its columns are not those"),
        ("metrics.csv:\x00\xff", "metrics.csv"),
    ],
)
def test_mistakes_get_one_line_and_no_page(call, tmp_path, name, reason):
    folder = broken(name, tmp_path)
    before = sorted(tmp_path.rglob("*"))
    code, out, err = call(folder, "--out", tmp_path / "page.html")
    assert (code, out) == (2, "")
    assert reason in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("target", "reason"), [("page.txt", "a page ends in .html"), ("no/page.html", "does not exist"), (".", ".html")]
)
def test_where_no_page_can_be_written(call, tmp_path, target, reason):
    code, out, err = call(make_run(tmp_path / "run"), "--out", tmp_path / target)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err
