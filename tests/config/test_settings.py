from __future__ import annotations

from typing import Any

import pytest

from gateway.config.settings import DEFAULT_HANDLERS, DEFAULT_PLUGINS, DEFAULT_PROFILES, Config, ModelSettings
from gateway.fleet.settings import EndpointSettings
from gateway.scheduling.settings import ProfileSettings

ENDPOINTS = (EndpointSettings(url="http://a:1"),)


def test_a_model_has_a_name() -> None:
    with pytest.raises(ValueError, match="name must not be empty"):
        ModelSettings(name="", endpoints=ENDPOINTS)
    with pytest.raises(ValueError, match="memory_bytes must be at least 0"):
        ModelSettings(name="m", endpoints=ENDPOINTS, memory_bytes=-1)


def test_a_configuration_has_a_model() -> None:
    with pytest.raises(ValueError, match="models must name at least one model"):
        Config(models=())


def test_the_default_wiring_refers_to_itself_only() -> None:
    plugins = {plugin.name for plugin in DEFAULT_PLUGINS}
    for profile in DEFAULT_PROFILES:
        assert {*profile.filters, profile.picker, *(scorer.plugin for scorer in profile.scorers)} <= plugins
    named = [name for handler in DEFAULT_HANDLERS for name in handler.parameters.values()]
    assert named == [p.name for p in DEFAULT_PROFILES]


def config(**model: Any) -> Config:
    return Config(
        models=(ModelSettings(name="m", endpoints=ENDPOINTS, **model),), profiles=(ProfileSettings("default", "best"),)
    )


def test_a_default_handler_whose_profiles_are_not_there_is_dropped_unless_a_model_asks_for_it() -> None:
    assert [one.name for one in config().handlers] == ["default"]
    assert [one.name for one in config(handler="prefill-decode").handlers] == ["default", "prefill-decode"]
    assert Config(models=config().models).handlers is DEFAULT_HANDLERS
