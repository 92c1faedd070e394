from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.describe import differences
from gateway.config.load import loads
from gateway.config.settings import Config

BASE = """\
models:
- name: a
  aliases: [x, y]
  endpoints: [{url: "http://a:1", api_key: secret-one}, {url: "http://b:1", name: b}]
- name: b
  endpoints: [{url: "http://a:1"}]
"""


def config(text: str) -> Config:
    return loads(text, {})


def between(before: str, after: str) -> Sequence[str]:
    return list(differences(config(before), config(after)))


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("secret-one", "secret-two", ["models[a].endpoints[http://a:1].api_key"]),
        (', {url: "http://b:1", name: b}', "", ["models[a].endpoints[http://b:1] removed"]),
        ("[x, y]", "[x]", ["models[a].aliases"]),
        (
            "name: b}",
            "name: c, labels: {zone: z}}",
            [f"models[a].endpoints[http://b:1].{k}" for k in ("name", "labels")],
        ),
        ("- name: b\n", "- name: c\n", ["models[b] removed", "models[c] added"]),
        ("models:", "timeouts: {head: 1}\nmodels:", ["timeouts.head"]),
        ("models:", "profiles: [{name: default, picker: best, filters: [healthy]}]\nmodels:", ["profiles", "handlers"]),
    ],
)
def test_a_difference_is_a_path(old: str, new: str, found: list[str]) -> None:
    told = between(BASE, BASE.replace(old, new))
    if "profiles" in new:
        assert {path.partition("[")[0] for path in told} == set(found)
    else:
        assert told == found
    assert not any("secret" in path for path in told)


def test_an_order_is_a_difference() -> None:
    head, _, tail = BASE.partition("- name: b\n")
    models = head.partition("models:\n")[2]
    assert between(BASE, "models:\n- name: b\n" + tail + models) == ["models in another order"]


@given(st.permutations(range(4)), st.sets(st.integers(0, 3), min_size=1))
def test_nothing_differs_from_itself_and_lists_differ_by_their_items(order: list[int], there: set[int]) -> None:
    def text(numbers: Sequence[int]) -> str:
        return "models:\n- name: m\n  endpoints:\n" + "".join(f"  - url: http://h{n}:1\n" for n in numbers)

    some = [number for number in order if number in there]
    told = between(text(order), text(some))
    assert len(told) == 4 - len(there)
    assert all(path.endswith(" removed") for path in told)
    assert between(text(some), text(some)) == []
