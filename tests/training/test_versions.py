"""Versions decide numbers: those that were tried are pinned, recorded and compared."""

import json
import tomllib

import pytest
from packaging.requirements import Requirement

from tailsafe.training.versions import differences, versions, warn_of_differences
from tests.training.tiny import ROOT


def test_every_dependency_has_a_tried_version_within_its_range():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {r.name.lower().replace("_", "-"): r for r in (Requirement(x) for x in lines if not x.startswith("#"))}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [text for name in ("plot", "onnx", "docs", "test") for text in project["optional-dependencies"][name]]
    wanted = [Requirement(text) for text in project["dependencies"] + extras if not text.startswith("tailsafe[")]
    assert len(wanted) > 20
    for requirement in wanted:
        (only,) = pinned[requirement.name.lower().replace("_", "-")].specifier
        assert only.operator == "=="
        assert requirement.specifier.contains(only.version), requirement


def test_differences_are_named(tmp_path, caplog):
    here = versions()
    assert {"tailsafe", "python", "jax", "mujoco"} <= set(here)
    assert differences(here) == []
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"versions": here}))
    warn_of_differences(config)
    assert caplog.text == ""
    config.write_text(json.dumps({"versions": here | {"mujoco": "3.5.0", "jax": 7}}))
    warn_of_differences(config)
    assert f"{tmp_path}: made with other versions" in caplog.text
    assert f"mujoco {here['mujoco']} (was 3.5.0)" in caplog.text
    assert "jax" not in caplog.text


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"versions": 3}'])
def test_what_is_not_known_is_not_said(tmp_path, caplog, content):
    (tmp_path / "config.json").write_text(content)
    warn_of_differences(tmp_path / "config.json")
    warn_of_differences(tmp_path / "nowhere.json")
    assert caplog.text == ""
