"""From a call to an attempt that is booked on its endpoints, without sockets."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from gateway.api.multipart import MultipartBody
from gateway.api.settings import PassThroughSettings
from gateway.config.settings import DEFAULT_PLUGINS, DEFAULT_PROFILES
from gateway.errors import NoEndpoint
from gateway.proxy.serving.prefill_result import PrefillResult
from gateway.proxy.upstream.legs import Cause, LegFailed, Retries
from tests.support.chat import CHAT
from tests.support.in_memory import MemoryClient
from tests.support.scene import Life, Scene, split

FORM = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nsim\r\n--b--\r\n'


async def read(scene: Scene) -> Life:
    life = scene.request()
    await life.read(MemoryClient(CHAT))
    return life


def loads(scene: Scene) -> list[int]:
    return [endpoint.load.requests for endpoint in scene.endpoints]


async def test_an_attempt_is_booked_when_it_is_there():
    async with Scene() as scene:
        life = await read(scene)
        scene.clock.now = 4.0
        attempt = life.place()
        assert life.timeline.records == (attempt.record,)
        assert list(scene.decisions) == [attempt.record]
        assert (attempt.plan.decode, attempt.record.booked.endpoint) == (scene.endpoints[0], scene.endpoints[0].name)
        assert loads(scene) == [1, 0]
        assert scene.endpoints[0].load.prefill_tokens == life.call.prompt.count
        assert (len(life.timeline.records), scene.notes.placements) == (1, [("single", 0.0)])
        life.settle()
        scene.has_all_back()


async def test_requests_see_each_others_reservations():
    """Nothing is awaited between deciding and booking: those that come at once are spread."""
    async with Scene(4, plugins=DEFAULT_PLUGINS, profiles=DEFAULT_PROFILES) as scene:
        lives = [await read(scene) for _ in range(8)]
        for life in lives:
            life.place()
        assert loads(scene) == [2, 2, 2, 2]
        for life in lives:
            life.settle()
        scene.has_all_back(8)


async def test_what_failed_it_is_no_candidate():
    async with Scene() as scene:
        life, retries = await read(scene), Retries(scene.config.retries, scene.runtime.budget)
        first = life.place(retries)
        first.end("refused")
        assert retries.charge(LegFailed(Cause.REFUSED, first.plan.decode, "refused"))
        second = life.place(retries)
        assert (first.plan.decode, second.plan.decode) == tuple(scene.endpoints)
        assert life.timeline.records == (first.record, second.record)
        life.settle()
        scene.has_all_back()


async def test_where_none_is_left_the_decision_says_so_and_the_last_attempt_stays():
    async with Scene(1) as scene:
        life, retries = await read(scene), Retries(scene.config.retries, scene.runtime.budget)
        first = life.place(retries)
        first.end("refused")
        retries.charge(LegFailed(Cause.REFUSED, first.plan.decode, "refused"))
        with pytest.raises(NoEndpoint):
            life.place(retries)
        one, last = life.timeline.records
        assert one is first.record
        assert "left to try" in str(last.to_json_at(scene.clock.now, 0.0))
        life.settle()
        scene.has_all_back()


@pytest.mark.parametrize("at", ["keep", "placed"])
async def test_a_defect_keeps_no_place(at):
    async with Scene() as scene:
        life = await read(scene)

        def broken(*_: object) -> None:
            raise ZeroDivisionError

        if at == "keep":
            scene.decisions.keep = broken
        else:
            scene.scheduler.on_placed = (object(),)
            scene.scheduler.placed = broken
        with pytest.raises(ZeroDivisionError):
            life.place()
        life.settle()
        assert loads(scene) == [0, 0]
        scene.has_all_back()


# With several legs


async def test_each_leg_is_booked_where_it_goes():
    async with Scene(2, **split()) as scene:
        life = await read(scene)
        attempt = life.place()
        prefill, decode = scene.endpoints
        assert [(leg.kind, leg.endpoint) for leg in attempt.plan.legs] == [("prefill", prefill), ("decode", decode)]
        assert loads(scene) == [1, 1]
        assert (prefill.load.prefill_tokens, decode.load.prefill_tokens) == (life.call.prompt.count, 0)
        life.settle()
        scene.has_all_back()


def fell_back(life: Life) -> None:
    life.timeline.fallback = "expired"


def has_form(life: Life) -> None:
    form = MultipartBody(FORM, "multipart/form-data; boundary=b", PassThroughSettings())
    life.call = replace(life.call, body=form)


@pytest.mark.parametrize(("given", "reason"), [(fell_back, "fell-back"), (has_form, "form")])
async def test_what_must_be_computed_in_one_place_has_one_leg(given: Callable[[Life], None], reason: str):
    async with Scene(2, **split()) as scene:
        life = await read(scene)
        given(life)
        attempt = life.place()
        assert (len(attempt.plan.legs), attempt.plan.reason) == (1, reason)
        assert attempt.plan.decode is scene.endpoints[1]
        life.settle()
        scene.has_all_back()


@pytest.mark.parametrize("same", [True, False])
async def test_a_prefill_that_was_answered_is_used_where_it_is_placed_again(same):
    async with Scene(2 if same else 3, **split(1 if same else 2)) as scene:
        life = await read(scene)
        first = life.place()
        assert first.plan.prefill is not None
        first.prefill_result = PrefillResult(first.plan.prefill, None, b"{}", 0.0)
        first.sent_as = "other"
        first.end("refused")
        second = life.place()  # the engines are asked in turn
        assert (second.plan.prefill is first.plan.prefill) is same
        assert (second.prefill_result is first.prefill_result) is same
        assert second.sent_as == "other"
        assert loads(scene) == ([0, 1] if same else [0, 1, 1]), "what was answered is booked no more"
        life.settle()
        scene.has_all_back()
