from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.commands.processes import START_SECONDS, Processes
from gateway.config.load import load
from gateway.proxy.settings import ListenSettings
from tests.deploy.conftest import ROOT

FILE = ROOT / "deploy/compose.yaml"

# Of the Compose specification: what our services may use.
SERVICE_KEYS = {
    "build", "cap_drop", "command", "depends_on", "entrypoint", "environment", "healthcheck", "image", "ports",
    "read_only", "restart", "security_opt", "stop_grace_period", "tmpfs", "user", "volumes",
}  # fmt: skip
CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load(FILE.read_text())


def test_its_shape(compose) -> None:
    assert {key for key in compose if not key.startswith("x-")} == {"name", "services", "volumes"}
    for name, service in compose["services"].items():
        assert set(service) <= SERVICE_KEYS, name
        assert service["image"] == "kvgate"
        for other, how in service.get("depends_on", {}).items():
            assert other in compose["services"]
            assert how["condition"] in CONDITIONS
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (FILE.parent / source).exists() if source.startswith(".") else source in compose["volumes"]


def test_the_image_is_built_from_our_dockerfile(compose) -> None:
    build = compose["services"]["gateway"]["build"]
    context = (FILE.parent / build["context"]).resolve()
    assert context == ROOT
    assert (context / build["dockerfile"]).is_file()


def test_every_service_is_locked_in(compose) -> None:
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name


def test_ports_are_the_hosts_own(compose) -> None:
    for service in compose["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_running_answers_have_their_grace(compose) -> None:
    grace = compose["services"]["gateway"]["stop_grace_period"]
    listen = ListenSettings()
    assert int(grace.removesuffix("s")) > listen.lame_duck + listen.grace


def test_the_gateways_configuration_is_in_order_and_names_the_engines(compose) -> None:
    config = load(ROOT / "deploy/plugins.yaml", {})
    [model] = config.models
    engines = [name for name, service in compose["services"].items() if "simulator" in service.get("entrypoint", [])]
    assert len(engines) == 2
    assert [endpoint.url for endpoint in model.endpoints] == [f"http://{name}:8000" for name in engines]
    folders = [volume.split(":")[1] for volume in compose["services"]["gateway"]["volumes"]]
    assert model.tokenizer in folders
    assert config.listen.admin == "0.0.0.0:9000"


def test_the_engines_start_as_they_are_told(compose, tmp_path: Path, processes: Processes) -> None:
    def here(words: list[str]) -> list[str]:
        """On this machine: free ports, and a folder of the test's."""
        ports = ("--port=", "--kv-port=", "--replay-port=")
        words = [next((port + "0" for port in ports if word.startswith(port)), word) for word in words]
        return [word.replace("/tokenizer", str(tmp_path)).replace("0.0.0.0", "127.0.0.1") for word in words]

    services = compose["services"]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    _, *code = here(services["tokenizer"]["entrypoint"])
    subprocess.run([sys.executable, *code], env=environ, check=True)
    assert (tmp_path / "tokenizer.json").is_file()

    _, *module = services["engine-a"]["entrypoint"]
    words = [sys.executable, *module, *here(services["engine-a"]["command"])]
    engine = processes.start("engine", words, env=environ, talks=True)
    addresses = json.loads(engine.line())
    assert addresses["url"].startswith("http://127.0.0.1:")
    assert addresses["kv_endpoint"]
    assert addresses["kv_replay"]
    assert engine.terminate(START_SECONDS) == 0
