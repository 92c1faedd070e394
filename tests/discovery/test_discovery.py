"""The sources of all models, from one configuration to the next."""

from __future__ import annotations

import asyncio

from gateway.core.clock import ManualClock
from gateway.discovery.discovery import Discovery
from gateway.discovery.settings import DiscoverSettings
from gateway.discovery.source import Found, Lost
from gateway.fleet.settings import EndpointSettings
from tests.support.wait import eventually

A, B = EndpointSettings("http://a:1"), EndpointSettings("http://b:1")
X, Y = DiscoverSettings(file="x"), DiscoverSettings(file="y")


class Places:
    """Makes sources; by their file, how many of them are followed now, and how the last one tells."""

    def __init__(self) -> None:
        self.found: dict[str, Found] = {}
        self.running: dict[str, int] = {"x": 0, "y": 0}

    def make(self, settings: DiscoverSettings) -> Place:
        return Place(self, settings.file or "")


class Place:
    def __init__(self, places: Places, file: str) -> None:
        self._places, self._file = places, file

    async def follow(self, found: Found, lost: Lost) -> None:
        self._places.found[self._file] = found
        self._places.running[self._file] += 1
        try:
            await asyncio.Event().wait()
        finally:
            self._places.running[self._file] -= 1


async def test_what_stays_is_followed_on_and_the_rest_stopped() -> None:
    places, changes = Places(), []
    discovery = Discovery(ManualClock(), places.make, lambda: changes.append(1))
    first = discovery.prepare([("m", [X]), ("n", [X, Y])])
    discovery.adopt(first)
    await eventually(lambda: places.running == {"x": 2, "y": 1})
    discovery.registered.put({"url": "http://r:1", "model": "n"}, ["m", "n"])
    places.found["y"]([A])
    told = [(one.model, one.place, one.endpoints) for one in discovery.offers(discovery.following)]
    assert told == [
        ("n", "registered", [EndpointSettings("http://r:1")]),
        ("m", "file x", ()),
        ("n", "file x", ()),
        ("n", "file y", [A]),
    ]
    second = discovery.prepare([("n", [Y])])
    assert second.fresh == []
    assert second.followers == [first.followers[2]]
    discovery.adopt(second)
    await eventually(lambda: places.running == {"x": 0, "y": 1})
    third = discovery.prepare([("m", [X])])
    await eventually(lambda: places.running == {"x": 1, "y": 1})
    discovery.discard(third)
    await eventually(lambda: places.running == {"x": 0, "y": 1})
    assert discovery.following is second
    discovery.adopt(discovery.prepare([("m", [])]))
    assert discovery.registered.all() == []
    await discovery.close()
    assert places.running == {"x": 0, "y": 0}


async def test_a_start_waits_for_first_lists_for_a_while(caplog, monkeypatch) -> None:
    places = Places()
    discovery = Discovery(ManualClock(), places.make, lambda: None)
    following = discovery.prepare([("m", [X, Y])])
    waiting = asyncio.create_task(following.told())
    await eventually(lambda: len(places.found) == 2)
    places.found["x"]([A])
    await asyncio.sleep(0)
    assert not waiting.done()
    places.found["y"]([])
    await waiting
    monkeypatch.setattr("gateway.discovery.discovery.FIRST", 0.01)
    await discovery.prepare([("m", [X])]).told()
    assert "file x has told no endpoints yet" in caplog.text
    await discovery.close()


async def test_one_with_other_settings_at_the_same_place_begins_with_what_is_known() -> None:
    places = Places()
    discovery = Discovery(ManualClock(), places.make, lambda: None)
    discovery.adopt(discovery.prepare([("m", [X])]))
    await eventually(lambda: places.found)
    places.found["x"]([A, B])
    other = discovery.prepare([("m", [DiscoverSettings(file="x", role="decode")])])
    assert [one.endpoints for one in other.fresh] == [[A, B]]
    await discovery.close()
