"""Endpoints as gateways know them: by IP address and port.

The destination is one such address, or several, of which a gateway tries the first that it knows. It is told in a
header and, with the same value, in dynamic metadata.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable, Sequence
from functools import lru_cache

from google.protobuf.struct_pb2 import Struct

from gateway.core.tasks import TaskSet
from gateway.epp.messages import ProcessingRequest
from gateway.epp.names import BALANCER, DESTINATION, HINTS, SUBSET
from gateway.errors import NoEndpoint
from gateway.fleet.address import Location
from gateway.fleet.engine import FleetEndpoint
from gateway.framework import Clock, Endpoint

AGAIN = 30.0
"""Seconds after which a name is looked up again: as long as Kubernetes' DNS lets its answers be kept."""

PATIENCE = 5.0
"""Seconds for one look-up, as the system's resolver waits for a server; after that the last address is kept."""


def metadata(destination: str) -> Struct:
    """The dynamic metadata that says the same as the header."""
    said = Struct()
    said.fields[BALANCER].struct_value.fields[DESTINATION].string_value = destination
    return said


def text_in(message: ProcessingRequest, space: str, name: str) -> str:
    """A text among the metadata that the gateway passes on; empty: it is not there."""
    found = message.metadata_context.filter_metadata
    return found[space].fields[name].string_value if space in found and name in found[space].fields else ""


def subset_in(message: ProcessingRequest) -> frozenset[str] | None:
    """The addresses, with or without a port, to which the gateway restricts the request; None: it does not. It gives
    them as a list, or as one text with commas."""
    found = message.metadata_context.filter_metadata
    if HINTS not in found or SUBSET not in found[HINTS].fields:
        return None
    hint = found[HINTS].fields[SUBSET]
    texts = [one.string_value for one in hint.list_value.values] or [hint.string_value]
    return frozenset(each.strip() for text in texts for each in text.split(",") if each.strip())


def host_of(address: str) -> str:
    """``address`` without its port; of IPv6 without brackets."""
    return address.rpartition(":")[0].strip("[]")


class Addresses:
    """Finds the address of an endpoint. Engines that are configured by name are looked up; a name with several
    addresses is one engine here, and its first address is meant (``models[].discover`` makes an endpoint of each)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found: dict[str, tuple[str, float]] = {}
        self._looking: dict[str, asyncio.Task[str]] = {}
        self._tasks = TaskSet()

    async def of(self, endpoint: Endpoint) -> str:
        """``IP:PORT``. Only a name that was never found is waited for; an old one is looked up again meanwhile. Raises
        NoEndpoint where there is none."""
        known, location = self.known(endpoint), _location(endpoint)
        if location.socket is not None:
            raise NoEndpoint(f"Endpoint {endpoint.name} listens on a Unix socket, where no gateway can send a request.")
        if known is None:
            address = await asyncio.shield(self._look_up(location))  # others may wait for the same
            if not address:
                raise NoEndpoint(f"The address of endpoint {endpoint.name} is not known: its name cannot be resolved.")
            return _joined(address, location.port)
        found = self._found.get(location.host)
        if found is not None and self._clock.monotonic() - found[1] > AGAIN:
            self._look_up(location)
        return known

    def _look_up(self, location: Location) -> asyncio.Task[str]:
        """The look-up under way, or a new one."""
        task = self._looking.get(location.host)
        if task is None:
            task = self._tasks.start(self._find(location), name=f"look {location.host} up", awaited=True)
            self._looking[location.host] = task
        return task

    async def _find(self, location: Location) -> str:
        """Its IP address, or the last one; empty: it has none."""
        try:
            async with asyncio.timeout(PATIENCE):
                found = await asyncio.get_running_loop().getaddrinfo(
                    location.host, location.port, type=socket.SOCK_STREAM
                )
            address = str(found[0][4][0])
        except (OSError, UnicodeError):  # a TimeoutError is an OSError
            address, _ = self._found.get(location.host, ("", 0.0))
        finally:
            del self._looking[location.host]
        if address:
            self._found[location.host] = address, self._clock.monotonic()
        return address

    def known(self, endpoint: Endpoint) -> str | None:
        """Its address, if it needs no look-up or was found before."""
        location = _location(endpoint)
        if location.socket is not None:
            return None
        if (fixed := _literal(location)) is not None:
            return fixed
        found = self._found.get(location.host)
        return None if found is None else _joined(found[0], location.port)

    async def outside(self, subset: Iterable[str], endpoints: Sequence[Endpoint]) -> set[int]:
        """Slots of those of ``endpoints`` that are not in ``subset``."""
        allowed, out = set(subset), set()
        for endpoint in endpoints:
            try:
                address = await self.of(endpoint)
            except NoEndpoint:
                out.add(endpoint.slot)
                continue
            if address not in allowed and host_of(address) not in allowed:
                out.add(endpoint.slot)
        return out


def _location(endpoint: Endpoint) -> Location:
    assert isinstance(endpoint, FleetEndpoint)
    return endpoint.engine.location


@lru_cache(maxsize=4096)
def _literal(location: Location) -> str | None:
    """``IP:PORT``; None: the host is a name."""
    try:
        return _joined(str(ipaddress.ip_address(location.host)), location.port)
    except ValueError:
        return None


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
