"""Parses a body to a ``Parsed``: the fields of a request that routing needs, and no others.

Rules: only what routing needs is checked (an object, a model's name, messages, a prompt's form, ``stream``). Everything
else is the engine's to judge, and its own error goes back unchanged. Every error names the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from gateway.api.body import Body, JsonBody
from gateway.api.field_filter import Fields
from gateway.api.indivisible import CHAT_FIELDS, indivisible
from gateway.api.known_chats import MOST, KnownChats
from gateway.api.lax import TRUE_WORDS, is_utf8, truth
from gateway.api.multipart import MultipartBody
from gateway.api.prompts import NULL, READERS, UNREADABLE, read_chat, unreadable
from gateway.api.routes import Route
from gateway.api.settings import PassThroughSettings
from gateway.core.prompt import ChatInput, OpaqueInput, PromptInput
from gateway.errors import ClientError, UnsupportedMediaType
from gateway.framework import GENERATES, Kind

LIMIT_FIELDS: Mapping[Kind, tuple[str, ...]] = {
    Kind.CHAT: ("max_completion_tokens", "max_tokens"),
    Kind.COMPLETION: ("max_tokens",),
    Kind.RESPONSES: ("max_output_tokens",),
    Kind.MESSAGES: ("max_tokens",),
}
"""The fields with which each kind limits its output; the first that is set counts, as in vLLM."""
COMPLETION_LIMIT = 16
"""Output tokens of a completion that sets no limit: vLLM's and OpenAI's default of that route."""
MAX_N = 16384
"""vLLM refuses a larger ``n`` (its VLLM_MAX_N_SEQUENCES). Until it does, the number must not distort the ledger."""
AUDIO_BYTES_PER_TOKEN = 640
"""Bytes per second of 16-bit sound at 16 kHz, divided by Whisper's 50 encoder positions a second. For compressed files
the estimate is too small."""

T = TypeVar("T")
_INT, _STR = msgspec.json.Decoder(int), msgspec.json.Decoder(str)


class Parsed(msgspec.Struct):
    """A parsed request. ``model``: empty if the body names none. ``n``: number of sequences.

    ``max_tokens``: the most output tokens per sequence; None: no limit known. ``priority``: lower is earlier, as in
    vLLM. ``session``: the body's session or cache key. ``indivisible``: why one endpoint must serve all of it, in a
    word; empty: another endpoint may prefill it. ``previous_response``: the id of the response that it continues, which
    one engine has in its memory.
    """

    route: Route
    body: Body
    model: str
    stream: bool
    input: PromptInput
    max_tokens: int | None = None
    n: int = 1
    cache_salt: str | None = None
    priority: int = 0
    session: str | None = None
    indivisible: str = ""
    previous_response: str | None = None


def parse(
    route: Route, raw: bytes, content_type: str, settings: PassThroughSettings, known: KnownChats | None = None
) -> Parsed:
    """Read a body that came with ``content_type`` (the header's value, empty if there was none). ``known``: chats that
    came before, to which a long one is added.

    Raises:
        ClientError: it cannot be routed; ``param`` names the culprit.
        UnsupportedMediaType: the content type is not the route's.
    """
    media = content_type.partition(";")[0].strip().lower()
    if route.multipart:
        if media != "multipart/form-data":
            raise UnsupportedMediaType(f"{route.path} takes multipart/form-data", param="content-type")
        return _form(route, MultipartBody(raw, content_type, settings))
    if media not in ("", "application/json") and not media.endswith("+json"):
        raise UnsupportedMediaType(f"{route.path} takes application/json", param="content-type")
    kind, chat = route.kind, None
    if known is not None and (kind is not Kind.CHAT or not known.least <= len(raw) <= MOST or not is_utf8(raw)):
        known = None
    if known is not None:
        chat = known.read(raw, settings)
    body = JsonBody(raw, settings) if chat is None else chat.body
    fields = body.fields
    if body.malformed and kind in GENERATES:
        raise ClientError(f"{body.malformed} must be an object", param=body.malformed)
    if chat is not None:
        prompt = read_chat(fields, chat.messages, chat.known)
    else:
        prompt = READERS[kind](fields)
        if known is not None and isinstance(prompt, ChatInput):
            known.add(raw, fields, prompt.messages)
    named = fields.get("model", NULL)
    try:
        model = "" if named == NULL else _STR.decode(named)  # an empty one is none, as in vLLM
    except UNREADABLE as error:
        raise unreadable("model", error) from None
    stream = "stream" in fields and kind in GENERATES and _streams(fields["stream"])
    most = COMPLETION_LIMIT if kind is Kind.COMPLETION else None
    for name in LIMIT_FIELDS.get(kind, ()):
        if name in fields:
            try:
                limit = _INT.decode(fields[name])
            except UNREADABLE:  # the engine refuses it
                continue
            if limit > 0:
                most = limit
                break
    parsed = Parsed(route, body, model, stream, prompt, most)
    # Each of these is looked for first: a request has few of them.
    if kind is not Kind.CHAT or not CHAT_FIELDS.isdisjoint(fields):
        parsed.indivisible = indivisible(kind, fields, prompt)
    if not OPTIONS.isdisjoint(fields):
        _read_options(parsed, kind, fields)
    return parsed


OPTIONS = frozenset({"n", "cache_salt", "priority", "session_id", "prompt_cache_key", "previous_response_id"})
"""Fields that few requests have."""


def _read_options(parsed: Parsed, kind: Kind, fields: Fields) -> None:
    """Enter ``OPTIONS``. The engine refuses one of another type."""
    parsed.n = min(MAX_N, max(1, _value(fields, "n", _INT) or 1))
    parsed.cache_salt = _value(fields, "cache_salt", _STR)
    parsed.priority = _value(fields, "priority", _INT) or 0
    parsed.session = _value(fields, "session_id", _STR)
    if "prompt_cache_key" in fields and not parsed.session:
        parsed.session = _value(fields, "prompt_cache_key", _STR)
    if kind is Kind.RESPONSES:
        parsed.previous_response = _value(fields, "previous_response_id", _STR)


def _form(route: Route, body: MultipartBody) -> Parsed:
    model = body.value("model") or b""
    try:
        name = model.decode()
    except UnicodeDecodeError:
        raise ClientError("model is not UTF-8", param="model") from None
    sound = body.find("file") or memoryview(b"")
    return Parsed(
        route=route,
        body=body,
        model=name,
        stream=(body.value("stream") or b"").decode("latin-1").lower() in TRUE_WORDS,
        # Bytes of the file in proportion to its estimated tokens: equal files still begin with equal ids.
        input=OpaqueInput(
            (body.value("prompt") or b"") + bytes(sound[: len(sound) // AUDIO_BYTES_PER_TOKEN * 4]), "multipart"
        ),
    )


def _streams(stream: msgspec.Raw) -> bool:
    if stream == NULL:
        return False
    found = truth(stream)
    if found is None:
        raise ClientError("stream must be a boolean", param="stream")
    return found


def _value(fields: Fields, name: str, decoder: msgspec.json.Decoder[T]) -> T | None:
    """None if there is no such field, or it is of another type."""
    try:
        return decoder.decode(fields[name]) if name in fields else None
    except UNREADABLE:
        return None
