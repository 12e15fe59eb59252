"""What is advised after verdicts: a command that fits them."""

import pytest

from tailsafe.evaluation.advice import Judgement, after_search, next_step

MET = Judgement("met", False, True)


@pytest.mark.parametrize(
    ("judged", "command"),
    [
        ([MET, MET], "tailsafe report {run}"),
        ([MET, Judgement("violated", True, True)], "tailsafe resume {run} --steps 4000"),
        ([Judgement("cannot tell", True, True)], "tailsafe resume {run} --steps 4000"),
        ([MET, Judgement("cannot tell", False, True, 12800)], "tailsafe evaluate {run} --episodes 12800"),
        ([Judgement("cannot tell", False, True)], "tailsafe evaluate {run} --episodes 2000"),
        ([Judgement("cannot tell", False, False)], "tailsafe evaluate {run} --interval bootstrap"),
        ([Judgement("met (bootstrap, no guarantee)", False, True, 900)], "tailsafe evaluate {run} --episodes 900"),
    ],
)
def test_the_command_fits_the_verdicts(tmp_path, judged, command):
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    assert next_step(run, "point-goal", 4000, 500, judged).endswith(": " + command.format(run=run))


def test_a_policy_without_checkpoints_is_started_from(tmp_path):
    told = next_step(tmp_path / "a b", "point-goal", 0, 500, [Judgement("violated", True, True)])
    assert told.endswith(f"tailsafe train point-goal --from '{tmp_path}/a b' --steps 1")


@pytest.mark.parametrize(
    ("certified", "above", "command"),
    [
        (True, False, "tailsafe report {run}"),
        (False, True, "tailsafe resume {run} --steps 4000"),
        (False, False, "tailsafe certify {run} --limit 0.025/step --limit 1/episode --episodes 20000"),
    ],
)
def test_the_command_fits_the_outcome_of_a_search(tmp_path, certified, above, command):
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    limits = ["0.025/step", "1/episode"]
    told = after_search(run, "biped", 4000, limits, certified=certified, above=above, episodes=20_000)
    assert told.endswith(": " + command.format(run=run))
