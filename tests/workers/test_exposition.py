from __future__ import annotations

from gateway.workers.exposition import Totals, parse


def text(requests: float = 0, up: float = 1, held: float = 0, *, endpoints: str = "a", events: float = 0) -> str:
    lines = [
        "# HELP kvgate_endpoint_draining x\n# TYPE kvgate_endpoint_draining gauge",
        *(f'kvgate_endpoint_draining{{endpoint="{name}"}} 0.0' for name in endpoints),
        f"# HELP kvgate_up x\n# TYPE kvgate_up gauge\nkvgate_up {up}",
        f"# HELP kvgate_held x\n# TYPE kvgate_held gauge\nkvgate_held {held}",
        "# HELP kvgate_requests_total x\n# TYPE kvgate_requests_total counter",
        *(f'kvgate_requests_total{{endpoint="{name}",result="ok"}} {requests}' for name in endpoints),
        f'# HELP kvgate_events_total x\n# TYPE kvgate_events_total counter\nkvgate_events_total{{kind="b"}} {events}',
        f'# HELP kvgate_t x\n# TYPE kvgate_t histogram\nkvgate_t_bucket{{le="1.0"}} {requests}',
        f'kvgate_t_bucket{{le="+Inf"}} {requests}\nkvgate_t_count {requests}\nkvgate_t_sum {requests / 2}\n',
    ]
    return "\n".join(lines)


def totals() -> Totals:
    return Totals({"kvgate_held": "sum", "kvgate_up": "lead", "kvgate_events_total": "once"})


def shown(of: Totals, lead: str = "") -> dict[str, float]:
    return {name: value for f in parse("".join(of.text(lead))).values() for name, value in f.series.items()}


A = 'kvgate_requests_total{endpoint="a",result="ok"}'


def test_it_adds_up_and_keeps_to_the_rules() -> None:
    both = totals()
    both.look({"x": text(3, up=0, held=10), "y": text(4, up=1, held=20)})
    seen = shown(both, "x")
    assert seen[A] == 7
    assert (seen["kvgate_t_count"], seen["kvgate_t_sum"], seen['kvgate_t_bucket{le="+Inf"}']) == (7, 3.5, 7)
    assert (seen["kvgate_held"], seen["kvgate_up"]) == (30, 0)
    assert shown(both, "y")["kvgate_up"] == 1
    assert "kvgate_up" not in shown(both, "nobody")
    whole = "".join(both.text("x"))
    assert whole.count("# TYPE kvgate_requests_total counter\n") == 1


def test_counts_of_the_dead_stay_and_their_gauges_go() -> None:
    both = totals()
    both.look({"x": text(3, held=10), "y": text(4, held=20)})
    both.look({"x": text(5, held=10), "y": text(4, held=20)})
    both.gone("x")
    both.look({"y": text(4, held=20)})
    assert (shown(both)[A], shown(both)["kvgate_held"]) == (9, 20)
    both.look({"y": text(4), "x's successor": text(1)})
    assert shown(both)[A] == 10


def test_counts_stay_where_all_have_died_at_once() -> None:
    both = totals()
    both.look({"x": text(3), "y": text(4)})
    both.gone("x")
    both.gone("y")
    both.look({"parent": "# HELP kvgate_held x\n# TYPE kvgate_held gauge\nkvgate_held 0.0\n"})
    assert shown(both)[A] == 7
    both.look({"x's successor": text(1)})
    assert shown(both)[A] == 8


def test_one_that_gives_no_text_for_once_is_as_it_was() -> None:
    both = totals()
    both.look({"x": text(3), "y": text(4, held=1)})
    both.look({"x": text(4)})
    assert (shown(both)[A], shown(both)["kvgate_held"]) == (8, 1)
    both.look({"x": text(4), "y": text(5)})
    assert shown(both)[A] == 9


def test_what_all_count_counts_once() -> None:
    both, events = totals(), 'kvgate_events_total{kind="b"}'
    both.look({"x": text(events=100), "y": text(events=98)})
    assert shown(both)[events] == 100
    both.look({"x": text(events=110), "y": text(events=110)})
    assert shown(both)[events] == 110
    both.look({"x": text(events=118), "y": text(events=120)})
    both.look({"x": text(events=130), "y": text(events=128)})
    assert shown(both)[events] == 130  # and not what each was behind, again and again
    both.gone("x")
    both.look({"y": text(events=131), "z": text(events=80)})  # it has heard the old ones again
    assert shown(both)[events] == 131
    both.look({"y": text(events=135)})  # what it has left at its end: the other one has counted that, too
    both.gone("y")
    both.look({"z": text(events=85)})
    assert shown(both)[events] == 135
    both.look({"z": text(events=90)})
    assert shown(both)[events] == 140
    both.look({"z": text(events=3)})  # the endpoint has gone, and is there again
    assert shown(both)[events] == 143


def test_an_endpoint_that_has_gone_takes_its_series_along() -> None:
    both, b = totals(), A.replace('"a"', '"b"')
    both.look({"x": text(3, endpoints="ab"), "y": text(4, endpoints="ab")})
    both.gone("x")
    both.look({"y": text(4, endpoints="a")})  # it has removed b
    assert b not in shown(both)
    assert shown(both)[A] == 7
    both.look({"y": text(1, endpoints="ab")})  # which is there again, counted from 0
    assert shown(both)[b] == 1


def test_it_stays_while_the_endpoint_is_there_and_nobody_who_lives_has_used_it() -> None:
    both = totals()
    both.look({"x": text(3), "y": text(4)})
    both.gone("x")
    both.gone("y")
    idle = text().partition("# HELP kvgate_up")[0]
    both.look({"z": idle})
    assert shown(both)[A] == 7


def test_labels_are_any_text() -> None:
    odd = 'kvgate_x_total{endpoint="a b\\"}\\\\ \u2028,=\x85"}'
    both = totals()
    line = f"# HELP kvgate_x_total x\n# TYPE kvgate_x_total counter\n{odd} 2.5\n"
    both.look({"x": line, "y": line})
    # No endpoint is known, so it is forgotten where no process has it; here both have it.
    assert shown(both) == {odd: 5.0}
