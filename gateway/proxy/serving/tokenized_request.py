"""A request whose token ids are joined when a plugin reads them, which few do: a long known prompt's are in pieces that
other prompts share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.core.prompt import Ids, joined
from gateway.framework import Request


class TokenizedRequest(Request):
    """``ids``: what ``token_ids`` is made of while it has no value; None: it has one."""

    __slots__ = ("ids",)

    ids: Ids | None

    if not TYPE_CHECKING:  # where each name would be taken for an attribute

        def __getattr__(self, name: str) -> Any:
            """Python asks this for an attribute without a value."""
            if name != "token_ids" or self.ids is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            self.token_ids = whole = joined(self.ids)
            self.ids = None
            return whole
