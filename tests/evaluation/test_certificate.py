"""`tailsafe certify` end to end on hand-made policies of a finite problem."""

import json

import numpy as np
import pytest
from scipy.special import logit

import tailsafe as ts
from tailsafe.checkpoints import Checkpoints
from tailsafe.errors import InputError
from tailsafe.evaluation.candidates import search_of
from tailsafe.evaluation.certificate import certify, check
from tailsafe.evaluation.exact import evaluate_on_problem
from tailsafe.evaluation.late import late_policies
from tailsafe.policies.policy import tensors_of
from tests.policies.hand_made import finite_description, save
from tests.tabular.problems import gamble, random_problem
from tests.training.tiny import PER_UPDATE, finite_config


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certified")
    save(folder, finite_description(gamble()))
    return folder


@pytest.fixture(scope="module")
def risk(run):
    return evaluate_on_problem(ts.load_policy(run)).risks[0]


def test_a_limit_above_the_risk_is_certified_replayed_and_written_into_the_policy(run, risk, call):
    limit = 1.3 * risk
    code, out, _ = call("certify", run, "--limit", f"{limit}/discounted", "--episodes", "4000", "--json")
    assert code == 0
    result = json.loads(out.splitlines()[-1])
    assert {"certified", "limit", "request", "risk", "upper", "confidence", "episodes", "reward", "tested"} <= set(
        result
    )
    assert result["certified"] is True
    assert result["risk"] < result["upper"] <= result["limit"] == limit
    assert result["request"] == 1.0
    assert result["upper"] >= risk
    assert [tested["outcome"] for tested in result["tested"]] == ["certified"]
    assert json.loads((run / "certificate.json").read_text()) == result
    # The policy says so, and is still what it was.
    attached = ts.load_policy(run).description.certificate
    assert attached["limit"] == limit
    assert attached["upper"] == result["upper"]
    code, out, _ = call("certify", "--check", run / "certificate.json", "--json")
    assert code == 0
    again = json.loads(out.splitlines()[-1])
    assert (again["same_policy"], again["identical"], again["confirmed"]) == (True, True, True)


def test_the_course_of_a_proof_ends_at_what_it_proves_and_is_drawn(run, risk, call, tmp_path):
    limit = 1.3 * risk
    found = certify(run, limit, "discounted", episodes=4000, keep=False)
    episodes, seen, upper = found.course(0).T
    assert (np.diff(episodes) > 0).all()
    assert episodes[-1] == found.shown.proof.episodes
    assert (seen[-1], upper[-1]) == (found.shown.risks[0], found.shown.uppers[0])
    assert (upper >= seen).all()
    # One bound for all numbers of episodes: it may not cross the truth at any.
    assert (upper >= risk).all()
    picture = tmp_path / "certificate.png"
    assert call("certify", run, "--limit", f"{limit}/discounted", "--episodes", "4000", "--plot", picture)[0] == 0
    assert picture.stat().st_size > 1000
    assert call("certify", run, "--limit", f"{limit}/discounted", "--plot", tmp_path / "certificate.txt")[0] == 2
    assert call("certify", "--check", run / "certificate.json", "--plot", picture)[0] == 2


def test_a_limit_below_the_risk_is_not(run, risk, call):
    code, out, _ = call("certify", run, "--limit", f"{0.7 * risk}/discounted", "--episodes", "2000", "--json")
    result = json.loads(out.splitlines()[-1])
    assert code == 1
    assert result["certified"] is False
    assert result["request"] is None
    assert result["risk"] == pytest.approx(risk, rel=0.3)
    assert "above the limit" in result["advice"]
    code, out, _ = call("certify", run, "--limit", f"{0.7 * risk}", "--episodes", "2000")
    assert code == 1
    assert "not certified" in out
    assert "next: train longer with: tailsafe train " in out


def test_a_search_resumes_and_a_larger_budget_adds_to_what_was_played(tmp_path, risk):
    for name in ("straight", "twice"):
        save(tmp_path / name, finite_description(gamble()))
    arguments = {"limit": 1.02 * risk, "unit": "discounted"}
    straight = certify(tmp_path / "straight", **arguments, episodes=768)
    first = certify(tmp_path / "twice", **arguments, episodes=256)
    assert first.shown.proof.episodes == 256
    before = (tmp_path / "twice" / "certificate" / "policy.csv").read_text()
    twice = certify(tmp_path / "twice", **arguments, episodes=768)
    assert (tmp_path / "twice" / "certificate" / "policy.csv").read_text().startswith(before)
    assert twice.to_json()["tested"] == straight.to_json()["tested"]
    # Another seed plays other episodes.
    other = certify(tmp_path / "twice", **arguments, episodes=256, seed=1)
    assert other.shown.risks != first.shown.risks


def test_a_certificate_of_another_policy_is_not_confirmed(run, risk, tmp_path, call):
    certify(run, 1.3 * risk, "discounted", episodes=4000)
    save(tmp_path, finite_description(gamble()), seed=5)
    (tmp_path / "certificate.json").write_text((run / "certificate.json").read_text())
    assert not check(tmp_path / "certificate.json").same_policy
    assert call("certify", "--check", tmp_path / "certificate.json")[0] == 1


def test_what_a_certificate_is_about_is_checked_too(run, risk, tmp_path):
    """Numbers may differ by rounding. Of a changed statement nothing is confirmed, though the limit is kept."""
    save(tmp_path, finite_description(gamble()))
    certify(tmp_path, 1.3 * risk, "discounted", episodes=4000)
    path = tmp_path / "certificate.json"
    content = json.loads(path.read_text())
    changes = {
        "risk_measure": "cvar:0.99",
        "cost": "another",
        "task": "another",
        "statement": "in the real world",
        "candidate": "checkpoint-7",
        "certified": "yes",
    }
    for key, value in changes.items():
        path.write_text(json.dumps(content | {key: value}))
        assert not check(path).confirmed, key
    path.write_text(json.dumps(content | {"upper": 0.0}))
    rounded = check(path)
    assert (rounded.confirmed, rounded.identical) == (True, False)


def test_damaged_episodes_do_not_count(risk, tmp_path):
    save(tmp_path, finite_description(gamble()))
    arguments = {"limit": 1.02 * risk, "unit": "discounted", "episodes": 256}
    first = certify(tmp_path, **arguments).to_json()
    table = tmp_path / "certificate" / "policy.csv"
    good = table.read_text()
    header, *lines = good.splitlines()
    # Every episode cost nothing, says the damaged table.
    table.write_text("\n".join([header, *(",".join([*line.split(",")[:-1], "0.0"]) for line in lines)]) + "\n")
    assert certify(tmp_path, **arguments).to_json() == first
    assert table.read_text() == good


def test_a_link_is_not_written_through(risk, tmp_path):
    save(tmp_path / "run", finite_description(gamble()))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "own.csv").write_text("precious")
    (tmp_path / "run" / "certificate").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="is a link"):
        certify(tmp_path / "run", 1.3 * risk, "discounted", episodes=64)
    assert (tmp_path / "elsewhere" / "own.csv").read_text() == "precious"


def test_units_and_several_costs(tmp_path):
    problem = random_problem(3, costs=2)
    save(tmp_path, finite_description(problem))
    scale = (1 - 0.9**4) / 0.1
    by_step = certify(tmp_path, [0.99, 0.99], "step", episodes=2000, keep=False)
    plain = certify(tmp_path, 0.99 * scale, "discounted", episodes=2000, keep=False)
    assert by_step.shown.proof.outcome == plain.shown.proof.outcome
    assert by_step.shown.uppers == pytest.approx([upper / scale for upper in plain.shown.uppers])
    assert not (tmp_path / "certificate.json").exists()


def test_a_late_checkpoint_is_certified_where_the_last_policy_is_not(tmp_path):
    """Two hand-made policies; the safer one is a checkpoint of the run whose policy is the other."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for seed, folder in enumerate(folders):
        save(folder, finite_description(gamble()), seed)
    risks = [evaluate_on_problem(ts.load_policy(folder)).risks[0] for folder in folders]
    safe, unsafe = (folders[i] for i in np.argsort(risks))
    assert max(risks) > 1.1 * min(risks)
    kept = ts.load_policy(safe)
    arrays = {f"policy.{name}": np.asarray(tensor) for name, tensor in tensors_of(kept.network).items()}
    arrays |= {"normalizer.mean": kept.normalizer.mean, "normalizer.variance": kept.normalizer.variance}
    arrays |= {"sampler.phi": logit(np.asarray(kept.delta, np.float64)), "sampler.deviation": np.float32(0.1)}
    checkpoints = Checkpoints(unsafe / "checkpoints")
    checkpoints.save(1000, {f"state/learner.{name}": np.asarray(array) for name, array in arrays.items()}, {})
    checkpoints.close()

    search = search_of(unsafe)
    assert [(one.name, one.share) for one in search.candidates] == [("policy", 0.8), ("checkpoint-1000", 0.2)]
    limit = float(np.sqrt(risks[0] * risks[1]))
    found = certify(unsafe, limit, "discounted", episodes=20_000)
    assert [finding.certified for finding in found.findings] == [False, True]
    assert sum(finding.proof.error for finding in found.findings) == pytest.approx(0.05)
    written = ts.load_policy(unsafe / "certified")
    assert written.description.steps == 1000
    assert written.description.certificate["limit"] == limit
    assert evaluate_on_problem(written).risks[0] == pytest.approx(min(risks), rel=1e-5)
    assert ts.load_policy(unsafe).description.certificate is None


def test_late_candidates_are_the_policies_that_the_run_shared(tmp_path):
    """A run ships the average of its latest policies, and so do its checkpoints."""
    settings = {"averaging": 0.3, "checkpoint_every": 2 * PER_UPDATE}
    ts.train(finite_config(tmp_path / "short", 2, settings=settings), progress=False)
    ts.train(finite_config(tmp_path / "long", 4, settings=settings), progress=False)
    shared = ts.load_policy(tmp_path / "short")
    late = late_policies(tmp_path / "long", ts.load_policy(tmp_path / "long"))
    assert list(late) == [2 * PER_UPDATE] == [shared.description.steps]
    for name, tensor in tensors_of(late[2 * PER_UPDATE].network).items():
        np.testing.assert_array_equal(tensor, tensors_of(shared.network)[name])
    np.testing.assert_allclose(late[2 * PER_UPDATE].delta, shared.delta, rtol=1e-6)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--limit", "1"], "either a run"),
        (["RUN"], "which limit"),
        (["RUN", "--limit", "1/parsec"], "unit"),
        (["RUN", "--limit", "1", "--limit", "2"], "2 limits for 1 costs"),
        (["RUN", "--limit", "1", "--confidence", "1.5"], "confidence"),
        (["RUN", "--limit", "1", "--seed", "100000"], "seed"),
        (["--check", "nowhere.json"], "nowhere.json"),
    ],
)
def test_bad_input_is_refused(run, words, reason, call):
    code, _, err = call("certify", *[run if word == "RUN" else word for word in words])
    assert code == 2
    assert reason in err
