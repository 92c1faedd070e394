"""Fleets as a line of text."""

from __future__ import annotations

import pytest

from gateway.commands.replay.fleet import Kind, count, kinds, named
from gateway.errors import ConfigError
from gateway.framework import Role
from simulator.virtual.machine import MACHINES

BIG, SMALL, HOST = MACHINES["70b-tp4"], MACHINES["8b-h100"], MACHINES["70b-tp4+host"]


@pytest.mark.parametrize(
    ("text", "fleet"),
    [
        ("70b-tp4", (Kind(BIG),)),
        ("4 x 70b-tp4 + 2 x 8b-h100", (Kind(BIG, 4), Kind(SMALL, 2))),
        ("2 x 70b-tp4:prefill + 8b-h100:decode", (Kind(BIG, 2, Role.PREFILL), Kind(SMALL, 1, Role.DECODE))),
        (" 4*70b-tp4+host  +  8b-h100 ", (Kind(HOST, 4), Kind(SMALL))),
    ],
)
def test_kinds_are_read_and_named(text, fleet) -> None:
    assert kinds(text) == fleet
    assert kinds(named(fleet)) == fleet


def test_they_are_counted() -> None:
    assert count(kinds("4 x 70b-tp4 + 2 x 8b-h100")) == 6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' names no machine"),
        ("4 x", "'4 x' names no machine"),
        ("4", "there is no machine '4'"),
        ("2 x 70b-tp8", "there is no machine '70b-tp8'; did you mean '70b-tp4'"),
        ("70b-tp4 + ", "names no machine|there is no machine"),
        ("2 x 70b-tp4:prefil", "there is no role 'prefil'; did you mean 'prefill'"),
        ("2 x 70b-tp4:", "there is no role ''"),
        ("0 x 70b-tp4", "endpoints must be in 1..10000, found 0 x 70b-tp4"),
        ("99999999999 x 70b-tp4", "endpoints must be in 1..10000"),
    ],
)
def test_what_is_no_fleet(text, said) -> None:
    with pytest.raises(ConfigError, match=said):
        kinds(text)
