"""Engines of a pair that die or stand still while they are at work: what has not begun is answered all the same.

The engines run with a patch of NIXL, see ``unspun/sitecustomize.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from gateway.commands.processes import wait_for
from tests.engines.answers import events
from tests.engines.chats import Body
from tests.engines.disaggregation.conftest import Fleet, run_split
from tests.engines.disaggregation.routes import ROUTES, Route
from tests.engines.gateway import MODEL, Gateway
from tests.engines.prompts import passage

WORDS = 120
ENDLESS = 3500  # tokens of an answer, nearly all that the model takes: many seconds
LONG = 700  # words: a prompt that takes some hundred milliseconds to compute
CHAT = ROUTES["chat"]
IN_FLIGHT = "kvgate_in_flight_requests"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and what a plain engine answers to it."""

    route: Route
    body: Body
    right: str

    def check(self, answer: httpx.Response) -> None:
        assert self.route.text(answer) == self.right


def one_of_each(fleet: Fleet, name: str, words: int = WORDS) -> list[Asked]:
    """On each route, streamed and not."""
    asked = []
    for kind, route in ROUTES.items():
        for stream in (False, True):
            body = route.body(passage(f"{name} {kind} {stream}", words))
            right = route.text(fleet.plain.ask(route.path, body))
            asked.append(Asked(route, {**body, "stream": stream}, right))
    return asked


@contextmanager
def sent(gateway: Gateway, asked: Sequence[Asked]) -> Iterator[list[Future[httpx.Response]]]:
    """All on their way at once; at the end every answer must have come, and be right."""
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = [pool.submit(gateway.ask, one.route.path, one.body) for one in asked]
        yield answers
        for one, answer in zip(asked, answers, strict=True):
            one.check(answer.result())
    at_rest(gateway)


def at_rest(gateway: Gateway) -> None:
    """Nothing is booked any more."""
    wait_for(lambda: gateway.total(IN_FLIGHT) == 0, "the gauges' return to zero", gateway.process)


def fallbacks(gateway: Gateway) -> dict[str, int]:
    """Requests whose decode engine computed the prompt after all, by cause."""
    samples = gateway.samples().items()
    found = {
        dict(labels)["cause"]: int(n) for (name, labels), n in samples if name == "kvgate_handover_fallbacks_total"
    }
    return {cause: count for cause, count in found.items() if count}


def prefilled(gateway: Gateway) -> int:
    return int(gateway.total("kvgate_attempts_total", leg="prefill", result="ok"))


def warm(gateway: Gateway) -> None:
    """One request, so that the pair knows each other: a handshake takes a while, and a failed one five seconds."""
    body = ROUTES["completions"].body(passage("warm", 20))
    assert gateway.ask("/v1/completions", body).status_code == 200
    assert fallbacks(gateway) == {}


def test_prefill_stands_still_before_its_leg(fleet: Fleet, model_folder: Path, run_folder: Path) -> None:
    asked = one_of_each(fleet, "frozen")
    with run_split(run_folder, model_folder, fleet.prefill, [fleet.decode], timeouts={"prefill": 3.0}) as gateway:
        warm(gateway)
        fleet.prefill.pause()
        try:
            with sent(gateway, asked):
                pass
        finally:
            fleet.prefill.resume()
        assert sum(fallbacks(gateway).values()) == len(asked)


def test_prefill_stands_still_after_its_leg(fleet: Fleet, model_folder: Path, run_folder: Path) -> None:
    """The decode engine would wait for the KV without an end, and says no more than that it fetches: it is left by the
    time that the prefill engine counts as down. An impatient gateway leaves a stream that has no output before that."""
    asked, others = one_of_each(fleet, "stuck"), one_of_each(fleet, "stuck, impatient")
    with (
        run_split(run_folder, model_folder, fleet.prefill, [fleet.decode]) as gateway,
        run_split(run_folder, model_folder, fleet.prefill, [fleet.decode], timeouts={"handover": 3.0}) as impatient,
    ):
        both = gateway, impatient
        for each in both:
            warm(each)
        before = sum(map(prefilled, both))
        fleet.decode.pause()
        try:
            with sent(gateway, asked), sent(impatient, others):
                wait_for(
                    lambda: sum(map(prefilled, both)) == before + len(asked) + len(others),
                    "all prefills",
                    gateway.process,
                )
                fleet.prefill.pause()
                fleet.decode.resume()
        finally:
            for engine in (fleet.prefill, fleet.decode):
                engine.resume()
        assert fallbacks(gateway) == {"prefill-down": len(asked)}
        streams = [one for one in others if one.body["stream"]]
        assert fallbacks(impatient) == {
            "decode-stuck": len(streams),
            "prefill-down": len(others) - len(streams),
        }


@dataclass(slots=True)
class Running:
    """A request on its way. ``begun``: something of its stream has come."""

    body: Body
    answer: Future[httpx.Response]
    begun: bool = False


def test_decode_killed(fleet: Fleet, model_folder: Path, run_folder: Path) -> None:
    """What had begun on it ends with an error; all else is answered by the other one."""
    decode = [fleet.decode, fleet.spare]
    with (
        run_split(run_folder, model_folder, fleet.prefill, decode) as gateway,
        httpx.Client(base_url=gateway.url, timeout=120.0) as client,
        ThreadPoolExecutor(12) as pool,
    ):
        warm(gateway)
        first = start(pool, client, 0, stream=True, tokens=ENDLESS)
        wait_for(lambda: first.begun, "the first stream", gateway.process)
        (victim,) = [engine for engine in decode if gateway.total(IN_FLIGHT, endpoint=engine.name)]
        victim.pause()  # so that nothing else on it begins, nor the first one ends, before it is killed
        others = [start(pool, client, number, stream=number % 2 == 0, tokens=300) for number in range(1, 12)]
        wait_for(lambda: gateway.total(IN_FLIGHT, endpoint=victim.name) > 1, "more requests on it", gateway.process)
        victim.kill()
        running = [first, *others]
        lines = [gateway.request(one.answer.result().headers["x-request-id"]) for one in running]
        assert [line["outcome"] for line in lines] == ["broken", *["ok"] * len(others)]
        assert error_at_the_end(first.answer.result()) is not None
        moved = [line for line in lines if line["attempts"] > 1]
        assert moved
        assert victim.name not in {line["endpoint"] for line in moved}
        right = pool.map(lambda one: fleet.plain.ask(CHAT.path, {**one.body, "stream": False}), others)
        for one, answer in zip(others, right, strict=True):
            assert CHAT.text(one.answer.result()) == CHAT.text(answer)
        at_rest(gateway)
        for engine in (fleet.prefill, *(engine for engine in decode if engine is not victim)):
            wait_for(
                lambda engine=engine: engine.metrics()["vllm:num_requests_running"] == 0,
                f"engine {engine.name} to be idle",
                gateway.process,
            )


def start(pool: ThreadPoolExecutor, client: httpx.Client, number: int, *, stream: bool, tokens: int) -> Running:
    """Send a chat. ``tokens``: of its answer."""
    body = CHAT.body(passage(f"decode killed {number}", 60), max_tokens=tokens, ignore_eos=True, stream=stream)
    running = Running(body, Future())

    def ask() -> httpx.Response:
        request = {"model": MODEL, **body}
        with client.stream("POST", CHAT.path, json=request) as answer:
            parts = []
            for part in answer.iter_bytes():
                parts.append(part)
                running.begun = stream
            return httpx.Response(answer.status_code, headers=answer.headers, content=b"".join(parts))

    running.answer = pool.submit(ask)
    return running


def error_at_the_end(answer: httpx.Response) -> object:
    found = [data for _, data in events(answer.text) if data != "[DONE]"]
    return found[-1].get("error")


def test_prefill_killed_during_its_leg(fleet: Fleet, model_folder: Path, run_folder: Path) -> None:
    """While it computes long prompts: some are done by then, one is under way, others wait."""
    asked = one_of_each(fleet, "during", LONG)
    with run_split(run_folder, model_folder, fleet.prefill, [fleet.decode]) as gateway:
        warm(gateway)
        before = prefilled(gateway)
        with sent(gateway, asked):
            wait_for(lambda: prefilled(gateway) > before, "a first prefill", gateway.process)
            fleet.prefill.kill()
        assert sum(fallbacks(gateway).values()) > 0


def test_prefill_killed_after_its_leg_and_before(fleet: Fleet, model_folder: Path, run_folder: Path) -> None:
    """After: it has answered, and the decode engine, which stood still, finds nobody where the KV should be. On three
    routes a stream has begun when that is found out, and on one it breaks off: nothing of it may reach the client.

    Before, at a second gateway: it has been there until now.
    """
    asked, later = one_of_each(fleet, "after"), one_of_each(fleet, "before")
    with (
        run_split(run_folder, model_folder, fleet.prefill, [fleet.decode]) as gateway,
        run_split(run_folder, model_folder, fleet.prefill, [fleet.decode]) as other,
    ):
        warm(gateway)
        warm(other)
        before = prefilled(gateway)
        fleet.decode.pause()
        try:
            with sent(gateway, asked):
                wait_for(lambda: prefilled(gateway) == before + len(asked), "all prefills", gateway.process)
                fleet.prefill.kill()
                fleet.decode.resume()
                with sent(other, later):
                    pass
        finally:
            fleet.decode.resume()
        # It says so at once; on a machine with more to do than cores the gateway may be first to see why.
        assert set(fallbacks(gateway)) <= {"decode-error", "prefill-down"}
        assert sum(fallbacks(gateway).values()) == len(asked)
        assert set(fallbacks(other)) <= {"prefill-refused", "prefill-reset-unsent", "prefill-died"}
        for each in (gateway, other):
            wait_for(lambda each=each: set(each.unusable()) == {fleet.prefill.name}, "it alone to be out", each.process)
            answer = each.ask(CHAT.path, CHAT.body(passage("later", WORDS)))
            line = each.request(answer.headers["x-request-id"])
            assert (line["plan"], line["outcome"]) == ("no-prefill-endpoint", "ok")
    assert fleet.decode.running
