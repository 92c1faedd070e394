"""The ids that ``gateway.tokens`` makes of a body are the ids that vLLM makes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.api.parse import parse
from gateway.api.routes import find
from gateway.api.settings import PassThroughSettings
from gateway.api.usage import read_usage
from gateway.core.observer import NULL_OBSERVER
from gateway.core.prompt import Prompt
from gateway.tokens.settings import TokenSettings
from gateway.tokens.tokenizer import ModelTokens
from tests.engines.chats import CHATS, COMPLETIONS, TEMPLATES, Body
from tests.engines.engine import SERVED_NAME, Engine
from tests.engines.test_conversions import BODIES, NOT_KNOWN


@pytest.fixture(scope="module")
def client(started_engines: list[Engine]) -> Iterator[httpx.Client]:
    """Of one engine."""
    with httpx.Client(base_url=started_engines[0].url, timeout=60.0) as client:
        yield client


async def ours(settings: TokenSettings, path: str, body: Body) -> Prompt:
    """What the gateway makes of a body, from its bytes on."""
    tokens = ModelTokens(settings, SERVED_NAME, NULL_OBSERVER)
    await tokens.load()
    return await tokenize(tokens, path, body)


async def tokenize(tokens: ModelTokens, path: str, body: Body) -> Prompt:
    raw = json.dumps({"model": SERVED_NAME, **body}).encode()
    return await tokens.tokenize(parse(find("POST", path), raw, "application/json", PassThroughSettings()).input)


def theirs(client: httpx.Client, path: str, body: Body) -> dict[str, Any]:
    """The engine's answer, which tells its ids."""
    answer = client.post(path, json={"model": SERVED_NAME, "max_tokens": 1, "return_token_ids": True, **body})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def counted(client: httpx.Client, path: str, body: Body) -> int | None:
    """The prompt tokens that the engine counts; None if it refuses the body."""
    # A connection each: vLLM closes those on which it has failed.
    answer = client.post(path, json={"model": SERVED_NAME, **body}, headers={"Connection": "close"})
    if answer.status_code != 200:
        return None
    usage = read_usage(answer.content, find("POST", path).kind)
    assert usage is not None
    return usage.prompt_tokens


@pytest.mark.parametrize("name", CHATS)
async def test_chat(client: httpx.Client, model_folder: Path, name: str) -> None:
    path, body = "/v1/chat/completions", CHATS[name]
    prompt = await ours(TokenSettings(tokenizer=str(model_folder)), path, body)
    answer = theirs(client, path, body)
    assert prompt.exact, prompt.why
    assert prompt.ids.tolist() == answer["prompt_token_ids"]
    assert prompt.count == answer["usage"]["prompt_tokens"]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("name", CHATS)
async def test_chat_with_a_template_file(
    client: httpx.Client, model_folder: Path, tmp_path: Path, name: str, template: str
) -> None:
    path, body = "/v1/chat/completions", CHATS[name]
    file = tmp_path / "template.jinja"
    file.write_text(TEMPLATES[template])
    prompt = await ours(TokenSettings(tokenizer=str(model_folder), chat_template=str(file)), path, body)
    answer = theirs(client, path, body | {"chat_template": TEMPLATES[template]})
    assert prompt.exact, prompt.why
    assert prompt.ids.tolist() == answer["prompt_token_ids"]


@pytest.mark.parametrize("name", COMPLETIONS)
async def test_completion(client: httpx.Client, model_folder: Path, name: str) -> None:
    path, body = "/v1/completions", COMPLETIONS[name]
    prompt = await ours(TokenSettings(tokenizer=str(model_folder)), path, body)
    answer = theirs(client, path, body)
    assert prompt.exact, prompt.why
    assert prompt.ids.tolist() == answer["choices"][0]["prompt_token_ids"]
    assert prompt.single


async def test_several_completions_in_one_body(client: httpx.Client, model_folder: Path) -> None:
    path, body = "/v1/completions", {"prompt": ["The weather", "in Paris is sunny"]}
    prompt = await ours(TokenSettings(tokenizer=str(model_folder)), path, body)
    answer = theirs(client, path, body)
    assert prompt.exact, prompt.why
    assert prompt.ids.tolist() == answer["choices"][0]["prompt_token_ids"]
    assert prompt.count == answer["usage"]["prompt_tokens"]
    assert not prompt.single


@pytest.mark.parametrize("path", BODIES)
async def test_routes_that_become_chats(client: httpx.Client, model_folder: Path, path: str) -> None:
    """They do not tell their ids, which ``test_conversions.py`` compares, but how many there were."""
    tokens = ModelTokens(TokenSettings(tokenizer=str(model_folder)), SERVED_NAME, NULL_OBSERVER)
    await tokens.load()
    limit = {"max_output_tokens": 1} if path == "/v1/responses" else {}
    different, answered = {}, 0
    for name, body in BODIES[path].items():
        prompt = await tokenize(tokens, path, body | limit)
        count = counted(client, path, body | limit)
        answered += count is not None
        if count is not None and name not in NOT_KNOWN[path] and (prompt.why, prompt.count) != ("", count):
            different[name] = (prompt.why, prompt.count, count)
    await tokens.close()
    assert different == {}
    assert answered > 60
