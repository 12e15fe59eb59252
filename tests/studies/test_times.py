"""Times of training from logs made by hand."""

import csv
import json

import pytest

from tailsafe.studies.times import training_times
from tailsafe.training.logs import begin_session, session_starts


def write(folder, seconds, sessions=None):
    """A row per update of 100 steps, at these seconds."""
    with (folder / "metrics.csv").open("w", newline="") as handle:
        rows = [[100 * i, i, now] for i, now in enumerate(seconds, 1)]
        csv.writer(handle).writerows([["steps", "updates", "seconds"], *rows])
    if sessions is not None:
        (folder / "sessions.json").write_text(json.dumps({"begun": sessions}))


def test_compilation_counts_once_and_not_in_the_speed(tmp_path):
    """Ten seconds to compile at first, ten in every resumed session, a second per update."""
    write(tmp_path, [11, 12, 13, 14])
    whole = training_times(tmp_path)
    assert (whole.seconds, whole.steps_per_second) == pytest.approx((14, 100))
    for sessions, seconds in (([0, 2], [11, 12, 23, 24]), ([0, 1, 2], [11, 22, 33, 34])):
        write(tmp_path, seconds, sessions)
        resumed = training_times(tmp_path)
        assert (resumed.seconds, resumed.steps_per_second) == pytest.approx((14, 100))


def test_where_every_row_compiled_the_fastest_tells_most(tmp_path):
    write(tmp_path, [11, 31], [0, 1])
    found = training_times(tmp_path)
    assert found.steps_per_second == pytest.approx(100 / 11)
    assert found.seconds == pytest.approx(22)
    # A session that found nothing left to do has no row.
    write(tmp_path, [11, 12], [0, 2])
    assert training_times(tmp_path).seconds == pytest.approx(12)


def test_sessions_that_were_cut_are_forgotten(tmp_path):
    for updates in (0, 40, 60, 40):
        begin_session(tmp_path, updates)
    assert session_starts(tmp_path) == [0, 40]
    (tmp_path / "sessions.json").write_text("{")
    assert session_starts(tmp_path) == [0]
    # A run from before such notes.
    begin_session(tmp_path, 7)
    assert session_starts(tmp_path) == [0, 7]
