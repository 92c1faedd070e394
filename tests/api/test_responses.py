"""What a response's input becomes is held against vLLM's own code in ``tests/tokens/test_render_conversions.py``."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.responses import FIELDS, read_id, read_response
from gateway.core.prompt import ChatInput, NotConvertible

CREATED = (
    b'event: response.created\ndata: {"response":{"id":"resp_1","status":"in_progress"},"type":"response.created"}\n\n'
)


@pytest.mark.parametrize(
    ("answer", "stream", "found"),
    [
        (b'{"object":"response","id":"resp_1","output":[{"id":"msg_1"}]}', False, "resp_1"),
        (b'{"output":[{"id":"msg_1"}]}', False, None),
        (b'{"id":5}', False, None),
        (b"[]", False, None),
        (b"", False, None),
        (b"\xff", False, None),
        (CREATED, True, "resp_1"),
        (b": keep-alive\n\n" + CREATED + b'data: {"response":{"id":"other"}}\n\n', True, "resp_1"),
        (CREATED.replace(b"data: ", b"data:").replace(b"\n", b"\r\n"), True, "resp_1"),
        (b'data: {"error":{"message":"x"}}\n\n', True, None),
        (b"data: [DONE]\n\n", True, None),
        (b"", True, None),
    ],
)
def test_the_id_in_an_answer(answer: bytes, stream: bool, found: str | None) -> None:
    assert read_id(answer, stream=stream) == found


def test_the_input_is_not_changed() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    given = {"input": [{"role": "assistant", "content": "a"}, call, {**call, "call_id": "d"}]}
    copy = {"input": [dict(item) for item in given["input"]]}
    read = read_response(given, b"")
    assert given == copy
    assert [len(message["tool_calls"]) for message in read.messages] == [2]


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-5, 5),
        st.sampled_from(
            ["", "message", "assistant", "user", "function_call", "reasoning", "input_text", "output_text"]
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["type", "role", "content", "text", "summary", "call_id", "name", "arguments", "status"]),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=12,
)


@given(body=st.dictionaries(st.sampled_from(FIELDS), st.one_of(JSON, st.lists(JSON, max_size=4)), max_size=6))
def test_any_json_is_read_or_refused(body: dict[str, object]) -> None:
    with contextlib.suppress(NotConvertible):
        assert isinstance(read_response(body, b""), ChatInput)
