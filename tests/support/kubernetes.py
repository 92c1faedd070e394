"""A Kubernetes cluster as tests use it: the simulated API server, or a real one, by the same requests."""

from __future__ import annotations

import json
import ssl
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from gateway.discovery.kubernetes.access import Credentials, of_kubeconfig
from simulator.kubernetes.server import ApiServer

POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/{namespace}/inferencepools"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
OBJECTIVES = tuple(
    f"/apis/{group}/v1alpha2/namespaces/{{namespace}}/inferenceobjectives"
    for group in ("llm-d.ai", "inference.networking.x-k8s.io")
)
"""By the newer and by the older group."""
PODS = "/api/v1/namespaces/{namespace}/pods"

MERGE = {"content-type": "application/merge-patch+json"}


@dataclass
class Cluster:
    """``kubeconfig``: names ``namespace``, which is this test's own. ``restart``: end the server, and start it again.
    ``forget``: it forgets all old versions, and has been started again."""

    http: httpx.AsyncClient
    kubeconfig: Path
    namespace: str
    restart: Callable[[], Awaitable[None]]
    forget: Callable[[], Awaitable[None]]

    @property
    def credentials(self) -> Credentials:
        return Credentials(lambda: of_kubeconfig(str(self.kubeconfig)))

    async def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        headers = MERGE if method == "PATCH" else {}
        answer = await self.http.request(
            method, path.format(namespace=self.namespace), json=body, headers=headers, timeout=30
        )
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        found: dict[str, Any] = answer.json()
        return found

    async def create(self, path: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
        meta = {**body.get("metadata", {}), "name": name}
        return await self.call("POST", path, {**body, "metadata": meta})

    async def pod(self, name: str, ip: str | None = None, *, ready: bool = True, **labels: str) -> dict[str, Any]:
        """Create one, with the label ``app: vllm``. ``ip``: it has that and is ready, if it is; None: it only waits."""
        labels = {"app": "vllm", **{key.replace("__", "/"): value for key, value in labels.items()}}
        made = await self.create(PODS, name, pod(labels))
        return made if ip is None else await self.status(name, ip, ready=ready)

    async def status(self, name: str, ip: str, *, ready: bool = True) -> dict[str, Any]:
        return await self.call("PATCH", f"{PODS}/{name}/status", status(ip, ready=ready))

    async def delete(self, path: str) -> None:
        await self.call("DELETE", f"{path}?gracePeriodSeconds=0")


def pod(labels: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "vllm", "image": "none"}]},
    }


def status(ip: str, *, ready: bool = True) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {"status": {"podIP": ip, "podIPs": [{"ip": ip}], "phase": "Running", "conditions": conditions}}


def pool(labels: dict[str, str], *ports: int) -> dict[str, Any]:
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "spec": {
            "selector": {"matchLabels": labels},
            "targetPorts": [{"number": port} for port in ports],
            "endpointPickerRef": {"name": "picker", "port": {"number": 9002}},
        },
    }


def objective(pool: str, priority: int | None) -> dict[str, Any]:
    spec: dict[str, Any] = {"poolRef": {"group": "inference.networking.k8s.io", "name": pool}}
    return {"spec": spec if priority is None else {**spec, "priority": priority}}


def kubeconfig(url: str, namespace: str, token: str = "", *, authority: str | None = None) -> str:
    """The text of one. JSON is YAML."""
    cluster = {"server": url, **({} if authority is None else {"certificate-authority": authority})}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": namespace}}],
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token} if token else {}}],
        }
    )


@asynccontextmanager
async def connected(
    url: str,
    folder: Path,
    restart: Callable[[], Awaitable[None]],
    forget: Callable[[], Awaitable[None]],
    *,
    token: str = "",
    authority: str | None = None,
) -> AsyncIterator[Cluster]:
    """A namespace of its own on the server at ``url``; it is not created."""
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    file = folder / f"{namespace}.kubeconfig"
    file.write_text(kubeconfig(url, namespace, token, authority=authority))
    verify = False if authority is None else ssl.create_default_context(cafile=authority)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(base_url=url, headers=headers, verify=verify, trust_env=False) as http:
        yield Cluster(http, file, namespace, restart, forget)


@asynccontextmanager
async def simulated(server: ApiServer, folder: Path) -> AsyncIterator[Cluster]:
    async def restart() -> None:
        await server.stop()
        await server.start()

    async def forget() -> None:
        server.store.compact()
        await restart()

    async with connected(server.url, folder, restart, forget) as cluster:
        yield cluster
