"""What an answered request teaches: of its engine's pace, of how long answers are, of what the engine had cached.

Only what was answered well teaches; a prefill leg of its own tells of its engine what an answer would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.api.usage import Usage
from gateway.fleet.booking import Booking, learn_events, learn_output
from gateway.framework import GENERATES
from gateway.kvcache.use import BlockUse
from gateway.proxy.placement import Placement
from gateway.tokens.agreement import form_of

if TYPE_CHECKING:
    from gateway.proxy.exchange import Exchange


def learn(exchange: Exchange, placement: Placement) -> None:
    """From the whole answer that ``placement`` brought."""
    assert exchange.request is not None
    assert exchange.serving is not None
    assert exchange.prompt is not None
    booking, usage, model = placement.decode, exchange.usage, exchange.serving.model
    told = usage.output_tokens if usage is not None else None
    steps = (told or 0) / exchange.sequences - 1
    if not exchange.request.stream and exchange.request.kind in GENERATES and not placement.split and steps > 0:
        booking.learn_whole(steps, exchange.clock.monotonic() - booking.at)
    else:
        _learn_times(exchange, placement)
    booking.cost.ended()
    if told and exchange.outputs:
        learn_events(model, told / exchange.outputs)
    output = told or exchange.outputs
    if exchange.request.kind in GENERATES and output:
        learn_output(model, output / exchange.sequences, exchange.request.max_tokens)
    if usage is not None and usage.prompt_tokens is not None and exchange.prompt.whole and not exchange.by_ids:
        exchange.observer.tokens_compared(model.name, exchange.prompt.count, usage.prompt_tokens)
    if not placement.split:  # what it reports is the prefill engine's figure, which had it from there
        compare(exchange, booking, placement.decode_use, usage)


def compare(exchange: Exchange, booking: Booking, use: BlockUse, usage: Usage | None) -> None:
    """What the engine of ``booking`` has counted, beside what was expected of it."""
    if usage is not None:
        _learn_parity(exchange, booking, usage)
        _learn_hits(exchange, booking, use, usage)


def _learn_times(exchange: Exchange, placement: Placement) -> None:
    """What a stream told: when its first output came, and those behind it, one a step and sequence."""
    booking, first = placement.decode, exchange.first_output_at
    if first is None:
        return
    if not placement.split:
        booking.learn_prefill(first - booking.at)
    if events := exchange.events_since_first():
        now = exchange.clock.monotonic()
        booking.learn_steps(now, events / exchange.sequences, now - first)


def _learn_parity(exchange: Exchange, booking: Booking, usage: Usage) -> None:
    """Where the engine's count can differ from ours only because its ids do."""
    assert exchange.serving is not None
    assert exchange.request is not None
    assert exchange.prompt is not None
    if exchange.own_tokens is None or exchange.by_ids:
        return
    if exchange.request.indivisible or exchange.request.adapter is not None:
        return
    parity = exchange.serving.tokens.parity
    if usage.prompt_tokens is not None:
        form = form_of(exchange.request.kind)
        parity.counted(booking.endpoint.name, form, exchange.own_tokens, usage.prompt_tokens)
    if usage.cached_tokens is not None and exchange.exact_on(booking.endpoint):
        parity.hit(booking.endpoint.name, booking.expected_hit, usage.cached_tokens)


def _learn_hits(exchange: Exchange, booking: Booking, use: BlockUse, usage: Usage) -> None:
    assert exchange.prompt is not None
    if usage.cached_tokens is None:
        return
    if exchange.decision is not None:
        exchange.decision.cached_tokens = usage.cached_tokens
    if not exchange.prompt.single:
        return
    use.reported(booking.expected_hit, usage.cached_tokens)
    if usage.prompt_tokens is not None:
        name = booking.endpoint.name
        exchange.observer.hits_reported(exchange.model_name, name, usage.prompt_tokens, usage.cached_tokens)
    if exchange.prompt.whole and exchange.exact_on(booking.endpoint):
        name = booking.endpoint.name
        exchange.observer.hits_compared(exchange.model_name, name, booking.expected_hit, usage.cached_tokens)
