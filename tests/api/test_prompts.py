from __future__ import annotations

import contextlib
import json
from array import array

import msgspec
import pytest

from gateway.api.prompts import MAX_PROMPTS, READERS
from gateway.core.prompt import ChatInput, OpaqueInput, PromptInput, TextInput, TokenInput
from gateway.errors import ClientError
from gateway.framework import Kind


def prompt(kind: Kind, body: dict[str, object] | str) -> PromptInput:
    raw = body if isinstance(body, str) else json.dumps(body, separators=(",", ":"))
    return READERS[kind](msgspec.json.decode(raw.encode(), type=dict[str, msgspec.Raw]))


USER = {"role": "user", "content": "hi"}


def test_a_chat_with_everything_that_changes_its_rendering() -> None:
    read = prompt(
        Kind.CHAT,
        {
            "messages": [USER],
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "tool_choice": "none",
            "documents": [{"title": "t", "text": "x"}],
            "chat_template": "{{ x }}",
            "chat_template_kwargs": {"enable_thinking": False},
            "reasoning_effort": "low",
            "add_generation_prompt": False,
            "continue_final_message": True,
            "add_special_tokens": True,
            "truncate_prompt_tokens": 5,
        },
    )
    assert read == ChatInput(
        messages=[USER],
        raw=b'[{"type":"function","function":{"name":"f"}}][{"title":"t","text":"x"}][{"role":"user","content":"hi"}]',
        tools=[{"type": "function", "function": {"name": "f"}}],
        tool_choice="none",
        documents=[{"title": "t", "text": "x"}],
        template="{{ x }}",
        template_kwargs={"enable_thinking": False},
        reasoning_effort="low",
        add_generation_prompt=False,
        continue_final_message=True,
        add_special_tokens=True,
        truncated=True,
    )


def test_a_plain_chat_has_vllms_defaults() -> None:
    read = prompt(Kind.CHAT, '{"messages": [ {"role":"user","content":"\\u00e9"} ], "tools": null}')
    assert isinstance(read, ChatInput)
    assert bytes(read.raw) == b'null[ {"role":"user","content":"\\u00e9"} ]'
    assert read.messages == [{"role": "user", "content": "é"}]
    assert (read.tools, read.template_kwargs, read.add_generation_prompt, read.truncated) == (None, {}, True, False)


@pytest.mark.parametrize(
    "odd", [{"tools": {}}, {"tools": [1]}, {"chat_template_kwargs": []}, {"add_generation_prompt": None}]
)
def test_options_of_a_wrong_type_are_the_engines_to_refuse(odd: dict[str, object]) -> None:
    read = prompt(Kind.CHAT, {"messages": [USER], **odd})
    assert isinstance(read, OpaqueInput)
    assert read.why == "malformed"


@pytest.mark.parametrize("kind", [Kind.CHAT, Kind.MESSAGES])
@pytest.mark.parametrize(
    "body", ['{"a":1}', '{"messages":[]}', '{"messages":null}', '{"messages":{}}', '{"messages":[1]}']
)
def test_messages_must_be_a_list_of_objects_that_is_not_empty(kind: Kind, body: str) -> None:
    with pytest.raises(ClientError) as caught:
        prompt(kind, body)
    assert caught.value.param == "messages"


def test_messages_nested_too_deeply_are_refused() -> None:
    # As a top-level value they pass the first, lazy parse when their depth is just inside of its limit.
    deep = '{"messages":[{"role":"user","content":' + "[" * 900 + "]" * 900 + "}]}"
    with contextlib.suppress(ClientError):
        assert isinstance(prompt(Kind.CHAT, deep), ChatInput)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('"hi"', TextInput(("hi",))),
        ('""', TextInput(("",))),
        ('["a","b"]', TextInput(("a", "b"))),
        ("[1,2]", TokenInput((array("I", [1, 2]),))),
        ("[ 1 , 2 ]", TokenInput((array("I", [1, 2]),))),
        ("[[1,2],[3]]", TokenInput((array("I", [1, 2]), array("I", [3])))),
        (f"[{2**32 - 1}]", TokenInput((array("I", [2**32 - 1]),))),
    ],
)
def test_the_four_forms_of_a_completions_prompt(value: str, expected: PromptInput) -> None:
    assert prompt(Kind.COMPLETION, f'{{"prompt":{value}}}') == expected


def test_how_a_completion_is_tokenized() -> None:
    read = prompt(Kind.COMPLETION, '{"prompt":"a","add_special_tokens":false,"truncate_prompt_tokens":-1}')
    assert read == TextInput(("a",), add_special_tokens=False, truncated=True)
    assert prompt(Kind.COMPLETION, '{"prompt":"a","truncate_prompt_tokens":null}') == TextInput(("a",))


@pytest.mark.parametrize(
    "body",
    [
        "{}",
        '{"prompt":null}',
        '{"prompt":[]}',
        '{"prompt":[ ]}',
        '{"prompt":5}',
        '{"prompt":{}}',
        '{"prompt":[1,"a"]}',
        '{"prompt":["a",1]}',
        '{"prompt":[1.5]}',
        '{"prompt":[true]}',
        '{"prompt":[-1]}',
        '{"prompt":[4294967296]}',
        '{"prompt":[[1],["a"]]}',
    ],
)
def test_other_prompts_are_the_clients_error(body: str) -> None:
    with pytest.raises(ClientError) as caught:
        prompt(Kind.COMPLETION, body)
    assert caught.value.param == "prompt"


def test_embeddings_as_a_prompt_have_no_tokens() -> None:
    assert prompt(Kind.COMPLETION, '{"prompt_embeds":"abc"}') == OpaqueInput(b'"abc"', "embeds")
    assert prompt(Kind.COMPLETION, '{"prompt":"x","prompt_embeds":["abc"]}') == OpaqueInput(b'["abc"]', "embeds")
    assert prompt(Kind.COMPLETION, '{"prompt":"x","prompt_embeds":null}') == TextInput(("x",))


def test_ids_that_the_engine_will_truncate_are_not_known() -> None:
    read = prompt(Kind.COMPLETION, '{"prompt":[1,2,3],"truncate_prompt_tokens":2}')
    assert read == OpaqueInput(b"[1,2,3]", "truncated")


@pytest.mark.parametrize(
    ("kind", "body", "raw"),
    [
        (Kind.EMBEDDING, {"input": ["a"], "dimensions": 3}, b'["a"]'),
        (Kind.RERANK, {"documents": ["d"], "query": "q", "top_n": 1}, b'"q"["d"]'),
        (Kind.SCORE, {"text_2": "b", "text_1": "a"}, b'"a""b"'),
        (Kind.TOKENIZE, {"prompt": "a"}, b'"a"'),
        (Kind.DETOKENIZE, {"tokens": [1]}, b"[1]"),
    ],
)
def test_of_other_kinds_the_prompt_is_its_bytes_in_rendering_order(
    kind: Kind, body: dict[str, object], raw: bytes
) -> None:
    assert prompt(kind, body) == OpaqueInput(raw, "route")


def test_responses_and_anthropics_messages_are_chats() -> None:
    read = prompt(Kind.RESPONSES, {"input": "b", "instructions": "a", "model": "m"})
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    assert read == ChatInput(messages, b'"a""b"', add_special_tokens=True, built=True)
    read = prompt(Kind.MESSAGES, {"messages": [USER], "system": "s", "max_tokens": 5})
    messages = [{"role": "system", "content": "s"}, USER]
    assert read == ChatInput(messages, b'"s"[{"role":"user","content":"hi"}]', system_first=True)


@pytest.mark.parametrize(
    ("kind", "body", "why"),
    [
        (Kind.RESPONSES, {"input": "b", "previous_response_id": "resp_1"}, "previous-response"),
        (Kind.RESPONSES, {"input": "b", "previous_response_id": 5}, "previous-response"),
        (Kind.RESPONSES, {}, "malformed"),
        (Kind.RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}, "malformed"),
        (Kind.RESPONSES, {"input": [{"type": ["message"]}]}, "malformed"),
        (Kind.MESSAGES, {"messages": [{"role": "tool", "content": "x"}]}, "malformed"),
        (Kind.MESSAGES, {"messages": [USER], "tools": [1]}, "malformed"),
    ],
)
def test_what_is_not_known_of_them_has_a_reason(kind: Kind, body: dict[str, object], why: str) -> None:
    read = prompt(kind, body)
    assert isinstance(read, OpaqueInput)
    assert read.why == why


def test_a_longer_conversation_begins_with_the_shorter_ones_bytes() -> None:
    turns: list[object] = [{"role": "user", "content": f"turn {i}"} for i in range(3)]
    short = prompt(Kind.MESSAGES, {"messages": turns[:2], "system": "s", "tools": [1], "max_tokens": 1})
    long = prompt(Kind.MESSAGES, {"max_tokens": 9, "tools": [1], "system": "s", "messages": turns})
    assert isinstance(short, OpaqueInput)
    assert isinstance(long, OpaqueInput)
    assert bytes(long.raw).startswith(bytes(short.raw)[:-1])


@pytest.mark.parametrize("prompt", [b'"a"', b"[1]"])
def test_more_prompts_than_a_request_may_have_are_refused(prompt: bytes) -> None:
    def of(count: int) -> dict[str, msgspec.Raw]:
        return {"prompt": msgspec.Raw(b"[" + b",".join([prompt] * count) + b"]")}

    READERS[Kind.COMPLETION](of(MAX_PROMPTS))
    with pytest.raises(ClientError, match="4097 prompts") as caught:
        READERS[Kind.COMPLETION](of(MAX_PROMPTS + 1))
    assert (caught.value.status, caught.value.param) == (400, "prompt")


def test_booleans_of_a_prompt_are_read_as_pydantic_reads_them() -> None:
    read = prompt(Kind.CHAT, {"messages": [USER], "add_generation_prompt": "no", "continue_final_message": 1})
    assert isinstance(read, ChatInput)
    assert (read.add_generation_prompt, read.continue_final_message) == (False, True)
    assert isinstance(prompt(Kind.CHAT, {"messages": [USER], "add_generation_prompt": "?"}), OpaqueInput)
    for value, special in ((0, False), ("off", False), (1, True)):
        completion = prompt(Kind.COMPLETION, {"prompt": "x", "add_special_tokens": value})
        assert isinstance(completion, TextInput)
        assert completion.add_special_tokens is special


def test_the_messages_of_a_plain_chat_are_not_copied_for_an_estimate_that_is_seldom_made() -> None:
    read = prompt(Kind.CHAT, '{"messages": [{"role": "user", "content": "Hi"}]}')
    assert isinstance(read, ChatInput)
    assert isinstance(read.raw, msgspec.Raw)
    assert (bytes(read.raw), len(read.raw)) == (b'[{"role": "user", "content": "Hi"}]', 35)
