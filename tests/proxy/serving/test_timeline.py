"""Which phases a request goes through: the table is enforced, and ARCHITECTURE.md prints it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import astuple

from gateway.api.usage import Usage
from gateway.core.clock import ManualClock
from gateway.proxy.serving.timeline import NEXT, Event, Phase, Timeline

PAGE = (Path(__file__).parents[3] / "ARCHITECTURE.md").read_text()


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("event", Event)
def test_an_event_comes_only_where_the_table_says(phase: Phase, event: Event) -> None:
    timeline = Timeline(ManualClock(), 0.0, phase=phase)
    if event in NEXT[phase]:
        timeline.happened(event)
        assert timeline.phase is NEXT[phase][event]
    else:
        with pytest.raises(ValueError, match=f"{phase} cannot be {event}"):
            timeline.happened(event)
        assert timeline.phase is phase


def test_every_phase_is_reached_from_the_first_and_every_event_may_come() -> None:
    reached, new = set(), {Phase.RECEIVING}
    while new:
        reached |= new
        new = {after for phase in new for after in NEXT[phase].values()} - reached
    assert reached == set(Phase)
    assert {event for events in NEXT.values() for event in events} == set(Event)


def test_the_architecture_prints_the_table() -> None:
    rows = [f"| `{phase}` | `{event}` | `{after}` |" for phase in Phase for event, after in NEXT[phase].items()]
    assert [row for row in rows if row not in PAGE] == []


def test_a_first_output_alone_tells_no_time_between_tokens() -> None:
    clock = ManualClock(10.0)
    timeline = Timeline(clock, 4.0)
    assert (timeline.figures().ttft, timeline.outputs_since_first, timeline.figures().overhead) == (None, 0, 0.0)
    timeline.received_at = clock.now
    clock.now = 12.0
    timeline.sent_at = clock.now
    timeline.first_output_at, timeline.outputs, timeline.outputs_at_first = 13.0, 3, 2
    assert (timeline.figures().ttft, timeline.outputs_since_first, timeline.figures().overhead) == (9.0, 0, 2.0)
    timeline.outputs = 12
    assert timeline.outputs_since_first == 10


def test_the_engines_count_of_output_goes_before_the_events_of_its_stream() -> None:
    clock = ManualClock(10.0)
    timeline = Timeline(clock, 4.0)
    assert astuple(timeline.figures()) == (6.0, 0.0, None, None)
    timeline.outputs, timeline.usage = 3, Usage(prompt_tokens=7)
    assert timeline.figures().output_tokens == 3
    timeline.usage = Usage(prompt_tokens=7, output_tokens=0)
    assert timeline.figures().output_tokens == 0
