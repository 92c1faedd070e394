from __future__ import annotations

import os

from gateway.core.files import state_of


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
