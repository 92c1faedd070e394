from __future__ import annotations

import httpx
import pytest

from gateway.commands.demo.comparison import ENGINE_COUNTERS
from gateway.commands.demo.drive import Sample, counted, counter, drive, words
from gateway.commands.demo.scene import Scene
from gateway.core.clock import SystemClock
from tests.support.engines import simulated


@pytest.fixture
async def engine(tokenizer):
    async with simulated(tokenizer=tokenizer, step_seconds=0.0) as server:
        yield server


async def test_conversations_grow_turn_by_turn(engine, small: Scene) -> None:
    ticks: list[Sample] = []
    samples = await drive(small, engine.url, SystemClock(), ticks.append)
    assert samples == ticks
    assert len(samples) == small.requests
    assert all(sample.error == "" and sample.ttft is not None and sample.ttft > 0 for sample in samples)
    prompt_tokens, cached_tokens = await counted([engine.url], *ENGINE_COUNTERS)
    # Of 36 prompts six are new; second turns begin with all that was said in the first.
    assert 0.6 < cached_tokens / prompt_tokens < 0.98


async def test_a_failed_request_is_a_sample_and_the_rest_goes_on(engine, small: Scene) -> None:
    await engine.close()
    samples = await drive(small, engine.url, SystemClock(), lambda sample: None)
    assert len(samples) == small.requests
    assert all(sample.ttft is None and "ConnectError" in sample.error for sample in samples)


async def test_what_the_gateway_answers_instead_is_the_error(engine, small: Scene) -> None:
    # The engine knows no such path: it says 404 as a gateway might.
    samples = await drive(small, f"{engine.url}/nowhere", SystemClock(), lambda sample: None)
    assert all(sample.error.startswith("404: ") for sample in samples)


def test_words_of_a_stream() -> None:
    hi, role = (
        b'data: {"choices": [{"delta": {"content": "Hi"}}]}\n\n',
        b'data: {"choices": [{"delta": {"role": "a"}}]}\n\n',
    )
    nothing = (
        b'data: {"choices": [{"delta": {"content": null}}]}\r\n\r\ndata: {"choices": [], "usage": {}}\n\n: ping\n\n'
    )
    assert words(b"") == words(role) == words(nothing) == words(b"data: [DONE]\n\n") == ""
    assert words(role + hi + nothing + hi + b"data: [DONE]\n\n") == "HiHi"
    for cut in range(len(hi) - 1):
        assert words(hi + hi[:cut]) == "Hi"
    with pytest.raises(httpx.RemoteProtocolError, match="gone"):
        words(hi + b'data: {"error": {"message": "gone"}}\n\n')


def test_counters_are_summed_over_their_series() -> None:
    page = '# TYPE a counter\na{e="0"} 3\na{e="1"} 4.0\na_total 9\nab{e="0"} 100\n'
    assert counter(page, "a") == 7
    assert counter(page, "a_total") == 9
    with pytest.raises(ValueError, match="no metric b"):
        counter(page, "b")
