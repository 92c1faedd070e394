from __future__ import annotations

import pytest

from gateway.errors import ConfigError
from gateway.proxy.http.keys import read
from gateway.proxy.settings import KeySettings


def test_keys_are_read_from_the_settings_and_their_file(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# a comment\n\n two \n")
    assert read(KeySettings(("one",), str(file))) == ["one", "two"]
    assert read(KeySettings()) == []


@pytest.mark.parametrize("content", ["", "# none\n", b"\xff"])
def test_a_file_without_keys_is_refused(content, tmp_path):
    file = tmp_path / "keys"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match="keys"):
        read(KeySettings(file=str(file)))
