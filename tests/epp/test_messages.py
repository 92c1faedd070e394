"""The messages on the wire: what Envoy's own classes write for the same (protobuf's encoding, by hand)."""

from __future__ import annotations

import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct

from gateway.epp import messages
from gateway.epp.messages import (
    HeaderMap,
    HeaderValue,
    HttpBody,
    HttpHeaders,
    Metadata,
    ProcessingRequest,
    ProcessingResponse,
    ProtocolConfiguration,
)

# Names in Envoy's documentation, with the numbers of its fields.
NUMBERS = {
    "HeaderValue": "key 1, value 2, raw_value 3",
    "HeaderMap": "headers 1",
    "Metadata": "filter_metadata 1",
    "HttpHeaders": "headers 1, end_of_stream 3",
    "HttpBody": "body 1, end_of_stream 2",
    "HttpTrailers": "trailers 1",
    "ProtocolConfiguration": (
        "request_body_mode 1, response_body_mode 2, send_body_without_waiting_for_header_response 3"
    ),
    "ProcessingRequest": (
        "request_headers 2, response_headers 3, request_body 4, response_body 5, request_trailers 6, "
        "response_trailers 7, metadata_context 8, attributes 9, observability_mode 10, protocol_config 11"
    ),
    "HeaderValueOption": "header 1, append_action 3",
    "HeaderMutation": "set_headers 1, remove_headers 2",
    "StreamedBodyResponse": "body 1, end_of_stream 2",
    "BodyMutation": "body 1, clear_body 2, streamed_response 3",
    "CommonResponse": "status 1, header_mutation 2, body_mutation 3, clear_route_cache 5",
    "HeadersResponse": "response 1",
    "BodyResponse": "response 1",
    "TrailersResponse": "header_mutation 1",
    "HttpStatus": "code 1",
    "ImmediateResponse": "status 1, headers 2, body 3, details 5",
    "ProcessingMode": (
        "request_header_mode 1, response_header_mode 2, request_body_mode 3, response_body_mode 4, "
        "request_trailer_mode 5, response_trailer_mode 6"
    ),
    "ProcessingResponse": (
        "request_headers 1, response_headers 2, request_body 3, response_body 4, request_trailers 5, "
        "response_trailers 6, immediate_response 7, dynamic_metadata 8, mode_override 9"
    ),
}


def classes() -> dict[str, type[Message]]:
    return {
        name: kind
        for name, kind in vars(messages).items()
        if isinstance(kind, type) and issubclass(kind, Message) and name not in ("Field", "Message", "Struct")
    }


def test_every_field_has_envoys_number() -> None:
    shown = {
        name: ", ".join(f"{field.name} {field.number}" for field in kind.DESCRIPTOR.fields)
        for name, kind in classes().items()
    }
    assert shown == NUMBERS


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        (ProcessingRequest(request_body=HttpBody(body=b"ab", end_of_stream=True)), "2206 0a026162 1001"),
        (ProcessingRequest(request_headers=HttpHeaders(end_of_stream=True)), "1202 1801"),
        (
            ProcessingRequest(
                response_headers=HttpHeaders(headers=HeaderMap(headers=[HeaderValue(raw_value=b"\xff")]))
            ),
            "1a07 0a05 0a03 1a01ff",
        ),
        (ProcessingRequest(protocol_config=ProtocolConfiguration(request_body_mode=4)), "5a02 0804"),
        (ProcessingRequest(attributes={"a": Struct()}), "4a05 0a0161 1200"),
        (ProcessingRequest(metadata_context=Metadata(filter_metadata={"a": Struct()})), "4207 0a05 0a0161 1200"),
        (messages.streamed_chunk(b"x", last=True), "1a0b 0a09 1a07 1a05 0a0178 1001"),
        (messages.immediate(429, [("a", "b")], b"c"), "3a16 0a03 08ad03 120c 0a0a 0a06 0a0161 1a0162 1802 1a0163"),
    ],
)
def test_on_the_wire(message: Message, wire: str) -> None:
    assert message.SerializeToString(deterministic=True).hex() == wire.replace(" ", "")


def test_what_we_do_not_know_is_kept_and_harms_nothing() -> None:
    raw = bytes.fromhex("2204 0a026162 7a0178".replace(" ", ""))  # field 15 is nobody's
    message = ProcessingRequest.FromString(raw)
    assert message.request_body.body == b"ab"
    assert message.SerializeToString() == raw


def test_the_kinds_of_a_message_exclude_each_other() -> None:
    message = ProcessingRequest(request_body=HttpBody(body=b"a"))
    message.response_body.body = b"b"
    assert message.WhichOneof("request") == "response_body"
    assert ProcessingResponse().WhichOneof("response") is None


def test_metadata_is_written_as_plain_values() -> None:
    message = ProcessingResponse()
    message.dynamic_metadata["envoy.lb"] = {"x-gateway-destination-endpoint": "10.0.0.1:8000"}
    read = ProcessingResponse.FromString(message.SerializeToString())
    assert MessageToDict(read.dynamic_metadata) == {"envoy.lb": {"x-gateway-destination-endpoint": "10.0.0.1:8000"}}
