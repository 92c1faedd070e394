from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.clock import ManualClock
from gateway.core.prompt import ChatInput
from gateway.tokens.conversation import converse
from gateway.tokens.loading import Loaded, load
from gateway.tokens.reasons import Unrenderable, Why
from gateway.tokens.render import Renderer
from gateway.tokens.settings import TokenSettings
from gateway.tokens.tools import dump_tools
from tests.support.examples import examples
from tests.tokens.folders import by_library

SHOW = "{{ messages | tojson }}|{{ tools | tojson }}|{{ add_generation_prompt }}"
USER = {"role": "user", "content": "hi"}
Render = Callable[..., str]


@pytest.fixture
def render(folder: Path, tmp_path: Path) -> Render:
    """A chat rendered with a template given as text; further keywords are the chat's, ``settings`` the model's."""

    def rendered(
        own: str | None, *messages: Mapping[str, Any], settings: Mapping[str, Any] | None = None, **chat: Any
    ) -> str:
        given: dict[str, Any] = {"tokenizer": str(folder), **(settings or {})}
        if own is not None:
            path = tmp_path / "template.jinja"
            path.write_text(own)
            given["chat_template"] = str(path)
        final = TokenSettings(**given)
        return Renderer(load(final, "m"), final).render(ChatInput(messages or (USER,), b"", **chat))

    return rendered


def test_the_tokenizers_own_template(render: Render) -> None:
    assert render(None) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert render(None, add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"


def test_the_configured_file_replaces_it(render: Render) -> None:
    assert render("{{ bos_token }}{{ messages[0].content }}") == "<|begin_of_text|>hi"


def test_what_a_template_sees(render: Render) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    messages, seen, prompt = render(SHOW, tools=tools).split("|")
    assert json.loads(messages) == [USER]
    assert json.loads(seen) == [
        {"type": "function", "function": {"name": "f", "description": None, "parameters": None}}
    ]
    assert prompt == "True"
    assert render(SHOW).split("|")[1] == "null"


def test_contents_come_as_the_template_or_the_configuration_wants(render: Render) -> None:
    parts = "{% for m in messages %}{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endfor %}"
    plain = "{% for m in messages %}{{ m.content | tojson }}{% endfor %}"
    assert render(parts) == "[hi]"
    assert render(plain) == '"hi"'
    assert render(plain, settings={"content_format": "openai"}) == '[{"type": "text", "text": "hi"}]'
    assert render(parts, settings={"content_format": "string"}) == "[][]"  # two letters without a text


def test_the_developer_role(render: Render) -> None:
    messages = (USER, {"role": "developer", "content": "D"}, {"role": "system", "content": "S"})
    roles = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    assert render(roles, *messages) == "system:D\n\nS;user:hi;"
    assert render(roles + "{# 'developer' #}", *messages) == "user:hi;developer:D;system:S;"


ARGUMENTS = (
    "{{ enable_thinking }} {{ effort }} {{ reasoning_effort }} {{ documents or '' }} {{ add_generation_prompt }}"
)


@pytest.mark.parametrize(
    ("defaults", "chat", "shown"),
    [
        ({}, {}, "    True"),
        ({"enable_thinking": False, "effort": "a"}, {}, "False a   True"),
        ({"effort": "a"}, {"template_kwargs": {"effort": "b"}}, " b   True"),
        ({"effort": "a"}, {"template_kwargs": {"effort": None}}, " a   True"),
        ({"effort": "a"}, {"template_kwargs": {"effort": "auto"}}, " a   True"),
        ({}, {"reasoning_effort": "low"}, "True  low  True"),
        ({}, {"reasoning_effort": "none"}, "False  none  True"),
        ({}, {"reasoning_effort": "none", "template_kwargs": {"enable_thinking": True}}, "True  none  True"),
        ({"enable_thinking": True}, {"reasoning_effort": "none"}, "False  none  True"),
        ({"reasoning_effort": "high"}, {}, "  high  True"),
        ({}, {"template_kwargs": {"add_generation_prompt": False}}, "    True"),
        ({"add_generation_prompt": True}, {"add_generation_prompt": False}, "    False"),
        ({}, {"template_kwargs": {"unknown": 1}}, "    True"),
        ({}, {"documents": [{"title": "t"}]}, "   [{'title': 't'}] True"),
    ],
)
def test_arguments_are_merged_as_vllm_merges_them(
    render: Render, defaults: dict[str, Any], chat: dict[str, Any], shown: str
) -> None:
    assert render(ARGUMENTS, settings={"chat_template_kwargs": defaults}, **chat) == shown


@pytest.mark.parametrize(
    "name",
    ["chat_template", "tokenize", "tools", "messages", "conversation", "return_dict", "return_assistant_tokens_mask"],
)
def test_arguments_that_are_not_a_templates(render: Render, name: str) -> None:
    with pytest.raises(Unrenderable) as caught:
        render(SHOW, template_kwargs={name: True})
    assert caught.value.why is Why.TEMPLATE_KWARGS
    assert render(SHOW, template_kwargs={name: None}) == render(SHOW)


def test_a_message_is_continued(render: Render) -> None:
    messages = (USER, {"role": "assistant", "content": "Once upon"})
    text = render(None, *messages, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith("<|im_start|>assistant\nOnce upon")
    with pytest.raises(Unrenderable) as caught:
        render(None, *messages, continue_final_message=True)
    assert caught.value.why is Why.TEMPLATE_ERROR, "vLLM takes no generation prompt behind it"


@pytest.mark.parametrize(
    "asked", [{}, {"documents": [{"title": "t"}]}, {"add_generation_prompt": False, "continue_final_message": True}]
)
def test_whatever_a_chat_asks_for_one_renderer_does_it(render: Render, asked: dict[str, Any]) -> None:
    """Another one, the library's, would show ``thinking`` beside the reasoning."""
    thought = {"role": "assistant", "content": "a", "reasoning": "r"}
    last = {"role": "assistant", "content": "b"}
    text = render(
        "{{ messages[0] | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}", thought, last, **asked
    )
    assert json.loads(text.removesuffix("ab")) == thought | {"reasoning_content": "r"}


@pytest.mark.parametrize("documents", [["text"], [{"title": "t"}, None], 5])
def test_documents_that_are_none(render: Render, documents: Any) -> None:
    with pytest.raises(Unrenderable) as caught:
        render(SHOW, documents=documents)
    assert caught.value.why is Why.TEMPLATE_ERROR


def test_the_date_is_the_clocks(folder: Path) -> None:
    loaded = replace(loading(str(folder)), template="{{ strftime_now('%d %b %Y') }}")
    noon = ManualClock(epoch=1_700_049_600)  # of 15 November 2023, so that it is that day in most of the world
    assert Renderer(loaded, TokenSettings(str(folder)), noon).render(ChatInput([USER], b"")) == "15 Nov 2023"


def test_messages_are_seen_as_the_transformers_of_vllm_show_them(render: Render) -> None:
    """Those of 5.16 to 5.19; newer ones take nulls away, and add ``thinking``."""
    messages = (
        {"role": "developer", "content": "d"},
        {"role": "assistant", "content": "a", "reasoning": "r"},
        {"role": "tool", "content": "t", "tool_call_id": None},
    )
    shown = render("{{ messages | tojson }}{# 'developer' #}", *messages)
    assert json.loads(shown) == [
        {"role": "developer", "content": "d", "tools": None},
        {"role": "assistant", "content": "a", "reasoning": "r", "reasoning_content": "r"},
        {"role": "tool", "content": "t", "tool_call_id": None},
    ]


TEXTS = st.text(st.characters(codec="utf-8"), max_size=4)
PLAIN = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": TEXTS},
        optional={
            "name": TEXTS,
            "tool_calls": st.lists(
                st.fixed_dictionaries(
                    {"id": TEXTS, "function": st.fixed_dictionaries({"arguments": st.just("{}"), "name": TEXTS})}
                ),
                max_size=2,
            ),
        },
    ),
    min_size=1,
    max_size=4,
)
"""What transformers of all versions show as it is."""


@pytest.mark.parametrize(
    "template", [None, SHOW, "{{ special }}{{ bos_token }}{{ eos_token }}{{ messages[0].role | upper }}"]
)
@examples(30)
@given(
    messages=PLAIN,
    tools=st.none() | st.just([{"type": "function", "function": {"name": "f"}}]),
    prompted=st.booleans(),
    own=st.dictionaries(st.sampled_from(["special", "bos_token", "unknown"]), TEXTS, max_size=2),
)
def test_a_text_is_what_transformers_makes_of_it(
    folder: Path,
    template: str | None,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    prompted: bool,
    own: dict[str, str],
) -> None:
    loaded = replace(loading(str(folder)), template=template)
    conversation = converse(messages, "string")
    expected = reference(folder).apply_chat_template(
        conversation,
        tools=None if tools is None else dump_tools(tools),
        chat_template=template,
        tokenize=False,
        add_generation_prompt=prompted,
        **{name: value for name, value in own.items() if name != "unknown"},
    )
    chat = ChatInput(messages, b"", tools=tools, add_generation_prompt=prompted, template_kwargs=own)
    assert Renderer(loaded, TokenSettings(str(folder))).render(chat) == expected


reference = lru_cache(maxsize=4)(by_library)


@lru_cache(maxsize=4)
def loading(path: str) -> Loaded:
    return load(TokenSettings(path), "m")


def test_a_chat_without_messages_is_none(folder: Path) -> None:
    given = TokenSettings(str(folder))
    with pytest.raises(Unrenderable) as caught:
        Renderer(load(given, "m"), given).render(ChatInput([], b""))
    assert caught.value.why is Why.TEMPLATE_ERROR


def test_a_clients_template_is_never_run(render: Render) -> None:
    forever = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}x{% endfor %}"
    with pytest.raises(Unrenderable) as caught:
        render(None, template=forever + "{% endfor %}{% endfor %}")
    assert caught.value.why is Why.REQUEST_TEMPLATE


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content + 5 }}",
        "{{ messages[7].content.x }}",
        "{{ ''.__class__.__mro__ }}{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% for x in range(10000000000) %}{% endfor %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{% for m in messages recursive %}{{ loop([m]) }}{% endfor %}",
        "{{ messages.append(messages[0]) }}",
    ],
)
def test_a_template_that_fails_is_a_reason(render: Render, template: str) -> None:
    with pytest.raises(Unrenderable) as caught:
        render(template)
    assert caught.value.why is Why.TEMPLATE_ERROR


def test_templates_by_name_and_for_tools(folder: Path, variant: Callable[..., Path]) -> None:
    templates = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    path = variant(chat_template__jinja=None, tokenizer_config__json={"chat_template": templates})
    settings = TokenSettings(tokenizer=str(path))
    renderer = Renderer(load(settings, "m"), settings)
    assert renderer.render(ChatInput([USER], b"")) == "plain"
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert renderer.render(ChatInput([USER], b"", tools=tools)) == "with tools"


def test_a_processors_template_is_for_chats_without_tools(variant: Callable[..., Path]) -> None:
    path = variant(
        chat_template__jinja=None,
        tokenizer_config__json={"chat_template": "tokenizer's"},
        chat_template__json={"chat_template": "processor's"},
        preprocessor_config__json={"processor_class": "X"},
    )
    settings = TokenSettings(tokenizer=str(path))
    renderer = Renderer(load(settings, "m"), settings)
    assert renderer.render(ChatInput([USER], b"")) == "processor's"
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert renderer.render(ChatInput([USER], b"", tools=tools)) == "tokenizer's"
