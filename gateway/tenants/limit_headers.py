"""The headers that say what is left of the limits: OpenAI's six, and on ``/v1/messages`` Anthropic's six.

Of several limits (the key's, its tenant's, the model's) they show the one with the least left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime

from gateway.tenants.gcra import Bucket
from gateway.tenants.meters import Meter


def limit_headers(meters: Iterable[Meter], now: float) -> list[tuple[str, str]]:
    """OpenAI's. ``now``: Clock.monotonic(). Those of requests or tokens are left out where there is no such limit."""
    headers: list[tuple[str, str]] = []
    for name, bucket in _tightest(meters, now):
        used = bucket.shown(now)
        headers += (
            (f"x-ratelimit-limit-{name}", str(bucket.limit)),
            (f"x-ratelimit-remaining-{name}", str(_left(bucket, used))),
            (f"x-ratelimit-reset-{name}", duration(used * 60 / bucket.limit)),
        )
    return headers


def anthropic_limit_headers(meters: Iterable[Meter], now: float, wall: float) -> list[tuple[str, str]]:
    """Anthropic's: the time of the reset is in RFC 3339. ``wall``: Clock.wall()."""
    headers: list[tuple[str, str]] = []
    for name, bucket in _tightest(meters, now):
        used = bucket.shown(now)
        full_at = datetime.fromtimestamp(math.ceil(wall + used * 60 / bucket.limit), UTC)
        headers += (
            (f"anthropic-ratelimit-{name}-limit", str(bucket.limit)),
            (f"anthropic-ratelimit-{name}-remaining", str(_left(bucket, used))),
            (f"anthropic-ratelimit-{name}-reset", f"{full_at:%Y-%m-%dT%H:%M:%SZ}"),
        )
    return headers


def duration(seconds: float) -> str:
    """As OpenAI writes it, and Go: ``12ms``, ``1.5s``, ``6m0s``, ``1h0m2s``. Rounded up to a millisecond."""
    millis = math.ceil(seconds * 1000 - 1e-6)
    if millis < 1000:
        return f"{millis}ms" if millis > 0 else "0s"
    minutes, millis = divmod(millis, 60_000)
    text = f"{millis / 1000:g}s"
    if not minutes:
        return text
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{text}" if hours else f"{minutes}m{text}"


def _tightest(meters: Iterable[Meter], now: float) -> list[tuple[str, Bucket]]:
    requests: Bucket | None = None
    tokens: Bucket | None = None
    for meter in meters:
        requests = _tighter(requests, meter.requests, now)
        tokens = _tighter(tokens, meter.tokens, now)
    return [(name, bucket) for name, bucket in (("requests", requests), ("tokens", tokens)) if bucket is not None]


def _tighter(one: Bucket | None, other: Bucket | None, now: float) -> Bucket | None:
    if one is None or other is None:
        return one or other
    return one if one.limit - one.shown(now) <= other.limit - other.shown(now) else other


def _left(bucket: Bucket, used: float) -> int:
    return max(0, math.floor(bucket.limit - used + 1e-6))
