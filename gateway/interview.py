"""What ``kvgate check`` asks an engine: its version, its metrics, its configuration, and, if allowed, one prefill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from gateway.config.settings import ModelSettings
from gateway.fleet.address import Address, Contexts
from gateway.fleet.probe import MAX_JSON, EngineProbe, ProbeFailed, Sessions
from gateway.fleet.settings import EndpointSettings
from gateway.framework import Clock

TIMEOUT = 3.0
"""Seconds for one question: a person waits for the answer."""

CONFIGURATION_TIMEOUT = 30.0
"""Seconds for ``/server_info``: for the first of them vLLM looks around on its machine with a dozen commands (``pip``,
``lscpu``, ``nvidia-smi``, ...), 3 s where it has nothing else to do and a multiple of that where it has."""

PREFILL_TIMEOUT = 30.0
"""Seconds for a prefill: it waits in the engine's queue like any other."""

PROMPT = "kvgate check asks where your KV can be fetched."
PARAMETERS = {"do_remote_decode": True, "do_remote_prefill": False}


@dataclass(slots=True)
class Told:
    """What an engine said. ``unreachable``: why it said nothing, a short word; then the rest is empty. ``detail``: more
    of that, or empty.

    ``configured``: it told its configuration, as vLLM does in development mode only; ``transfer`` is the part of it on
    KV transfer, ``side_channel`` its VLLM_NIXL_SIDE_CHANNEL_HOST. ``late``: paths that it did not answer in time: what
    they would have told is missing, and nothing is known by that. ``probed``: the ``kv_transfer_params`` of a prefill's
    answer, empty if it had none; None if there was no probe.
    """

    endpoint: EndpointSettings
    unreachable: str = ""
    detail: str = ""
    version: str | None = None
    metrics: bytes | None = None
    configured: bool = False
    transfer: Mapping[str, Any] = field(default_factory=dict)
    side_channel: str | None = None
    late: list[str] = field(default_factory=list)
    probed: Mapping[str, Any] | ProbeFailed | None = None

    @property
    def why(self) -> str:
        """Why it said nothing, as a person is told."""
        return f"{self.unreachable}, {self.detail}" if self.detail else self.unreachable


async def ask(interviews: Interviews, model: ModelSettings, endpoint: EndpointSettings, *, probe: bool) -> Told:
    """Raises ConfigError if its TLS files cannot be used; an engine that cannot be reached has said so."""
    told = Told(endpoint)
    engine = interviews.of_endpoint(endpoint)
    try:
        told.version = await engine.version()
    except ProbeFailed as failure:
        told.unreachable, told.detail = failure.reason, failure.detail
        return told
    try:
        told.metrics = await engine.metrics()
    except ProbeFailed as failure:  # or not vLLM's, or not open: nothing to be seen in them
        if failure.reason == "timeout":
            told.late.append("/metrics")
    info: Mapping[str, Any] = {}
    try:
        info = await interviews.of_endpoint(endpoint, CONFIGURATION_TIMEOUT).server_info()
    except ProbeFailed as failure:  # or not in development mode
        if failure.reason == "timeout":
            told.late.append("/server_info")
    config, environ = _mapping(info.get("vllm_config")), _mapping(info.get("vllm_env"))
    told.configured = bool(config)
    told.transfer = _mapping(config.get("kv_transfer_config"))
    side_channel = environ.get("VLLM_NIXL_SIDE_CHANNEL_HOST")
    if isinstance(side_channel, str) and told.transfer:
        told.side_channel = side_channel
    if probe:
        try:
            told.probed = await engine.prefill(model)
        except ProbeFailed as failure:
            told.probed = failure
    return told


class Interview(EngineProbe):
    """The fleet's questions, and those that only a person has a use for."""

    async def server_info(self) -> Mapping[str, Any]:
        """``/server_info``, which exists in vLLM's development mode only. Raises ProbeFailed."""
        return _mapping(await self._json("/server_info?config_format=json"))

    async def kv_sources_told(self) -> Mapping[str, Any] | None:
        """As ``kv_sources``; None where there is no such route. Raises ProbeFailed."""
        try:
            return _mapping(await self._json("/kv_event_sources"))
        except ProbeFailed as failure:
            if failure.reason.startswith("status-4"):
                return None
            raise

    async def prefill(self, model: ModelSettings) -> Mapping[str, Any]:
        """Compute a few tokens for another engine; the ``kv_transfer_params`` of the answer. Raises ProbeFailed."""
        name = model.served_name or await self.served_name(model.name)
        body = {"model": name, "prompt": PROMPT, "max_tokens": 1, "kv_transfer_params": PARAMETERS}
        return _mapping(_mapping(await self.post("/v1/completions", body)).get("kv_transfer_params"))

    async def post(self, path: str, body: Mapping[str, Any], **headers: str) -> Any:
        """The JSON that answers ``body``. Raises ProbeFailed."""
        headers = {**self._headers, "content-type": "application/json", **headers}
        timeout = aiohttp.ClientTimeout(total=PREFILL_TIMEOUT)
        content = await self._ask("POST", path, MAX_JSON, timeout, headers, orjson.dumps(body))
        try:
            return orjson.loads(content)
        except ValueError:
            raise ProbeFailed("garbage") from None

    async def served_name(self, name: str) -> str:
        """As the fleet has it: the model's own if the engine serves it, else its first that is no adapter."""
        served = await self.models()
        return name if name in served else next((one.id for one in served.values() if one.parent is None), name)


class Interviews(Sessions):
    """Connections to engines of which no more is known than a configuration says."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, keepalive=1.0)
        self._contexts = Contexts()

    def of_endpoint(self, endpoint: EndpointSettings, timeout: float = TIMEOUT) -> Interview:
        """``timeout``: seconds for one question. Raises ConfigError if its TLS files cannot be used."""
        return Interview(self, Address.of(endpoint, self._contexts), endpoint.api_key, timeout, _ignore)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _ignore(_: float) -> None:
    """How long a connection takes to make is the fleet's concern."""
