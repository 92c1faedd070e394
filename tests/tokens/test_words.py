from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from gateway.tokens.segment_cache import Lookup, SegmentCache
from gateway.tokens.segments import LONG, Cuts, find_cuts
from gateway.tokens.words import CASED, JOINED, LETTERS, OTHERS, alternatives
from tests.support.examples import examples
from tests.tokens.shapes import CUT, GPT4O, LLAMA3, QWEN, WORDS, byte_level, raw, shape, with_tokens

SENTENCE = "The quick brown fox jumps over the lazy dog. "
TAG = raw("<|im_start|>")


def words_of(*tokens: AddedToken, pattern: str = LLAMA3, **changes: Any) -> bool:
    tokenizer = with_tokens(byte_level(pattern), [*TAG, *tokens])
    for name, value in changes.items():
        setattr(tokenizer, name, value)
    return find_cuts(tokenizer).words


@pytest.mark.parametrize("name", list(CUT))
def test_which_tokenizers_allow_it(name: str) -> None:
    assert find_cuts(shape(name)).words is (name in WORDS)


def test_an_unknown_expression_is_not_trusted() -> None:
    assert words_of()
    assert not words_of(pattern=r"\w+|\W")
    assert not words_of(pattern=rf"{LLAMA3}|\p{{L}}+ \p{{L}}+")
    assert not words_of(pattern=LLAMA3.replace(r"[^\r\n\p{L}\p{N}]?\p{L}+|", ""))
    assert not words_of(pattern=GPT4O.partition("|[^")[0])


def test_what_puts_something_before_a_text_is_not_cut() -> None:
    assert not words_of(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True))
    assert not words_of(pre_tokenizer=pre_tokenizers.Metaspace())
    assert not words_of(normalizer=normalizers.Sequence([normalizers.Prepend("x"), normalizers.NFC()]))
    assert words_of(normalizer=normalizers.NFC())


def test_splits_that_are_not_kept_as_they_are() -> None:
    for behavior in ("removed", "merged_with_previous", "merged_with_next", "contiguous"):
        split = pre_tokenizers.Split(Regex(LLAMA3), behavior)
        byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        assert not words_of(pre_tokenizer=pre_tokenizers.Sequence([split, byte])), behavior


@pytest.mark.parametrize(
    "token",
    [
        AddedToken("New York", normalized=True),
        AddedToken("New York", normalized=False),
        AddedToken("x ", normalized=True),
        AddedToken("<tool>x", rstrip=True, normalized=True),
        AddedToken("word", single_word=True, normalized=True),
    ],
    ids=str,
)
def test_tokens_across_a_blank(token: AddedToken) -> None:
    assert not words_of(token)


@pytest.mark.parametrize("token", [AddedToken("<a b>"[:2]), AddedToken("<x>", rstrip=True), AddedToken(" x")], ids=str)
def test_other_tokens_do_no_harm(token: AddedToken) -> None:
    assert words_of(token)


def test_another_model_is_not_cut() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = byte_level(LLAMA3).pre_tokenizer
    assert not find_cuts(with_tokens(tokenizer, TAG)).words


@pytest.mark.parametrize("pattern", [LLAMA3, QWEN, GPT4O])
def test_expressions_are_taken_apart_where_they_branch(pattern: str) -> None:
    assert "|".join(alternatives(pattern)) == pattern
    assert set(alternatives(pattern)) <= LETTERS | OTHERS | CASED


@examples(300)
@given(st.text(alphabet="aB z'sS1 .\n\t\u00e9\u0301\u4f60-", min_size=1, max_size=30))
def test_no_known_expression_takes_a_letter_with_the_blank_behind_it(text: str) -> None:
    """Each of them alone, as the library reads it."""
    for expression in LETTERS | OTHERS | CASED:
        for piece, _ in pre_tokenizers.Split(Regex(expression), "removed", invert=True).pre_tokenize_str(text):
            assert JOINED.search(piece) is None, (expression, piece)


@pytest.mark.parametrize("name", sorted(WORDS))
def test_a_long_text_with_another_end_is_encoded_from_where_that_begins(name: str) -> None:
    backend = shape(name)
    cuts = find_cuts(backend)
    cache = SegmentCache(1 << 24, cuts)
    text = SENTENCE * 400
    first = cache.look_up(Lookup(text))
    assert len(first.missing) == len(first.segments) > len(text) / (2 * LONG)
    for segment in first.segments:
        segment.ids = b""
    cache.add(first)
    second = cache.look_up(Lookup(text[:-64] + "and what has never been seen before stands here, at its very end"))
    assert [len(segment.text) > LONG - 1 for segment in second.segments[:-1]] == [True] * (len(second.segments) - 1)
    assert second.new < 2 * LONG


def test_where_a_remembered_text_ended_is_no_end_in_another() -> None:
    """It ended with half a word."""
    cuts = Cuts(re.compile(r"<\|x\|>"), "", {}, words=True)
    cache = SegmentCache(1 << 24, cuts)
    half = "word " * 60 + "hal"
    for text in (half, half + "f and more of it"):
        lookup = cache.look_up(Lookup(text))
        assert "".join(segment.text for segment in lookup.segments) == text
        for segment in lookup.missing:
            segment.ids = b""
        cache.add(lookup)
    assert [segment.text for segment in cache.look_up(Lookup(half + "f and more")).segments] == [half + "f and more"]


@pytest.mark.parametrize("name", sorted(WORDS))
@examples(60)
@given(st.lists(st.tuples(st.integers(0, 3), st.text(max_size=12), st.integers(0, 60)), min_size=1, max_size=6))
def test_texts_that_share_beginnings_have_their_own_ids(name: str, texts: list[tuple[int, str, int]]) -> None:
    backend = shape(name)
    cache = SegmentCache(1 << 22, find_cuts(backend))
    for which, middle, length in texts:
        text = (SENTENCE * 60)[: 37 * length + which] + middle + "<|im_start|>" + SENTENCE * which
        try:
            text.encode()
        except UnicodeEncodeError:
            continue
        lookup = cache.look_up(Lookup(text))
        for segment in lookup.missing:
            segment.ids = json.dumps(backend.encode(segment.text, add_special_tokens=False).ids).encode()
        cache.add(lookup)
        ids = [token for segment in lookup.segments for token in json.loads(segment.ids or b"[]")]
        assert ids == backend.encode(text, add_special_tokens=False).ids
