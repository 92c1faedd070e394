"""The admin route of replicas: who of the others is heard, whether the server between them is there, and how limits are
divided with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiohttp import web

from gateway.proxy.admin.answers import answer, refused
from gateway.sharing.peers import Seen
from gateway.sharing.replicas import Replicas
from gateway.tenants.divider import Divider
from gateway.valkey.link import Link


class ReplicaRoutes:
    """Both are None where ``sharing.url`` is not set."""

    def __init__(self, replicas: Replicas | None, divider: Divider | None) -> None:
        self._replicas = replicas
        self._divider = divider

    def routes(self) -> Sequence[web.RouteDef]:
        return (web.get("/replicas", self._shown),)

    async def _shown(self, http: web.Request) -> web.Response:
        replicas, divider = self._replicas, self._divider
        if replicas is None or divider is None:
            return refused(404, "There are no replicas: sharing.url is not set.")
        bus = replicas.bus
        return answer(
            {
                "name": replicas.name,
                "replica": replicas.host,
                "place": replicas.place,
                "server": _server(replicas.link),
                "bus": None if bus is None else _server(bus.link) | {"dropped": dict(bus.dropped)},
                "unseen": round(replicas.unseen, 3),
                "peers": [_peer(seen) for seen in replicas.seen()],
                "limits": _server(divider.link) | {"mode": divider.mode, "replicas": divider.replicas},
            }
        )


def _server(link: Link) -> dict[str, Any]:
    return {"connected": link.up, "problem": link.problem, "outages": link.outages}


def _peer(seen: Seen) -> dict[str, Any]:
    return seen._asdict() | {"silent": round(seen.silent, 3), "rate": round(seen.rate, 1)}
