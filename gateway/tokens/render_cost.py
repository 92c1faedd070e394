"""Estimates the work to render a chat, which decides between the event loop and a thread.

A template is Python code. In a thread, too, it holds the GIL, and releases it only every 5 ms. So a thread is of no use
for less work than that, and the switch to it has a cost.
"""

from __future__ import annotations

from typing import Any

from gateway.core.prompt import ChatInput

LOOP_VALUES = 1024
"""The most JSON values of a chat that is rendered on the loop. A message of two fields takes 10 to 14 us, a tool of 35
values 40 us, all together 1 to 4 ms."""
SMALL = 8 * 1024
"""Bytes of messages that cannot hold more than ``LOOP_VALUES`` values, since a message of two values has at least 28
bytes: most chats. Where there is nothing else to render, nobody has to count them."""
CHARACTERS = 4096
"""Characters of a string that count as one value more, since templates strip and split strings."""
LOOP_CHARACTERS = 1024 * 1024
"""Characters of texts that are looked up in the cache on the loop: 0.3 ms for every 400,000 that are known."""
LOOP_NEW = 16 * 1024
"""Characters of new text that are split into segments on the loop: 0.1 to 0.7 ms. The rest takes up to 17 ms for every
400,000, and is split in the thread that encodes it."""
LOOP_ENCODED = 2048
"""New characters that are encoded on the loop: they stall it for about a millisecond, and a hand-over to a thread costs
0.1 to 0.6 ms."""
ALONE = 64 * 1024
"""Only one body of at least this many characters is handled in one iteration of the loop: to render, look up and copy
half a million known characters takes 1 to 3 ms."""
LOOP_TEXTS = 64
"""The most texts of one body that are looked up on the loop: each costs some 15 us beside its characters."""


def is_cheap(chat: ChatInput, known: int = 0) -> bool:
    """Whether rendering it takes no longer than the GIL would be held anyway. ``known``: as many of the first messages
    need not be rendered; each counts as one value, since the template may still look at it before and behind its loop.
    """
    if len(chat.raw) > LOOP_CHARACTERS:
        return False
    left = LOOP_VALUES - known
    for value in (chat.messages[known:] if known else chat.messages, chat.tools, chat.documents, chat.template_kwargs):
        left = _take(value, left)
    return left > 0


def _take(value: Any, left: int) -> int:
    """``left`` minus the number of values in ``value``, parsed JSON; stops as soon as nothing is left."""
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
