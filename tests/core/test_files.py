from __future__ import annotations

import os

import pytest

from gateway.core.files import replace_file, state_of


def test_a_file_s_state_changes_with_the_file(tmp_path):
    file, other = tmp_path / "a", tmp_path / "b"
    seen = [state_of(str(file))]
    file.write_text("one")
    seen.append(state_of(str(file)))
    assert state_of(str(file)) == seen[-1]
    file.write_text("four")
    seen.append(state_of(str(file)))
    other.write_text("five")
    os.replace(other, file)
    seen.append(state_of(str(file)))
    assert len(set(seen)) == len(seen)


def test_a_file_is_replaced_as_a_whole_and_nothing_is_left_beside_it(tmp_path):
    file = tmp_path / "a"
    replace_file(file, b"one")
    with open(file, "rb") as before:
        replace_file(file, b"two")
        assert before.read() == b"one", "who reads it has what it was"
    assert file.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["a"]
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "absent" / "a", b"three")
