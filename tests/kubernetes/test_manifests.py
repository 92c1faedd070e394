"""deploy/kubernetes and the commands of docs/kubernetes.md, by kubectl, on the real API server."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.kubernetes.real import RealServer
from tests.support.kubernetes import POOLS, Cluster, kubeconfig, pool
from tests.support.kubernetes_followed import following
from tests.support.manifests import CHART, FOLDER, MODES, needs_helm, run, tools
from tests.support.wait import eventually

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/kubernetes.md").read_text().partition("\n## From llm-d's picker")[2]
THERE, BACK = re.findall(r"^```sh\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)

OLD = "sed -e 's#policy/v1$#policy/v1beta1#' -e 's/grpc: {port: 9003.*/tcpSocket: {port: 9003}/'"
"""Puts what Kubernetes 1.20 does not know into its own words."""

# Nothing runs a pod here; and Helm itself would not get a PodDisruptionBudget of policy/v1 into this server.
HELM = f"""#!/bin/sh
case $1 in
install) shift; {tools()}/helm template "$@" | {OLD} | kubectl apply -f - ;;
uninstall) ;;
esac
"""
KUBECTL = f"""#!/bin/sh
case $1 in
rollout|exec) ;;
*) exec {tools()}/kubectl "$@" ;;
esac
"""

pytestmark = needs_helm


class Shell:
    """Runs commands as a user does who administers the cluster, in its namespace."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._folder = folder / "home"
        programs = self._folder / "bin"
        programs.mkdir(parents=True)
        for name, text in (("helm", HELM), ("kubectl", KUBECTL)):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        (self._folder / "deploy").symlink_to(ROOT / "deploy")
        (self._folder / "body.json").write_text("{}")
        self._environ = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(self._folder)}
        self._environ |= {"KUBECONFIG": str(cluster.kubeconfig)}

    def run(self, script: str) -> str:
        command = ["sh", "-ec", script]
        done = subprocess.run(command, env=self._environ, cwd=self._folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{script}: {done.stdout}{done.stderr}"
        return done.stdout

    def apply(self, text: str) -> str:
        (self._folder / "manifests.yaml").write_text(text)
        return self.run(f"{OLD} manifests.yaml | kubectl apply -f -")


@pytest.fixture
def shell(cluster: Cluster, tmp_path: Path) -> Shell:
    return Shell(cluster, tmp_path)


@pytest.mark.parametrize("mode", MODES)
async def test_the_plain_manifests_are_taken(shell: Shell, mode: str) -> None:
    for file in (FOLDER / "rbac.yaml", FOLDER / f"{mode}.yaml"):
        shell.apply(file.read_text())
    with pytest.raises(AssertionError, match='unknown field "runAsNoRoot"'):
        shell.apply((FOLDER / f"{mode}.yaml").read_text().replace("runAsNonRoot", "runAsNoRoot"))


async def test_the_charts_service_account_finds_its_pool_and_no_other(
    shell: Shell, cluster: Cluster, real: RealServer
) -> None:
    for name in ("mine", "other"):
        await cluster.create(POOLS, name, pool({"app": "vllm"}, 8000))
    await cluster.pod("a", "10.0.0.1")
    model = {"name": "mine", "discover": [{"kubernetes": {"pool": "mine", "objectives": True}}]}
    chosen = ("--set", "mode=picker", "--set-json", f"config={json.dumps({'models': [model]})}")
    shell.apply(run("helm", "template", "kvgate", CHART, "--namespace", cluster.namespace, *chosen))
    token = shell.run("kubectl create token kvgate").strip()
    cluster.kubeconfig.write_text(kubeconfig(real.url, cluster.namespace, token, authority=real.authority))
    async with following(cluster, pool="mine") as seen:
        await seen.shows("a:8000 http://10.0.0.1:8000")
    async with following(cluster, pool="other") as seen:
        await eventually(lambda: seen.losses)
        assert "we lack a permission (403)" in seen.losses[0]


async def test_the_page_leads_to_kvgate_and_back(shell: Shell, cluster: Cluster) -> None:
    body = pool({"app": "vllm"}, 8000)
    body["spec"]["endpointPickerRef"] = {"name": "my-pool-epp", "port": {"number": 9002}, "failureMode": "FailOpen"}
    before = (await cluster.create(POOLS, "my-pool", body))["spec"]
    shell.run(THERE)
    path = f"{POOLS}/my-pool"
    there = (await cluster.call("GET", path))["spec"]
    service = await cluster.call("GET", "/api/v1/namespaces/{namespace}/services/kvgate")
    assert there["endpointPickerRef"] == before["endpointPickerRef"] | {"name": "kvgate"}
    assert there["endpointPickerRef"]["name"] == service["metadata"]["name"]
    assert there["endpointPickerRef"]["port"]["number"] in {port["port"] for port in service["spec"]["ports"]}
    shell.run(f"pool=my-pool\n{BACK}")
    assert (await cluster.call("GET", path))["spec"] == before
