"""The routes that render, and what images become: as vLLM 0.32 answered a chat with two images."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.settings import EngineSettings
from tests.simulator.conftest import Start

IMAGES = EngineSettings(scale_out=True, image_tokens=5)


def image(url: str, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}, **more}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


async def test_a_chat_renders_to_what_it_is_served_from(start: Start) -> None:
    engine = await start(IMAGES)
    body = {"model": "sim", "messages": [user({"type": "text", "text": "and"}, image("a"), image("b", uuid="u"))]}
    told = (await engine.client.post("/v1/chat/completions/render", json=body)).json()
    features = told["features"]
    assert features["mm_hashes"]["image"][1] == "u"
    first, second = features["mm_placeholders"]["image"]
    assert (first["length"], second["offset"] - first["offset"]) == (5, 6), "a line break is between them"
    served = (
        await engine.client.post("/v1/chat/completions", json={**body, "max_tokens": 1, "return_token_ids": True})
    ).json()
    assert served["prompt_token_ids"] == told["token_ids"]
    assert served["usage"]["prompt_tokens"] == len(told["token_ids"])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": [user({"type": "input_image", "image_url": "data:image/png;base64,AA"})]}),
        (
            "/v1/messages",
            {"messages": [user({"type": "image", "source": {"media_type": "image/png", "data": "AA"}})]},
        ),
    ],
)
async def test_an_image_is_the_same_on_every_route(start: Start, path: str, body: dict[str, Any]) -> None:
    engine = await start(IMAGES)
    told = (await engine.client.post(f"{path}/render", json={"model": "sim", **body})).json()
    chat = {"model": "sim", "messages": [user(image("data:image/png;base64,AA"))]}
    assert (await engine.client.post("/v1/chat/completions/render", json=chat)).json()["features"] == told["features"]


async def test_a_text_has_no_features(start: Start) -> None:
    engine = await start(IMAGES)
    body = {"model": "sim", "messages": [{"role": "user", "content": "hi"}]}
    assert (await engine.client.post("/v1/chat/completions/render", json=body)).json()["features"] is None


async def test_what_goes_on_from_a_response_is_not_rendered(start: Start) -> None:
    engine = await start(IMAGES)
    answer = await engine.client.post("/v1/responses/render", json={"input": "hi", "previous_response_id": "r"})
    assert answer.status_code == 400


async def test_the_routes_are_there_only_where_they_are_switched_on(start: Start) -> None:
    engine = await start(EngineSettings())
    assert (await engine.client.post("/v1/chat/completions/render", json={})).status_code == 404
