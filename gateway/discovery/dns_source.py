"""Endpoints that DNS names: each address of a name is one (A and AAAA records), or each address of each of its SRV
records.

Rules: asked again when the shortest TTL of an answer has passed, within bounds. A question that fails (timeout,
SERVFAIL) keeps what it was answered last. That there are no records is an answer, and yet not believed at once: a name
server that has just started, or that was given an empty zone, says so too; it counts when nothing else was heard for
``empty_after`` seconds. Priorities and weights of SRV records are not used: which engine is asked is the gateway's
business. Where the engines speak TLS, their certificates must have the name that was asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.discovery.settings import DiscoverSettings, DnsSettings
from gateway.discovery.source import Found, Lost, endpoint_of
from gateway.fleet.settings import EndpointSettings, TlsSettings
from gateway.framework import Clock

if TYPE_CHECKING:
    import dns.asyncresolver

AT_ONCE = 16
"""Targets of SRV records that are asked for at the same time."""


@dataclass(frozen=True, slots=True)
class Records:
    """What a name has of one type, as dnspython's objects. ``ttl``: seconds. ``problem``: why they are those of before,
    or none; empty: the name server has told them now. ``denied``: it says that there are none."""

    found: tuple[Any, ...] = ()
    ttl: float = 0.0
    problem: str = ""
    denied: bool = False


class Place(NamedTuple):
    """``name``: by which the address was found."""

    address: str
    port: int
    name: str


def pause(settings: DnsSettings, ttl: float | None, failures: int) -> float:
    """Seconds until the next question. ``ttl``: of the answer; None: there was none, as ``failures`` times in a row."""
    wanted = settings.least * 2 ** min(failures - 1, 16) if ttl is None else max(ttl, settings.least)
    return min(wanted, settings.most)


class DnsSource:
    def __init__(self, settings: DiscoverSettings, clock: Clock) -> None:
        assert settings.dns is not None
        self._settings = settings
        self._dns = settings.dns
        self._clock = clock
        self._known: dict[tuple[str, str], Records] = {}
        """By name and type: what was told last."""
        self._heard_at: float | None = None
        """When there last were records; None: there never were."""

    async def follow(self, found: Found, lost: Lost) -> None:
        if find_spec("dns") is None:
            lost("it needs a package that is not installed: pip install 'kvgate[dns]'")
            await asyncio.Event().wait()
        failures = 0
        while True:
            ttl = await self._look(found, lost)
            failures = 0 if ttl is not None else failures + 1
            await asyncio.sleep(pause(self._dns, ttl, failures))

    async def _look(self, found: Found, lost: Lost) -> float | None:
        """Ask once. Returns the seconds for which the answer is good; None: it has no records, or not all are known."""
        answers, places = await (self._of_services() if self._dns.port is None else self._of_name(self._dns.port))
        now = self._clock.monotonic()
        troubles = list(dict.fromkeys(one.problem for one in answers if one.problem and not one.denied))
        told = any(not one.problem for one in answers)  # the others are those of before
        if troubles and not (told and places):
            lost("; ".join(troubles))
            return None
        if places:
            self._heard_at = now
        elif self._heard_at is not None and (left := self._heard_at + self._dns.empty_after - now) > 0:
            lost(f"{self._dns.name} has no records; if that stays so, it counts in {left:.0f} s")
            return None
        found(*self._made(places), "; ".join(troubles))
        return min((one.ttl for one in answers if not one.problem), default=None)

    async def _of_name(self, port: int) -> tuple[list[Records], list[Place]]:
        name = self._dns.name
        answers = await self._addresses(self._resolver(), name)
        return answers, [Place(record.address, port, name) for one in answers for record in one.found]

    async def _of_services(self) -> tuple[list[Records], list[Place]]:
        resolver = self._resolver()
        services = await self._records(resolver, self._dns.name, "SRV")
        limit = asyncio.Semaphore(AT_ONCE)

        async def of_target(name: str) -> list[Records]:
            async with limit:
                return await self._addresses(resolver, name)

        targets = {str(service.target): service.port for service in services.found}
        told = await asyncio.gather(*map(of_target, targets))
        # What was known of targets that are gone is not kept.
        self._known = {key: records for key, records in self._known.items() if key[0] in (self._dns.name, *targets)}
        by_target = dict(zip(targets, told, strict=True))
        places = [
            Place(record.address, service.port, str(service.target).rstrip("."))
            for service in services.found
            for one in by_target[str(service.target)]
            for record in one.found
        ]
        return [services, *(one for answers in told for one in answers)], places

    def _made(self, places: Sequence[Place]) -> tuple[list[EndpointSettings], list[str]]:
        """The endpoints, in a fixed order, and what is wrong."""
        endpoints: dict[tuple[str, int], EndpointSettings] = {}
        wrong = []
        for address, port, name in places:
            try:
                endpoint = endpoint_of(self._settings, address, port)
            except ValueError as error:
                wrong.append(f"{name}: {error}")
                continue
            if self._settings.scheme == "https":
                tls = endpoint.tls or TlsSettings()
                endpoint = replace(endpoint, tls=replace(tls, server_name=tls.server_name or name.rstrip(".")))
            endpoints.setdefault((address, port), endpoint)
        return [endpoint for _, endpoint in sorted(endpoints.items())], wrong

    async def _addresses(self, resolver: dns.asyncresolver.Resolver, name: str) -> list[Records]:
        return [*await asyncio.gather(self._records(resolver, name, "A"), self._records(resolver, name, "AAAA"))]

    async def _records(self, resolver: dns.asyncresolver.Resolver, name: str, kind: str) -> Records:
        import dns.exception  # the library is 5 MB, for those who use it
        import dns.resolver

        try:
            # With the system's search list, as every program of this machine asks.
            answer = await resolver.resolve(name, kind, lifetime=self._dns.timeout, search=True)
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
            self._known.pop((name, kind), None)
            return Records(problem=f"{name} has no {kind} records", denied=True)
        except (dns.exception.DNSException, OSError, ValueError) as error:
            why = str(error).rstrip(".") or type(error).__name__
            return replace(self._known.get((name, kind), Records()), problem=f"{name} {kind}: {why}")
        records = self._known[name, kind] = Records(tuple(answer), answer.chaining_result.minimum_ttl)
        return records

    def _resolver(self) -> dns.asyncresolver.Resolver:
        """Made anew each time: resolv.conf may have changed. Reading it takes some microseconds."""
        import dns.asyncresolver

        if self._dns.server is None:
            return dns.asyncresolver.Resolver()
        resolver = dns.asyncresolver.Resolver(configure=False)
        resolver.port = self._dns.server[1]
        resolver.nameservers = [self._dns.server[0]]
        return resolver
