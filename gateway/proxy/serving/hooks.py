"""Where features that are off by default take part in a request's life.

Each is a file of ``proxy/extras`` that exists at run time only if the configuration asks for it. The wiring registers
it here, so that a request without it pays for one look at an empty tuple.
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
from gateway.proxy.serving.call import Asked
from gateway.proxy.upstream.commit import Committed


class PromptSource(Protocol):
    """Another source of a prompt's tokens than our own tokenizer."""

    async def prompt(self, asked: Asked, parsed: Parsed) -> Prompt | None:
        """The prompt; None: it has nothing to say of this one."""


class BeforeSend(Protocol):
    """Changes what a leg sends."""

    async def before_send(self, attempt: Attempt, endpoint: Endpoint, body: Body, leg: str) -> Body:
        """The body of the leg (``prefill`` or ``decode``) that goes to ``endpoint``: ``body``, or a changed copy."""
        ...


AfterSettle = Callable[[], None]
"""Is called once the request has ended well and has given everything back. Returns at once."""


class AfterCommit(Protocol):
    """Sees an answer that may be relayed, before its client does; the request's body and tokens are still there."""

    def after_commit(self, attempt: Attempt, committed: Committed) -> AfterSettle | None:
        """What is to be done after the request is settled; None: nothing."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """Of all requests; ``BeforeSend`` are given to the ``Forwarder``. ``prompt_sources`` are asked in turn, before our
    own tokenizer. ``after_commit``: by the kind of request that they are for."""

    prompt_sources: tuple[PromptSource, ...] = ()
    after_commit: Mapping[Kind, Sequence[AfterCommit]] = field(default_factory=dict)
