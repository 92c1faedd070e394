"""Sends the prompt as our token ids where an engine would make the same of its text (``tokens.forward``)."""

from __future__ import annotations

import asyncio

from gateway.api.body import Body, JsonBody
from gateway.api.token_forwarding import json_pieces, same_answer, with_ids
from gateway.core.prompt import joined
from gateway.fleet.fleet import Fleet
from gateway.framework import Endpoint
from gateway.proxy.serving.attempt import Attempt
from gateway.tokens.agreement import FORMS


class IdForwarding:
    """A ``BeforeSend``."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def before_send(self, attempt: Attempt, endpoint: Endpoint, body: Body, leg: str) -> Body:
        """Of each leg anew: the next engine may be of another version, or make other ids."""
        call = attempt.call
        runtime, request, prompt = call.runtime, call.request, call.prompt
        if not runtime.tokens.forwards_ids:
            return body
        # An adapter's engine may give it a tokenizer of its own, and what an image becomes stands in no text.
        if not isinstance(body, JsonBody) or request.adapter is not None or prompt.own is None or prompt.media:
            return body
        kind, engine = call.route.kind, endpoint.engine
        served = engine.served.get(self._fleet.served_name(endpoint, request.model))
        max_model_len = served.max_model_len if served is not None else None
        alike = prompt.single and prompt.whole
        alike = alike and same_answer(
            kind, body.fields, prompt.count, version=engine.version, max_model_len=max_model_len
        )
        if not alike or not runtime.tokens.parity.may_send_ids(endpoint.name, engine.started, FORMS[kind]):
            return body
        pieces: list[bytes] = []
        for piece in json_pieces(joined(prompt.own)):
            if pieces:
                await asyncio.sleep(0)
            pieces.append(piece)
        attempt.timeline.by_ids = True
        return with_ids(body, kind, b"".join(pieces))
