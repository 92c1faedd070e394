"""A link as text."""

from __future__ import annotations

import pytest

from gateway.commands.replay.fleet import Link, link
from gateway.errors import ConfigError


def test_a_link_is_read() -> None:
    assert link("rate=3e9,latency=0.01") == Link(3e9, 0.01)
    assert link("latency=0") == Link(latency=0.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rate=0", r"--link: rate must be in 1\.\."),
        ("rate=nan", r"--link: rate must be in 1\.\."),
        ("latency=-1", r"--link: latency must be in 0\.\.60"),
        ("speed=3", "--link: there is no 'speed'"),
        ("fast", "must be NAME=VALUE"),
    ],
)
def test_what_is_no_link(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        link(text)
