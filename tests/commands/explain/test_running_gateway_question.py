from __future__ import annotations

import orjson
import pytest

from gateway.commands.explain.running_gateway import CHAT, COMPLETIONS, Question, read_question
from gateway.errors import ConfigError


@pytest.fixture
def file(tmp_path):
    return tmp_path / "asked"


def test_a_request_is_asked_as_it_is(file) -> None:
    file.write_text('{"messages": [], "model": "a"}')
    asked = read_question(file, None, None, [])
    assert (asked.path, orjson.loads(asked.raw)) == (CHAT, {"messages": [], "model": "a"})
    asked = read_question(file, "b", "/v1/messages", [])
    assert (asked.path, orjson.loads(asked.raw)["model"]) == ("/v1/messages", "b")


@pytest.mark.parametrize("content", ["Hello", "[1, 2]", '{"a": 1}', '"text"', "12"])
def test_what_is_no_request_is_a_prompt(file, content) -> None:
    file.write_text(content)
    asked = read_question(file, "m", None, [])
    assert (asked.path, orjson.loads(asked.raw)) == (COMPLETIONS, {"prompt": content, "model": "m"})


def test_what_is_no_text_is_refused(file) -> None:
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="neither a JSON request nor UTF-8"):
        read_question(file, None, None, [])


def test_headers_have_lower_case_names_and_no_blanks_around(file) -> None:
    file.write_text("Hello")
    asked = read_question(file, None, None, ["X-SLO-TTFT-MS: 200", "x-session-id:é:1 ", "x-empty:"])
    assert asked.headers == {"x-slo-ttft-ms": "200", "x-session-id": "é:1", "x-empty": ""}
    assert Question(CHAT, b"").headers == {}


@pytest.mark.parametrize("line", ["x", ": y", "a b: c", "x: a\nb", "x: \x00", "x: \udcff", ""])
def test_a_header_that_cannot_be_sent_is_refused(file, line) -> None:
    file.write_text("Hello")
    with pytest.raises(ConfigError, match=r"--header: .* must be NAME: VALUE"):
        read_question(file, None, None, [line])
