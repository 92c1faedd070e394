"""From a call to an attempt that is booked on its endpoints, without sockets."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from gateway.api.multipart import MultipartBody
from gateway.api.settings import PassSettings
from gateway.config.settings import DEFAULT_PLUGINS, DEFAULT_PROFILES
from gateway.errors import NoEndpoint
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.exchange import Exchange
from gateway.proxy.serving.prefill_result import PrefillResult
from gateway.proxy.upstream.legs import Cause, LegFailed, Retries
from tests.support.chat import CHAT
from tests.support.in_memory import MemoryClient
from tests.support.scene import Scene, split

FORM = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nsim\r\n--b--\r\n'


async def read(scene: Scene) -> Exchange:
    exchange = scene.exchange()
    await scene.reception.read(exchange, MemoryClient(CHAT))
    return exchange


def place(scene: Scene, exchange: Exchange, retries: Retries | None = None) -> Attempt:
    return scene.placer.place(exchange, retries or Retries(scene.config.retries, scene.runtime.budget))


def loads(scene: Scene) -> list[int]:
    return [endpoint.load.requests for endpoint in scene.endpoints]


async def test_an_attempt_is_booked_when_it_is_there():
    async with Scene() as scene:
        exchange = await read(scene)
        scene.clock.now = 4.0
        attempt = place(scene, exchange)
        assert exchange.attempt is attempt
        assert exchange.record is attempt.record
        assert list(scene.decisions) == [attempt.record]
        assert (attempt.plan.decode, attempt.booked.endpoint) == (scene.endpoints[0], scene.endpoints[0])
        assert loads(scene) == [1, 0]
        assert scene.endpoints[0].load.prefill_tokens == exchange.call.prompt.count
        assert (exchange.timeline.attempts, scene.notes.placements) == (1, [("single", 0.0)])
        exchange.settle()
        scene.has_all_back()


async def test_requests_see_each_others_reservations():
    """Nothing is awaited between deciding and booking: those that come at once are spread."""
    async with Scene(4, plugins=DEFAULT_PLUGINS, profiles=DEFAULT_PROFILES) as scene:
        exchanges = [await read(scene) for _ in range(8)]
        for exchange in exchanges:
            place(scene, exchange)
        assert loads(scene) == [2, 2, 2, 2]
        for exchange in exchanges:
            exchange.settle()
        scene.has_all_back(8)


async def test_what_failed_it_is_no_candidate():
    async with Scene() as scene:
        exchange, retries = await read(scene), Retries(scene.config.retries, scene.runtime.budget)
        first = place(scene, exchange, retries)
        first.end("refused")
        assert retries.charge(LegFailed(Cause.REFUSED, first.plan.decode, "refused"))
        second = place(scene, exchange, retries)
        assert (first.plan.decode, second.plan.decode) == tuple(scene.endpoints)
        assert exchange.attempt is second
        assert exchange.timeline.attempts == 2
        exchange.settle()
        scene.has_all_back()


async def test_where_none_is_left_the_decision_says_so_and_the_last_attempt_stays():
    async with Scene(1) as scene:
        exchange, retries = await read(scene), Retries(scene.config.retries, scene.runtime.budget)
        first = place(scene, exchange, retries)
        first.end("refused")
        retries.charge(LegFailed(Cause.REFUSED, first.plan.decode, "refused"))
        with pytest.raises(NoEndpoint):
            place(scene, exchange, retries)
        assert exchange.attempt is first
        assert exchange.record is not first.record
        assert "left to try" in str(exchange.record.to_json(scene.clock.now, 0.0))
        exchange.settle()
        scene.has_all_back()


@pytest.mark.parametrize("at", ["keep", "placed"])
async def test_a_defect_keeps_no_place(at):
    async with Scene() as scene:
        exchange = await read(scene)

        def broken(*_: object) -> None:
            raise ZeroDivisionError

        if at == "keep":
            scene.decisions.keep = broken
        else:
            scene.scheduler.on_placed = (object(),)
            scene.scheduler.placed = broken
        with pytest.raises(ZeroDivisionError):
            place(scene, exchange)
        exchange.settle()
        assert loads(scene) == [0, 0]
        scene.has_all_back()


# With several legs


async def test_each_leg_is_booked_where_it_goes():
    async with Scene(2, **split()) as scene:
        exchange = await read(scene)
        attempt = place(scene, exchange)
        prefill, decode = scene.endpoints
        assert [(leg.kind, leg.endpoint) for leg in attempt.plan.legs] == [("prefill", prefill), ("decode", decode)]
        assert loads(scene) == [1, 1]
        assert (prefill.load.prefill_tokens, decode.load.prefill_tokens) == (exchange.call.prompt.count, 0)
        exchange.settle()
        scene.has_all_back()


def fell_back(exchange: Exchange) -> None:
    exchange.timeline.fallback = "expired"


def has_form(exchange: Exchange) -> None:
    form = MultipartBody(FORM, "multipart/form-data; boundary=b", PassSettings())
    exchange.incoming = exchange.call = replace(exchange.call, body=form)


@pytest.mark.parametrize(("given", "reason"), [(fell_back, "fell-back"), (has_form, "form")])
async def test_what_must_be_computed_in_one_place_has_one_leg(given: Callable[[Exchange], None], reason: str):
    async with Scene(2, **split()) as scene:
        exchange = await read(scene)
        given(exchange)
        attempt = place(scene, exchange)
        assert (len(attempt.plan.legs), attempt.plan.reason) == (1, reason)
        assert attempt.plan.decode is scene.endpoints[1]
        exchange.settle()
        scene.has_all_back()


@pytest.mark.parametrize("same", [True, False])
async def test_a_prefill_that_was_answered_is_used_where_it_is_placed_again(same):
    async with Scene(2 if same else 3, **split(1 if same else 2)) as scene:
        exchange = await read(scene)
        first = place(scene, exchange)
        assert first.plan.prefill is not None
        first.prefill_result = PrefillResult(first.plan.prefill, None, b"{}", 0.0)
        first.sent_as = "other"
        first.end("refused")
        second = place(scene, exchange)  # the engines are asked in turn
        assert (second.plan.prefill is first.plan.prefill) is same
        assert (second.prefill_result is first.prefill_result) is same
        assert second.sent_as == "other"
        assert loads(scene) == ([0, 1] if same else [0, 1, 1]), "what was answered is booked no more"
        exchange.settle()
        scene.has_all_back()
