"""NIXL: the prefill's parameters go on byte for byte, or not at all."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.body import JsonBody
from gateway.api.settings import PassThroughSettings
from gateway.framework import Kind
from gateway.proxy.serving.connectors import Pair
from gateway.proxy.serving.connectors.nixl import PULL_LEASE, PUSH_LEASE, Nixl, NixlTransfer
from gateway.proxy.serving.handover_failures import HandoverFailed
from tests.proxy.serving.connectors.conftest import endpoint

PARAMETERS = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 3, 4]],
    "remote_engine_id": "53e91b4f-5963-4256-8adf-420a782fb220",
    "remote_request_id": "chatcmpl-1-a38d0acf",
    "remote_host": "127.0.0.1",
    "remote_port": 5711,
    "tp_size": 1,
    "dcp_size": 1,
    "pp_size": 1,
    "remote_num_tokens": 79,
    "remote_blocks_expiry_time": None,
    "transfer_mode": "pull",
    "remote_prefill_cached_tokens": 32,
}
"""As vLLM 0.32 answered a prefill."""

NEEDED = ("do_remote_prefill", "remote_engine_id", "remote_request_id", "remote_host", "remote_port", "tp_size")


def answer(parameters: object) -> bytes:
    return orjson.dumps({"id": "x", "choices": [], "kv_transfer_params": parameters})


@pytest.fixture
def transfer(make_pair) -> NixlTransfer:
    return NixlTransfer(make_pair())


async def test_the_two_legs(make_pair, make_body, read):
    transfer = await Nixl().open(make_pair())
    body = make_body(messages=[], stream=True, max_tokens=50)
    prefill, decode = read(transfer.prefill(body)), read(transfer.decode(body, answer(PARAMETERS)))
    assert prefill["kv_transfer_params"]["do_remote_decode"] is True
    assert (prefill["stream"], prefill["max_tokens"]) == (False, 1)
    assert decode == {**read(body), "kv_transfer_params": PARAMETERS}
    assert transfer.lease == PULL_LEASE < 30


def test_unknown_parameters_and_spellings_go_on_byte_for_byte(transfer, make_body):
    odd = orjson.dumps(PARAMETERS)[:-1] + b', "new":  {"b":1e400,"a":[1.50]},"\\u006bey":0.1000000000000000055}'
    leg = transfer.decode(make_body(), b'{"kv_transfer_params": ' + odd + b"}")
    assert b'"kv_transfer_params":' + odd in leg.encode("sim")


@pytest.mark.parametrize("missing", [*NEEDED, "remote_block_ids"])
@pytest.mark.parametrize("how", ["absent", "null"])
def test_incomplete_parameters_go_nowhere(missing, how, transfer, make_body):
    parameters = {name: value for name, value in PARAMETERS.items() if name != missing}
    if how == "null":
        parameters[missing] = None
    with pytest.raises(HandoverFailed) as failure:
        transfer.decode(make_body(), answer(parameters))
    assert failure.value.cause == "prefill-incomplete"


@pytest.mark.parametrize(
    "wrong",
    [
        {"remote_port": "5711"},
        {"remote_host": 7},
        {"remote_engine_id": ""},
        {"remote_block_ids": []},
        {"remote_block_ids": "1,2"},
        {"remote_block_ids": [[]]},
        {"remote_block_ids": [[], []]},
        {"remote_block_ids": ["a"]},
        {"remote_block_ids": [[1.5]]},
        {"remote_block_ids": [[None]]},
        {"remote_block_ids": [[-1]]},
        {"tp_size": "1"},
        {"do_remote_prefill": False},
        {"do_remote_prefill": 1},
    ],
)
def test_parameters_of_the_wrong_kind_go_nowhere(wrong, transfer, make_body):
    with pytest.raises(HandoverFailed):
        transfer.decode(make_body(), answer({**PARAMETERS, **wrong}))


@pytest.mark.parametrize("said", [b"", b"null", b"[]", b"{", b"\xff", b'{"kv_transfer_params": null}', b"{}"])
def test_an_answer_without_parameters(said, transfer, make_body):
    with pytest.raises(HandoverFailed) as failure:
        transfer.decode(make_body(), said)
    assert failure.value.cause in ("prefill-malformed", "prefill-incomplete")


def test_push_names_no_blocks_and_waits_longer(transfer, make_body, read):
    parameters = {**PARAMETERS, "transfer_mode": "push", "remote_block_ids": None}
    assert read(transfer.decode(make_body(), answer(parameters)))["kv_transfer_params"] == parameters
    assert transfer.lease == PUSH_LEASE > PULL_LEASE


WORD = st.sampled_from(["", "x", "pull", "push", "1"])
VALUE = st.none() | st.booleans() | st.integers(-1, 2**53) | st.floats(allow_nan=False, allow_infinity=False) | WORD
JSON = VALUE | st.lists(VALUE, max_size=2) | st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=2)


@given(changes=st.dictionaries(st.sampled_from(sorted(PARAMETERS)), JSON, max_size=4))
def test_whatever_an_engine_says_is_complete_or_refused(changes):
    pair = Pair(Kind.CHAT, endpoint("http://p:1", 0), endpoint("http://d:1", 1), 8998)
    parameters = {**PARAMETERS, **changes}
    try:
        leg = NixlTransfer(pair).decode(JsonBody(b"{}", PassThroughSettings()), answer(parameters))
    except HandoverFailed:
        return
    sent = orjson.loads(leg.encode("sim"))["kv_transfer_params"]
    assert sent == parameters
    assert all(sent[name] is not None for name in NEEDED)
    assert sent["do_remote_prefill"] is True
    assert any(sent["remote_block_ids"] or ()) or sent["transfer_mode"] == "push"
