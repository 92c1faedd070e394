from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.observability.instruments import Counts, Instrument, Instruments, Spreads
from tests.support.examples import examples

BOUNDS = (0.1, 0.5, 2.0)
LABELS = st.tuples(st.text(max_size=5), st.text('\\"\n{},=é', max_size=5))


def read(text: bytes) -> set[tuple[str, str, str, frozenset[tuple[str, str]], float]]:
    return {
        (family.name, family.type, sample.name, frozenset(sample.labels.items()), sample.value)
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def both(ours: Instrument) -> tuple[bytes, bytes]:
    """Its own text, and what the client library makes of it."""
    registry, instruments = CollectorRegistry(), Instruments()
    instruments.families.append(ours)
    registry.register(instruments)
    return b"".join(ours.text()), generate_latest(registry)


@examples(100)
@given(st.lists(st.tuples(LABELS, st.integers(0, 10**9) | st.floats(0, 1e12)), max_size=8))
def test_counters_are_the_client_librarys(counted) -> None:
    ours, theirs = Counts("c", "What it is.", "z", "a"), Counter("c", "What it is.", ("z", "a"), registry=None)
    for labels, count in counted:
        ours[labels] += count
        theirs.labels(*labels).inc(count)
    text, made = both(ours)
    registry = CollectorRegistry()
    registry.register(theirs)
    assert read(text) == read(made) == read(generate_latest(registry))


@examples(100)
@given(st.lists(st.tuples(LABELS, st.floats(0, 4) | st.sampled_from(BOUNDS)), max_size=20))
def test_histograms_are_the_client_librarys(observed) -> None:
    ours = Spreads("h", "What it is.", BOUNDS, "z", "a")
    theirs = Histogram("h", "What it is.", ("z", "a"), registry=None, buckets=BOUNDS)
    for labels, value in observed:
        ours[labels].observe(value)
        theirs.labels(*labels).observe(value)
    text, made = both(ours)
    registry = CollectorRegistry()
    registry.register(theirs)
    assert read(text) == read(made) == read(generate_latest(registry))


def test_a_series_is_there_from_its_first_use_on_and_goes_with_its_label() -> None:
    counts, spreads = Counts("c", "C.", "model", "endpoint"), Spreads("h", "H.", BOUNDS, "model", "endpoint")
    for labels in (("m", "a"), ("m", "b"), ("n", "a")):
        counts[labels] += 0
        spreads[labels].observe(1.0)
    for family in (counts, spreads):
        assert len(family) == 3
        family.drop("endpoint", "a")
        assert list(family) == [("m", "b")]
        family.drop("endpoint", "unheard of")
        family.drop("model", "m")
        assert not family


@pytest.mark.parametrize("family", [Counts("c", "C.", "x"), Spreads("h", "H.", BOUNDS, "x")])
def test_text_comes_in_small_parts(family) -> None:
    for number in range(5000):
        if isinstance(family, Counts):
            family[str(number),] += 1
        else:
            family[str(number),].observe(0.2)
    parts = list(family.text())
    assert max(part.count(b"\n") for part in parts) < 400
    assert len(read(b"".join(parts))) == (5000 if isinstance(family, Counts) else 30_000)
