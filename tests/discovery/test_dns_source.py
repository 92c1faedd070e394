"""Names of DNS, asked of a real name server."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.clock import ManualClock, SystemClock
from gateway.discovery.dns_source import DnsSource, pause
from gateway.discovery.settings import DiscoverSettings, DnsSettings
from gateway.framework import Clock
from tests.discovery.name_server import NameServer, name_server
from tests.discovery.telling import followed
from tests.support.wait import eventually

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
NAME = "engines.test."


def source(server: NameServer, clock: Clock | None = None, **settings: Any) -> DnsSource:
    of_dns = {"name": NAME, "port": 8000, "nameserver": server.address, "least": 0.01, "most": 0.02}
    of_dns |= {key: settings.pop(key) for key in list(settings) if key in DnsSettings.__dataclass_fields__}
    return DnsSource(DiscoverSettings(dns=DnsSettings(**of_dns), **settings), clock or SystemClock())


async def test_each_address_is_an_endpoint_and_changes_are_followed() -> None:
    async with name_server() as server:
        server.records = {(NAME, "A"): (5, ["10.0.0.2", "10.0.0.1"]), (NAME, "AAAA"): (5, ["fd00::1"])}
        async with followed(source(server)) as told:
            await eventually(lambda: told.lists)
            assert [one.url for one in told.lists[-1]] == [
                "http://10.0.0.1:8000",
                "http://10.0.0.2:8000",
                "http://[fd00::1]:8000",
            ]
            server.records = {(NAME, "A"): (5, ["10.0.0.3"])}
            await eventually(lambda: told.urls == ["http://10.0.0.3:8000"])
            assert told.lost == []


async def test_an_answer_that_does_not_fit_comes_over_tcp() -> None:
    async with name_server() as server:
        addresses = [f"10.0.{high}.{low}" for high in range(4) for low in range(200)]
        server.records, server.truncates = {(NAME, "A"): (5, addresses)}, True
        async with followed(source(server)) as told:
            await eventually(lambda: told.lists)
            assert len(told.lists[-1]) == 800


async def test_services_say_the_port_and_each_address_of_their_targets_is_one() -> None:
    async with name_server() as server:
        server.records = {
            ("_http._tcp.engines.test.", "SRV"): (
                5,
                ["0 5 8001 one.test.", "9 1 8002 two.test.", "0 0 8003 gone.test."],
            ),
            ("one.test.", "A"): (5, ["10.0.0.1", "10.0.0.11"]),
            ("two.test.", "AAAA"): (5, ["fd00::2"]),
        }
        settings = {"name": "_http._tcp.engines.test", "port": None, "scheme": "https"}
        async with followed(source(server, **settings)) as told:
            await eventually(lambda: told.lists)
            found = [(one.url, one.tls.server_name) for one in told.lists[-1] if one.tls is not None]
            assert found == [
                ("https://10.0.0.1:8001", "one.test"),
                ("https://10.0.0.11:8001", "one.test"),
                ("https://[fd00::2]:8002", "two.test"),
            ]


async def test_a_question_that_fails_keeps_the_last_answer() -> None:
    async with name_server() as server:
        server.records = {(NAME, "A"): (5, ["10.0.0.1"]), (NAME, "AAAA"): (5, ["fd00::1"])}
        async with followed(source(server, timeout=0.1)) as told:
            await eventually(lambda: told.lists)
            server.fails = {"AAAA"}
            server.records[NAME, "A"] = (5, ["10.0.0.2"])
            await eventually(lambda: told.urls == ["http://10.0.0.2:8000", "http://[fd00::1]:8000"])
            await eventually(lambda: told.lost)
            assert "AAAA" in told.lost[-1]
            server.fails = set()
            await eventually(lambda: told.lists)
            server.mute = True
            told.lost.clear()
            await eventually(lambda: any("A: " in line and "AAAA: " in line for line in told.lost))
            assert told.urls == ["http://10.0.0.2:8000", "http://[fd00::1]:8000"]
            assert all(one for one in told.lists), "never an empty one"
            lists, losses = len(told.lists), len(told.lost)
            await eventually(lambda: len(told.lost) >= losses + 2)
            assert len(told.lists) == lists, "what is only remembered is not told"


async def test_that_there_are_no_records_is_believed_after_a_while() -> None:
    clock = ManualClock()
    async with name_server() as server:
        server.records = {(NAME, "A"): (5, ["10.0.0.1"])}
        async with followed(source(server, clock, empty_after=60.0)) as told:
            await eventually(lambda: told.lists)
            server.records = {}
            await eventually(lambda: told.lost)
            assert told.lost[-1] == "engines.test. has no records; if that stays so, it counts in 60 s"
            assert told.urls == ["http://10.0.0.1:8000"]
            clock.now = 60.0
            await eventually(lambda: told.urls == [])
            server.records = {(NAME, "A"): (5, ["10.0.0.1"])}
            await eventually(lambda: told.urls == ["http://10.0.0.1:8000"])


async def test_a_name_that_never_had_records_has_no_endpoints() -> None:
    async with name_server() as server, followed(source(server)) as told:
        await eventually(lambda: told.urls == [])


async def test_it_is_asked_by_ttl_within_bounds_and_after_failures_less_and_less() -> None:
    bounds = DnsSettings("a", 1, least=2.0, most=9.0)
    assert [pause(bounds, ttl, 0) for ttl in (0, 5, 3600)] == [2.0, 5.0, 9.0]
    assert [pause(bounds, None, failures) for failures in (1, 2, 3, 4, 5000)] == [2.0, 4.0, 8.0, 9.0, 9.0]


async def test_the_system_s_servers_are_asked_where_none_is_named(tmp_path, monkeypatch) -> None:
    import dns.resolver

    async with name_server() as server:
        server.records = {("engines.cluster.test.", "A"): (5, ["10.0.0.1"])}
        conf = tmp_path / "resolv.conf"
        conf.write_text("search cluster.test\nnameserver 127.0.0.1\n")
        read = dns.resolver.BaseResolver.read_resolv_conf

        def ours(self: Any, f: Any) -> None:
            read(self, str(conf))
            self.port = server.port

        monkeypatch.setattr(dns.resolver.BaseResolver, "read_resolv_conf", ours)
        async with followed(source(server, name="engines", nameserver=None)) as told:
            await eventually(lambda: told.urls == ["http://10.0.0.1:8000"])


@pytest.mark.parametrize(
    ("nameserver", "server"),
    [
        ("10.0.0.1", ("10.0.0.1", 53)),
        ("10.0.0.1:5353", ("10.0.0.1", 5353)),
        ("::1", ("::1", 53)),
        ("[::1]:5", ("::1", 5)),
    ],
)
async def test_a_name_server_is_an_address(nameserver: str, server: tuple[str, int]) -> None:
    assert DnsSettings("a", 1, nameserver=nameserver).server == server
    with pytest.raises(ValueError, match="nameserver"):
        DnsSettings("a", 1, nameserver="ns.test")
