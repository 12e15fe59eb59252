"""The page in a real browser: drawn, read by keyboard and finger, sorted, on a wide and on a narrow screen.

Needs Chromium or Chrome on the PATH; without one these tests are skipped. The browser loads the page as it was written,
in a frame of the screen's width, with a script added that drives it (and whose hash is added to the page's policy).
"""

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.report.folders import make_run, make_study

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on the PATH")

WATCH = """window.probeErrors = [];
window.addEventListener("error", (event) => window.probeErrors.push(event.message));
document.addEventListener("securitypolicyviolation", (event) => window.probeErrors.push(event.violatedDirective));"""
PROBE = Path(__file__).with_name("probe.js").read_text(encoding="utf-8")
FRAME = """<!doctype html><body style="margin: 0"><pre id="probe"></pre>
<iframe src="driven.html" width="{width}" height="800" style="border: 0"></iframe>
<script>
addEventListener("message", (event) => {{ document.getElementById("probe").textContent = event.data; }});
</script>"""


def hashed(script):
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def driven(page):
    """The page with the probe in it, allowed by name."""
    added = html.escape(f"{hashed(WATCH)} {hashed(PROBE)} ")
    assert page.count("script-src ") == 1
    page = page.replace("script-src ", f"script-src {added}")
    page = page.replace("<title>", f"<script>{WATCH}</script><title>", 1)
    head, body = page.rsplit("</body>", 1)
    return f"{head}<script>{PROBE}</script></body>{body}"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A report on two runs, one of them with three seeds, and on a study whose groups are drawn problem by problem."""
    from tailsafe.viz.report import make_page, read_report

    folder = tmp_path_factory.mktemp("browser")
    runs = [make_run(folder / "zebra", seeds=(0, 1, 2)), make_run(folder / f"a-{'very-' * 12}long-name")]
    (runs[1] / "video.gif").write_bytes(base64.b64decode("R0lGODlhAQABAAAAACwAAAAAAQABAAAC"))
    study = make_study(folder / "study", problems=("a", "b"), methods=[f"m{i}" for i in range(5)])
    return make_page(read_report([*runs, study]))


def visit(page, folder, width, *options):
    """Open the page in a frame of this width; returns what the probe found."""
    (folder / "driven.html").write_text(driven(page), encoding="utf-8")
    (folder / "frame.html").write_text(FRAME.format(width=width), encoding="utf-8")
    # --no-sandbox: in a container there is none to be had.
    common = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --virtual-time-budget=8000 --dump-dom"
    command = [BROWSER, *common.split(), f"--user-data-dir={folder / 'profile'}", "--window-size=1300,900", *options]
    shown = subprocess.run(
        [*command, f"file://{folder / 'frame.html'}"], capture_output=True, text=True, timeout=90, check=False
    )
    said = re.search(r'<pre id="probe">(.*?)</pre>', shown.stdout, re.S)
    assert said, f"the browser ended with {shown.returncode}: {shown.stderr[-800:]}"
    assert said[1], f"the probe said nothing: {shown.stderr[-800:]}"
    return json.loads(html.unescape(said[1]))


def test_on_a_wide_screen(written, tmp_path):
    found = visit(written, tmp_path, 1200)
    assert found["errors"] == []
    assert found["fetched"] == []
    assert (found["width"], found["columns"], found["undrawn"]) == (1200, 2, 0)
    assert found["background"] == "rgb(255, 255, 255)"
    assert found["video"] is True
    assert found["unreachable"] == 0
    # Keys: the last step, the one before, the first one, where there is no reward yet, and back.
    assert (found["focused"], found["live"], found["silent"]) == (True, "polite", "off")
    read = found["read"]
    assert read["End"].startswith("step 400zebra 4.25 [3.75, 4.75]a-very-")
    assert read["End"].endswith("long-name 3.75")
    assert read["ArrowLeft"].startswith("step 300zebra 3 [2.5, 3.5]")
    assert read["Home"] == "step 100"
    assert read["ArrowRight"].startswith("step 200zebra 1.75 [1.25, 2.25]")
    assert read["PageUp"].startswith("step 300")
    assert read["Escape"] == read["End"].replace("step 400", "at the end")
    assert found["linked"].startswith("step 400zebra 0.023 [0.018, 0.028]")
    assert found["tapped"] == read["End"]
    # The legend takes a run away, the scale follows, and brings it back.
    count, scale = found["before"]
    assert count > 0
    assert found["hidden"][0] == 0
    assert found["hidden"][1] != scale
    assert found["hidden"][2] == "false"
    assert "zebra" not in found["hidden"][3]
    assert found["again"] == [count, scale, "true"]
    assert found["seeds"] == 3
    assert found["heads"] is True
    (up, rising), (down, falling) = found["sorted"]
    assert up == down[::-1]
    assert (rising, falling) == ("ascending", "descending")
    # The curves of a problem that was folded: five groups with seven lines each.
    assert found["folded"] == 35
    closed, printing, after = found["closed"]
    assert closed > 0
    assert (printing, after) == (0, closed)


def test_on_a_phone_in_the_dark_without_motion(written, tmp_path):
    found = visit(written, tmp_path, 390, "--blink-settings=preferredColorScheme=0", "--force-prefers-reduced-motion")
    assert found["errors"] == []
    assert (found["width"], found["columns"], found["undrawn"]) == (390, 1, 0)
    assert found["scrollWidth"] <= 390
    assert (found["wide"], found["repeated"]) == ([], [])
    assert found["video"] is False
    assert sum(map(int, re.findall(r"\d+", found["background"]))) < 150
    assert found["tapped"].startswith("step 400")


def test_a_log_of_one_row_has_no_label_twice(tmp_path):
    from tailsafe.viz.report import make_page, read_report

    run = make_run(tmp_path / "short")
    header, first, *_ = (run / "metrics.csv").read_text(encoding="utf-8").splitlines()
    row = dict(zip(header.split(","), first.split(","), strict=True)) | {"steps": "20480"}
    (run / "metrics.csv").write_text(f"{header}\n{','.join(row.values())}\n", encoding="utf-8")
    found = visit(make_page(read_report([run])), tmp_path, 390)
    assert (found["repeated"], found["scrollWidth"] <= 390) == ([], True)
