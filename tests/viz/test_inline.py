"""Pictures that notebooks show in place."""

import base64
from pathlib import Path

import pytest

import tailsafe as ts
from tailsafe.errors import InputError
from tailsafe.viz.inline import Picture
from tests.report.folders import make_run


def test_curves_of_a_run_are_a_picture(tmp_path):
    folder = make_run(tmp_path / "run")
    picture = ts.plot(folder)
    assert repr(picture) == f"Picture({str(folder / 'curves.png')!r})"
    shown = picture._repr_mimebundle_()
    assert base64.b64decode(shown["image/png"]) == (folder / "curves.png").read_bytes()
    vector = ts.plot(folder, tmp_path / "curves.svg")._repr_mimebundle_()
    assert "limit 0.025/step" in vector["image/svg+xml"] or "<svg" in vector["image/svg+xml"]
    with pytest.raises(InputError, match="no such run"):
        ts.plot(tmp_path / "nothing")


def test_a_picture_that_is_gone_is_still_named():
    assert Picture(Path("gone.png"))._repr_mimebundle_() == {"text/plain": "Picture('gone.png')"}
