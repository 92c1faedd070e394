"""Which session a request belongs to, by a header, a cookie or its body."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.api.settings import SessionSettings


def read_session(body: str | None, headers: Mapping[str, str], cookie: str, settings: SessionSettings) -> str | None:
    """The first that is present of: the headers in the order of the settings, the cookie, the body's field.

    ``headers``: lower-case names. ``cookie``: the Cookie header, of which only the configured one is read.
    """
    for name in settings.headers:
        if value := headers.get(name):
            return value
    if settings.cookie is not None and cookie:
        for pair in cookie.split(";"):
            name, _, value = pair.strip().partition("=")
            if name == settings.cookie and value:
                return value
    return body
