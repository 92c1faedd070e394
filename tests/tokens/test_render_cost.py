"""How much work a chat is, told before it is done."""

from __future__ import annotations

import orjson
import pytest

from gateway.core.prompt import ChatInput
from gateway.tokens.render_cost import CHARACTERS, LOOP_CHARACTERS, LOOP_VALUES, SMALL, is_cheap


def chat(messages, **more) -> ChatInput:
    return ChatInput(messages, orjson.dumps(messages), **more)


def messages(count: int, text: str = "") -> list[dict[str, str]]:
    return [{"role": "user", "content": text}] * count


@pytest.mark.parametrize(
    ("given", "light"),
    [
        (chat(messages(1, "Hello")), True),
        (chat(messages(LOOP_VALUES // 4)), True),
        (chat(messages(LOOP_VALUES // 2)), False),
        (chat(messages(1, "x" * LOOP_CHARACTERS)), False),
        (chat(messages(200, "x" * CHARACTERS)), True),
        (chat(messages(1, "Hello"), tools=[{"a": 1}] * LOOP_VALUES), False),
        (chat(messages(1, "Hello"), template_kwargs={"a": [1] * LOOP_VALUES}), False),
        (chat(messages(1, "Hello"), documents=[{"title": "a"}] * LOOP_VALUES), False),
    ],
    ids=["short", "many", "too many", "too long", "long", "tools", "template_kwargs", "documents"],
)
def test_what_is_rendered_on_the_loop(given, light):
    assert is_cheap(given) is light


def test_no_chat_that_is_not_looked_into_is_heavy():
    # The shortest messages, and one character more would be too long to be taken unseen.
    count = SMALL // len(orjson.dumps(messages(1)[0]) + b",")
    unseen = chat(messages(count))
    assert SMALL - 64 < len(unseen.raw) <= SMALL
    assert 3 * count < LOOP_VALUES
    assert is_cheap(unseen)


def test_known_messages_count_little():
    many = chat(messages(LOOP_VALUES // 2))
    assert is_cheap(many, LOOP_VALUES // 2 - 10)
    assert not is_cheap(many, 100)
    assert not is_cheap(chat(messages(2 * LOOP_VALUES)), 2 * LOOP_VALUES - 1)
