from __future__ import annotations

import pytest

from filters.labels import Expression, Labels
from tests.support.candidates import context, endpoint, names, request

FLEET = [
    endpoint(0, labels={"zone": "a", "gpu": "h100"}),
    endpoint(1, labels={"zone": "b", "gpu": "h100"}),
    endpoint(2),
]


def kept(match, prefer=False):
    return names(Labels(Labels.Parameters(match=match, prefer=prefer), context()).filter(request(), FLEET))


def test_one_value() -> None:
    assert kept({"zone": "a"}) == ["e0"]


def test_any_of_several_values() -> None:
    assert kept({"zone": ("a", "b", "c")}) == ["e0", "e1"]


def test_every_label_must_match() -> None:
    assert kept({"gpu": "h100", "zone": "b"}) == ["e1"]


def test_a_value_is_compared_whole() -> None:
    assert kept({"gpu": "h1"}) == []


def test_a_wish_is_dropped_where_nothing_matches() -> None:
    assert kept({"zone": "c"}) == []
    assert kept({"zone": "c"}, prefer=True) == ["e0", "e1", "e2"]
    assert kept({"zone": "a"}, prefer=True) == ["e0"]


def chosen(*expressions: Expression, **more):
    rule = Labels(Labels.Parameters(expressions=expressions, **more), context())
    return names(rule.filter(request(), FLEET))


@pytest.mark.parametrize(
    ("operator", "values", "stay"),
    [
        ("In", ("a", "c"), ["e0"]),
        ("NotIn", ("a", "c"), ["e1", "e2"]),
        ("Exists", (), ["e0", "e1"]),
        ("DoesNotExist", (), ["e2"]),
    ],
)
def test_the_operators_of_kubernetes(operator, values, stay) -> None:
    assert chosen(Expression("zone", operator, values)) == stay


def test_all_expressions_and_matches_must_hold() -> None:
    assert chosen(Expression("zone", "Exists"), Expression("zone", "NotIn", ("b",))) == ["e0"]
    assert chosen(Expression("gpu", "Exists"), match={"zone": "b"}) == ["e1"]


def test_who_lacks_a_label_of_match_may_pass() -> None:
    rule = Labels(Labels.Parameters(match={"zone": "a"}, unlabelled=True), context())
    assert names(rule.filter(request(), FLEET)) == ["e0", "e2"]


@pytest.mark.parametrize(
    ("operator", "values"), [("In", ()), ("NotIn", ()), ("Exists", ("a",)), ("DoesNotExist", ("a",))]
)
def test_an_operator_has_values_or_has_none(operator, values) -> None:
    with pytest.raises(ValueError, match="values must"):
        Expression("zone", operator, values)


@pytest.mark.parametrize("match", [{}, {"zone": ()}, {"zone": ""}])
def test_a_match_without_a_label_or_value_is_refused(match) -> None:
    with pytest.raises(ValueError, match="at least one"):
        Labels.Parameters(match=match)
