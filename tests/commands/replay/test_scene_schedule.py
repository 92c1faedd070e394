"""A schedule of engines that come and go, as text."""

from __future__ import annotations

import pytest

from gateway.commands.replay.scene import Change, What, check, schedule
from gateway.errors import ConfigError


def test_changes_are_read_and_ordered_by_time() -> None:
    found = schedule(["400:join:2", "300:fail:2", "12.5:leave:0"])
    assert found == (Change(12.5, 0, What.LEAVE), Change(300, 2, What.FAIL), Change(400, 2, What.JOIN))
    assert schedule([str(change) for change in found]) == found
    check(found, 3)
    check(schedule(["5:join:1", "6:fail:1"]), 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("300", "must be AT:WHAT:ENDPOINT, such as 300:fail:2"),
        ("300:fail:-1", "must be AT:WHAT:ENDPOINT"),
        ("300:dies:1", "there is no 'dies'.*one of fail, leave, join"),
        ("300:jion:1", "did you mean 'join'"),
    ],
)
def test_what_is_no_change(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        schedule([text])


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["3:fail:2"], r"the endpoints are 0\.\.1"),
        (["3:fail:1", "4:leave:1"], "--change 4:leave:1: endpoint 1 is not there then"),
        (["3:join:1", "4:join:1"], "--change 4:join:1: endpoint 1 is there already"),
    ],
)
def test_what_makes_no_sense_after_the_one_before(texts: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check(schedule(texts), 2)
