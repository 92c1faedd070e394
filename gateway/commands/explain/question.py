"""The request that ``kvgate explain`` asks about, as a client would send it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from gateway.api.routes import ROUTES
from gateway.errors import ConfigError

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A header's name: RFC 9110, 5.6.2."""


@dataclass(frozen=True, slots=True)
class Question:
    """``headers``: lower-case names."""

    path: str
    raw: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def read_question(prompt_file: Path, model: str | None, path: str | None, headers: Sequence[str]) -> Question:
    """Read a request's JSON, or a plain prompt, from ``prompt_file``. ``model``, ``path``: used if it does not name
    them. ``headers``: each as ``NAME: VALUE``.

    Raises ConfigError.
    """
    if path is not None and path not in ROUTES:
        raise ConfigError(f"--path: {path!r} is none of the paths that clients may send to")
    try:
        content = prompt_file.read_bytes()
    except OSError as error:
        raise ConfigError(f"--prompt-file: {prompt_file} cannot be read: {error.strerror}") from error
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        body = None
    if not isinstance(body, dict) or not (path or "messages" in body or "prompt" in body):
        try:
            body = {"prompt": content.decode()}
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"--prompt-file: {prompt_file} is neither a JSON request nor UTF-8 text: {error}"
            ) from error
    if model is not None:
        body["model"] = model
    try:
        raw = orjson.dumps(body)
    except TypeError as error:  # it is nested too deeply, or a name is not valid text
        raise ConfigError(f"the request of --prompt-file and --model cannot be written as JSON: {error}") from error
    return Question(path or _path(body), raw, dict(map(_header, headers)))


def _path(body: Mapping[str, Any]) -> str:
    return CHAT if "messages" in body else COMPLETIONS


def _header(line: str) -> tuple[str, str]:
    name, colon, value = (part.strip() for part in line.partition(":"))
    # The HTTP client would refuse to send it, which would look as if no gateway answered.
    if not (colon and TOKEN.fullmatch(name) and value.isprintable()):
        raise ConfigError(f"--header: {line!r} must be NAME: VALUE, on one line")
    return name.lower(), value
