from __future__ import annotations

from gateway.framework import Engine
from gateway.proxy.serving.not_asked import NotAsked


def test_an_engine_is_not_asked_for_a_while() -> None:
    rests, engine = NotAsked(), Engine("http://e:1", "e")
    rests.begin(engine, "/render", 30.0)
    assert rests.has(engine, "/render", 29.0)
    assert not rests.has(engine, "/render", 30.0)
    assert not rests.has(engine, "/tokenize", 29.0)
    assert not rests.has(Engine("http://e:1", "e"), "/render", 29.0)


def test_another_process_is_asked() -> None:
    rests, engine = NotAsked(), Engine("http://e:1", "e", started=1.0)
    rests.begin(engine, "/render", 30.0)
    assert rests.has(engine, "/render", 0.0)
    engine.started = 2.0
    assert not rests.has(engine, "/render", 0.0)


def test_of_an_engine_that_is_gone_nothing_is_left() -> None:
    rests, engine = NotAsked(), Engine("http://e:1", "e")
    rests.begin(engine, "/render", 30.0)
    assert len(rests) == 1
    del engine
    assert len(rests) == 0
