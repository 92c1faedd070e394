"""Chats with images, sound or video: exact ids up to the first of them, and stand-in ids after it.

Only the engine's processor knows how many tokens an image becomes, and an engine's hash of a block with a part of an
image covers the image, too. So the engine's ids are known only up to the last token before the first image. After it
the prompt has stand-in ids: a digest of the image, repeated about as often as the image has tokens, and the tokens of
the text that follows. With them a conversation's next turn matches its earlier turns; they never match an engine's
events. If the configuration allows it, the gateway requests the ids from an engine
(``proxy/extras/prompt_questions.py``), and uses these ids only if no engine answers.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from xxhash import xxh3_128_digest

from gateway.core.prompt import BYTES_PER_TOKEN, ChatInput, Prompt
from gateway.tokens.conversation import MARK, media_of
from gateway.tokens.encode import Encoder
from gateway.tokens.reasons import Unrenderable, Why
from gateway.tokens.render import Renderer

TOKENS = 1024
"""Tokens of one image, about: 256 in Gemma 3, 576 in LLaVA 1.5, 1,369 in Qwen2.5-VL at 1024 pixels squared; half a
minute of sound has 750 in Qwen2-Audio. Videos have more, depending on the model."""
DIGEST_IDS = 4
"""Ids of 32 bits in a digest. Their first bit is set, so that no vocabulary has such an id."""
BEYOND_VOCABULARY = 1 << 31
PAYLOAD_WORDS = (b"base64", b"input_audio")
"""A body with media data holds one of these words."""
DIGEST_BYTES = 16
EMBEDDED = "prompt_embeds"
_PAYLOAD = re.compile(rb"(?:data:[^,]{0,200},)?[A-Za-z0-9+/\\]{2048}")
"""How media data begin; JSON may escape a slash. Text has blanks."""


def without_payloads(raw: bytes) -> bytes:
    """The JSON with media data shortened to about as many bytes as an estimate needs for their tokens: a picture of a
    megabyte would count as 300,000 tokens."""
    if not any(word in raw for word in PAYLOAD_WORDS):
        return raw
    texts = raw.split(b'"')
    for place, text in enumerate(texts):
        if len(text) > TOKENS * BYTES_PER_TOKEN and _PAYLOAD.match(text):
            texts[place] = xxh3_128_digest(text) * (TOKENS * BYTES_PER_TOKEN // DIGEST_BYTES)
    return b'"'.join(texts)


def holds_media(chat: ChatInput) -> bool:
    """Whether a message has a part that is not text."""
    return bool(media_of(chat.messages))


def can_be_asked(chat: ChatInput) -> bool:
    """Whether an engine can report the ids of ``chat``: it has media, and none is embeddings of text, which neither a
    token nor a hash represents."""
    media = media_of(chat.messages)
    return bool(media) and not any(part.get("type") == EMBEDDED or EMBEDDED in part for part in media)


def around_media(renderer: Renderer, encoder: Encoder, chat: ChatInput, most: int) -> Prompt:
    """The prompt of a chat that holds media. ``most``: characters of its text.

    Raises:
        Unrenderable: the chat cannot be rendered at all; says why.
    """
    media = media_of(chat.messages)
    marked = renderer.render(chat, most, "marked")
    before, *behind = marked.split(MARK)
    if len(behind) != len(media):  # the template drops or repeats contents
        raise Unrenderable(Why.MEDIA)
    if renderer.content_format(chat) == "openai":
        head = _shown_head(renderer.render(chat, media="shown"), before, encoder, chat.add_special_tokens)
    else:
        head = _special_head(before, renderer.special_tokens, encoder, chat.add_special_tokens)
    (own,) = encoder.encode([before], add_special_tokens=chat.add_special_tokens)
    ids = head + own[len(head) :]
    for part, text in zip(media, encoder.encode(behind, add_special_tokens=False), strict=True):
        ids += _stand_in(part)
        ids += text
    return Prompt(ids=ids, count=len(ids), exact=True, why=str(Why.MEDIA))


def _shown_head(shown: str, before: str, encoder: Encoder, add_special_tokens: bool) -> array[int]:
    """Leading ids of ``shown``, the text that the engine tokenizes, as far as both texts are equal.

    ``before``: the text before the first mark. A template may write an image's placeholder elsewhere, or other text
    because there is an image: then both texts differ from there on.
    """
    text = before[: _common(before, shown)]
    whole, alone = encoder.encode([shown, text], add_special_tokens=add_special_tokens)
    return alone[: _common(alone, whole)]


def _special_head(before: str, specials: Sequence[str], encoder: Encoder, add_special_tokens: bool) -> array[int]:
    """Leading ids of ``before``, up to its last special token. The placeholder of an image is not known, and its
    beginning could form one token with the end of the text."""
    end = max((at + len(token) for token in specials if token and (at := before.rfind(token)) >= 0), default=0)
    if not end:
        return array("I")
    alone, longer = encoder.encode([before[:end], before], add_special_tokens=add_special_tokens)
    return alone[: _common(alone, longer)]


def _common(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Length of the common prefix."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _stand_in(part: Mapping[str, Any]) -> array[int]:
    digest = array("I", xxh3_128_digest(msgspec.json.encode(part)))
    return array("I", [one | BEYOND_VOCABULARY for one in digest]) * (TOKENS // DIGEST_IDS)
