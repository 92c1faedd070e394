"""Covers: gateway/proxy/serving/director.py, gateway/proxy/upstream/commit.py, gateway/proxy/upstream/legs.py.

An engine fails in every way that it can; what its client gets, and that nothing stays booked.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import orjson
import pytest

from gateway.proxy.settings import RetrySettings
from tests.support.chat import CHAT, COMPLETE, DONE, ROLE, STREAMED, WORD, event
from tests.support.gateway import IN_TURN, PATIENT, QUICK_FLEET, SOON, Running, config_for, running
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wait import eventually
from tests.support.wire import STREAM_HEAD, ScriptedServer, answer, chunked, raw_client, raw_post

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])

HANGS = replace(PATIENT, head=SOON, idle=SOON)
"""Limits where an engine hangs."""


async def good(connection, head, body):
    if orjson.loads(body).get("stream"):
        await connection.say(STREAM_HEAD + chunked(ROLE, WORD, DONE))
    else:
        await connection.say(answer(COMPLETE))


async def dies(connection, head, body):
    connection.reset()


async def closes(connection, head, body):
    connection.writer.close()


async def hangs(connection, head, body):
    await connection.gone()


async def talks_garbage(connection, head, body):
    await connection.say(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
    connection.writer.close()


async def half_a_body(connection, head, body):
    await connection.say(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n{")
    connection.writer.close()


async def an_empty_stream(connection, head, body):
    await connection.say(STREAM_HEAD + chunked())


async def comments_then_dies(connection, head, body):
    await connection.say(STREAM_HEAD + chunked(b": keep-alive\n\n", b"data: {", end=False))
    connection.reset()


def refuses(status: str):
    async def post(connection, head, body):
        error = {"error": {"message": "busy", "type": "Service Unavailable", "param": None, "code": int(status[:3])}}
        await connection.say(answer(orjson.dumps(error), status=status))

    return post


async def says_that_it_is_dead(connection, head, body):
    message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    error = orjson.dumps({"error": {"message": message, "type": "InternalServerError", "param": None, "code": 500}})
    await connection.say(answer(error, status="500 Internal Server Error"))


async def says_so_in_its_stream(connection, head, body):
    error = orjson.dumps({"error": {"message": "EngineCore encountered an issue.", "code": 500}})
    await connection.say(STREAM_HEAD + chunked(b"data: " + error + b"\n\n", DONE))


FAILURES = {
    "dead": (says_that_it_is_dead, 500),
    "dead in its stream": (says_so_in_its_stream, 502),
    "dies": (dies, 502),
    "closes": (closes, 502),
    "hangs": (hangs, 504),
    "garbage": (talks_garbage, 502),
    "502": (refuses("502 Bad Gateway"), 502),
    "503": (refuses("503 Service Unavailable"), 503),
    "504": (refuses("504 Gateway Timeout"), 504),
}


@contextlib.asynccontextmanager
async def gateway_before(*posts, **changes):
    """A gateway in front of one engine for each of ``posts``."""
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(ScriptedEngine(post)) for post in posts]
        changes = {"timeouts": PATIENT} | IN_TURN | changes
        gateway = await stack.enter_async_context(running(config_for(*(e.url for e in engines), **changes)))
        yield gateway


async def ends_idle(gateway: Running) -> None:
    await eventually(gateway.idle, "every permit and reservation is given back")


@pytest.mark.parametrize("body", [CHAT, STREAMED], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", list(FAILURES))
async def test_another_endpoint_cures_it(name, body):
    seen = []

    async def counted(connection, head, request):
        seen.append(name)
        await FAILURES[name][0](connection, head, request)

    async with gateway_before(counted, good, timeouts=HANGS if name == "hangs" else PATIENT) as gateway:
        for _ in range(6):
            reply = await gateway.client.post("/v1/chat/completions", json=body)
            assert reply.status_code == 200, reply.text
            assert "Hi" in reply.text
        assert seen, "the failing engine was never asked"
        await ends_idle(gateway)


@pytest.mark.parametrize("name", ["half a body", "empty stream", "comments then death"])
async def test_what_breaks_before_commit_is_tried_again(name):
    post, body = {
        "half a body": (half_a_body, CHAT),
        "empty stream": (an_empty_stream, STREAMED),
        "comments then death": (comments_then_dies, STREAMED),
    }[name]
    async with gateway_before(post, good) as gateway:
        for _ in range(4):
            reply = await gateway.client.post("/v1/chat/completions", json=body)
            assert reply.status_code == 200, reply.text
            assert "keep-alive" not in reply.text
        await ends_idle(gateway)


@pytest.mark.parametrize("body", [CHAT, STREAMED], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", list(FAILURES))
async def test_with_no_other_endpoint_the_client_is_told(name, body):
    post, status = FAILURES[name]
    async with gateway_before(post, timeouts=HANGS if name == "hangs" else PATIENT) as gateway:
        reply = await gateway.client.post("/v1/chat/completions", json=body)
        assert reply.status_code == status
        assert reply.json()["error"]["message"]
        assert "127.0.0.1" not in reply.text
        if name == "503":
            assert reply.json()["error"]["message"] == "busy", "the engine's own answer passes unchanged"
        await ends_idle(gateway)


async def test_a_request_that_kills_engines_kills_two_at_most():
    killed = []

    async def killer(connection, head, body):
        killed.append(connection)
        connection.reset()

    retries = RetrySettings(attempts=10, budget=1.0)
    async with gateway_before(killer, killer, killer, killer, retries=retries) as gateway:
        reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert reply.status_code == 502
    assert len(killed) == 2


@pytest.mark.parametrize(
    ("stale", "same_death", "asked"),
    [(60.0, 60.0, 4), (60.0, -1.0, 2), (-1.0, 60.0, 2)],
    ids=["at once", "at once, and again later", "after a while"],
)
async def test_and_no_more_over_connections_that_are_kept(stale, same_death, asked, monkeypatch):
    """Its end at once looks like that of a connection which had died idle, and is tried again on a fresh one."""
    monkeypatch.setattr("gateway.proxy.upstream.send.STALE", stale)
    monkeypatch.setattr("gateway.proxy.upstream.send.SAME_DEATH", same_death)
    killed: list[str] = []

    def killer(name: str):
        async def post(connection, head, body):
            if b"kill" not in body:
                await connection.say(answer(COMPLETE))
                return
            killed.append(name)
            connection.reset()

        return post

    retries = RetrySettings(attempts=10, budget=1.0)
    async with gateway_before(killer("a"), killer("b"), killer("c"), retries=retries) as gateway:
        for _ in range(12):  # each engine has a kept connection then
            assert (await gateway.client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        reply = await gateway.client.post("/v1/chat/completions", json=CHAT | {"user": "kill"})
        assert reply.status_code == 502
        assert len(killed) == asked
        assert len(set(killed)) <= 2
        await ends_idle(gateway)


@pytest.mark.parametrize("body", [CHAT, STREAMED], ids=["whole", "streamed"])
async def test_an_engine_that_is_killed_loses_nothing_that_it_had_not_begun(body, monkeypatch):
    """Its kept connections are closed first; until its listening socket is, others are made, and read by nobody."""
    monkeypatch.setattr("gateway.proxy.upstream.send.STALE", 60.0)
    monkeypatch.setattr("gateway.proxy.upstream.send.SAME_DEATH", -1.0)  # however long that takes
    dying = asyncio.Event()

    async def dies(connection, head, request):
        if b"last" not in request:
            await connection.say(answer(COMPLETE))
            return
        dying.set()
        await connection.gone()

    async with contextlib.AsyncExitStack() as stack:
        doomed = await stack.enter_async_context(ScriptedEngine(dies))
        other = await stack.enter_async_context(ScriptedEngine(good))
        unwatched = replace(QUICK_FLEET, scrape=replace(QUICK_FLEET.scrape, interval=60))
        config = config_for(doomed.url, other.url, **{"timeouts": PATIENT, "fleet": unwatched} | IN_TURN)
        gateway = await stack.enter_async_context(running(config))
        for _ in range(4):  # each engine has a kept connection then
            assert (await gateway.client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        asked = [
            asyncio.create_task(gateway.client.post("/v1/chat/completions", json=body | {"user": "last"}))
            for _ in range(2)
        ]
        await asyncio.wait_for(dying.wait(), 10)
        with accepting_nobody(doomed):
            doomed.kill()
            # Its backlog has the fresh connection now.
            await eventually(lambda: waiting_for(doomed.port), "another connection is made")
        replies = await asyncio.gather(*asked)
        assert [reply.status_code for reply in replies] == [200, 200], replies[0].text
        await ends_idle(gateway)


@contextlib.contextmanager
def accepting_nobody(server: ScriptedServer) -> Iterator[None]:
    """Its listening socket outlives it, and completes handshakes until the end of this context."""
    assert server.server is not None
    listening = [one.dup() for one in server.server.sockets]
    try:
        yield
    finally:
        for one in listening:
            one.close()


def waiting_for(port: int) -> bool:
    """Whether the backlog of the port has a connection that nobody accepted, as /proc/net/tcp tells."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        listens = fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port
        if listens and int(fields[4].rpartition(":")[2], 16):
            return True
    return False


async def test_a_gateway_without_descriptors_blames_no_engine(caplog):
    async with gateway_before(good, good) as gateway, raw_client(gateway.url) as client:
        await client.say(raw_post(orjson.dumps(CHAT | {"model": "nobody"})))
        assert (await client.reply()).status == 404, "it is connected"
        with no_descriptors():
            for _ in range(5):
                await client.say(raw_post(orjson.dumps(CHAT)))
                reply = await client.reply()
                assert reply.status == 503
        assert caplog.text.count("no connection to an engine could be made") == 1, "and not one a request"
        assert orjson.loads(reply.body)["error"]["type"] == "service_unavailable"
        endpoints = gateway.gateway.fleet.endpoints(gateway.gateway.directory.runtimes[0].model)
        assert all(endpoint.engine.up for endpoint in endpoints)
        assert gateway.lines[-1].outcome == "exhausted"
        await ends_idle(gateway)


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """The process has none left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    spare = os.open(os.devnull, os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(name) for name in os.listdir("/proc/self/fd")) + 8, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(spare))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for number in (*held, spare):
            os.close(number)


async def test_an_engine_that_breaks_is_told_of_though_its_client_takes_nothing(monkeypatch):
    told: list[str] = []
    monkeypatch.setattr("gateway.fleet.fleet.Fleet.report_broken", lambda fleet, endpoint, why, _: told.append(why))

    async def talks(connection, head, body):
        await connection.say(STREAM_HEAD + chunked(ROLE, end=False))
        with contextlib.suppress(ConnectionError):
            while True:
                await connection.say(chunked(event({"content": "x" * 8000}), end=False))

    timeouts = replace(PATIENT, idle=3, total=1.5)
    async with gateway_before(talks, timeouts=timeouts) as gateway:
        async with raw_client(gateway.url, takes=16 * 1024) as client:
            await client.say(raw_post(orjson.dumps(STREAMED)))
            await eventually(lambda: gateway.lines, "it is settled", within=60)
        assert gateway.lines[-1].outcome == "broken"
        assert told == ["total-timeout"]
        await ends_idle(gateway)


async def test_a_refused_connection_costs_nothing_and_takes_the_endpoint_out():
    async with contextlib.AsyncExitStack() as stack:
        alive = await stack.enter_async_context(ScriptedEngine(good))
        async with ScriptedEngine(good) as doomed:
            slow = replace(QUICK_FLEET, scrape=replace(QUICK_FLEET.scrape, interval=60))
            config = config_for(doomed.url, alive.url, retries=RetrySettings(attempts=1, budget=0.0), fleet=slow)
            gateway = await stack.enter_async_context(running(config))
        for _ in range(8):
            reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
            assert reply.status_code == 200
        down = [
            e for e in gateway.gateway.fleet.endpoints(gateway.gateway.directory.runtimes[0].model) if not e.engine.up
        ]
        assert [e.engine.url for e in down] == [doomed.url]
        assert down[0].engine.down_reason == "refused"


async def test_every_engine_down_is_a_503_that_says_when_to_come_back():
    async with ScriptedEngine(good) as doomed:
        pass
    async with running(config_for(doomed.url)) as gateway:
        reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert reply.status_code == 503
        assert int(reply.headers["Retry-After"]) >= 1
        ready = await gateway.client.get("/readyz")
        assert ready.status_code == 503
        assert (await gateway.client.get("/health")).status_code == 200


async def test_an_engines_own_error_passes_unchanged():
    said = b'{"error": {"message":"no  such\\u0020thing", "type":"BadRequestError","param":"x","code":400}}'

    async def post(connection, head, body):
        await connection.say(answer(said, status="400 Bad Request", extra=b"X-Engine: one\r\n"))

    async with gateway_before(post, post) as gateway:
        reply = await gateway.client.post("/v1/chat/completions", json=STREAMED)
        assert (reply.status_code, reply.content) == (400, said)
        assert reply.headers["X-Engine"] == "one"
        assert gateway.lines[-1].attempts == 1


async def test_an_error_as_first_event_passes_unchanged():
    error = b'data: {"error": {"message": "Internal server error", "code": 500}}\n\n'

    async def post(connection, head, body):
        await connection.say(STREAM_HEAD + chunked(error, DONE))

    async with gateway_before(post) as gateway:
        reply = await gateway.client.post("/v1/chat/completions", json=STREAMED)
        assert (reply.status_code, reply.content) == (200, error + DONE)
        assert gateway.lines[-1].outcome == "engine_error"


@pytest.mark.parametrize("how", ["reset", "close", "hang"])
async def test_after_commit_the_stream_ends_with_an_error_event_and_no_second_engine(how):
    asked = []

    async def post(connection, head, body):
        asked.append(head)
        await connection.say(STREAM_HEAD + chunked(ROLE, WORD, end=False))
        if how == "reset":
            await connection.writer.drain()
            connection.reset()
        elif how == "close":
            connection.writer.close()
        else:
            await connection.gone()

    async with gateway_before(post, post, timeouts=HANGS if how == "hang" else PATIENT) as gateway:
        reply = await gateway.client.post("/v1/chat/completions", json=STREAMED)
        assert reply.status_code == 200
        assert reply.content.startswith(ROLE + WORD)
        events = [line for line in reply.text.split("\n\n") if line]
        assert "error" in orjson.loads(events[-2].removeprefix("data: "))
        assert events[-1] == "data: [DONE]"
        assert len(asked) == 1
        assert gateway.lines[-1].outcome == "broken"
        await ends_idle(gateway)


async def test_an_engine_that_restarts_serves_again():
    async with contextlib.AsyncExitStack() as stack:
        async with ScriptedEngine(good) as first:
            gateway = await stack.enter_async_context(running(config_for(first.url)))
            assert (await gateway.client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        assert (await gateway.client.post("/v1/chat/completions", json=CHAT)).status_code == 503
        await stack.enter_async_context(ScriptedEngine(good, port=first.port))
        endpoint = gateway.gateway.fleet.endpoints(gateway.gateway.directory.runtimes[0].model)[0]
        await eventually(lambda: endpoint.engine.up, "the probe finds the engine again")
        assert (await gateway.client.post("/v1/chat/completions", json=CHAT)).status_code == 200


async def test_a_sick_engine_disturbs_nobody_else():
    """Half of the fleet hangs, dies or talks garbage while a stream from the other half runs."""
    release = asyncio.Event()

    async def slow(connection, head, body):
        if orjson.loads(body).get("stream"):
            await connection.say(STREAM_HEAD + chunked(ROLE, WORD, end=False))
            await release.wait()
            await connection.say(chunked(WORD, DONE))
        else:
            await connection.say(answer(COMPLETE))

    async with gateway_before(slow, dies, talks_garbage, retries=RetrySettings(budget=1.0)) as gateway:

        async def stream():
            reply = await gateway.client.post("/v1/chat/completions", json=STREAMED)
            return reply.status_code, reply.content

        streams = [asyncio.get_running_loop().create_task(stream()) for _ in range(3)]
        for _ in range(10):
            await gateway.client.post("/v1/chat/completions", json=CHAT)
        release.set()
        for status, content in await asyncio.gather(*streams):
            if status == 200:
                assert content == ROLE + WORD + WORD + DONE
        await ends_idle(gateway)


async def test_a_defect_of_ours_in_learning_keeps_nothing_booked(monkeypatch):
    def fail(*args):
        raise RuntimeError("a defect")

    monkeypatch.setattr("gateway.proxy.serving.attempt.learn_from", fail)
    async with gateway_before(good) as gateway:
        with contextlib.suppress(httpx.HTTPError):
            await gateway.client.post("/v1/chat/completions", json=CHAT)
        await eventually(lambda: gateway.lines, "the request is settled")
        await ends_idle(gateway)


async def test_a_defect_of_ours_behind_the_booking_keeps_nothing_booked(monkeypatch):
    def fail(*args):
        raise RuntimeError("a defect")

    monkeypatch.setattr("gateway.proxy.serving.decisions.Decisions.keep", fail)
    async with gateway_before(good) as gateway:
        reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert reply.status_code == 500
        await eventually(lambda: gateway.lines, "the request is settled")
        await ends_idle(gateway)


async def test_an_engine_is_free_again_before_a_slow_client_has_read_its_answer():
    big = b'{"data": "' + b"x" * 30_000_000 + b'"}'

    async def post(connection, head, body):
        await connection.say(answer(big))

    async with gateway_before(post) as gateway:
        async with gateway.client.stream("POST", "/v1/embeddings", json={"model": "sim", "input": "x"}) as reply:
            endpoint = gateway.gateway.fleet.endpoints(gateway.gateway.directory.runtimes[0].model)[0]
            assert endpoint.load.requests == 0
            assert gateway.gateway.directory.runtimes[0].admission.in_flight == 1
            assert len(await reply.aread()) == len(big)
        await ends_idle(gateway)
        assert gateway.lines[-1].outcome == "ok"


async def test_what_was_expected_of_a_broken_stream_is_on_record():
    async def post(connection, head, body):
        await connection.say(STREAM_HEAD + chunked(ROLE, WORD, end=False))
        connection.reset()

    async with gateway_before(post) as gateway:
        body = {"model": "sim", "prompt": list(range(200)), "stream": True}
        for _ in range(2):
            await gateway.client.post("/v1/completions", json=body)
        assert gateway.lines[-1].outcome == "broken"
        assert gateway.lines[-1].expected_hit > 0
        assert gateway.lines[-1].endpoint is not None
