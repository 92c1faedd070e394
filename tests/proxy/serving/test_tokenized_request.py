from __future__ import annotations

from array import array
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.core.clock import ManualClock
from gateway.core.observer import NULL_OBSERVER
from gateway.core.prompt import KnownPrefix, PrefixedIds, Prompt
from gateway.framework import Kind
from gateway.framework.fleet import Model
from gateway.kvcache.index.cache_index import CacheIndex
from gateway.kvcache.settings import CacheSettings
from gateway.proxy.serving.identify import tokenized
from gateway.proxy.serving.tokenized_request import TokenizedRequest

IDS = array("I", range(5000))
RUNTIME: Any = SimpleNamespace(index=CacheIndex(CacheSettings(), "m", ManualClock(), NULL_OBSERVER))


def known(count: int = 4000) -> PrefixedIds:
    return PrefixedIds(KnownPrefix(count), [IDS[:1000].tobytes(), IDS[1000:count].tobytes()], IDS[count:])


def request() -> TokenizedRequest:
    return TokenizedRequest("r", Model("m"), Kind.CHAT, 0.0)


def test_a_known_prompt_is_not_joined_to_be_placed() -> None:
    one, ids = request(), known()
    keys = tokenized(RUNTIME, one, Prompt(ids, len(ids), True, own=ids))
    assert keys.values == tokenized(RUNTIME, request(), Prompt(IDS, len(IDS), True)).values
    assert (one.prompt_tokens, one.exact, ids.whole) == (5000, True, None)


def test_a_plugin_that_reads_the_ids_gets_an_array() -> None:
    one, ids = request(), known()
    assert one.token_ids == array("I")
    tokenized(RUNTIME, one, Prompt(ids, len(ids), True))
    assert isinstance(one.token_ids, array)
    assert one.token_ids == IDS
    assert one.token_ids is one.token_ids
    assert one.ids is None
    assert replace(one, id="s").token_ids == IDS


def test_short_ids_are_what_they_are() -> None:
    one = request()
    tokenized(RUNTIME, one, Prompt(IDS, len(IDS), True))
    assert one.token_ids is IDS


def test_it_has_no_other_attributes_than_a_request() -> None:
    one: Any = request()
    del one.token_ids
    for name in ("tokens", "ids", "token_ids"):
        with pytest.raises(AttributeError, match="ids" if name == "token_ids" else name):
            getattr(one, name)
