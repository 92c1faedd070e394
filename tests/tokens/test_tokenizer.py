from __future__ import annotations

import asyncio
import json
import threading
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gateway.core.prompt import ChatInput, OpaqueInput, TextInput, TokenInput, estimate, joined
from gateway.core.tasks import TaskSet
from gateway.errors import ConfigError
from gateway.tokens.families import Family
from gateway.tokens.reasons import Why
from gateway.tokens.settings import TokenSettings
from gateway.tokens.tokenizer import MAX_THREADS, ModelTokens
from tests.support.examples import examples
from tests.support.wait import eventually
from tests.tokens.conftest import Load, Reasons

GAP = 0.050
"""Seconds: what the loop's longest gap must stay below while 100,000 tokens are encoded."""
TRIES = 10
"""The best of so many counts: another process may take this core during one of them."""


def chat(*messages: dict[str, Any], **more: Any) -> ChatInput:
    return ChatInput(messages, json.dumps(messages).encode(), **more)


USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def reference(folder: Path) -> Tokenizer:
    """The ids, from the library itself."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


async def test_text_gets_the_first_token_that_the_tokenizer_adds(load: Load, reference: Tokenizer) -> None:
    tokens = await load()
    prompt = await tokens.tokenize(TextInput(("hello world",)))
    assert prompt.ids == array("I", reference.encode("hello world").ids)
    assert prompt.ids[0] == reference.token_to_id("<|begin_of_text|>")
    assert (prompt.count, prompt.exact, prompt.why, prompt.single) == (len(prompt.ids), True, "", True)
    plain = await tokens.tokenize(TextInput(("hello world",), add_special_tokens=False))
    assert plain.ids == prompt.ids[1:]


async def test_a_chat_is_rendered_and_gets_no_first_token(load: Load, reference: Tokenizer, reasons: Reasons) -> None:
    tokens = await load()
    prompt = await tokens.tokenize(chat({"role": "system", "content": "Be brief."}, USER))
    text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.ids == array("I", reference.encode(text, add_special_tokens=False).ids)
    assert (prompt.exact, prompt.single) == (True, True)
    special = await tokens.tokenize(chat({"role": "system", "content": "Be brief."}, USER, add_special_tokens=True))
    assert special.ids[1:] == prompt.ids
    assert reasons.seen == []


async def test_several_texts_count_together(load: Load) -> None:
    tokens = await load()
    one, two = [await tokens.tokenize(TextInput((text,))) for text in ("hello", "a longer text")]
    both = await tokens.tokenize(TextInput(("hello", "a longer text")))
    assert (both.ids, both.count, both.single) == (one.ids, one.count + two.count, False)


async def test_a_clients_own_ids_are_exact_with_no_tokenizer_at_all(load: Load, reasons: Reasons) -> None:
    tokens = await load(tokenizer=None)
    prompt = await tokens.tokenize(TokenInput((array("I", [5, 6]), [7])))
    assert (prompt.ids, prompt.count, prompt.exact, prompt.single) == (array("I", [5, 6]), 3, True, False)
    assert reasons.seen == []


async def test_without_a_tokenizer_bytes_stand_in(load: Load, reasons: Reasons) -> None:
    tokens = await load(tokenizer=None)
    asked = chat(USER)
    assert await tokens.tokenize(asked) == estimate(asked.raw, Why.NO_TOKENIZER)
    assert await tokens.tokenize(TextInput(("na\u00efve text",))) == estimate(
        "na\u00efve text".encode(), "no-tokenizer"
    )
    several = await tokens.tokenize(TextInput(("12345678", "123456789012")))
    assert (several.count, several.single, several.exact) == (5, False, False)
    assert several.ids == estimate(b"12345678", "").ids
    assert reasons.seen == [("m", "no-tokenizer")] * 3


async def test_what_only_has_bytes_keeps_its_reason(load: Load, reasons: Reasons) -> None:
    tokens = await load()
    assert await tokens.tokenize(OpaqueInput(b"12345678", "route")) == estimate(b"12345678", "route")
    assert reasons.seen == [("m", "route")]


@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        (TextInput(("x",), truncated=True), Why.TRUNCATED),
        (chat(USER, truncated=True), Why.TRUNCATED),
        (chat(USER, template="{{ 1 }}"), Why.REQUEST_TEMPLATE),
        (chat(USER, template_kwargs={"tokenize": True}), Why.TEMPLATE_KWARGS),
        (chat(USER, tools=[{"type": "function"}]), Why.TOOLS),
        (chat({"role": "user", "content": [{"type": "file", "file": {}}]}), Why.MEDIA),
        (chat({"role": "user", "content": [{"type": "hologram"}]}), Why.MESSAGES),
        (chat({"content": "no role"}), Why.MESSAGES),
        (chat(USER, add_generation_prompt=True, continue_final_message=True), Why.TEMPLATE_ERROR),
        (TextInput(("\ud800",)), Why.FAILED),
    ],
)
@pytest.mark.parametrize("inline", [0, 100_000])
async def test_every_reason_for_an_estimate(
    load: Load,
    reasons: Reasons,
    prompt: ChatInput | TextInput,
    why: Why,
    inline: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.tokens.tokenizer.LOOP_ENCODED", inline)
    tokens = await load()
    found = await tokens.tokenize(prompt)
    assert (found.exact, found.why) == (False, why)
    assert reasons.seen == [("m", why)]


async def test_a_chat_without_a_template(load: Load, variant: Callable[..., Path]) -> None:
    tokens = await load(tokenizer=str(variant(chat_template__jinja=None)))
    assert (await tokens.tokenize(chat(USER))).why == Why.NO_TEMPLATE
    assert (await tokens.tokenize(TextInput(("x",)))).exact


@pytest.mark.parametrize(
    "config", [{"model_type": "gpt_oss"}, {"model_type": "x", "architectures": ["DeepseekV32ForCausalLM"]}]
)
async def test_models_whose_chats_vllm_renders_in_code(
    load: Load, variant: Callable[..., Path], config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Family, "installed", property(lambda self: False))
    tokens = await load(tokenizer=str(variant(config__json=config)))
    assert (await tokens.tokenize(chat(USER))).why == Why.RENDERER
    assert (await tokens.tokenize(TextInput(("x",)))).exact


async def test_models_that_vllm_tokenizes_with_another_library(
    load: Load, variant: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Family, "installed", property(lambda self: False))
    tokens = await load(tokenizer=str(variant(tekken__json="{}")))
    assert (await tokens.tokenize(chat(USER))).why == Why.RENDERER
    assert (await tokens.tokenize(TextInput(("x",)))).why == Why.RENDERER


async def test_threads_and_the_loop_give_the_same(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    inline, threaded = await load(), await load()
    prompts = [TextInput((f"text {n} " * n, "more")) for n in range(1, 30)] + [chat(USER, USER)]
    monkeypatch.setattr("gateway.tokens.tokenizer.LOOP_ENCODED", 0)
    found = await asyncio.gather(*(threaded.tokenize(prompt) for prompt in prompts))
    monkeypatch.setattr("gateway.tokens.tokenizer.LOOP_ENCODED", 10**9)
    assert found == [await inline.tokenize(prompt) for prompt in prompts]
    await threaded.close()


async def test_a_missing_folder_is_named_with_the_remedy(tmp_path: Path, reasons: Reasons) -> None:
    path = str(tmp_path / "absent")
    with pytest.raises(ConfigError, match="there is no such folder") as caught:
        await ModelTokens(TokenSettings(tokenizer=path), "m", reasons).load()
    assert path in caught.value.message
    assert "model m" in caught.value.message


async def test_the_loop_runs_on_while_a_hundred_thousand_tokens_are_encoded(load: Load) -> None:
    tokens = await load()
    text = "The gateway routes each request to the engine that holds most of its prefix. " * 5_000
    gaps: list[float] = []
    while len(gaps) < TRIES and (not gaps or min(gaps) >= GAP):
        done = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(longest_gap(done))
            prompt = await tokens.tokenize(TextInput((text,)))
            done.set()
        assert prompt.exact
        assert prompt.count >= 100_000
        gaps.append(watching.result())
    assert min(gaps) < GAP, gaps


async def longest_gap(done: asyncio.Event) -> float:
    """Seconds between two turns of the loop, the longest until ``done``."""
    clock = asyncio.get_running_loop().time
    longest, last = 0.0, clock()
    while not done.is_set():
        await asyncio.sleep(0)
        now = clock()
        longest, last = max(longest, now - last), now
    return longest


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
PARTS = st.fixed_dictionaries({"type": st.sampled_from(["text", "refusal", "image_url", "x"])}, optional={"text": JSON})
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "developer", "x"]) | JSON},
    optional={
        "content": JSON | st.lists(PARTS | JSON, max_size=3),
        "tool_calls": JSON | st.lists(st.fixed_dictionaries({"function": JSON}), max_size=2),
        "reasoning": JSON,
        "name": JSON,
    },
)


@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_prompt_is_an_error(loaded: ModelTokens, data: st.DataObject) -> None:
    messages = data.draw(st.lists(MESSAGES | st.dictionaries(st.text(max_size=4), JSON, max_size=2), max_size=4))
    asked = ChatInput(
        messages,
        repr(messages).encode("utf-8", "replace"),
        tools=data.draw(st.none() | st.lists(st.dictionaries(st.text(max_size=4), JSON, max_size=2), max_size=2)),
        documents=data.draw(st.none() | st.lists(st.dictionaries(st.text(max_size=4), JSON, max_size=2), max_size=2)),
        template_kwargs=data.draw(
            st.dictionaries(st.sampled_from(["a", "messages", "enable_thinking"]), JSON, max_size=2)
        ),
        reasoning_effort=data.draw(st.none() | st.text(max_size=4)),
        add_generation_prompt=data.draw(st.booleans()),
        continue_final_message=data.draw(st.booleans()),
    )
    prompt = asyncio.run(loaded.tokenize(asked))
    assert prompt.exact or prompt.why in set(Why)
    assert prompt.count >= 1


@pytest.fixture(scope="module")
def loaded(folder: Path) -> ModelTokens:
    tokens = ModelTokens(TokenSettings(tokenizer=str(folder)), "m", Reasons())
    asyncio.run(tokens.load())
    return tokens


@pytest.mark.parametrize("prompt", [TextInput(("a " * 30, "b " * 30)), chat({"role": "user", "content": "a " * 60})])
async def test_what_would_take_minutes_to_encode_is_estimated(
    load: Load, reasons: Reasons, prompt: ChatInput | TextInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = await load()
    assert (await tokens.tokenize(prompt)).exact
    monkeypatch.setattr("gateway.tokens.tokenizer.MAX_TEXT", 100)
    assert not (await tokens.tokenize(prompt)).exact
    assert reasons.seen == [("m", Why.TOO_LONG)]


@pytest.mark.parametrize("form", ["text", "chat", "heavy chat", "one of two texts"])
async def test_what_no_engine_takes_is_estimated_and_not_encoded(
    load: Load, reasons: Reasons, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = await load()
    text = "ab " * 40_000
    prompt: ChatInput | TextInput = {
        "text": TextInput((text,)),
        "chat": chat({"role": "user", "content": text}),
        "heavy chat": chat(*[{"role": "user", "content": "a"}] * 2000, {"role": "user", "content": text}),
        "one of two texts": TextInput(("a", text)),
    }[form]
    most = len(text) // tokens._longest_token
    assert (await tokens.tokenize(prompt, longest_context=lambda: 2 * most)).exact
    assert (await tokens.tokenize(prompt)).exact, "where no engine has told how long its context is"
    monkeypatch.setattr(tokens._encoder, "finish", lambda reading: pytest.fail("it is encoded"))
    assert not (await tokens.tokenize(prompt, longest_context=lambda: most - 1)).exact
    assert reasons.seen == [("m", Why.TOO_LONG)]


async def test_a_prompt_that_waits_when_the_tokenizer_is_given_back_is_estimated(load: Load, reasons: Reasons) -> None:
    tokens = await load()
    gate, tasks, prompt = threading.Event(), TaskSet(), TextInput(("ab " * 40_000,))
    for number in range(tokens._threads._free):
        tasks.start(tokens._threads.run("", 1, lambda: gate.wait(30)), name=f"hold {number}")
    await eventually(lambda: not tokens._threads._free, "all threads are held")
    waits = tasks.start(tokens.tokenize(prompt), name="ask")
    await eventually(lambda: tokens._threads.waiting == 1, "it waits for one")
    await tokens.close()
    assert [(await waits).why, (await tokens.tokenize(prompt)).why] == [Why.CLOSED] * 2
    assert reasons.seen == [("m", Why.CLOSED)] * 2
    gate.set()
    await tasks.close()


async def test_whose_a_short_prompt_is_and_what_engines_take_is_not_asked(load: Load) -> None:
    """To know it costs more than the prompt."""

    def asked() -> Any:
        pytest.fail("it is asked")

    tokens = await load()
    for prompt in (chat(USER), TextInput(("hello world",)), TokenInput(([1, 2, 3],))):
        assert (await tokens.tokenize(prompt, client=asked, longest_context=asked)).exact


def watch(tokens: ModelTokens, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """The steps that are done from now on, each with whether it was done on the loop's own thread."""
    done: list[tuple[str, bool]] = []

    def watched(owner: Any, name: str) -> None:
        step = getattr(owner, name)

        def watching(*given: Any, **how: Any) -> Any:
            done.append((name.strip("_"), threading.current_thread() is threading.main_thread()))
            return step(*given, **how)

        monkeypatch.setattr(owner, name, watching)

    watched(tokens._renderer, "render")
    watched(tokens._encoder, "read")
    watched(tokens._encoder, "finish")
    return done


def turns(count: int, size: int = 4000) -> ChatInput:
    return chat(
        *(
            {"role": ("user", "assistant")[n % 2], "content": f"turn {n} " + "word " * (size // 5)}
            for n in range(count)
        ),
        USER,
    )


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize(
    ("asked", "steps"),
    [
        (chat(USER), {"render": True, "read": True, "finish": True}),
        (turns(2), {"render": True, "read": True, "finish": False}),
        (turns(2000, 5), {"render": False, "read": False, "finish": False}),
        (turns(300), {"render": False, "read": False, "finish": False}),
        (chat(USER, template_kwargs={"enable_thinking": False}), {"render": True, "read": True, "finish": True}),
        (chat(USER, template_kwargs={"notes": ["a"] * 2000}), {"render": False, "read": False, "finish": False}),
        (chat(USER, tools=[TOOL] * 3), {"render": True, "read": True, "finish": True}),
        (chat(USER, tools=[TOOL] * 400), {"render": False, "read": False, "finish": False}),
        (chat(USER, tools=[{**TOOL, "a": "b" * 5_000_000}]), {"render": False, "read": False, "finish": False}),
        (TextInput(("a word ",)), {"read": True, "finish": True}),
        (TextInput(("a word " * 1000,)), {"read": True, "finish": False}),
        (TextInput(("a word " * 200_000,)), {"read": False, "finish": False}),
        (TextInput(("",) * 1000), {"read": False, "finish": False}),
    ],
)
async def test_only_what_takes_no_longer_than_a_hand_over_is_done_on_the_loop(
    load: Load, asked: ChatInput | TextInput, steps: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = await load()
    done = watch(tokens, monkeypatch)
    assert (await tokens.tokenize(asked)).exact
    assert dict(done) == steps
    assert len(done) == len(steps), "no step is done twice"


async def test_a_long_conversations_short_next_turn_is_done_on_the_loop(
    load: Load, reference: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = await load()
    first = turns(80)
    await tokens.tokenize(first)
    done = watch(tokens, monkeypatch)
    answered = [*first.messages, {"role": "assistant", "content": "Yes."}, USER]
    prompt = await tokens.tokenize(chat(*answered))
    assert done == [("render", True), ("read", True), ("finish", True)]
    texts = [f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in answered]
    whole = reference.encode("".join(texts) + "<|im_start|>assistant\n", add_special_tokens=False).ids
    assert prompt.ids == array("I", whole)
    done.clear()
    await tokens.tokenize(chat(*answered, {"role": "assistant", "content": "Yes. " * 1000}, USER))
    assert done == [("render", True), ("read", True), ("finish", False)]


async def test_a_burst_of_one_prompt_is_encoded_once_by_each_thread_at_most(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = await load()
    encoder = tokens._encoder
    assert encoder is not None
    sizes: list[int] = []
    backend = encoder._backend

    class Counting:
        def encode_batch_fast(self, texts: list[str], **how: Any) -> Any:
            sizes.append(sum(map(len, texts)))
            return backend.encode_batch_fast(texts, **how)

    monkeypatch.setattr(encoder, "_backend", Counting())
    prompts = await asyncio.gather(*(tokens.tokenize(turns(40)) for _ in range(30)))
    assert all(joined(prompt.ids) == joined(prompts[0].ids) for prompt in prompts)
    assert {(prompt.count, prompt.exact, prompt.why) for prompt in prompts} == {(len(prompts[0].ids), True, "")}
    assert sum(sizes) <= MAX_THREADS * 200_000, "of 160,000 characters each"


async def test_without_a_memory_every_prompt_is_encoded_whole(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = await load(memory_bytes=0)
    exact = await tokens.tokenize(turns(10))
    done = watch(tokens, monkeypatch)
    assert await tokens.tokenize(turns(10)) == exact
    assert dict(done)["finish"] is False
