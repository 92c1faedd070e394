"""Where features that are off by default take part in a request's life.

Each is a file of ``proxy/extras``, and the wiring makes an object of it only if the configuration asks for it. A
request without it pays for one look at an empty tuple. ``ResponseAffinity``, which is always on, is a hook, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gateway.api.body import Body
from gateway.api.parse import Parsed
from gateway.core.prompt import Prompt
from gateway.framework import Endpoint, Kind
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.call import IncomingRequest
from gateway.proxy.upstream.commit import Committed


class PromptSource(Protocol):
    """Another source of a prompt's tokens than our own tokenizer."""

    async def prompt(self, incoming: IncomingRequest, parsed: Parsed) -> Prompt | None:
        """The prompt; None: this source does not have it."""


class BeforeSend(Protocol):
    """Changes what a leg sends."""

    async def before_send(self, attempt: Attempt, endpoint: Endpoint, body: Body, leg: str) -> Body:
        """The body of the leg (``prefill`` or ``decode``) that goes to ``endpoint``: ``body``, or a changed copy."""
        ...


AfterSettle = Callable[[], None]
"""A function that is called once the request has succeeded and has given everything back. It returns at once."""


class AfterCommit(Protocol):
    """Sees an answer that may be relayed, before its client does; the request's body and tokens are still there."""

    def after_commit(self, attempt: Attempt, committed: Committed) -> AfterSettle | None:
        """A function to call after the request is settled; None: none."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """All hooks but ``BeforeSend``, which the ``Forwarder`` has. ``prompt_sources``: tried in turn, before our own
    tokenizer. ``after_commit``: by the kind of request."""

    prompt_sources: tuple[PromptSource, ...] = ()
    after_commit: Mapping[Kind, Sequence[AfterCommit]] = field(default_factory=dict)
