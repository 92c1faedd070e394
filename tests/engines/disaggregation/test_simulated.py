"""The simulator's pair hands over as the real one does: the same legs to both, and shapes, events, errors and series
compared. Where they differ the simulator is wrong.

The engines run with a patch of NIXL, see ``unspun/sitecustomize.py``.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from simulator.server import EngineServer
from simulator.settings import EngineSettings
from tests.engines.answers import outline, series, shape
from tests.engines.chats import Body
from tests.engines.disaggregation.conftest import Fleet
from tests.engines.disaggregation.pair import KV_BYTES
from tests.engines.disaggregation.routes import ROUTES, Route
from tests.engines.engine import BLOCK_SIZE, MAX_MODEL_LEN, SERVED_NAME, TOKEN_BYTES
from tests.engines.prompts import passage

NOBODY = str(uuid.uuid4())
HANDSHAKE_SECONDS = 2.0
"""vLLM's five would only make the tests longer; the handshake of an engine that lives must be through by then, beside
real engines that take all cores."""
NOT_SIMULATED = ("vllm:estimated_", "vllm:tool_call_parser_", "vllm:cache_config_info")
"""Of the hardware, of an answer's text, and of all options: no gateway reads them, or ``test_shapes.py`` compares."""


@dataclass(frozen=True, slots=True)
class Pair:
    """URLs of a prefill and a decode engine."""

    prefill: str
    decode: str


def simulated(model: Path, role: str) -> EngineServer:
    return EngineServer(
        EngineSettings(
            served_name=SERVED_NAME,
            block_size=BLOCK_SIZE,
            num_blocks=KV_BYTES // TOKEN_BYTES // BLOCK_SIZE,
            max_model_len=MAX_MODEL_LEN,
            tokenizer=str(model),
            connector="nixl",
            kv_role=role,
            handshake_timeout=HANDSHAKE_SECONDS,
        )
    )


@pytest.fixture
async def pairs(fleet: Fleet, model_folder: Path) -> AsyncIterator[tuple[Pair, Pair]]:
    """The real one, and the simulator's."""
    prefill, decode = simulated(model_folder, "producer"), simulated(model_folder, "consumer")
    await prefill.start()
    await decode.start()
    yield Pair(fleet.prefill.url, fleet.decode.url), Pair(prefill.url, decode.url)
    await prefill.close()
    await decode.close()


async def send(url: str, route: Route, body: Body) -> httpx.Response | str:
    """The answer; what had come of it, if its connection breaks."""
    content = b""
    request = {"model": SERVED_NAME, **body}
    async with (
        httpx.AsyncClient(timeout=60.0) as client,
        client.stream("POST", f"{url}{route.path}", json=request) as answer,
    ):
        try:
            async for part in answer.aiter_bytes():
                content += part
        except httpx.RemoteProtocolError:
            return content.decode()
    return httpx.Response(answer.status_code, headers={"content-type": answer.headers["content-type"]}, content=content)


async def prefill(pair: Pair, route: Route, body: Body) -> httpx.Response:
    answer = await send(pair.prefill, route, body)
    assert isinstance(answer, httpx.Response)
    return answer


def parameters(answer: httpx.Response) -> Any:
    return answer.json()["kv_transfer_params"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", ROUTES)
async def test_both_legs(pairs: tuple[Pair, Pair], name: str, stream: bool) -> None:
    route, prompt = ROUTES[name], passage(f"simulated {name} {stream}", 60)
    real, ours = [await prefill(pair, route, route.prefill(prompt)) for pair in pairs]
    assert shape(ours.json()) == shape(real.json())
    assert list(parameters(ours)) == list(parameters(real))
    for field in (
        "remote_num_tokens",
        "tp_size",
        "dcp_size",
        "pp_size",
        "transfer_mode",
        "remote_prefill_cached_tokens",
    ):
        assert parameters(ours)[field] == parameters(real)[field]
    assert len(parameters(ours)["remote_block_ids"][0]) == len(parameters(real)["remote_block_ids"][0])
    answers = [
        await send(pair.decode, route, {**route.body(prompt, stream=stream), "kv_transfer_params": parameters(answer)})
        for pair, answer in zip(pairs, (real, ours), strict=True)
    ]
    theirs, mine = answers
    assert isinstance(theirs, httpx.Response)
    assert isinstance(mine, httpx.Response)
    assert (mine.status_code, mine.headers["content-type"]) == (theirs.status_code, theirs.headers["content-type"])
    if stream:
        assert ends(mine) == ends(theirs)
    else:
        assert shape(mine.json()) == shape(theirs.json())
        assert mine.json()["usage"] == theirs.json()["usage"]


def ends(answer: httpx.Response) -> Any:
    """The first and the last events' names and shapes: into how many deltas an engine cuts its text is chance."""
    found = outline(answer.text)
    return found[0], found[-1]


@pytest.mark.parametrize("name", ROUTES)
async def test_a_streamed_prefill(pairs: tuple[Pair, Pair], name: str) -> None:
    route = ROUTES[name]
    body = route.prefill(passage(f"simulated streamed prefill {name}", 20), stream=True)
    real, ours = [await prefill(pair, route, body) for pair in pairs]
    assert ("remote_engine_id" in ours.text) is ("remote_engine_id" in real.text)


async def test_fetches_that_fail(pairs: tuple[Pair, Pair]) -> None:
    """All at once and with one id, since vLLM takes five seconds for each engine that it does not find."""
    cases = list(itertools.product(ROUTES, (False, True)))
    real, ours = [await asyncio.gather(*(failing(pair, *case) for case in cases)) for pair in pairs]
    assert dict(zip(cases, ours, strict=True)) == dict(zip(cases, real, strict=True))


async def failing(pair: Pair, name: str, stream: bool) -> tuple[str, Any]:
    """How the answer to a decode leg ends whose parameters point to nobody, and what came of it."""
    route, prompt = ROUTES[name], passage(f"simulated failure {name} {stream}", 40)
    live = parameters(await prefill(pair, route, route.prefill(prompt)))
    nobody = {**live, "remote_engine_id": NOBODY, "remote_port": 9}
    answer = await send(pair.decode, route, {**route.body(prompt, stream=stream), "kv_transfer_params": nobody})
    if isinstance(answer, str):
        return "cut", outline(answer)
    return f"{answer.status_code}", outline(answer.text) if stream else shape(answer.json())


async def test_series(pairs: tuple[Pair, Pair]) -> None:
    """Every series of the simulator exists in vLLM with the same labels, and none of the pair's work lacks."""
    route, prompt = ROUTES["chat"], passage("simulated series", 20)
    for pair in pairs:
        answer = await prefill(pair, route, route.prefill(prompt))
        await send(pair.decode, route, {**route.body(prompt), "kv_transfer_params": parameters(answer)})
    async with httpx.AsyncClient(timeout=60.0) as client:
        for side in ("prefill", "decode"):
            theirs, ours = [series((await client.get(f"{getattr(pair, side)}/metrics")).text) for pair in pairs]
            ours = {name: labels for name, labels in ours.items() if not name.startswith(NOT_SIMULATED)}
            assert {name: labels for name, labels in ours.items() if theirs.get(name) != labels} == {}
            lacking = {name for name in theirs if name.startswith("vllm:") and not name.startswith(NOT_SIMULATED)}
            assert lacking - set(ours) == set()
