"""The other protocols, through the clients that speak them: Responses, Messages, embeddings, speech; rerank, score."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from simulator.speech import read_form
from tests.simulator.conftest import Running, Start

if TYPE_CHECKING:  # importing both takes a second, for every process of a run, of which one needs them
    import anthropic
    import openai

USER: Any = [{"role": "user", "content": "hello there"}]


@pytest.fixture
async def speaker(engine: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    import openai

    async with openai.AsyncOpenAI(base_url=f"{engine.server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def anthropist(engine: Running) -> AsyncIterator[anthropic.AsyncAnthropic]:
    import anthropic

    async with anthropic.AsyncAnthropic(base_url=engine.server.url, api_key="none", max_retries=0) as client:
        yield client


def named(text: str) -> list[tuple[str, Any]]:
    """Events with names; ``[DONE]`` has none."""
    found = []
    for block in text.split("\n\n")[:-1]:
        name, _, data = block.rpartition("data: ")
        found.append((name.removeprefix("event: ").strip(), data if data == "[DONE]" else json.loads(data)))
    return found


class TestResponses:
    async def test_numbers_are_told_as_decimals(self, engine: Running) -> None:
        asked = {"input": "hi", "temperature": 0, "top_p": 1, "max_output_tokens": 1}
        answer = await engine.client.post("/v1/responses", json=asked)
        assert '"temperature":0.0,' in answer.text
        assert '"top_p":1.0,' in answer.text

    async def test_special_tokens_are_added_unlike_in_a_chat(self, start: Start, tokenizer: str) -> None:
        running = await start(tokenizer=tokenizer)
        answer = await running.client.post("/v1/responses", json={"input": "hello there", "max_output_tokens": 1})
        chat = await running.client.post("/v1/chat/completions", json={"messages": USER, "max_tokens": 1})
        assert answer.json()["usage"]["input_tokens"] == chat.json()["usage"]["prompt_tokens"] + 1

    async def test_whole_and_streamed_say_the_same(self, speaker: openai.AsyncOpenAI) -> None:
        asked: Any = {"model": "sim", "input": "hello", "instructions": "Be brief.", "max_output_tokens": 6}
        whole = await speaker.responses.create(**asked)
        assert (whole.status, whole.usage and whole.usage.output_tokens) == ("incomplete", 6)
        kinds, text = [], ""
        async for event in await speaker.responses.create(**asked, stream=True):
            kinds.append(event.type)
            text += event.delta if event.type == "response.output_text.delta" else ""
        assert text == whole.output_text
        assert kinds[:4] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
        ]
        assert kinds[-4:] == [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]

    async def test_the_last_event_has_the_usage_and_there_is_no_done(self, engine: Running) -> None:
        body = {"model": "sim", "input": USER, "stream": True, "max_output_tokens": 2}
        for cached in (0, 16):  # of 30
            events = named((await engine.client.post("/v1/responses", json=body)).text)
            assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
            assert all(name == data["type"] for name, data in events)
            usage = events[-1][1]["response"]["usage"]
            assert usage["input_tokens_details"]["cached_tokens"] == cached
            assert usage["total_tokens"] == usage["input_tokens"] + 2

    async def test_tools_and_their_results_are_part_of_the_prompt(self, speaker: openai.AsyncOpenAI) -> None:
        tool: Any = {"type": "function", "name": "f", "parameters": {}, "strict": None}
        turns: Any = [
            {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "21"},
        ]
        plain = await speaker.responses.create(model="sim", input="x", max_output_tokens=1)
        full = await speaker.responses.create(model="sim", input=turns, tools=[tool], max_output_tokens=1)
        assert plain.usage is not None
        assert full.usage is not None
        assert full.usage.input_tokens > plain.usage.input_tokens + 50

    @pytest.mark.parametrize("body", [{}, {"input": 3}, {"input": [3]}])
    async def test_an_input_is_needed(self, engine: Running, body: dict[str, Any]) -> None:
        assert (await engine.client.post("/v1/responses", json=body)).status_code == 400


class TestMessages:
    async def test_whole_and_streamed_say_the_same(self, anthropist: anthropic.AsyncAnthropic) -> None:
        asked: Any = {"model": "sim", "max_tokens": 5, "system": "Be brief.", "messages": USER}
        whole = await anthropist.messages.create(**asked)
        async with anthropist.messages.stream(**asked) as stream:
            final = await stream.get_final_message()
        assert final.content[0].text == whole.content[0].text  # type: ignore[union-attr]
        assert (final.stop_reason, whole.stop_reason) == ("max_tokens", "max_tokens")
        assert (whole.usage.output_tokens, whole.usage.cache_read_input_tokens) == (5, 0)
        assert final.usage.cache_read_input_tokens == 48, "of 49"

    async def test_events_come_in_anthropics_order(self, engine: Running) -> None:
        body = {"model": "sim", "max_tokens": 2, "messages": USER, "stream": True}
        events = named((await engine.client.post("/v1/messages", json=body)).text)
        assert [name for name, _ in events] == [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
        assert all(name == data["type"] for name, data in events[:-1])

    async def test_tool_use_and_results_are_part_of_the_prompt(self, anthropist: anthropic.AsyncAnthropic) -> None:
        tool: Any = {"name": "f", "description": "d", "input_schema": {"properties": {}}}
        turns: Any = [
            {"role": "user", "content": [{"type": "text", "text": "x"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "21"}]},
        ]
        counted = await anthropist.messages.count_tokens(model="sim", messages=turns, tools=[tool])
        answered = await anthropist.messages.create(model="sim", messages=turns, tools=[tool], max_tokens=1)
        usage = answered.usage
        cached = (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
        assert counted.input_tokens == usage.input_tokens + cached > 100

    async def test_a_stop_sequence_is_named(self, anthropist: anthropic.AsyncAnthropic) -> None:
        whole = await anthropist.messages.create(model="sim", max_tokens=30, messages=USER)
        text = whole.content[0].text  # type: ignore[union-attr]
        cut = await anthropist.messages.create(model="sim", max_tokens=30, messages=USER, stop_sequences=[text[5:8]])
        assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", text[5:8])

    async def test_errors_have_anthropics_shape(self, anthropist: anthropic.AsyncAnthropic) -> None:
        import anthropic

        with pytest.raises(anthropic.NotFoundError) as caught:
            await anthropist.messages.create(model="nope", max_tokens=3, messages=USER)
        assert caught.value.body == {
            "type": "error",
            "error": {
                "type": "NotFoundError",
                "message": "The model `nope` does not exist. Valid aliases: sim.",
            },
        }

    @pytest.mark.parametrize("body", [{"messages": USER}, {"max_tokens": 3}, {"max_tokens": 3, "messages": "x"}])
    async def test_required_fields_are_named(self, engine: Running, body: dict[str, Any]) -> None:
        answer = await engine.client.post("/v1/messages", json=body)
        assert (answer.status_code, answer.json()["type"]) == (400, "error")


class TestPooling:
    async def test_embeddings_of_several_texts(self, speaker: openai.AsyncOpenAI) -> None:
        answer = await speaker.embeddings.create(model="sim", input=["one", "two", "one"])
        vectors = [item.embedding for item in answer.data]
        assert vectors[0] == vectors[2] != vectors[1]
        assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (9, 9)

    async def test_embeddings_as_numbers_or_base64(self, speaker: openai.AsyncOpenAI) -> None:
        ours: Any = {"model": "sim", "input": [104, 105], "dimensions": 4}
        numbers = await speaker.embeddings.create(**ours, encoding_format="float")
        packed = await speaker.embeddings.create(**ours, encoding_format="base64")
        assert len(numbers.data[0].embedding) == 4
        assert len(str(packed.data[0].embedding)) == 24

    async def test_nothing_is_generated(self, engine: Running) -> None:
        await engine.client.post("/v1/embeddings", json={"model": "sim", "input": "one"})
        assert await engine.metric("vllm:generation_tokens_total") == 0
        assert await engine.metric("vllm:prompt_tokens_total") == 3

    @pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
    async def test_rerank_is_best_first_and_cut(self, engine: Running, path: str) -> None:
        body = {"model": "sim", "query": "q", "documents": ["a", "b", {"text": "c"}], "top_n": 2}
        results = (await engine.client.post(path, json=body)).json()["results"]
        assert len(results) == 2
        assert results[0]["relevance_score"] >= results[1]["relevance_score"]
        assert set(results[0]) == {"index", "document", "relevance_score"}

    @pytest.mark.parametrize("path", ["/score", "/v1/score"])
    @pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2")])
    async def test_score_of_one_against_many(self, engine: Running, path: str, names: tuple[str, str]) -> None:
        answer = await engine.client.post(path, json={"model": "sim", names[0]: "a", names[1]: ["b", "c"]})
        assert [item["index"] for item in answer.json()["data"]] == [0, 1]

    async def test_sides_of_different_length_are_refused(self, engine: Running) -> None:
        answer = await engine.client.post("/score", json={"text_1": ["a", "b"], "text_2": ["a", "b", "c"]})
        assert answer.status_code == 400


class TestSpeech:
    async def test_a_file_becomes_text(self, speaker: openai.AsyncOpenAI) -> None:
        file = ("a.wav", b"\x00\r\n--" * 20_000, "audio/wav")
        whole = await speaker.audio.transcriptions.create(model="sim", file=file)
        assert len(whole.text) > 5
        assert whole.usage is not None
        assert (whole.usage.type, whole.usage.seconds) == ("duration", 4)  # type: ignore[union-attr]
        text = await speaker.audio.transcriptions.create(model="sim", file=file, response_format="text")
        assert str(text) == whole.text

    async def test_streamed_it_comes_in_chunks(self, engine: Running) -> None:
        form = {"model": "sim", "stream": "true", "stream_include_usage": "true"}
        answer = await engine.client.post("/v1/audio/transcriptions", data=form, files={"file": ("a", b"x" * 9)})
        chunks = [json.loads(line[6:]) for line in answer.text.split("\n\n")[:-2]]
        assert {chunk["object"] for chunk in chunks} == {"transcription.chunk"}
        assert chunks[-1]["usage"]["completion_tokens"] == len(chunks) - 1

    async def test_an_unknown_model_is_a_404(self, engine: Running) -> None:
        files = {"file": ("a", b"x")}
        answer = await engine.client.post("/v1/audio/transcriptions", data={"model": "nope"}, files=files)
        assert answer.status_code == 404

    @pytest.mark.parametrize("kind", ["application/json", "multipart/form-data", "multipart/form-data; boundary=x"])
    async def test_anything_else_is_a_400(self, engine: Running, kind: str) -> None:
        headers = {"Content-Type": kind}
        answer = await engine.client.post("/v1/audio/transcriptions", content=b'{"model":"sim"}', headers=headers)
        assert answer.status_code == 400

    def test_a_form_keeps_bytes_as_they_are(self) -> None:
        audio = bytes(range(256)) * 3
        raw = (
            b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nsim\r\n'
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n'
            b"Content-Type: application/octet-stream\r\n\r\n" + audio + b"\r\n--b--\r\n"
        )
        assert read_form("multipart/form-data; boundary=b", raw) == {"model": b"sim", "file": audio}


class TestSmallRoutes:
    @pytest.mark.parametrize("path", ["/health", "/version", "/v1/models", "/load"])
    async def test_they_answer_as_captured(
        self, start: Start, captured: Any, captured_settings: Any, path: str
    ) -> None:
        running = await start(captured_settings)
        real = captured(path.rpartition("/")[2])
        answer = await running.client.get(path)
        assert answer.status_code == real.status
        assert set(answer.headers) == set(real.headers)
        if path != "/v1/models":
            assert answer.content == real.body
        else:
            ours, theirs = answer.json()["data"][0], real.json["data"][0]
            assert list(ours) == list(theirs)
            assert list(ours["permission"][0]) == list(theirs["permission"][0])
            assert (ours["id"], ours["parent"], ours["max_model_len"]) == ("tiny", None, 4096)

    async def test_tokenize_a_chat_or_a_text(self, start: Start, captured: Any, captured_settings: Any) -> None:
        running = await start(captured_settings)
        real = captured("tokenize")
        answer = (await running.client.post("/tokenize", content=real.request)).json()
        assert list(answer) == list(real.json)
        assert answer["count"] == len(answer["tokens"])
        chat = await running.chat("hi", max_tokens=1, return_token_ids=True)
        asked = {"messages": [{"role": "user", "content": "hi"}], "return_token_strs": True}
        same = (await running.client.post("/tokenize", json=asked)).json()
        assert same["tokens"] == chat["prompt_token_ids"]
        assert len(same["token_strs"]) == same["count"]
        back = await running.client.post("/detokenize", json={"tokens": [104, 105]})
        assert back.json() == {"prompt": "hi"}

    @pytest.mark.parametrize(
        ("path", "body"),
        [("/tokenize", {}), ("/detokenize", {}), ("/detokenize", {"tokens": "x"}), ("/tokenize", {"prompt": 3})],
    )
    async def test_what_they_need_is_named(self, engine: Running, path: str, body: dict[str, Any]) -> None:
        assert (await engine.client.post(path, json=body)).status_code == 400
