from __future__ import annotations

import pytest

from simulator.kubernetes.selectors import parse

LABELS = {"app": "vllm", "llm-d.ai/role": "prefill", "old": ""}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("", True),
        ("app=vllm", True),
        ("app==vllm, llm-d.ai/role in (prefill, decode)", True),
        ("app!=vllm", False),
        ("tier!=test", True),
        ("tier notin (test)", True),
        ("app notin (vllm)", False),
        ("app,old", True),
        ("!old", False),
        ("!zone,app=vllm", True),
        ("app=", False),
    ],
)
def test_selectors(selector: str, matches: bool) -> None:
    assert parse(selector)(LABELS) is matches


def test_what_is_no_selector_is_refused() -> None:
    with pytest.raises(ValueError, match="unable to parse requirement"):
        parse("app=vllm;drop")
