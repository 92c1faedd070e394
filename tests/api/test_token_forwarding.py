from __future__ import annotations

import json
from array import array

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.body import JsonBody
from gateway.api.settings import PassThroughSettings
from gateway.api.token_forwarding import SLICE, TEXT_MATTERS, json_pieces, same_answer, with_ids
from gateway.framework import Kind

CHAT = '"messages":[{"role":"user","content":"hi"}]'
IDS = b"[1,2,3]"


def body(fields: str) -> JsonBody:
    return JsonBody(b'{"model":"m",' + fields.encode() + b"}", PassThroughSettings())


def alike(
    kind: Kind, fields: str, tokens: int = 10, version: str | None = "0.32.0", max_model_len: int | None = 100
) -> bool:
    return same_answer(kind, body(fields).fields, tokens, version=version, max_model_len=max_model_len)


class TestWhatIsAnsweredAlike:
    @pytest.mark.parametrize(
        "more",
        [
            '"stop":["a"]',
            '"n":3',
            '"logprobs":true',
            '"tools":[]',
            '"echo":false',
            '"echo":null',
            '"add_special_tokens":true',
            '"return_token_ids":true',
            '"prompt_logprobs":1',
            '"mm_processor_kwargs":{}',
            '"cache_salt":"s"',
        ],
    )
    def test_what_is_done_with_ids_alone(self, more: str) -> None:
        assert alike(Kind.CHAT, f"{CHAT},{more}")
        assert alike(Kind.COMPLETION, f'"prompt":"x",{more}')

    @pytest.mark.parametrize("name", [name for name, _ in TEXT_MATTERS])
    @pytest.mark.parametrize("value", ["true", "1", '"x"', '{"a":1}', "[1]"])
    def test_not_what_needs_the_text(self, name: str, value: str) -> None:
        assert not alike(Kind.CHAT, f'{CHAT},"{name}":{value}')
        assert not alike(Kind.COMPLETION, f'"prompt":"x","{name}":{value}')

    def test_an_escaped_name_is_the_same_name(self) -> None:
        assert not alike(Kind.COMPLETION, '"prompt":"x","\\u0065cho":true')

    @pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in (Kind.CHAT, Kind.COMPLETION)])
    def test_not_on_other_routes(self, kind: Kind) -> None:
        assert not alike(kind, CHAT)

    def test_not_an_empty_prompt(self) -> None:
        assert not alike(Kind.COMPLETION, '"prompt":""', tokens=1)
        assert not alike(Kind.COMPLETION, '"prompt":[""]', tokens=0)


class TestTheEngine:
    @pytest.mark.parametrize("version", ["0.32.0", "0.32.1rc2", "0.33", "1.0.0+cpu", "0.100.0.dev3+gabc"])
    def test_chats_where_its_version_takes_ids(self, version: str) -> None:
        assert alike(Kind.CHAT, CHAT, version=version)

    @pytest.mark.parametrize("version", [None, "", "dev", "0.31.9", "0.9.2", "v0.32.0", "0", "9" * 5000])
    def test_no_chat_where_it_may_not(self, version: str | None) -> None:
        assert not alike(Kind.CHAT, CHAT, version=version)

    @pytest.mark.parametrize("version", [None, "0.9.2"])
    def test_every_engine_takes_a_completions_ids(self, version: str | None) -> None:
        assert alike(Kind.COMPLETION, '"prompt":"x"', version=version)


class TestTheRoom:
    @pytest.mark.parametrize(("kind", "fields"), [(Kind.CHAT, CHAT), (Kind.COMPLETION, '"prompt":"x"')])
    def test_a_prompt_that_does_not_fit_is_refused_by_its_text(self, kind: Kind, fields: str) -> None:
        assert alike(kind, fields, tokens=100)
        assert not alike(kind, fields, tokens=101)
        assert not alike(kind, fields, max_model_len=None)


class TestTheBody:
    def test_ids_stand_where_the_prompt_stood(self) -> None:
        client = body('"prompt":"Hello, world","big":123456789012345678901234567890')
        leg = with_ids(client, Kind.COMPLETION, IDS)
        assert leg.encode("m") == b'{"model":"m","prompt":[1,2,3],"big":123456789012345678901234567890}'
        assert b"Hello, world" in client.encode("m"), "another attempt may need the text"

    def test_a_chats_messages_stay_as_they_came(self) -> None:
        client = JsonBody(b'{"model":"m","messages":[ {"role": "user", "content":"\\u00e9"}]}', PassThroughSettings())
        out = with_ids(client, Kind.CHAT, IDS).encode("m")
        assert b'"messages":[ {"role": "user", "content":"\\u00e9"}]' in out
        assert json.loads(out)["kv_transfer_params"] == {"prompt_token_ids": [1, 2, 3]}

    @pytest.mark.parametrize("name", ["kv_transfer_params", "kv_transfer\\u005fparams"])
    def test_a_clients_own_ids_never_pass(self, name: str) -> None:
        client = body(f'{CHAT},"{name}":{{"prompt_token_ids":[9],"do_remote_prefill":true}}')
        assert json.loads(client.encode("m")).keys() == {"model", "messages"}
        out = json.loads(with_ids(client, Kind.CHAT, IDS).encode("m"))
        assert out["kv_transfer_params"] == {"prompt_token_ids": [1, 2, 3]}

    def test_a_connectors_parameters_stay(self) -> None:
        client = body(CHAT)
        client.set("kv_transfer_params", msgspec.Raw(b'{"remote_port": 5600.0,"big":123456789012345678901234567890}'))
        out = with_ids(client, Kind.CHAT, IDS).encode("m")
        assert b'{"remote_port":5600.0,"big":123456789012345678901234567890,"prompt_token_ids":[1,2,3]}' in out

    def test_a_connectors_ids_are_replaced(self) -> None:
        client = body(CHAT)
        client.set("kv_transfer_params", {"prompt_token_ids": [9], "remote_port": 1})
        out = json.loads(with_ids(client, Kind.CHAT, IDS).encode("m"))
        assert out["kv_transfer_params"] == {"prompt_token_ids": [1, 2, 3], "remote_port": 1}

    def test_nothing_is_what_a_connector_may_have_put_there(self) -> None:
        client = body(CHAT)
        client.set("kv_transfer_params", None)
        assert json.loads(with_ids(client, Kind.CHAT, IDS).encode("m"))["kv_transfer_params"] == {
            "prompt_token_ids": [1, 2, 3]
        }


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20))
def test_ids_are_written_as_json(ids: list[int]) -> None:
    assert b"".join(json_pieces(array("I", ids))) == json.dumps(ids, separators=(",", ":")).encode()


@pytest.mark.parametrize("count", [SLICE - 1, SLICE, SLICE + 1, 2 * SLICE, 2 * SLICE + 1])
def test_many_ids_are_written_in_pieces(count: int) -> None:
    ids = array("I", range(count))
    pieces = list(json_pieces(ids))
    assert len(pieces) == -(-count // SLICE)
    assert json.loads(b"".join(pieces)) == list(range(count))
