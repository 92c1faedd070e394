from __future__ import annotations

import os
import sys
from dataclasses import dataclass

import pytest

from gateway.config.registry import PluginKind, Registry, discover
from gateway.errors import ConfigError
from gateway.framework import NoParameters


def test_the_built_in_plugins_are_found_like_any_other() -> None:
    found = discover()
    assert {name for name, one in found.plugins.items() if one.kind is PluginKind.FILTER} >= {
        "healthy",
        "role",
        "labels",
    }
    assert {name for name, one in found.plugins.items() if one.kind is PluginKind.SCORER} >= {
        "prefix-cache",
        "queue-depth",
        "kv-cache-utilization",
        "active-requests",
        "placement-cost",
        "network-latency",
        "kv-memory",
        "load",
    }
    assert {name for name, one in found.plugins.items() if one.kind is PluginKind.PICKER} >= {
        "max-score",
        "random",
        "round-robin",
    }
    assert set(found.handlers) >= {"single"}
    assert found.plugins["healthy"].distribution.startswith("kvgate ")


def test_every_installed_plugin_loads_and_has_parameters() -> None:
    found = discover()
    for one in [*found.plugins.values(), *found.handlers.values()]:
        assert one.load()
        assert one.parameters()


@pytest.mark.parametrize(("first", "second"), [("scorer", "scorer"), ("scorer", "filter"), ("handler", "handler")])
def test_a_name_that_two_distributions_offer_is_an_error_naming_both(plugin_type, first, second) -> None:
    with pytest.raises(ConfigError, match=r"name 'x': .*from one 1.0\), and .*from other 1.0\)"):
        Registry([plugin_type(first, "x", object, "one"), plugin_type(second, "x", object, "other")])


def test_one_distribution_seen_twice_is_one(plugin_type) -> None:
    assert set(Registry([plugin_type("scorer", "x", object), plugin_type("scorer", "x", object)]).plugins) == {"x"}


def test_handlers_have_names_of_their_own(plugin_type) -> None:
    found = Registry([plugin_type("scorer", "x", object), plugin_type("handler", "x", object)])
    assert set(found.plugins) == set(found.handlers) == {"x"}


def test_nothing_is_imported_before_it_is_asked_for(plugin_type) -> None:
    broken = plugin_type("scorer", "broken", ImportError("no module named torch"))
    Registry([broken])
    with pytest.raises(
        ConfigError, match=r"'broken' \(made:.*from maker 1.0\) cannot be imported: ImportError: no mod"
    ):
        broken.load()


def test_what_is_no_class(plugin_type) -> None:
    with pytest.raises(ConfigError, match="is no class"):
        plugin_type("scorer", "x", 42).load()


def test_parameters_must_be_a_dataclass(plugin_type) -> None:
    class Bare:
        pass

    class Wrong:
        Parameters = dict

    @dataclass
    class Typed:
        x: int = 1

    class Right:
        Parameters = Typed

    assert plugin_type("scorer", "x", Bare).parameters() is NoParameters
    assert plugin_type("scorer", "x", Right).parameters() is Typed
    with pytest.raises(ConfigError, match="its Parameters must be a dataclass"):
        plugin_type("scorer", "x", Wrong).parameters()


class Good:
    def score(self, request, endpoints):
        return []


class Generous:
    def score(self, *arguments, **options):
        return []


class Optional:
    def score(self, request, endpoints, extra=None):
        return []


class Compiled:
    score = staticmethod(max)


class Missing:
    pass


class NotCallable:
    score = 0.5


class Few:
    def score(self, request):
        return []


class Many:
    def score(self, request, endpoints, cycle):
        return []


class KeywordOnly:
    def score(self, request, *, endpoints):
        return []


class Line:
    def queued(self, waiting):
        pass

    placed = left = rank = turn = queued

    def settled(self, waiting, seconds, output):
        pass


class Unsettled(Line):
    settled = None


class Asking(Line):
    def turn(self, waiting, now):
        return 0.0


class Async:
    async def score(self, request, endpoints):
        return []


class AsyncYields:
    async def score(self, request, endpoints):
        yield 1.0


class Yields:
    def score(self, request, endpoints):
        yield 1.0


class BadHook(Good):
    def on_settled(self, request, plan):
        pass


class AsyncHook(Good):
    async def on_placed(self, request, plan):
        pass


@pytest.mark.parametrize("fine", [Good, Generous, Optional, Compiled])
def test_a_fitting_shape(plugin_type, fine) -> None:
    plugin_type("scorer", "x", fine).check(fine())


def test_an_order_has_six_methods(plugin_type) -> None:
    plugin_type("queue", "x", Line).check(Line())
    for wrong, message in (
        (Unsettled, "has no method 'settled', which a queue needs"),
        (Asking, "'turn' must take 1 positional argument: missing a required argument: 'now'"),
    ):
        with pytest.raises(ConfigError, match=message):
            plugin_type("queue", "x", wrong).check(wrong())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Missing, "has no method 'score', which a scorer needs"),
        (NotCallable, "has no method 'score'"),
        (Few, "'score' must take 2 positional arguments: too many positional arguments"),
        (Many, "'score' must take 2 positional arguments: missing a required argument: 'cycle'"),
        (KeywordOnly, "'score' must take 2 positional arguments"),
        (Async, "'score' must not be async"),
        (AsyncYields, "'score' must not be async"),
        (Yields, "'score' must return its result, not yield it"),
        (BadHook, "'on_settled' must take 3 positional arguments"),
        (AsyncHook, "'on_placed' must not be async"),
    ],
)
def test_a_wrong_shape_is_named_with_plugin_entry_point_and_distribution(plugin_type, wrong, message) -> None:
    with pytest.raises(ConfigError) as caught:
        plugin_type("scorer", "x", wrong).check(wrong())
    assert f"the scorer 'x' (made:{wrong.__name__}, from maker 1.0)" in caught.value.message
    assert message in caught.value.message


def test_discovery_looks_again_once_something_is_installed(tmp_path, monkeypatch) -> None:
    os.utime(tmp_path, (0, 0))  # some clocks of files stand still for milliseconds
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before = discover()
    assert "new" not in before.plugins
    assert discover() is before
    info = tmp_path / "later-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: later\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kvgate.scorers]\nnew = later:New\n")
    assert "new" in discover().plugins


def test_discovery_reads_entry_points_from_the_path(tmp_path, monkeypatch) -> None:
    info = tmp_path / "clash-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: clash\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kvgate.scorers]\nload = clash:Load\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(ConfigError, match=r"name 'load': .*clash:Load, from clash 1.0.*uninstall one"):
        discover()
