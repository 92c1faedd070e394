from __future__ import annotations

import logging
from dataclasses import replace
from functools import lru_cache
from json import dumps
from pathlib import Path
from typing import Any
from weakref import ref

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.clock import ManualClock
from gateway.core.prompt import ChatInput, KnownMessages
from gateway.tokens import render
from gateway.tokens.known_text import OPENINGS, KnownTexts
from gateway.tokens.loading import Loaded, load
from gateway.tokens.reasons import Unrenderable
from gateway.tokens.render import Renderer
from gateway.tokens.settings import TokenSettings
from simulator.template import CHATML
from tests.support.examples import examples
from tests.tokens.family_chats import CALLED, FAMILY_TEMPLATES, RESULT, WEATHER
from tests.tokens.test_message_loop import AHEAD

NOON = 1_700_049_600.0
LOOP = "{{ bos_token }}{% for message in messages %}%s{% endfor %}{% if add_generation_prompt %}>{% endif %}"
TEMPLATES = {name: FAMILY_TEMPLATES[name] for name in AHEAD} | {
    "chatml": CHATML,
    "places": LOOP.replace("%s", "{{ loop.index0 }}{{ loop.index }}{{ loop.first }}{{ message.content }}"),
    "ends": LOOP.replace("%s", "{{ message.content }}{{ ',' if not loop.last }}{{ messages[loop.index0 + 2].role }}"),
    "around": LOOP.replace("%s", "{{ messages[loop.index0 - 1].role }}{{ messages[loop.index0 - 3].content }}"),
    "values": "{% set who = messages[-1].role %}{% set say = messages[0].content %}"
    + LOOP.replace("%s", "{{ who }}{{ say }}{{ nobody }}{{ message.content }}"),
    "lists": "{% set some = messages[:2] %}" + LOOP.replace("%s", "{{ some|length }}{{ tools }}{{ message.content }}"),
    "numbers": "{% set last = messages|length - 2 %}"
    + LOOP.replace("%s", "{% if loop.index0 >= last %}!{% endif %}{{ 1 if loop.index0 < last }}{{ message.content }}"),
    "texts as numbers": "{% set last = messages[0].content|length %}"
    + LOOP.replace("%s", "{% if loop.index0 > last %}!{% endif %}{{ message.role }}"),
    "reversed": "{% set messages = messages|reverse|list %}" + LOOP.replace("%s", "{{ message.content }}"),
    "cut": "{% set rest = messages[1:] %}{{ messages[0].role }}"
    "{% for message in rest %}{{ message.content }}{% endfor %}",
    "cut behind": "{% set rest = messages[:-1] %}{% for message in rest %}{{ message.content }}{% endfor %}",
    "twice": LOOP.replace("%s", "{{ message.role }}") + LOOP.replace("%s", "{{ message.content }}{{ loop.first }}"),
    "refuses": LOOP.replace(
        "%s", "{% if message.role == 'tool' %}{{ raise_exception('no') }}{% endif %}{{ message.role }}"
    ),
}
"""All of them have a loop that can begin behind known messages."""

TEXTS = st.sampled_from(["", " ", "a", "\u00e9\n", " <b> ", "</think>\n", "<think>a</think>\n b", "<tool_response>"])
MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["system", "user", "user", "assistant", "assistant", "tool"]),
        "content": TEXTS | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}), max_size=2),
    },
    optional={"name": TEXTS, "reasoning": TEXTS},
) | st.sampled_from([CALLED, RESULT])
TURN = st.tuples(
    st.integers(0, 6),  # how many of the messages are known
    st.lists(MESSAGE, max_size=3),
    st.sampled_from([None, None, [WEATHER], [WEATHER, WEATHER]]),
    st.booleans(),
    st.sampled_from([{}, {}, {"enable_thinking": False}, {"nobody": 1}, {"nobody": True}, {"nobody": "x"}]),
    st.sampled_from(["", "", "developer", "continued"]),
)


@lru_cache(maxsize=1)
def loaded(folder: Path) -> Loaded:
    return load(TokenSettings(str(folder)), "m")


@lru_cache(maxsize=64)
def renderer(folder: Path, template: str) -> Renderer:
    made = Renderer(replace(loaded(folder), template=template), TokenSettings(str(folder)), ManualClock(epoch=NOON))
    made.prepare()
    return made


def text_of(made: Renderer, chat: ChatInput) -> str | None:
    """None: it cannot be rendered."""
    try:
        return made.render(chat)
    except Unrenderable:
        return None


def beginnings(messages: list[Any]) -> list[KnownMessages | None]:
    """By how many of the messages they have."""
    found: list[KnownMessages | None] = [None]
    for count in range(1, len(messages) + 1):
        found.append(KnownMessages(messages[:count], found[-1]))
    return found


@pytest.mark.parametrize("name", TEMPLATES)
@examples(60, deadline=None)
@given(messages=st.lists(MESSAGE, min_size=1, max_size=6), turns=st.lists(TURN, min_size=2, max_size=6))
def test_a_text_is_the_whole_chats(folder: Path, name: str, messages: list[Any], turns: list[Any]) -> None:
    made, known = renderer(folder, TEMPLATES[name]), beginnings(messages)
    for count, more, tools, prompted, kwargs, form in turns:
        first = known[min(count, len(messages))]
        whole = [*([] if first is None else first.messages), *more]
        if form == "developer":
            whole.append({"role": "developer", "content": "late"})
        chat = ChatInput(whole, b"", tools=tools, add_generation_prompt=prompted, template_kwargs=kwargs)
        if form == "continued":
            chat = msgspec.structs.replace(chat, add_generation_prompt=False, continue_final_message=True)
        expected = text_of(made, chat)
        assert text_of(made, msgspec.structs.replace(chat, known=first)) == expected
    assert made._knows


def said(text: str, role: str = "user") -> dict[str, str]:
    return {"role": role, "content": text}


def test_values_of_another_type_are_others(folder: Path) -> None:
    made, messages = renderer(folder, TEMPLATES["values"]), [said("a"), said("b")]
    known = KnownMessages(messages)
    for value in (1, True, 1, "1", None, 0, False):
        chat = ChatInput([*messages, said("?")], b"", known=known, template_kwargs={"nobody": value})
        assert made.render(chat) == made.render(msgspec.structs.replace(chat, known=None))


def test_another_template_has_its_own_texts(folder: Path) -> None:
    made = Renderer(replace(loaded(folder), template=CHATML), TokenSettings(str(folder)))
    made._chosen = {
        with_tools: LOOP.replace("%s", f"{with_tools} {{{{ message.content }}}}") for with_tools in (False, True)
    }
    messages = [said("a"), said("b")]
    known = KnownMessages(messages)
    for tools in (None, [WEATHER], None, [WEATHER]):
        chat = ChatInput([*messages, said("?")], b"", known=known, tools=tools)
        assert made.render(chat) == made.render(msgspec.structs.replace(chat, known=None))


def test_numbers_around_the_end_of_what_is_known(folder: Path) -> None:
    made, messages = renderer(folder, TEMPLATES["numbers"]), [said("a"), said("b"), said("c")]
    known = KnownMessages(messages)
    for more in (3, 2, 1, 2, 3, 1, 3, 0, 3):
        chat = ChatInput([*messages, *[said("?")] * more], b"", known=known)
        assert made.render(chat) == made.render(msgspec.structs.replace(chat, known=None))


@pytest.mark.parametrize("name", ["chatml", "qwen2_5", "qwen3", "llama3_1", "llama3_2", "gemma3", "glm4moe", "phi3"])
def test_what_is_known_is_not_rendered_again(folder: Path, name: str) -> None:
    made = renderer(folder, TEMPLATES[name])
    messages = [said("a" * 9, ("user", "assistant")[place % 2]) for place in range(8)]
    known = KnownMessages(messages)
    for text in ("one", "two"):
        chat = ChatInput([*messages, said(text)], b"", known=known)
        assert text_of(made, chat) == text_of(made, msgspec.structs.replace(chat, known=None))
    ((kept,),) = [*made._known._texts.values()][-1:]
    assert kept.until == 8 - (AHEAD.get(name) or 0)
    assert made.known(chat) == 8
    messages[2]["content"] = "another"  # what is not looked at may even be another
    assert "another" not in made.render(chat)


def test_the_next_turn_goes_on_from_the_text_of_the_one_before(folder: Path) -> None:
    made = renderer(folder, CHATML + "{# turns #}")
    messages: list[Any] = [said("be brief", "system")]
    known = None
    for turn in range(6):
        known = KnownMessages([*messages], known)
        chat = ChatInput([*messages, said(f"{turn}?")], b"", known=known)
        assert made.render(chat) == made.render(msgspec.structs.replace(chat, known=None))
        assert made.known(chat) == len(messages)
        messages += [said(f"{turn}?"), said(f"{turn}!", "assistant")]
    behind = msgspec.structs.replace(chat, known=KnownMessages(messages, known), messages=[*messages, said("?")])
    assert made.known(behind) == len(messages) - 2, "as long as the last one is not rendered"


def test_a_difference_in_service_switches_it_off(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(render, "SAMPLE", 3)
    made = Renderer(replace(loaded(folder), template=CHATML), TokenSettings(str(folder)))
    messages = [said("be brief", "system"), said("a question")]
    chat = ChatInput([*messages, said("?")], b"", known=KnownMessages(messages))
    right = made.render(chat)
    ((known, (kept,)),) = made._known._texts.items()
    made._known._texts[known] = (kept._replace(text="wrong"),)
    with caplog.at_level(logging.WARNING):
        found = [made.render(chat) == right for _ in range(6)]
    assert found == [False, True, True, True, True, True], "the text that is compared is the whole chat's"
    assert [record.getMessage() for record in caplog.records] == [
        f"{folder}: a chat's text is another one behind known messages: chats are rendered whole"
    ]


@pytest.mark.parametrize(
    ("before", "limit", "warnings"),
    [
        ("{% if tools %}{% set ns = namespace(last=0) %}{% endif %}", "tools and loop.index0 > ns.last", 1),
        ("", "message.limit is defined and loop.index0 > message.limit", 0),
    ],
    ids=["outside", "of the message"],
)
def test_a_number_that_cannot_be_read_before_the_loop(
    folder: Path, caplog: pytest.LogCaptureFixture, before: str, limit: str, warnings: int
) -> None:
    template = before + LOOP.replace("%s", "{% if " + limit + " %}x{% endif %}{{ message.content }}")
    made, messages = renderer(folder, template), [said("a"), said("b")]
    known = KnownMessages(messages)
    for tools in (None, None, [WEATHER], [WEATHER], None):
        chat = ChatInput([*messages, said("?")], b"", tools=tools, known=known)
        assert made.render(chat) == made.render(msgspec.structs.replace(chat, known=None))
    assert len(caplog.records) == warnings, "the form that fails is tried once"


def test_what_a_template_refuses_switches_nothing_off(folder: Path) -> None:
    made, messages = renderer(folder, TEMPLATES["refuses"]), [said("a"), said("b")]
    known = KnownMessages(messages)
    for more in (said("?"), said("?", "tool"), said("?")):
        text_of(made, ChatInput([*messages, more], b"", known=known))
    assert not made._failing


def test_texts_are_bounded_and_those_in_use_stay(folder: Path) -> None:
    made = Renderer(replace(loaded(folder), template=CHATML), TokenSettings(str(folder)))
    made._known = KnownTexts(memory=20_000)
    often = KnownMessages([said("often " * 20)])
    for number in range(100):
        for known in (often, KnownMessages([said(f"{number}" * 500)])):
            made.render(ChatInput([*known.messages, said("?")], b"", known=known))
        assert made._known.size <= 20_000
        assert made.known(ChatInput([*often.messages], b"", known=often)) == 1
    assert len(made._known) < 40


def test_a_text_goes_with_its_messages(folder: Path) -> None:
    made = Renderer(replace(loaded(folder), template=CHATML), TokenSettings(str(folder)))
    messages = [{**said("a"), "unread": list(range(1000))}, said("b")]
    first = KnownMessages(messages[:1])
    second = KnownMessages(messages, first)
    for known in (first, second):
        made.render(ChatInput([*messages, said("?")], b"", known=known))
    both, gone = made._known.size, [ref(first), ref(second)]
    del known, second
    assert (len(made._known), [one() is None for one in gone]) == (1, [False, True])
    assert 0 < made._known.size < both
    del first
    assert (len(made._known), made._known.size, gone[0]()) == (0, 0, None)


def test_messages_may_go_while_the_texts_are_in_use(folder: Path) -> None:
    made = Renderer(replace(loaded(folder), template=CHATML), TokenSettings(str(folder)))
    known, other = KnownMessages([said("a")]), KnownMessages([said("b")])
    made.render(ChatInput([*known.messages, said("?")], b"", known=known))
    with made._known._lock:
        del known
    assert made.known(ChatInput([*other.messages], b"", known=other)) == 0
    assert (len(made._known), made._known.size) == (0, 0)


def test_all_that_a_text_keeps_is_counted(folder: Path) -> None:
    made = Renderer(replace(loaded(folder), template=CHATML), TokenSettings(str(folder)))
    arguments = dumps({"a": [{}] * 1000})
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    many = [{"role": "assistant", "content": "a", "tool_calls": [call]}, said("\U0001f600" + "x" * 10_000)]
    known, size = None, 0
    for count, least in ((1, 64 * 1000), (2, 64 * 1000 + 40_000)):
        known = KnownMessages(many[:count], known)
        made.render(ChatInput([*many[:count], said("?")], b"", known=known))
        assert made._known.size - size > least, "of the second text, all of the first, too"
        size = made._known.size


def test_applications_with_other_tools_keep_their_texts_of_the_same_messages(folder: Path) -> None:
    template = "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}" + CHATML
    made = Renderer(replace(loaded(folder), template=template), TokenSettings(str(folder)))
    messages = [said("be brief", "system"), said("b")]
    known = KnownMessages(messages)
    chats = [
        ChatInput([*messages, said("?")], b"", known=known, tools=[{"type": "function", "function": {"name": name}}])
        for name in "abcdef"
    ]
    some = chats[:OPENINGS]
    texts = [made.render(chat) for chat in some]
    messages[1]["content"] = "another"
    assert [made.render(chat) for chat in some] == texts, "they are not rendered again"
    for chat in chats:
        made.render(chat)
    assert len(made._known._texts) == 1
    assert [len(kept) for kept in made._known._texts.values()] == [OPENINGS]
