from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from python_multipart.multipart import parse_options_header

from gateway.api.content_type import form_boundary, form_type, parameters
from gateway.errors import ClientError


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text/plain", {}),
        (" text/plain ; ", {}),
        ("a/b;;c=d;", {"c": "d"}),
        ('a/b; C=D; e="f; g=h"', {"c": "D", "e": "f; g=h"}),
        ('a/b; c="d\\"e\\\\f"', {"c": 'd"e\\f'}),
        ('a/b; c=""', {"c": ""}),
    ],
)
def test_parameters_are_read_by_the_grammar(value: str, expected: dict[str, str]) -> None:
    assert parameters(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        "",
        "form",
        "multipart/form-data boundary=a",
        "multipart/form-data, text/plain",
        "multipart/form-data; boundary",
        "multipart/form-data; boundary =a",
        "multipart/form-data; boundary= a",
        "multipart/form-data; boundary=",
        'multipart/form-data; boundary="a',
        'multipart/form-data; boundary="a"b',
        'multipart/form-data; boundary="a\\"',
        "multipart/form-data; boundary='a b'",
        "multipart/form-data; boundary=a b",
        "multipart/form-data; boundary=a/b",
        "multipart/form-data; boundary=\u00e9",
        'multipart/form-data; boundary="\u00e9"',
        "multipart/form-data; boundary=a\x0b",
        "multipart/form-data; =a",
        "multipart/form-data; boundary=a; boundary=a",
        "multipart/form-data; boundary=a; BOUNDARY=b",
        'multipart/form-data; boundary=a; boundary="a--\\x"',
        'multipart/form-data; x="; boundary=a;"; boundary="a--\\x"; boundary=b',
        "multipart/form-data; boundary=a; x=1; x=2",
    ],
)
def test_what_two_parsers_could_read_in_two_ways_is_refused(value: str) -> None:
    with pytest.raises(ClientError) as caught:
        form_boundary(value)
    assert (caught.value.status, caught.value.param) == (400, "content-type")


@pytest.mark.parametrize(
    "value",
    [
        "multipart/form-data",
        'multipart/form-data; boundary=""',
        'multipart/form-data; boundary="a "',
        'multipart/form-data; boundary="a\\\\x"',
        'multipart/form-data; boundary="a\\"x"',
        f"multipart/form-data; boundary={'a' * 71}",
        "multipart/form-data; boundary*=UTF-8''a",
        "multipart/form-data; boundary=a; charset=utf-7",
        "multipart/form-data; boundary=a; charset=utf-16",
    ],
)
def test_an_unusable_boundary_or_charset_is_refused(value: str) -> None:
    with pytest.raises(ClientError, match="content-type"):
        form_boundary(value)


@pytest.mark.parametrize(
    ("value", "boundary"),
    [
        ("multipart/form-data; boundary=----WebKitFormBoundaryabc", "----WebKitFormBoundaryabc"),
        ('multipart/form-data; boundary="5f0e8c62-9ae1"', "5f0e8c62-9ae1"),
        ("multipart/form-data;boundary=a; charset=UTF-8", "a"),
        ('multipart/form-data; x="; boundary=a;"; boundary="a--\\x"', "a--x"),
        ('multipart/form-data; boundary="a\'()+_,-./:=? b"', "a'()+_,-./:=? b"),
    ],
)
def test_the_engine_reads_the_boundary_that_was_read_here(value: str, boundary: str) -> None:
    assert form_boundary(value) == boundary
    assert parse_options_header(form_type(boundary)) == (b"multipart/form-data", {b"boundary": boundary.encode()})


FRAGMENTS = st.sampled_from(
    [*';;;===""\\ ax', "boundary", "boundary=", "Boundary=a", 'boundary="a', "charset=utf-8", "x=", '"; ', "--", "\t"]
)


@given(st.lists(FRAGMENTS, max_size=12))
def test_whatever_is_taken_the_engine_reads_the_same(fragments: list[str]) -> None:
    value = "multipart/form-data; " + "".join(fragments)
    try:
        boundary = form_boundary(value)
    except ClientError:
        return
    assert parse_options_header(form_type(boundary)) == (b"multipart/form-data", {b"boundary": boundary.encode()})
