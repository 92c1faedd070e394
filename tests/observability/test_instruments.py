from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Counter as TheirCounter
from prometheus_client import Gauge as TheirGauge
from prometheus_client import Histogram as TheirHistogram
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from gateway.observability.instruments import Counter, Family, Gauge, Histogram
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


def text_of(ours: Family) -> bytes:
    return b"".join(ours.text())


def rendered(theirs: Collector) -> bytes:
    registry = CollectorRegistry()
    registry.register(theirs)
    return generate_latest(registry)


@examples(100)
@given(st.lists(st.tuples(LABELS, st.integers(0, 10**9) | st.floats(0, 1e12)), max_size=8))
def test_counters_are_the_client_librarys(counted) -> None:
    ours, theirs = (
        Counter("c_total", "What it is.", "z", "a"),
        TheirCounter("c", "What it is.", ("z", "a"), registry=None),
    )
    for labels, count in counted:
        ours[labels] += count
        theirs.labels(*labels).inc(count)
    assert read(text_of(ours)) == read(rendered(theirs))


@examples(100)
@given(st.lists(st.tuples(LABELS, st.integers(-5, 10**9) | st.floats(0, 1e18)), max_size=8))
def test_gauges_are_the_client_librarys_to_the_byte(values) -> None:
    ours, theirs = Gauge("g", "What it is.", "z", "a"), TheirGauge("g", "What it is.", ("z", "a"), registry=None)
    for labels, value in values:
        ours[labels] = value
        theirs.labels(*labels).set(value)
    shown = Gauge("g", "What it is.", "z", "a", read=lambda: ours)
    assert text_of(ours) == text_of(shown) == rendered(theirs)


def test_a_gauge_without_labels() -> None:
    theirs = TheirGauge("g", "What it is.", registry=None)
    theirs.set(12_345_678)
    assert text_of(Gauge("g", "What it is.", read=lambda: {(): 12_345_678})) == rendered(theirs)


@examples(100)
@given(st.lists(st.tuples(LABELS, st.floats(0, 4) | st.sampled_from(BOUNDS)), max_size=20))
def test_histograms_are_the_client_librarys(observed) -> None:
    ours = Histogram("h", "What it is.", BOUNDS, "z", "a")
    theirs = TheirHistogram("h", "What it is.", ("z", "a"), registry=None, buckets=BOUNDS)
    for labels, value in observed:
        ours[labels].observe(value)
        theirs.labels(*labels).observe(value)
    assert read(text_of(ours)) == read(rendered(theirs))


def test_a_series_is_there_from_its_first_use_on_and_goes_with_its_label() -> None:
    counter, histogram = (
        Counter("c_total", "C.", "model", "endpoint"),
        Histogram("h", "H.", BOUNDS, "model", "endpoint"),
    )
    for labels in (("m", "a"), ("m", "b"), ("n", "a")):
        counter[labels] += 0
        histogram[labels].observe(1.0)
    for family in (counter, histogram):
        assert len(family) == 3
        family.drop("endpoint", "a")
        assert list(family) == [("m", "b")]
        family.drop("endpoint", "unheard of")
        family.drop("engine", "a")
        assert len(family) == 1
        family.drop("model", "m")
        assert not family


@pytest.mark.parametrize("family", [Counter("c_total", "C.", "x"), Histogram("h", "H.", BOUNDS, "x")])
def test_text_comes_in_small_parts(family) -> None:
    for number in range(5000):
        if isinstance(family, Counter):
            family[str(number),] += 1
        else:
            family[str(number),].observe(0.2)
    parts = list(family.text())
    assert max(part.count(b"\n") for part in parts) < 400
    assert len(read(b"".join(parts))) == (5000 if isinstance(family, Counter) else 30_000)
