"""The series of replicas: who is heard, whether the server between them is there, and what of theirs is not used."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.observability.instruments import Counter, Gauge, Labels


class SharingFamilies:
    """``peers``: gives the other replicas by state, and ``connected`` whether the server is there, None where there is
    none, when metrics are shown. ``limits``: gives 1 for the way in which limits are divided with other replicas.
    ``dropped``: as ``Observer.bus_dropped``."""

    def __init__(self, gauge: Callable[..., Gauge], counter: Callable[..., Counter]) -> None:
        """``gauge``, ``counter``: make an instrument and show it among the others."""
        self.peers: Callable[[], Mapping[str, int]] = dict
        self.connected: Callable[[], bool | None] = lambda: None
        self.limits: Callable[[], Mapping[Labels, float]] = dict
        gauge(
            *("peers", "Other replicas that are heard.", "state"),
            read=self._states,
        )
        gauge(
            "bus_connected",
            "1 while the server over which replicas tell each other their loads is there.",
            read=self._connected,
            over="min",
        )
        gauge(
            "limits_mode",
            "1 for the way in which limits of tenants and keys are divided with other replicas now, else 0.",
            "mode",
            read=lambda: self.limits(),
            over="max",
        )
        self.dropped = counter("bus_dropped", "Messages of other replicas that are not used.", "reason")

    def _states(self) -> dict[Labels, float]:
        return {(state,): count for state, count in self.peers().items()}

    def _connected(self) -> dict[Labels, float]:
        connected = self.connected()
        return {} if connected is None else {(): int(connected)}
