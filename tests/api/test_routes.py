from __future__ import annotations

import pytest

from gateway.api.routes import ROUTES, Dialect, dialect_of, find
from gateway.errors import MethodNotAllowed, NotFound
from gateway.framework import Kind


def test_every_inference_route_is_found() -> None:
    assert set(ROUTES) == {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses",
        "/v1/messages",
        "/tokenize",
        "/detokenize",
        "/v1/audio/transcriptions",
        "/rerank",
        "/v1/rerank",
        "/v2/rerank",
        "/score",
        "/v1/score",
        "/v2/score",
        "/v1/messages/count_tokens",
    }
    assert find("POST", "/v2/rerank").kind is Kind.RERANK
    assert find("POST", "/v1/messages").dialect is Dialect.ANTHROPIC
    assert find("POST", "/v1/audio/transcriptions").multipart


@pytest.mark.parametrize(
    "path",
    [
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/sleep",
        "/wake_up",
        "/reset_prefix_cache",
        "/collective_rpc",
        "/invocations",
        "/inference/v1/generate",
        "/v1/chat/completions/render",
        "/v1/chat/completions/",
        "/V1/chat/completions",
        "//v1/completions",
        "/v1/../sleep",
        "",
    ],
)
def test_nothing_else_is_passed_on(path: str) -> None:
    with pytest.raises(NotFound):
        find("POST", path)


def test_a_known_path_with_another_method_says_so() -> None:
    with pytest.raises(MethodNotAllowed, match="POST"):
        find("GET", "/v1/completions")


def test_an_error_shows_only_the_start_of_a_long_path() -> None:
    with pytest.raises(NotFound) as caught:
        find("POST", "/" + "x" * 10_000)
    assert len(caught.value.message) < 400


def test_errors_below_messages_are_anthropics() -> None:
    assert dialect_of("/v1/messages") is Dialect.ANTHROPIC
    assert dialect_of("/v1/messages/count_tokens") is Dialect.ANTHROPIC
    assert dialect_of("/v1/messagesx") is Dialect.OPENAI
