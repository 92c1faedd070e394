"""Checks one cache (an engine's, or that of one data-parallel rank): its block size, its events, their replay, its
hashes.

The engine computes one prompt that nobody has sent before; the events about it answer all four questions.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.api.headers import RANK_HEADER
from gateway.commands.doctor.events import Heard, ask_replay, find, listen
from gateway.commands.doctor.finding import Finding, Level, Target
from gateway.commands.doctor.hashes import ALGORITHMS, recognise
from gateway.commands.doctor.tokens import words
from gateway.commands.interview import Interview
from gateway.core.prompt import TextInput, joined
from gateway.fleet.engine_client import ProbeFailed
from gateway.fleet.kv_source import KvSource, find_source
from gateway.framework import Clock
from gateway.framework.fleet import ServedModel
from gateway.kvcache.events.listener import ListenerSource
from gateway.kvcache.events.poller import TICK, Poller
from gateway.kvcache.events.replay import ReplayBroken
from gateway.kvcache.events.sockets import EventSource
from gateway.kvcache.events.subscription import Subscription
from gateway.kvcache.index.block_events import short

TRIES = 2
"""Probes at most: the first may have been sent before the subscription was complete."""

UNKNOWN = 256
"""Tokens of a probe if the engine does not report its block size: more than vLLM's usual block sizes."""

MAX_PROBE = 2048
"""Tokens of a probe at most: hybrid models with larger blocks are not probed."""


EVENTS_FLAG = """--kv-events-config '{"enable_kv_cache_events":true,"endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}'"""


@dataclass(slots=True)
class CacheCheck:
    """The check of one cache.

    ``sources``: from its /kv_event_sources, None if there is no such route. ``reported``: tokens of a block by the
    engine's metrics, 0 if they do not report it. ``algorithm``: of its hashes, by its metrics.
    """

    target: Target
    engine: Interview
    served: ServedModel
    sources: Mapping[str, Any] | None
    rank: int | None
    reported: int
    algorithm: str | None
    clock: Clock
    _ids: Sequence[int] = ()
    _failed: str = ""
    _reports_hits: bool = True
    _found: list[Finding] = field(default_factory=list)

    async def run(self) -> list[Finding]:
        source = self._source()
        heard = Heard()
        tokens = self.reported + 8 if self.reported else UNKNOWN
        if tokens > min(MAX_PROBE, (self.served.max_model_len or MAX_PROBE) - 64):
            said = f"its blocks of {self.reported} tokens are too large for a probe: its events were not tried"
            self._add("events", Level.NOTE, "not tried", said)
            self._of_block_size(heard)
            return self._found
        where = self._where(source) if source is not None else None
        if where is not None:
            heard = await listen(where, lambda: self._probe(tokens), TRIES)
        else:
            await self._probe(tokens)
            if source is not None and source.replay is not None:
                heard = await find(source.replay, self._ids)
        if self._failed:
            said = f"it did not compute a prompt of some {tokens} tokens: POST /v1/completions gave {self._failed}"
            self._fail("events", self._failed, said, "see its log: it would not answer clients either")
        elif source is not None and source.address is None:
            self._of_coming(source, heard, taken=where is None)
        elif source is not None:
            self._of_events(source, heard)
        self._of_block_size(heard)
        if source is not None:
            await self._of_replay(source, heard)
        self._of_hashes(heard)
        if not self._reports_hits:
            said = "it does not report how much of a prompt it had cached, so that nothing shows whether hits come true"
            self._add("usage", Level.WARNING, "no hits", said, "start it with --enable-prompt-tokens-details")
        elif not self._failed:
            self._add("usage", Level.OK, "hits")
        return self._found

    def _add(self, check: str, level: Level, short: str, said: str = "", remedy: str = "") -> None:
        self._found.append(Finding(check, level, short, said, remedy, self.rank))

    def _fail(self, check: str, short: str, said: str, remedy: str) -> None:
        self._add(check, Level.FAILED, short, said, remedy)

    def _source(self) -> KvSource | None:
        """Where the events are published. None: nowhere, and a finding says so."""
        settings, host = self.target.endpoint.kv_events, self.target.endpoint.host
        if not settings.enabled:
            said = "its events are not followed, as configured (kv_events.enabled): what it holds is estimated"
            self._add("events", Level.NOTE, "unused", said)
            return None
        source = find_source(settings, self.rank, host, self._topic, self.sources or {})
        if settings.connects:
            return source if self._connects(source) else None
        if source is not None:
            return source
        if self.sources is None:
            short, said = "unknown", "it does not report the address of its KV events (no GET /kv_event_sources)"
            remedy = f"give kv_events.endpoint and .replay, and start it with {EVENTS_FLAG}"
        elif not self.sources:
            short, said, remedy = "off", "its KV events are off", f"start it with {EVENTS_FLAG}"
        else:
            short, said = "unusable", "its KV events cannot be subscribed to at the address that it reports"
            remedy = 'give it "publisher": "zmq" and a tcp:// endpoint, or name its address in kv_events.endpoint'
        self._fail("events", short, f"{said}: what it holds is estimated from what was sent to it", remedy)
        return None

    def _connects(self, source: KvSource | None) -> bool:
        """Whether an engine will connect to us that shall; else a finding says why not."""
        topic = self._topic
        if source is None:
            said = "it has several data-parallel ranks, and one endpoint here: what it holds is estimated"
            self._fail("events", "ranks", said, "remove ranks from its endpoint")
            return False
        if self.sources is not None and not self.sources:
            said = "its KV events are off: what it holds is estimated from what was sent to it"
            self._fail("events", "off", said, self._start())
            return False
        entry = (self.sources or {}).get(str(source.offset))
        there, its = (entry.get("endpoint"), entry.get("topic")) if isinstance(entry, dict) else (None, None)
        if isinstance(there, str) and ("*" in there or "::" in there):
            said = f"it does not connect to the gateway: it listens itself, at {there}"
            self._fail("events", "listens", said, f"remove kv_events.connects, or {self._start()}")
            return False
        if isinstance(its, str) and its != topic:
            said = f"it sends its KV events with the topic {its!r}, and {topic!r} is expected"
            self._fail("events", "topic", said, "set kv_events.topic to its own, which no other has")
            return False
        return True

    def _where(self, source: KvSource) -> EventSource | None:
        """What to listen to. None: another process listens for the engines that connect."""
        if source.address is not None:
            return Subscription(source.address, source.topic, Poller(TICK))
        listener = self.target.listener
        return ListenerSource(listener, source.topic, source.offset) if listener is not None else None

    @property
    def _topic(self) -> str:
        """The topic of its events if it connects to us."""
        return self.target.endpoint.kv_topic(self.target.model.name)

    def _start(self) -> str:
        """How to start an engine so that it connects to us."""
        config = f'"endpoint":"tcp://GATEWAY:PORT","replay_endpoint":"tcp://*:5558","topic":"{self._topic}"'
        return f"""start it with --kv-events-config '{{"enable_kv_cache_events":true,{config}}}'"""

    async def _probe(self, count: int) -> Sequence[int]:
        """Have the engine compute a new text; returns its token ids, empty if they cannot be known."""
        text = " ".join(words(uuid.uuid4().hex[:12], count))
        body = {"model": self.served.id, "prompt": text, "max_tokens": 1, "return_token_ids": True}
        headers = {} if self.rank is None else {RANK_HEADER: str(self.rank)}
        try:
            answer = await self.engine.post_json("/v1/completions", body, **headers)
            choice = answer["choices"][0]
            usage = answer.get("usage") or {}
        except ProbeFailed as failure:
            self._failed = failure.reason
            return ()
        except (LookupError, TypeError, AttributeError):
            self._failed = "garbage"
            return ()
        self._reports_hits = bool(usage.get("prompt_tokens_details"))
        self._ids = choice.get("prompt_token_ids") or answer.get("prompt_token_ids") or ()
        if not self._ids:
            own = (await self.target.tokens.tokenize(TextInput((text,)))).own
            self._ids = joined(own).tolist() if own is not None else ()
        return self._ids

    def _of_events(self, source: KvSource, heard: Heard) -> None:
        at = source.address
        if heard.blocks is not None:
            self._add("events", Level.OK, "live")
            return
        if not heard.connected:
            short, said = "no connection", f"its KV events cannot be connected to at {at}"
            remedy = (
                "open that port to this host, or correct kv_events.endpoint; "
                "if that is the gateway's own address, set kv_events.connects"
            )
        elif heard.stored:
            short, whose = "another's", "are not those of the prompt that it was sent: they are another engine's"
            said = f"the blocks announced at {at} {whose}"
            remedy = "correct kv_events.endpoint, and its port if several engines share a host"
        elif heard.messages:
            short = "unreadable"
            said = f"{heard.messages} messages came from {at}, and none could be read as blocks with their tokens"
            remedy = "see that it is a vLLM or SGLang publisher; kvgate_kv_events_total has the kinds"
        else:
            short, said = "silent", f"it computed a new prompt, and announced nothing at {at}"
            remedy = "see that events are on and that kv_events.topic and .endpoint are its own"
        self._fail("events", short, said, remedy)

    def _of_coming(self, source: KvSource, heard: Heard, *, taken: bool) -> None:
        """Judge the events of an engine that connects to us. ``taken``: it connects to another process, so that only
        its history can be seen."""
        if heard.blocks is not None and not taken:
            self._add("events", Level.OK, "live")
        elif taken and (heard.blocks is not None or source.replay is None):
            said = (
                "what engines connect to is another process's, such as a running gateway, whose kvgate_kv_stream_state "
                "shows whether they do"
            )
            self._add("events", Level.NOTE, "not heard", said)
        elif taken:
            said = "it computed a new prompt, and its history does not have it"
            self._fail("events", "silent", said, f"see its log, and {self._start()}")
        elif heard.stored:
            said = f"the blocks that come with the topic {source.topic!r} are not those of the prompt that it was sent"
            self._fail("events", "another's", said, "give each engine a topic of its own")
        else:
            listener = self.target.listener
            assert listener is not None
            others = ", ".join(sorted(repr(topic.decode(errors="replace")) for topic in listener.unknown_topics))
            at = listener.address_of(source.offset)
            said = f"it computed a new prompt, and nothing with the topic {source.topic!r} came to {at}"
            said += f", but {others}" if others else ""
            remedy = "see that it can reach that port of this host (does it connect to another?), and "
            self._fail("events", "silent", said, remedy + self._start())

    def _of_block_size(self, heard: Heard) -> None:
        learned = heard.blocks.block_size if heard.blocks is not None else 0
        size = learned or self.reported
        unit = self.target.unit
        if learned and self.reported and learned != self.reported:
            said = (
                f"its metrics say that a block has {self.reported} tokens, and its events {learned}: "
                "one of the two is not this engine's"
            )
            remedy = "see that url and kv_events.endpoint are the same engine's, and look for a proxy between"
            self._fail("block size", f"{self.reported}/{learned}", said, remedy)
        elif not size:
            said = "neither its metrics nor its events report its block size"
            self._add("block size", Level.WARNING, "?", said, "let GET /metrics through to it, or turn on its events")
        elif unit is not None and size % unit:
            said = f"kv_cache.block_size is {unit}, and its blocks have {size} tokens"
            remedy = f"remove kv_cache.block_size, since it is learned, or set it to {size}"
            self._fail("block size", f"{unit}/{size}", said, remedy)
        else:
            self._add("block size", Level.OK, str(size))

    async def _of_replay(self, source: KvSource, heard: Heard) -> None:
        if source.replay is None:
            said = "it has no replay socket: what it announced before a gateway's start, or in a gap, is never known"
            remedy = (
                'give its --kv-events-config a "replay_endpoint", or name it in kv_events.replay; else '
                "with kv_cache.reannounce it announces some of that again"
            )
            self._add("replay", Level.WARNING, "none", said, remedy)
            return
        try:
            before = await ask_replay(source.replay, heard.sequence)
        except ReplayBroken as error:
            said = f"its replay socket at {source.replay} does not answer: {error}"
            self._fail("replay", "no answer", said, "open that port to this host, or correct kv_events.replay")
            return
        self._add("replay", Level.OK, "yes")
        if heard.sequence is None:
            return
        if before is not None:
            self._add("last event", Level.OK, _ago(self.clock.wall() - before))
        else:
            self._add("last event", Level.OK, "none yet" if heard.sequence == 0 else "forgotten")

    def _of_hashes(self, heard: Heard) -> None:
        event = heard.blocks
        if event is None or not event.block_hashes or len(event.token_ids) < event.block_size:
            return
        algorithms = [self.algorithm] if self.algorithm in ALGORITHMS else [*ALGORITHMS]
        first = event.token_ids[: event.block_size]
        known = recognise(short(event.block_hashes[0]), first, [each for each in algorithms if each], self.target.seeds)
        if known is not None:
            self._add("hashes", Level.OK, known[0])
        else:
            said = (
                "block hashes cannot be made again here: PYTHONHASHSEED is what --hash-seed does not name, or random; "
                "kvgate does not need them"
            )
            self._add("hashes", Level.NOTE, "unknown", said)


def _ago(seconds: float) -> str:
    """``seconds`` ago, in words."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"
