from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.api.parse import AUDIO_BYTES_PER_TOKEN, COMPLETION_LIMIT, MAX_N, Parsed, parse
from gateway.api.routes import ROUTES
from gateway.api.settings import PassThroughSettings
from gateway.core.prompt import ChatInput, OpaqueInput, TextInput
from gateway.errors import ClientError, UnsupportedMediaType

DATA = Path(__file__).parent.parent / "data" / "api"
SETTINGS = PassThroughSettings()
CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}
MINIMAL: dict[str, dict[str, object]] = {
    CHAT: {"messages": [USER]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/embeddings": {"input": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [USER], "max_tokens": 5},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [1]},
    "/rerank": {"query": "q", "documents": ["d"]},
    "/v1/rerank": {"query": "q", "documents": ["d"]},
    "/v2/rerank": {"query": "q", "documents": ["d"]},
    "/score": {"text_1": "a", "text_2": "b"},
    "/v1/score": {"text_1": "a", "text_2": "b"},
    "/v2/score": {"text_1": "a", "text_2": "b"},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hi"}]},
}


def call(path: str, body: dict[str, object] | bytes, content_type: str = "application/json") -> Parsed:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return parse(ROUTES[path], raw, content_type, SETTINGS)


def test_a_real_chat() -> None:
    raw = (DATA / "chat.request.json").read_bytes()
    read = call(CHAT, raw)
    assert (read.model, read.stream, read.max_tokens, read.n, read.priority) == ("tiny", False, 48, 1, 0)
    assert isinstance(read.input, ChatInput)
    assert [message["role"] for message in read.input.messages] == ["system", "user"]
    assert read.body.encode("tiny") is raw


@pytest.mark.parametrize("path", sorted(set(ROUTES) - {"/v1/audio/transcriptions"}))
def test_every_json_route_is_read(path: str) -> None:
    read = call(path, {"model": "m", **MINIMAL[path]})
    assert (read.model, read.stream) == ("m", False)
    assert json.loads(read.body.encode("n"))["model"] == "n"


@pytest.mark.parametrize(
    ("path", "body", "limit"),
    [
        (CHAT, {"max_tokens": 5}, 5),
        (CHAT, {"max_tokens": 5, "max_completion_tokens": 7}, 7),
        (CHAT, {"max_completion_tokens": None, "max_tokens": 5}, 5),
        (CHAT, {}, None),
        (CHAT, {"max_tokens": 0}, None),
        (CHAT, {"max_tokens": -3}, None),
        (CHAT, {"max_tokens": "5"}, None),
        (CHAT, {"max_tokens": True}, None),
        (CHAT, {"max_tokens": {"a": 1}}, None),
        ("/v1/completions", {}, COMPLETION_LIMIT),
        ("/v1/completions", {"max_tokens": 3}, 3),
        ("/v1/responses", {"max_output_tokens": 9, "max_tokens": 3}, 9),
        ("/v1/messages", {"max_tokens": 8}, 8),
        ("/v1/embeddings", {"max_tokens": 8}, None),
    ],
)
def test_the_limit_of_the_output(path: str, body: dict[str, object], limit: int | None) -> None:
    assert call(path, {"model": "m", **MINIMAL[path], **body}).max_tokens == limit


def test_what_else_routing_may_use() -> None:
    read = call(
        CHAT,
        {
            "model": "m",
            **MINIMAL[CHAT],
            "stream": True,
            "n": 3,
            "cache_salt": "s",
            "priority": -2,
            "session_id": "one",
            "prompt_cache_key": "two",
        },
    )
    assert (read.stream, read.n, read.cache_salt, read.priority, read.session) == (True, 3, "s", -2, "one")
    odd = {"n": "x", "cache_salt": 5, "priority": [], "session_id": {}, "prompt_cache_key": "two", "stream": None}
    read = call(CHAT, {"model": "m", **MINIMAL[CHAT], **odd})
    assert (read.stream, read.n, read.cache_salt, read.priority, read.session) == (False, 1, None, 0, "two")


@pytest.mark.parametrize(("n", "counted"), [(None, 1), (0, 1), (-1, 1), (10**30, MAX_N)])
def test_an_absurd_n_does_not_count(n: object, counted: int) -> None:
    assert call(CHAT, {"model": "m", **MINIMAL[CHAT], "n": n}).n == counted


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": 5}, "model"),
        ({"model": ["m"]}, "model"),
        ({"model": "m", "stream": 2}, "stream"),
        ({"model": "m", "stream": "oui"}, "stream"),
        ({"model": "m", "vllm_xargs": "x"}, "vllm_xargs"),
        ({"model": "m", "kv_transfer_params": [1]}, "kv_transfer_params"),
        ({"model": "m", "messages": []}, "messages"),
        ({"model": "m", "messages": "hi"}, "messages"),
    ],
)
def test_an_error_names_its_culprit(body: dict[str, object], param: str) -> None:
    with pytest.raises(ClientError) as caught:
        call(CHAT, {"messages": [USER], **body})
    assert (caught.value.status, caught.value.param) == (400, param)
    assert param in caught.value.message


@pytest.mark.parametrize(("stream", "streams"), [(1, True), ("Yes", True), (0, False), ("off", False), (1.0, True)])
def test_stream_and_model_are_taken_as_vllm_takes_them(stream: object, streams: bool) -> None:
    read = call(CHAT, {"messages": [USER], "model": "", "stream": stream})
    assert (read.model, read.stream) == ("", streams)
    sent = json.loads(read.body.encode("m"))
    assert (sent["model"], sent["stream"]) == ("m", stream)


def test_what_an_engine_ignores_is_left_out_without_a_word() -> None:
    read = call("/v1/embeddings", {"model": "m", "input": "x", "kv_transfer_params": "x", "vllm_xargs": 1})
    assert json.loads(read.body.encode("m")) == {"model": "m", "input": "x"}


def test_stream_is_not_looked_at_where_nothing_is_generated() -> None:
    assert call("/v1/embeddings", {"model": "m", "input": "x", "stream": "?"}).stream is False


@pytest.mark.parametrize(
    "content_type", ["", "application/json; charset=utf-8", "APPLICATION/JSON", "application/x+json"]
)
def test_content_types_of_json(content_type: str) -> None:
    read = call(CHAT, {"model": "m", "messages": [USER]}, content_type)
    assert read.body.content_type == "application/json"


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_other_content_types_are_refused(content_type: str) -> None:
    with pytest.raises(UnsupportedMediaType) as caught:
        call(CHAT, {"model": "m", "messages": [USER]}, content_type)
    assert caught.value.status == 415


def test_a_prompt_of_a_million_tokens() -> None:
    read = call("/v1/completions", {"model": "m", "prompt": "word " * 1_000_000})
    assert isinstance(read.input, TextInput)
    assert len(read.input.texts[0]) == 5_000_000


AUDIO = "/v1/audio/transcriptions"
FORM = "multipart/form-data; boundary=b"


def form(**fields: bytes) -> bytes:
    parts = [
        f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode() + value + b"\r\n"
        for name, value in fields.items()
    ]
    return b"".join(parts) + b"--b--\r\n"


def test_a_transcription() -> None:
    sound = bytes(range(256)) * 1000
    read = call(AUDIO, form(file=sound, model=b"whisper", stream=b"true", prompt=b"names"), FORM)
    assert (read.model, read.stream, read.max_tokens) == ("whisper", True, None)
    assert isinstance(read.input, OpaqueInput)
    assert read.input.why == "multipart"
    assert read.input.raw.startswith(b"names" + sound[:100])
    assert len(read.input.raw) == 5 + len(sound) // AUDIO_BYTES_PER_TOKEN * 4
    assert read.body.encode("whisper") == form(file=sound, model=b"whisper", stream=b"true", prompt=b"names")


def test_a_body_may_name_no_model() -> None:
    assert call(CHAT, {"messages": [USER]}).model == ""
    assert call(CHAT, {"messages": [USER], "model": None}).model == ""
    assert call(AUDIO, form(file=b"x"), FORM).model == ""


def test_a_forms_model_is_utf8() -> None:
    with pytest.raises(ClientError) as caught:
        call(AUDIO, form(model=b"\xff"), FORM)
    assert caught.value.param == "model"


def test_a_transcription_is_no_json() -> None:
    with pytest.raises(UnsupportedMediaType):
        call(AUDIO, {"model": "m"})
