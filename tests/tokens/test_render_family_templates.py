"""Chats in the templates of real families: our text is that of the installed ``transformers``.

That is newer than vLLM 0.32's, and shows a message's reasoning under one name more (``thinking``): what reads that name
is left to ``tests/engines/test_rendering.py``, as is what vLLM itself does before it renders.
"""

from __future__ import annotations

import datetime
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.parse import parse
from gateway.api.routes import find
from gateway.api.settings import PassThroughSettings
from gateway.core.clock import ManualClock
from gateway.core.prompt import ChatInput
from gateway.tokens.content_format import content_format_of, variables_of
from gateway.tokens.conversation import converse
from gateway.tokens.loading import Loaded, load
from gateway.tokens.reasons import Unrenderable
from gateway.tokens.render import Renderer
from gateway.tokens.settings import TokenSettings
from gateway.tokens.tools import dump_tools
from tests.support.examples import examples
from tests.tokens.family_chats import CALLED, DOCUMENTS, FAMILY_CHATS, FAMILY_TEMPLATES, RESULT, WEATHER
from tests.tokens.folders import by_library

NOON = 1_700_049_600.0
"""Of 15 November 2023."""
HANDED_ON = ("add_generation_prompt", "continue_final_message", "documents")

TEXTS = st.sampled_from(["", " ", "a", "\u00e9\n", " <b> ", "{{ x }}", "</think>\n", "<think>a</think>\n b", "content"])
PARTS = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}), max_size=2)
CALL = CALLED["tool_calls"][0]
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "user", "assistant", "assistant", "tool"])},
        optional={
            "content": TEXTS | PARTS | st.none(),
            "name": TEXTS,
            "tool_call_id": st.just("call_1"),
            "tool_calls": st.lists(st.just(CALL), max_size=2),
        },
    )
    | st.sampled_from([CALLED, RESULT]),
    min_size=1,
    max_size=5,
)
CHATS = st.builds(
    lambda messages, tools, documents, end, kwargs: ChatInput(
        messages, b"", tools=tools, documents=documents, template_kwargs=kwargs, **end
    ),
    MESSAGES,
    st.none() | st.lists(st.just(WEATHER), min_size=1, max_size=2),
    st.none() | st.just(DOCUMENTS),
    st.sampled_from(
        [
            {},
            {"add_generation_prompt": False},
            {"add_generation_prompt": False, "continue_final_message": True},
            {"continue_final_message": True},
        ]
    ),
    st.dictionaries(st.sampled_from(["enable_thinking", "date_string", "bos_token", "unknown"]), TEXTS, max_size=2),
)


@pytest.fixture(autouse=True, scope="module")
def noon() -> Any:
    """What the library takes for now."""

    class Noon(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Noon:
            return cls.fromtimestamp(NOON, tz)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformers.utils.chat_template_utils.datetime", Noon)
        yield


@lru_cache(maxsize=1)
def loaded(folder: Path) -> Loaded:
    return load(TokenSettings(str(folder)), "m")


@lru_cache(maxsize=1)  # compiling a template takes far longer than rendering a chat
def renderer(folder: Path, template: str) -> Renderer:
    return Renderer(replace(loaded(folder), template=template), TokenSettings(str(folder)), ManualClock(epoch=NOON))


def ours(folder: Path, template: str, chat: ChatInput) -> str | None:
    """None: it cannot be rendered."""
    try:
        return renderer(folder, template).render(chat)
    except Unrenderable:
        return None


reference = lru_cache(maxsize=4)(by_library)


def theirs(folder: Path, template: str, chat: ChatInput) -> str | None:
    given: dict[str, Any] = {**chat.template_kwargs}
    if chat.reasoning_effort is not None:
        given |= {"reasoning_effort": chat.reasoning_effort, "enable_thinking": chat.reasoning_effort != "none"}
    variables = variables_of(template)
    given = {name: value for name, value in given.items() if name in variables}
    given |= {name: value for name in HANDED_ON if (value := getattr(chat, name)) is not None}
    try:
        text: str = reference(folder).apply_chat_template(
            converse(chat.messages, content_format_of(template)),
            tools=None if chat.tools is None else dump_tools(chat.tools),
            chat_template=template,
            tokenize=False,
            **given,
        )
    except Exception:  # a template can make anything raise
        return None
    return text


@pytest.mark.parametrize("family", FAMILY_TEMPLATES)
def test_chats_of_all_kinds(folder: Path, family: str) -> None:
    template, texts = FAMILY_TEMPLATES[family], {}
    for name, body in FAMILY_CHATS.items():
        if family == "gptoss" and name == "thinking":
            continue  # it reads the name that newer libraries add
        raw = orjson.dumps({"model": "m", **body})
        chat = parse(find("POST", "/v1/chat/completions"), raw, "application/json", PassThroughSettings()).input
        assert isinstance(chat, ChatInput)
        texts[name] = ours(folder, template, chat)
        assert texts[name] == theirs(folder, template, chat), name
    assert texts["question"]
    assert sum(text is not None for text in texts.values()) >= 9, texts


@pytest.mark.parametrize("family", FAMILY_TEMPLATES)
@examples(45, deadline=None)
@given(chat=CHATS)
def test_any_chat(folder: Path, family: str, chat: ChatInput) -> None:
    assert ours(folder, FAMILY_TEMPLATES[family], chat) == theirs(folder, FAMILY_TEMPLATES[family], chat)
