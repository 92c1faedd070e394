from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.usage import Usage, read_usage
from gateway.framework import Kind

DATA = Path(__file__).parent.parent / "data" / "api"


def test_real_answers() -> None:
    assert read_usage((DATA / "chat.json").read_bytes(), Kind.CHAT) == Usage(82, 48, None)
    assert read_usage((DATA / "completion.json").read_bytes(), Kind.COMPLETION) == Usage(4, 8, None)


@pytest.mark.parametrize(
    ("kind", "usage", "expected"),
    [
        (
            Kind.CHAT,
            {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}},
            Usage(9, 2, 8),
        ),
        (Kind.CHAT, {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}}, Usage(9, None, 0)),
        (Kind.EMBEDDING, {"prompt_tokens": 9, "total_tokens": 9}, Usage(9, None, None)),
        (
            Kind.RESPONSES,
            {"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}},
            Usage(9, 2, 4),
        ),
        (
            Kind.MESSAGES,
            {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 2},
            Usage(9, 2, 4),
        ),
        (Kind.MESSAGES, {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": None}, Usage(3, 2, None)),
        (Kind.CHAT, {"prompt_tokens": "9", "completion_tokens": -2, "prompt_tokens_details": 5}, None),
        (Kind.CHAT, {"prompt_tokens": True}, None),
        (Kind.CHAT, {"prompt_tokens": 9, "completion_tokens": 10**30}, Usage(9, None, None)),
        (Kind.CHAT, None, None),
        (Kind.CHAT, [], None),
        (Kind.CHAT, {}, None),
    ],
)
def test_each_dialects_names(kind: Kind, usage: object, expected: Usage | None) -> None:
    assert read_usage(json.dumps({"usage": usage, "id": "x"}).encode(), kind) == expected


@given(st.binary(max_size=60), st.sampled_from(list(Kind)))
def test_garbage_has_no_usage(body: bytes, kind: Kind) -> None:
    assert read_usage(body, kind) is None
    assert read_usage(b'{"usage":' + body, kind) is None
    assert read_usage(b"[" * 100_000, kind) is None


def test_what_a_later_report_adds() -> None:
    assert Usage(5, None, 4).merged(Usage(None, 7, None)) == Usage(5, 7, 4)
    assert Usage(5, 1, 4).merged(Usage(6, 7, 0)) == Usage(6, 7, 0)
