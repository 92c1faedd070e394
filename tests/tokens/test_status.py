"""What is said of a model's tokens is true of the prompts that came, and of those that may come."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.prompt import ChatInput, OpaqueInput, TextInput
from gateway.tokens.agreement import LEAST, Form
from gateway.tokens.settings import ForwardSettings
from gateway.tokens.status import PROMPTS, Tally
from gateway.tokens.tokenizer import ModelTokens
from tests.support.examples import examples
from tests.tokens.conftest import Load

CHAT = ChatInput([{"role": "user", "content": "hi"}], b'[{"role":"user","content":"hi"}]')
TEXT = TextInput(("hello",))
DEEPSEEK = {"model_type": "x", "architectures": ["DeepseekV32ForCausalLM"]}


async def ask(tokens: ModelTokens, *prompts: Any) -> str:
    for prompt in prompts:
        await tokens.tokenize(prompt)
    return tokens.state


async def test_exact_before_and_after_prompts(load: Load) -> None:
    tokens = await load()
    assert tokens.state == "exact"
    assert tokens.share is None
    assert await ask(tokens, CHAT, TEXT) == "exact"
    assert tokens.share == 1.0


async def test_some_prompts_are_not(load: Load) -> None:
    tokens = await load()
    image = ChatInput([{"role": "user", "content": [{"type": "hologram"}]}], b"[]")
    state = await ask(tokens, *[CHAT] * 17, OpaqueInput(b"x", "route"), image, image)
    assert state == "exact for 85 % of prompts, else messages, route"
    assert tokens.share == 0.85


async def test_a_share_is_never_rounded_to_all_or_nothing(load: Load) -> None:
    tokens = await load()
    state = await ask(tokens, *[TEXT] * 499, OpaqueInput(b"x", "route"))
    assert state == "exact for 99 % of prompts, else route"


async def test_without_a_tokenizer(load: Load) -> None:
    tokens = await load(tokenizer=None)
    assert tokens.state == await ask(tokens, CHAT) == "estimated, no tokenizer is configured"
    assert tokens.share == 0.0


async def test_no_model_whose_chats_cannot_be_rendered_is_exact(load: Load, variant: Callable[..., Path]) -> None:
    tokens = await load(tokenizer=str(variant(chat_template__jinja=None)), tokens=ForwardSettings(ask=False))
    foreseen = "exact but for chats, which are estimated, the tokenizer has no chat template"
    assert tokens.state == foreseen
    assert await ask(tokens, TEXT) == foreseen, "no chat has come yet"
    assert await ask(tokens, CHAT) == (
        "exact for 50 % of prompts, else no-template (the tokenizer has no chat template)"
    )


async def test_what_engines_are_asked_for_is_exact_if_they_tell(load: Load, variant: Callable[..., Path]) -> None:
    tokens = await load(tokenizer=str(variant(chat_template__jinja=None)))
    assert tokens.state == ("exact if an engine reports the token ids of chats: the tokenizer has no chat template")
    told = await tokens.tokenize(TextInput(("what an engine told",)))
    assert tokens.from_engine(CHAT, told) == told
    assert tokens.state == "exact"
    await tokens.tokenize(CHAT)
    assert tokens.state.startswith("exact for 67 % of prompts, else no-template"), "it did not answer"


async def test_where_other_tokens_are_counted_it_says_so(load: Load) -> None:
    tokens = await load()
    for _ in range(LEAST):
        tokens.parity.compare_counts("a", Form.CHAT, 1, 2)
    assert tokens.state.startswith("estimated, chats: most of its engines differ: a (it counted other tokens")


@pytest.mark.parametrize(
    ("files", "said", "level"),
    [
        ({}, "model m: its tokens are exact", logging.INFO),
        ({"chat_template__jinja": None}, "set chat_template to the file that the engine has", logging.WARNING),
    ],
)
async def test_the_start_logs_it(
    load: Load,
    variant: Callable[..., Path],
    caplog: pytest.LogCaptureFixture,
    files: dict[str, Any],
    said: str,
    level: int,
) -> None:
    tokens = await load(tokenizer=str(variant(**files)))
    with caplog.at_level(logging.INFO, "kvgate.tokens"):
        tokens.log_status()
    (record,) = caplog.records
    assert said in record.message
    assert record.levelno == level


@examples(50)
@given(st.lists(st.sampled_from(["", "", "media", "route"]), max_size=40), st.integers(1, 7))
def test_a_tally_is_of_the_last_prompts(given: list[str], repeat: int) -> None:
    reported: list[float] = []
    tally, last = Tally(reported.append), deque[str](maxlen=PROMPTS)
    for why in given * (repeat * 10):
        tally.note(why)
        last.append(why)
    assert tally.share == (last.count("") / len(last) if last else None)
    assert reported[-1:] == ([] if tally.share is None else [tally.share])
    assert set(tally.reasons) == set(last) - {""}
