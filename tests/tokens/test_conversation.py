from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tokens.conversation import ContentFormat, converse, developers_to_system
from gateway.tokens.reasons import Unrenderable, Why


def one(message: dict[str, Any], content_format: ContentFormat = "string") -> dict[str, Any]:
    before = copy.deepcopy(message)
    (read,) = converse([message], content_format)
    assert message == before
    return read


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


@pytest.mark.parametrize(
    ("content", "string", "openai"),
    [
        ("hi", "hi", [text("hi")]),
        ("", "", [text("")]),
        (None, "", []),
        ([], "", []),
        ([text("a"), text("b")], "a\nb", [text("a"), text("b")]),
        ([text(""), text("b")], "b", [text(""), text("b")]),
        (["a", "", text("b")], "a\nb", [text("a"), text(""), text("b")]),
        ([{"type": "refusal", "refusal": "no"}], "no", [text("no")]),
        ([{"type": "thinking", "thinking": "hm", "closed": True}], "hm", [text("hm")]),
        ([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}], "a\nb", [text("a"), text("b")]),
        ([{"type": "text", "text": None}, text("b")], "b", [text("b")]),
        (
            [{"text": "a", "type": "text", "cache_control": {"type": "ephemeral"}, "name": "x"}],
            "a",
            [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}],
        ),
        ([{"type": "tool_reference", "name": "t"}], "t", [{"type": "tool_reference", "name": "t"}]),
    ],
)
def test_contents_in_both_formats(content: Any, string: str, openai: list[dict[str, Any]]) -> None:
    assert one({"role": "user", "content": content}) == {"role": "user", "content": string}
    assert one({"role": "user", "content": content}, "openai") == {"role": "user", "content": openai}


def test_a_message_without_content_is_an_empty_one() -> None:
    assert one({"role": "assistant"}) == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "x"}},
        {"type": "input_audio", "input_audio": {}},
        {"type": "video_url", "video_url": {}},
        {"type": "file", "file": {}},
        {"image_url": "x"},
        {"type": "text", "image_url": "x", "uuid": "1"},
    ],
)
@pytest.mark.parametrize("content_format", ["string", "openai"])
def test_media_cannot_be_counted_here(part: dict[str, Any], content_format: ContentFormat) -> None:
    with pytest.raises(Unrenderable) as caught:
        one({"role": "user", "content": [text("look"), part]}, content_format)
    assert caught.value.why is Why.MEDIA


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"role": 5, "content": "x"},
        {"role": "user", "content": 5},
        {"role": "user", "content": {"type": "text", "text": "a"}},
        {"role": "user", "content": [5]},
        {"role": "user", "content": [{"type": "x"}]},
        {"role": "user", "content": [{"text": "no type"}]},
        {"role": "user", "content": [{"type": 5}]},
        {"role": "user", "content": [{"type": "text", "text": 5}]},
        {"role": "user", "content": [{"type": "text", "text": "a", "uuid": "1"}]},
        {"role": "assistant", "tool_calls": {"a": 1}},
        {"role": "assistant", "tool_calls": [5]},
        {"role": "assistant", "tool_calls": [{"function": "f"}]},
        {"role": "assistant", "tool_calls": [{"type": "custom", "custom": {}}]},
    ],
)
def test_what_vllm_refuses_is_not_rendered(message: dict[str, Any]) -> None:
    with pytest.raises(Unrenderable) as caught:
        one(message)
    assert caught.value.why is Why.MESSAGES


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ('{"b": 1, "a": [2.50, 1e3]}', {"b": 1, "a": [2.5, 1000.0]}),
        ("{}", {}),
        ("", {}),
        (None, {}),
        ("null", {}),
        ("[1]", {}),
        ('"x"', {}),
        ("{broken", {}),
        ({"a": 1}, {"a": 1}),
        ([1], {}),
    ],
)
def test_arguments_become_an_object(given: Any, arguments: dict[str, Any]) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": given}}
    read = one({"role": "assistant", "content": None, "tool_calls": [call]})
    assert read["tool_calls"] == [{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}]


def test_the_keys_of_a_call_stand_in_vllms_order() -> None:
    call = {"x": 1, "type": "function", "function": {"y": 2, "name": "f", "arguments": "{}"}, "id": "1"}
    (read,) = one({"role": "assistant", "tool_calls": [call]})["tool_calls"]
    assert list(read) == ["id", "function", "type", "x"]
    assert list(read["function"]) == ["arguments", "name", "y"]


def test_empty_calls_are_dropped() -> None:
    assert one({"role": "assistant", "content": "a", "tool_calls": []}) == {"role": "assistant", "content": "a"}
    assert one({"role": "assistant", "content": "a", "tool_calls": None}) == {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    ("fields", "reasoning"),
    [
        ({"reasoning": "r"}, "r"),
        ({"reasoning_content": "c"}, "c"),
        ({"reasoning": "r", "reasoning_content": "c"}, "r"),
        ({"reasoning": None, "reasoning_content": "c"}, "c"),
    ],
)
def test_reasoning_has_both_of_its_names(fields: dict[str, Any], reasoning: str) -> None:
    read = one({"role": "assistant", "content": "a", **fields})
    assert (read["reasoning"], read["reasoning_content"]) == (reasoning, reasoning)
    assert "reasoning" not in one({"role": "user", "content": "a", **fields})


def test_a_tools_answer_is_text_unless_it_refers_to_tools() -> None:
    answer = {"role": "tool", "content": [text("a"), text("b")], "tool_call_id": "1"}
    assert one(answer, "openai") == {"role": "tool", "content": "a\nb", "tool_call_id": "1"}
    assert one({"role": "tool", "content": []}, "openai")["content"] == ""
    reference = {"role": "tool", "content": [text("a"), {"type": "tool_reference", "name": "t"}]}
    assert one(reference, "openai")["content"] == [text("a"), {"type": "tool_reference", "name": "t"}]


def test_names_and_tasks_are_kept_and_other_keys_are_not() -> None:
    message = {"role": "user", "content": "a", "name": "n", "task": "t", "other": 1}
    assert one(message) == {"role": "user", "content": "a", "name": "n", "task": "t"}
    assert one({"role": "user", "content": "a", "name": 5}) == {"role": "user", "content": "a"}


HEADER = "x-anthropic-billing-header: cch=123"


@pytest.mark.parametrize(
    ("content", "left"),
    [(f"{HEADER}\nYou are.", "You are."), (HEADER, ""), ([HEADER, text(f"{HEADER}\nB"), text("C")], "B\nC")],
)
def test_the_billing_header_of_a_system_text_is_dropped(content: Any, left: str) -> None:
    assert one({"role": "system", "content": content})["content"] == left
    assert HEADER in one({"role": "user", "content": content})["content"]


@given(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["system", "user", "assistant", "tool", "developer", "other"]),
            "content": st.text(max_size=5)
            | st.builds(f"{HEADER}{{}}".format, st.sampled_from(["", "\n", "\nB", " B"])),
        },
        optional={
            "name": st.none() | st.just("n"),
            "task": st.just("t"),
            "tool_call_id": st.none() | st.just("1"),
            "tools": st.none() | st.just([{"function": {"name": "f"}, "type": "function"}]),
            "reasoning": st.none() | st.text(max_size=2),
            "tool_calls": st.just([{"id": "1", "function": {"name": "f", "arguments": "{}"}}]),
        },
    ),
    st.booleans(),
)
def test_a_text_is_what_a_single_part_is(message: dict[str, Any], built: bool) -> None:
    """The one takes a shorter way."""
    before = json.dumps(message)
    read = converse([message], "string", built=built)
    assert json.dumps(read) == json.dumps(
        converse([message | {"content": [message["content"]]}], "string", built=built)
    )
    assert json.dumps(read) == json.dumps(
        converse([message | {"content": [text(message["content"])]}], "string", built=built)
    )
    assert read[0] is not message
    assert json.dumps(message) == before


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


@pytest.mark.parametrize(
    ("roles", "left"),
    [
        ([("developer", "D"), ("user", "u")], [system("D"), {"role": "user", "content": "u"}]),
        ([("system", "S"), ("developer", "D"), ("user", "u")], [system("S\n\nD"), {"role": "user", "content": "u"}]),
        ([("user", "u"), ("developer", "D")], [system("D"), {"role": "user", "content": "u"}]),
        ([("developer", ""), ("system", "S")], [system("S")]),
        ([("developer", [text("a"), text("b")]), ("system", "S")], [system("a\nb\n\nS")]),
        ([("developer", [text("a"), text("b")])], [system([text("a"), text("b")])]),
    ],
)
def test_developers_become_the_system(roles: list[tuple[str, Any]], left: list[dict[str, Any]]) -> None:
    conversation = [{"role": role, "content": content} for role, content in roles]
    for message in conversation:
        if message["role"] == "developer":
            message["tools"] = None
    assert developers_to_system(conversation) == left


@given(
    st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["system", "user", "assistant", "tool", "developer"])},
            optional={"content": st.text(max_size=5) | st.lists(st.builds(text, st.text(max_size=5)), max_size=3)},
        ),
        max_size=5,
    )
)
def test_every_text_is_kept(messages: list[dict[str, Any]]) -> None:
    for content_format in ("string", "openai"):
        read = converse(messages, content_format)  # type: ignore[arg-type]
        assert [message["role"] for message in read] == [message["role"] for message in messages]
        merged = repr(developers_to_system(read))
        for message in messages:
            content = message.get("content", "")
            for part in [content] if isinstance(content, str) else [part["text"] for part in content]:
                assert repr(part)[1:-1] in merged or "'" in part or '"' in part


def test_tools_in_a_developers_message_come_in_the_order_that_vllm_gives_them() -> None:
    function = {"strict": None, "x": 3, "parameters": {"b": 1, "a": 2}, "name": "n"}
    message = {"role": "developer", "content": "x", "tools": [{"zz": 1, "type": "function", "function": function}]}
    (told,) = converse([message], "string")
    assert json.dumps(told["tools"]) == (
        '[{"function": {"name": "n", "parameters": {"b": 1, "a": 2}, "strict": null, "x": 3}, '
        '"type": "function", "zz": 1}]'
    )
    with pytest.raises(Unrenderable):
        converse([{**message, "tools": [{"type": "function"}]}], "string")
