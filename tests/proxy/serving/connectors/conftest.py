"""A pair of endpoints, and bodies as clients send them."""

from __future__ import annotations

import orjson
import pytest

from gateway.api.body import JsonBody
from gateway.api.settings import PassThroughSettings
from gateway.core.clock import SystemClock
from gateway.fleet.load.cost import FittedCost
from gateway.fleet.load.ledger import Ledger
from gateway.fleet.settings import StartingCosts
from gateway.framework import Endpoint, Engine, Kind
from gateway.framework.fleet import Model
from gateway.proxy.serving.connectors import Pair


def endpoint(url: str, slot: int, rank: int | None = None) -> Endpoint:
    engine = Engine(url=url, name=url.removeprefix("http://"), up=True)
    load, cost = Ledger(SystemClock()), FittedCost(StartingCosts())
    return Endpoint(slot=slot, name=engine.name, model=Model("sim"), engine=engine, load=load, cost=cost, rank=rank)


@pytest.fixture
def make_pair():
    def make(kind: Kind = Kind.CHAT, url: str = "http://p.example:8000", rank: int | None = None) -> Pair:
        return Pair(kind, endpoint(url, 0, rank), endpoint("http://d.example:8000", 1), 8998)

    return make


@pytest.fixture
def make_body():
    def make(**fields: object) -> JsonBody:
        return JsonBody(orjson.dumps({"model": "sim", **fields}), PassThroughSettings())

    return make


@pytest.fixture
def read():
    """What an engine gets."""
    return lambda body: orjson.loads(body.encode("sim"))
