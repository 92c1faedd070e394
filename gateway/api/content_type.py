"""A ``Content-Type`` with its parameters, by the grammar of RFC 9110 (sections 5.6.6 and 8.3.1).

Rule: a value that two parsers could read in two ways (a repeated parameter, an unterminated quoted string) is refused.
The engine gets a header written anew, so that it reads the same parameter as the gateway.
"""

from __future__ import annotations

import re

from gateway.errors import ClientError

_TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_MEDIA = re.compile(rf"[ \t]*({_TOKEN}/{_TOKEN})[ \t]*")
_PARAMETER = re.compile(rf';[ \t]*(?:({_TOKEN})=(?:({_TOKEN})|"((?:[\t !#-\[\]-~]|\\[\t -~])*)"))?[ \t]*')
_PAIR = re.compile(r"\\(.)")
_BOUNDARY = re.compile(r"[ !#-\[\]-~]{0,69}[!#-\[\]-~]")
"""RFC 2046 section 5.1.1: at most 70 characters, no space at the end. All characters are accepted that have no special
meaning in a quoted string."""


def parameters(content_type: str) -> dict[str, str]:
    """The parameters, names in lower case, quoted values without quotes and escapes.

    Raises:
        ClientError: it is not of the grammar, not ASCII, or names a parameter twice.
    """
    media = _MEDIA.match(content_type)
    if media is None:
        raise _refusal("it does not begin with a media type")
    found: dict[str, str] = {}
    at = media.end()
    while at < len(content_type):
        parameter = _PARAMETER.match(content_type, at)
        if parameter is None:
            raise _refusal(f'a malformed parameter at character {at}: write name=value, or name="value"')
        name, token, quoted = parameter.groups()
        if name is not None:
            if name.lower() in found:
                raise _refusal(f"{name.lower()[:40]} is given more than once: give it once")
            found[name.lower()] = token if token is not None else _PAIR.sub(r"\1", quoted)
        at = parameter.end()
    return found


def form_boundary(content_type: str) -> str:
    """The boundary of a ``multipart/form-data``.

    Raises:
        ClientError: there is no usable one, or its fields' names are not UTF-8.
    """
    given = parameters(content_type)
    boundary = given.get("boundary")
    if boundary is None:
        raise _refusal("multipart/form-data needs one boundary")
    if _BOUNDARY.fullmatch(boundary) is None:
        raise _refusal(
            "the boundary must be 1 to 70 ASCII characters, without quotes, backslashes and a space at its end"
        )
    if given.get("charset", "utf-8").lower() not in ("utf-8", "utf8", "us-ascii"):
        raise _refusal("the charset of a form must be utf-8")  # servers decode the fields' names by it
    return boundary


def form_type(boundary: str) -> str:
    """The header with only the parameter ``boundary``, which is a result of ``form_boundary``."""
    return f'multipart/form-data; boundary="{boundary}"'


def _refusal(why: str) -> ClientError:
    return ClientError(f"content-type: {why}", param="content-type")
