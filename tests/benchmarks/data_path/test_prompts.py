"""What is asked: sizes, and the number of tokens that the engines report for it."""

from __future__ import annotations

import random
import re

import pytest

from benchmarks.data_path import prompts
from benchmarks.data_path.prompts import chat, encoder, plan, render, sizes
from tests.benchmarks.data_path.small import small_text


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> prompts.Text:
    return small_text(tmp_path_factory.mktemp("text"))


@pytest.mark.parametrize("kib", [2, 16, 128])
def test_chats_have_about_their_size_and_end_with_64_bytes(kib) -> None:
    lengths = sizes(kib)
    assert lengths[-1] == 64
    assert len(lengths) % 2 == 0, "a system prompt, then turns that begin with the user's"
    assert all(size % 256 == 64 for size in lengths)
    assert 0.85 < (sum(lengths) + 40 * len(lengths)) / (kib * 1024) < 1.05


def test_a_message_has_its_size(made) -> None:
    for size in (64, 320, 3136):
        assert len(made.words(random.Random(1), size)) == size


@pytest.mark.parametrize("fresh", [False, True])
def test_tokens_of_the_whole_are_those_of_its_parts(made, fresh) -> None:
    lengths = [576, 320, 320, 64]
    asked = chat(made, lengths, fresh)
    chance = random.Random(2)
    filled = [
        {"role": role, "content": made.words(chance, text) if isinstance(text, int) else text}
        for role, text in asked.messages
    ]
    new = [size for _, size in asked.messages if isinstance(size, int)]
    assert new == (lengths if fresh else lengths[-1:])
    chunks = sum(2 * made.small_tokens[0] + size // 256 * made.large_tokens[0] for size in new)
    whole = encoder(made).encode(render(filled, ask=True), add_special_tokens=False).ids
    assert len(whole) == asked.tokens + chunks
    if not fresh:
        assert whole[: len(asked.prefix(made))] == asked.prefix(made)


def test_a_plan_is_the_body_with_holes(made) -> None:
    asked = chat(made, [576, 64], fresh=True)
    written = plan(made, asked, stream=True, orders="late=5")
    pieces = re.search(r"pieces=\{(.*?)\},\n", written, re.S)
    assert pieces is not None
    holes = re.findall(r", (\d+), ", pieces[1])
    assert holes == ["576", "64"]
    assert f"tokens={asked.tokens}," in written
    assert "stream=true" in written
    assert "\\034safety_identifier\\034:\\034late=5 tokens=" in pieces[1]
