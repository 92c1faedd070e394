from __future__ import annotations

import pytest

from gateway.fleet.settings import EndpointSettings, KvEventsSettings, TlsSettings


def test_a_url_must_not_hold_a_password_and_the_error_does_not_repeat_it():
    with pytest.raises(ValueError, match="api_key") as caught:
        EndpointSettings(url="http://user:s3cret@engine:8000")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        *("http://engine:99999", "http://engine:x", "ftp://engine", "http://", "http://e:1/v1", "http://e f:1"),
        *("http://e:1?a=b", "http://e:1#a", "http://bü..cher:1", "http://[::1", "unix:run/e.sock", "unix://run/e.sock"),
        *("unix:///", "unix:///run/e.sock/", "unix:///run/e.sock?a", "unix:///" + "x" * 107),
    ],
)
def test_a_url_that_cannot_be_an_engines(url):
    with pytest.raises(ValueError, match="url"):
        EndpointSettings(url=url)


@pytest.mark.parametrize("port", ["0", "00", "65536", "-1", "x"])
def test_a_port_that_nobody_listens_on_is_not_taken_for_the_schemes_own(port):
    with pytest.raises(ValueError, match=r"the port of .* must be in 1\.\.65535"):
        EndpointSettings(url=f"http://engine:{port}")


@pytest.mark.parametrize("key", ["se cret", "secret\n", "sécret"])
def test_a_key_that_cannot_be_sent_is_refused_without_being_shown(key):
    with pytest.raises(ValueError, match="api_key") as caught:
        EndpointSettings(url="http://engine", api_key=key)
    assert key not in str(caught.value)
    assert "cret" not in repr(EndpointSettings(url="http://engine", api_key="secret"))


@pytest.mark.parametrize(
    "address", ["http://engine:1", "tcp://", "tcp://engine", "tcp://engine:0", "tcp://engine:99999"]
)
def test_an_address_of_events_that_cannot_be_subscribed_to(address):
    with pytest.raises(ValueError, match="endpoint"):
        KvEventsSettings(endpoint=address)
    with pytest.raises(ValueError, match="replay"):
        KvEventsSettings(endpoint="tcp://*:5557", replay=address)


@pytest.mark.parametrize("ranks", [0, -1, 1_000_000])
def test_ranks_that_no_engine_has(ranks):
    with pytest.raises(ValueError, match="ranks"):
        EndpointSettings(url="http://engine", ranks=ranks)


def test_an_engine_that_connects_is_not_connected_to():
    with pytest.raises(ValueError, match="give one of the two"):
        KvEventsSettings(connects=True, endpoint="tcp://*:5557")
    assert KvEventsSettings(connects=True, replay="tcp://*:5558").replay == "tcp://*:5558"
    with pytest.raises(ValueError, match="replay needs endpoint, or connects"):
        KvEventsSettings(replay="tcp://*:5558")


def test_the_topic_of_an_engine_that_connects():
    assert EndpointSettings(url="http://10.0.0.1:8000").kv_topic("m") == "kv@10.0.0.1:8000@m"
    assert EndpointSettings(url="http://10.0.0.1:8000", name="a").kv_topic("m") == "kv@a@m"
    named = EndpointSettings(url="http://10.0.0.1:8000", name="a", kv_events=KvEventsSettings(topic="t"))
    assert named.kv_topic("m") == "t"


@pytest.mark.parametrize("url", ["http://engine", "unix:///run/vllm.sock"])
def test_tls_needs_https(url):
    with pytest.raises(ValueError, match="tls needs a url with https://"):
        EndpointSettings(url, tls=TlsSettings())
    assert EndpointSettings("HTTPS://engine", tls=TlsSettings(ca="ca.pem")).tls == TlsSettings("ca.pem")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"key": "k.pem"}, "key needs certificate"),
        ({"ca": "ca.pem", "verify": False}, "give one of the two"),
        ({"ca": ""}, "ca must not be empty"),
        ({"server_name": "bücher"}, "server_name must be ASCII"),
    ],
)
def test_tls_settings_that_contradict_themselves(wrong, said):
    with pytest.raises(ValueError, match=said):
        TlsSettings(**wrong)


def test_what_an_engine_on_a_unix_socket_is_called():
    settings = EndpointSettings("unix:///run/vllm.sock")
    assert (settings.label, settings.host) == ("unix:/run/vllm.sock", "127.0.0.1")
    assert settings.kv_topic("m") == "kv@unix:/run/vllm.sock@m"
    assert EndpointSettings("http://[::1]:8000").host == "::1"
    assert EndpointSettings("http://[::1]:8000").label == "[::1]:8000"
