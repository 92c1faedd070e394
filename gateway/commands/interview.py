"""The requests of ``kvgate check`` to an engine: version, metrics, configuration and, if allowed, one prefill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import orjson

from gateway.config.settings import ModelSettings
from gateway.fleet.address import Address, TlsContexts
from gateway.fleet.engine_client import ProbeFailed
from gateway.fleet.probe import MAX_JSON, EngineProbe
from gateway.fleet.settings import EndpointSettings
from gateway.framework import Clock
from gateway.http1.pool import Pool

TIMEOUT = 3.0
"""Seconds for one request. It is short because a person waits for the command."""

CONFIGURATION_TIMEOUT = 30.0
"""Seconds for ``/server_info``. For its first answer vLLM runs a dozen commands (``pip``, ``lscpu``, ``nvidia-smi``,
...): 3 s on an idle machine, several times that on a busy one."""

PREFILL_TIMEOUT = 30.0
"""Seconds for a prefill, which waits in the engine's queue like any other request."""

PROMPT = "kvgate check asks where your KV can be fetched."
PARAMETERS = {"do_remote_decode": True, "do_remote_prefill": False}


@dataclass(slots=True)
class EngineReport:
    """What an engine reported.

    ``unreachable``: a short word for why it could not be asked; the other fields are then empty. ``detail``: more about
    that, or empty. ``configured``: it reported its configuration, which vLLM does in development mode only;
    ``transfer`` is the part about KV transfer, ``side_channel`` the VLLM_NIXL_SIDE_CHANNEL_HOST. ``late``: paths that
    timed out, so that nothing is known of them. ``probed``: the ``kv_transfer_params`` of the probe's answer, empty if
    it had none; None: no probe was sent.
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
        """Why it could not be asked, for a message."""
        return f"{self.unreachable}, {self.detail}" if self.detail else self.unreachable


async def ask(interviews: Interviews, model: ModelSettings, endpoint: EndpointSettings, *, probe: bool) -> EngineReport:
    """Ask one engine. An engine that cannot be reached is reported in the result. Raises ConfigError if its TLS files
    cannot be used."""
    report = EngineReport(endpoint)
    engine = interviews.of_endpoint(endpoint)
    try:
        report.version = await engine.version()
    except ProbeFailed as failure:
        report.unreachable, report.detail = failure.reason, failure.detail
        return report
    try:
        report.metrics = await engine.metrics()
    except ProbeFailed as failure:  # it is another server's, or not open: there are no metrics to read
        if failure.reason == "timeout":
            report.late.append("/metrics")
    info: Mapping[str, Any] = {}
    try:
        info = await interviews.of_endpoint(endpoint, CONFIGURATION_TIMEOUT).server_info()
    except ProbeFailed as failure:  # or not in development mode
        if failure.reason == "timeout":
            report.late.append("/server_info")
    config, environ = _mapping(info.get("vllm_config")), _mapping(info.get("vllm_env"))
    report.configured = bool(config)
    report.transfer = _mapping(config.get("kv_transfer_config"))
    side_channel = environ.get("VLLM_NIXL_SIDE_CHANNEL_HOST")
    if isinstance(side_channel, str) and report.transfer:
        report.side_channel = side_channel
    if probe:
        try:
            report.probed = await engine.prefill(model)
        except ProbeFailed as failure:
            report.probed = failure
    return report


class Interview(EngineProbe):
    """The requests of the fleet's probe, and those that only the commands need."""

    async def server_info(self) -> Mapping[str, Any]:
        """``/server_info``, which exists in vLLM's development mode only. Raises ProbeFailed."""
        return _mapping(await self._json("/server_info?config_format=json"))

    async def prefill(self, model: ModelSettings) -> Mapping[str, Any]:
        """Compute a few tokens for another engine; returns the ``kv_transfer_params`` of the answer. Raises
        ProbeFailed."""
        name = model.served_name or await self.served_name(model.name)
        body = {"model": name, "prompt": PROMPT, "max_tokens": 1, "kv_transfer_params": PARAMETERS}
        return _mapping(_mapping(await self.post_json("/v1/completions", body)).get("kv_transfer_params"))

    async def post_json(self, path: str, body: Mapping[str, Any], **headers: str) -> Any:
        """POST ``body``; returns the JSON of the answer. Raises ProbeFailed."""
        fields = {"Content-Type": "application/json", **headers}
        answer = await self.post(path, orjson.dumps(body), MAX_JSON, PREFILL_TIMEOUT, fields.items())
        try:
            return orjson.loads(answer)
        except ValueError:
            raise ProbeFailed("garbage") from None

    async def served_name(self, name: str) -> str:
        """The name to use in requests, chosen as the fleet does: the model's own name if the engine serves it, else the
        first model that is no adapter."""
        served = await self.models()
        return name if name in served else next((one.id for one in served.values() if one.parent is None), name)


class Interviews:
    """An async context that holds connections to engines that are known from a configuration only."""

    def __init__(self, clock: Clock) -> None:
        self._pool = Pool(clock)
        self._contexts = TlsContexts()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._pool.close()

    def of_endpoint(self, endpoint: EndpointSettings, timeout: float = TIMEOUT) -> Interview:
        """``timeout``: seconds for one question. Raises ConfigError if its TLS files cannot be used."""
        address = Address.of(endpoint, self._contexts)
        # How long a connection took is of use to the fleet only.
        return Interview(self._pool, address, endpoint.api_key, timeout, connected=lambda _: None)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
