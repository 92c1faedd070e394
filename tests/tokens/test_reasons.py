from __future__ import annotations

import re

from gateway.tokens.reasons import Unrenderable, Why


def test_reasons_are_short_words_for_a_label() -> None:
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", why) for why in Why)
    assert len(Why) <= 16


def test_an_obstacle_carries_its_reason() -> None:
    assert Unrenderable(Why.MEDIA).why is Why.MEDIA
    assert str(Unrenderable(Why.MEDIA)) == "media"
