"""Through the gateway, with one prefill and one decode engine: the answers are a plain engine's, and all that was split
was fetched.

The engines run with a patch of NIXL, see ``unspun/sitecustomize.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from gateway.commands.processes import wait_for
from tests.engines.chats import Body
from tests.engines.disaggregation.conftest import Fleet, run_split
from tests.engines.disaggregation.pair import LEASE_SECONDS, Sources
from tests.engines.disaggregation.routes import ASK, ROUTES
from tests.engines.engine import BLOCK_SIZE
from tests.engines.gateway import MODEL, Gateway
from tests.engines.prompts import passage

WORDS = (1, 12, 60, 240, 700)
"""Of prompts from 30 to 3,000 tokens, the chat template's included."""
EXACT = ("chat", "completions")
"""Where the gateway knows a prompt's tokens; on the other routes it estimates them."""
AT_A_TIME = 8


@pytest.fixture(scope="module")
def split(started_fleet: Fleet, model_folder: Path, run_folder: Path) -> Iterator[Gateway]:
    with run_split(run_folder, model_folder, started_fleet.prefill, [started_fleet.decode]) as gateway:
        yield gateway


@pytest.fixture(scope="module", autouse=True)
def unread(started_fleet: Fleet, split: Gateway) -> float:
    """Blocks that nobody will read, from the first test on; the number of such that had been given up before."""
    before = started_fleet.prefill.metrics()["vllm:nixl_num_kv_expired_reqs_total"]
    body = {**ROUTES["completions"].body(passage("unused", 20)), "max_tokens": 1, "kv_transfer_params": ASK}
    started_fleet.prefill.ask("/v1/completions", body).raise_for_status()
    return before


class Counts:
    """What the gateway counts from now on."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._before = self._read()

    def _read(self) -> dict[str, float]:
        total = self._gateway.total
        return {
            "plans": total("kvgate_plans_total"),
            "split": total("kvgate_plans_total", reason="split"),
            "prefill legs": total("kvgate_attempts_total", leg="prefill", result="ok"),
            "decode legs": total("kvgate_attempts_total", leg="decode", result="ok"),
            "prefill times": total("kvgate_prefill_leg_seconds_count"),
            "hand-overs": total("kvgate_handover_seconds_count"),
            "fallbacks": total("kvgate_handover_fallbacks_total"),
        }

    def since(self) -> dict[str, float]:
        return {name: value - self._before[name] for name, value in self._read().items()}


def all_split(requests: int) -> dict[str, float]:
    """The counts of requests that were all split, and handed over."""
    each = ("plans", "split", "prefill legs", "decode legs", "prefill times", "hand-overs")
    return {**dict.fromkeys(each, requests), "fallbacks": 0}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", ROUTES)
def test_the_answers_are_a_plain_engines(fleet: Fleet, split: Gateway, name: str, stream: bool) -> None:
    route, counts, sources = ROUTES[name], Counts(split), Sources(fleet.decode)
    bodies = [route.body(passage(f"{name} {stream} {words}", words)) for words in WORDS]
    answers = [split.ask(route.path, {**body, "stream": stream}) for body in bodies]
    plain = [fleet.plain.ask(route.path, body) for body in bodies]
    assert [route.text(answer) for answer in answers] == [route.text(answer) for answer in plain]
    lengths = [route.length(answer) for answer in plain]
    assert lengths[0] <= 40
    assert lengths[-1] >= 2750
    lines = [split.request(answer.headers["x-request-id"]) for answer in answers]
    assert {(line["plan"], line["endpoint"], line["prefill_endpoint"]) for line in lines} == {
        ("split", fleet.decode.name, fleet.prefill.name)
    }
    if name in EXACT:
        assert [line["prompt_tokens"] for line in lines] == lengths
    assert all(line["prefill_time"] > 0 for line in lines)
    assert all("cached_tokens" in line for line in lines), "the decode leg tells, though its client does not ask"
    assert counts.since() == all_split(len(bodies))
    fetched = sources.add_up_to(sum(lengths))
    assert fetched == {"external_kv_transfer": sum(lengths), "local_cache_hit": 0, "local_compute": 0}
    assert split.total("kvgate_in_flight_requests") == 0


def test_many_at_a_time(fleet: Fleet, split: Gateway) -> None:
    counts, sources = Counts(split), Sources(fleet.decode)
    routes = [list(ROUTES.values())[number % len(ROUTES)] for number in range(4 * AT_A_TIME)]
    bodies = [route.body(passage(f"many {number}", 10 + 15 * number)) for number, route in enumerate(routes)]
    asked = [{**body, "stream": number % 8 < 4} for number, body in enumerate(bodies)]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        answers = list(pool.map(lambda route, body: split.ask(route.path, body), routes, asked))
    plain = [fleet.plain.ask(route.path, body) for route, body in zip(routes, bodies, strict=True)]
    for route, answer, right in zip(routes, answers, plain, strict=True):
        assert route.text(answer) == route.text(right)
    assert counts.since() == all_split(len(bodies))
    length = sum(route.length(answer) for route, answer in zip(routes, plain, strict=True))
    assert sources.add_up_to(length)["external_kv_transfer"] == length
    assert split.total("kvgate_in_flight_requests") == 0


def test_a_conversation_is_fetched_once(fleet: Fleet, model_folder: Path, run_folder: Path) -> None:
    """What the decode engine has fetched it holds, and the gateway knows: the next turn is too short to be split."""
    route = ROUTES["chat"]
    with run_split(run_folder, model_folder, fleet.prefill, [fleet.decode], threshold=2 * BLOCK_SIZE) as gateway:
        wait_for(lambda: set(gateway.streams().values()) == {"live"}, "the event streams", gateway.process)
        first = route.body(passage("conversation", 80))
        turn = gateway.ask(route.path, first)
        assert gateway.request(turn.headers["x-request-id"])["plan"] == "split"
        said = {"role": "assistant", "content": route.text(turn)}
        second = {**first, "messages": [*first["messages"], said, {"role": "user", "content": "and?"}]}
        sources = Sources(fleet.decode)
        answer = gateway.ask(route.path, second)
        line = gateway.request(answer.headers["x-request-id"])
        assert line["plan"] == "short"
        assert line["expected_hit"] == line["cached_tokens"] > 0.7 * line["prompt_tokens"]
        counted = sources.add_up_to(line["prompt_tokens"])
        assert counted["external_kv_transfer"] == 0
        assert counted["local_cache_hit"] == line["cached_tokens"]
        assert route.text(answer) == route.text(fleet.plain.ask(route.path, second))


WHOLE: dict[str, tuple[str, Body]] = {
    "n": ("chat", {"n": 2, "temperature": 0.5}),
    "echo": ("completions", {"echo": True}),
    "several-prompts": ("completions", {"prompt": ["The weather", "The wind"]}),
    "prompt-logprobs": ("completions", {"prompt_logprobs": 1}),
}


@pytest.mark.parametrize("reason", WHOLE)
def test_what_is_not_split(fleet: Fleet, split: Gateway, reason: str) -> None:
    name, fields = WHOLE[reason]
    counts = Counts(split)
    answer = split.ask(ROUTES[name].path, {**ROUTES[name].body(passage(f"whole {reason}", 20)), **fields})
    assert answer.status_code == 200, answer.text
    assert split.request(answer.headers["x-request-id"])["plan"] == reason
    assert counts.since() == {**all_split(0), "plans": 1, "decode legs": 1}


PARAMETERS = b'{"do_remote_prefill":true,"do_remote_decode":false}'
"""One of these kills a vLLM engine that has a KV connector."""
DISGUISES: dict[str, bytes] = {
    "plain": b'"kv_transfer_params":' + PARAMETERS,
    "twice": b'"kv_transfer_params":null,"kv_transfer_params":' + PARAMETERS,
    "escaped": b'"kv_transfer\\u005fparams":' + PARAMETERS,
    "in vllm_xargs": b'"vllm_xargs":{"kv_transfer_params":' + PARAMETERS + b"}",
    "as a string": b'"vllm_xargs":{"kv_transfer_params":"x"}',
    "in sampling_params": b'"sampling_params":{"extra_args":{"kv_transfer_params":' + PARAMETERS + b"}}",
}


@pytest.mark.parametrize("disguise", DISGUISES)
def test_parameters_of_a_client_reach_no_engine(fleet: Fleet, split: Gateway, disguise: str) -> None:
    body = f'{{"model":"{MODEL}","prompt":"The weather","max_tokens":4,"temperature":0,'.encode()
    answer = httpx.post(
        f"{split.url}/v1/completions",
        content=body + DISGUISES[disguise] + b"}",
        headers={"content-type": "application/json"},
        timeout=30.0,
    )
    plain = fleet.plain.ask("/v1/completions", {"prompt": "The weather", "max_tokens": 4, "temperature": 0})
    assert ROUTES["completions"].text(answer) == ROUTES["completions"].text(plain)
    assert all(engine.running for engine in fleet.engines)
    for engine in (fleet.prefill, fleet.decode):
        engine.generate_one()


def test_what_engines_say_of_their_transfers(fleet: Fleet, split: Gateway, unread: float) -> None:
    """A lease that ends unused is seen at the gateway, and told in its log."""
    wait_for(
        lambda: split.total("kvgate_engine_kv_expired_requests", endpoint=fleet.prefill.name) > unread,
        "the lease's end",
        split.process,
        LEASE_SECONDS + 30.0,
    )
    stages = {dict(labels)["stage"] for name, labels in split.samples() if name == "kvgate_engine_kv_fetching_requests"}
    assert stages == {"waiting_to_start", "in_progress", "completed_waiting"}

    def told() -> Sequence[object]:
        return [line for line in split.lines() if line["level"] == "warning" and line.get("endpoint") == "prefill"]

    wait_for(told, "a warning of expired leases", split.process)
