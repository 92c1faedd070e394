"""Reads an engine's ``GET /metrics``: the few lines that matter.

Rules: nothing here raises, whatever the bytes are; a text that is not an engine's metrics is None. Only whole lines
count (the last one ends with a newline too). Of a 60 KB scrape some thirteen lines are needed: they are found with
``bytes.find``, from where they were found last time, which costs a two-hundredth of parsing it all. Names that only
engines with a KV connector have are not searched in every text of an engine without one.

Names are those of vLLM 0.32; names of older versions are accepted if the new ones are missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gateway.fleet.sleep import Sleep, deepest
from gateway.framework.fleet import EngineMetrics, TransferStats

# How a sample's line begins: the newline before it, its name, and the brace (or the space) that ends the name.
RUNNING = b"\nvllm:num_requests_running{"
WAITING = b"\nvllm:num_requests_waiting{"
KV_USAGE = (b"\nvllm:kv_cache_usage_perc{", b"\nvllm:gpu_cache_usage_perc{")
QUERIES = (b"\nvllm:prefix_cache_queries_total{", b"\nvllm:gpu_prefix_cache_queries_total{")
HITS = (b"\nvllm:prefix_cache_hits_total{", b"\nvllm:gpu_prefix_cache_hits_total{")
EXTERNAL_QUERIES = b"\nvllm:external_prefix_cache_queries_total{"
EXTERNAL_HITS = b"\nvllm:external_prefix_cache_hits_total{"
CREATED = b"\nvllm:prefix_cache_queries_created{"
CONFIG = b"\nvllm:cache_config_info{"
SLEEP = b"\nvllm:engine_sleep_state{"
STARTED = b"\nprocess_start_time_seconds "
EXPIRED = b"\nvllm:nixl_num_kv_expired_reqs_total{"
FETCHING = b"\nvllm:num_requests_kv_fetch_by_stage{"
MOVE_SECONDS = b"\nvllm:nixl_xfer_time_seconds"
MOVE_BYTES = b"\nvllm:nixl_bytes_transferred"
CACHED_BY_SOURCE = b"\nvllm:prompt_tokens_cached_by_source_total{"
FROM_ENGINES = b'source="p2p"'

SLACK = 2048
"""Bytes before the remembered offset where the search begins: lines above it may have become shorter."""

LOOK_AGAIN = 32
"""Texts of one process after which a missing name is searched again. A search that finds nothing in 60 KB takes 10 us,
a fifth of reading all the rest. Names change with the process: only one that does not report its start needs this."""

MAX_SAMPLES = 512
"""Lines of one name that are read: engines have at most some dozens of ranks."""

MAX_NUMBER = 1e15
"""The largest value that is read. Above it a float cannot count single tokens, and no engine's counter comes near."""

MAX_BYTES = 1e18
"""The same for bytes: a year at 25 GB/s, of which ``MAX_NUMBER`` would be eleven hours. Single bytes do not matter."""

MAX_STAGES = 8
"""Stages of fetching KV that are read: each becomes a label of our metrics. vLLM has three."""

MAX_DIGITS = 15
"""Digits of a number in a label: as many as ``MAX_NUMBER`` has."""

_ENGINE = re.compile(rb'[{,]engine="([^"\\]{0,32})"')
_STAGE = re.compile(rb'[{,]stage="([a-z_]{1,32})"')
_BLOCK_SIZE = re.compile(rb'[{,]block_size="(\d{1,%d})"' % MAX_DIGITS)
_NUM_BLOCKS = re.compile(rb'[{,]num_gpu_blocks="(\d{1,%d})"' % MAX_DIGITS)
_CAPACITY = re.compile(rb'[{,]kv_cache_size_tokens="(\d{1,%d})"' % MAX_DIGITS)


@dataclass(frozen=True, slots=True)
class Scrape:
    """One text, read.

    ``engines``: by the ``engine`` label, which is the data-parallel rank, in numeric order; empty: there is no label.
    ``started``: seconds since the epoch; None: not reported (several API processes). ``created``: by engine label,
    seconds since the epoch when its counters were created. ``sleep``: the level at which a rank
    sleeps, see ``Sleep``; None: all are awake. ``has_kv_connector``: KV is fetched from other engines, or by
    them.
    """

    engines: Mapping[str, EngineMetrics]
    started: float | None = None
    created: Mapping[str, float] | None = None
    sleep: Sleep | None = None
    has_kv_connector: bool = False

    @property
    def asleep(self) -> bool:
        return self.sleep is not None

    def rank(self, rank: int | None) -> EngineMetrics | None:
        """The metrics of one data-parallel rank; ``rank`` None: of all together. Returns None if there are none.

        It is the ``rank``-th in order: behind a hybrid load balancer labels count from the node's first rank, but the
        header that chooses a rank counts from 0. Without labels nothing is known of a single rank.
        """
        found = list(self.engines.values())
        if rank is not None:
            if "" in self.engines:
                return None
            return found[rank] if rank < len(found) else None
        return found[0] if len(found) == 1 else _sum_ranks(found)


def restarted(before: Scrape, after: Scrape) -> bool:
    """Whether another process answers than before: it started later, or its counters began again."""
    if before.started is not None and after.started is not None and before.started != after.started:
        return True
    created, created_now = before.created or {}, after.created or {}
    if any(created_now[label] != created[label] for label in created.keys() & created_now.keys()):
        return True
    for label in before.engines.keys() & after.engines.keys():
        old, new = before.engines[label], after.engines[label]
        if new.prefix_queries < old.prefix_queries or new.prefix_hits < old.prefix_hits:
            return True
    return False


def read(text: bytes, at: float | None = None) -> Scrape | None:
    """Read a single text. ``at``: Clock.monotonic() of it."""
    return ScrapeReader().read(text, at)


class ScrapeReader:
    """Reads the texts of one engine. Remembers the offsets of the needed lines, and what the longest of them holds."""

    def __init__(self) -> None:
        self._offsets: dict[bytes, int] = {}
        self._known: dict[bytes, tuple[int, int, int]] = {}
        self._process: tuple[float | None, Mapping[str, float]] | None = None
        self._absent: dict[bytes, int] = {}

    def read(self, text: bytes, at: float | None = None) -> Scrape | None:
        """``at``: Clock.monotonic() of the text. Returns None if it has no number of running requests."""
        text = b"\n" + text
        running = self._by_engine(text, RUNNING)
        if not running:
            return None
        waiting = self._by_engine(text, WAITING)
        usage = self._by_engine(text, *KV_USAGE)
        configs = self._configs(text)
        queries, hits = self._tokens(text, QUERIES, configs), self._tokens(text, HITS, configs)
        started, created = self._by_engine(text, STARTED).get(""), self._by_engine(text, CREATED)
        if self._process != (started, created):
            self._process = started, created
            self._absent.clear()
        external = [
            {_label(labels): number for labels, number in self._optional_samples(text, name)}
            for name in (EXTERNAL_QUERIES, EXTERNAL_HITS)
        ]
        expired = {_label(labels): number for labels, number in self._optional_samples(text, EXPIRED)}
        fetching = self._fetching(text)
        has_kv_connector = bool(expired or fetching)
        transfers = self._transfers(text) if has_kv_connector else {}
        engines = {}
        for label in sorted(running, key=_numeric):
            block_size, blocks, capacity = configs.get(label) or configs.get("") or (0, 0, 0)
            engines[label] = EngineMetrics(
                at=at,
                running=int(running[label]),
                waiting=int(waiting.get(label, 0.0)),
                kv_usage=min(1.0, usage.get(label, 0.0)),
                # Unlike the capacity in tokens, the number of blocks is that of all ranks.
                kv_capacity=capacity or blocks * block_size // len(running),
                block_size=block_size,
                prefix_queries=queries.get(label, 0.0),
                prefix_hits=hits.get(label, 0.0),
                external_queries=external[0].get(label, 0.0),
                external_hits=external[1].get(label, 0.0),
                kv_expired=expired.get(label, 0.0),
                kv_fetching=fetching.get(label, {}),
                transfers=transfers.get(label, TransferStats()),
            )
        return Scrape(
            engines=engines,
            started=started,
            created=created,
            sleep=deepest(self._samples(text, SLEEP)),
            has_kv_connector=has_kv_connector,
        )

    def _tokens(
        self, text: bytes, names: tuple[bytes, bytes], configs: Mapping[str, tuple[int, int, int]]
    ) -> dict[str, float]:
        """A counter, in tokens; under its old name vLLM counted blocks."""
        new, old = names
        if found := self._by_engine(text, new):
            return found
        return {label: number * configs.get(label, (1,))[0] for label, number in self._by_engine(text, old).items()}

    def _configs(self, text: bytes) -> dict[str, tuple[int, int, int]]:
        """By engine: tokens of a block, number of blocks, capacity in tokens; 0 for what is "None" or missing."""
        found = [labels for labels, _ in self._samples(text, CONFIG)]
        # Forty labels that never change while a process lives: read once, and kept while they are in the texts.
        self._known = {
            labels: self._known.get(labels)
            or (_integer(_BLOCK_SIZE, labels), _integer(_NUM_BLOCKS, labels), _integer(_CAPACITY, labels))
            for labels in found
        }
        return {_label(labels): self._known[labels] for labels in found}

    def _fetching(self, text: bytes) -> dict[str, dict[str, int]]:
        """By engine: waiting requests by stage."""
        found: dict[str, dict[str, int]] = {}
        for labels, number in self._optional_samples(text, FETCHING):
            stages = found.setdefault(_label(labels), {})
            if (stage := _STAGE.search(labels)) and len(stages) < MAX_STAGES:
                stages[stage[1].decode()] = int(number)
        return found

    def _transfers(self, text: bytes) -> dict[str, TransferStats]:
        """By engine: NIXL's counters of its transfers, and the prompt tokens whose KV they brought."""
        counts, seconds = self._histogram(text, MOVE_SECONDS, MAX_NUMBER)
        _, sizes = self._histogram(text, MOVE_BYTES, MAX_BYTES)
        tokens = {
            _label(labels): number
            for labels, number in self._optional_samples(text, CACHED_BY_SOURCE)
            if FROM_ENGINES in labels
        }
        return {
            label: TransferStats(
                count=counts.get(label, 0.0),
                bytes=sizes.get(label, 0.0),
                seconds=seconds.get(label, 0.0),
                tokens=tokens.get(label, 0.0),
            )
            for label in counts.keys() | tokens.keys()
        }

    def _histogram(self, text: bytes, name: bytes, most: float) -> tuple[dict[str, float], dict[str, float]]:
        """Count and sum by engine. ``most``: the largest sum that is read.

        The lines of one engine are consecutive, but those of one name are not. So the family's ``# TYPE`` line is
        searched, and the names only up to the next family.
        """
        start = self._find(text, b"\n# TYPE " + name[1:] + b" histogram")
        if start < 0:
            return {}, {}
        end = text.find(b"\n# ", start + 1)
        family = text[start:] if end < 0 else text[start : end + 1]
        found: list[dict[str, float]] = []
        for suffix in (b"_count{", b"_sum{"):
            line, values = name + suffix, dict[str, float]()
            position = family.find(line)
            while position >= 0 and len(values) < MAX_SAMPLES:
                stop = family.find(b"\n", position + 1)
                if stop < 0:
                    break
                labels, _, value = family[position + len(line) - 1 : stop].rpartition(b"}")
                if (number := _number(value, most)) is not None:
                    values[_label(labels)] = number
                position = family.find(line, stop)
            found.append(values)
        return found[0], found[1]

    def _optional_samples(self, text: bytes, name: bytes) -> list[tuple[bytes, float]]:
        """The samples of a name that most engines do not have. It never appears later in the life of a process."""
        if left := self._absent.get(name, 0):
            self._absent[name] = left - 1
            return []
        samples = self._samples(text, name)
        if not samples and self._find(text, name) < 0:  # else it is there, in a line that cannot be read
            self._absent[name] = LOOK_AGAIN - 1
        return samples

    def _by_engine(self, text: bytes, *names: bytes) -> dict[str, float]:
        """The values of the first of ``names`` that the text has, by engine label."""
        for name in names:
            if found := {_label(labels): number for labels, number in self._samples(text, name)}:
                return found
        return {}

    def _samples(self, text: bytes, name: bytes) -> list[tuple[bytes, float]]:
        """All samples of one name, as (labels with their braces, value). By the format they are consecutive lines."""
        samples: list[tuple[bytes, float]] = []
        position = self._find(text, name)
        while position >= 0 and text.startswith(name, position) and len(samples) < MAX_SAMPLES:
            end = text.find(b"\n", position + 1)
            if end < 0:
                break
            labels, _, value = text[position + len(name) - 1 : end].rpartition(b"}")
            if (number := _number(value)) is not None:
                samples.append((labels, number))
            position = end
        return samples

    def _find(self, text: bytes, name: bytes) -> int:
        """Where the first line of ``name`` begins, or -1."""
        start = max(0, self._offsets.get(name, 0) - SLACK)
        position = text.find(name, start)
        if position < 0 and start:
            position = text.find(name, 0, start + len(name))
        # The search may have begun among the lines of this name: go back to the first.
        while position > 0 and text.startswith(name, previous := text.rfind(b"\n", 0, position)):
            position = previous
        if position >= 0:
            self._offsets[name] = position
        return position


def _sum_ranks(ranks: list[EngineMetrics]) -> EngineMetrics:
    """Several ranks as one: the engine's own load balancer places requests on them."""
    capacity = sum(rank.kv_capacity for rank in ranks)
    stages = dict.fromkeys(stage for rank in ranks for stage in rank.kv_fetching)
    used = sum(rank.kv_usage * rank.kv_capacity for rank in ranks)
    return replace(
        ranks[0],
        running=sum(rank.running for rank in ranks),
        waiting=sum(rank.waiting for rank in ranks),
        kv_usage=min(1.0, used / capacity) if capacity else sum(rank.kv_usage for rank in ranks) / len(ranks),
        kv_capacity=capacity,
        prefix_queries=sum(rank.prefix_queries for rank in ranks),
        prefix_hits=sum(rank.prefix_hits for rank in ranks),
        external_queries=sum(rank.external_queries for rank in ranks),
        external_hits=sum(rank.external_hits for rank in ranks),
        kv_expired=sum(rank.kv_expired for rank in ranks),
        kv_fetching={stage: sum(rank.kv_fetching.get(stage, 0) for rank in ranks) for stage in stages},
        transfers=TransferStats(
            count=sum(rank.transfers.count for rank in ranks),
            bytes=sum(rank.transfers.bytes for rank in ranks),
            seconds=sum(rank.transfers.seconds for rank in ranks),
            tokens=sum(rank.transfers.tokens for rank in ranks),
        ),
    )


def _number(value: bytes, most: float = MAX_NUMBER) -> float | None:
    """A sample's value, without the timestamp behind it. None unless it is in 0..``most``."""
    words = value.split(None, 1)
    if not words:
        return None
    try:
        number = float(words[0])
    except ValueError:
        return None
    return number if 0 <= number <= most else None


def _label(labels: bytes) -> str:
    found = _ENGINE.search(labels)
    return found[1].decode("ascii", "replace") if found else ""


def _integer(pattern: re.Pattern[bytes], labels: bytes) -> int:
    found = pattern.search(labels)
    return int(found[1]) if found else 0


def _numeric(label: str) -> tuple[int, str]:
    """Sort key of labels: numbers first, by size."""
    return (int(label), "") if label.isascii() and label.isdigit() else (1 << 62, label)
