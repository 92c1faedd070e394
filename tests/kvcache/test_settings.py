from __future__ import annotations

import pytest

from gateway.kvcache.settings import CacheSettings, ListenerSettings


@pytest.mark.parametrize("name", ["max_blocks", "block_size"])
def test_every_number_is_above_zero(name):
    with pytest.raises(ValueError, match=name):
        CacheSettings(**{name: 0})
    assert getattr(CacheSettings(**{name: 1}), name) == 1


def test_nobody_is_asked_less_than_nothing():
    with pytest.raises(ValueError, match="reannounce"):
        CacheSettings(reannounce=-1)
    assert CacheSettings(reannounce=0).reannounce == 0


@pytest.mark.parametrize("address", ["tcp://*:5557", "tcp://127.0.0.1:0", "tcp://[::]:5557", "tcp://eth0:5557", None])
def test_an_address_to_listen_on(address):
    assert ListenerSettings(address).listen == address


@pytest.mark.parametrize("address", ["", "5557", "*:5557", "tcp://:5557", "tcp://*", "tcp://*:99999", "ipc:///run/kv"])
def test_an_address_that_nobody_can_listen_on(address):
    with pytest.raises(ValueError, match="listen"):
        ListenerSettings(address)
