"""Chats with images on a real engine that sees: what the gateway expects it to hold is what it finds.

The engine's render route tells which tokens an image becomes, and by which hash its blocks are named.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.commands.processes import wait_for
from tests.engines.engine import BLOCK_SIZE, Engine, build_model, serving
from tests.engines.gateway import Gateway, run_gateway
from tests.engines.prompts import passage

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
IMAGE_TOKENS = 64  # of vision_model.py, without those around it
MODEL = {"media": {"render": True, "timeout": 30.0}}
Body = dict[str, Any]


@pytest.fixture(scope="module")
def vision_model(engine_venv: Path, engine_cache: Path) -> Path:
    return build_model(engine_venv, engine_cache, "tiny-idefics3")


@pytest.fixture(scope="module")
def seer(engine_venv: Path, vision_model: Path, run_folder: Path) -> Iterator[Engine]:
    engine = Engine("seer", engine_venv, vision_model, run_folder, flags=("--enable-scale-out",))
    with serving(engine):
        yield engine


@pytest.fixture(scope="module")
def gateway(seer: Engine, vision_model: Path, run_folder: Path) -> Iterator[Gateway]:
    endpoints = [{"url": seer.url, "name": seer.name}]
    with run_gateway(run_folder, endpoints, {"tokenizer": str(vision_model), **MODEL}) as gateway:
        wait_for(lambda: set(gateway.streams().values()) == {"live"}, "the event stream", gateway.process)
        yield gateway
        assert gateway.total("kvgate_token_count_mismatches_total") == 0
        assert gateway.total("kvgate_hit_error_tokens_total") == 0
        assert gateway.total("kvgate_kv_events_total", kind="extra-keys") == 0
        asked = gateway.total("kvgate_media_renders_total", result="asked")
        remembered = gateway.total("kvgate_media_renders_total", result="remembered")
        assert gateway.total("kvgate_media_renders_total") == asked + remembered
        assert min(asked, remembered) > 0


def png(seed: int, side: int = 32) -> str:
    """A picture of its own for each ``seed``, in base64."""
    rows = b"".join(b"\0" + bytes((x * seed + y * 7) % 256 for x in range(3 * side)) for y in range(side))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    whole = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + whole).decode()


def image(seed: int) -> Body:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png(seed)}"}}


def text(value: str) -> Body:
    return {"type": "text", "text": value}


def user(*parts: Body) -> Body:
    return {"role": "user", "content": list(parts)}


def chat(*messages: Body, **more: Any) -> Body:
    return {"messages": list(messages), "max_tokens": 4, "temperature": 0, **more}


def hit(gateway: Gateway, body: Body, path: str = CHAT) -> int:
    """Send one request, and require that the expected hit is the engine's."""
    response = gateway.ask(path, body)
    assert response.status_code == 200, response.text
    line = gateway.request(response.headers["x-request-id"])
    assert line["exact"]
    assert "reported_prompt_tokens" not in line, "it is in there if it is another count"
    assert line["expected_hit"] == line["cached_tokens"], line
    return int(line["expected_hit"])


def test_an_image_that_was_seen_before(gateway: Gateway) -> None:
    question = [text(passage("seen before", 20))]
    assert hit(gateway, chat(user(image(1), *question))) == 0
    held = hit(gateway, chat(user(image(1), *question)))
    assert held >= IMAGE_TOKENS
    # The image's tokens are all the same id: only its hash says that it is another one.
    assert hit(gateway, chat(user(image(2), *question))) == 0
    assert hit(gateway, chat(user(image(2), *question))) == held


def test_another_image_behind_the_same_text(gateway: Gateway) -> None:
    system = {"role": "system", "content": passage("the same system", 60)}
    before = hit(gateway, chat(system, user(image(3))))
    assert hit(gateway, chat(system, user(image(3)))) > before
    ahead = hit(gateway, chat(system, user(image(4))))
    assert 2 * BLOCK_SIZE <= ahead < hit(gateway, chat(system, user(image(4))))


def test_several_images(gateway: Gateway) -> None:
    assert hit(gateway, chat(user(image(5), image(6), text("two?")))) == 0
    both = hit(gateway, chat(user(image(5), image(6), text("two?"))))
    assert both >= 2 * IMAGE_TOKENS
    one = hit(gateway, chat(user(image(5), image(7), text("two?"))))
    assert BLOCK_SIZE <= one < both
    assert hit(gateway, chat(user(image(6), image(5), text("two?")))) == 0


def test_a_conversation(gateway: Gateway) -> None:
    messages = [user(image(8), text(passage("a conversation", 20)))]
    expected = []
    for turn in range(5):
        expected.append(hit(gateway, chat(*messages)))
        messages.append({"role": "assistant", "content": passage(f"answer {turn}", 20)})
        messages.append(user(text(f"and {turn}?"), *([image(9)] if turn == 2 else [])))
    assert expected == sorted(expected)
    assert expected[1] >= IMAGE_TOKENS
    assert expected[4] >= 2 * IMAGE_TOKENS


def test_a_salt(gateway: Gateway) -> None:
    body = chat(user(image(10), text("salted?")))
    assert hit(gateway, body) == 0
    assert hit(gateway, body | {"cache_salt": "tenant"}) == 0
    assert hit(gateway, body | {"cache_salt": "tenant"}) == hit(gateway, body) >= IMAGE_TOKENS


def test_the_client_names_its_image(gateway: Gateway) -> None:
    named = {**image(11), "uuid": "picture-11"}
    assert hit(gateway, chat(user(named, text("which?")))) == 0
    assert hit(gateway, chat(user(named, text("which?")))) >= IMAGE_TOKENS


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            RESPONSES,
            {
                "input": [
                    user(
                        {"type": "input_image", "image_url": image(12)["image_url"]["url"], "detail": "auto"},
                        {"type": "input_text", "text": "responses?"},
                    )
                ],
                "max_output_tokens": 4,
            },
        ),
        (
            MESSAGES,
            {
                "messages": [
                    user(
                        {
                            "type": "image",
                            "source": {"type": "base64", "media_type": "image/png", "data": png(13)},
                        },
                        text("messages?"),
                    )
                ],
                "max_tokens": 4,
            },
        ),
    ],
)
def test_other_routes(gateway: Gateway, path: str, body: Body) -> None:
    assert hit(gateway, body, path) < IMAGE_TOKENS
    assert hit(gateway, body, path) >= IMAGE_TOKENS


def test_a_gateway_that_comes_late(gateway: Gateway, seer: Engine, run_folder: Path) -> None:
    """It has no tokenizer, either: of chats with images the engine tells all."""
    body = chat(user(image(14), text(passage("late", 40))))
    hit(gateway, body)
    with run_gateway(run_folder, [{"url": seer.url, "name": seer.name}], MODEL) as late:
        wait_for(lambda: set(late.streams().values()) == {"live"}, "the replay", late.process)
        assert hit(late, body) >= IMAGE_TOKENS
