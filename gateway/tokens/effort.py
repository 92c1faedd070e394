"""How much work a chat's rendering is, before it is done: what is too much for the loop is done in a thread.

A template is Python: in a thread it holds the interpreter as it does on the loop, and gives it up every 5 ms only. So
nothing is won by moving less than that away, and a hand-over is lost.
"""

from __future__ import annotations

from typing import Any

from gateway.framework import ChatInput

LOOP_VALUES = 1024
"""JSON values of a chat that is rendered on the loop: a message of two fields takes 10 to 14 us, a tool of 35 values
40, all together 1 to 4 ms."""
SMALL = 8 * 1024
"""Bytes of messages that hold no more than ``LOOP_VALUES`` in messages: most chats."""
CHARACTERS = 4096
"""Of a string that count as one value more, since templates strip and split it."""
LOOP_CHARACTERS = 1024 * 1024
"""Of texts in which what is remembered is looked for on the loop: 0.3 ms for every 400,000 that are known."""
LOOP_NEW = 16 * 1024
"""Of a text that are looked at on the loop although nothing is known of them: 0.1 to 0.7 ms. The rest takes up to 17 ms
for every 400,000, and is looked at where it is encoded."""
ALONE = 64 * 1024
"""Of a body that has a turn of the loop for itself, without another such one: half a million are rendered, looked for
and, if they are known, copied in 1 to 3 ms."""
LOOP_TEXTS = 64
"""Texts of one body that are looked at on the loop: each costs some 15 us more than its characters."""


def is_light(chat: ChatInput) -> bool:
    """Rendering it takes no longer than the interpreter would hold the loop up anyway."""
    size = len(chat.raw)
    if size > LOOP_CHARACTERS:
        return False
    # A message has two values in 28 bytes at least: so few are light without a look at each.
    if size <= SMALL and not (chat.tools or chat.documents or chat.template_kwargs):
        return True
    left = LOOP_VALUES
    for value in (chat.messages, chat.tools, chat.documents, chat.template_kwargs):
        left = _take(value, left)
    return left > 0


def _take(value: Any, left: int) -> int:
    """``left`` less the size of ``value``, parsed JSON; stops as soon as nothing is left."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        value = (value,)
    for inner in value:
        left -= 1
        if isinstance(inner, str):
            left -= len(inner) // CHARACTERS
        elif isinstance(inner, (dict, list, tuple)):
            left = _take(inner, left)
        if left <= 0:
            break
    return left
