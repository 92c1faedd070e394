"""What the gateway expects an engine to hold is what the engine finds, request by request.

Three accounts of the same tokens are compared: the gateway's expected hit (its log), the engine's answer
(``usage.prompt_tokens_details.cached_tokens``) and the engine's counter (``vllm:prefix_cache_hits_total``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.commands.processes import wait_for
from tests.engines.chats import Body, assistant, chat, system, user
from tests.engines.engine import BLOCK_SIZE, Engine
from tests.engines.gateway import MODEL, Gateway, run_gateway
from tests.engines.prompts import passage

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
SHORT: Body = {"max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def gateway(started_engines: list[Engine], model_folder: Path, run_folder: Path) -> Iterator[Gateway]:
    endpoints = [{"url": engine.url, "name": engine.name} for engine in started_engines]
    with run_gateway(run_folder, endpoints, {"tokenizer": str(model_folder)}) as gateway:
        wait_for(lambda: set(gateway.streams().values()) == {"live"}, "the event streams", gateway.process)
        yield gateway
        # Over all requests of this file, and not only those that looked:
        assert gateway.total("kvgate_token_counts_compared_total", model=MODEL) > 0
        assert gateway.total("kvgate_token_count_mismatches_total") == 0
        assert gateway.total("kvgate_hit_error_tokens_total") == 0
        assert gateway.total("kvgate_kv_gaps_total") == 0


@dataclass(frozen=True, slots=True)
class Hit:
    """One request's placement and the accounts of its cached tokens."""

    endpoint: str
    expected: int
    reported: int
    answer: dict[str, Any]


def send(gateway: Gateway, path: str, body: Body) -> Hit:
    """Send one request, and require that both accounts of it agree."""
    response = gateway.ask(path, body).raise_for_status()
    answer = response.json()
    line = gateway.request(response.headers["x-request-id"])
    reported = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert line["exact"]
    assert line["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert line["cached_tokens"] == reported
    assert line["expected_hit"] == reported, f"{line} against {answer['usage']}"
    return Hit(line["endpoint"], line["expected_hit"], reported, answer)


def stored(gateway: Gateway) -> float:
    """Blocks that the engines have said they stored, as far as the gateway has heard."""
    return gateway.total("kvgate_kv_events_total", kind="stored")


def test_repeated_prefixes(gateway: Gateway, engines: list[Engine]) -> None:
    """Each group goes back to the engine that held it, and what it finds there is what was expected."""
    before = {engine.name: engine.prefix_hits() for engine in engines}
    sent: dict[str, int] = dict.fromkeys(before, 0)
    homes: dict[int, str] = {}
    for turn in range(4):
        for group in range(6):
            prefix = passage(f"repeated {group}", 60 + 25 * group)
            hit = send(gateway, CHAT, chat(system(prefix), user(f"question {turn} of {group}"), **SHORT))
            sent[hit.endpoint] += hit.reported
            if turn:
                assert hit.endpoint == homes[group]
                assert hit.reported >= 3 * BLOCK_SIZE
            else:
                assert hit.reported < BLOCK_SIZE
            homes[group] = hit.endpoint

    def counted() -> dict[str, int]:
        return {engine.name: engine.prefix_hits() - before[engine.name] for engine in engines}

    # An engine counts a little later than it answers.
    wait_for(lambda: sum(counted().values()) >= sum(sent.values()), "the engines' counts", gateway.process)
    assert counted() == sent


def test_a_conversation(gateway: Gateway) -> None:
    messages = [system(passage("conversation", 40))]
    expected = []
    for turn in range(5):
        messages.append(user(f"and {turn}? " + passage(f"turn {turn}", 20)))
        hit = send(gateway, CHAT, chat(*messages, max_tokens=24, temperature=0))
        messages.append(assistant(hit.answer["choices"][0]["message"]["content"]))
        expected.append(hit.expected)
    assert expected == sorted(expected)
    assert expected[0] < BLOCK_SIZE < expected[-1]


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_where_a_block_ends(gateway: Gateway, extra: int) -> None:
    """A prompt of whole blocks is never found whole: the engine computes its last token anew."""
    tokens = [7 + (i * i + extra) % 300 for i in range(4 * BLOCK_SIZE + extra)]
    first = send(gateway, COMPLETION, {"prompt": tokens, **SHORT})
    again = send(gateway, COMPLETION, {"prompt": tokens, **SHORT})
    third = send(gateway, COMPLETION, {"prompt": tokens, **SHORT})
    longer = send(gateway, COMPLETION, {"prompt": [*tokens, 9, 9], **SHORT})
    assert first.expected == 0
    assert again.expected == third.expected == (len(tokens) - 1) // BLOCK_SIZE * BLOCK_SIZE
    # four generated tokens: none of their blocks is full but where the prompt lacks one token
    assert longer.expected == len(tokens) // BLOCK_SIZE * BLOCK_SIZE


def test_generated_tokens_are_held_too(gateway: Gateway) -> None:
    prompt = [11 + i % 200 for i in range(50)]
    heard = stored(gateway)
    body = {"prompt": prompt, "max_tokens": 60, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    first = send(gateway, COMPLETION, body)
    generated = first.answer["choices"][0]["token_ids"]
    assert len(generated) == 60
    blocks = (len(prompt) + len(generated) - 1) // BLOCK_SIZE  # the last token's keys and values are never computed
    wait_for(lambda: stored(gateway) >= heard + blocks, "the events of the answer's blocks", gateway.process)
    hit = send(gateway, COMPLETION, {"prompt": [*prompt, *generated, 5, 6], **SHORT})
    assert hit.endpoint == first.endpoint
    assert hit.expected == blocks * BLOCK_SIZE


def test_a_salt_is_a_cache_of_its_own(gateway: Gateway) -> None:
    body = chat(system(passage("salted", 60)), user("hi"), **SHORT)
    assert send(gateway, CHAT, body).expected < BLOCK_SIZE
    held = send(gateway, CHAT, body).expected
    assert held >= 3 * BLOCK_SIZE
    assert send(gateway, CHAT, body | {"cache_salt": "tenant-a"}).expected == 0
    assert send(gateway, CHAT, body | {"cache_salt": "tenant-a"}).expected == held
    assert send(gateway, CHAT, body | {"cache_salt": "tenant-b"}).expected == 0


def test_a_gateway_that_comes_late_learns_what_is_held(
    gateway: Gateway, engines: list[Engine], model_folder: Path, run_folder: Path
) -> None:
    bodies = [chat(system(passage(f"late {group}", 70)), user("hi"), **SHORT) for group in range(4)]
    homes = [send(gateway, CHAT, body).endpoint for body in bodies]
    endpoints = [{"url": engine.url, "name": engine.name} for engine in engines]
    with run_gateway(run_folder, endpoints, {"tokenizer": str(model_folder)}) as late:
        wait_for(lambda: set(late.streams().values()) == {"live"}, "the replays", late.process)
        hits = [send(late, CHAT, body) for body in bodies]
    assert [hit.endpoint for hit in hits] == homes
    assert all(hit.expected >= 3 * BLOCK_SIZE for hit in hits)


def test_streamed_requests_are_compared_too(gateway: Gateway) -> None:
    body = chat(system(passage("streamed", 60)), user("hi"), stream=True, **SHORT)
    body["stream_options"] = {"include_usage": True}
    lines = []
    for _ in range(2):
        response = gateway.ask(CHAT, body).raise_for_status()
        lines.append(gateway.request(response.headers["x-request-id"]))
    assert [line["expected_hit"] == line["cached_tokens"] for line in lines] == [True, True]
    assert lines[1]["expected_hit"] >= 3 * BLOCK_SIZE
