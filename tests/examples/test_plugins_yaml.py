"""plugins.yaml at the root: works as it is, and what it says of the defaults is true."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from gateway.config.build import build_scheduler
from gateway.config.decode import keys
from gateway.config.load import load, loads
from tests.support.candidates import context, endpoint, request

ROOT = Path(__file__).parents[2]
FILE = ROOT / "plugins.yaml"
# A commented-out key has its # right before it; prose has a space after the #.
COMMENTED = re.compile(r"^( *)#(?=[^ #])", re.MULTILINE)


def uncommented() -> str:
    return COMMENTED.sub(r"\1", FILE.read_text())


def test_it_loads_and_decides_as_it_is() -> None:
    config = load(FILE, {})
    assert [one.url for one in config.models[0].endpoints] == ["http://127.0.0.1:8001", "http://127.0.0.1:8002"]
    idle, busy = endpoint(0), endpoint(1, requests=5, prefill_tokens=5000)
    assert build_scheduler(config, context).schedule(request(), (busy, idle)).decode is idle


def test_what_is_commented_out_is_the_default() -> None:
    assert COMMENTED.search(FILE.read_text())
    assert loads(uncommented(), {}) == loads(FILE.read_text(), {})


def test_every_key_is_in_it() -> None:
    given = loads(uncommented(), {}).origin.lines

    def missing(value: object, path: tuple[str | int, ...]) -> list[tuple[str | int, ...]]:
        absent = []
        for field in keys(type(value)):
            where = (*path, field.name)
            if where not in given:
                absent.append(where)
                continue
            inner = getattr(value, field.name)
            if field.name == "cost" and path != ("fleet",):
                continue  # the fleet's shows what is in it
            for i, one in enumerate(inner if isinstance(inner, tuple) else [inner]):
                if dataclasses.is_dataclass(one) and not isinstance(one, type):
                    absent += missing(one, (*where, i) if isinstance(inner, tuple) else where)
        return absent

    config = loads(uncommented(), {})
    # The second engine shows how short an entry can be; plugins without parameters have none.
    others = [path for path in missing(config, ()) if path[:4] != ("models", 0, "endpoints", 1)]
    assert [path for path in others if path[-1] != "parameters" and path[0] != "profiles"] == []


LINES = FILE.read_text().splitlines()
ENDS = LINES.index("#plugins:")  # below it, entries of lists replace a default as a whole
KEY = re.compile(r"^(?P<indent> *)(?P<commented>#?)[a-z_]+:(?P<value>.*)$")


@pytest.mark.parametrize(
    "number",
    [
        i
        for i, line in enumerate(LINES[:ENDS])
        if (key := KEY.match(line)) and key["commented"] and key["value"].strip()[:1] not in ("", "#")
    ],
    ids=lambda i: LINES[i].split(":")[0].strip(" #"),
)
def test_a_key_can_be_given_by_taking_away_its_mark_and_those_above_it(number) -> None:
    chosen, indent = list(LINES), len(LINES[number])
    for i in range(number, -1, -1):
        key = KEY.match(LINES[i])
        if key and len(key["indent"]) < indent:
            chosen[i], indent = COMMENTED.sub(r"\1", LINES[i]), len(key["indent"])
    given = loads("\n".join(chosen), {}).origin.lines
    assert LINES[number].split(":")[0].strip(" #") in {path[-1] for path in given if path}
