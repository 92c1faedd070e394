"""What follows each kind of source."""

from __future__ import annotations

import os

from gateway.discovery.dns_source import DnsSource
from gateway.discovery.file_source import FileSource
from gateway.discovery.http_source import HttpSource
from gateway.discovery.settings import DiscoverSettings
from gateway.discovery.source import Source
from gateway.framework import Clock


def source_of(settings: DiscoverSettings, clock: Clock) -> Source:
    """Raises ConfigError if it cannot be followed now."""
    if settings.file is not None:
        return FileSource(settings, os.environ)
    if settings.http is not None:
        return HttpSource(settings)
    if settings.kubernetes is not None:
        from gateway.discovery.kubernetes.kubernetes_source import KubernetesSource  # rare: a start has no use for it

        return KubernetesSource(settings, clock)
    return DnsSource(settings, clock)
