from __future__ import annotations

import logging
import re
from array import array
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from gateway.tokens import word_ids
from gateway.tokens.segments import find_cuts
from gateway.tokens.word_ids import BEYOND, LATIN, LONGEST, SAMPLE, WORDS, WordIds, find_words
from tests.support.examples import examples
from tests.tokens.shapes import CUT, GPT4O, LLAMA3, QWEN, byte_level, raw, shape, text_of, with_tokens
from tests.tokens.shapes import WORDS as SHAPES

QWEN3 = QWEN.replace(r"[^\r\n\p{L}\p{N}]?\p{L}+", r"[^\r\n\p{L}\p{N}]?+\p{L}+").replace("]+[", "]++[")
"""With possessive quantifiers."""

ALL = st.text(st.characters(max_codepoint=BEYOND - 1, blacklist_categories=["Cs"]), max_size=40)
"""Every letter that a text may be made of to be encoded by its words."""
NEAR = st.text(
    alphabet="aBsS'\u017f\u212a'tlL ve \t\n\r.,-/_1\u00b2\u0663\u00a0\u2028\x1c\x85\u0301\u0e33\u05d0\u0430",
    max_size=40,
)
"""What the expressions tell apart."""


def made(tokenizer: Tokenizer) -> WordIds | None:
    return find_words(tokenizer, "m", find_cuts(tokenizer))


def certain(tokenizer: Tokenizer) -> WordIds:
    words = made(tokenizer)
    assert words is not None
    return words


def whole(tokenizer: Tokenizer, text: str) -> bytes:
    return array("I", tokenizer.encode(text, add_special_tokens=False).ids).tobytes()


@cache
def known(name: str) -> WordIds:
    return certain(shape(name))


@pytest.mark.parametrize("name", list(CUT))
def test_which_tokenizers_have_words(name: str) -> None:
    assert (made(shape(name)) is not None) is (name in SHAPES)


@pytest.mark.parametrize("name", sorted(SHAPES))
@examples(500)
@given(text=st.one_of(ALL, NEAR, st.binary(max_size=30).map(text_of)))
def test_the_ids_are_the_texts(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    words, right = known(name), whole(shape(name), text)
    assert words.encode(text) in (None, right)
    assert words.encode(text) in (None, right), "known now"
    if text.isascii() and words._others is None:
        assert words.encode(text) == right
    assert words.on


@pytest.mark.parametrize("pattern", [LLAMA3, QWEN, QWEN3, GPT4O])
@pytest.mark.parametrize("normalizer", [None, normalizers.NFC()], ids=["as it is", "NFC"])
def test_how_models_split(pattern: str, normalizer: Any) -> None:
    tokenizer = with_tokens(byte_level(pattern, normalizer), raw("<|im_start|>"))
    words = certain(tokenizer)
    for text in (*word_ids.SENTENCES, *word_ids.FRAGMENTS, "<|im_start|>user\nHi!<|im_start|>", "x" * 300 + " " * 300):
        assert words.encode(text) in (None, whole(tokenizer, text))
        assert (words.encode(text) is None) is (
            max(text, default="") >= chr(BEYOND) or ("e\u0301" in text and bool(normalizer))
        )


@pytest.mark.parametrize(
    "pattern",
    [
        r"\w+|\W",
        LLAMA3.replace(r"|\s+(?!\S)|\s+", r"|\s+(?!\S)"),
        LLAMA3.replace(r"|\p{N}{1,3}", ""),
        LLAMA3.replace(r"| ?[^\s\p{L}\p{N}]+[\r\n]*", r"| ?[\p{P}\p{S}]+[\r\n]*"),
    ],
)
def test_an_expression_that_is_not_known_or_leaves_characters_over(pattern: str) -> None:
    assert made(with_tokens(byte_level(pattern), raw("<|im_start|>"))) is None


def test_other_steps_than_one_split_into_words() -> None:
    split = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
    byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for steps in ([split], [split, split, byte], [pre_tokenizers.Digits(True), split, byte], [split, byte, byte]):
        tokenizer = with_tokens(byte_level(LLAMA3), raw("<|im_start|>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        assert made(tokenizer) is None
    tokenizer = with_tokens(byte_level(LLAMA3), raw("<|im_start|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    assert made(tokenizer) is None
    tokenizer = with_tokens(byte_level(LLAMA3, normalizers.NFKC()), raw("<|im_start|>"))
    assert made(tokenizer) is None
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = byte_level(LLAMA3).pre_tokenizer
    assert made(with_tokens(tokenizer, raw("<|im_start|>"))) is None
    tokenizer = with_tokens(byte_level(LLAMA3), raw("<|im_start|>"))
    tokenizer.model.dropout = 0.1
    assert made(tokenizer) is None


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (AddedToken("[INST]", normalized=True), "x [INST] y"),
        (AddedToken("re\u0301sum\u00e9", normalized=True), "r\u00e9sum\u00e9"),
        (AddedToken("<end>", normalized=False, rstrip=True), "x<end>  y"),
        (AddedToken("<left>", normalized=False, lstrip=True), "x  <left>y"),
        (AddedToken("<|im_", normalized=False), "<|im_start|>"),
    ],
    ids=str,
)
def test_a_text_with_a_token_that_is_not_simply_found_is_left_to_the_library(token: AddedToken, text: str) -> None:
    words = certain(with_tokens(byte_level(QWEN, normalizers.NFC()), [*raw("<|im_start|>", "<|eot|>"), token]))
    assert words.encode(text) is None
    assert words.encode("x y<|eot|>") is not None


@pytest.mark.parametrize("text", ["e\u0301", "\u4f60\u597d", "\U0001f600 ok", "\u1100\u1161"])
def test_a_text_that_is_not_plain_is_left_to_the_library(text: str) -> None:
    assert known("qwen").encode(f"some words {text}") is None


def test_a_word_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    words = certain(shape("llama3"))
    encoded = asked(words, monkeypatch)
    first = words.encode("<|im_start|>marmalade under marmalade skies")
    assert encoded == ["marmalade", " under", " marmalade", " skies"]
    assert words.encode("<|im_start|>marmalade under marmalade skies") == first
    assert words.encode(" skies under") is not None
    assert len(encoded) == 4


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_words_of_the_vocabulary_are_known_from_the_start(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = certain(shape(name))
    words.fill()
    known = words._before
    assert len(known) > 200
    assert not any(ids != whole(shape(name), word) for word, ids in known.items())
    encoded = asked(words, monkeypatch)
    texts = [word for word in known if re.fullmatch(" [a-z]{3,}", word)]
    text = "".join(texts)
    assert len(texts) > 20
    assert words.encode(text) == whole(shape(name), text)
    assert not encoded


def test_no_more_words_of_the_vocabulary_are_known_than_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_ids, "WORDS", 100)
    monkeypatch.setattr(word_ids, "FILLED", 64)
    words = certain(shape("llama3"))
    words.fill()
    assert len(words._before) == 100


def test_what_is_remembered_is_bounded_and_what_is_in_use_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    words = certain(shape("llama3"))
    encoded = asked(words, monkeypatch)
    for number in range(3 * WORDS // 500):
        text = "".join(f" {chr(97 + one % 26)}{chr(97 + one // 26)}" * 2 + "q" * (number + 1) for one in range(500))
        assert words.encode(f"{text} permanent") is not None
        assert len(words._known) + len(words._before) <= 2 * (WORDS + 1001)
    assert encoded.count(" permanent") == 1
    long = "-" * (LONGEST + 1)
    for _ in range(2):
        assert words.encode(long) == whole(shape("llama3"), long)
    assert encoded.count(long) == 2
    assert words.encode("<|im_start|> permanent") is not None


def test_a_difference_in_service_switches_it_off(caplog: pytest.LogCaptureFixture) -> None:
    words = certain(shape("llama3"))
    right = whole(shape("llama3"), "some words")
    assert words.encode("some words") == right
    words._known[" words"] = b"\1\0\0\0"
    with caplog.at_level(logging.WARNING):
        found = [words.encode("some words") for _ in range(2 * SAMPLE)]
    at = found.index(right)
    assert at < SAMPLE, "the text that is compared gets the library's ids"
    assert set(found[at + 1 :]) == {None}
    assert [record.getMessage() for record in caplog.records] == [
        "model m: a text's words have other ids than the text: texts are encoded whole"
    ]


def test_texts_are_compared_again_where_two_threads_have_lowered_the_count() -> None:
    words = certain(shape("llama3"))
    words._until_sample = -1
    assert words.encode("some words") == whole(shape("llama3"), "some words")
    assert words._until_sample == SAMPLE


def test_a_difference_at_start_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = shape("llama3")
    translated = word_ids._translated
    for wrong in (lambda found: found.replace(r"[\r\n]*", ""), lambda found: found.replace("{1,3}", "{1,2}")):
        monkeypatch.setattr(word_ids, "_translated", lambda given, wrong=wrong: wrong(translated(given)))
        assert made(tokenizer) is None
    monkeypatch.setattr(word_ids, "_translated", translated)
    monkeypatch.setattr(word_ids, "_same_words", lambda *_: True)
    monkeypatch.setattr(WordIds, "encode", lambda words, text: b"")
    assert made(tokenizer) is None


def test_what_is_a_letter_of_an_expression_in_another_case_is_tried_between_others() -> None:
    assert max(one for one in map(chr, range(BEYOND)) if one.casefold() in set("sdmtlvre")) < chr(LATIN)


def asked(words: WordIds, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words that the library encodes from now on."""
    backend, encoded = words._backend, list[str]()

    class Asked:
        normalizer = backend.normalizer

        def encode_batch_fast(self, texts: list[str], **how: Any) -> Any:
            encoded.extend(texts)
            return backend.encode_batch_fast(texts, **how)

    monkeypatch.setattr(words, "_backend", Asked())
    return encoded
