"""How many examples of a property a test draws."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

THOROUGH = "thorough"
"""The profile of ``make test-slow``."""

SHARE = 5
"""Another run draws other examples, and most of their time is Hypothesis's own: ``make test`` draws a fifth."""

LEAST = 10
"""Examples that are not shared any more."""


def examples(count: int, **more: Any) -> settings:
    """Settings of a test that wants ``count`` examples in a thorough run. ``more``: of ``hypothesis.settings``."""
    thorough = settings.get_current_profile_name() == THOROUGH
    return settings(max_examples=count if thorough else max(count // SHARE, min(count, LEAST)), **more)
