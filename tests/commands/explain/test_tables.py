"""The sentences of an account: where a request would go, and why whole."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from gateway.commands.explain.tables import show_account

WHOLE: dict[str, Any] = {"decode": "d", "prefill": None, "reason": "single", "new_tokens": 40, "costs": {}}
SPLIT = {**WHOLE, "prefill": "p", "reason": "split", "connector": "nixl", "strict": True}


def shown(plan: dict[str, Any] | None, width: int = 240, **changes: Any) -> str:
    account: dict[str, Any] = {
        "model": "m",
        "handler": "split",
        "exact": True,
        "tokens": "exact",
        "prompt_tokens": 100,
        "error": None,
    }
    account |= {"endpoints": [], "profiles": [], "left_out": [], "plan": plan} | changes
    console = Console(file=StringIO(), width=width)
    show_account(console, account)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_an_estimate_says_why_and_what_is_true_of_the_model() -> None:
    state = "exact for 93 % of prompts, else media"
    said = shown(WHOLE, exact=False, estimated="media", tokens=state)
    assert f"this prompt is estimated: media; the model's tokens: {state}\n" in said
    assert f"the model's tokens: {state}\n" in shown(WHOLE, estimated=None, tokens=state)
    assert "the model's tokens" not in shown(WHOLE)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("single", "it would go to d\n"),
        (
            "cheaper-whole",
            "it would go to d, whole: cheaper-whole, alone it costs less than with a prefill anywhere else",
        ),
        ("short", "whole: short, the 40 tokens that it would have to compute are too few to split"),
        ("version", "whole: version, none of those that could prefill runs an unknown version too"),
        ("no-prefill-endpoint", "whole: no-prefill-endpoint, none that is usable pairs with it"),
        ("beam-search", "whole: beam-search\n"),
        ("anothers", "whole: anothers\n"),
    ],
)
def test_each_reason_has_its_sentence(reason, said) -> None:
    assert said in shown({**WHOLE, "reason": reason})


def test_a_split_names_both_and_what_it_was_compared_with() -> None:
    text = shown({**SPLIT, "costs": {"split": 0.25, "whole": 1.0}})
    assert (
        "it would go to two: prefill on p, decode on d, which would have to compute 40 tokens; by nixl, strictly"
        in text
    )
    assert "compared: split 0.2500 s, whole 1.0000 s" in text


def test_a_leg_of_another_kind_is_named_too() -> None:
    encoded = {**WHOLE, "others": {"encode": "e"}, "reason": "encoded"}
    said = "it would go to two: encode on e, decode on d, which would have to compute 40 tokens"
    assert f"{said}\n" in shown(encoded)
    assert "it would go to 3: encode on e, prefill on p, decode on d" in shown({**SPLIT, "others": {"encode": "e"}})


def test_what_could_not_be_placed_says_why_and_who_was_left_out() -> None:
    text = shown(None, error={"message": "no [endpoint]"}, left_out=[{"endpoint": "e[1]", "why": "drains"}])
    assert "no [endpoint]\n" in text
    assert "left out: e[1] drains" in text
    assert "would go" not in text


def candidate(number: int) -> dict[str, Any]:
    terms = {f"term {name}": number + name / 10 for name in range(8)}
    return {
        "endpoint": f"10.0.0.{number}:8000",
        "expected_hit": 16 * number,
        "match": {"source": "events"},
        "scores": {"cost": 0.5},
        "terms": {"cost": terms},
        "score": number / 100,
    }


def test_on_a_narrow_terminal_each_endpoint_has_a_column() -> None:
    profile = {"profile": "p", "scorers": {"cost": 1.0}, "picked": "10.0.0.2:8000", "failed_scorers": {"own": "broken"}}
    profiles = [profile | {"candidates": [candidate(number) for number in range(1, 8)]}]
    wide, narrow = (shown(WHOLE, width, profiles=profiles).splitlines() for width in (240, 80))
    assert max(map(len, narrow)) <= 80
    assert not any("\u2026" in line for line in (*wide, *narrow)), "nothing is cut"
    for number in range(1, 8):
        assert sum(f"10.0.0.{number}:8000" in line for line in narrow) == 1
        assert any("expected hit" in line and f" {16 * number} " in line for line in narrow)
    for lines in (wide, narrow):
        assert sum("picked" in line for line in lines) == 1
        assert "scorer own failed and counted as 0: broken" in lines
