from __future__ import annotations

from gateway.commands.doctor.finding import Finding, Level, Report, healthy

LIVE = Finding("events", Level.OK, "live", rank=0)
SILENT = Finding("events", Level.FAILED, "silent", "it announced nothing", "turn events on", rank=1)
NO_HITS = Finding("usage", Level.WARNING, "no hits")


def report(*findings: Finding) -> Report:
    return Report("m", "a", "http://a", list(findings))


def test_a_report_is_as_bad_as_its_worst_finding() -> None:
    assert report().level is Level.OK
    assert report(LIVE, NO_HITS).level is Level.WARNING
    assert report(SILENT, LIVE, NO_HITS).level is Level.FAILED


def test_of_several_ranks_the_worst_is_shown() -> None:
    assert report(LIVE, SILENT, NO_HITS).of("events") is SILENT
    assert report(LIVE).of("usage") is None


def test_a_warning_is_healthy_and_a_failure_is_not() -> None:
    assert healthy([report(LIVE), report(NO_HITS)])
    assert not healthy([report(LIVE), report(SILENT)])


def test_levels_are_words_in_json() -> None:
    found = report(SILENT).as_json()
    assert (found["level"], found["findings"][0]["level"], found["findings"][0]["rank"]) == ("failed", "failed", 1)
