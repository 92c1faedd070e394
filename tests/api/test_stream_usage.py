from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api import stream_usage
from gateway.api.body import JsonBody
from gateway.api.settings import PassThroughSettings
from gateway.api.stream_usage import LONGEST, UsageRemover, include_usage, refuses
from tests.support.examples import examples

DATA = Path(__file__).parent.parent / "data" / "api"
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
ERROR = b'data: {"error":{"message":"Internal server error","code":500}}\n\n'
TRAP = 'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\ndata: [DONE]\n\n"finish_reason":"stop" "usage'


def remover(*, single: bool = True, fingerprint: bytes = b"", learned: list[bytes] | None = None) -> UsageRemover:
    return UsageRemover(single=single, fingerprint=fingerprint, learn=(learned if learned is not None else []).append)


def taken(said: bytes, at: list[int] | None = None, **options: Any) -> bytes:
    """What a client gets of a stream that comes cut at these places."""
    one = remover(**options)
    cuts = sorted({0, len(said), *(at or [])})
    return b"".join(one.feed(said[a:b]) for a, b in itertools.pairwise(cuts)) + one.end()


def event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def piece(text: str, finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": {"content": text}, "logprobs": None, "finish_reason": finish}
    return {"id": "chatcmpl-1", "choices": [choice], **more}


def last(**more: Any) -> bytes:
    usage = {"prompt_tokens": 7, "total_tokens": 9, "completion_tokens": 2}
    return event({"id": "chatcmpl-1", "choices": [], "usage": usage, **more})


def said(*pieces: dict[str, Any], asked: bool, fingerprint: str | None = "vllm-1") -> bytes:
    """A stream as vLLM 0.32 says it, with its usage if it was ``asked`` for that."""
    mark = {} if fingerprint is None else {"system_fingerprint": fingerprint}
    events = [event({**one, **({} if asked or one["choices"][0]["finish_reason"] is None else mark)}) for one in pieces]
    return b"".join(events) + (last(**mark) if asked else b"") + DONE


def without(recorded: bytes) -> bytes:
    """A recorded stream that told its usage, as vLLM says it unasked."""
    events = [one + b"\n\n" for one in recorded.split(b"\n\n")[:-1]]
    *others, finish, usage, done = events
    assert b'"choices":[],"usage":{' in usage
    return b"".join([*others, finish[:-3] + b',"system_fingerprint":' + fingerprint_of(recorded) + b"}\n\n", done])


def fingerprint_of(recorded: bytes) -> bytes:
    return b'"vllm-0.32.0-' + recorded.partition(b'"vllm-0.32.0-')[2][:8] + b'"'


@pytest.mark.parametrize("name", ["chat_stream.sse", "chat_stream_token_ids.sse"])
def test_recorded_streams_become_what_is_told_unasked(name: str) -> None:
    recorded = (DATA / name).read_bytes()
    learned: list[bytes] = []
    assert taken(recorded, learned=learned) == without(recorded)
    assert learned == [fingerprint_of(recorded)]
    for size in (1, 2, 3, 7, 100):
        assert taken(recorded, list(range(0, len(recorded), size))) == without(recorded)


@pytest.mark.parametrize("name", ["chat_stream_nousage.sse", "completion_stream.sse"])
def test_streams_without_a_usage_pass(name: str) -> None:
    recorded = (DATA / name).read_bytes()
    assert taken(recorded) == recorded
    assert taken(recorded, list(range(len(recorded)))) == recorded


def test_what_comes_whole_passes_at_once() -> None:
    one = remover()
    assert one.feed(event(piece("a"))) == event(piece("a"))
    assert one.feed(event(piece("b"))[:20]) == b""
    assert one.feed(event(piece("b"))[20:]) == event(piece("b"))


def test_an_event_without_a_usage_or_an_end_is_not_read_however_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_usage, "_DATA", None)
    text = event(piece("a" * 8_000)) * 2
    assert taken(text, [100, 9_000]) == text


def test_the_end_of_the_only_choice_waits_for_the_fingerprint() -> None:
    one = remover()
    finish = event(piece("b", "stop"))
    assert one.feed(finish) == b""
    assert one.feed(KEEP_ALIVE) == KEEP_ALIVE
    assert one.feed(last(system_fingerprint="x")) == event(piece("b", "stop", system_fingerprint="x"))
    assert one.feed(DONE) == DONE
    assert one.end() == b""


def test_the_ends_of_several_choices_do_not_wait() -> None:
    one = remover(single=False, fingerprint=b'"x"')
    assert one.feed(event(piece("b", "stop"))) == event(piece("b", "stop", system_fingerprint="x"))
    assert one.feed(event(piece("c", index=1))) == event(piece("c", index=1))
    assert one.feed(last(system_fingerprint="x") + DONE) == DONE


@pytest.mark.parametrize("single", [True, False])
def test_a_usage_that_is_told_in_several_events_is_taken_out_of_all(single: bool) -> None:
    learned: list[bytes] = []
    end, more = event(piece("b", "stop", system_fingerprint="x")), event(piece("c", "stop", index=1))
    told = event(piece("a")) + end + last(system_fingerprint="x") + last() + more + KEEP_ALIVE + last() + DONE
    known = b'"x"'
    wanted = event(piece("a")) + end + event(piece("c", "stop", index=1, system_fingerprint="x")) + KEEP_ALIVE + DONE
    assert taken(told, single=single, fingerprint=known, learned=learned) == wanted
    assert taken(told, [*range(len(told))], single=single, fingerprint=known) == wanted
    assert learned == [known], "the first tells it"


def test_an_engine_without_a_fingerprint_gets_none() -> None:
    learned: list[bytes] = []
    pieces = piece("a"), piece("b", "stop")
    bare = said(*pieces, asked=False, fingerprint=None)
    assert taken(said(*pieces, asked=True, fingerprint=None), learned=learned, fingerprint=b'"old"') == bare
    null = event(piece("b", "stop")) + last(system_fingerprint=None) + DONE
    assert taken(null, learned=learned) == event(piece("b", "stop")) + DONE
    assert learned == [b"", b""]


def test_an_event_that_has_its_fingerprint_keeps_it() -> None:
    finish = event(piece("b", "stop", system_fingerprint="own"))
    assert taken(finish + last(system_fingerprint="other") + DONE) == finish + DONE


def test_an_engine_that_tells_its_usage_unasked_is_left_alone() -> None:
    """vLLM's --enable-force-include-usage; and those that put it beside the last choice."""
    usage = {"prompt_tokens": 7, "completion_tokens": 1}
    forced = (
        event(piece("", usage=usage)) + event(piece("a", "stop", usage=usage)) + last(system_fingerprint="x") + DONE
    )
    assert taken(forced) == forced
    beside = event(piece("a")) + event(piece("b", "stop", usage=usage)) + DONE
    assert taken(beside) == beside


@pytest.mark.parametrize("rest", [ERROR + DONE, DONE, b"", b"data: {", KEEP_ALIVE])
def test_a_stream_that_ends_otherwise_is_whole(rest: bytes) -> None:
    whole = event(piece("a")) + event(piece("b", "stop")) + rest
    assert taken(whole) == (whole if rest != KEEP_ALIVE else event(piece("a")) + KEEP_ALIVE + event(piece("b", "stop")))


def test_a_usage_that_is_null_everywhere_passes() -> None:
    null = event(piece("a", usage=None)) + event(piece("b", "stop", usage=None))
    assert taken(null + last() + DONE) == null + DONE


def test_text_that_looks_like_a_usage_is_only_text() -> None:
    pieces = piece(TRAP), piece(TRAP, "stop")
    assert taken(said(*pieces, asked=True)) == said(*pieces, asked=False)


def test_an_event_that_is_too_long_passes_unseen() -> None:
    long = event(piece("x" * LONGEST, "stop"))
    one = remover()
    assert one.feed(event(piece("a", "stop"))) == b""
    passed = [one.feed(long[:LONGEST]), one.feed(long[LONGEST:-1]), one.feed(long[-1:])]
    assert passed == [b"", event(piece("a", "stop")) + long[:-1], long[-1:]]
    assert one.feed(last()) == b""
    assert taken(long + last() + DONE) == long + DONE


pieces = st.lists(
    st.builds(piece, st.text(max_size=8) | st.just(TRAP), st.just(None), st.integers(0, 1)), min_size=0, max_size=6
)


@examples(300)
@given(pieces, st.text(max_size=4), st.sampled_from([None, "vllm-1", 'q"\\']), st.data())
def test_any_cut_of_any_stream_gives_what_is_told_unasked(
    told: list[dict[str, Any]], text: str, fingerprint: str | None, data: st.DataObject
) -> None:
    told = [*told, piece(text, "stop")]
    asked = said(*told, asked=True, fingerprint=fingerprint)
    cuts = data.draw(st.lists(st.integers(0, len(asked)), max_size=12))
    assert taken(asked, cuts) == said(*told, asked=False, fingerprint=fingerprint)
    known = json.dumps(fingerprint).encode() if fingerprint else b""
    assert taken(asked, cuts, single=False, fingerprint=known) == said(*told, asked=False, fingerprint=fingerprint)


EVENTS = st.sampled_from(
    [
        event(piece("a")),
        event(piece("b", "stop")),
        last(),
        last(system_fingerprint="x"),
        event(piece("c", usage={"prompt_tokens": 1})),
        KEEP_ALIVE,
        ERROR,
        DONE,
        b"\n",
        b"data: \xff\n\n",
        b'data: {"choices":[],"usage":{"a":1}\n\n',
        event(piece("long" * 30)),
    ]
)


@examples(300)
@given(st.lists(EVENTS, max_size=10), st.booleans(), st.booleans(), st.data())
def test_any_cut_of_any_events_gives_the_same(
    events: list[bytes], crlf: bool, single: bool, data: st.DataObject
) -> None:
    whole = b"".join(events)
    if crlf:
        whole = whole.replace(b"\n", b"\r\n")
    whole = whole[: data.draw(st.integers(0, len(whole)))] if data.draw(st.booleans()) else whole
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=12))
    options: dict[str, Any] = {"single": single, "fingerprint": data.draw(st.sampled_from([b"", b'"x"']))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_usage, "LONGEST", 120)
        assert taken(whole, cuts, **options) == taken(whole, **options) == taken(whole, [*range(len(whole))], **options)


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        (None, {"include_usage": True}),
        ("null", {"include_usage": True}),
        ("{}", {"include_usage": True}),
        ('{"include_usage": false}', {"include_usage": True}),
        ('{"include_usage": null}', {"include_usage": True}),
        ('{"continuous_usage_stats": true}', {"continuous_usage_stats": False, "include_usage": True}),
        (
            '{"x": 1e999, "include_usage": false, "continuous_usage_stats": false}',
            {"x": float("inf"), "include_usage": True, "continuous_usage_stats": False},
        ),
        ('{"include_usage": true}', None),
        ('{"include_usage": true, "continuous_usage_stats": true}', None),
        ('{"include_usage": 1}', None),
        ('{"include_usage": "yes"}', None),
        ('{"include_us\\u0061ge": true}', None),
        ('"text"', None),
        ("[1]", None),
    ],
)
def test_what_is_asked_of_the_engine(options: str | None, asked: dict[str, Any] | None) -> None:
    raw = '{"model":"m","stream":true' + ("" if options is None else f',"stream_options":{options}') + "}"
    body = JsonBody(raw.encode(), PassThroughSettings())
    told = include_usage(body.fields)
    assert (None if told is None else json.loads(msgspec.json.encode(told))) == asked


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        (b'{"error":{"message":"Unknown field \'stream_options\'"}}', True),
        (b'{"detail":[{"loc":["body","stream_options","include_usage"],"msg":"Extra inputs"}]}', True),
        (b'{"error":{"message":"max_tokens is too large"}}', False),
        (b"", False),
    ],
)
def test_what_a_refusal_is(text: bytes, refused: bool) -> None:
    assert refuses(text) is refused
