from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.body import MAX_KEYS, JsonBody
from gateway.api.bounds import MAX_CONTAINERS
from gateway.api.settings import PassThroughSettings
from gateway.errors import BodyTooLarge, ClientError

SETTINGS = PassThroughSettings()


def body(raw: bytes) -> JsonBody:
    return JsonBody(raw, SETTINGS)


def test_a_body_that_needs_no_change_is_the_clients_own_bytes() -> None:
    raw = b'{ "model" : "m", "x": 1.0e0,\n"big": 123456789012345678901234567890, "x2": "\\u00e9" }'
    assert body(raw).encode("m") is raw


def test_a_byte_order_mark_and_utf_16_do_not_go_on() -> None:
    for encoding in ("utf-8-sig", "utf-16"):
        parsed = body('{"model":"m","x":"\u00e9"}'.encode(encoding))
        assert parsed.encode("m") == '{"model":"m","x":"\u00e9"}'.encode()
        assert json.loads(parsed.encode("n")) == {"model": "n", "x": "\u00e9"}


def test_another_model_changes_that_value_and_no_other() -> None:
    raw = b'{"a": [1, 2.50, "\\u00e9"],"model":"m","n":1E5,"huge":123456789012345678901234567890}'
    out = body(raw).encode("served/name")
    assert out == b'{"a":[1, 2.50, "\\u00e9"],"model":"served/name","n":1E5,"huge":123456789012345678901234567890}'


def test_a_missing_model_is_put_in() -> None:
    assert json.loads(body(b"{}").encode("m")) == {"model": "m"}


def test_an_escaped_spelling_of_the_model_is_written_plainly() -> None:
    assert body(b'{"\\u006dodel":"\\u006d"}').encode("m") == b'{"model":"m"}'


def test_stripped_fields_are_gone_even_where_the_model_stays() -> None:
    assert body(b'{"model":"m","kv_transfer_params":{"do_remote_prefill":true}}').encode("m") == b'{"model":"m"}'


def test_edits_of_a_copy_leave_the_original() -> None:
    first = body(b'{"model":"m","min_tokens":3,"stream":true}')
    second = first.copy()
    second.set("stream", False)
    second.set("kv_transfer_params", {"do_remote_decode": True})
    second.drop("min_tokens")
    second.drop("absent")
    assert first.encode("m") == b'{"model":"m","min_tokens":3,"stream":true}'
    assert json.loads(second.encode("m")) == {
        "model": "m",
        "stream": False,
        "kv_transfer_params": {"do_remote_decode": True},
    }


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"model":"m","messages":', "not valid JSON"),
        (b'{"model":"m"}x', "not valid JSON"),
        (b'{"a":NaN}', "not valid JSON"),
        (b"[1]", "must be a JSON object"),
        (b'"x"', "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'{"a":"\xff"}', "not UTF-8"),
        (b'{"\xff":1}', "not UTF-8"),
        (b'{"a":' + b"[" * 19_000 + b"]" * 19_000 + b"}", "nested too deeply"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, "nested too deeply"),
        (b'{"sampling_params":' * 900 + b"1" + b"}" * 900, "nested too deeply"),
    ],
)
def test_what_is_no_json_object_is_refused_with_a_reason(raw: bytes, says: str) -> None:
    with pytest.raises(ClientError, match=says) as caught:
        body(raw)
    assert caught.value.status == 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=10,
)


@given(
    st.dictionaries(st.text(max_size=6), JSON, max_size=6),
    st.text(min_size=1, max_size=12),
    st.booleans(),
    st.sampled_from([None, 1]),
)
def test_splicing_means_the_same_and_touches_no_other_value(
    fields: dict[str, object], model: str, ascii_only: bool, indent: int | None
) -> None:
    raw = json.dumps(fields, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    if any("\ud800" <= char <= "\udfff" for char in json.dumps(fields, ensure_ascii=False)):
        return  # a lone surrogate is not JSON text that an engine could read
    expected = {name: value for name, value in fields.items() if name not in ("kv_transfer_params", "vllm_xargs")}
    parsed = body(raw)
    out = parsed.encode(model)
    assert json.loads(out) == {**expected, "model": model}
    for name, value in parsed.fields.items():
        assert name == "model" or bytes(value) in out
        assert bytes(value) in raw


@pytest.mark.parametrize("rest", ["", ', "b": "some more text"'])
@pytest.mark.parametrize(
    ("text", "half"),
    [
        (r"\ud800", r"\ud800"),
        (r"x\uD83Dx", r"\uD83D"),
        (r"\ude00", r"\ude00"),
        (r"\ud83d\n", r"\ud83d"),
        (r"\ud83d\u0041", r"\ud83d"),
        (r"\ud83d\ud83d\ude00", r"\ud83d"),
        (r"\ud83d\ude00\ude00", r"\ude00"),
    ],
)
def test_half_a_character_is_called_by_its_name(text: str, half: str, rest: str) -> None:
    raw = f'{{"model":"{text}"{rest}}}'.encode()
    with pytest.raises(ClientError) as caught:
        body(raw)
    at = raw.rindex(half.encode()) if half == r"\ude00" else raw.index(half.encode())
    assert caught.value.message == (
        f"the body is not Unicode text: the escape {half} at byte {at} is half of a surrogate pair, alone"
    )


@pytest.mark.parametrize("text", [r'"\ud83d\ude00"', r'"\\ud800"', r'"\\ud83d\\ude00"', r'"\ud83d', r'"\ud83d\ude'])
def test_a_body_that_is_cut_off_is_called_that(text: str) -> None:
    with pytest.raises(ClientError, match="not valid JSON: Input data was truncated"):
        body(b'{"model":' + text.encode())


def test_more_fields_than_any_request_has_are_refused() -> None:
    def of(count: int) -> bytes:
        return json.dumps({"model": "m"} | {str(number): 1 for number in range(count - 1)}).encode()

    assert len(body(of(MAX_KEYS)).fields) == MAX_KEYS
    with pytest.raises(ClientError, match="fields") as caught:
        body(of(MAX_KEYS + 1))
    assert caught.value.status == 400


def test_what_is_out_of_bounds_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(BodyTooLarge):
        body(b'{"model": "m", "messages": [' + b"[1]," * MAX_CONTAINERS + b"no JSON")


def test_raw_json_is_set_as_it_came() -> None:
    parameters = b'{ "remote_port": 5600.0,\n "big": 123456789012345678901234567890, "x": "\\u00e9" }'
    leg = body(b'{"model":"m","stream":true}').copy()
    leg.set("kv_transfer_params", msgspec.Raw(parameters))
    assert leg.encode("m") == b'{"model":"m","stream":true,"kv_transfer_params":' + parameters + b"}"
    assert bytes(leg.fields["kv_transfer_params"]) == parameters


def test_raw_json_is_kept_when_what_it_was_cut_from_is_gone() -> None:
    answer = bytearray(b'{"kv_transfer_params":{"remote_host":"10.0.0.1"}}')
    inner = msgspec.json.decode(answer, type=dict[str, msgspec.Raw])["kv_transfer_params"]
    leg = body(b'{"model":"m"}').copy()
    leg.set("kv_transfer_params", inner)
    answer[:] = b" " * len(answer)
    assert leg.encode("m") == b'{"model":"m","kv_transfer_params":{"remote_host":"10.0.0.1"}}'


def test_a_field_of_that_name_is_replaced_in_its_place() -> None:
    leg = body(b'{"model":"m","max_tokens":100,"prompt":"x"}').copy()
    leg.set("max_tokens", 1)
    assert leg.encode("m") == b'{"model":"m","max_tokens":1,"prompt":"x"}'
