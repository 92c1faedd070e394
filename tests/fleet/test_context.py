from __future__ import annotations

from gateway.fleet.context import FleetListener, Listeners
from gateway.fleet.kv_source import KvSource


class Recorder:
    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def endpoint_added(self, endpoint) -> None:
        self.told.append(("added", endpoint))

    def endpoint_dropped(self, endpoint) -> None:
        self.told.append(("dropped", endpoint))

    def engine_restarted(self, endpoint) -> None:
        self.told.append(("restarted", endpoint))

    def engine_asleep(self, endpoint) -> None:
        self.told.append(("asleep", endpoint))

    def kv_source(self, endpoint, source) -> None:
        self.told.append(("source", endpoint, source))


class Faulty(Recorder):
    def endpoint_added(self, endpoint) -> None:
        raise RuntimeError("no")


def test_one_that_fails_does_not_silence_the_others(caplog):
    listeners, recorder = Listeners(), Recorder()
    listeners.add(Faulty())
    listeners.add(recorder)
    source = KvSource("tcp://h:1")
    listeners.notify(FleetListener.endpoint_added, "e")
    listeners.notify(FleetListener.kv_source, "e", source)
    listeners.notify(FleetListener.engine_restarted, "e")
    listeners.notify(FleetListener.engine_asleep, "e")
    listeners.notify(FleetListener.endpoint_dropped, "e")
    assert [told[0] for told in recorder.told] == ["added", "source", "restarted", "asleep", "dropped"]
    assert recorder.told[1] == ("source", "e", source)
    assert "a fleet listener failed" in caplog.text
