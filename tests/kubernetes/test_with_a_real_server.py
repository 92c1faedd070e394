"""The same tests as with the simulated server."""

from __future__ import annotations

from tests.discovery.kubernetes.test_kubernetes_source import *  # noqa: F403
from tests.discovery.kubernetes.test_mirror import *  # noqa: F403
