"""Covers: gateway/tokens/native.py, gateway/tokens/harmony.py, gateway/tokens/mistral.py.

Chats of gpt-oss and of tekken files have the ids that vLLM's own code makes of them (kept by the engine tests).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.api.parse import parse
from gateway.api.routes import find
from gateway.api.settings import PassThroughSettings
from gateway.core.prompt import Prompt, TextInput
from gateway.errors import ConfigError
from gateway.tokens.families import Family
from gateway.tokens.reasons import Why
from gateway.tokens.tokenizer import ModelTokens
from tests.tokens.conftest import Load, Reasons
from tests.tokens.native_chats import DATE, NATIVE
from tests.tokens.tekken import build_tekken

pytest.importorskip("openai_harmony", reason="the extra 'harmony' is not installed")
pytest.importorskip("mistral_common", reason="the extra 'mistral' is not installed")

KEPT: dict[str, dict[str, list[int] | None]] = json.loads(
    (Path(__file__).parents[1] / "data" / "tokens" / "native.json").read_text()
)
NOT_TOKENIZED = {
    "harmony": {"refusal part", "thinking part"},
    "mistral": set[str](),
}
"""What vLLM takes and is only estimated here."""


def asked(path: str, body: dict[str, Any]) -> Any:
    return parse(
        find("POST", path), json.dumps({"model": "m", **body}).encode(), "application/json", PassThroughSettings()
    )


async def chat(tokens: ModelTokens, body: dict[str, Any], path: str = "/v1/chat/completions") -> Prompt:
    return await tokens.tokenize(asked(path, body).input)


@pytest.fixture
def folders(variant: Callable[..., Path], tmp_path: Path) -> dict[str, Path]:
    return {
        "harmony": variant(config__json={"model_type": "gpt_oss"}),
        "mistral": build_tekken(tmp_path / "tekken"),
    }


@pytest.fixture(autouse=True)
def _day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SYSTEM_START_DATE", DATE)


@pytest.mark.parametrize("family", ["harmony", "mistral"])
async def test_the_ids_are_vllms(load: Load, folders: dict[str, Path], family: str) -> None:
    tokens = await load(tokenizer=str(folders[family]))
    wrong, estimated = {}, set()
    for name, body in NATIVE.items():
        theirs = KEPT[family][name]
        if theirs is None:
            continue  # what an engine refuses has no ids
        prompt = await chat(tokens, body)
        if not prompt.exact:
            estimated.add(name)
        elif prompt.ids.tolist() != theirs:
            wrong[name] = (prompt.ids.tolist(), theirs)
    assert wrong == {}
    assert estimated == NOT_TOKENIZED[family]
    assert tokens.obstacles == {}


async def test_each_message_is_rendered_once(
    load: Load, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = await load(tokenizer=str(folders["harmony"]))
    body = NATIVE["thoughts of two turns"]
    first = await chat(tokens, body)
    assert tokens._loaded is not None
    native: Any = tokens._loaded.native
    rendered: list[Any] = []
    render = native._encoding.render
    monkeypatch.setattr(native._encoding, "render", lambda *given: rendered.append(given) or render(*given))
    assert await chat(tokens, body) == first
    assert rendered == []
    again = {**body, "messages": [*body["messages"], {"role": "user", "content": "And now?"}]}
    assert (await chat(tokens, again)).count > first.count
    assert len(rendered) == 1


@pytest.mark.parametrize("part", ["question", "result", "parts"])
@pytest.mark.parametrize("family", ["harmony", "mistral"])
async def test_what_no_engine_takes_is_estimated_and_not_encoded(
    load: Load, folders: dict[str, Path], reasons: Reasons, family: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = await load(tokenizer=str(folders[family]))
    text = "Paris " * 20_000
    question = {"role": "user", "content": "hi"}
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = {
        "question": [{**question, "content": text}],
        "parts": [{**question, "content": [{"type": "text", "text": text[:60_000]}] * 2}],
        "result": [
            question,
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "abcdefghi", "content": text},
        ],
    }[part]
    prompt = asked("/v1/chat/completions", {"messages": messages}).input
    assert tokens._loaded is not None
    native: Any = tokens._loaded.native
    most = len(text) // native.longest_token
    assert (await tokens.tokenize(prompt, longest_context=lambda: most + 1)).exact
    assert (await tokens.tokenize(prompt)).exact, "where no engine has told how long its context is"
    native._known = OrderedDict()
    place, name = (native._encoding, "render") if family == "harmony" else (native._backend, "apply_chat_template")
    monkeypatch.setattr(place, name, lambda *_, **__: pytest.fail("it is encoded"))
    assert not (await tokens.tokenize(prompt, longest_context=lambda: most - 1)).exact
    assert reasons.seen == [("m", Why.TOO_LONG)]


async def test_a_text_that_no_engine_takes_is_estimated(load: Load, folders: dict[str, Path], reasons: Reasons) -> None:
    tokens = await load(tokenizer=str(folders["mistral"]))
    text = "Paris " * 20_000
    assert tokens._loaded is not None
    native: Any = tokens._loaded.native
    most = len(text) // native.longest_token
    assert (await tokens.tokenize(TextInput((text,)), longest_context=lambda: most + 1)).exact
    for texts in ((text,), ("a", text)):
        assert not (await tokens.tokenize(TextInput(texts), longest_context=lambda: most - 1)).exact
    assert reasons.seen == [("m", Why.TOO_LONG)] * 2


async def test_no_id_of_harmony_stands_for_more_than_is_assumed(load: Load, folders: dict[str, Path]) -> None:
    tokens = await load(tokenizer=str(folders["harmony"]))
    assert tokens._loaded is not None
    native: Any = tokens._loaded.native
    spaces = native._encoding.encode(" " * 10_000)
    assert len(spaces) >= 10_000 / native.longest_token


async def test_what_is_remembered_is_bounded(load: Load, folders: dict[str, Path]) -> None:
    tokens = await load(tokenizer=str(folders["harmony"]), memory_bytes=20_000)
    assert tokens._loaded is not None
    native: Any = tokens._loaded.native
    for number in range(100):
        await chat(tokens, {"messages": [{"role": "user", "content": f"{number} " * 100}]})
        assert native._size <= 20_000
    assert 0 < len(native._known) < 50


async def test_texts_of_a_tekken_file_are_exact(load: Load, folders: dict[str, Path]) -> None:
    tokens = await load(tokenizer=str(folders["mistral"]))
    prompt = await tokens.tokenize(TextInput(("the weather is",)))
    assert (prompt.exact, prompt.ids[0]) == (True, 1), "a text has a first token"
    plain = await tokens.tokenize(TextInput(("the weather is",), add_special_tokens=False))
    assert plain.ids == prompt.ids[1:]
    assert tokens.state == "exact"


@pytest.mark.parametrize("family", ["harmony", "mistral"])
async def test_what_vllm_converts_first_is_not_guessed(load: Load, folders: dict[str, Path], family: str) -> None:
    tokens = await load(tokenizer=str(folders[family]))
    for path, body in (
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}),
    ):
        assert (await chat(tokens, body, path)).why == "renderer"
    assert tokens.state == "estimated, renderer"


async def test_a_new_day_is_another_prompt(
    load: Load, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = await load(tokenizer=str(folders["harmony"]))
    before = await chat(tokens, NATIVE["user"])
    monkeypatch.setenv("VLLM_SYSTEM_START_DATE", "2026-03-05")
    assert await chat(tokens, NATIVE["user"]) != before
    monkeypatch.delenv("VLLM_SYSTEM_START_DATE")
    today = await chat(tokens, NATIVE["user"])
    monkeypatch.setenv("VLLM_SYSTEM_START_DATE", time.strftime("%Y-%m-%d"))
    assert await chat(tokens, NATIVE["user"]) == today


async def test_many_at_once_have_their_own_ids(load: Load, folders: dict[str, Path]) -> None:
    tokens = await load(tokenizer=str(folders["harmony"]), memory_bytes=2_000)
    names = [name for name in ("user", "system", "history", "two calls", "reasoning") for _ in range(10)]
    found = await asyncio.gather(*(chat(tokens, NATIVE[name]) for name in names))
    assert [one.ids.tolist() for one in found] == [KEPT["harmony"][name] for name in names]


async def test_a_tekken_file_without_the_extra(
    load: Load, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Family, "installed", property(lambda self: False))
    (folders["mistral"] / "tekken.json").write_text("{}")  # else transformers finds the library, which is installed
    with pytest.raises(ConfigError, match=r"pip install 'kvgate\[mistral\]'"):
        await load(tokenizer=str(folders["mistral"]))
