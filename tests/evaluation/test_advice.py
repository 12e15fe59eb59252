"""What is advised after verdicts: a command that fits them."""

import pytest

from tailsafe.evaluation.advice import Judgement, next_step

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
