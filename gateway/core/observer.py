"""What the gateway counts, as calls. ``gateway.observability`` implements it; this base ignores everything.

The caller bounds the label values: they are configured names, or words from the code, never a client's text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec


class Hit(msgspec.Struct, frozen=True):
    """What an engine reported of a prompt. ``prompt``: its tokens, where reported. ``cached``: those of them that came
    from a cache. ``expected``: as many we expected; None where the two cannot be compared."""

    endpoint: str
    prompt: int | None
    cached: int
    expected: int | None


class Charge(msgspec.Struct, frozen=True):
    """What a request was charged, in tokens. ``tenant``: as the configuration calls it. ``input``: of the prompt, those
    that did not come from an engine's cache; ``cached``: those that did."""

    tenant: str
    input: int
    cached: int
    output: int


# 32 fields: it is one line of the log, a key each, and what the metrics count beside it
class Settled(msgspec.Struct, frozen=True):
    """One request's line: for the log, and for the request metrics. Seconds; None where it does not apply.

    ``outcome``: ``ok``, an error's word, or ``cancelled``. ``overhead``: our own time before the first byte went
    upstream, queue wait not included. ``phase``: where a cancelled or failed request ended. ``plan``: the handler's
    reason. ``prefill_endpoint``: of a separate prefill, and ``prefill_time`` what it took. ``fallback``: why the decode
    endpoint computed the prompt although a separate prefill was planned. ``slo``: ``met`` or ``missed``, of a request
    with objectives. ``by_ids``: an engine got our token ids and not the prompt's text.

    ``hits``: of each leg whose engine reported what came from its cache. ``counted``: our exact count of the prompt,
    where ``reported_prompt_tokens`` can be compared with it.

    ``tenant``: whom it was for; ``key``: the id of its key; empty where it has none. ``charge``: None where nobody is
    charged.
    """

    request_id: str
    model: str
    route: str
    outcome: str
    status: int
    stream: bool
    endpoint: str | None
    attempts: int
    prompt_tokens: int
    exact: bool
    expected_hit: int
    duration: float
    queue_wait: float
    overhead: float
    phase: str
    match_source: str = "none"
    ttft: float | None = None
    output_tokens: int | None = None
    reported_prompt_tokens: int | None = None
    cached_tokens: int | None = None
    plan: str = ""
    prefill_endpoint: str | None = None
    prefill_time: float | None = None
    fallback: str | None = None
    error: str | None = None
    slo: str | None = None
    by_ids: bool = False
    hits: Sequence[Hit] = ()
    counted: int | None = None
    tenant: str = ""
    key: str = ""
    charge: Charge | None = None


class Observer:
    """Every method may be called on the hot path: no I/O, no exceptions."""

    # requests
    def settled(self, request: Settled) -> None:
        """A request has ended. What can be counted as late as this is reported here, once."""

    def placed(self, model: str, reason: str, seconds: float) -> None:
        """An attempt is placed. ``reason``: the plan's (``single``, ``split``, or why a prefill was not split off).
        ``seconds``: what match, schedule and reserve took together."""

    def attempted(self, model: str, endpoint: str, leg: str, result: str) -> None:
        """A leg that was sent has ended: its kind, and how (``ok``, ``refused``, ``died``, ``head-timeout``,
        ``status-503``, ...). Not only when its request ends: others watch for a leg that fails while the rest goes
        on."""

    def prefilled(self, model: str, seconds: float) -> None:
        """A prefill leg was answered: from its sending to its answer's end."""

    def handed_over(self, model: str, seconds: float) -> None:
        """A decode leg that fetched its KV has committed: from its sending to its first event, or, unstreamed, to its
        whole answer."""

    def fell_back(self, model: str, cause: str) -> None:
        """A separate prefill was planned, and the decode endpoint computed the prompt itself."""

    def limit_refused(self, tenant: str, limit: str) -> None:
        """A request was refused: ``requests``, ``tokens``, ``concurrent``, ``tokens-in-flight``, ``queued``,
        ``budget``. ``tenant``: as the configuration calls it."""

    def queued(self, model: str, length: int) -> None: ...
    def held(self, model: str, band: int, outcome: str, seconds: float) -> None:
        """A request waited so long in its model's queue. ``outcome``: ``placed``, ``refused`` or ``left``."""

    def served(self, model: str, tenant: str, band: int, seconds: float) -> None:
        """A request that went through its model's queue has ended, and took so much of an engine's time."""

    def shed(self, model: str, band: int, reason: str) -> None:
        """A model's queue refused a request. ``reason``: see ``errors.Saturated``."""

    def bus_dropped(self, reason: str) -> None:
        """A message of another replica is not used. ``reason``: ``garbage``, ``version``, ``huge``, ``old`` or
        ``replicas``."""

    def disconnected(self, model: str, phase: str) -> None:
        """The client went away in ``receiving``, ``queued``, ``tokenizing``, ``before-commit``, ``streaming``, or, with
        the engine's answer complete, in ``done``; while a separate prefill runs, in ``prefill``."""

    # tokens
    def tokens_estimated(self, model: str, why: str) -> None: ...
    def prompts_exact(self, model: str, share: float) -> None:
        """The share of the model's last prompts whose token ids are the engines': 0..1."""

    def media_rendered(self, model: str, result: str) -> None:
        """The result of requesting the tokens of a chat with images from an engine: ``asked``, ``remembered``, or the
        reason why there are none."""

    def prompt_asked(self, model: str, result: str) -> None:
        """The same for a prompt that cannot be tokenized here: the words of ``media_rendered``."""

    def ids_compared(self, model: str, equal: bool) -> None:
        """Our token ids of a prompt against the engine's."""

    def parity(self, model: str, trusted: bool) -> None:
        """Whether the prompts of a model with a tokenizer are placed by our ids: else they are estimated."""

    def endpoint_parity(self, model: str, endpoint: str, agrees: bool) -> None:
        """Whether the engine at ``endpoint`` makes the same tokens as we do; called when that changes."""

    # plugins
    def plugin_failed(self, kind: str, name: str, error: BaseException) -> None: ...
    def score_refused(self, name: str) -> None:
        """A score was NaN or outside 0..1, and counts as 0."""

    # fleet
    def engine_state(self, engine: str, up: bool, reason: str) -> None:
        """``up``: it is healthy. ``reason``: why it is not."""

    def engine_spared(self, engine: str, spared: bool) -> None:
        """Whether it is used although it is not healthy."""

    def scraped(self, engine: str, ok: bool, at: float) -> None:
        """``at``: Clock.monotonic()."""

    def scrape_heard(self, engine: str, at: float) -> None:
        """Another worker of this host has scraped it, and counts that."""

    def kv_transfers(self, endpoint: str, expired: float, fetching: Mapping[str, int]) -> None:
        """What a scrape says of them: see ``EngineMetrics.kv_expired`` and ``.kv_fetching``."""

    def cache_lookups(self, endpoint: str, cache: str, queried: float, hit: float) -> None:
        """What the engine itself has counted since the last scrape: tokens that it looked for in a cache (its ``own``,
        or an ``external`` one), and those that it found."""

    def draining(self, endpoint: str, draining: bool) -> None:
        """Whether an endpoint is out of use without a fault: no new request is placed there."""

    def engine_dropped(self, engine: str) -> None:
        """No endpoint is left on it: its series may go."""

    def endpoint_dropped(self, endpoint: str) -> None:
        """Its series may go."""

    def model_dropped(self, model: str) -> None:
        """It is not configured any more, and its last request has ended: its series may go."""

    # other workers
    def sibling_refused(self, reason: str) -> None:
        """Another worker of this host has sent what cannot be used: a ``greeting``, a ``topic`` that nobody hears, or a
        ``message``."""

    # KV cache
    def kv_events(self, endpoint: str, kind: str, count: int) -> None:
        """``stored``, ``removed`` (blocks), ``cleared``; or what was not understood: ``unknown-type``, ..."""

    def kv_gap(self, endpoint: str, result: str) -> None:
        """A sequence gap: ``replayed``, or ``lost`` where history has left the engine's buffer."""

    def kv_stream(self, endpoint: str, state: str) -> None:
        """``off``, ``connecting``, ``live``, ``partial``."""

    def kv_blocks(self, model: str, blocks: int) -> None:
        """Size of a model's index."""


NULL_OBSERVER = Observer()
