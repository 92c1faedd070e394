"""The request that ``kvgate explain`` asks about, and a client of a running gateway's admin listener."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
import orjson

from gateway.api.routes import ROUTES
from gateway.config.settings import Config
from gateway.errors import ConfigError, GatewayError
from gateway.fleet.address import Location

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A header's name: RFC 9110, 5.6.2."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request as a client would send it. ``headers``: lower-case names. ``tenant``: whom it is for; empty: as a
    request without a key."""

    path: str
    raw: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    tenant: str = ""


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
    return Question(path or (CHAT if "messages" in body else COMPLETIONS), raw, dict(map(_header, headers)))


def _header(line: str) -> tuple[str, str]:
    name, colon, value = (part.strip() for part in line.partition(":"))
    # The HTTP client would refuse to send it, which would look as if no gateway answered.
    if not (colon and TOKEN.fullmatch(name) and value.isprintable()):
        raise ConfigError(f"--header: {line!r} must be NAME: VALUE, on one line")
    return name.lower(), value


CONNECT = 2.0
"""Seconds to connect. The gateway is on this machine or in its network."""

ANSWER = 60.0
"""Seconds for an answer. The gateway tokenizes the prompt, behind other requests if it is busy."""

ANYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "*": "127.0.0.1"}
"""The loopback address by which a listener on all addresses is reached."""


class Unanswered(GatewayError):
    """No gateway answers at that address, or it refuses the request."""


class RunningGateway:
    """An async context that holds connections. ``url``: of the gateway's admin listener."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    async def __aenter__(self) -> Self:
        # The system's authorities, and not only those that come with httpx.
        system = ssl.create_default_context()
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=CONNECT), verify=system, trust_env=False, follow_redirects=True
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def serves(self, config: Config) -> bool:
        """Whether it serves the models of ``config`` on the same engines, beside those that it has found and those that
        have registered themselves. Raises Unanswered."""
        endpoints = (await self._ask("GET", "/endpoints"))["endpoints"]
        served = {(one["model"], one["url"]) for one in endpoints if one["state"] not in ("removed", "coming")}
        told = await self._ask("GET", "/discovery")
        found = {(one["model"], Location.of(url).url) for one in told["sources"] for url in one["endpoints"]}
        found |= {(one["model"], Location.of(one["url"]).url) for one in told["registered"]}
        wanted = {(model.name, Location.of(one.url).url) for model in config.models for one in model.endpoints}
        return wanted <= served <= wanted | found and {name for name, _ in served} <= {
            model.name for model in config.models
        }

    async def explain(self, question: Question) -> dict[str, Any]:
        """Raises Unanswered."""
        headers = {"content-type": "application/json", **question.headers}
        params = {"path": question.path} | ({"tenant": question.tenant} if question.tenant else {})
        return await self._ask("POST", "/debug/explain", params=params, content=question.raw, headers=headers)

    async def decisions(self, request_id: str) -> list[dict[str, Any]]:
        """The decisions about one request, the first attempt first. Raises Unanswered."""
        answer = await self._ask("GET", "/debug/decisions", params={"request_id": request_id, "limit": "100"})
        return list(reversed(answer["decisions"]))

    async def _ask(self, method: str, path: str, **how: Any) -> dict[str, Any]:
        try:
            async with asyncio.timeout(ANSWER):
                reply = await self._client.request(method, self.url + path, **how)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            raise Unanswered(f"no gateway answers at {self.url}: {str(error) or type(error).__name__}") from error
        try:
            answer = orjson.loads(reply.content)
            if reply.status_code == 200:
                return dict(answer)
            message = answer["error"]["message"]
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
            raise Unanswered(
                f"{self.url}{path} answered {reply.status_code}: it is no kvgate of this version"
            ) from None
        raise Unanswered(message)


def checked(url: str) -> str:
    """Return ``url``, the value of ``--url``. Raises ConfigError if it is no HTTP address."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and not (parts.query or parts.fragment)
        _ = parts.port
    except ValueError:
        good = False
    if not good or " " in url:
        raise ConfigError(
            f"--url: {url!r} must be http://HOST:PORT of a gateway's admin listener, such as http://127.0.0.1:9000"
        )
    return url


def admin_url(config: Config) -> str | None:
    """The URL of the admin listener of a gateway of ``config`` on this machine; None if it cannot be known."""
    host, _, port = config.listen.admin.rpartition(":")
    return f"http://{ANYWHERE.get(host, host)}:{port}" if host and int(port) else None
