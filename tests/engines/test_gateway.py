"""The gateway as its users see it: the clients they use in front, real engines behind."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from gateway.commands.processes import wait_for
from tests.engines.answers import events, outline, without_identity
from tests.engines.chats import WEATHER, Body, called, chat, system, tool, user
from tests.engines.engine import Engine
from tests.engines.gateway import ALIAS, MODEL, Gateway, run_gateway
from tests.engines.prompts import passage

GREEDY: Body = {"temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="module")
def gateway(started_engines: list[Engine], model_folder: Path, run_folder: Path) -> Iterator[Gateway]:
    """In front of the three engines, for all tests of this file that break nothing."""
    endpoints = [{"url": engine.url, "name": engine.name} for engine in started_engines]
    with run_gateway(run_folder, endpoints, {"tokenizer": str(model_folder)}) as gateway:
        yield gateway


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
async def claude(gateway: Gateway) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


async def test_chat(client: openai.AsyncOpenAI, engine: Engine, gateway: Gateway) -> None:
    body = chat(system("Be brief."), user("What is the weather in Paris?"), **GREEDY)
    ours = await client.chat.completions.with_raw_response.create(model=ALIAS, **body)
    direct = engine.ask("/v1/chat/completions", body)
    assert without_identity(json.loads(ours.content)) == without_identity(direct.json())
    assert ours.parse().choices[0].message.content
    line = gateway.request(ours.headers["x-request-id"])
    assert (line["model"], line["status"], line["outcome"]) == (MODEL, 200, "ok")
    assert line["exact"]
    assert line["prompt_tokens"] == direct.json()["usage"]["prompt_tokens"]


async def test_completion(client: openai.AsyncOpenAI, engine: Engine) -> None:
    for prompt in ("The weather in Paris", [5, 6, 7, 8], ["one", "two"], [[5, 6], [7, 8, 9]]):
        ours = await client.completions.create(model=MODEL, prompt=prompt, **GREEDY)
        direct = engine.ask("/v1/completions", {"prompt": prompt, **GREEDY}).raise_for_status().json()
        assert [choice.text for choice in ours.choices] == [choice["text"] for choice in direct["choices"]]
        assert ours.usage is not None
        assert ours.usage.prompt_tokens == direct["usage"]["prompt_tokens"]


async def test_streamed_chat(client: openai.AsyncOpenAI) -> None:
    body = chat(user("Tell me about the quick brown fox."), **GREEDY)
    whole = await client.chat.completions.create(model=MODEL, **body)
    stream = await client.chat.completions.create(
        model=MODEL, stream=True, stream_options={"include_usage": True}, **body
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == (
        whole.choices[0].message.content
    )
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 12


async def test_streamed_completion(client: openai.AsyncOpenAI) -> None:
    whole = await client.completions.create(model=MODEL, prompt="The five boxing", **GREEDY)
    stream = await client.completions.create(model=MODEL, prompt="The five boxing", stream=True, **GREEDY)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == whole.choices[0].text


def test_an_answer_passes_unchanged(gateway: Gateway, engine: Engine) -> None:
    path, body = "/v1/chat/completions", chat(user("hi"), **GREEDY)
    ours, direct = gateway.ask(path, body), engine.ask(path, body)
    assert ours.status_code == direct.status_code == 200
    assert ours.headers["content-type"] == direct.headers["content-type"]
    assert without_identity(ours.json()) == without_identity(direct.json())


def test_a_stream_passes_unchanged(gateway: Gateway, engine: Engine) -> None:
    """The same events with the same text. (The bytes of two runs differ by ids and by how the text is cut.)"""
    path, body = "/v1/chat/completions", chat(user("hi"), stream=True, **GREEDY)
    ours, direct = gateway.ask(path, body), engine.ask(path, body)
    assert ours.status_code == direct.status_code == 200
    assert ours.headers["content-type"] == direct.headers["content-type"]
    assert outline(ours.text) == outline(direct.text)
    assert spoken(ours.text) == spoken(direct.text) != ""


def spoken(stream: str) -> str:
    """The text of a chat's deltas."""
    deltas = [data["choices"][0]["delta"] for _, data in events(stream) if data != "[DONE]"]
    return "".join(delta.get("content", "") for delta in deltas)


IN_TURN: dict[str, Any] = {
    "plugins": [{"name": "healthy", "type": "healthy"}, {"name": "turn", "type": "round-robin"}],
    "profiles": [{"name": "default", "filters": ["healthy"], "picker": "turn"}],
}


async def test_responses_go_on_where_they_began(
    started_engines: list[Engine], model_folder: Path, run_folder: Path
) -> None:
    """Each engine keeps its own: any other would answer 404."""
    endpoints = [{"url": engine.url, "name": engine.name} for engine in started_engines]
    with run_gateway(run_folder, endpoints, {"tokenizer": str(model_folder)}, **IN_TURN) as gateway:
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
            await converse(client, gateway)


async def converse(client: openai.AsyncOpenAI, gateway: Gateway) -> None:
    """Conversations that each go on from a response, by an engine that keeps them in mind."""
    began = set()
    for number in range(6):
        input_tokens, endpoints, previous = 0, set(), None
        for turn in range(4):
            reply = await client.responses.with_raw_response.create(
                model=MODEL, input=passage(f"{number}.{turn}", 40), max_output_tokens=4, previous_response_id=previous
            )
            response = reply.parse()
            previous = response.id
            assert response.usage is not None
            assert response.usage.input_tokens > input_tokens
            input_tokens = response.usage.input_tokens
            endpoints.add(gateway.request(reply.headers["x-request-id"])["endpoint"])
        assert len(endpoints) == 1
        began |= endpoints
    assert len(began) > 1
    with pytest.raises(openai.NotFoundError, match="No engine is known to keep"):
        await client.responses.create(model=MODEL, input="hi", previous_response_id="resp_nobody_knows")


async def test_a_streamed_response_goes_on_where_it_began(client: openai.AsyncOpenAI) -> None:
    for _ in range(3):
        previous = None
        for turn in range(3):
            stream = await client.responses.create(
                model=MODEL,
                input=passage(f"response {turn}", 40),
                max_output_tokens=4,
                previous_response_id=previous,
                stream=True,
            )
            done = [event async for event in stream][-1]
            assert done.type in ("response.completed", "response.incomplete")
            previous = done.response.id


async def test_tools_in_the_body(client: openai.AsyncOpenAI, gateway: Gateway) -> None:
    asked = await client.chat.completions.with_raw_response.create(
        model=MODEL, **chat(user("What is the weather?"), tools=[WEATHER], tool_choice="auto", **GREEDY)
    )
    plain = await client.chat.completions.create(model=MODEL, **chat(user("What is the weather?"), **GREEDY))
    usage = json.loads(asked.content)["usage"]
    assert plain.usage is not None
    assert usage["prompt_tokens"] > plain.usage.prompt_tokens + 40  # the tool is in the prompt
    assert gateway.request(asked.headers["x-request-id"])["prompt_tokens"] == usage["prompt_tokens"]

    answered = await client.chat.completions.with_raw_response.create(
        model=MODEL,
        **chat(user("Weather?"), called('{"city": "Paris"}'), tool("sunny"), tools=[WEATHER], **GREEDY),
    )
    usage = json.loads(answered.content)["usage"]
    assert gateway.request(answered.headers["x-request-id"])["prompt_tokens"] == usage["prompt_tokens"]


async def test_a_named_tool_is_called(client: openai.AsyncOpenAI, engine: Engine) -> None:
    """The engine is made to call it: the call comes back in the client's types, whole and streamed."""
    choice = {"type": "function", "function": {"name": "get_weather"}}
    body = chat(user("Weather?"), tools=[WEATHER], tool_choice=choice, temperature=0, max_tokens=60)
    direct = engine.ask("/v1/chat/completions", body).raise_for_status().json()
    (theirs,) = direct["choices"][0]["message"]["tool_calls"]
    whole = await client.chat.completions.create(model=MODEL, **body)
    (call,) = whole.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == theirs["function"]["name"] == "get_weather"
    assert call.function.arguments == theirs["function"]["arguments"]
    stream = await client.chat.completions.create(model=MODEL, stream=True, **body)
    deltas = [chunk.choices[0].delta async for chunk in stream if chunk.choices]
    parts = [part for delta in deltas for part in delta.tool_calls or []]
    assert "".join(part.function.arguments or "" for part in parts if part.function) == call.function.arguments


async def test_anthropic_messages(claude: anthropic.AsyncAnthropic, gateway: Gateway) -> None:
    question: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = await claude.messages.create(model=MODEL, max_tokens=12, system="Be brief.", messages=question)
    assert answer.type == "message"
    assert answer.role == "assistant"
    assert answer.usage.output_tokens > 0
    async with claude.messages.stream(model=MODEL, max_tokens=12, messages=question) as stream:
        final = await stream.get_final_message()
    assert final.usage.output_tokens > 0
    with pytest.raises(anthropic.NotFoundError) as refused:
        await claude.messages.create(model="nope", max_tokens=12, messages=question)
    assert isinstance(refused.value.body, dict)
    assert refused.value.body["type"] == "error"


async def test_responses(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(model=MODEL, input="What is the weather?", max_output_tokens=12)
    assert answer.object == "response"
    assert answer.usage is not None
    stream = await client.responses.create(model=MODEL, input="hi", max_output_tokens=8, stream=True)
    kinds = [event.type async for event in stream]
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.completed", "response.incomplete")


def test_tokenize_and_back(gateway: Gateway, engine: Engine) -> None:
    for path, body in (
        ("/tokenize", {"prompt": "The weather"}),
        ("/tokenize", {"messages": [user("hi")]}),
        ("/detokenize", {"tokens": [5, 6, 7]}),
    ):
        ours = gateway.ask(path, body)
        direct = engine.ask(path, body)
        assert ours.status_code == 200
        assert ours.content == direct.content


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert {model.id async for model in client.models.list()} == {MODEL, ALIAS}
    assert (await client.models.retrieve(ALIAS)).id == ALIAS
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("nope")
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(model="nope", messages=[{"role": "user", "content": "hi"}])


ERRORS: dict[str, tuple[str, Body]] = {
    "temperature": ("/v1/chat/completions", chat(user("hi"), temperature=-3)),
    "too long": ("/v1/completions", {"prompt": [5] * 5000}),
    "too long, streamed": ("/v1/chat/completions", chat(user("word " * 6000), stream=True)),
    "max_tokens": ("/v1/chat/completions", chat(user("hi"), max_tokens=0)),
    "too many tokens": ("/v1/completions", {"prompt": "hi", "max_tokens": 100_000}),
    "a message without a role": ("/v1/chat/completions", {"messages": [{"content": "hi"}]}),
    "token out of the vocabulary": ("/v1/completions", {"prompt": [5, 100_000]}),
    "not this model's task": ("/v1/embeddings", {"input": "hi"}),
    "anthropic": ("/v1/messages", {"max_tokens": 12, "messages": [user("hi")], "temperature": -3}),
    "responses": ("/v1/responses", {"input": "hi", "temperature": -3}),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_engines_error_passes_unchanged(gateway: Gateway, engine: Engine, name: str) -> None:
    path, body = ERRORS[name]
    ours = gateway.ask(path, body)
    direct = engine.ask(path, body)
    assert 400 <= direct.status_code < 500, direct.text
    assert ours.status_code == direct.status_code
    assert ours.headers["content-type"] == direct.headers["content-type"]
    assert ours.content == direct.content
    line = gateway.request(ours.headers["x-request-id"])
    assert line["attempts"] == 1


def test_what_could_kill_an_engine_does_not_reach_it(gateway: Gateway, engine: Engine) -> None:
    """vLLM takes ``prompt_token_ids`` from kv_transfer_params in place of the messages: so it shows what arrives."""
    smuggled = {"kv_transfer_params": {"prompt_token_ids": [5] * 40}}
    body = chat(user("hi"), **GREEDY)
    plain = gateway.ask("/v1/chat/completions", body)
    stripped = gateway.ask("/v1/chat/completions", body | smuggled)
    assert without_identity(stripped.json()) == without_identity(plain.json())
    obeyed = engine.ask("/v1/chat/completions", body | smuggled)
    assert obeyed.json()["usage"]["prompt_tokens"] == 40


async def test_a_client_that_leaves_stops_the_engine(
    client: openai.AsyncOpenAI, engines: list[Engine], gateway: Gateway
) -> None:
    before = {engine.name: generated(engine) for engine in engines}
    answer = await client.completions.with_raw_response.create(
        model=MODEL, prompt=passage("leaver", 8), max_tokens=3500, stream=True, extra_body={"ignore_eos": True}
    )
    async for _ in answer.parse():
        break
    await answer.http_response.aclose()
    line = gateway.request(answer.headers["x-request-id"])
    assert line["outcome"] == "cancelled"
    busy = next(engine for engine in engines if engine.name == line["endpoint"])
    # It tells both figures together, a little later than it answers: the first one says that the second is of now.
    wait_for(lambda: generated(busy) > before[busy.name], "the engine's count of the answer", gateway.process)
    wait_for(lambda: busy.metrics()["vllm:num_requests_running"] == 0, "the engine to stop", gateway.process)
    assert generated(busy) - before[busy.name] < 3500  # vLLM does not count requests that it gave up


def generated(engine: Engine) -> float:
    """Tokens since the engine's start."""
    return engine.metrics()["vllm:generation_tokens_total"]
