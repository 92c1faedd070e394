"""Sends token ids instead of a prompt's text: decides for which requests the engine's answer stays the same, and makes
the new body.

Rules: if an engine uses the text itself, the text is sent. As in ``indivisible``, what is harmless is listed, anything
else counts, and nothing here raises. Checked against vLLM 0.32 (``entrypoints/openai``,
``renderers/online_renderer.py``): a chat's ids go into ``kv_transfer_params``, where the client's own are never passed
on; its messages are sent, too, since tools, reasoning and roles are read from them.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator

import msgspec

from gateway.api.body import JsonBody
from gateway.api.field_filter import Fields
from gateway.api.prompts import FALSE, NULL
from gateway.framework import Kind

CHAT_IDS_SINCE = (0, 32)
"""The first vLLM that is known to take a chat's ids, and to check them. Older ones may ignore them, or pass them to
their KV connector."""

EMPTY = msgspec.Raw(b"{}")
EMPTY_TEXT = msgspec.Raw(b'""')

TEXT_MATTERS: tuple[tuple[str, tuple[msgspec.Raw, ...]], ...] = (
    # The answer contains the prompt's text. With ids it would lack the special tokens, or all of the text.
    ("echo", (NULL, FALSE)),
    ("return_prompt_text", (NULL, FALSE)),
    # The engine cuts the answers out of a text that begins with the prompt's text.
    ("use_beam_search", (NULL, FALSE)),
    # vLLM truncates the ids of a completion, and does not truncate those of a chat.
    ("truncate_prompt_tokens", (NULL,)),
    # The engine combines it with the prompt's text, with a template for code completion that only the engine has.
    ("suffix", (NULL,)),
    ("prompt_embeds", (NULL,)),
    # They reach the image processor together with a text, and not together with ids.
    ("mm_processor_kwargs", (NULL, EMPTY)),
    ("media_io_kwargs", (NULL, EMPTY)),
)
"""Fields, each with the values with which an engine answers ids as it answers the text."""

ROUTES = frozenset({Kind.CHAT, Kind.COMPLETION})
"""Kinds of routes that accept ids."""

SLICE = 8192
"""Ids that are written at a time: half a millisecond. A prompt may have millions, and streams continue meanwhile."""

_FIELDS = msgspec.json.Decoder(Fields)
_ENCODER = msgspec.json.Encoder()
_RELEASE = re.compile(r"(\d{1,6})\.(\d{1,6})")


def same_answer(kind: Kind, fields: Fields, tokens: int, *, version: str | None, max_model_len: int | None) -> bool:
    """Whether the engine answers a body with these ``fields`` as it would answer its prompt's ids.

    ``tokens``: of the prompt. ``version``: as the engine reports it; None: not known. ``max_model_len``: its longest
    sequence in tokens; a longer prompt is refused in words that differ.
    """
    if kind not in ROUTES or max_model_len is None or not 0 < tokens <= max_model_len:
        return False
    if kind is Kind.CHAT and not _takes_chat_ids(version):
        return False
    if any(name in fields and fields[name] not in harmless for name, harmless in TEXT_MATTERS):
        return False
    # An engine refuses an empty text. It would accept its ids, which are one BOS.
    return kind is Kind.CHAT or fields.get("prompt") != EMPTY_TEXT


def with_ids(body: JsonBody, kind: Kind, ids: bytes) -> JsonBody:
    """A copy of ``body`` whose prompt is ``ids``, a JSON list. What a connector put into ``kv_transfer_params`` stays.

    Raises:
        msgspec.DecodeError: ``kv_transfer_params`` is not an object.
    """
    leg = body.copy()
    if kind is Kind.COMPLETION:
        leg.set("prompt", msgspec.Raw(ids))
        return leg
    parameters: Fields = {}
    given = body.fields.get("kv_transfer_params", NULL)
    if given != NULL:
        parameters = _FIELDS.decode(given)
    leg.set("kv_transfer_params", parameters | {"prompt_token_ids": msgspec.Raw(ids)})
    return leg


def json_pieces(ids: array[int]) -> Iterator[bytes]:
    """``ids``, at least one, as a JSON list in pieces to be joined. About six bytes an id."""
    for at in range(0, len(ids), SLICE):
        piece = _ENCODER.encode(ids[at : at + SLICE].tolist())
        yield (b"," if at else b"[") + piece[1 : None if at + SLICE >= len(ids) else -1]


def _takes_chat_ids(version: str | None) -> bool:
    found = _RELEASE.match(version or "")
    return found is not None and (int(found[1]), int(found[2])) >= CHAT_IDS_SINCE
