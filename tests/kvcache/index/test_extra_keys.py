from __future__ import annotations

import pytest

from gateway.core.prompt import MediaItem
from gateway.kvcache.index.extra_keys import parse_extra_keys
from tests.kvcache.conftest import ids, stored

A, B = "hash-a", "hash-b"


@pytest.mark.parametrize(
    ("others", "told"),
    [
        ({}, (3, None, ())),
        ({"extra_keys": [None, None, None]}, (3, None, ())),
        ({"extra_keys": [["salt"], None, None]}, (3, "salt", ())),
        ({"extra_keys": [["salt"], None, None], "parent": 7}, (0, None, ())),
        ({"extra_keys": [["a", "salt"], ["a"], ["a"]], "lora_name": "a"}, (3, "salt", ())),
        ({"lora_id": 3}, (0, None, ())),
        ({"lora_id": 3, "lora_name": "a"}, (3, None, ())),
    ],
)
def test_how_far_a_run_is_told(others, told):
    assert parse_extra_keys(stored([1, 2, 3], ids(1, 2, 3), **others)) == told


@pytest.mark.parametrize(
    ("others", "media"),
    [
        ({"extra_keys": [None, [[A, 3]], [[A, -13]]]}, [(19, A)]),
        ({"extra_keys": [[(A, 3)], None, [[B, 0]]]}, [(3, A), (32, B)]),
        ({"extra_keys": [[[A, 3], [B, 9]], [[B, -7]], None]}, [(3, A), (9, B)]),
        ({"extra_keys": [[[A, 3]], [[A, -13], [B, 0]], [[B, -16]]]}, [(3, A), (16, B)]),
        ({"extra_keys": [[[A, -3]], [[A, -19]], [[A, -35], [B, 1]]], "parent": 7}, [(33, B)]),
        ({"extra_keys": [None, [[A, 3], [A, 8]], None]}, [(19, A), (24, A)]),
        ({"extra_keys": [["l", [A, 3]], ["l"], ["l", [B, 3]]], "lora_name": "l"}, [(3, A), (35, B)]),
        ({"extra_keys": [["l", ["l:" + A, 3]], ["l"], ["l"]], "lora_name": "l"}, [(3, A)]),
    ],
)
def test_media_are_told_where_they_begin(others, media):
    assert parse_extra_keys(stored([1, 2, 3], ids(1, 2, 3), **others)) == (
        3,
        None,
        tuple(MediaItem(*one) for one in media),
    )


def test_a_salt_stands_behind_the_media():
    event = stored([1], ids(1), extra_keys=[[[A, 3], "salt"]])
    assert parse_extra_keys(event) == (1, "salt", (MediaItem(3, A),))


@pytest.mark.parametrize(
    "extra",
    [
        [None, [A], None],  # before media had a place
        [None, [[A]], None],
        [None, [[A, 16]], None],  # not in the block
        [None, [[3, A]], None],
        [None, [["", 3]], None],
        [None, [[A, "3"]], None],
        [None, [b"digest of embeddings"], None],
        [None, [[A, 3], b"digest of embeddings"], None],
        [None, [[A, -3]], None],  # where it began, nothing was said of it
        [None, [[A, -17]], None],  # it began ahead of the prompt
        [None, [[A, 3], [B, 3]], None],
        [None, [[A, 3], [B, 2]], None],
        [None, [[A, 3], [B, -2]], None],
        [None, [[A, 3], "salt"], None],
    ],
)
def test_what_is_not_understood_ends_the_trust(extra):
    assert parse_extra_keys(stored([1, 2, 3], ids(1, 2, 3), extra_keys=extra)) == (1, None, ())


def test_two_media_at_once_are_not_understood():
    """vLLM names the second of two that are one in the other only behind the end of the first."""
    extra = [[[A, 3]], [[B, -10]], None]
    assert parse_extra_keys(stored([1, 2, 3], ids(1, 2, 3), extra_keys=extra)) == (1, None, (MediaItem(3, A),))
    extra = [[[A, -9]], [[B, -20]], None]
    assert parse_extra_keys(stored([1, 2, 3], ids(1, 2, 3), parent=7, extra_keys=extra)).blocks == 1
