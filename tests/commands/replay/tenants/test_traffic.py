"""What tenants send: as much as was asked for, of the sizes that were asked for, and sharing what they should share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random
from statistics import fmean

import pytest

from gateway.commands.replay.tenants.traffic import BLOCK, Bursts, Chats, Ids, Requests, Sent, Size, Traffic
from gateway.commands.replay.workload import MAX_TOKENS

SHAPES: dict[str, Traffic] = {
    "chats": Chats(500, Size(300), Size(50)),
    "requests": Requests(Size(1000), Size(50), shared=320),
    "bursts": Bursts(Requests(Size(1000), Size(50)), every=10.0, over=1.0),
}


def sent(traffic: Traffic, rate: float = 5.0, seconds: float = 400.0, seed: int = 1) -> list[Sent]:
    return sorted(traffic.sent(rate, seconds, Random(seed), Ids()))


@pytest.mark.parametrize("name", SHAPES)
def test_there_are_as_many_as_asked_for_within_the_time(name: str) -> None:
    found = sent(SHAPES[name])
    assert len(found) == pytest.approx(2000, rel=0.1)
    assert 0 <= found[0].at < found[-1].at < 400
    for one in found:
        assert one.input_tokens >= 1
        assert one.output_tokens >= 2
        assert len(one.blocks) == -(-(one.input_tokens + one.output_tokens) // BLOCK)


@pytest.mark.parametrize("name", SHAPES)
def test_the_same_chance_gives_the_same_requests(name: str) -> None:
    assert sent(SHAPES[name], seed=3) == sent(SHAPES[name], seed=3) != sent(SHAPES[name], seed=4)


def test_sizes_have_their_mean_and_their_bounds() -> None:
    chance = Random(1)
    assert fmean(Size(500, 0.8).draw(chance) for _ in range(20_000)) == pytest.approx(500, rel=0.05)
    assert min(Size(2, 1.0).draw(chance, 2) for _ in range(1000)) == 2
    assert Size(MAX_TOKENS * 10.0, 0.1).draw(chance) == MAX_TOKENS


def test_a_turn_of_a_conversation_begins_with_all_before_it() -> None:
    of: dict[str, list[Sent]] = {}
    for one in sent(SHAPES["chats"]):
        of.setdefault(one.session, []).append(one)
    longest = max(of.values(), key=len)
    assert len(longest) == 4
    for before, after in pairwise(longest):
        whole = (before.input_tokens + before.output_tokens) // BLOCK
        assert after.blocks[:whole] == before.blocks[:whole]
        assert after.input_tokens > before.input_tokens + before.output_tokens
    system = {one.blocks[: 500 // BLOCK] for turns in of.values() for one in turns}
    assert len(system) == 1


def test_a_conversation_may_begin_with_a_longer_prompt() -> None:
    found = sent(Chats(0, Size(100, 0.1), Size(50), first=Size(5000, 0.1)))
    first = {one.session: one for one in reversed(found)}  # of those that began within the run
    assert max(one.input_tokens for one in first.values()) > 5000


def test_conversations_are_as_far_on_at_the_beginning_as_later() -> None:
    found = sent(SHAPES["chats"], rate=20.0)
    early = fmean(one.input_tokens for one in found if one.at < 40)
    late = fmean(one.input_tokens for one in found if one.at > 300)
    assert early == pytest.approx(late, rel=0.1)


def prefixes(found: Sequence[Sent], blocks: int) -> int:
    return len({one.blocks[:blocks] for one in found})


def test_requests_share_nothing_but_what_they_should() -> None:
    found = sent(SHAPES["requests"])
    assert prefixes(found, 20) == 1
    assert prefixes(found, 21) == len(found)
    assert min(one.input_tokens for one in found) > 320


def test_bursts_come_within_their_time() -> None:
    found = sent(SHAPES["bursts"], rate=5.0, seconds=40.0)
    assert len(found) == 4 * 50
    assert {int(one.at // 10) for one in found} == {0, 1, 2, 3}
    assert all(5 <= one.at % 10 < 6 for one in found)
