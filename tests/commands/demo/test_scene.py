"""Covers: gateway/commands/demo/scene.py."""

from __future__ import annotations

import itertools
import random

from gateway.commands.demo.scene import Scene, conversations, prose
from simulator.tokenizer import FileWords


def test_the_same_scene_is_the_same_traffic() -> None:
    assert conversations(Scene()) == conversations(Scene())
    assert conversations(Scene()) != conversations(Scene(seed=2))


def test_users_share_system_prompts_and_ask_their_own_questions() -> None:
    scene = Scene()
    all_chats = conversations(scene)
    assert sum(len(chat.questions) for chat in all_chats) == scene.requests == 144
    by_prompt: dict[str, int] = {}
    for chat in all_chats:
        [system] = chat.messages
        by_prompt[system["content"]] = by_prompt.get(system["content"], 0) + 1
    assert list(by_prompt.values()) == [scene.users] * scene.groups
    questions = [question for chat in all_chats for question in chat.questions]
    assert len(set(questions)) == len(questions)


def test_a_prompts_users_do_not_come_one_after_the_other() -> None:
    prompts = [chat.messages[0]["content"] for chat in conversations(Scene())]
    assert sum(one == next_ for one, next_ in itertools.pairwise(prompts)) < len(prompts) / 4


def test_prompts_differ_from_their_first_tokens_on(tokenizer) -> None:
    words = FileWords(tokenizer)
    starts = {tuple(words.encode(chat.messages[0]["content"], False)[:16]) for chat in conversations(Scene())}
    assert len(starts) == Scene().groups


def test_what_the_demo_says_of_its_caches_is_true(tokenizer) -> None:
    """All prompts are more than one engine's cache holds; four hold them with room for the chats."""
    scene, words = Scene(), FileWords(tokenizer)
    prompts = {chat.messages[0]["content"] for chat in conversations(scene)}
    tokens = sum(len(words.encode(prompt, False)) for prompt in prompts)
    assert 1.5 * scene.cache_tokens < tokens < 0.75 * scene.engines * scene.cache_tokens


def test_prose_has_the_words_that_were_asked_for() -> None:
    for words in (0, 1, 5, 200):
        assert len(prose(random.Random(0), words).split()) == words
