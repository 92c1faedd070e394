from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.tokens.reasons import Unrenderable, Why
from gateway.tokens.tools import dump_tools


@pytest.mark.parametrize(
    ("tool", "dumped"),
    [
        (
            {"type": "function", "function": {"name": "f"}},
            '{"type":"function","function":{"name":"f","description":null,"parameters":null}}',
        ),
        (
            {"function": {"parameters": {"b": 1, "a": 2}, "description": "d", "name": "f"}},
            '{"type":"function","function":{"name":"f","description":"d","parameters":{"b":1,"a":2}}}',
        ),
        (
            {"type": "function", "function": {"name": "f", "strict": True, "x": 1}, "y": 2},
            '{"type":"function","function":{"name":"f","description":null,"parameters":null,"strict":true}}',
        ),
        (
            {"type": "function", "function": {"name": "f", "strict": None, "defer_loading": None}},
            '{"type":"function","function":{"name":"f","description":null,"parameters":null}}',
        ),
        (
            {"type": "function", "function": {"name": "f"}, "defer_loading": True},
            '{"type":"function","function":{"name":"f","description":null,"parameters":null,"defer_loading":true},'
            '"defer_loading":true}',
        ),
        (
            {"type": "function", "function": {"name": "f", "defer_loading": False}, "defer_loading": True},
            '{"type":"function","function":{"name":"f","description":null,"parameters":null,"defer_loading":false},'
            '"defer_loading":true}',
        ),
    ],
)
def test_a_tool_as_vllms_model_dumps_it(tool: dict[str, Any], dumped: str) -> None:
    assert json.dumps(dump_tools([tool]), separators=(",", ":")) == f"[{dumped}]"


@pytest.mark.parametrize(
    "tool",
    [
        {},
        {"type": "custom", "function": {"name": "f"}},
        {"type": "function", "function": {}},
        {"function": {"name": 5}},
    ],
)
def test_what_is_no_function_is_not_rendered(tool: dict[str, Any]) -> None:
    with pytest.raises(Unrenderable) as caught:
        dump_tools([tool])
    assert caught.value.why is Why.TOOLS
