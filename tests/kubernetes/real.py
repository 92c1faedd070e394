"""A real etcd and kube-apiserver on loopback: no kubelet, no controllers. Pods are what a test writes."""

from __future__ import annotations

import os
import ssl
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import yaml

from gateway.commands.processes import Process, Processes, wait_for
from tests.support.ports import free_in_a_row

TOKEN = "test"
LIMITED = "limited"
"""The token of the user of that name, who may do nothing until a test allows it."""

READY_SECONDS = 120.0
"""For the server, which takes 6 seconds of an idle machine."""

DEFINITIONS = Path(__file__).parent / "definitions.yaml"


def binaries() -> Path:
    """Where install.sh puts them."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("KVGATE_KUBERNETES") or cache / "kvgate/kube-apiserver-1.20.2")


def installed() -> bool:
    return (binaries() / "kube-apiserver").exists()


@dataclass
class RealServer:
    """``folder``: of its data. ``starts``: how often it was started."""

    folder: Path
    processes: Processes
    etcd_port: int = field(default_factory=lambda: free_in_a_row(3))
    starts: int = 0
    server: Process | None = None

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.etcd_port + 2}"

    @property
    def authority(self) -> str:
        """Its certificate, which it made itself."""
        return str(self.folder / "certificates/apiserver.crt")

    @property
    def etcd_url(self) -> str:
        return f"http://127.0.0.1:{self.etcd_port}"

    def start(self) -> None:
        """It is ready then, and knows the kinds of ``definitions.yaml``."""
        (self.folder / "tokens.csv").write_text(f'{TOKEN},admin,1,"system:masters"\n{LIMITED},limited,2\n')
        subprocess.run(["openssl", "genrsa", "-out", self._key, "2048"], check=True, capture_output=True)
        peer = f"http://127.0.0.1:{self.etcd_port + 1}"
        etcd = [binaries() / "etcd", "--data-dir", self.folder / "etcd", "--unsafe-no-fsync", "--log-level", "error"]
        clients = ["--listen-client-urls", self.etcd_url, "--advertise-client-urls", self.etcd_url]
        peers = ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        self.processes.start("etcd", [*etcd, *clients, *peers, "--initial-cluster", f"default={peer}"])
        self.start_server()
        definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        with self.client() as client:
            for one in yaml.safe_load_all(DEFINITIONS.read_text()):
                client.post(definitions, json=one).raise_for_status()
            for one in yaml.safe_load_all(DEFINITIONS.read_text()):
                spec = one["spec"]
                path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
                assert self.server is not None
                wait_for(lambda path=path: client.get(path).status_code == 200, path, self.server)

    def start_server(self) -> None:
        """It is ready then."""
        key = ["--service-account-key-file", self._key, "--service-account-signing-key-file", self._key]
        self.starts += 1
        self.server = self.processes.start(
            f"apiserver-{self.starts}",
            [
                *(binaries() / "kube-apiserver", "--etcd-servers", self.etcd_url, "--bind-address", "127.0.0.1"),
                *("--secure-port", str(self.etcd_port + 2), "--advertise-address", "127.0.0.1"),
                *("--cert-dir", self.folder / "certificates", "--token-auth-file", self.folder / "tokens.csv"),
                *("--authorization-mode", "RBAC", "--service-account-issuer", "https://kubernetes.default.svc", *key),
                *("--disable-admission-plugins", "ServiceAccount", "--service-cluster-ip-range", "10.96.0.0/16"),
            ],
        )
        wait_for(self._ready, "the API server is ready", self.server, READY_SECONDS)

    def kill_server(self) -> None:
        """Told to end, it would keep its watches for a minute."""
        assert self.server is not None
        self.server.kill()

    def forget(self) -> None:
        """Forget all old versions: in etcd, and those that the server itself has, which is started again."""
        with self.client() as client:
            version = client.get("/api/v1/namespaces").json()["metadata"]["resourceVersion"]
        self.kill_server()
        ctl = [binaries() / "etcdctl", "--endpoints", self.etcd_url, "compaction", version]
        subprocess.run(ctl, env={"ETCDCTL_API": "3"}, check=True, capture_output=True)
        self.start_server()

    @property
    def trusted(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.authority)

    def client(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {TOKEN}"}
        return httpx.Client(base_url=self.url, headers=headers, verify=self.trusted, trust_env=False, timeout=30)

    @property
    def _key(self) -> Path:
        return self.folder / "accounts.key"

    def _ready(self) -> bool:
        try:
            with self.client() as client:
                # Namespaces are made once the server is ready for all else.
                answers = client.get("/readyz"), client.get("/api/v1/namespaces/default")
                return all(answer.status_code == 200 for answer in answers)
        except (httpx.HTTPError, OSError):
            return False
