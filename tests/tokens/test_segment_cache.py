from __future__ import annotations

import gc
import importlib
import random
import re
import sys
import threading
import tracemalloc
from array import array
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gateway.core.prompt import KnownPrefix, PrefixedIds, joined
from gateway.tokens.encode import Encoder
from gateway.tokens.segment_cache import HOPS, OVERHEAD, Lookup, SegmentCache
from gateway.tokens.segments import LEAST, Cuts, find_cuts
from tests.support.examples import examples
from tests.tokens.shapes import CUT, TAGS, UNCUT, shape, text_of
from tests.tokens.watched import watched

ROOM = 10_000_000


@pytest.fixture(scope="module")
def cuts() -> Cuts:
    return find_cuts(shape("llama3"))


def whole_of(tokenizer: Tokenizer) -> Any:
    """As the library has it, which is not imported with this file: that takes as long as all other tests' import."""
    return importlib.import_module("transformers").PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def turn(number: int, size: int = LEAST) -> str:
    return f"<|im_start|>turn {number} " + "x" * size


def turns_of(*numbers: int) -> str:
    return "".join(map(turn, numbers)) + "<|im_end|>"


def add(cache: SegmentCache, text: str) -> list[str]:
    """Do as the encoder does; returns what it had to encode."""
    lookup = cache.look_up(Lookup(text))
    assert "".join(segment.text for segment in lookup.segments) == text
    new = [segment.text for segment in lookup.missing]
    for segment in lookup.missing:
        known = cache.segments.get(segment.text)
        segment.ids = segment.text.encode("utf-32-le") if known is None else known.ids
    assert b"".join(segment.ids or b"" for segment in lookup.segments) == text.encode("utf-32-le")
    cache.add(lookup)
    return new


def test_the_next_turn_is_its_new_messages(cuts: Cuts) -> None:
    cache = SegmentCache(ROOM, cuts)
    assert len(add(cache, turns_of(*range(10)))) == 11
    assert add(cache, turns_of(*range(11))) == [turn(10), "<|im_end|>"]
    assert add(cache, turns_of(*range(10), 12)) == [turn(12), "<|im_end|>"], "another answer to the same"
    assert add(cache, turns_of(*range(11), 13)) == [turn(13), "<|im_end|>"], "the first goes on"


@given(
    st.lists(st.lists(st.integers(0, 3), max_size=8), max_size=4), st.lists(st.integers(0, 3), max_size=8), st.data()
)
def test_a_text_can_be_recalled_a_little_at_a_time(
    cuts: Cuts, before: list[list[int]], numbers: list[int], data: st.DataObject
) -> None:
    cache = SegmentCache(ROOM, cuts)
    for some in before:
        add(cache, turns_of(*some))
    text = turns_of(*numbers)
    whole, lookup = cache.look_up(Lookup(text)), cache.look_up(Lookup(text), data.draw(st.integers(0, 200)))
    assert lookup.new >= whole.new
    for _ in range(len(text)):
        if lookup.at == len(text):
            break
        at = lookup.at
        cache.look_up(lookup, data.draw(st.integers(1, 200)))
        assert lookup.at > at
    assert [one.text for one in lookup.segments] == [one.text for one in whole.segments]
    assert [one.text for one in lookup.missing] == [one.text for one in whole.missing]
    cache.look_up(lookup)
    assert len(lookup.segments) == len(whole.segments)


@pytest.mark.parametrize("limit", [ROOM, 40 * (OVERHEAD + 5 * LEAST)], ids=["room", "little-room"])
@examples(60)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.lists(st.integers(0, 3), max_size=9)), max_size=12))
def test_spans_change_nothing_that_is_found(
    cuts: Cuts, limit: int, conversations: list[tuple[int, int, list[int]]]
) -> None:
    """Conversations that branch: each has the segments that a cache without spans finds, and the ids of its text."""
    with_spans, without = SegmentCache(limit, cuts, hops=2), SegmentCache(limit, cuts, hops=1 << 30)
    known: list[list[int]] = [[]]
    for base, depth, turns in conversations:
        known.append(known[base % len(known)][:depth] + turns)
        for _ in range(3):
            text = turns_of(*known[-1])
            new = add(with_spans, text)
            if limit == ROOM:
                assert new == add(without, text)
            lookup = with_spans.look_up(Lookup(text))
            if lookup.prefix is not None:
                assert text.startswith("".join(map(turn, known[-1]))[: lookup.prefix.count])
            assert with_spans.size <= limit
            assert with_spans._spans_size == sum(span.size for span in with_spans._spans)


def test_a_long_known_text_is_one_piece(cuts: Cuts) -> None:
    cache = SegmentCache(ROOM, cuts)
    text = turns_of(*range(40))
    for expected in (41, 41, 2, 2):
        assert len(cache.look_up(Lookup(text)).segments) == expected
        add(cache, text)
    lookup = cache.look_up(Lookup(turns_of(*range(40), 50)))
    assert [one.text for one in lookup.missing] == [turn(50), "<|im_end|>"]
    assert lookup.prefix is not None
    assert lookup.prefix.count == len("".join(map(turn, range(40))))
    branch = turns_of(*range(20), 60)
    assert add(cache, branch) == [turn(60), "<|im_end|>"], "what is under the span is known, too"
    assert add(cache, branch) == ["<|im_end|>"]
    assert len(cache.look_up(Lookup(branch)).segments) == 3, "the piece is what both begin with"
    assert add(cache, text) == ["<|im_end|>"]


def test_a_piece_grows_with_its_conversation(cuts: Cuts) -> None:
    cache = SegmentCache(ROOM, cuts)
    for number in range(1, 200):
        assert add(cache, turns_of(*range(number)))[:-1] == [turn(number - 1)]
        assert len(cache.look_up(Lookup(turns_of(*range(number)))).segments) <= HOPS + 3
    assert len(cache._spans) == 1


def test_pieces_take_a_quarter_of_the_memory(cuts: Cuts) -> None:
    cache = SegmentCache(400_000, cuts)
    for number in range(300):
        text = turns_of(*range(20 * number, 20 * number + 18))
        add(cache, text)
        add(cache, text)
        assert cache.size <= 400_000
        assert cache._spans_size <= 100_000
    assert len(cache._spans) > 1


def test_what_was_used_in_one_piece_stays(cuts: Cuts) -> None:
    """Its nodes are moved now and then only; they are never evicted before what was used earlier."""
    cache, text = SegmentCache(400_000, cuts), turns_of(*range(40))
    add(cache, text)
    for number in range(2000):
        assert add(cache, text) == ["<|im_end|>"]
        add(cache, turns_of(3 * number + 100, 3 * number + 101, 3 * number + 102))
    assert cache._moved < 20_000 * max(node.own for node in cache._used)


def test_a_conversation_in_use_stays_beside_few_large_texts() -> None:
    """They are few nodes, and turn over all of the memory."""
    cuts = Cuts(re.compile(r"<\|[ab]\|>"), "", {False: (b"", b"")})
    cache = SegmentCache(1_000_000, cuts)
    used = "".join(f"<|a|>{number} " + "x" * 80 for number in range(100))
    add(cache, used)
    for number in range(100):
        used += f"<|b|>{number} " + "y" * 90
        assert len(add(cache, used)) <= 2
        for other in range(4):
            add(cache, f"<|a|>{number} {other} " + "p" * 10_000)


def test_nothing_is_stored_behind_what_was_evicted_meanwhile(cuts: Cuts) -> None:
    cache = SegmentCache(ROOM, cuts)
    add(cache, turns_of(1, 2))
    lookup = cache.look_up(Lookup(turns_of(1, 2, 3)))
    for segment in lookup.missing:
        segment.ids = b""
    while len(cache):
        cache._forget_oldest()
    cache.add(lookup)
    assert (len(cache), cache.size) == (0, 0)


def test_no_more_is_searched_than_asked_for(cuts: Cuts) -> None:
    cache = SegmentCache(ROOM, cuts)
    add(cache, turns_of(*range(50)))
    lookup = cache.look_up(Lookup(turns_of(*range(50), *range(60, 80))), len(turn(60)) * 5)
    assert [one.text for one in lookup.missing] == [turn(number) for number in range(60, 65)]
    assert lookup.text[: lookup.at] == "".join(map(turn, [*range(50), *range(60, 65)]))
    assert (
        cache.look_up(Lookup(turns_of(*range(50))), 0).segments
        == cache.look_up(Lookup(turns_of(*range(50)))).segments[:-1]
    ), "known"


def test_a_segment_is_known_wherever_it_stands(cuts: Cuts) -> None:
    cache = SegmentCache(ROOM, cuts)
    add(cache, turns_of(0, 1, 2, 3))
    assert add(cache, turns_of(2, 3, 1)) == ["<|im_end|>"]
    size, nodes = cache.size, len(cache)
    add(cache, turns_of(3, 1, 2))
    assert cache.size - size == OVERHEAD * (len(cache) - nodes), "its text and ids are kept once"


def test_what_only_begins_like_a_segment_is_another(cuts: Cuts) -> None:
    cache = SegmentCache(ROOM, cuts)
    add(cache, turns_of(0, 1))
    longer = turn(0) + "y" + turns_of(1)
    assert add(cache, longer) == [turn(0) + "y", "<|im_end|>"]
    assert add(cache, turn(0) + "<|im_en") == [turn(0) + "<|im_en"]


def test_a_long_last_segment_is_remembered_and_a_short_one_is_not(cuts: Cuts) -> None:
    cache = SegmentCache(ROOM, cuts)
    assert add(cache, "a" * LEAST) == ["a" * LEAST]
    assert add(cache, "a" * LEAST) == []
    assert add(cache, "a" * (LEAST - 1)) == ["a" * (LEAST - 1)]
    assert len(cache) == 1
    assert add(cache, "a" * LEAST + turns_of(1)) == [turn(1), "<|im_end|>"], "it was followed by a cut"
    assert add(cache, "") == []


def test_without_cuts_the_same_text_is_known() -> None:
    cache = SegmentCache(ROOM, Cuts(None, "tokens", {}))
    assert add(cache, turns_of(1, 2)) == [turns_of(1, 2)]
    assert add(cache, turns_of(1, 2)) == []
    assert add(cache, turns_of(1, 2, 3)) == [turns_of(1, 2, 3)]


def test_the_least_recently_used_is_forgotten_from_its_end(cuts: Cuts) -> None:
    cache = SegmentCache(40 * (OVERHEAD + 5 * LEAST), cuts)
    for number in range(200):
        add(cache, turns_of(0, 1, 2, *range(1000 + 3 * number, 1003 + 3 * number)))
        add(cache, turns_of(0, 5, 6))
    assert add(cache, turns_of(0, 5, 6)) == ["<|im_end|>"], "it was used all the time"
    assert add(cache, turns_of(0, 1, 2, 3000)) == [turn(3000), "<|im_end|>"], "what all begin with stays"
    assert add(cache, turns_of(0, 1, 2, 1000)) == [turn(1000), "<|im_end|>"], "the oldest is gone"
    assert cache.size <= 40 * (OVERHEAD + 5 * LEAST)


def test_one_text_does_not_push_out_all_others(cuts: Cuts) -> None:
    cache = SegmentCache(20 * (OVERHEAD + 5 * LEAST), cuts)
    add(cache, turns_of(1, 2))
    add(cache, turns_of(*range(10, 60)))
    assert add(cache, turns_of(1, 2)) == ["<|im_end|>"]
    assert add(cache, turns_of(10)) == [turn(10), "<|im_end|>"]


def test_the_memory_is_what_it_says(cuts: Cuts) -> None:
    """Ten times the limit is offered; what is taken in truth is what is counted, or less."""
    limit = 1_000_000
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        cache = SegmentCache(limit, cuts)
        for number in range(1200):
            add(cache, turns_of(number % 7, *range(3 * number, 3 * number + 3)))
            assert cache.size <= limit
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert cache.size > limit / 2
    assert cache.size * 0.7 <= after - before <= cache.size * 1.1


def test_nothing_is_left_when_all_is_forgotten(cuts: Cuts) -> None:
    cache = SegmentCache(ROOM, cuts)
    for number in range(20):
        add(cache, turns_of(number % 3, number, number + 1))
    while len(cache):
        cache._forget_oldest()
    assert (cache.size, cache.segments, cache._root.children, cache._root.latest) == (0, {}, {}, None)


def test_another_threads_ids_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder(whole_of(shape("llama3")), "m", memory_bytes=ROOM)
    reading = encoder.read([turns_of(1, 2)], add_special_tokens=False)
    whole = encoder.encode([turns_of(1, 2)], add_special_tokens=False)
    encoded = watched(encoder, monkeypatch)
    assert encoder.finish(reading) == whole
    assert encoded == [], "nor is the end, which is short"


def test_threads_may_use_it_at_once(cuts: Cuts) -> None:
    cache = SegmentCache(30 * (OVERHEAD + 5 * LEAST), cuts)
    failures: list[BaseException] = []

    def talk(seed: int) -> None:
        chance = random.Random(seed)
        try:
            for _ in range(300):
                numbers = [chance.randrange(4) for _ in range(chance.randrange(1, 7))]
                add(cache, turns_of(*numbers))
        except BaseException as failure:
            failures.append(failure)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=talk, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failures
    assert cache.size <= 30 * (OVERHEAD + 5 * LEAST)
    kept = {id(segment): segment for segment in cache.segments.values()}
    uses: dict[int, int] = dict.fromkeys(kept, 0)
    for node in cache._used:
        uses[id(node.segment)] += 1
    assert all(segment.uses == uses[place] for place, segment in kept.items())
    assert cache.size == sum(OVERHEAD for _ in cache._used) + sum(
        sys.getsizeof(segment.text) + sys.getsizeof(segment.ids) for segment in kept.values()
    )


CONVERSATIONS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 4), st.lists(st.binary(max_size=12), min_size=1, max_size=3)),
    min_size=1,
    max_size=8,
)
"""Each: goes on with which of those before, cut to so many turns, by these turns."""


def rendered(turns: list[str], tags: list[str]) -> str:
    return "".join(f"{tags[place % len(tags)]}user\n{turn}" for place, turn in enumerate(turns)) + f"{tags[-1]}bot\n"


@pytest.mark.parametrize("hops", [1, HOPS])
@pytest.mark.parametrize("limit", [ROOM, 30_000], ids=["room", "little-room"])
@pytest.mark.parametrize("name", [*CUT, *(name for name in UNCUT if name != "dropout")])
@examples(40, suppress_health_check=[HealthCheck.too_slow])
@given(CONVERSATIONS, st.booleans())
def test_conversations_have_the_ids_of_their_whole_texts(
    name: str, limit: int, hops: int, conversations: list[tuple[int, int, list[bytes]]], special: bool
) -> None:
    """Turn by turn through the cache, branching, and among others: every id is the whole encoding's."""
    tokenizer: Tokenizer = shape(name)
    if (name, limit, hops) not in ENCODERS:
        encoder = ENCODERS[name, limit, hops] = Encoder(whole_of(tokenizer), name, memory_bytes=limit)
        if encoder._cache is not None:
            encoder._cache = SegmentCache(limit, encoder._cuts, hops)
    encoder = ENCODERS[name, limit, hops]
    assert (encoder._cuts.pattern is not None) is (name in CUT)
    tags = [tag for tag in TAGS if tokenizer.token_to_id(tag) is not None]
    known: list[list[str]] = [[]]
    for base, depth, turns in conversations:
        known.append(known[base % len(known)][:depth] + [text_of(turn) for turn in turns])
        text = rendered(known[-1], tags)
        (ids,) = encoder.finish(encoder.read([text], add_special_tokens=special))
        whole = joined(ids)
        assert whole == array("I", tokenizer.encode(text, add_special_tokens=special).ids)
        assert len(whole) == len(ids)
        if isinstance(ids, PrefixedIds):
            beginning = whole[: ids.prefix.count]
            assert beginning.tobytes() == b"".join(ids.pieces)
            assert BEGINNINGS.setdefault(ids.prefix, beginning) == beginning


ENCODERS: dict[tuple[str, int, int], Encoder] = {}
BEGINNINGS: dict[KnownPrefix, array[int]] = {}
