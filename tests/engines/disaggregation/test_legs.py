"""What a real pair says and does on the wire, without a gateway: all that the gateway and the simulator build on.

The engines run with a patch of NIXL, see ``unspun/sitecustomize.py``. One thing here is not as without it: an engine
that keeps no blocks for anybody makes no progress, so what is read from it then does not come, where it would otherwise
be whatever is in those blocks by now.
"""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from gateway.commands.processes import wait_for
from tests.engines.answers import events
from tests.engines.chats import Body
from tests.engines.disaggregation.conftest import Fleet
from tests.engines.disaggregation.pair import LEASE_SECONDS, Sources
from tests.engines.disaggregation.routes import ROUTES, Route
from tests.engines.engine import BLOCK_SIZE, SERVED_NAME, TOKEN_BYTES, Engine
from tests.engines.prompts import passage

COUNTED_LATE = 10.0
"""Seconds: an engine tells its metrics after the answer."""


def send(engine: Engine, route: Route, body: Body, request_id: str = "") -> httpx.Response:
    """As a gateway sends a leg: with an id of its choosing."""
    headers = {"x-request-id": request_id or uuid.uuid4().hex}
    return httpx.post(f"{engine.url}{route.path}", json={"model": SERVED_NAME, **body}, headers=headers, timeout=60.0)


def prefill(engine: Engine, route: Route, prompt: str, request_id: str = "") -> Body:
    """The parameters that the engine answers a prefill leg with."""
    answer = send(engine, route, route.prefill(prompt), request_id).raise_for_status().json()
    params = answer["kv_transfer_params"]
    assert isinstance(params, dict)
    return params


@pytest.fixture(scope="module", autouse=True)
def unread(started_fleet: Fleet) -> float:
    """Blocks that nobody will read, from the first test on; the number of such that had been given up before."""
    if not started_fleet.prefill.running:
        started_fleet.prefill.restart()
    before = started_fleet.prefill.metrics()["vllm:nixl_num_kv_expired_reqs_total"]
    prefill(started_fleet.prefill, ROUTES["completions"], passage("given up", 20))
    return before


REQUEST_IDS = {
    "chat": r"chatcmpl-req-1-chat-[0-9a-f]{8}",
    "completions": r"cmpl-req-1-completions-0-[0-9a-f]{8}",
    "responses": r"resp_[0-9a-f]{16}_0-[0-9a-f]{8}",  # which takes no X-Request-Id
    "messages": r"chatcmpl-req-1-messages-[0-9a-f]{8}",
}


@pytest.mark.parametrize("name", ROUTES)
def test_the_answer_of_a_prefill(fleet: Fleet, name: str) -> None:
    route = ROUTES[name]
    answer = send(fleet.prefill, route, route.prefill(passage(f"prefill {name}", 20)), f"req-1-{name}")
    assert answer.status_code == 200
    params = answer.json()["kv_transfer_params"]
    length = route.length(answer)
    (blocks,) = params.pop("remote_block_ids")
    assert len(blocks) == -(-length // BLOCK_SIZE)  # the last one is not full
    uuid.UUID(params.pop("remote_engine_id"))
    assert re.fullmatch(REQUEST_IDS[name], params.pop("remote_request_id"))
    assert params == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_host": "127.0.0.1",
        "remote_port": int(fleet.prefill.variables["VLLM_NIXL_SIDE_CHANNEL_PORT"]),
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": length,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
        "remote_prefill_cached_tokens": 0,
    }


@pytest.mark.parametrize("name", ROUTES)
def test_the_answer_of_a_streamed_prefill(fleet: Fleet, name: str) -> None:
    """It has no parameters, but on one route."""
    route = ROUTES[name]
    answer = send(fleet.prefill, route, route.prefill(passage(f"streamed prefill {name}", 20), stream=True))
    assert route.text(answer)
    assert ("remote_engine_id" in answer.text) is (name == "responses")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", ROUTES)
def test_the_answer_of_a_decode(fleet: Fleet, name: str, stream: bool) -> None:
    """It is a plain engine's, and the decode engine has computed none of the prompt."""
    route, prompt = ROUTES[name], passage(f"decode {name} {stream}", 150)
    body = route.body(prompt, stream=stream)
    sources, moved = Sources(fleet.decode), bytes_moved(fleet.decode)
    params = prefill(fleet.prefill, route, prompt)
    answer = send(fleet.decode, route, {**body, "kv_transfer_params": params})
    assert route.text(answer) == route.text(send(fleet.plain, route, body))
    if not stream:
        assert answer.json().get("kv_transfer_params") is None
    length = params["remote_num_tokens"]
    assert sources.add_up_to(length) == {"external_kv_transfer": length, "local_compute": 0, "local_cache_hit": 0}
    expected = -(-length // BLOCK_SIZE) * BLOCK_SIZE * TOKEN_BYTES  # whole blocks
    counted(fleet.decode, lambda: bytes_moved(fleet.decode) - moved >= expected)
    assert bytes_moved(fleet.decode) - moved == expected


def bytes_moved(engine: Engine) -> float:
    """KV that the engine has fetched since its start."""
    return engine.metrics()["vllm:nixl_bytes_transferred_sum"]


def counted(engine: Engine, seen: Callable[[], bool]) -> None:
    """Wait until the engine's metrics show what it has answered."""
    assert engine.process is not None
    wait_for(seen, f"a count of engine {engine.name}", engine.process, COUNTED_LATE)


@pytest.mark.parametrize("where", ["prefill", "decode"])
def test_cached_tokens_are_the_prefill_engines(fleet: Fleet, where: str) -> None:
    """``cached_tokens`` of a decode's answer tell what the prefill engine had, not what the decode engine had."""
    route, prompt = ROUTES["chat"], passage(f"cached on {where}", 100)
    longer = f"{prompt} {passage('more', 60)}"
    send(fleet.prefill if where == "prefill" else fleet.decode, route, route.body(prompt)).raise_for_status()
    sources = Sources(fleet.decode)
    params = prefill(fleet.prefill, route, longer)
    answer = send(fleet.decode, route, {**route.body(longer), "kv_transfer_params": params}).raise_for_status()
    usage = answer.json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == params["remote_prefill_cached_tokens"]
    assert (params["remote_prefill_cached_tokens"] > 0) is (where == "prefill")
    counts = sources.add_up_to(usage["prompt_tokens"])
    assert counts["external_kv_transfer"] + counts["local_cache_hit"] == usage["prompt_tokens"]
    assert (counts["local_cache_hit"] > 0) is (where == "decode")


INTERNAL: Body = {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}
BEFORE_FAILURE = {
    "chat": ["chat.completion.chunk", "error"],  # the first with a role and no content
    "completions": ["error"],
    "messages": ["message_start", "error"],
    "responses": ["response.created", "response.in_progress"],  # and then the connection breaks
}
"""What comes of a stream whose KV does not come, by type: an error as the first event is not what to look for."""


def test_a_fetch_that_fails(fleet: Fleet) -> None:
    """Nothing answers where the parameters point to. vLLM gives up after five seconds, whatever the policy."""
    failed = "vllm:nixl_num_failed_transfers_total"
    before = fleet.decode.metrics()[failed]
    live = prefill(fleet.prefill, ROUTES["chat"], passage("fails", 20))
    nobody = {**live, "remote_engine_id": str(uuid.uuid4()), "remote_port": 9}

    def attempt(case: tuple[str, bool, Engine]) -> tuple[httpx.Response | str, str]:
        name, stream, engine = case
        route = ROUTES[name]
        body = route.body(passage(f"fails {name} {stream} {engine.name}", 60), stream=stream)
        right = route.text(send(fleet.plain, route, body))
        return collect(engine, route, {**body, "kv_transfer_params": nobody}), right

    cases = list(itertools.product(ROUTES, (False, True), (fleet.decode, fleet.spare)))
    with ThreadPoolExecutor(len(cases)) as pool:
        results = list(pool.map(attempt, cases))
    for (name, stream, engine), (answer, right) in zip(cases, results, strict=True):
        if engine is fleet.spare:
            assert isinstance(answer, httpx.Response)
            assert ROUTES[name].text(answer) == right
        elif stream:
            assert types(answer if isinstance(answer, str) else answer.text) == BEFORE_FAILURE[name]
            assert isinstance(answer, str) is (name == "responses")
        else:
            assert isinstance(answer, httpx.Response)
            assert answer.status_code == 500
            if name != "messages":
                assert answer.json() == {"error": INTERNAL}
    assert all(engine.running for engine in fleet.engines)
    counted(fleet.decode, lambda: fleet.decode.metrics()[failed] > before)


def collect(engine: Engine, route: Route, body: Body) -> httpx.Response | str:
    """The answer; what had come of it, if its connection breaks."""
    request = {"model": SERVED_NAME, **body}
    with httpx.stream("POST", f"{engine.url}{route.path}", json=request, timeout=60.0) as answer:
        parts: list[bytes] = []
        try:
            parts.extend(answer.iter_bytes())
        except httpx.RemoteProtocolError:
            return b"".join(parts).decode()
        return httpx.Response(answer.status_code, headers=answer.headers, content=b"".join(parts))


def types(stream: str) -> list[str]:
    return [
        next(str(data[key]) if key != "error" else key for key in ("type", "object", "error") if key in data)
        for _, data in events(stream)
        if data != "[DONE]"
    ]


def test_parameters_are_good_once(fleet: Fleet) -> None:
    """Blocks that were read are free, and may be another request's: a second reader gets them nevertheless, with a 200.

    So nobody may send them twice. Only the prefill engine notices.
    """
    route, prompt = ROUTES["completions"], passage("spent", 60)
    prefill(fleet.prefill, route, passage("unread, so that there is progress", 20))
    params = prefill(fleet.prefill, route, prompt)
    before = fleet.prefill.metrics()["vllm:nixl_num_notifications_after_expiry_total"]
    for engine in (fleet.decode, fleet.spare):
        send(engine, route, {**route.body(prompt), "kv_transfer_params": params}).raise_for_status()

    name = "vllm:nixl_num_notifications_after_expiry_total"
    counted(fleet.prefill, lambda: fleet.prefill.metrics()[name] > before)


def test_an_engine_without_a_connector(fleet: Fleet) -> None:
    """It answers as if nothing had been asked: what is to be seen of it is that there are no parameters."""
    route, prompt = ROUTES["chat"], passage("no connector", 20)
    assert send(fleet.plain, route, route.prefill(prompt)).raise_for_status().json()["kv_transfer_params"] is None
    params = prefill(fleet.prefill, route, prompt)
    ignored = send(fleet.plain, route, {**route.body(prompt), "kv_transfer_params": params})
    assert route.text(ignored) == route.text(send(fleet.plain, route, route.body(prompt)))


@pytest.mark.parametrize(("field", "value"), [("min_tokens", 5), ("stream_options", {"include_usage": True})])
def test_what_a_prefill_leg_may_not_keep(fleet: Fleet, field: str, value: Any) -> None:
    """Beside one token and no stream these are refused."""
    route = ROUTES["chat"]
    assert send(fleet.prefill, route, {**route.prefill("hi"), field: value}).status_code == 400


def test_of_two_choices_the_parameters_are_of_one(fleet: Fleet) -> None:
    """And nothing says so."""
    route = ROUTES["chat"]
    answer = send(fleet.prefill, route, {**route.prefill("hi"), "n": 2, "temperature": 1}).raise_for_status().json()
    assert len(answer["choices"]) == 2
    assert re.match(r"\d_chatcmpl-", answer["kv_transfer_params"]["remote_request_id"])


def test_series_that_a_gateway_reads(fleet: Fleet) -> None:
    prefill_names = {name for name, _ in fleet.prefill.samples()}
    decode_names = {name for name, _ in fleet.decode.samples()}
    everywhere = {
        "vllm:nixl_num_kv_expired_reqs_total",
        "vllm:nixl_num_notifications_after_expiry_total",
        "vllm:nixl_num_failed_transfers_total",
        "vllm:nixl_bytes_transferred_sum",
        "vllm:prompt_tokens_by_source_total",
    }
    assert everywhere <= prefill_names & decode_names
    fetching = "vllm:num_requests_kv_fetch_by_stage"  # not on a kv_producer
    assert fetching in decode_names - prefill_names
    stages = {dict(labels)["stage"] for name, labels in fleet.decode.samples() if name == fetching}
    assert stages == {"waiting_to_start", "in_progress", "completed_waiting"}
    assert not {name for name, _ in fleet.plain.samples()} & {fetching, "vllm:nixl_num_kv_expired_reqs_total"}


def test_blocks_that_nobody_reads_are_given_up(fleet: Fleet, unread: float) -> None:
    """Thirty seconds after the prefill, and counted."""
    assert fleet.prefill.process is not None
    wait_for(
        lambda: fleet.prefill.metrics()["vllm:nixl_num_kv_expired_reqs_total"] > unread,
        "the lease's end",
        fleet.prefill.process,
        LEASE_SECONDS + 30.0,
    )
