from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.field_filter import ask_report, asks_report, sensitive, strip, strip_form_value
from gateway.api.parse import parse
from gateway.api.routes import ROUTES
from gateway.api.settings import NEVER, PassThroughSettings

NOTHING = PassThroughSettings()


def stripped(body: str, settings: PassThroughSettings = NOTHING) -> tuple[dict[str, object], bool]:
    fields = msgspec.json.decode(body.encode(), type=dict[str, msgspec.Raw])
    changed = strip(fields, settings)
    return json.loads(msgspec.json.encode(fields)), changed


@pytest.mark.parametrize(
    ("extras", "asks"),
    [
        ('{"kv_cache_report_mode": "full"}', True),
        ('{"kv_cache_report_mode": "new"}', False),
        ('{"kv_cache_report_mode": ["full"]}', False),
        ("{}", False),
        ("null", False),
        ("3", False),
    ],
)
def test_a_report_of_what_is_cached_may_be_asked_for(extras: str, asks: bool) -> None:
    assert asks_report({"vllm_xargs": msgspec.Raw(extras.encode())}) is asks
    assert not asks_report({})


@pytest.mark.parametrize("name", sorted(NEVER))
def test_transfer_parameters_are_removed(name: str) -> None:
    assert stripped(f'{{"model":"m","{name}":{{"do_remote_prefill":true}}}}') == ({"model": "m"}, True)


def test_an_escaped_key_is_the_same_key() -> None:
    assert stripped('{"\\u006bv_transfer_params":{"do_remote_prefill":true},"a":1}') == ({"a": 1}, True)


def test_every_copy_of_a_duplicate_key_is_removed() -> None:
    assert stripped('{"kv_transfer_params":1,"a":1,"kv_transfer_params":{}}') == ({"a": 1}, True)


def test_a_dangerous_first_copy_behind_a_harmless_second_is_written_away() -> None:
    body, changed = stripped('{"vllm_xargs":{"kv_transfer_params":"x"},"vllm_xargs":null}')
    assert (body, changed) == ({"vllm_xargs": None}, True)


def test_only_listed_xargs_pass() -> None:
    body = '{"vllm_xargs":{"mode":"full","kv_transfer_params":"x","session_id":"s"}}'
    assert stripped(body) == ({}, True)
    assert stripped(body, PassThroughSettings(vllm_xargs=("mode",))) == ({"vllm_xargs": {"mode": "full"}}, True)


@pytest.mark.parametrize("value", ["[]", '"x"', "5", "true", '[{"kv_transfer_params":1}]'])
def test_xargs_that_are_no_object_are_removed(value: str) -> None:
    assert stripped(f'{{"vllm_xargs":{value}}}', PassThroughSettings(vllm_xargs=("mode",))) == ({}, True)


def test_nests_of_sampling_parameters_are_searched() -> None:
    body = (
        '{"sampling_params":{"n":1,"ec_transfer_params":{},"extra_args":{"kv_transfer_params":{},"mode":1}},'
        '"extra_args":{"kv_transfer_params":{}}}'
    )
    assert stripped(body) == ({"sampling_params": {"n": 1}}, True)
    kept = {"sampling_params": {"n": 1, "extra_args": {"mode": 1}}}
    assert stripped(body, PassThroughSettings(vllm_xargs=("mode",))) == (kept, True)


DISGUISES = {
    "plain": '{"model":"m","NAME":VALUE,"prompt":"p"}',
    "twice": '{"NAME":1,"model":"m","prompt":"p","NAME":VALUE}',
    "harmless second copy": '{"NAME":VALUE,"model":"m","prompt":"p","NAME":null}',
    "escaped": '{"model":"m","ESCAPED":VALUE,"prompt":"p"}',
    "escaped and plain": '{"model":"m","ESCAPED":VALUE,"NAME":null,"prompt":"p"}',
    "in xargs": '{"model":"m","vllm_xargs":{"NAME":VALUE,"mode":1},"prompt":"p"}',
    "escaped in xargs": '{"model":"m","vllm_xargs":{"ESCAPED":VALUE,"mode":1},"prompt":"p"}',
    "in escaped xargs": '{"model":"m","vllm\\u005fxargs":{"NAME":VALUE},"prompt":"p"}',
    "in the first of two xargs": '{"model":"m","vllm_xargs":{"NAME":VALUE},"vllm_xargs":{"mode":1},"prompt":"p"}',
    "in extra_args": '{"model":"m","extra_args":{"NAME":VALUE},"prompt":"p"}',
    "in sampling_params": '{"model":"m","sampling_params":{"NAME":VALUE,"n":1},"prompt":"p"}',
    "in extra_args of sampling_params": '{"model":"m","sampling_params":{"extra_args":{"NAME":VALUE}},"prompt":"p"}',
    "escaped there": '{"model":"m","sampling\\u005fparams":{"extra_args":{"ESCAPED":VALUE}},"prompt":"p"}',
    "twice there": '{"model":"m","sampling_params":{"extra_args":{"NAME":1,"NAME":VALUE},"n":1},"prompt":"p"}',
    "in sampling_params of sampling_params": '{"model":"m","sampling_params":{"sampling_params":{"NAME":VALUE}},'
    '"prompt":"p"}',
}


@pytest.mark.parametrize("disguise", DISGUISES.values(), ids=DISGUISES)
@pytest.mark.parametrize("xargs", [(), ("mode",), ("mode", "do_remote_prefill")])
def test_no_disguise_passes(disguise: str, xargs: tuple[str, ...]) -> None:
    for name in sorted(NEVER):
        escaped = f"\\u{ord(name[0]):04x}" + name[1:-1] + f"\\u{ord(name[-1]):04X}"
        value = '{"do_remote_prefill":true}'
        raw = disguise.replace("NAME", name).replace("ESCAPED", escaped).replace("VALUE", value).encode()
        body = parse(ROUTES["/v1/completions"], raw, "application/json", PassThroughSettings(vllm_xargs=xargs)).body
        for model in ("m", "served"):  # with the client's own name the very bytes might go on
            sent = body.encode(model)
            assert b"do_remote_prefill" not in sent, name
            assert name.encode() not in sent
            assert escaped.encode() not in sent
            assert json.loads(sent)["prompt"] == "p"


@pytest.mark.parametrize("name", sorted(NEVER))
def test_no_disguise_passes_in_a_form(name: str) -> None:
    fields = {
        name: b"1",
        f"{name}[a]": b"1",
        f"vllm_xargs[{name}]": b"1",
        "vllm_xargs": f'{{"{name}":1}}'.encode(),
        "language": b"en",
    }
    parts = b"".join(
        f'--b\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n'.encode() + value + b"\r\n"
        for field, value in {"model": b"m", "file": b"RIFF", **fields}.items()
    )
    route = ROUTES["/v1/audio/transcriptions"]
    sent = parse(route, parts + b"--b--\r\n", "multipart/form-data; boundary=b", NOTHING).body.encode("m")
    assert name.encode() not in sent
    assert b"language" in sent


def test_a_body_without_them_is_left_alone() -> None:
    assert stripped('{"model":"m","kv":1,"metadata":{"kv_transfer_params":1}}') == (
        {"model": "m", "kv": 1, "metadata": {"kv_transfer_params": 1}},
        False,
    )


def test_form_fields() -> None:
    assert sensitive("kv_transfer_params")
    assert sensitive("vllm_xargs[kv_transfer_params]")
    assert not sensitive("model")
    assert strip_form_value(b"{}", "kv_transfer_params", NOTHING) is None
    assert strip_form_value(b'{"b":1}', "kv_transfer_params[b]", PassThroughSettings(vllm_xargs=("b",))) is None
    assert strip_form_value(b"not json", "vllm_xargs", NOTHING) is None
    assert strip_form_value(b'{"a":1,"b":2}', "vllm_xargs", PassThroughSettings(vllm_xargs=("b",))) == b'{"b":2}'
    assert strip_form_value(b'{"a":1}', "vllm_xargs[a]", PassThroughSettings(vllm_xargs=("a",))) == b'{"a":1}'


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from([*NEVER, "vllm_xargs", "extra_args", "sampling_params", "model", "mode"]) | st.text(max_size=6)


@given(st.dictionaries(NAMES, JSON | st.dictionaries(NAMES, JSON, max_size=4), max_size=6))
def test_nothing_forbidden_is_left_at_any_searched_place(body: dict[str, object]) -> None:
    left, _ = stripped(json.dumps(body), PassThroughSettings(vllm_xargs=("mode",)))
    nests = [left, left.get("sampling_params")]
    for nest in nests:
        if isinstance(nest, dict):
            assert NEVER.isdisjoint(nest)
            for name in ("vllm_xargs", "extra_args"):
                inner = nest.get(name)
                assert inner is None or (isinstance(inner, dict) and set(inner) == {"mode"})


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (None, '{"kv_cache_report_mode":"full"}'),
        ("null", '{"kv_cache_report_mode":"full"}'),
        ('{"a": 1.50}', '{"a":1.50,"kv_cache_report_mode":"full"}'),
        ('{"kv_cache_report_mode": "incremental"}', None),
        (r'{"kv_cache_report_\u006dode": 1}', None),
    ],
)
def test_what_a_client_asks_for_stays(given, wanted):
    extras = ask_report({} if given is None else {"vllm_xargs": msgspec.Raw(given.encode())})
    assert (None if extras is None else msgspec.json.encode(extras).decode()) == wanted
