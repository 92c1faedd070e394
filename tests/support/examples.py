"""How many examples of a property a test draws, and which of its cases it tries."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

THOROUGH = "thorough"
"""The profile of ``make test-slow``."""

SHARE = 10
"""Another run draws other examples, and most of their time is Hypothesis's own: ``make test`` draws a tenth."""

LEAST = 10
"""Examples that are not shared any more."""


def examples(count: int, **more: Any) -> settings:
    """Settings of a test that wants ``count`` examples in a thorough run. ``more``: of ``hypothesis.settings``."""
    thorough = settings.get_current_profile_name() == THOROUGH
    return settings(max_examples=count if thorough else max(count // SHARE, min(count, LEAST)), **more)


def slowly(*cases: Any) -> list[Any]:
    """Cases of ``parametrize`` that are left to ``make test-slow``: another one shows nearly the same."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow) for case in cases]
