from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api import events
from gateway.api.events import EventObserver
from gateway.api.usage import Usage
from gateway.framework import Kind
from tests.support.examples import examples

DATA = Path(__file__).parent.parent / "data" / "api"


def event(data: object, *, named: bool = False) -> str:
    """As vLLM writes one: compact JSON, and its type on a line of its own in the dialects that have types."""
    text = json.dumps(data, separators=(",", ":"))
    name = f"event: {data['type']}\n" if named and isinstance(data, dict) else ""
    return f"{name}data: {text}\n\n"


def chunk_of(delta: dict[str, object], finish: str | None = None) -> str:
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


ROLE = chunk_of({"role": "assistant", "content": ""})
TEXT = chunk_of({"content": "hi"})
EMPTY = chunk_of({"content": ""})
FINISH = chunk_of({}, "stop")
COUNTS = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
USAGE = event({"choices": [], "usage": COUNTS})
DONE = "data: [DONE]\n\n"
KEEP_ALIVE = ": keep-alive\n\n"
ERROR = event(
    {"error": {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}}
)

MESSAGES = [
    event(data, named=True)
    for data in (
        {"type": "message_start", "message": {"usage": {"input_tokens": 3, "cache_read_input_tokens": 4}}},
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "b"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    )
]
RESPONSE_USAGE = {"input_tokens": 7, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}}
RESPONSES = [
    event(data, named=True)
    for data in (
        {"response": {"id": "r", "error": None, "usage": None}, "type": "response.created"},
        {"response": {"id": "r"}, "type": "response.in_progress"},
        {"item": {}, "type": "response.output_item.added"},
        {"delta": "a", "type": "response.output_text.delta"},
        {"delta": "b", "type": "response.output_text.delta"},
        {"text": "ab", "type": "response.output_text.done"},
        {"response": {"id": "r", "usage": RESPONSE_USAGE}, "type": "response.completed"},
    )
]


def observed(chunks: Iterable[bytes | str], kind: Kind = Kind.CHAT) -> EventObserver:
    observer = EventObserver(kind)
    for chunk in chunks:
        observer.feed(chunk.encode() if isinstance(chunk, str) else chunk)
    return observer


def state(observer: EventObserver) -> tuple[object, ...]:
    return (
        observer.committed,
        observer.error,
        observer.first_output,
        observer.outputs,
        observer.usage,
        observer.finished,
        observer.partial,
        observer.late_error,
    )


@pytest.mark.parametrize(
    ("name", "kind", "outputs", "usage"),
    [
        ("chat_stream.sse", Kind.CHAT, 8 + 1, Usage(82, 8, None)),
        ("chat_stream_nousage.sse", Kind.CHAT, 4, None),
        ("chat_stream_token_ids.sse", Kind.CHAT, 6 + 1, Usage(83, 6, None)),
        ("completion_stream.sse", Kind.COMPLETION, 4, None),
    ],
)
def test_real_streams(name: str, kind: Kind, outputs: int, usage: Usage | None) -> None:
    observer = observed([(DATA / name).read_bytes()], kind)
    assert state(observer) == (True, None, True, outputs, usage, True, False, None)


@pytest.mark.parametrize(("name", "apart"), [("chat_stream.sse", 1), ("chat_stream_nousage.sse", 0)])
def test_a_usage_is_told_apart_from_the_output(name: str, apart: int) -> None:
    assert observed([(DATA / name).read_bytes()]).apart == apart
    assert observed([ROLE, USAGE, DONE]).apart == 0, "before any output it is not counted"
    assert observed([TEXT.replace("hi", '\\"choices\\":[]'), DONE]).apart == 0


def test_the_way_of_a_chat() -> None:
    observer = EventObserver(Kind.CHAT)
    seen = []
    for chunk in (KEEP_ALIVE, ROLE, EMPTY, TEXT, KEEP_ALIVE, FINISH, USAGE, DONE):
        observer.feed(chunk.encode())
        seen.append((observer.committed, observer.first_output, observer.outputs, observer.finished))
    assert seen == [
        (False, False, 0, False),
        (True, False, 0, False),
        (True, True, 1, False),
        (True, True, 2, False),
        (True, True, 2, False),
        (True, True, 3, False),
        (True, True, 4, False),
        (True, True, 4, True),
    ]
    assert observer.usage == Usage(7, 3, 4)


@pytest.mark.parametrize(
    "chunk",
    [
        "",
        "d",
        "data: ",
        "data: {",
        ": comment\n",
        ": comment\n\n: another\n\n",
        "\n\n\n",
        "event: message_start\n\n",
        "retry: 5\nid: 7\n\n",
        ROLE[:-1],
        ROLE[:-1].replace("\n", "\r\n") + "\r",
    ],
)
def test_comments_and_parts_of_events_commit_to_nothing(chunk: str) -> None:
    observer = observed([chunk])
    assert (observer.committed, observer.error) == (False, None)


@pytest.mark.parametrize(
    ("kind", "first", "payload"),
    [
        (Kind.CHAT, ERROR, ERROR[6:-2]),
        (Kind.CHAT, 'data: {"error": "text"}\n\n', '{"error": "text"}'),
        (Kind.MESSAGES, 'event: error\ndata: {"type":"error","error":{}}\n\n', '{"type":"error","error":{}}'),
        (Kind.MESSAGES, "event: error\ndata: no json\n\n", "no json"),
        (Kind.RESPONSES, 'data: {"type":"error","code":null}\n\n', '{"type":"error","code":null}'),
    ],
)
def test_an_error_as_the_first_event_is_held_out(kind: Kind, first: str, payload: str) -> None:
    observer = observed([KEEP_ALIVE, first, DONE], kind)
    assert (observer.committed, observer.error, observer.first_output) == (False, payload.encode(), False)
    assert observer.finished


def test_an_error_after_the_commit_is_not_the_first_events() -> None:
    observer = observed([ROLE, TEXT, ERROR, DONE])
    assert (observer.committed, observer.error) == (True, None)
    assert observer.late_error == ERROR[6:-2].encode()
    assert observed([ROLE, ERROR, DONE]).late_error == ERROR[6:-2].encode()
    assert observed([ROLE, TEXT.replace("hi", 'data: {\\"error\\":{}'), DONE]).late_error is None


def test_messages() -> None:
    observer = EventObserver(Kind.MESSAGES)
    seen = []
    for chunk in MESSAGES:
        observer.feed(chunk.encode())
        seen.append((observer.committed, observer.first_output, observer.outputs, observer.finished))
    assert seen == [
        (True, False, 0, False),
        (True, False, 0, False),
        (True, False, 0, False),
        (True, True, 1, False),
        (True, True, 2, False),
        (True, True, 2, False),
        (True, True, 2, False),
        (True, True, 2, True),
    ]
    assert observer.usage == Usage(prompt_tokens=7, output_tokens=2, cached_tokens=4)


def test_responses() -> None:
    observer = observed(RESPONSES[:3], Kind.RESPONSES)
    assert (observer.committed, observer.first_output, observer.finished) == (True, False, False)
    observer = observed(RESPONSES, Kind.RESPONSES)
    assert (observer.outputs, observer.usage, observer.finished) == (2, Usage(7, 2, 4), True)


def test_a_response_that_is_whole_in_its_last_event() -> None:
    long = json.dumps({"response": {"output": ["x" * 40_000], "usage": {"input_tokens": 7, "output_tokens": 2}}})
    last = f'event: response.completed\ndata: {long[:-1]},"type":"response.completed"}}\n\n'
    observer = observed([*RESPONSES[:4], *(last[i : i + 1000] for i in range(0, len(last), 1000))], Kind.RESPONSES)
    assert (observer.usage, observer.finished) == (Usage(7, 2, None), True)


@pytest.mark.parametrize(
    ("choice", "output"),
    [
        ({"delta": {"role": "assistant"}}, False),
        ({"delta": {"role": "assistant", "content": "", "reasoning": None}}, False),
        ({"delta": {"role": "assistant", "content": "hi"}}, True),
        ({"delta": {"content": ""}}, True),
        ({"delta": {}}, False),
        ({"delta": {}, "finish_reason": "length"}, True),
        ({"delta": {"role": "assistant", "tool_calls": [{"index": 0}]}}, True),
        ({"delta": {"reasoning": "hm"}}, True),
        ({"text": ""}, True),
    ],
)
def test_what_counts_as_output(choice: dict[str, object], output: bool) -> None:
    assert observed([f"data: {json.dumps({'choices': [choice]})}\n\n"]).first_output is output


def test_a_text_that_looks_like_events_is_only_text() -> None:
    trap = json.dumps(
        {"choices": [{"delta": {"content": 'data: {"usage": {"prompt_tokens": 1}}\n\ndata: [DONE]\n\n'}}]}
    )
    observer = observed([TEXT, f"data: {trap}\n\n"])
    assert (observer.outputs, observer.usage, observer.finished) == (2, None, False)


def test_data_in_several_lines_is_one_event() -> None:
    observer = observed(['data: {"choices":\ndata: [{"delta":\ndata: {"content":"a"}}]}\n\n'])
    assert (observer.committed, observer.first_output, observer.outputs) == (True, True, 1)


def test_a_byte_order_mark_and_no_space_behind_the_colon() -> None:
    observer = observed(text.replace("data: ", "data:") for text in ("\ufeff" + ROLE, TEXT, TEXT))
    assert (observer.committed, observer.first_output, observer.outputs) == (True, True, 2)


def test_garbage_is_committed_and_survived() -> None:
    observer = observed([b"data: \xff\xfe{{{\n\n", b"data: [1,\n\n"])
    assert (observer.committed, observer.error, observer.usage) == (True, None, None)
    assert observed(["data: " + "[" * 100_000 + "\n\n"]).committed


def test_an_event_without_end_is_not_held_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_EVENT", 10_000)
    observer = observed(["data: " + "x" * 1000] * 9)
    assert not observer.committed
    observer.feed(b"x" * 2000)
    assert observer.committed


def test_continuous_usage_is_the_last_told() -> None:
    told = [
        f'data: {{"choices":[{{"delta":{{"content":"a"}}}}],"usage":{{"prompt_tokens":7,"completion_tokens":{n}}}}}\n\n'
        for n in range(1, 400)
    ]
    assert observed(told).usage == Usage(7, 399, None)
    assert observed([*told, told[0][:60]]).usage == Usage(7, 399, None)


def test_a_broken_stream_ends_inside_an_event() -> None:
    assert observed([ROLE, TEXT[:20]]).partial
    assert observed([ROLE, TEXT[:-1]]).partial
    assert not observed([ROLE, TEXT]).partial
    assert not observed([]).partial


CHAT_EVENTS = st.sampled_from([KEEP_ALIVE, ROLE, TEXT, EMPTY, FINISH, USAGE, DONE, ERROR, "\n", "data: \u00e9\n\n"])


@st.composite
def streams(draw: st.DrawFn) -> tuple[Kind, bytes]:
    kind = draw(st.sampled_from([Kind.CHAT, Kind.MESSAGES, Kind.RESPONSES]))
    pool = {
        Kind.CHAT: CHAT_EVENTS,
        Kind.MESSAGES: st.sampled_from(MESSAGES),
        Kind.RESPONSES: st.sampled_from(RESPONSES),
    }
    stream = "".join(draw(st.lists(pool[kind] | st.just(KEEP_ALIVE), max_size=12)))
    if draw(st.booleans()):
        stream = stream.replace("\n", "\r\n")
    raw = stream.encode()
    return kind, raw[: draw(st.integers(0, len(raw)))] if draw(st.booleans()) else raw


@examples(300)
@given(streams(), st.data())
def test_any_cut_gives_the_same_as_the_whole(stream: tuple[Kind, bytes], data: st.DataObject) -> None:
    kind, raw = stream
    cuts = sorted({0, len(raw), *data.draw(st.lists(st.integers(0, len(raw)), max_size=20))})
    whole = observed([raw], kind)
    parts = observed([raw[a:b] for a, b in itertools.pairwise(cuts)], kind)
    bytewise = observed([raw[i : i + 1] for i in range(len(raw))], kind)
    assert state(parts) == state(whole) == state(bytewise)


@given(st.lists(st.tuples(CHAT_EVENTS, st.integers(1, 40)), max_size=20))
def test_asking_in_between_changes_nothing(steps: list[tuple[str, int]]) -> None:
    asked, quiet = EventObserver(Kind.CHAT), EventObserver(Kind.CHAT)
    for event, times in steps:
        for _ in range(times):
            asked.feed(event.encode())
            quiet.feed(event.encode())
            state(asked)
    assert state(asked) == state(quiet)


@pytest.mark.parametrize(
    ("kind", "announced", "error"),
    [
        (Kind.CHAT, b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n', b'data: {"error":{}}\n\n'),
        (Kind.RESPONSES, b'event: response.created\ndata: {"type":"response.created"}\n\n', b'data: {"error":{}}\n\n'),
        (
            Kind.MESSAGES,
            b'event: message_start\ndata: {"type":"message_start","message":{}}\n\n',
            b'event: error\ndata: {"type":"error","error":{}}\n\n',
        ),
    ],
)
def test_an_error_before_any_output_is_none(kind, announced, error):
    events = EventObserver(kind)
    events.feed(announced + error)
    assert (events.committed, events.error, events.first_output, events.outputs) == (True, None, False, 0)
    assert events.early_error is not None
    late = EventObserver(kind)
    late.feed(announced)
    assert late.early_error is None
