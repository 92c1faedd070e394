"""What of a Kubernetes cluster is a model's."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.discovery.kubernetes_settings import KubernetesSettings
from gateway.discovery.settings import DiscoverSettings


@pytest.mark.parametrize(
    ("given", "label"),
    [
        ({"pool": "fleet"}, "kubernetes pool fleet"),
        ({"selector": "app=vllm", "ports": (8000,), "namespace": "prod"}, "kubernetes selector prod/app=vllm"),
        ({"service": "vllm"}, "kubernetes service vllm"),
        ({"service": "vllm", "context": "east", "kubeconfig": "config"}, "kubernetes service vllm of east"),
        ({"pool": "fleet", "kubeconfig": "/etc/config"}, "kubernetes pool fleet of /etc/config"),
    ],
)
def test_one_says_what_is_looked_at(given: dict[str, Any], label: str) -> None:
    assert DiscoverSettings(kubernetes=KubernetesSettings(**given)).label == label


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "exactly one of pool, selector, service; this one has none"),
        ({"pool": "a", "service": "b"}, "this one has pool and service"),
        ({"pool": "../nodes"}, "'../nodes' is no name in Kubernetes"),
        ({"service": "a", "namespace": "A"}, "namespace: 'A' is no name"),
        ({"selector": " ", "ports": (1,)}, "selector must not be empty"),
        ({"selector": "a=b"}, "selector needs ports"),
        ({"pool": "a", "ports": (8000,)}, "the pool says its ports"),
        ({"service": "a", "objectives": True}, "objectives are a pool's"),
        ({"service": "a", "ports": (0,)}, "ports must be in 1..65535"),
        ({"service": "a", "ports": (1, 1)}, "ports must each be named once"),
        ({"service": "a", "kubeconfig": ""}, "kubeconfig must not be empty"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        KubernetesSettings(**given)
