"""What llm-d's chart starts, under Envoy in the mode of its gateways: kvgate with its arguments and its file."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path

from gateway.commands.envoy.fields import Message, extension
from gateway.commands.envoy.wanted import Mode
from simulator.kubernetes.server import ApiServer
from tests.envoy.lab import Lab, lab
from tests.support.chat import chat
from tests.support.kubernetes import POOLS, pool, simulated
from tests.support.ports import free_in_a_row
from tests.support.processes import KVGATE

FILE = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: queue-scorer}
- {type: kv-cache-utilization-scorer}
- {type: prefix-cache-scorer}
- {type: session-affinity-scorer}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: session-affinity-scorer, weight: 10}
"""


def by_tls(made: Message) -> None:
    """Envoy takes any certificate of the picker, as llm-d's gateways do."""
    [picker] = [one for one in made["static_resources"]["clusters"] if one["name"] == "picker"]
    context = extension(
        "envoy.transport_sockets.tls",
        "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        common_tls_context={"alpn_protocols": ["h2"]},
    )
    picker["transport_socket"] = context


def start(made: Lab, kubeconfig: Path, namespace: str) -> None:
    (made.folder / "default-plugins.yaml").write_text(FILE)
    health = free_in_a_row()
    arguments = [
        *("--pool-name", "llama", "--pool-namespace", namespace, "--pool-group", "inference.networking.k8s.io"),
        *("--zap-encoder", "json", "--config-file", str(made.folder / "default-plugins.yaml")),
        *("--grpc-health-port", str(health), f"--grpc-port={made.port}", f"--metrics-port={made.admin}"),
        *("--tracing=false", "--metrics-endpoint-auth=false", "--drain-timeout=0", "--admin="),
    ]
    made.picker = made.processes.start("llm-d", [*KVGATE, *arguments], env={"KUBECONFIG": str(kubeconfig)})


async def test_requests_go_to_the_pods_of_the_pool_and_a_session_stays(folder: Path) -> None:
    async with lab(folder, picker=False) as made, ApiServer() as api, simulated(api, folder) as cluster:
        ports = [int(address.rpartition(":")[2]) for address in made.addresses]
        await cluster.create(POOLS, "llama", pool({"app": "vllm"}, *ports))
        await cluster.pod("a", "127.0.0.1")
        start(made, cluster.kubeconfig, cluster.namespace)
        front = await made.envoy(Mode.FULL, change=by_tls)
        tokens = []
        for question in range(6):
            steered = {"x-session-token": tokens[-1]} if tokens else {}
            answer = await front.post(chat(group=question, stream=True), **steered)
            assert answer.status_code == 200, answer.text
            assert "[DONE]" in answer.text
            tokens.append(answer.headers["x-session-token"])
        assert tokens == tokens[:1] * 6
        assert sorted(made.served()) == [0, 6]
        served = made.served().index(6)
        assert b64decode(tokens[0]).decode() == f"a:{ports[served]}"
        headers = [dict(one.headers) for one in made.engines[served].received if one.path.startswith("/v1/chat")]
        assert not any("x-session-token" in {name.lower() for name in one} for one in headers)
        unknown = await front.post(chat() | {"model": "an-adapter-that-no-engine-has"})
        assert unknown.status_code == 404
        assert await made.total(r'kvgate_requests_total{model="llama",outcome="ok"}') == 6
        await made.nothing_is_booked()
