"""Pictures of studies from rows made by hand: what is drawn where."""

import csv

import numpy as np
import pytest

import tailsafe as ts
from tailsafe.studies.groups import Group
from tailsafe.viz import risk_measures, training
from tailsafe.viz.run import read_curves
from tailsafe.viz.training import draw_training, mean_and_deviation


@pytest.fixture
def drawn(monkeypatch):
    """The figures instead of their files."""
    figures = []
    for module in (risk_measures, training):
        monkeypatch.setattr(module, "save", lambda figure, path: figures.append(figure))
    return figures


def test_ellipses_are_one_deviation_along_the_main_directions(drawn, tmp_path):
    points = np.array([[0.01, 10.0], [0.02, 12.0], [0.03, 11.0]])
    rows = [{"measure": "cvar", "level": "0.5", "cost_rate": x, "reward": y} for x, y in points]
    risk_measures.draw_scatter(rows, 0.025, tmp_path / "scatter.png")
    axes = drawn[0].axes[0]
    (ellipse,) = axes.patches
    assert ellipse.center == pytest.approx(points.mean(0))
    # Its matrix is the covariance: along any direction u it reaches sqrt(u C u).
    turned = np.radians(ellipse.angle)
    half = np.array([ellipse.width, ellipse.height]) / 2
    turn = np.array([[np.cos(turned), -np.sin(turned)], [np.sin(turned), np.cos(turned)]])
    assert turn @ np.diag(half**2) @ turn.T == pytest.approx(np.cov(points.T), rel=1e-6)
    assert [line.get_label() for line in axes.lines if not line.get_label().startswith("_")] == [
        "cvar 0.5",
        "limit 0.025",
    ]


def test_distributions_mark_their_percentiles(drawn, tmp_path):
    rates = np.linspace(0, 1, 101)
    rows = [{"measure": "wang", "level": "1.0", "rates": rates.tolist()}]
    risk_measures.draw_distributions(rows, "title", tmp_path / "distributions.png")
    marks = [line.get_xdata()[0] for line in drawn[0].axes[0].lines]
    assert marks == pytest.approx([0.5, 0.75, 0.9, 0.95, 0.99])


def test_training_shows_the_largest_risk_as_a_share_of_its_limit(drawn, tmp_path):
    with (tmp_path / "metrics.csv").open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(["steps", "reward", "cost_rate_a", "cost_rate_b", "risk_a", "risk_b", "limit_a", "limit_b"])
        writer.writerows([[10, 1, 0.1, 0.2, 4.0, 1.0, 2.0, 4.0], [20, 1, 0.1, 0.2, 1.0, 3.0, 2.0, 4.0]])
    group = Group({"algorithm": "srcpo"}, ts.TrainConfig("biped", out=tmp_path))
    assert draw_training([("biped", [group])], "algorithm", None, tmp_path / "curves.png")
    *_, shares = drawn[0].axes
    line, limit = shares.lines
    assert line.get_ydata().tolist() == [2.0, 0.75]
    assert set(limit.get_ydata()) == {1.0}


def test_lines_of_one_colour_differ_in_their_style(drawn, tmp_path):
    groups = []
    for measure, level in (("cvar", "0.25"), ("cvar", "0.5"), ("wang", "0.5"), ("wang", "1.0"), ("wang", "1.5")):
        folder = tmp_path / f"{measure}{level}"
        folder.mkdir()
        (folder / "metrics.csv").write_text("steps,reward\n10,1.0\n20,2.0\n")
        groups.append(Group({"measure": measure, "level": level}, ts.TrainConfig("point-goal", out=folder)))
    assert draw_training([("point-goal", groups)], "measure", "level", tmp_path / "curves.png")
    looks = [(line.get_color(), line.get_linestyle()) for line in drawn[0].axes[0].lines]
    assert len(set(looks)) == 5
    assert [style for _, style in looks] == ["-", "--", "-", "--", ":"]


def test_bands_go_on_with_the_seeds_that_do(tmp_path):
    for seed, values in enumerate(([1.0, 2.0, 3.0], [3.0, 6.0])):
        folder = tmp_path / "group" / f"seed-{seed}"
        folder.mkdir(parents=True)
        with (folder / "metrics.csv").open("w", newline="") as handle:
            writer = csv.writer(handle)
            writer.writerow(["steps", "reward", "cost_rate_cost"])
            writer.writerows([10 * (i + 1), value, 0.1] for i, value in enumerate(values))
    runs = [read_curves(tmp_path / "group" / f"seed-{seed}") for seed in range(2)]
    steps, mean, deviation = mean_and_deviation(runs, "reward")
    assert steps.tolist() == [10, 20, 30]
    assert mean.tolist() == [2.0, 4.0, 3.0]
    assert deviation.tolist() == [1.0, 2.0, 0.0]
    group = Group({"algorithm": "srcpo"}, ts.TrainConfig("point-goal", out=tmp_path / "group", seeds=2))
    missing = Group({"algorithm": "cppo"}, ts.TrainConfig("point-goal", out=tmp_path / "nothing"))
    assert draw_training([("point-goal", [group, missing])], "algorithm", None, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 5000
    assert not draw_training([("point-goal", [missing])], "algorithm", None, tmp_path / "none.png")
