"""docs/disaggregation.md says what vLLM and the gateway read: its commands, variables, YAML, metrics and times."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gateway.config.build import build_scheduler
from gateway.config.load import loads
from gateway.proxy.settings import TimeoutSettings
from gateway.scheduling.prefill_decode import THRESHOLD, PrefillDecode
from tests.engines.disaggregation.pair import transferring
from tests.support.candidates import context

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "disaggregation.md").read_text()
BLOCKS = re.findall(r"```(sh|yaml)\n(.*?)```", PAGE, re.DOTALL)
KVGATE_FLAGS = {"--probe", "--model", "--prompt-file", "--request"}

PARSE = """
import json, sys
from vllm import envs
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = make_arg_parser(FlexibleArgumentParser())
asked = json.load(sys.stdin)
found = []
for arguments in asked["commands"]:
    parsed = parser.parse_args(arguments)
    validate_parsed_serve_args(parsed)
    transfer, events = parsed.kv_transfer_config, parsed.kv_events_config
    found.append({
        "kv_role": transfer.kv_role,
        "kv_load_failure_policy": transfer.kv_load_failure_policy,
        "kv_connector": transfer.kv_connector,
        "events": events.enable_kv_cache_events,
        "publisher": events.publisher,
    })
flags = {flag for action in parser._actions for flag in action.option_strings}
json.dump({
    "commands": found,
    "unknown flags": sorted(set(asked["flags"]) - flags),
    "unknown variables": sorted(set(asked["variables"]) - set(envs.environment_variables)),
}, sys.stdout)
"""
"""Runs under the engine's Python: what its own parser makes of commands, and which names it does not know."""


def served() -> list[tuple[dict[str, str], list[str]]]:
    """Variables and arguments of each ``vllm serve`` on the page."""
    found = []
    for kind, block in BLOCKS:
        if kind == "sh" and "vllm serve" in block:
            before, _, after = block.partition("vllm serve")
            variables = dict(word.split("=", 1) for word in shlex.split(before.replace("\\\n", " ")))
            found.append((variables, shlex.split(after.replace("\\\n", " "))))
    return found


def option(arguments: list[str], name: str) -> Any:
    return json.loads(arguments[arguments.index(name) + 1])


def test_vllm_reads_the_commands(engine_venv: Path) -> None:
    commands = served()
    assert len(commands) == 2
    asked = {
        "commands": [arguments for _, arguments in commands],
        "flags": sorted(set(re.findall(r"(--[a-z][a-z-]+)", PAGE)) - KVGATE_FLAGS),
        "variables": sorted({name for given, _ in commands for name in given} | set(re.findall(r"VLLM_\w+", PAGE))),
    }
    done = subprocess.run(
        [engine_venv / "bin" / "python", "-c", PARSE],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["unknown flags"] == []
    assert told["unknown variables"] == []
    common = {"kv_connector": "NixlConnector", "events": True, "publisher": "zmq"}
    assert told["commands"] == [
        {**common, "kv_role": "kv_producer", "kv_load_failure_policy": "fail"},
        {**common, "kv_role": "kv_consumer", "kv_load_failure_policy": "recompute"},
    ]


def test_the_tests_run_the_pages_settings(tmp_path: Path) -> None:
    """The engines of these tests have the page's KV settings, and its variable."""
    prefill = transferring("p", "kv_producer", tmp_path, tmp_path, tmp_path)
    decode = transferring("d", "kv_consumer", tmp_path, tmp_path, tmp_path, policy="recompute")
    for (variables, arguments), engine in zip(served(), (prefill, decode), strict=True):
        on_page = option(arguments, "--kv-transfer-config")
        ours = option(list(engine.flags), "--kv-transfer-config")
        assert on_page.items() <= ours.items()
        assert set(variables) <= set(engine.variables)
    assert f"for {prefill_lease(prefill)} seconds" in PAGE


def prefill_lease(engine: Any) -> int:
    lease: int = option(list(engine.flags), "--kv-transfer-config")["kv_connector_extra_config"]["kv_lease_duration"]
    return lease


@pytest.mark.parametrize("block", [block for kind, block in BLOCKS if kind == "yaml"])
def test_the_gateway_loads_the_yaml(block: str) -> None:
    models = "models: [{name: m, handler: prefill-decode, endpoints: [{url: 'http://a:1', labels: {zone: a}}]}]\n"
    config = loads(block if "models:" in block else models + block, {})
    scheduler = build_scheduler(config, context)
    assert all(isinstance(scheduler.handlers[model.handler], PrefillDecode) for model in config.models)


def test_the_request_to_try_it_with_is_split(tmp_path: Path) -> None:
    """Its file is made as the page says, and is worth a prefill even if each of its numbers were one token."""
    (line,) = re.findall(r"^printf .*$", PAGE, re.MULTILINE)
    subprocess.run(["/bin/sh", "-c", line], cwd=tmp_path, check=True, timeout=10)
    body = json.loads((tmp_path / "request.json").read_text())
    assert body["model"] in PAGE.partition("models:")[2]
    assert len(body["prompt"].split()) > THRESHOLD


def test_its_numbers_and_names_are_the_gateways() -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(TimeoutSettings)}
    written = re.findall(r"`timeouts\.(\w+)` \((\d+) s\)", PAGE)
    assert {name for name, _ in written} == {"prefill", "handover", "head"}
    assert all(float(seconds) == defaults[name] for name, seconds in written)
    assert f"`threshold` ({THRESHOLD})" in PAGE
    metrics = (DOCS / "metrics.md").read_text()
    assert [name for name in re.findall(r"`(kvgate_\w+)", PAGE) if f"`{name}`" not in metrics] == []
    plugins = (DOCS / "plugins.md").read_text()
    assert [f"| `{name}` |" in plugins for name in re.findall(r'reason="([\w-]+)"', PAGE)].count(False) == 0
