"""Covers: gateway/commands/epp_config.py, gateway/cli.py.

What llm-d's chart starts, started: its arguments and its file make a picker of an InferencePool whose probes pass.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import pytest
from grpc import aio

from gateway.cli import main
from gateway.commands.epp_config import config_of
from gateway.commands.epp_flags import read_flags
from gateway.commands.processes import Processes, offline
from gateway.config.build import build_scheduler
from gateway.errors import ConfigError
from simulator.kubernetes.server import ApiServer
from tests.support.candidates import context
from tests.support.engines import simulated
from tests.support.ext_proc import MODES, AskingGateway
from tests.support.health import healthy
from tests.support.kubernetes import POOLS, pool
from tests.support.kubernetes import simulated as cluster_of
from tests.support.ports import free_in_a_row
from tests.support.processes import KVGATE, ended
from tests.support.wait import until

HEAD = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n"
DATA = Path(__file__).parents[1] / "data" / "llmd"


@pytest.mark.parametrize("file", sorted(DATA.glob("*.yaml")), ids=lambda file: file.stem)
def test_each_of_llm_d_s_files_is_a_picker(file) -> None:
    config, converted = config_of(read_flags(["--pool-name=llama", f"--config-file={file}"], {"NAMESPACE": "serving"}))
    build_scheduler(config, context)
    [model] = config.models
    [source] = model.discover
    assert (model.name, model.aliases, source.label) == ("llama", ("*",), "kubernetes pool serving/llama")
    assert config.epp is not None
    assert (config.epp.tls, config.listen.metrics, config.listen.lame_duck) == ("self-signed", "0.0.0.0:9090", 30.0)
    assert [one.name for one in config.plugins] == [one["name"] for one in converted.values["plugins"]]


def test_without_a_file_the_defaults_are_llm_d_s() -> None:
    config, _ = config_of(read_flags(["--pool-name=llama"], {}))
    assert config.models[0].discover[0].label == "kubernetes pool llama"
    assert [(one.plugin, one.weight) for one in config.profiles[0].scorers] == [
        ("queue-scorer", 2.0),
        ("kv-cache-utilization-scorer", 2.0),
        ("prefix-cache-scorer", 3.0),
    ]


def test_a_text_may_be_given_in_place_of_a_file() -> None:
    text = f"{HEAD}plugins: [{{type: random-picker}}]\n"
    config, _ = config_of(read_flags(["--pool-name=llama", "--config-text", text], {}))
    assert config.profiles[0].picker == "random-picker"


def test_engines_may_be_those_of_a_file_and_need_no_cluster() -> None:
    plugin = "{name: here, type: file-discovery, parameters: {path: /etc/epp/endpoints.yaml, watchFile: true}}"
    for where in ("{pluginRef: here}", "{endpoints: {pluginRef: here}}"):
        text = f"{HEAD}plugins: [{plugin}]\ndataLayer: {{discovery: {where}}}\n"
        for named in ([], ["--pool-name=epp"]):
            config, _ = config_of(read_flags([*named, "--config-text", text], {}))
            [source] = config.models[0].discover
            assert source.label == "file /etc/epp/endpoints.yaml"


def test_without_a_pool_or_a_file_there_are_no_engines() -> None:
    with pytest.raises(ConfigError, match="one of --pool-name and --endpoint-selector is required"):
        config_of(read_flags(["--grpc-port=7"], {}))


def test_what_is_wrong_ends_with_the_code_of_a_configuration(capsys) -> None:
    assert main(["epp", "--pool-name=llama", "--config-file=/no/such/file"]) == 2
    assert main(["epp", "--pool-name=llama", "--endpoint-selector=a", "--endpoint-target-ports=1"]) == 2
    assert main(["--pool-name=llama", "--config-file=/no/such/file"]) == 2, "an image gets no command"
    assert "/no/such/file" in capsys.readouterr().err


async def test_the_chart_s_arguments_start_a_picker_whose_probes_pass(processes: Processes, tmp_path):
    grpc_port = free_in_a_row(3)
    async with simulated() as server, ApiServer() as api, cluster_of(api, tmp_path) as cluster:
        port = int(server.url.rsplit(":", 1)[1])
        arguments = [
            *("--pool-name", "llama", "--pool-namespace", cluster.namespace),
            *("--pool-group", "inference.networking.k8s.io", "--zap-encoder", "json"),
            *("--config-file", str(DATA / "chart-default.yaml"), "--grpc-health-port", str(grpc_port + 1)),
            *(f"--grpc-port={grpc_port}", f"--metrics-port={grpc_port + 2}", "--secure-serving=false"),
            *("--tracing=false", "--metrics-endpoint-auth=false", "--drain-timeout=100ms", "--new-flag=1", "--admin="),
        ]
        env = offline(os.environ) | {"KUBECONFIG": str(cluster.kubeconfig)}
        process = processes.start("picker", [*KVGATE, *arguments], env=env)
        async with (
            aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel,
            aio.insecure_channel(f"127.0.0.1:{grpc_port + 1}") as probes,
            httpx.AsyncClient(timeout=30) as http,
        ):
            await until(lambda: healthy(probes, "liveness", 1), "it lives")
            assert await healthy(probes, "readiness", 2), "a pool without endpoints is not ready"
            await cluster.create(POOLS, "llama", pool({"app": "vllm"}, port))
            await cluster.pod("a", "127.0.0.1")
            await until(lambda: healthy(probes, "readiness", 1), "a pool with an endpoint is ready")
            assert await healthy(probes, "inference-extension", 1)
            asked = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
            carried = await AskingGateway(channel, http, MODES["full"]).post(asked)
            assert carried.destination[0] == f"127.0.0.1:{port}"
            figures = f"http://127.0.0.1:{grpc_port + 2}"
            text = (await http.get(f"{figures}/metrics")).text
            assert 'kvgate_requests_total{model="llama",outcome="ok"} 1.0' in text
            for path in ("/endpoints", "/reload", "/debug/decisions"):
                assert (await http.get(figures + path)).status_code == 404, "operators' routes are not for the cluster"
        os.kill(process.pid, signal.SIGTERM)
        assert await ended(process) == 0
        said = process.log.read_text()
        assert "--tracing: has no meaning here" in said
        assert "--new-flag: is not known, and ignored" in said
