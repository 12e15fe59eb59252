"""Compiled programs are dropped before a process runs out of memory maps."""

import jax
import pytest

from tailsafe.physics.compilation import make_room


@pytest.fixture
def proc(tmp_path):
    """Like /proc of a process that uses 600 of 1000 maps."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "maps").write_text("map\n" * 600)
    (tmp_path / "sys" / "vm").mkdir(parents=True)
    (tmp_path / "sys" / "vm" / "max_map_count").write_text("1000\n")
    return tmp_path


def test_programs_are_dropped_beyond_the_share_alone(proc):
    double = jax.jit(lambda x: 2 * x)
    double(1.0)
    assert not make_room(0.6, proc)
    assert double._cache_size() == 1
    assert make_room(0.5, proc)
    assert double._cache_size() == 0
    assert double(1.0) == 2


def test_systems_without_such_a_table_are_left_alone(tmp_path):
    assert not make_room(0, tmp_path)
