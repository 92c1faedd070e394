"""``GET /metrics``: Prometheus text with the names, labels and order of vLLM 0.32's scrape."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path

from simulator.engine import Engine
from simulator.families import (
    COUNTERS,
    FETCH_BY_STAGE,
    HISTOGRAMS,
    NIXL_COUNTERS,
    NIXL_HISTOGRAMS,
    SOURCES,
    TIERS,
    WAITING_BY_REASON,
    Read,
)
from simulator.settings import EngineSettings
from simulator.stats import FINISHED, Histogram

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"


def render(
    settings: EngineSettings,
    engines: Sequence[Engine],
    started: float,
    rejected: int,
    requests: Mapping[tuple[str, str, str], int],
) -> bytes:
    """The whole page. ``started``: seconds since the epoch. ``requests``: by (path, method, status class)."""
    page = _Page(settings.served_name, engines, started)
    _process(page, started)
    if settings.connector.startswith("nixl"):
        for name, text, histogram in NIXL_HISTOGRAMS:
            page.histogram(name, text, histogram)
        for name, text, read in NIXL_COUNTERS:
            page.counter(name, text, [({}, read)])
    page.gauge("num_requests_running", "Number of requests in model execution batches.", lambda e: len(e.running))
    page.gauge("num_requests_waiting", "Number of requests waiting to be processed.", lambda e: e.queued)
    page.family("num_requests_waiting_by_reason", "gauge", WAITING_BY_REASON)
    for index, engine in enumerate(engines):
        page.sample("num_requests_waiting_by_reason", index, len(engine.waiting), reason="capacity")
        page.sample("num_requests_waiting_by_reason", index, engine.queued - len(engine.waiting), reason="deferred")
    if settings.connector != "none" and settings.kv_role != "producer":
        page.family("num_requests_kv_fetch_by_stage", "gauge", FETCH_BY_STAGE)
        for index, engine in enumerate(engines):
            for stage, count in engine.fetching.items():
                page.sample("num_requests_kv_fetch_by_stage", index, count, stage=stage)
    page.family("engine_sleep_state", "gauge", "Engine sleep state; awake = 1 means engine is awake.")
    for index, engine in enumerate(engines):
        for state, level in (("awake", None), ("weights_offloaded", 1), ("discard_all", 2)):
            page.sample("engine_sleep_state", index, engine.asleep == level, sleep_state=state)
    page.gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", lambda e: e.pool.usage)
    for name, text, read in COUNTERS:
        page.counter(name, text, [({}, read)])
    page.counter("prompt_tokens_by_source", "Number of prompt tokens by source.", _by("source", SOURCES))
    page.counter(
        "prompt_tokens_cached_by_source",
        "Prefix-cache hit tokens by the cache tier that supplied them.",
        _by("source", TIERS),
    )
    ends = [(word, partial(_finished, word)) for word in FINISHED]
    page.counter("request_success", "Count of successfully processed requests.", _by("finished_reason", ends))
    _rejections(page, settings.served_name, rejected, started)
    for name, text, histogram in HISTOGRAMS:
        page.histogram(name, text, histogram)
    _cache_config(page, settings, len(engines))
    page.lines.append("# HELP http_requests_total Total number of requests by method, status and handler.")
    page.lines.append("# TYPE http_requests_total counter")
    for (path, method, status), count in requests.items():
        labels = _labels({"handler": path, "method": method, "status": status})
        page.lines.append(f"http_requests_total{labels} {float(count)}")
    return ("\n".join(page.lines) + "\n").encode()


class _Page:
    """Collects lines. Names are given without ``vllm:``."""

    def __init__(self, model: str, engines: Sequence[Engine], started: float) -> None:
        self.lines: list[str] = []
        self._model = model
        self._engines = engines
        self._started = started

    def family(self, name: str, kind: str, text: str) -> None:
        self.lines += [f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} {kind}"]

    def sample(self, name: str, engine: int, value: float, **labels: str) -> None:
        series = _series(name, engine, self._model, tuple(labels.items()))
        self.lines.append(f"{series} {_number(value) if value else '0.0'}")

    def gauge(self, name: str, text: str, read: Read) -> None:
        self.family(name, "gauge", text)
        for index, engine in enumerate(self._engines):
            self.sample(name, index, read(engine))

    def counter(self, name: str, text: str, series: Iterable[tuple[Mapping[str, str], Read]]) -> None:
        series = list(series)
        self.family(f"{name}_total", "counter", text)
        for index, engine in enumerate(self._engines):
            for labels, read in series:
                self.sample(f"{name}_total", index, read(engine), **labels)
        self.family(f"{name}_created", "gauge", text)
        for index in range(len(self._engines)):
            for labels, _ in series:
                self.sample(f"{name}_created", index, self._started, **labels)

    def histogram(self, name: str, text: str, read: Callable[[Engine], Histogram]) -> None:
        self.family(name, "histogram", text)
        for index, engine in enumerate(self._engines):
            histogram = read(engine)
            self.lines += _buckets(name, index, self._model, histogram.bounds, tuple(histogram.counts))
            self.sample(f"{name}_count", index, histogram.count)
            self.sample(f"{name}_sum", index, histogram.total)
        self.family(f"{name}_created", "gauge", text)
        for index in range(len(self._engines)):
            self.sample(f"{name}_created", index, self._started)


@lru_cache(maxsize=10_000)
def _series(name: str, engine: int, model: str, labels: tuple[tuple[str, str], ...]) -> str:
    """A sample's name and labels. Remembered: they are most of a scrape's time, and always the same."""
    return f"vllm:{name}{_labels({**dict(labels), 'engine': str(engine), 'model_name': model})}"


@lru_cache(maxsize=1000)
def _buckets(name: str, engine: int, model: str, bounds: tuple[float, ...], counts: tuple[int, ...]) -> list[str]:
    """The lines of a histogram's buckets, cumulative. Remembered like ``_series``: most have not changed since the last
    scrape. ``counts``: per bucket, the last one beyond every bound."""
    upper = (_number(bound) for bound in (*bounds, float("inf")))
    series = (_series(f"{name}_bucket", engine, model, (("le", bound),)) for bound in upper)
    return [f"{one} {_number(count)}" for one, count in zip(series, accumulate(counts), strict=True)]


def _number(value: float) -> str:
    """As Prometheus's client writes it: with an exponent from a million on."""
    if value == float("inf"):
        return "+Inf"
    text = repr(float(value))
    whole = text.find(".")
    if value <= 0 or whole <= 6:
        return text
    mantissa = f"{text[0]}.{text[1:whole]}{text[whole + 1 :]}".rstrip("0.")
    return f"{mantissa}e+{whole - 1:02d}"


def _finished(word: str, engine: Engine) -> int:
    return engine.stats.finished[word]


def _by(label: str, reads: Iterable[tuple[str, Read]]) -> list[tuple[Mapping[str, str], Read]]:
    return [({label: value}, read) for value, read in reads]


def _labels(labels: Mapping[str, str]) -> str:
    escaped = ((name, value.replace("\\", r"\\").replace('"', r"\"")) for name, value in sorted(labels.items()))
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}"


def _process(page: _Page, started: float) -> None:
    major, minor, patch = platform.python_version_tuple()
    info = {
        "implementation": platform.python_implementation(),
        "major": major,
        "minor": minor,
        "patchlevel": patch,
        "version": platform.python_version(),
    }
    used = resource.getrusage(resource.RUSAGE_SELF)
    page.lines += ["# HELP python_info Python platform information", "# TYPE python_info gauge"]
    page.lines.append(f"python_info{_labels(info)} 1.0")
    for name, kind, text, value in (
        ("resident_memory_bytes", "gauge", "Resident memory size in bytes.", used.ru_maxrss * 1024),
        ("start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.", started),
        (
            "cpu_seconds_total",
            "counter",
            "Total user and system CPU time spent in seconds.",
            used.ru_utime + used.ru_stime,
        ),
        ("open_fds", "gauge", "Number of open file descriptors.", _open_files()),
    ):
        page.lines += [f"# HELP process_{name} {text}", f"# TYPE process_{name} {kind}"]
        page.lines.append(f"process_{name} {float(value)!r}")


def _open_files() -> int:
    folder = Path("/proc/self/fd")
    return len(os.listdir(folder)) if folder.is_dir() else 0


def _rejections(page: _Page, model: str, rejected: int, started: float) -> None:
    text = "Number of admission attempts rejected by a queue limit, by reason."
    for suffix, kind, values in (("total", "counter", (rejected, 0)), ("created", "gauge", (started, started))):
        page.family(f"admission_rejections_{suffix}", kind, text)
        for reason, value in zip(("max_num_queued_reqs", "max_num_queued_tokens"), values, strict=True):
            marked = _labels({"model_name": model, "reason": reason})
            page.lines.append(f"vllm:admission_rejections_{suffix}{marked} {float(value)!r}")


def _cache_config(page: _Page, settings: EngineSettings, ranks: int) -> None:
    size = str(settings.block_size)
    labels = {
        "_block_size_resolved": "True",
        "block_size": size,
        "cache_dtype": "auto",
        "cache_hit_alignment_tokens": "None",
        "effective_attention_block_size": size,
        "enable_prefix_caching": "True",
        "gpu_memory_utilization": "0.92",
        "hash_block_size": "None",
        "is_attention_free": "False",
        "kv_cache_max_concurrency": str(settings.capacity_tokens / settings.max_model_len),
        "kv_cache_size_tokens": str(settings.capacity_tokens),
        "num_cpu_blocks": "None",
        # vLLM sums this one over its ranks, and not the tokens: each rank has as many.
        "num_gpu_blocks": str(settings.num_blocks * ranks),
        "num_gpu_blocks_override": "None",
        "prefix_caching_hash_algo": "sha256",
        "prefix_match_unit": "None",
        "sliding_window": "None",
        "user_specified_block_size": "True",
    }
    page.family("cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
    for index in range(ranks):
        page.lines.append(f"vllm:cache_config_info{_labels({**labels, 'engine': str(index)})} 1.0")
