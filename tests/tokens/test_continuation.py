from __future__ import annotations

from typing import Any

import pytest

from gateway.tokens.continuation import TAG, cut_at_tag, tag_end

READS = "{{ messages[0].content }}"
USER = {"role": "user", "content": "hi"}


def parts(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in texts]


def test_the_last_text_is_tagged() -> None:
    given = [USER, {"role": "assistant", "content": "Once ", "name": "a"}]
    tagged, final = tag_end(given, READS)
    assert tagged == [USER, {"role": "assistant", "content": "Once " + TAG, "name": "a"}]
    assert final == "Once "
    assert given[1]["content"] == "Once ", "what was given is not changed"


def test_the_last_part_with_a_text_is_tagged() -> None:
    image = {"type": "image"}
    given = [{"role": "assistant", "content": [*parts("a", "b"), image]}]
    tagged, final = tag_end(given, READS)
    assert tagged == [{"role": "assistant", "content": [*parts("a", "b" + TAG), image]}]
    assert final == "b"
    assert given == [{"role": "assistant", "content": [*parts("a", "b"), image]}]


@pytest.mark.parametrize(
    ("last", "template"),
    [
        ({"role": "assistant"}, READS),
        ({"role": "assistant", "content": None}, READS),
        ({"role": "assistant", "content": []}, READS),
        ({"role": "assistant", "content": [{"type": "image"}]}, READS),
        (USER, "{{ messages[0].text }}"),
    ],
)
def test_there_is_nothing_to_go_on_with(last: dict[str, Any], template: str) -> None:
    with pytest.raises(ValueError, match="to continue"):
        tag_end([USER, last], template)


@pytest.mark.parametrize(
    ("text", "final", "kept"),
    [
        (f"<a>Once {TAG}</a>", "Once ", "<a>Once "),
        (f"<a>Once {TAG.strip()}</a>", "Once ", "<a>Once"),
        (f"{TAG}<a>{TAG}</a>", "", f"{TAG}<a>"),
        (f"<a> \n{TAG.strip()}", " \n", "<a>"),
    ],
)
def test_the_text_ends_with_the_message(text: str, final: str, kept: str) -> None:
    assert cut_at_tag(text, final) == kept


@pytest.mark.parametrize(("text", "final"), [("<a>Once</a>", "Once"), (f"<a>{TAG}", "Once")])
def test_a_message_that_the_template_left_out(text: str, final: str) -> None:
    with pytest.raises(ValueError, match="not in the text"):
        cut_at_tag(text, final)
