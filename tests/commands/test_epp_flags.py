from __future__ import annotations

from pathlib import Path

import pytest

from gateway.commands.epp_flags import EppFlags, of_llm_d, read_flags
from gateway.errors import ConfigError

CHART = [
    *("--pool-name", "llama", "--pool-namespace", "serving", "--pool-group", "inference.networking.k8s.io"),
    *("--zap-encoder", "json", "--config-file", "/config/default-plugins.yaml", "--grpc-health-port", "9003"),
    *("--v=2", "--tracing=false", "--metrics-endpoint-auth=false"),
]
"""What llm-d's chart renders."""


def test_the_chart_s_arguments_are_a_picker_of_its_pool() -> None:
    flags = read_flags(CHART, {"NAMESPACE": "other"})
    assert (flags.pool, flags.namespace, flags.config_file) == (
        "llama",
        "serving",
        Path("/config/default-plugins.yaml"),
    )
    assert flags.values() == {
        "models": [
            {
                "name": "llama",
                "aliases": ["*"],
                "discover": [{"kubernetes": {"pool": "llama", "objectives": True, "namespace": "serving"}}],
            }
        ],
        "listen": {"admin": "127.0.0.1:9000", "metrics": "0.0.0.0:9090", "lame_duck": 30.0},
        "epp": {"listen": "0.0.0.0:9002", "health": "0.0.0.0:9003", "tls": "self-signed", "subset": True},
        "tenants": {"tenants": [{"name": "default", "bands": [-10, 10]}]},
        "log": {"format": "json", "level": "info"},
    }
    assert [note.partition(":")[0] for note in flags.notes] == ["--tracing", "--metrics-endpoint-auth"]


def test_without_a_pool_pods_are_selected() -> None:
    flags = read_flags(["--endpoint-selector", "app=vllm,tier in (a,b)", "--endpoint-target-ports=8000,8001,8000"], {})
    [model] = flags.values()["models"]
    assert model["discover"] == [{"kubernetes": {"selector": "app=vllm,tier in (a,b)", "ports": [8000, 8001]}}]
    assert model["name"] == "model"
    assert (
        read_flags(["--endpoint-selector=a", "--endpoint-target-ports=1", "--model=m"], {"NAMESPACE": "n"}).namespace
        == "n"
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["-grpc-port=7"], {"grpc_port": 7}),
        (["--grpc-port", "7"], {"grpc_port": 7}),
        (["-v", "5"], {"log_level": "debug"}),
        (["--v=3"], {"log_level": "info"}),
        (["--zap-log-level=error"], {"log_level": "error"}),
        (["--zap-log-level", "4"], {"log_level": "debug"}),
        (["--zap-encoder=console"], {"log_format": "text"}),
        (["--secure-serving=false"], {"secure": False}),
        (["--secure-serving", "false"], {"secure": False}),
        (["--secure-serving"], {"secure": True}),
        (["--disable-endpoint-subset-filter"], {"subset": False}),
        (["--cert-path=/certs/"], {"certificate": "/certs"}),
        (["--drain-timeout=1m30s"], {"drain": 90.0}),
        (["--config-text", "apiVersion: x"], {"config_text": "apiVersion: x"}),
        (["--model=llama"], {"model": "llama"}),
        (["--admin="], {"admin": ""}),
    ],
)
def test_flags_are_go_s(given, expected) -> None:
    assert read_flags(["--pool-name=p", *given], {}) == EppFlags(pool="p", **expected)


def test_certificates_are_files_of_a_folder() -> None:
    tls = read_flags(["--pool-name=p", "--cert-path=/certs"], {}).values()["epp"]["tls"]
    assert tls == {"certificate": "/certs/tls.crt", "key": "/certs/tls.key"}
    assert read_flags(["--pool-name=p", "--secure-serving=false"], {}).values()["epp"]["tls"] is None


def test_what_has_no_meaning_or_is_not_known_is_said() -> None:
    given = [
        "--ha-enable-leader-election",
        "--pool-name=p",
        "--refresh-metrics-interval",
        "50ms",
        "--pool-nam=q",
        "--new",
    ]
    election, interval, typo, new = read_flags(given, {}).notes
    assert election.startswith("--ha-enable-leader-election: has no meaning here: each picker decides")
    assert interval.startswith("--refresh-metrics-interval: has no meaning here")
    assert typo == "--pool-nam: is not known, and ignored; did you mean 'pool-name'?"
    assert new == "--new: is not known, and ignored"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["--pool-name=p", "--endpoint-selector=a", "--endpoint-target-ports=1"], "exclude each other"),
        (["--pool-name=p", "--pool-group=inference.networking.x-k8s.io"], "--pool-group"),
        (["--endpoint-selector=a"], "--endpoint-target-ports: 1 to 8"),
        (["--endpoint-selector=a", "--endpoint-target-ports=1,2,3,4,5,6,7,8,9"], "--endpoint-target-ports: 1 to 8"),
        (["--endpoint-selector=a", "--endpoint-target-ports=http"], "--endpoint-target-ports: 'http': expected a port"),
        (["--pool-name=p", "--grpc-port=70000"], "--grpc-port: '70000': expected a port"),
        (["--pool-name=p", "--grpc-port=9003"], "must differ"),
        (["--pool-name=p", "--secure-serving=maybe"], "--secure-serving: 'maybe': expected true or false"),
        (["--pool-name=p", "--zap-encoder=xml"], "--zap-encoder: 'xml': expected json or console"),
        (["--pool-name=p", "--zap-log-level=loud"], "--zap-log-level"),
        (["--pool-name=p", "--drain-timeout=30"], "--drain-timeout: '30': expected a duration"),
        (["--pool-name=p", "--config-file=a", "--config-text=b"], "exclude each other"),
        (["--pool-name"], "--pool-name: needs a value"),
        (["--pool-name=p", "plugins.yaml"], "'plugins.yaml': an argument that belongs to no flag"),
    ],
)
def test_what_cannot_be_done_is_an_error(given, problem) -> None:
    with pytest.raises(ConfigError, match=problem.replace("(", r"\(")):
        read_flags(given, {})


@pytest.mark.parametrize(
    ("given", "theirs"),
    [
        (CHART, True),
        (["-pool-name=p"], True),
        (["--log-format=json", "plugins.yaml"], False),
        (["plugins.yaml", "--log-level", "debug"], False),
        ([], False),
    ],
)
def test_whose_arguments_they_are(given, theirs) -> None:
    assert of_llm_d(given) is theirs
