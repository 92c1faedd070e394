"""The messages of Envoy's ext-proc protocol (``envoy.service.ext_proc.v3``, as of Envoy 1.40) that a picker needs.

They are classes of google.protobuf, made of the classes here: an annotation gives a field's type, its value the field's
number on the wire, and the ``oneof`` that it is in. Fields of Envoy that are not here are kept as unknown ones. Names
are Envoy's; those of the messages are in a package of our own, so that Envoy's own classes may be loaded beside them.

In types, a repeated field is a ``list`` and a map a ``dict``. In fact they are google.protobuf's containers: they can
be changed, but not assigned; nor can a field that is a message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct

PACKAGE = "kvgate.epp"

SCALARS = {str: Field.TYPE_STRING, bytes: Field.TYPE_BYTES, bool: Field.TYPE_BOOL, int: Field.TYPE_INT32}
"""An enum is an ``int``: the same on the wire."""

M = TypeVar("M", bound=Message)


def field(number: int, oneof: str = "") -> Any:
    return number, oneof


@dataclass_transform(kw_only_default=True)
def message(declared: type[M]) -> type[M]:
    """The class of google.protobuf that has the fields of ``declared``. What these refer to is made before it."""
    name = declared.__name__
    made = descriptor_pb2.DescriptorProto(name=name)
    oneofs: list[str] = []
    used: set[str] = set()
    for label, kind in get_type_hints(declared).items():
        if label not in vars(declared):  # one of Message's own
            continue
        number, oneof = vars(declared)[label]
        one = made.field.add(name=label, number=number, label=Field.LABEL_OPTIONAL)
        if get_origin(kind) is dict:
            one.label = Field.LABEL_REPEATED
            entry = made.nested_type.add(name=f"{label.title().replace('_', '')}Entry")
            entry.options.map_entry = True
            for place, part in enumerate(get_args(kind), 1):
                its = entry.field.add(name=("key", "value")[place - 1], number=place, label=Field.LABEL_OPTIONAL)
                _give(its, part, used)
            one.type, one.type_name = Field.TYPE_MESSAGE, f".{PACKAGE}.{name}.{entry.name}"
        elif get_origin(kind) is list:
            one.label = Field.LABEL_REPEATED
            _give(one, get_args(kind)[0], used)
        else:
            _give(one, kind, used)
        if oneof:
            if oneof not in oneofs:
                oneofs.append(oneof)
                made.oneof_decl.add(name=oneof)
            one.oneof_index = oneofs.index(oneof)
    pool = descriptor_pool.Default()
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{PACKAGE}/{name}.proto", package=PACKAGE, syntax="proto3", dependency=sorted(used), message_type=[made]
    )
    pool.AddSerializedFile(file.SerializeToString())
    found: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
    found.__doc__ = declared.__doc__
    return found  # type: ignore[no-any-return]


def _give(one: Field, kind: Any, used: set[str]) -> None:
    """Set the type of ``one``. If that is a message, the file of its type is added to ``used``."""
    if kind in SCALARS:
        one.type = SCALARS[kind]
    else:
        one.type, one.type_name = Field.TYPE_MESSAGE, f".{kind.DESCRIPTOR.full_name}"
        used.add(kind.DESCRIPTOR.file.name)


@message
class HeaderValue(Message):
    """Envoy gives values in ``raw_value``, and takes them from there, or from ``value`` if that is empty."""

    key: str = field(1)
    value: str = field(2)
    raw_value: bytes = field(3)


@message
class HeaderMap(Message):
    headers: list[HeaderValue] = field(1)


@message
class Metadata(Message):
    filter_metadata: dict[str, Struct] = field(1)


@message
class HttpHeaders(Message):
    """``end_of_stream``: no body follows."""

    headers: HeaderMap = field(1)
    end_of_stream: bool = field(3)


@message
class HttpBody(Message):
    body: bytes = field(1)
    end_of_stream: bool = field(2)


@message
class HttpTrailers(Message):
    trailers: HeaderMap = field(1)


@message
class ProtocolConfiguration(Message):
    """Body modes: 0 NONE, 1 STREAMED, 2 BUFFERED, 3 BUFFERED_PARTIAL, 4 FULL_DUPLEX_STREAMED."""

    request_body_mode: int = field(1)
    response_body_mode: int = field(2)
    send_body_without_waiting_for_header_response: bool = field(3)


@message
class ProcessingRequest(Message):
    """``protocol_config``: in the first message of a call only."""

    request_headers: HttpHeaders = field(2, "request")
    response_headers: HttpHeaders = field(3, "request")
    request_body: HttpBody = field(4, "request")
    response_body: HttpBody = field(5, "request")
    request_trailers: HttpTrailers = field(6, "request")
    response_trailers: HttpTrailers = field(7, "request")
    metadata_context: Metadata = field(8)
    attributes: dict[str, Struct] = field(9)
    observability_mode: bool = field(10)
    protocol_config: ProtocolConfiguration = field(11)


OVERWRITE_OR_ADD = 2


@message
class HeaderValueOption(Message):
    """``append_action``: 0 appends, 1 adds if absent, 2 (OVERWRITE_OR_ADD) sets."""

    header: HeaderValue = field(1)
    append_action: int = field(3)


@message
class HeaderMutation(Message):
    set_headers: list[HeaderValueOption] = field(1)
    remove_headers: list[str] = field(2)


@message
class StreamedBodyResponse(Message):
    body: bytes = field(1)
    end_of_stream: bool = field(2)


@message
class BodyMutation(Message):
    """``streamed_response``: the only one in FULL_DUPLEX_STREAMED."""

    body: bytes = field(1, "mutation")
    clear_body: bool = field(2, "mutation")
    streamed_response: StreamedBodyResponse = field(3, "mutation")


@message
class CommonResponse(Message):
    """``status``: 0 CONTINUE, 1 CONTINUE_AND_REPLACE."""

    status: int = field(1)
    header_mutation: HeaderMutation = field(2)
    body_mutation: BodyMutation = field(3)
    clear_route_cache: bool = field(5)


@message
class HeadersResponse(Message):
    response: CommonResponse = field(1)


@message
class BodyResponse(Message):
    response: CommonResponse = field(1)


@message
class TrailersResponse(Message):
    header_mutation: HeaderMutation = field(1)


@message
class HttpStatus(Message):
    code: int = field(1)


@message
class ImmediateResponse(Message):
    """The answer to the client, in place of the request's. ``details``: what Envoy logs as the response's details."""

    status: HttpStatus = field(1)
    headers: HeaderMutation = field(2)
    body: bytes = field(3)
    details: str = field(5)


@message
class ProcessingMode(Message):
    """Of heads and trailers: 0 the default, 1 SEND, 2 SKIP. Of bodies: as in ``ProtocolConfiguration``."""

    request_header_mode: int = field(1)
    response_header_mode: int = field(2)
    request_body_mode: int = field(3)
    response_body_mode: int = field(4)
    request_trailer_mode: int = field(5)
    response_trailer_mode: int = field(6)


@message
class ProcessingResponse(Message):
    request_headers: HeadersResponse = field(1, "response")
    response_headers: HeadersResponse = field(2, "response")
    request_body: BodyResponse = field(3, "response")
    response_body: BodyResponse = field(4, "response")
    request_trailers: TrailersResponse = field(5, "response")
    response_trailers: TrailersResponse = field(6, "response")
    immediate_response: ImmediateResponse = field(7, "response")
    dynamic_metadata: Struct = field(8)
    mode_override: ProcessingMode = field(9)


def header_mutation(headers: Iterable[tuple[str, str]], removed: Iterable[str] = ()) -> HeaderMutation:
    """Sets ``headers``, in the place of any others of their names, and removes those named in ``removed``."""
    return HeaderMutation(
        set_headers=[
            HeaderValueOption(
                header=HeaderValue(key=name, raw_value=value.encode("latin-1", "replace")),
                append_action=OVERWRITE_OR_ADD,
            )
            for name, value in headers
        ],
        remove_headers=list(removed),
    )


def streamed_chunk(body: bytes, *, last: bool) -> ProcessingResponse:
    """A part of the request's body on its way to the endpoint, in FULL_DUPLEX_STREAMED."""
    streamed = StreamedBodyResponse(body=body, end_of_stream=last)
    common = CommonResponse(body_mutation=BodyMutation(streamed_response=streamed))
    return ProcessingResponse(request_body=BodyResponse(response=common))


def immediate(status: int, headers: Iterable[tuple[str, str]], body: bytes, details: str = "") -> ProcessingResponse:
    """Answer the client with ``body`` now."""
    answer = ImmediateResponse(
        status=HttpStatus(code=status), headers=header_mutation(headers), body=body, details=details
    )
    return ProcessingResponse(immediate_response=answer)
