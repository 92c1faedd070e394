"""What a body asks for, where its gateway does not say its path (NGINX Gateway Fabric).

The fields that only one route has tell it. What is guessed decides how the prompt is tokenized and booked; the gateway
sends the request to the path that its client has named, whatever was guessed.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.api.routes import ROUTES, Route
from gateway.errors import ClientError

OF_RESPONSES = frozenset({"instructions", "max_output_tokens", "previous_response_id", "reasoning", "stream", "tools"})
"""Fields of a body with ``input`` that no request for embeddings has."""

OF_MESSAGES = "anthropic-version"
"""The header that Anthropic's API requires."""

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def guess_route(body: bytes, headers: Mapping[str, str]) -> Route:
    """Raises ClientError where nothing tells what is asked."""
    try:
        fields = _FIELDS.decode(body).keys()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ClientError("The body is not a JSON object, and the gateway does not say its path.") from None
    if "messages" in fields:
        path = "/v1/messages" if OF_MESSAGES in headers else "/v1/chat/completions"
    elif "prompt" in fields:
        path = "/v1/completions"
    elif "input" in fields:
        path = "/v1/embeddings" if OF_RESPONSES.isdisjoint(fields) else "/v1/responses"
    elif "documents" in fields:
        path = "/v1/rerank"
    elif "text_1" in fields:
        path = "/v1/score"
    else:
        raise ClientError("The body does not tell what is asked, and the gateway does not say its path.")
    return ROUTES[path]
