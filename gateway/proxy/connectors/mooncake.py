"""vLLM's MooncakeConnector: we name the transfer, and tell the decode engine which engine to ask for it: that engine's
bootstrap server says who it is. Both legs go out at once, and the decode engine waits for the KV.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from gateway.api.body import JsonBody
from gateway.framework import Engine
from gateway.proxy.connectors.contract import Fetch, HandoverFailed, Pair
from gateway.proxy.connectors.one_token import one_token

KNOWN_FOR = 10.0
"""Seconds for which an engine's ids are believed: they change when it restarts, which a scrape shows a second later."""

_RANKS = msgspec.json.Decoder(dict[str, dict[str, Any]])


class Mooncake:
    """``fetch``: asks a bootstrap server. ``now``: seconds."""

    at_once = True
    alone = True

    def __init__(self, fetch: Fetch, now: Callable[[], float]) -> None:
        self._fetch = fetch
        self._now = now
        self._known: dict[str, tuple[float, Engine, float | None, Sequence[str]]] = {}

    async def open(self, pair: Pair) -> MooncakeTransfer:
        host = urlsplit(pair.prefill.engine.url).hostname or ""
        address = f"http://[{host}]" if ":" in host else f"http://{host}"
        address += f":{pair.bootstrap_port}"
        ids = await self._ids(address, pair.prefill.engine)
        rank = pair.prefill.rank
        if rank is None and len(ids) > 1:
            raise HandoverFailed("bootstrap", f"{address} has {len(ids)} ranks, and the endpoint is none of them")
        if rank is not None and rank >= len(ids):
            raise HandoverFailed("bootstrap", f"{address} does not know rank {rank}")
        # Counted, not named: behind a hybrid load balancer the ranks of a node begin above 0, but ours at 0.
        return MooncakeTransfer(pair, ids[rank or 0], address)

    async def _ids(self, address: str, engine: Engine) -> Sequence[str]:
        """The engine ids in the order of their ranks; not empty."""
        known = self._known.get(address)
        if known is not None and known[0] > self._now() and known[1] is engine and known[2] == engine.started:
            return known[3]
        answer = await self._fetch(f"{address}/query")
        try:
            ranks = _RANKS.decode(answer)
            ids = [ranks[rank]["engine_id"] for rank in sorted(ranks, key=int)]
        except (msgspec.MsgspecError, ValueError, RecursionError, KeyError) as error:
            raise HandoverFailed("bootstrap", f"{address}/query: {error}") from None
        if not ids or not all(isinstance(value, str) and value for value in ids):
            raise HandoverFailed("bootstrap", f"{address}/query names no engine")
        self._known[address] = self._now() + KNOWN_FOR, engine, engine.started, ids
        return ids


class MooncakeTransfer:
    lease: float | None = None

    def __init__(self, pair: Pair, engine_id: str, address: str) -> None:
        self._kind = pair.kind
        self._id = f"xfer-{uuid.uuid4()}"
        self._engine_id = engine_id
        self._address = address

    def prefill(self, body: JsonBody) -> JsonBody:
        leg = one_token(body, self._kind)
        # Only an answer that ended by its length is sent on: nothing else may end it.
        leg.set("ignore_eos", True)
        for name in ("stop", "stop_token_ids", "stop_sequences"):
            leg.drop(name)
        leg.set(
            "kv_transfer_params",
            {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": self._id},
        )
        return leg

    def decode(self, body: JsonBody, answer: bytes) -> JsonBody:
        leg = body.copy()
        leg.set(
            "kv_transfer_params",
            {
                "do_remote_prefill": True,
                "do_remote_decode": False,
                "transfer_id": self._id,
                "remote_engine_id": self._engine_id,
                "remote_bootstrap_addr": self._address,
            },
        )
        return leg
