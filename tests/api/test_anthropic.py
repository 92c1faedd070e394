"""What Anthropic's messages become is held against vLLM's own code in ``tests/tokens/test_render_conversions.py``."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.api.anthropic import FIELDS, read_messages
from gateway.core.prompt import ChatInput, NotConvertible

PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


def messages(*content: dict[str, Any]) -> list[Any]:
    return list(read_messages({"messages": [{"role": "user", "content": list(content)}]}, b"").messages)


def test_images_are_parts_in_their_place() -> None:
    assert messages({"type": "text", "text": "a"}, PICTURE) == [
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": PICTURE["source"]}],
        }
    ]
    assert messages({"type": "image"}, {"type": "text", "text": "a"}) == [{"role": "user", "content": "a"}]


def test_a_results_images_stand_behind_it_as_the_users() -> None:
    empty = {"type": "image", "source": {"type": "url", "url": ""}}
    text = {"type": "text", "text": "see"}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [PICTURE, text, empty]}
    assert messages(result, {"type": "text", "text": "well?"}) == [
        {"role": "tool", "tool_call_id": "t", "content": "see"},
        {"role": "user", "content": [{"type": "image_url", "image_url": PICTURE["source"]}]},
        {"role": "user", "content": "well?"},
    ]


def test_a_tools_schema_is_not_changed() -> None:
    schema: dict[str, Any] = {"properties": {}}
    tools = [{"name": "f", "input_schema": schema}]
    read = read_messages({"messages": [{"role": "user", "content": "a"}], "tools": tools}, b"")
    assert read.tools is not None
    assert read.tools[0]["function"]["parameters"] == {"properties": {}, "type": "object"}
    assert schema == {"properties": {}}


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.integers(-5, 5),
        st.sampled_from(
            ["", "text", "assistant", "user", "system", "tool_use", "tool_result", "image", "tool_removal"]
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["type", "role", "content", "text", "source", "id", "name", "input", "tool", "thinking"]),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=12,
)


@given(body=st.dictionaries(st.sampled_from(FIELDS), st.one_of(JSON, st.lists(JSON, max_size=4)), max_size=6))
def test_any_json_is_read_or_refused(body: dict[str, object]) -> None:
    with contextlib.suppress(NotConvertible):
        assert isinstance(read_messages(body, b""), ChatInput)
