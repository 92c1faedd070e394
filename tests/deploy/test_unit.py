from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.addresses import BACKLOG
from gateway.cli import EXIT_CONFIG
from gateway.proxy.settings import ListenSettings
from gateway.restart.activation import NAMES
from tests.deploy.conftest import ROOT

UNIT = ROOT / "deploy/kvgate.service"
SOCKET = ROOT / "deploy/kvgate.socket"


@pytest.fixture
def service() -> dict[str, list[str]]:
    """The unit's [Service] section; a key may stand several times."""
    text = UNIT.read_text()
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(text)
    assert set(parser.sections()) == {"Unit", "Service", "Install"}
    section = text.partition("[Service]")[2].partition("[Install]")[0]
    values: dict[str, list[str]] = {}
    for name, value in re.findall(r"(?m)^(\w+)=(.*)$", section):
        values.setdefault(name, []).append(value)
    return values


def test_it_is_ready_when_it_says_so(service) -> None:
    assert service["Type"] == ["notify"]


def test_a_reload_checks_the_file_first(service) -> None:
    check, signal = service["ExecReload"]
    assert check == service["ExecStart"][0].partition(" --")[0].replace(" serve ", " check ")
    assert signal == "/bin/kill -HUP $MAINPID"


def test_running_answers_have_their_grace(service) -> None:
    listen = ListenSettings()
    assert int(service["TimeoutStopSec"][0]) > listen.lame_duck + listen.grace


def test_the_socket_is_the_clients_and_where_kvgate_would_listen() -> None:
    parser = configparser.RawConfigParser()
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(SOCKET.read_text())
    listen, unit = ListenSettings(), parser["Socket"]
    assert unit["FileDescriptorName"] == NAMES[0]
    assert unit["ListenStream"] == f"{listen.host}:{listen.port}"
    assert int(unit["Backlog"]) == BACKLOG


def test_a_wrong_configuration_is_not_tried_again_and_again(service) -> None:
    assert service["Restart"] == ["on-failure"]
    assert service["RestartPreventExitStatus"] == [str(EXIT_CONFIG)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DynamicUser", "yes"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "yes"),
        ("PrivateTmp", "yes"),
        ("PrivateDevices", "yes"),
        ("CapabilityBoundingSet", ""),
    ],
)
def test_it_may_do_nothing_that_it_need_not(service, name, value) -> None:
    assert service[name] == [value]


def test_keys_come_from_a_file_and_none_is_in_what_we_ship(service) -> None:
    assert service["EnvironmentFile"] == ["-/etc/kvgate/kvgate.env"]
    for line in (ROOT / "deploy/kvgate.env").read_text().splitlines():
        assert re.fullmatch(r"(#.*)?", line), f"{line!r}: everything in the example is a comment"


# Only where systemd is: a machine without it can neither run the unit nor the check. CI has to have it.
if shutil.which("systemd-analyze") or os.environ.get("CI"):

    def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)

    def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
        # systemd looks for the command that is started; where the tests run it is not installed.
        command = tmp_path / "kvgate"
        command.write_text("#!/bin/sh\n")
        command.chmod(0o755)
        unit = tmp_path / UNIT.name
        unit.write_text(UNIT.read_text().replace("/opt/kvgate/bin/kvgate", str(command)))
        beside = tmp_path / SOCKET.name
        beside.write_text(SOCKET.read_text())
        done = analyze("verify", "--man=no", str(unit), str(beside))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def test_systemd_says_that_little_is_exposed() -> None:
        # 0.0 is locked in, 10.0 is open; 2.0 is what systemd itself calls OK.
        done = analyze("security", "--offline=true", "--threshold=20", "--no-pager", str(UNIT))
        assert done.returncode == 0, done.stdout
