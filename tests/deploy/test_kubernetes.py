"""deploy/kubernetes: the chart is sound, the plain manifests are what it makes, and what they start answers their
probes. That a real API server takes them is shown in tests/kubernetes."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from typing import Any

import httpx
import pytest
import yaml
from grpc import aio

from gateway import __version__
from gateway.commands.processes import START_SECONDS, Processes, offline
from gateway.config.load import load
from simulator.kubernetes.server import ApiServer
from tests.deploy.conftest import ROOT, Stage
from tests.support.engines import engines
from tests.support.health import healthy
from tests.support.kubernetes import POOLS, pool, simulated
from tests.support.manifests import (
    CHART,
    FOLDER,
    MODES,
    Object,
    needs_helm,
    objects,
    rendered,
    run,
    the,
    tools,
    values_of,
)
from tests.support.ports import free_in_a_row
from tests.support.processes import KVGATE
from tests.support.wait import until

VERSIONS = ("1.27", "1.37")
"""Of Kubernetes: the first one in which gRPC probes are stable, and the newest one whose schemas we have."""

SERVING = 1

EPP_FILE = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
"""

# As the container's root file system is: nothing outside of the folders that are mounted.
READ_ONLY = """
import errno, os, sys
allowed = (*os.environ["WRITABLE"].split(":"), "/dev/", "/proc/")
writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT
def check(event, args):
    if event == "open" and not (isinstance(args[2], int) and args[2] & writes):
        return
    if event in ("open", "os.mkdir", "os.rename") and isinstance(args[0], (str, bytes)):
        path = os.path.abspath(os.fsdecode(args[0]))
        if not path.startswith(allowed):
            os.write(2, f"wrote to {path}\\n".encode())
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
sys.addaudithook(check)
"""


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def plain(mode: str) -> list[Object]:
    return objects((FOLDER / f"{mode}.yaml").read_text())


def settings(among: list[Object]) -> dict[str, Any]:
    return yaml.safe_load(the("ConfigMap", among)["data"]["plugins.yaml"])


def pod(among: list[Object]) -> dict[str, Any]:
    return the("Deployment", among)["spec"]["template"]


def container(among: list[Object]) -> dict[str, Any]:
    [one] = pod(among)["spec"]["containers"]
    return one


def container_ports(among: list[Object]) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container(among)["ports"]}


def test_the_configuration_opens_the_ports_of_the_container(plain, mode, tmp_path) -> None:
    (tmp_path / "plugins.yaml").write_text(yaml.safe_dump(settings(plain)))
    config = load(tmp_path / "plugins.yaml", {})
    ports = container_ports(plain)
    assert config.listen.metrics == f"0.0.0.0:{ports.pop('metrics')}"
    assert config.listen.admin.startswith("127.0.0.1:"), "operators come by kubectl port-forward, and nobody else"
    if mode == "picker":
        assert config.epp is not None
        assert (config.epp.listen, config.epp.health) == (f"0.0.0.0:{ports['ext-proc']}", f"0.0.0.0:{ports['health']}")
    else:
        assert (config.listen.host, config.listen.port) == ("0.0.0.0", ports["http"])
    grace = pod(plain)["spec"]["terminationGracePeriodSeconds"]
    assert grace > config.listen.lame_duck + (config.epp.drain if config.epp else config.listen.grace)


def test_services_and_policies_agree_with_the_pods(plain, mode) -> None:
    labels, ports = pod(plain)["metadata"]["labels"], container_ports(plain)
    service, policy = the("Service", plain)["spec"], the("NetworkPolicy", plain)["spec"]
    assert the("Deployment", plain)["spec"]["selector"]["matchLabels"] == labels
    assert service["selector"] == labels
    assert the("PodDisruptionBudget", plain)["spec"]["selector"]["matchLabels"] == labels
    assert policy["podSelector"]["matchLabels"] == labels
    assert {port["targetPort"]: port["port"] for port in service["ports"]}.items() <= ports.items()
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == set(ports)
    [monitor] = objects((FOLDER / "servicemonitor.yaml").read_text())
    assert monitor["spec"]["selector"]["matchLabels"].items() <= the("Service", plain)["metadata"]["labels"].items()
    assert {one["port"] for one in monitor["spec"]["endpoints"]} <= {port["name"] for port in service["ports"]}
    account = the("ServiceAccount", objects((FOLDER / "rbac.yaml").read_text()))
    assert pod(plain)["spec"]["serviceAccountName"] == account["metadata"]["name"]


def test_the_pool_asks_the_picker_and_the_route_leads_to_the_pool() -> None:
    picker = objects((FOLDER / "picker.yaml").read_text())
    made = objects((FOLDER / "pool.yaml").read_text())
    [model] = settings(picker)["models"]
    found, route = the("InferencePool", made), the("HTTPRoute", made)
    assert [one["kubernetes"]["pool"] for one in model["discover"]] == [found["metadata"]["name"]]
    asked = found["spec"]["endpointPickerRef"]
    service = the("Service", picker)
    assert asked["name"] == service["metadata"]["name"]
    [port] = [port for port in service["spec"]["ports"] if port["port"] == asked["port"]["number"]]
    assert (port["name"], port["appProtocol"]) == ("ext-proc", "kubernetes.io/h2c")
    [rule] = route["spec"]["rules"]
    assert [(one["kind"], one["name"]) for one in rule["backendRefs"]] == [("InferencePool", found["metadata"]["name"])]


def test_the_pod_is_what_the_image_is_made_for(plain, stages: list[Stage]) -> None:
    image, spec, one = stages[-1], pod(plain)["spec"], container(plain)
    security = spec["securityContext"]
    assert f"{security['runAsUser']}:{security['runAsGroup']}" == image.last("USER")
    assert security["runAsNonRoot"] is True
    assert one["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    environ = dict(pair.split("=") for pair in image.last("ENV").split(" "))
    writable = {mount["mountPath"] for mount in one["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {environ["HF_HOME"], "/tmp"}
    assert image.last("WORKDIR") in writable
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert one["image"] == f"kvgate:{__version__}"
    assert chart["version"] == chart["appVersion"] == __version__


async def answers(probe: dict[str, Any], ports: dict[str | int, int]) -> bool:
    """Whether what the probe asks is answered as it wants. ``ports``: where its names and numbers are here."""
    if "grpc" in probe:
        asked = probe["grpc"]
        async with aio.insecure_channel(f"127.0.0.1:{ports[asked['port']]}") as channel:
            return await healthy(channel, asked["service"], SERVING)
    asked = probe["httpGet"]
    async with httpx.AsyncClient(trust_env=False) as client:
        try:
            answer = await client.get(f"http://127.0.0.1:{ports[asked['port']]}{asked['path']}")
        except httpx.TransportError:
            return False
    return answer.status_code == 200


async def test_it_starts_read_only_and_answers_its_probes(plain, mode, tmp_path, processes: Processes) -> None:
    cache, temporary, site = (tmp_path / name for name in ("cache", "tmp", "site"))
    for folder in (cache, temporary, site):
        folder.mkdir()
    (site / "sitecustomize.py").write_text(READ_ONLY)
    first = free_in_a_row(5)
    names = ("http", "ext-proc", "health", "metrics", "admin")
    ports: dict[str | int, int] = {name: first + number for number, name in enumerate(names)}
    ports |= {number: ports[name] for name, number in container_ports(plain).items()}
    config = settings(plain)
    config["listen"] |= {"port": ports["http"], "lame_duck": 0}
    config["listen"] |= {name: f"127.0.0.1:{ports[name]}" for name in ("admin", "metrics")}
    if mode == "picker":
        config["epp"] = {"listen": f"127.0.0.1:{ports['ext-proc']}", "health": f"127.0.0.1:{ports['health']}"}
        config["epp"]["tls"] = "self-signed"  # it writes a certificate
    async with ApiServer() as server, simulated(server, tmp_path) as cluster, engines(1) as [engine]:
        [model] = config["models"]
        [source] = model["discover"]
        if mode == "proxy":
            source["kubernetes"]["ports"] = [engine.port]
        await cluster.create(POOLS, "my-model", pool({"app": "my-model"}, engine.port))
        path = tmp_path / "plugins.yaml"
        path.write_text(yaml.safe_dump(config))
        arguments = [str(path) if word == "/etc/kvgate/plugins.yaml" else word for word in container(plain)["args"]]
        assert str(path) in arguments
        environ = {"KUBECONFIG": str(cluster.kubeconfig), "TMPDIR": str(temporary), "HF_HOME": str(cache)}
        environ |= {"PYTHONPATH": f"{site}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
        environ |= {"WRITABLE": f"{cache}:{temporary}"}
        kvgate = processes.start("kvgate", [*KVGATE, *arguments], env=offline(os.environ) | environ, cwd=cache)
        probes = container(plain)
        await until(lambda: answers(probes["startupProbe"], ports), "it has started", within=START_SECONDS)
        assert await answers(probes["livenessProbe"], ports)
        assert not await answers(probes["readinessProbe"], ports), "there is no engine yet"
        await cluster.pod("a", "127.0.0.1", app="my-model")
        await until(lambda: answers(probes["readinessProbe"], ports), "it is ready")
        async with httpx.AsyncClient(trust_env=False) as client:
            page = await client.get(f"http://127.0.0.1:{ports['metrics']}/metrics")
        assert "kvgate_usable_endpoints" in page.text
        assert "wrote to" not in kvgate.log.read_text()


@needs_helm
def test_the_plain_manifests_are_what_the_chart_makes(mode) -> None:
    made = run(FOLDER / "render.sh", mode, HELM=str(tools() / "helm"))
    assert made == (FOLDER / f"{mode}.yaml").read_text(), "run `make manifests`"


@needs_helm
def test_the_chart_is_sound(mode) -> None:
    assert "0 chart(s) failed" in run("helm", "lint", "--strict", CHART, *values_of(mode))


@needs_helm
def test_kubernetes_knows_every_field(tmp_path) -> None:
    files = [*(FOLDER / f"{mode}.yaml" for mode in MODES), FOLDER / "rbac.yaml", tmp_path / "chart.yaml"]
    files[-1].write_text(yaml.safe_dump_all(one for mode in MODES for one in rendered(*values_of(mode))))
    versions = [word for version in VERSIONS for word in ("-k", version)]
    checked = run("kubernetes-validate", "--strict", *versions, *files)
    assert len(re.findall("passed", checked)) == 2 * sum(len(objects(file.read_text())) for file in files)
    files[-1].write_text(files[-1].read_text().replace("runAsNonRoot", "runAsNoRoot"))
    with pytest.raises(AssertionError, match="runAsNoRoot"):
        run("kubernetes-validate", "--strict", *versions, files[-1])


def with_config(**config: Any) -> list[Object]:
    return rendered("--set-json", f"config={json.dumps({'models': [{'name': 'm'}]} | config)}", "--set", "mode=picker")


@needs_helm
def test_a_role_allows_what_the_sources_need_and_no_more() -> None:
    allowed = [
        tuple(map(str, rule.values())) for rule in the("Role", objects((FOLDER / "rbac.yaml").read_text()))["rules"]
    ]

    def rules(**source: Any) -> list[dict[str, Any]]:
        made = with_config(models=[{"name": "m", "discover": [{"kubernetes": source}]}])
        role, binding = the("Role", made), the("RoleBinding", made)
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        assert binding["metadata"]["namespace"] == role["metadata"]["namespace"] == source.get("namespace", "team")
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "kvgate", "namespace": "team"}]
        for rule in role["rules"]:
            known = {key: ["POOL"] if key == "resourceNames" else value for key, value in rule.items()}
            assert tuple(map(str, known.values())) in allowed
        return role["rules"]

    assert [rule["resources"] for rule in rules(selector="app=a", ports=[8000])] == [["pods"]]
    assert [rule["resources"] for rule in rules(service="a", namespace="other")] == [["endpointslices"]]
    pods, pools, objectives = rules(pool="a", objectives=True)
    assert (pods["resources"], pools["resourceNames"]) == (["pods"], ["a"])
    assert objectives["resources"] == ["inferenceobjectives"]
    assert len(rules(pool="a")) == 2
    kinds = [one["kind"] for one in with_config(models=[{"name": "m", "discover": [{"file": "engines.yaml"}]}])]
    assert "Role" not in kinds


@needs_helm
def test_where_it_listens_is_the_charts_and_all_else_the_users() -> None:
    listen = {"port": 1, "admin": "0.0.0.0:9000", "max_body": 33554432, "lame_duck": 20}
    made = with_config(listen=listen, epp={"listen": "127.0.0.1:1", "tls": "self-signed", "drain": 30})
    config = settings(made)
    assert config["listen"]["max_body"] == 33554432
    assert (config["listen"]["port"], config["listen"]["admin"]) == (8000, "127.0.0.1:9000")
    assert config["epp"] == {"listen": "0.0.0.0:9002", "health": "0.0.0.0:9003", "tls": "self-signed", "drain": 30}
    assert pod(made)["spec"]["terminationGracePeriodSeconds"] == 60
    assert not [port for port in the("Service", made)["spec"]["ports"] if "appProtocol" in port], "it is TLS, not h2c"


@needs_helm
def test_a_proxy_with_tls_is_probed_by_tls() -> None:
    tls = {"certificate": "/tls/tls.crt", "key": "/tls/tls.key"}
    probed = container(rendered("--set-json", f"config.listen.tls={json.dumps(tls)}"))
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert probed[name]["httpGet"]["scheme"] == "HTTPS"


@needs_helm
def test_what_the_page_adds_to_a_picker_is_a_configuration(tmp_path) -> None:
    page = (ROOT / "docs/kubernetes.md").read_text()
    added = shlex.split(" ".join(re.findall(r"`(?:add )?(--set(?:-json)? [^`]*)`", page)))
    assert len(added) == 4
    (tmp_path / "plugins.yaml").write_text(yaml.safe_dump(settings(rendered(*values_of("picker"), *added))))
    config = load(tmp_path / "plugins.yaml", {})
    assert config.epp is not None
    assert config.epp.tls == "self-signed"
    assert config.tenants.tenants[0].bands == (-10, 10)


@needs_helm
def test_what_a_user_adds_is_where_it_belongs() -> None:
    key = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "engine"}}}
    peers = [{"namespaceSelector": {"matchLabels": {"team": "gateways"}}}]
    volume = {"name": "tokenizers", "persistentVolumeClaim": {"claimName": "tokenizers"}}
    values = {
        "env": [key],
        "networkPolicy": {"clients": peers, "metrics": peers},
        "volumes": [volume],
        "volumeMounts": [{"name": "tokenizers", "mountPath": "/tokenizers"}],
        "pod": {"imagePullSecrets": [{"name": "registry"}]},
        "serviceMonitor": True,
    }
    made = rendered("--set-json", json.dumps(values))
    spec, one = pod(made)["spec"], container(made)
    assert one["env"] == [key]
    assert spec["volumes"][-1] == volume
    assert one["volumeMounts"][-1]["mountPath"] == "/tokenizers"
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert [rule.get("from") for rule in the("NetworkPolicy", made)["spec"]["ingress"]] == [peers, peers]
    assert the("ServiceMonitor", made) == objects((FOLDER / "servicemonitor.yaml").read_text())[0]
    with pytest.raises(AssertionError, match="value must be one of 'proxy', 'picker'"):
        rendered("--set", "mode=both")
    with pytest.raises(AssertionError, match="'replica'"):
        rendered("--set", "replica=2")


@needs_helm
def test_the_values_that_the_page_shows_are_a_configuration(tmp_path) -> None:
    [values] = re.findall(r"```yaml\n(# values.yaml.*?)```", (ROOT / "docs/kubernetes.md").read_text(), re.DOTALL)
    (tmp_path / "values.yaml").write_text(values)
    made = rendered("--values", tmp_path / "values.yaml")
    (tmp_path / "plugins.yaml").write_text(the("ConfigMap", made)["data"]["plugins.yaml"])
    config = load(tmp_path / "plugins.yaml", {one["name"]: "secret" for one in container(made)["env"]})
    assert config.client_keys.values == ("secret",)


@needs_helm
def test_a_file_of_llm_d_becomes_values_as_the_page_says(tmp_path) -> None:
    page = (ROOT / "docs/kubernetes.md").read_text()
    [commands] = re.findall(r"  ```sh\n  kubectl get configmap.*\n((?:  .*\n)+?)  ```", page)
    (tmp_path / "epp.yaml").write_text(EPP_FILE)
    (tmp_path / "kvgate").write_text(f'#!/bin/sh\nexec {shlex.join(KVGATE)} "$@"\n')
    (tmp_path / "kvgate").chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    subprocess.run(["sh", "-ec", commands], cwd=tmp_path, env=environ, check=True, capture_output=True)
    model = {"name": "m", "aliases": ["*"], "discover": [{"kubernetes": {"pool": "m"}}]}
    values = ("--values", CHART / "values-picker.yaml", "--values", tmp_path / "converted.yaml")
    config = settings(rendered(*values, "--set-json", f"config.models={json.dumps([model])}"))
    assert config["models"] == [model]
    assert [one["plugin"] for one in config["profiles"][0]["scorers"]] == ["queue-scorer"]
    (tmp_path / "plugins.yaml").write_text(yaml.safe_dump(config))
    assert load(tmp_path / "plugins.yaml", {}).epp is not None
