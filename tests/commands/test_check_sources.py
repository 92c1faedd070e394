"""What `kvgate check` says of sources of endpoints, and of models without any."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gateway.app import Gateway
from gateway.commands.check_sources import of_sources
from gateway.config.settings import Config
from gateway.discovery.settings import DiscoverSettings
from gateway.flow.settings import FlowSettings
from tests.support.gateway import config_for


async def said(config: Config) -> tuple[list[str], list[str]]:
    gateway = Gateway(config)
    try:
        await gateway.reloading.discovering.once()
        return of_sources(gateway.reloading.discovering)
    finally:
        await gateway.close()


async def test_each_source_is_asked_once_and_its_endpoints_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "engines.json"
    targets = ", ".join(f'"10.0.0.{number}:8000"' for number in range(1, 11))
    path.write_text(f'[{{"targets": [{targets}]}}, {{"targets": ["x"]}}]')
    config = config_for("http://10.0.0.1:8000", discover=(DiscoverSettings(file=str(path)),))
    warnings, notes = await said(config)
    assert warnings == [
        f"model sim: file {path}: left out: {path}:1: [1].targets[0]: 'x' must be HOST:PORT, with an IPv6 address in "
        "brackets"
    ]
    shown = ", ".join(f"http://10.0.0.{number}:8000" for number in range(1, 9))
    assert notes == [f"model sim: file {path}: 10 endpoints: {shown} and 2 more"]


async def test_a_source_that_cannot_be_read_is_a_warning(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("gateway.discovery.discovery.FIRST", 0.5)
    monkeypatch.setattr("gateway.discovery.file_source.LOOK", 0.01)
    path = tmp_path / "none.json"
    warnings, notes = await said(config_for(discover=(DiscoverSettings(file=str(path)),)))
    assert warnings == [f"model sim: file {path} cannot be read: {path}: cannot be read: No such file or directory"]
    assert notes == [
        f"model sim: file {path}: 0 endpoints",
        "model sim: it has no endpoints: none is found now; requests get 503 until there is one",
    ]


async def test_a_model_without_endpoints_is_explained() -> None:
    config = config_for()
    _, notes = await said(config)
    who = "model sim: it has no endpoints: its engines register themselves (POST /endpoints); requests"
    assert notes == [f"{who} get 503 until there is one"]
    (model,) = config.models
    _, notes = await said(replace(config, models=(replace(model, limits=FlowSettings(no_endpoint_timeout=5.0)),)))
    assert notes == [f"{who} wait for the first one"]
