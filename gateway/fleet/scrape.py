"""What an engine's ``GET /metrics`` says, read from the few lines that matter.

Rules: nothing here raises, whatever the bytes are; a text that is not an engine's metrics is None. Only whole lines
count (the last one ends in a newline too). Of a 60 KB scrape some thirteen lines are wanted: they are found with
``bytes.find``, beginning where they were found last time, which costs a two-hundredth of parsing it all. Names that
only engines with a KV connector have are not looked for in every text of one that has none.

Names are those of vLLM 0.32; those that older versions used are accepted where the new ones are missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gateway.framework import EngineMetrics, Moved

# How a sample's line begins: the break before it, its name, and the brace (or the blank) that ends the name.
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
"""Bytes before the remembered place where the search begins: lines above it may have become shorter."""

LOOK_AGAIN = 32
"""Texts of one process after which a name that it did not have is looked for again. To find nothing in 60 KB takes
10 us, a fifth of reading all the rest. Names come with a process: only one that does not tell its start needs this."""

MAX_SAMPLES = 512
"""Lines of one name that are read. Engines have at most some dozens of ranks; more is not an engine's text."""

MAX_NUMBER = 1e15
"""Beyond it a float counts no single tokens any more: no counter of an engine comes near."""

MAX_BYTES = 1e18
"""As many bytes: at 25 GB/s a year, where ``MAX_NUMBER`` of them are eleven hours. Single ones do not matter."""

MAX_STAGES = 8
"""Of fetching KV, each of which becomes a metric's label of ours. vLLM has three."""

MAX_DIGITS = 15
"""Of a number in a label, for the same reason."""

_ENGINE = re.compile(rb'[{,]engine="([^"\\]{0,32})"')
_STAGE = re.compile(rb'[{,]stage="([a-z_]{1,32})"')
_BLOCK_SIZE = re.compile(rb'[{,]block_size="(\d{1,%d})"' % MAX_DIGITS)
_NUM_BLOCKS = re.compile(rb'[{,]num_gpu_blocks="(\d{1,%d})"' % MAX_DIGITS)
_CAPACITY = re.compile(rb'[{,]kv_cache_size_tokens="(\d{1,%d})"' % MAX_DIGITS)


@dataclass(frozen=True, slots=True)
class Scrape:
    """One reading.

    ``engines``: by the ``engine`` label, which is the data-parallel rank, in numeric order; empty label: none given.
    ``started``: seconds since the epoch; None where the server does not tell (several API processes).
    ``created``: by engine label, seconds since the epoch when its counters were made. ``asleep``: a rank is not awake.
    ``transfers``: it has a connector that fetches KV from other engines, or has others fetch it.
    """

    engines: Mapping[str, EngineMetrics]
    started: float | None = None
    created: Mapping[str, float] | None = None
    asleep: bool = False
    transfers: bool = False

    def rank(self, rank: int | None) -> EngineMetrics | None:
        """The metrics of one data-parallel rank: the ``rank``-th in order, since behind a hybrid load balancer labels
        count from the node's first rank, and the header that chooses one counts from 0. None: of all ranks together.
        Without labels nothing is known of a single rank.
        """
        found = list(self.engines.values())
        if rank is not None:
            if "" in self.engines:
                return None
            return found[rank] if rank < len(found) else None
        return found[0] if len(found) == 1 else _together(found)


def restarted(before: Scrape, after: Scrape) -> bool:
    """The process answering now is not the one that answered before: it began later, or its counters did."""
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
    """Read one text without remembering anything. ``at``: Clock.monotonic() of it."""
    return ScrapeReader().read(text, at)


class ScrapeReader:
    """Reads the texts of one engine; remembers where in them the wanted lines are, and what the long one says."""

    def __init__(self) -> None:
        self._places: dict[bytes, int] = {}
        self._known: dict[bytes, tuple[int, int, int]] = {}
        self._process: tuple[float | None, Mapping[str, float]] | None = None
        self._absent: dict[bytes, int] = {}

    def read(self, text: bytes, at: float | None = None) -> Scrape | None:
        """``at``: Clock.monotonic() of the text. None if it does not say how many requests are running."""
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
            {_label(labels): number for labels, number in self._rare(text, name)}
            for name in (EXTERNAL_QUERIES, EXTERNAL_HITS)
        ]
        expired = {_label(labels): number for labels, number in self._rare(text, EXPIRED)}
        fetching = self._fetching(text)
        transfers = bool(expired or fetching)
        moved = self._moved(text) if transfers else {}
        engines = {}
        for label in sorted(running, key=_numeric):
            block_size, blocks, capacity = configs.get(label) or configs.get("") or (0, 0, 0)
            engines[label] = EngineMetrics(
                at=at,
                running=int(running[label]),
                waiting=int(waiting.get(label, 0.0)),
                kv_usage=min(1.0, usage.get(label, 0.0)),
                # The number of blocks is summed over the ranks, other than the capacity in tokens.
                kv_capacity=capacity or blocks * block_size // len(running),
                block_size=block_size,
                prefix_queries=queries.get(label, 0.0),
                prefix_hits=hits.get(label, 0.0),
                external_queries=external[0].get(label, 0.0),
                external_hits=external[1].get(label, 0.0),
                kv_expired=expired.get(label, 0.0),
                kv_fetching=fetching.get(label, {}),
                moved=moved.get(label, Moved()),
            )
        return Scrape(
            engines=engines,
            started=started,
            created=created,
            asleep=any(
                number == 0 for labels, number in self._samples(text, SLEEP) if b'sleep_state="awake"' in labels
            ),
            transfers=transfers,
        )

    def _tokens(
        self, text: bytes, names: tuple[bytes, bytes], configs: Mapping[str, tuple[int, int, int]]
    ) -> dict[str, float]:
        """A counter in tokens; under its old name it counted blocks."""
        new, old = names
        if found := self._by_engine(text, new):
            return found
        return {label: number * configs.get(label, (1,))[0] for label, number in self._by_engine(text, old).items()}

    def _configs(self, text: bytes) -> dict[str, tuple[int, int, int]]:
        """By engine: tokens of a block, number of blocks, capacity in tokens; 0 for what is "None" or missing."""
        found = [labels for labels, _ in self._samples(text, CONFIG)]
        # Forty labels that never change while a process lives: read once, and kept for no longer than they are said.
        self._known = {
            labels: self._known.get(labels)
            or (_integer(_BLOCK_SIZE, labels), _integer(_NUM_BLOCKS, labels), _integer(_CAPACITY, labels))
            for labels in found
        }
        return {_label(labels): self._known[labels] for labels in found}

    def _fetching(self, text: bytes) -> dict[str, dict[str, int]]:
        """By engine: waiting requests by stage."""
        found: dict[str, dict[str, int]] = {}
        for labels, number in self._rare(text, FETCHING):
            stages = found.setdefault(_label(labels), {})
            if (stage := _STAGE.search(labels)) and len(stages) < MAX_STAGES:
                stages[stage[1].decode()] = int(number)
        return found

    def _moved(self, text: bytes) -> dict[str, Moved]:
        """By engine: what NIXL counted of its transfers, and the tokens that came by them."""
        counts, seconds = self._histogram(text, MOVE_SECONDS, MAX_NUMBER)
        _, sizes = self._histogram(text, MOVE_BYTES, MAX_BYTES)
        tokens = {
            _label(labels): number for labels, number in self._rare(text, CACHED_BY_SOURCE) if FROM_ENGINES in labels
        }
        return {
            label: Moved(
                transfers=counts.get(label, 0.0),
                bytes=sizes.get(label, 0.0),
                seconds=seconds.get(label, 0.0),
                tokens=tokens.get(label, 0.0),
            )
            for label in counts.keys() | tokens.keys()
        }

    def _histogram(self, text: bytes, name: bytes, most: float) -> tuple[dict[str, float], dict[str, float]]:
        """Count and sum by engine. An engine's lines stand together, those of one name do not: so the family's title
        is what is looked for, and the lines only up to the next one's."""
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

    def _rare(self, text: bytes, name: bytes) -> list[tuple[bytes, float]]:
        """The samples of a name that most engines do not have, and never get while a process lives."""
        if left := self._absent.get(name, 0):
            self._absent[name] = left - 1
            return []
        samples = self._samples(text, name)
        if not samples:
            self._absent[name] = LOOK_AGAIN - 1
        return samples

    def _by_engine(self, text: bytes, *names: bytes) -> dict[str, float]:
        """The values of the first of ``names`` that is there, by engine label."""
        for name in names:
            if found := {_label(labels): number for labels, number in self._samples(text, name)}:
                return found
        return {}

    def _samples(self, text: bytes, name: bytes) -> list[tuple[bytes, float]]:
        """All samples of one name, as (labels with their braces, value). They stand together: the format demands it."""
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
        place = self._places.get(name, 0)
        start = max(0, place - SLACK)
        position = text.find(name, start)
        if position < 0 and start:
            position = text.find(name, 0, start + len(name))
        # The search may have begun among the lines of this name: go back to the first.
        while position > 0 and text.startswith(name, previous := text.rfind(b"\n", 0, position)):
            position = previous
        if position >= 0:
            self._places[name] = position
        return position


def _together(ranks: list[EngineMetrics]) -> EngineMetrics:
    """Several ranks seen as one engine, whose own load balancer places the requests."""
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
        moved=Moved(
            transfers=sum(rank.moved.transfers for rank in ranks),
            bytes=sum(rank.moved.bytes for rank in ranks),
            seconds=sum(rank.moved.seconds for rank in ranks),
            tokens=sum(rank.moved.tokens for rank in ranks),
        ),
    )


def _number(value: bytes, most: float = MAX_NUMBER) -> float | None:
    """A sample's value, without a timestamp behind it: at least 0 and finite, else None."""
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
    """Order of labels: numbers first, by size."""
    return (int(label), "") if label.isascii() and label.isdigit() else (1 << 62, label)
