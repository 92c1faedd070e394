from __future__ import annotations

import os
import stat

import pytest

from gateway.workers.private_directory import LOCK, PREFIX, YOUNG, private_directory


def test_nobody_else_may_enter_and_nothing_is_left(tmp_path) -> None:
    with private_directory(str(tmp_path)) as made:
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
        (made / "admin.0").touch()
        with private_directory(str(tmp_path)) as other:  # of another service, which leaves ours alone
            assert other != made
        assert (made / LOCK).exists()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_parent_has_left_is_removed(tmp_path) -> None:
    stale, old, young = (tmp_path / f"{PREFIX}{name}" for name in ("stale", "old", "young"))
    for left in (stale, old, young):
        left.mkdir()
    (stale / LOCK).touch()  # and nobody holds it
    (stale / "admin.0").touch()
    os.utime(old, (0, os.stat(old).st_mtime - 2 * YOUNG))
    with private_directory(str(tmp_path)) as made:
        assert set(tmp_path.iterdir()) == {made, young}


def test_a_path_has_room_for_the_names_of_sockets(tmp_path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    with private_directory(str(long)) as made:
        assert len(str(made / "worker.255.sock")) < 100


def test_where_there_is_no_room_it_raises(tmp_path) -> None:
    with pytest.raises(FileNotFoundError), private_directory(str(tmp_path / "none")):
        raise AssertionError
