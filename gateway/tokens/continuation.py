"""Chats whose last message the model continues (``continue_final_message``): the text ends where that message does.

Source: ``render_jinja_template`` of ``transformers`` 5.16 to 5.19: it appends a tag to the message, renders, and cuts
the text off at the tag. Rules: pure; the given conversation is not changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.tokens.conversation import Message

TAG = "CONTINUE_FINAL_MESSAGE_TAG "
"""The tag of ``transformers``, since a template could look at it. It ends with a blank: if that is missing in the
rendered text, the template strips texts."""


def tag_end(conversation: Sequence[Message], template: str) -> tuple[list[Message], str]:
    """The conversation with the tag behind its last text, and that text.

    Raises:
        ValueError: the last message has no text, or ``template`` reads no contents.
    """
    *earlier, last = conversation
    content = last.get("content")
    if content is None or "content" not in template:
        raise ValueError("there is no content to continue")
    if isinstance(content, str):
        return [*earlier, last | {"content": content + TAG}], content
    for place in reversed(range(len(content))):
        if "text" in content[place]:
            text = content[place]["text"]
            tagged = content[place] | {"text": text + TAG}
            return [*earlier, last | {"content": [*content[:place], tagged, *content[place + 1 :]]}], text
    raise ValueError("there is no text to continue")


def cut_at_tag(text: str, final: str) -> str:
    """The rendered ``text`` up to the tag. ``final``: the text of the message that is continued.

    Raises:
        ValueError: the template left either out.
    """
    place = text.rfind(TAG.strip())
    if place < 0 or final.strip() not in text:
        raise ValueError("the message to continue is not in the text")
    kept = text[:place]
    # If the tag has lost its blank, the template strips texts. So it would strip this one, too.
    return kept if text.startswith(TAG, place) else kept.rstrip()
