from __future__ import annotations

import json
import re
from array import array
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, NormalizedString, Tokenizer, models, normalizers, pre_tokenizers, processors

from gateway.tokens.segments import LONG, _any_of, _around, find_cuts
from tests.support.examples import examples
from tests.tokens.shapes import CUT, TAGS, UNCUT, byte_level, llama3, raw, shape, text_of, with_tokens

TEXTS = st.one_of(
    st.binary(max_size=24).map(text_of),
    st.text(max_size=40).filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text)),
)


@pytest.mark.parametrize("name", CUT)
@examples(300, suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS, st.integers(1, 12), st.sampled_from([1, 2, 9, LONG]), st.booleans())
def test_the_ids_of_the_segments_are_those_of_the_text(
    name: str, text: str, least: int, long: int, special: bool
) -> None:
    tokenizer = shape(name)
    cuts = find_cuts_of(name)
    parts = list(cuts.segments(text, least, long))
    assert "".join(parts) == text
    before, after = (array("I", ids) for ids in cuts.added[special])
    ids = [token for part in parts for token in tokenizer.encode(part, add_special_tokens=False).ids]
    assert [*before, *ids, *after] == tokenizer.encode(text, add_special_tokens=special).ids


@pytest.mark.parametrize("name", CUT)
@settings(deadline=None)
@given(TEXTS, TEXTS)
def test_the_segments_of_a_prefix_are_the_same_but_for_the_last(name: str, text: str, more: str) -> None:
    cuts = find_cuts_of(name)
    closed = list(cuts.segments(text, least=3, long=5))[:-1]
    assert list(cuts.segments(text + more, least=3, long=5))[: len(closed)] == closed


@pytest.mark.parametrize("name", CUT)
@examples(200)
@given(TEXTS, st.integers(1, 20))
def test_where_a_segment_may_end_it_does_not_change_the_ids(name: str, text: str, at: int) -> None:
    """Also where no text is cut at first: what is remembered may end there."""
    cuts, tokenizer = find_cuts_of(name), shape(name)
    if 0 < at < len(text) and cuts.ends(text, at):
        ids = [
            token for part in (text[:at], text[at:]) for token in tokenizer.encode(part, add_special_tokens=False).ids
        ]
        # The part before it ended there or earlier, and so do its tokens.
        assert ids == tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", CUT)
def test_a_chat_is_cut(name: str) -> None:
    tags = [tag for tag in TAGS if (found := find_cuts_of(name).pattern) and found.fullmatch(tag)]
    parts = list(find_cuts_of(name).segments("".join(f"{tag}some words" for tag in tags * 3), least=1))
    assert len(parts) == 3 * len(tags) >= 3


@pytest.mark.parametrize("name", UNCUT)
def test_a_tokenizer_that_allows_no_cut_is_known_at_start(name: str) -> None:
    cuts = find_cuts_of(name)
    assert (cuts.pattern, cuts.why) == (None, UNCUT[name][1])
    assert list(cuts.segments("<|im_start|>a<|im_end|>b" * 9, least=1)) == ["<|im_start|>a<|im_end|>b" * 9]


def test_a_cut_where_blanks_are_taken_or_texts_are_merged_would_have_been_wrong() -> None:
    """What the trial at start would find if the structure did not tell."""
    for name, text in (("taking-left", "a  <|im_start|>b"), ("merging", "a\u3000<|im_start|>b")):
        tokenizer = shape(name)
        at = text.index("<|im_start|>")
        apart = [token for part in (text[:at], text[at:]) for token in tokenizer.encode(part).ids]
        assert apart != tokenizer.encode(text).ids, name


def test_tokens_that_reach_over_others_are_not_cut_at() -> None:
    found = find_cuts_of("mixed").pattern
    assert found is not None
    assert [tag for tag in (*TAGS, "<s></s>", "  ", "\n\n") if found.fullmatch(tag)] == [
        "<|im_start|>",
        "<|end|>",
        "<s></s>",
    ]
    own = find_cuts(with_tokens(byte_level(r"\w+|\W"), raw("<<", "aba", "ok")))
    assert own.pattern is not None
    assert [tag for tag in ("<<", "aba", "ok") if own.pattern.fullmatch(tag)] == ["ok"]


class Shouts:
    """A step in Python: it can do anything."""

    def normalize(self, text: NormalizedString) -> None:
        text.uppercase()

    def pre_tokenize(self, text: Any) -> None: ...


def changed(**parts: Any) -> Tokenizer:
    tokenizer = llama3()
    for name, value in parts.items():
        setattr(tokenizer, name, value)
    return tokenizer


def test_unknown_steps_are_not_trusted() -> None:
    custom = normalizers.Normalizer.custom(Shouts())
    assert find_cuts(changed(normalizer=custom)).why == "normalizer"
    # The library refuses to write a list that has Python code in it, or names no type for it.
    assert find_cuts(changed(normalizer=normalizers.Sequence([normalizers.NFC(), custom]))).why == "normalizer"
    assert find_cuts(changed(pre_tokenizer=pre_tokenizers.PreTokenizer.custom(Shouts()))).why == "pre-tokenizer"
    assert find_cuts(changed(encode_special_tokens=True)).why == "split-specials"
    padded = llama3()
    padded.enable_padding(length=8)
    assert find_cuts(padded).why == "length"


@pytest.mark.parametrize(
    ("post_processor", "around"),
    [
        (None, ([], [])),
        (processors.ByteLevel(), ([], [])),
        (processors.BertProcessing(("</s>", 5), ("<s>", 4)), ([4], [5])),
        (processors.RobertaProcessing(("</s>", 5), ("<s>", 4)), ([4], [5])),
        (processors.TemplateProcessing("a $A b b", "$A $B", [("a", 4), ("b", 5)]), ([4], [5, 5])),
        (
            processors.Sequence(
                [processors.ByteLevel(), processors.TemplateProcessing("a $A b", "$A $B", [("a", 4), ("b", 5)])]
            ),
            ([4], [5]),
        ),
    ],
)
def test_what_is_put_around_a_text_is_known(post_processor: Any, around: tuple[list[int], list[int]]) -> None:
    cuts = find_cuts(changed(post_processor=post_processor))
    assert cuts.added[False] == (b"", b"")
    assert tuple(list(array("I", ids)) for ids in cuts.added[True]) == around


def test_a_post_processor_that_is_not_understood_leaves_texts_without_special_tokens() -> None:
    backend = Tokenizer(models.BPE())
    backend.post_processor = processors.TemplateProcessing("a $A", "$A $B", [("a", 4)])
    template = json.loads(backend.to_str())["post_processor"]
    assert _around(template) == ([4], [])
    assert _around({"type": "Sequence", "processors": [template, template]}) is None
    assert _around(template | {"single": template["single"] * 2}) is None
    assert _around({"type": "Surprise"}) is None


def test_thousands_of_tokens_are_one_pattern() -> None:
    tokens = [f"<unused{number}>" for number in range(3000)] + ["[INST]", "<s>"]
    tokenizer = Tokenizer(models.WordLevel({"x": 0}, unk_token="x"))
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in tokens])
    cuts = find_cuts(tokenizer)
    assert cuts.pattern is not None
    assert all(cuts.pattern.fullmatch(token) for token in tokens)


@settings(deadline=None)
@given(st.sets(st.text("ab<|", min_size=1, max_size=5), min_size=1, max_size=8), st.text("ab<|", max_size=20))
def test_the_pattern_finds_what_the_words_are(words: set[str], text: str) -> None:
    apart = [word for word in words if not any(other != word and word.startswith(other) for other in words)]
    found = re.compile(_any_of(apart)).search(text)
    places = [(text.find(word), word) for word in apart if word in text]
    assert (found and (found.start(), found.group())) == (min(places) if places else None)


FOUND: dict[str, Any] = {}


def find_cuts_of(name: str) -> Any:
    if name not in FOUND:
        FOUND[name] = find_cuts(shape(name))
    return FOUND[name]
