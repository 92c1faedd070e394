from __future__ import annotations

import fcntl
import os
import stat

import pytest

from gateway.workers.private_directory import LOCKED, LONGEST, PREFIX, YOUNG, private_directory


def test_nobody_else_may_enter_and_nothing_is_left(folder) -> None:
    with private_directory(str(folder)) as made:
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
        (made / "admin.0").touch()
        with private_directory(str(folder)) as other:  # of another service, which leaves ours alone
            assert other != made
        assert (made / LOCKED).exists()
    assert list(folder.iterdir()) == []


def test_what_cleans_temporary_files_leaves_it_alone(folder) -> None:
    """systemd-tmpfiles takes the lock of each directory before it looks into it for what is old."""
    with private_directory(str(folder)) as made:
        cleaner = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(cleaner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(cleaner)


def test_what_a_killed_parent_has_left_is_removed(folder) -> None:
    stale, old, young = (folder / f"{PREFIX}{name}" for name in ("stale", "old", "young"))
    for left in (stale, old, young):
        left.mkdir()
    (stale / LOCKED).touch()  # and nobody holds its lock
    (stale / "admin.0").touch()
    os.utime(old, (0, os.stat(old).st_mtime - 2 * YOUNG))
    with private_directory(str(folder)) as made:
        assert set(folder.iterdir()) == {made, young}


def test_a_path_has_room_for_the_names_of_sockets(folder) -> None:
    long = folder / ("x" * 100)
    long.mkdir()
    with private_directory(str(long)) as made:
        assert len(str(made)) <= LONGEST + 24


def test_where_there_is_no_room_it_raises(folder) -> None:
    with pytest.raises(FileNotFoundError), private_directory(str(folder / "none")):
        raise AssertionError
