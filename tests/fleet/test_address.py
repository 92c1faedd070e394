from __future__ import annotations

import pytest

from gateway.fleet.address import Address, Location, TlsContexts
from gateway.fleet.settings import EndpointSettings, TlsSettings


@pytest.mark.parametrize(
    ("url", "expected", "authority"),
    [
        ("http://A:80/", "http://a", "a:80"),
        ("http://a:8000", "http://a:8000", "a:8000"),
        ("https://a", "https://a", "a:443"),
        ("HTTPS://a", "https://a", "a:443"),
        ("http://[FD00::1]", "http://[fd00::1]", "[fd00::1]:80"),
        ("http://[fd00::1]:8000", "http://[fd00::1]:8000", "[fd00::1]:8000"),
        ("http://[FE80::1%Eth0]:8000", "http://[fe80::1%Eth0]:8000", "[fe80::1%Eth0]:8000"),
        ("unix:///run/vLLM.sock", "unix:///run/vLLM.sock", "unix:/run/vLLM.sock"),
    ],
)
def test_a_location_is_what_a_url_means(url, expected, authority):
    location = Location.of(url)
    assert (location.url, location.authority) == (expected, authority)
    assert Location.of(expected) == location


def address(url: str, tls: TlsSettings | None = None, contexts: TlsContexts | None = None) -> Address:
    return Address.of(EndpointSettings(url, tls=tls), contexts or TlsContexts())


@pytest.mark.parametrize(
    ("url", "host", "port", "authority", "base"),
    [
        ("http://a", "a", 80, "a", "http://a:80"),
        ("http://A:8000", "a", 8000, "a:8000", "http://a:8000"),
        ("http://a:443", "a", 443, "a:443", "http://a:443"),
        ("http://[::1]:8000", "::1", 8000, "[::1]:8000", "http://[::1]:8000"),
        ("http://[::1]", "::1", 80, "[::1]", "http://[::1]:80"),
        ("http://[fe80::1%eth0]:1", "fe80::1%eth0", 1, "[fe80::1]:1", "http://[fe80::1%eth0]:1"),
        ("http://bücher:1", "xn--bcher-kva", 1, "xn--bcher-kva:1", "http://xn--bcher-kva:1"),
    ],
)
def test_an_address_is_how_a_url_is_connected_to(url, host, port, authority, base):
    found = address(url)
    assert found == Address(host, port, None, None, None, authority)
    assert found.url == base


def test_a_unix_socket():
    found = address("unix:///run/vllm.sock")
    assert found == Address("", 0, "/run/vllm.sock", None, None, "localhost")
    assert found.url == "http://localhost"


def test_the_name_in_a_certificate_is_the_hosts_unless_another_is_said():
    contexts = TlsContexts()
    plain = address("https://a", contexts=contexts)
    named = address("https://a", TlsSettings(server_name="b"), contexts)
    assert (plain.server_name, named.server_name) == ("a", "b")
    assert address("https://[::1]:1", contexts=contexts).server_name == "::1"
    # The name is no part of the context, and no more is the endpoint.
    assert plain.ssl is named.ssl is address("https://c", contexts=contexts).ssl
    assert plain.ssl is not address("https://a", TlsSettings(verify=False), contexts).ssl
    assert len({plain, named, address("https://a", contexts=contexts)}) == 2
