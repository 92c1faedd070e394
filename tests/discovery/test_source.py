"""What a source makes of an address."""

from __future__ import annotations

import pytest

from gateway.discovery.settings import DiscoverSettings, DnsSettings, HttpSettings
from gateway.discovery.source import endpoint_of
from gateway.fleet.settings import EndpointSettings, KvEventsSettings, TlsSettings

ANY = DiscoverSettings(file="engines.yaml")


def test_an_address_becomes_an_endpoint() -> None:
    assert endpoint_of(ANY, "10.0.0.1", 8000) == EndpointSettings("http://10.0.0.1:8000")


def test_what_the_source_does_not_say_is_as_configured() -> None:
    settings = DiscoverSettings(
        file="x",
        role="prefill",
        labels={"zone": "a", "gpu": "h100"},
        api_key="secret",
        scheme="https",
        tls=TlsSettings(verify=False),
        ranks=2,
    )
    found = endpoint_of(settings, "engine", 443, name="one", role=None, labels={"zone": "b"})
    assert found == EndpointSettings(
        "https://engine:443",
        role="prefill",
        name="one",
        labels={"zone": "b", "gpu": "h100"},
        api_key="secret",
        tls=TlsSettings(verify=False),
        ranks=2,
    )
    assert endpoint_of(settings, "engine", 80, role="decode", scheme="http").tls is None


@pytest.mark.parametrize(("host", "shown"), [("10.0.0.1", "10.0.0.1"), ("fd00::1", "[fd00::1]"), ("[::1]", "[::1]")])
def test_addresses_of_kv_events_follow_the_engines(host: str, shown: str) -> None:
    pattern = KvEventsSettings(endpoint="tcp://{host}:5557", replay="tcp://{host}:5558", topic="kv@{host}:{port}@m")
    found = endpoint_of(DiscoverSettings(file="x", kv_events=pattern), host, 8000).kv_events
    assert found == KvEventsSettings(f"tcp://{shown}:5557", f"tcp://{shown}:5558", f"kv@{shown}:8000@m")


@pytest.mark.parametrize(("host", "port"), [("a b", 8000), ("10.0.0.1", 0), ("10.0.0.1", 65536), ("", 80), ("x/y", 80)])
def test_what_is_no_address_is_an_error(host: str, port: int) -> None:
    with pytest.raises(ValueError, match="url"):
        endpoint_of(ANY, host, port)


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 254])
def test_a_name_can_be_shown(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        endpoint_of(ANY, "a", 1, name=name)


@pytest.mark.parametrize(
    ("kind", "label"),
    [
        ({"file": "pool/*.json"}, "file pool/*.json"),
        ({"dns": DnsSettings("engines.local", 8000)}, "dns engines.local:8000"),
        ({"dns": DnsSettings("_http._tcp.engines.local")}, "dns _http._tcp.engines.local"),
        ({"http": HttpSettings("http://x/targets")}, "http http://x/targets"),
    ],
)
def test_a_source_has_a_label(kind: dict[str, object], label: str) -> None:
    assert DiscoverSettings(**kind).label == label


@pytest.mark.parametrize("kinds", [{}, {"file": "a", "dns": DnsSettings("b", 1)}])
def test_a_source_is_of_one_kind(kinds: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="exactly one of file, dns, http"):
        DiscoverSettings(**kinds)
