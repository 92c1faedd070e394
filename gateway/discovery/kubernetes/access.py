"""Where a Kubernetes API server is and how we prove who we are: a pod's service account, or a kubeconfig.

Rules: files are read again when they change, and when the server has refused what was in them, since tokens are renewed
while we run. What a kubeconfig asks of us and we cannot do (plugins that fetch credentials, proxies) is an error in
words: to leave it out would end as a 401 or a timeout that nobody understands.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gateway.core.files import state_of
from gateway.core.tls import KeyPair, Unusable, trust

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where the kubelet mounts a pod's token, namespace and the cluster's authority."""

MAX_KUBECONFIG = 1 << 20
"""Bytes: a kubeconfig with a hundred clusters, each with its certificates, is 500 KB."""

UNSUPPORTED = {
    "exec": "a plugin that fetches credentials (exec)",
    "auth-provider": "an auth-provider",
    "username": "a user name and a password",
    "as": "impersonation (as)",
}
"""What a kubeconfig's user may have that is not supported."""


class NoAccess(Exception):
    """There are no usable credentials; the message says which file lacks what."""


@dataclass(frozen=True, slots=True)
class Access:
    """What one request needs. ``server``: the API's URL, without a slash at its end. ``namespace``: ours, where none is
    configured. ``tls``: None for ``http``. ``server_name``: the name in the server's certificate; None: the URL's host.
    ``files``: what this was read from, and the state of each (``state_of``) before it was read.
    """

    server: str
    namespace: str
    token: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    files: Mapping[str, object] = field(default_factory=dict)


class Credentials:
    """An ``Access`` that is made again when its files change."""

    def __init__(self, make: Callable[[], Access]) -> None:
        """``make``: reads the files. Raises NoAccess as it does."""
        self._make = make
        self._access: Access | None = None

    async def access(self) -> Access:
        """The one to use for the next request. Files are read in a thread: disks may be slow. Raises NoAccess."""
        return await asyncio.to_thread(self._current)

    def refused(self) -> None:
        """The server did not believe it: read the files for the next request, changed or not."""
        self._access = None

    def _current(self) -> Access:
        access = self._access
        if access is None or any(state_of(file) != state for file, state in access.files.items()):
            self._access = access = self._make()
        return access


def credentials(kubeconfig: str | None, context: str | None, environ: Mapping[str, str]) -> Credentials:
    """Those of a ``kubeconfig``; without one, those of our pod, else of ``$KUBECONFIG`` or ``~/.kube/config``.

    ``context``: of the kubeconfig; None: its current one.
    """
    if kubeconfig is None and context is None and "KUBERNETES_SERVICE_HOST" in environ:
        return Credentials(lambda: of_pod(environ))
    file = kubeconfig or environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    return Credentials(lambda: of_kubeconfig(file, context))


def of_pod(environ: Mapping[str, str], folder: str = SERVICE_ACCOUNT) -> Access:
    """A pod's own. Raises NoAccess."""
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    token, authority, namespace = (f"{folder}/{name}" for name in ("token", "ca.crt", "namespace"))
    files = {file: state_of(file) for file in (token, authority, namespace)}
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # believes the cluster's own authority, and no public one
    try:
        trust(tls, authority, "ca")
    except Unusable as error:
        raise NoAccess(f"{error}: does the pod mount a service account's token?") from error
    return Access(
        server=f"https://{_bracketed(host)}:{port}",
        namespace=_read(namespace).decode().strip(),
        token=_read(token).decode().strip(),
        tls=tls,
        files=files,
    )


def of_kubeconfig(file: str, context: str | None = None) -> Access:
    """What ``context`` of the kubeconfig says; None: its current context. Raises NoAccess."""
    if ":" in file and not os.path.exists(file):
        raise NoAccess(f"{file} names several kubeconfigs, which are not merged: name one of them as kubeconfig")
    state = state_of(file)
    content = _read(file)
    if len(content) > MAX_KUBECONFIG:
        raise NoAccess(f"{file} is larger than {MAX_KUBECONFIG} bytes, and no kubeconfig")
    try:
        document = yaml.safe_load(content)
    except (yaml.YAMLError, RecursionError) as error:
        raise NoAccess(f"{file} is not YAML: {error}") from error
    return _Kubeconfig(file, state, document if isinstance(document, dict) else {}).access(context)


class _Kubeconfig:
    def __init__(self, file: str, state: object, document: dict[str, Any]) -> None:
        self._file, self._document = file, document
        self._files = {file: state}

    def access(self, name: str | None) -> Access:
        name = name or self._document.get("current-context")
        if not name:
            raise NoAccess(f"{self._file} has no current-context: name one as context")
        context = self._named("contexts", "context", name)
        cluster = self._named("clusters", "cluster", context.get("cluster"))
        user = self._named("users", "user", context["user"]) if context.get("user") else {}
        server = str(cluster.get("server") or "").rstrip("/")
        if not server.startswith(("https://", "http://")):
            raise NoAccess(f"{self._file}: the cluster {context.get('cluster')} has no server with http:// or https://")
        if cluster.get("proxy-url"):
            raise NoAccess(f"{self._file}: a proxy to the API server (proxy-url) is not supported")
        for key, what in UNSUPPORTED.items():
            if user.get(key):
                remedy = "use a service account's token (kubectl create token), or a client certificate"
                raise NoAccess(f"{self._file}: the user {context['user']} has {what}, which is not supported: {remedy}")
        return Access(
            server=server,
            namespace=str(context.get("namespace") or "default"),
            token=self._token(user),
            tls=self._tls(cluster, user) if server.startswith("https:") else None,
            server_name=cluster.get("tls-server-name"),
            files=self._files,
        )

    def _named(self, group: str, kind: str, name: Any) -> dict[str, Any]:
        entries = self._document.get(group)
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get(kind), dict):
                found: dict[str, Any] = entry[kind]
                return found
        raise NoAccess(f"{self._file}: there is no {kind} {name!r}")

    def _token(self, user: Mapping[str, Any]) -> str:
        if user.get("token"):
            return str(user["token"]).strip()
        return _read(self._path(user["tokenFile"])).decode().strip() if user.get("tokenFile") else ""

    def _tls(self, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            if cluster.get("insecure-skip-tls-verify"):
                tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
            elif data := self._data(cluster, "certificate-authority-data"):
                tls.load_verify_locations(cadata=data.decode("ascii"))
            elif file := cluster.get("certificate-authority"):
                trust(tls, self._path(file), "ca")
            else:
                tls.load_default_certs()
            self._identify(tls, user)
        except (Unusable, ssl.SSLError, UnicodeDecodeError) as error:
            raise NoAccess(f"{self._file}: {error}") from error
        return tls

    def _identify(self, tls: ssl.SSLContext, user: Mapping[str, Any]) -> None:
        """Our client certificate, if there is one. Raises Unusable."""
        with tempfile.TemporaryDirectory(prefix="kvgate-") as folder:  # OpenSSL reads them from files only
            paths: dict[str, str | None] = {}
            for name in ("client-certificate", "client-key"):
                paths[name] = self._path(user[name]) if user.get(name) else None
                if data := self._data(user, f"{name}-data"):
                    inline = Path(folder, name)
                    inline.touch(mode=0o600)
                    inline.write_bytes(data)
                    paths[name] = str(inline)
            if certificate := paths["client-certificate"]:
                KeyPair(certificate, paths["client-key"]).load(tls)

    def _data(self, entry: Mapping[str, Any], key: str) -> bytes:
        try:
            return base64.b64decode(str(entry.get(key) or ""), validate=True)
        except (binascii.Error, ValueError) as error:
            raise NoAccess(f"{self._file}: {key} is not base64") from error

    def _path(self, file: Any) -> str:
        """A path in a kubeconfig is relative to it. It is remembered as one to look at for changes, as it is now: ask
        before you read the file."""
        path = os.path.join(os.path.dirname(os.path.abspath(self._file)), str(file))
        self._files[path] = state_of(path)
        return path


def _read(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise NoAccess(f"{file} cannot be read: {error.strerror or error}") from error


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
