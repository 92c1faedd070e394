from __future__ import annotations

import io

from rich.console import Console
from rich.text import Text

from gateway.commands.doctor.finding import CHECKS, Finding, Level, Report, healthy
from gateway.commands.doctor.tables import show

OFF = Finding("events", Level.FAILED, "off", "its KV events are off", "start it with --kv-events-config '{\"a\":[1]}'")
HIDDEN = Finding("usage", Level.WARNING, "no hits", "it does not report hits", "start it with --enable")


def shown(*reports: Report, notes: dict[str, list[str]] | None = None) -> str:
    out = io.StringIO()
    show(reports, notes or {}, Console(file=out))
    return out.getvalue()


def test_a_cell_for_each_check_and_a_line_for_each_thing_to_do() -> None:
    good = Report("m", "a", "http://a", [Finding("reachable", Level.OK, "0.32.0"), Finding("events", Level.OK, "live")])
    bad = Report("m", "b", "http://b", [HIDDEN, OFF])
    text = shown(good, bad, notes={"m": ["its engines run several versions"]})
    assert "0.32.0" in text
    assert "live" in text
    lines = text.splitlines()[-5:]
    assert lines[-4:] == [
        "FAILED: b: events: its KV events are off; start it with --kv-events-config '{\"a\":[1]}'",
        "warning: b: usage: it does not report hits; start it with --enable",
        "warning: model m: its engines run several versions",
        "1 of 2 endpoints are not in order",
    ]


def test_what_is_the_same_of_many_is_said_once() -> None:
    reports = [Report("m", f"e{i}", f"http://e{i}", [OFF]) for i in range(3)]
    assert shown(*reports).count("its KV events are off") == 1
    assert "FAILED: e0, e1, e2: events:" in shown(*reports)


def test_ranks_are_told_apart() -> None:
    ranked = [Finding("events", Level.OK, "live", rank=0), Finding("events", Level.FAILED, "silent", "x", "y", rank=1)]
    report = Report("m", "a", "http://a", ranked)
    text = shown(report)
    assert "FAILED: a/1: events: x; y" in text
    assert "silent" in text, "the cell shows the worst"
    assert not healthy([report])


def test_models_have_a_table_each() -> None:
    text = shown(Report("m", "a", "http://a", []), Report("n[b]", "a", "http://a", []))
    assert "model m" in text
    assert "model n[b]" in text, "a name is no markup"
    assert "2 of 2 endpoints are in order" in text


def test_a_narrow_terminal_gets_a_row_for_each_check() -> None:
    names = [f"10.0.0.{number}:8000" for number in range(5)]
    findings = [Finding(check, Level.OK, "good") for check in CHECKS]
    reports = [Report("m", name, f"http://{name}", findings) for name in names]
    for width in (80, 40):
        out = io.StringIO()
        show(reports, {}, Console(file=out, force_terminal=True, width=width))
        text = Text.from_ansi(out.getvalue()).plain
        assert all(len(line) <= width for line in text.splitlines())
        assert all(text.count(name) == 1 for name in names)
        assert text.count("good") == len(names) * len(CHECKS), "no cell is cut or wrapped"
