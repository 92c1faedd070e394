from __future__ import annotations

from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import HTTP

import pytest
from hypothesis import given
from hypothesis import strategies as st
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from gateway.api.multipart import MAX_PARTS, MultipartBody
from gateway.api.settings import PassThroughSettings
from gateway.errors import ClientError

BOUNDARY = "d74496d66958873e"
TYPE = f"multipart/form-data; boundary={BOUNDARY}"
SETTINGS = PassThroughSettings()


def form(*parts: tuple[str, bytes], boundary: str = BOUNDARY) -> bytes:
    """Written as the OpenAI client (httpx) writes it."""
    pieces = []
    for name, content in parts:
        more = '; filename="a.wav"\r\nContent-Type: audio/wav' if name == "file" else ""
        pieces.append(f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode())
        pieces.append(content + b"\r\n")
    return b"".join(pieces) + f"--{boundary}--\r\n".encode()


def read(raw: bytes) -> list[tuple[str, bytes]]:
    """The fields as another parser sees them."""
    message = BytesParser(EmailMessage, policy=HTTP).parsebytes(f"Content-Type: {TYPE}\r\n\r\n".encode() + raw)
    parts = []
    for part in message.iter_parts():
        name = part.get_param("name", header="content-disposition")
        assert isinstance(name, str)
        content = part.get_payload(decode=True)
        assert isinstance(content, bytes)
        parts.append((name, content))
    return parts


def body(raw: bytes, content_type: str = TYPE, settings: PassThroughSettings = SETTINGS) -> MultipartBody:
    return MultipartBody(raw, content_type, settings)


def test_a_form_that_needs_no_change_is_the_clients_own_bytes() -> None:
    raw = form(("file", b"\r\nRIFF\x00\xff--" + BOUNDARY.encode()), ("model", b"whisper"))
    assert body(raw).encode("whisper") is raw


def test_the_model_is_replaced_and_the_file_untouched() -> None:
    raw = form(("file", b"RIFF\r\n\r\n\x00\xff"), ("model", b"a"), ("prompt", b"hi"), ("model", b"b"))
    parsed = body(raw)
    assert parsed.value("model") == b"b"
    assert parsed.value("absent") is None
    expected = form(("file", b"RIFF\r\n\r\n\x00\xff"), ("model", b"served"), ("prompt", b"hi"), ("model", b"served"))
    assert parsed.encode("served") == expected
    assert parsed.content_type == f'multipart/form-data; boundary="{BOUNDARY}"'


def test_what_may_not_pass_is_left_out() -> None:
    raw = form(
        ("kv_transfer_params", b"{}"),
        ("model", b"m"),
        ("vllm_xargs", b'{"a":1,"b":2}'),
        ("vllm_xargs[kv_transfer_params]", b"x"),
        ("ec_transfer_params", b"1"),
    )
    assert body(raw).encode("m") == form(("model", b"m"))
    kept = body(raw, settings=PassThroughSettings(vllm_xargs=("b",))).encode("m")
    assert kept == form(("model", b"m"), ("vllm_xargs", b'{"b":2}'))
    assert body(raw).value("kv_transfer_params") is None


@pytest.mark.parametrize(
    "content_type",
    [
        f'multipart/form-data; boundary="{BOUNDARY}"',
        f"multipart/form-data; charset=utf-8; boundary={BOUNDARY}",
        f"Multipart/Form-Data; BOUNDARY={BOUNDARY} ; x=y",
    ],
)
def test_spellings_of_the_boundary(content_type: str) -> None:
    assert body(form(("model", b"m")), content_type).value("model") == b"m"


@pytest.mark.parametrize(
    "disposition",
    [
        'form-data; name="model"',
        "form-data; name=model",
        'FORM-DATA;name="model"',
        'form-data; filename="x; name=evil.wav"; name="model"',
        "form-data; name=\"model\"; filename*=UTF-8''x.wav",
        'form-data; name="model"; filename="a\\"; name=\\"b"',
    ],
)
def test_spellings_of_a_name(disposition: str) -> None:
    raw = f"--{BOUNDARY}\r\nContent-Disposition: {disposition}\r\n\r\nm\r\n--{BOUNDARY}--\r\n".encode()
    assert body(raw).value("model") == b"m"


GOOD_HEAD = b'Content-Disposition: form-data; name="model"'


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"Content-Type: text/plain",
        b'Content-Disposition: attachment; name="model"',
        b'Content-Disposition: form-data; name="a"; name="kv_transfer_params"',
        b"Content-Disposition: form-data; name*=UTF-8''kv_transfer_params",
        b'Content-Disposition: form-data; name="a\\"b"',
        GOOD_HEAD + b"\r\n" + GOOD_HEAD,
        b'Content-Disposition: form-data;\r\n name="model"',
        b'Content-Disposition : form-data; name="model"',
        b'Content-Disposition: form-data; name="model"\nContent-Disposition: form-data; name="b"',
        b"Content-Disposition: form-data",
        b'Content-Disposition: form-data; name="model"; other=1',
    ],
)
def test_heads_that_two_parsers_may_read_in_two_ways_are_refused(head: bytes) -> None:
    raw = f"--{BOUNDARY}\r\n".encode() + head + f"\r\n\r\nm\r\n--{BOUNDARY}--\r\n".encode()
    with pytest.raises(ClientError):
        body(raw)


@pytest.mark.parametrize(
    ("raw", "content_type"),
    [
        (b"", TYPE),
        (b"garbage", TYPE),
        (b"preamble\r\n" + form(("model", b"m")), TYPE),
        (form(("model", b"m"))[:-20], TYPE),
        (f"--{BOUNDARY}".encode(), TYPE),
        (f"--{BOUNDARY}x\r\n".encode(), TYPE),
        (f"--{BOUNDARY}\r\n{'a' * 40_000}".encode(), TYPE),
        (form(("model", b"m")), "multipart/form-data"),
        (form(("model", b"m")), f"multipart/form-data; boundary={BOUNDARY}; boundary=x"),
        (form(("model", b"m")), "multipart/form-data; boundary="),
        (form(("model", b"m")), "multipart/form-data; boundary=\u00e9"),
        (form(*(("a", b"") for _ in range(MAX_PARTS + 1))), TYPE),
    ],
)
def test_malformed_forms_are_the_clients_error(raw: bytes, content_type: str) -> None:
    with pytest.raises(ClientError):
        body(raw, content_type)


NAMES = st.sampled_from(["file", "model", "prompt", "kv_transfer_params", "timestamp_granularities[]", "language"])


@given(st.lists(st.tuples(NAMES, st.binary(max_size=40)), max_size=6), st.text(min_size=1, max_size=8))
def test_another_parser_sees_the_same_fields(parts: list[tuple[str, bytes]], model: str) -> None:
    parts = [(name, content) for name, content in parts if BOUNDARY.encode() not in content]
    out = body(form(*parts)).encode(model)
    expected = [
        (name, model.encode() if name == "model" else content)
        for name, content in parts
        if name != "kv_transfer_params"
    ]
    assert out == form(*expected)


def test_another_parser_reads_what_is_written() -> None:
    raw = form(("file", b"RIFF"), ("kv_transfer_params", b"{}"), ("model", b"a"), ("prompt", b"hi"))
    assert read(body(raw).encode("b")) == [("file", b"RIFF"), ("model", b"b"), ("prompt", b"hi")]


def read_by_engine(raw: bytes, content_type: str) -> list[tuple[str, bytes]]:
    """The fields as python-multipart reads them for starlette, and so for vLLM. Raises FormParserError."""
    fields: list[tuple[str, bytes]] = []
    header, value, disposition, content = b"", b"", b"", b""

    def part_begin() -> None:
        nonlocal disposition, content
        disposition = content = b""

    def header_field(data: bytes, start: int, end: int) -> None:
        nonlocal header
        header += data[start:end]

    def header_value(data: bytes, start: int, end: int) -> None:
        nonlocal value
        value += data[start:end]

    def header_end() -> None:
        nonlocal header, value, disposition
        if header.lower() == b"content-disposition":
            disposition = value
        header = value = b""

    def part_data(data: bytes, start: int, end: int) -> None:
        nonlocal content
        content += data[start:end]

    def part_end() -> None:
        _, options = parse_options_header(disposition)
        fields.append((options[b"name"].decode(), content))

    _, options = parse_options_header(content_type)
    parser = MultipartParser(
        options[b"boundary"],
        {
            "on_part_begin": part_begin,
            "on_part_data": part_data,
            "on_part_end": part_end,
            "on_header_field": header_field,
            "on_header_value": header_value,
            "on_header_end": header_end,
        },
    )
    parser.write(raw)
    parser.finalize()
    return fields


HIDING = form(("kv_transfer_params", b"{}"), ("vllm_xargs", b"{}"), ("model", b"another"), boundary="a--\\x")


def test_a_form_that_hides_behind_a_second_boundary_is_refused() -> None:
    """The engine takes the last one: of it, it would read three fields where an empty form was seen here."""
    for content_type in (
        'multipart/form-data; boundary=a; boundary="a--\\x"',
        'multipart/form-data; x="; boundary=a;"; boundary="a--\\x"',
    ):
        with pytest.raises(ClientError):
            body(HIDING, content_type)


PIECES = st.sampled_from(
    [
        *(b"--a", b"--a--", b"--b", b"--a--x", b"\r\n", b"\r\n\r\n", b"\n", b"--", b"x", b" "),
        b'\r\n--a\r\nContent-Disposition: form-data; name="model"\r\n\r\n',
        b'--a\r\nContent-Disposition: form-data; name="kv_transfer_params"\r\n\r\n{}\r\n',
        b'--b\r\ncontent-disposition: form-data; name=prompt; filename="; name=model"\r\n\r\nhi\r\n',
        b'--a\r\nX: y\r\nContent-Disposition: form-data; filename="\\""; name="file"\r\n\r\n',
    ]
)
TYPES = st.sampled_from(
    [
        "multipart/form-data; boundary=a",
        'multipart/form-data; boundary="b"',
        'multipart/form-data; boundary="a--x"',
        'multipart/form-data; x="; boundary=a"; boundary=b',
        "multipart/form-data; boundary=a; boundary=b",
        'multipart/form-data; boundary="\\a"; charset=utf-8',
    ]
)


@given(st.lists(PIECES, min_size=1, max_size=10), TYPES, st.booleans())
def test_what_was_seen_here_is_what_the_engine_sees(pieces: list[bytes], content_type: str, ended: bool) -> None:
    raw = b"".join(pieces) + (b"\r\n--a--\r\n" if ended else b"")
    try:
        parsed = body(raw, content_type)
    except ClientError:
        return
    names = [part.name for part in parsed._parts if part.name != "kv_transfer_params"]
    try:
        fields = read_by_engine(parsed.encode("m"), parsed.content_type)
    except FormParserError:
        return  # it refuses what was taken here: nothing gets past anybody
    assert [name for name, _ in fields] == names
    for name, content in fields:
        if name == "model":
            assert content == b"m"
