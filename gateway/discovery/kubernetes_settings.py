"""Which endpoints of a Kubernetes cluster are a model's: ``kubernetes`` of an entry of ``models[].discover``."""

from __future__ import annotations

import re
from dataclasses import dataclass

KINDS = ("pool", "selector", "service")
"""The keys of which one says what is looked at."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""What Kubernetes takes for a name. It goes into a URL's path."""


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """``pool``: an InferencePool's name: the pods that it selects, and its target ports. ``selector``: a label selector
    of pods, with ``ports``. ``service``: a Service's name: its EndpointSlices; ``ports``: those of its pods' ports that
    are engines, None where they have only one.

    ``namespace``: of the pods; None: the gateway's own, or that of the kubeconfig. ``kubeconfig``: a file; None: the
    pod's service account, else ``$KUBECONFIG`` or ``~/.kube/config``. ``context``: of the kubeconfig; None: its current
    one. ``objectives``: the pool's InferenceObjectives are followed as well: the priorities that requests name.
    """

    pool: str | None = None
    selector: str | None = None
    service: str | None = None
    ports: tuple[int, ...] = ()
    namespace: str | None = None
    kubeconfig: str | None = None
    context: str | None = None
    objectives: bool = False

    def __post_init__(self) -> None:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            has = " and ".join(given) or "none"
            raise ValueError(f"kubernetes has exactly one of {', '.join(KINDS)}; this one has {has}")
        for key in ("pool", "service", "namespace"):
            name = getattr(self, key)
            if name is not None and _NAME.fullmatch(name) is None:
                raise ValueError(f"{key}: {name!r} is no name in Kubernetes")
        if self.selector is not None and not self.selector.strip():
            raise ValueError("selector must not be empty: it would be every pod of the namespace")
        if self.selector is not None and not self.ports:
            raise ValueError("selector needs ports: on which of each pod's ports an engine listens")
        if self.pool is not None and self.ports:
            raise ValueError("the pool says its ports: leave ports out")
        if self.objectives and self.pool is None:
            raise ValueError("objectives are a pool's: name it as pool")
        for port in self.ports:
            if not 1 <= port <= 65535:
                raise ValueError("ports must be in 1..65535")
        if len(set(self.ports)) != len(self.ports):
            raise ValueError("ports must each be named once")
        for key in ("kubeconfig", "context"):
            if getattr(self, key) == "":
                raise ValueError(f"{key} must not be empty")

    @property
    def label(self) -> str:
        """What it is called in logs and metrics: the same only if it is the same in the same cluster."""
        kind = next(kind for kind in KINDS if getattr(self, kind) is not None)
        where = "" if self.namespace is None else f"{self.namespace}/"
        cluster = self.context or self.kubeconfig
        return f"kubernetes {kind} {where}{getattr(self, kind)}" + ("" if cluster is None else f" of {cluster}")
