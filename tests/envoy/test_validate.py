"""Envoy takes what ``kvgate envoy`` prints: ``envoy --mode validate``, the newest and the oldest version."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gateway.cli import main
from tests.envoy.versions import NEWEST, OLDEST, binary
from tests.support.tls import Authority

MODELS = """
models:
- name: sim
  endpoints: [{url: "http://127.0.0.1:8001"}, {url: "http://127.0.0.2:8001"}]
"""
EVERYTHING = """
listen: {{port: 8443, tls: {{certificate: {certificate}, key: {key}, client_ca: {ca}}}}}
client_keys: {{values: [secret]}}
retries: {{attempts: 4}}
models:
- name: sim
  handler: prefill-decode
  queue: {{}}
  endpoints:
  - {{url: "https://engine-a.example", tls: {{ca: {ca}, certificate: {certificate}, key: {key}, server_name: engine}}}}
  - {{url: "https://[::1]:8001", tls: {{verify: false}}, role: prefill}}
  - {{url: "http://localhost:8002"}}
- name: other
  endpoints: [{{url: "http://127.0.0.1:8003", drain: true}}]
"""
FOUND = "models: [{name: sim, discover: [{file: engines.yaml}]}]"
BY_NAME = "models: [{name: sim, discover: [{dns: {name: localhost, port: 8001}, scheme: https}]}]"


def taken(text: str, version: str, folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """What Envoy says of it. Fails if it does not take it."""
    config, file = folder / "plugins.yaml", folder / "envoy.yaml"
    config.write_text(text)
    assert main(["envoy", str(config), *options]) == 0
    file.write_text(capsys.readouterr().out)
    command = [binary(version), "--mode", "validate", "-c", file, "-l", "warning"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


@pytest.mark.parametrize("version", [NEWEST, OLDEST])
@pytest.mark.parametrize("mode", ["ends", "full", "observed", "request", "buffered"])
def test_each_mode(mode, version, tmp_path, capsys) -> None:
    said = taken(MODELS, version, tmp_path, capsys, "--mode", mode)
    assert "deprecated" not in said.lower()


@pytest.mark.parametrize("version", [NEWEST, OLDEST])
@pytest.mark.parametrize("text", [FOUND, BY_NAME], ids=["a file", "a name"])
def test_engines_that_are_found(text, version, tmp_path, capsys) -> None:
    taken(text, version, tmp_path, capsys)


@pytest.mark.parametrize("version", [NEWEST, OLDEST])
def test_all_that_may_be_in_it(version, tmp_path, capsys, authority: Authority) -> None:
    certificate, key = authority.issue("server")
    text = EVERYTHING.format(certificate=certificate, key=key, ca=authority.file)
    options = ("--picker", "picker-a.example:9002", "--picker", "[::1]:9002", "--picker-ca", authority.file)
    said = taken(text, version, tmp_path, capsys, *options, "--listen", "[::]:8443")
    assert "deprecated" not in said.lower()
