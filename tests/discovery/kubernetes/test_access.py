from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.discovery.kubernetes.access import Access, Credentials, NoAccess, credentials, of_kubeconfig, of_pod
from gateway.discovery.kubernetes.api import Api
from simulator.kubernetes.server import ApiServer
from tests.support.kubernetes import PODS
from tests.support.tls import Authority


def written(folder: Path, *, cluster: dict[str, Any], user: dict[str, Any] | None = None, **context: Any) -> str:
    file = folder / "config"
    document = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", **context}}, {"name": "there"}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user or {}}],
    }
    file.write_text(json.dumps(document))
    return str(file)


def service_account(folder: Path, authority: Authority, token: str) -> str:
    (folder / "token").write_text(token + "\n")
    (folder / "namespace").write_text("fleet\n")
    (folder / "ca.crt").write_text(Path(authority.file).read_text())
    return str(folder)


def encoded(file: str) -> str:
    return base64.b64encode(Path(file).read_bytes()).decode()


async def listed(found: Credentials) -> bytes:
    """Raises ApiError."""
    async with Api(found).connect() as connection:
        return await connection.page(PODS, {})


async def test_a_pod_uses_its_service_account_and_reads_a_renewed_token(tmp_path: Path, authority: Authority) -> None:
    folder = service_account(tmp_path, authority, "old")
    async with ApiServer(["old"], tls=authority.serving()) as server:
        environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": server.url.rpartition(":")[2]}
        found = Credentials(lambda: of_pod(environ, folder))
        assert b'"items": []' in await listed(found)
        access = await found.access()
        assert (access.namespace, access.token) == ("fleet", "old")
        assert await found.access() is access
        server.tokens = {"new"}
        (tmp_path / "token").write_text("new, and longer")
        (tmp_path / "token").write_text("new")
        assert b'"items": []' in await listed(found)


def test_an_ipv6_service_has_brackets(tmp_path: Path, authority: Authority) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1"}
    assert of_pod(environ, service_account(tmp_path, authority, "t")).server == "https://[fd00::1]:443"


def test_a_pod_without_a_token_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(NoAccess, match=r"ca\.crt cannot be read: .*: does the pod mount a service account's token\?"):
        of_pod({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, str(tmp_path))


@pytest.mark.parametrize("inline", [True, False])
async def test_a_kubeconfig_with_a_client_certificate(tmp_path: Path, authority: Authority, inline: bool) -> None:
    """As files, which are relative to it, or within it."""
    certificate, key = authority.issue("client")
    if inline:
        data = [encoded(file) for file in (authority.file, certificate, key)]
        cluster = {"certificate-authority-data": data[0]}
        user = {"client-certificate-data": data[1], "client-key-data": data[2]}
    else:
        cluster = {"certificate-authority": Path(authority.file).name}
        user = {"client-certificate": Path(certificate).name, "client-key": Path(key).name}
    async with ApiServer(tls=authority.asking(authority.serving())) as server:
        file = written(tmp_path, cluster={**cluster, "server": server.url + "/"}, user=user, namespace="fleet")
        assert b'"items": []' in await listed(Credentials(lambda: of_kubeconfig(file)))
        assert of_kubeconfig(file).namespace == "fleet"


async def test_the_name_in_the_servers_certificate_may_be_another(tmp_path: Path, authority: Authority) -> None:
    async with ApiServer(tls=authority.serving("server", "kubernetes.default.svc")) as server:
        cluster = {"server": server.url, "certificate-authority": authority.file}
        file = written(tmp_path, cluster={**cluster, "tls-server-name": "kubernetes.default.svc"})
        assert b'"items": []' in await listed(Credentials(lambda: of_kubeconfig(file)))


async def test_a_token_in_a_file_of_the_kubeconfig_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first")
    file = written(tmp_path, cluster={"server": "http://127.0.0.1:1"}, user={"tokenFile": "token"})
    found = Credentials(lambda: of_kubeconfig(file))
    assert (await found.access()).token == "first"
    (tmp_path / "token").write_text("second")
    assert (await found.access()).token == "second"


@pytest.mark.parametrize("in_a_pod", [True, False], ids=["pod", "kubeconfig"])
async def test_a_file_that_changes_just_after_it_was_read_is_read_again(
    tmp_path: Path, authority: Authority, in_a_pod: bool
) -> None:
    folder = service_account(tmp_path, authority, "first")
    file = written(tmp_path, cluster={"server": "http://127.0.0.1:1"}, user={"tokenFile": "token"})

    def make() -> Access:
        access = of_pod({"KUBERNETES_SERVICE_HOST": "127.0.0.1"}, folder) if in_a_pod else of_kubeconfig(file)
        (tmp_path / "token").write_text("second")
        return access

    found = Credentials(make)
    assert (await found.access()).token == "first"
    assert (await found.access()).token == "second"


@pytest.mark.parametrize(
    ("cluster", "user", "context", "said"),
    [
        ({"server": "ftp://x"}, {}, None, "the cluster c has no server with http:// or https://"),
        ({"server": "https://x", "proxy-url": "http://p"}, {}, None, "a proxy to the API server"),
        (
            {"server": "https://x"},
            {"exec": {"command": "aws"}},
            None,
            r"has a plugin that fetches credentials \(exec\)",
        ),
        ({"server": "https://x"}, {"auth-provider": {"name": "gcp"}}, None, "has an auth-provider, which is not"),
        ({"server": "https://x"}, {"tokenFile": "none"}, None, "none cannot be read"),
        (
            {"server": "https://x", "certificate-authority-data": "?"},
            {},
            None,
            "certificate-authority-data is not base64",
        ),
        ({"server": "https://x"}, {}, "there", "there is no context 'there'"),
    ],
)
def test_what_a_kubeconfig_lacks_or_wants_too_much_is_said(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], context: str | None, said: str
) -> None:
    file = written(tmp_path, cluster=cluster, user=user)
    with pytest.raises(NoAccess, match=said):
        of_kubeconfig(file, context)


def test_no_context_no_yaml_no_file(tmp_path: Path) -> None:
    file = tmp_path / "config"
    for text, said in (("a: [", "is not YAML"), ("{}", "has no current-context: name one as context")):
        file.write_text(text)
        with pytest.raises(NoAccess, match=said):
            of_kubeconfig(str(file))
    with pytest.raises(NoAccess, match="names several kubeconfigs"):
        of_kubeconfig(f"{file}:{file}")


async def test_outside_a_pod_it_is_the_users_kubeconfig(tmp_path: Path) -> None:
    file = written(tmp_path, cluster={"server": "http://127.0.0.1:1"})
    assert (await credentials(None, None, {"KUBECONFIG": file}).access()).server == "http://127.0.0.1:1"
    in_pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert (await credentials(file, None, in_pod).access()).server == "http://127.0.0.1:1"
    with pytest.raises(NoAccess, match="does the pod mount"):
        await credentials(None, None, in_pod).access()
