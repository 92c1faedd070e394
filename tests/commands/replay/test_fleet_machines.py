"""Machines from files."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.commands.replay.fleet import Kind, kinds, machine, named
from gateway.errors import ConfigError
from simulator.virtual.machine import MACHINES, Machine

PAGE = Path(__file__).parents[3] / "docs" / "replay.md"
EXCERPT = Path(__file__).parents[2] / "data" / "replay" / "mooncake_conversation.jsonl"

WHOLE = """\
prefill_token: 79.2e-6
prefill_quadratic: 2e-9
step: 21e-3
step_request: 0
kv_token: 34.9e-9
kv_tokens: 420_000
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


def test_a_file_has_all_figures(tmp_path) -> None:
    found = machine(str(write(tmp_path, WHOLE)))
    assert found == Machine("mine", 79.2e-6, 2e-9, 21e-3, 0.0, 34.9e-9, 420_000)
    assert machine(str(write(tmp_path, WHOLE + "name: ours"))).name == "ours"


def test_or_those_that_differ(tmp_path) -> None:
    path = write(tmp_path, "like: 8b-h100\nkv_tokens: 90_000\nhost_tokens: 1_000_000\n")
    assert machine(str(path)) == replace(MACHINES["8b-h100"], name="mine", kv_tokens=90_000, host_tokens=1_000_000)


def test_a_fleet_may_have_both(tmp_path) -> None:
    path = write(tmp_path, WHOLE)
    fleet = kinds(f"2 x {path} + 70b-tp4")
    assert fleet == (Kind(machine(str(path)), 2), Kind(MACHINES["70b-tp4"]))
    assert named(fleet) == "2 x mine + 1 x 70b-tp4"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ": expected a mapping, found nothing"),
        ("step: 1\n", ": prefill_token: this key is required"),
        (WHOLE + "stp: 1\n", ":7: stp: unknown key; did you mean 'step'"),
        (WHOLE.replace("21e-3", "0"), ":3: step must be above 0 seconds"),
        (WHOLE.replace("21e-3", "21"), ":3: step: must be at most 10 seconds, found 21.0"),
        (WHOLE.replace("420_000", "1e9"), ":6: kv_tokens: expected an integer, found the number"),
        (
            WHOLE.replace("420_000", "420_000_000"),
            ":6: kv_tokens: must be at most 100,000,000 tokens, found 420,000,000",
        ),
        (WHOLE + "max_num_seqs: 9000\n", "max_batched_tokens must be at least max_num_seqs"),
        ("like: 70b-tp8\n", ":1: like: there is no machine '70b-tp8'; did you mean '70b-tp4'"),
        ("like: [70b-tp4]\n", ":1: like: there is no machine"),
        ("step: [", "not YAML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, said) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        machine(str(path))
    assert error.value.message.startswith(str(path))
    assert said in error.value.message


def test_no_such_file_and_no_such_name() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read"):
        machine("nowhere.yaml")
    with pytest.raises(ConfigError, match=r"there is no machine '8b'.*a file's name ends in \.yaml"):
        machine("8b")


def test_the_page_lists_every_key() -> None:
    table = PAGE.read_text().split("## Machines")[1].split("\n## ")[0]
    listed = dict(re.findall(r"^\| `(\w+)` \|[^|]*\|\s*([^|]*?)\s*\|", table, re.MULTILINE))
    assert set(listed) == {"like", *(field.name for field in fields(Machine))}
    for field in fields(Machine):
        if isinstance(field.default, int | float):
            assert listed[field.name] == f"`{str(field.default).lower()}`"


def test_it_is_replayed(tmp_path, capsys) -> None:
    path = write(tmp_path, WHOLE)
    code = main(
        ["replay", str(EXCERPT), "--first", "20", "--machine", str(path), "--endpoints", "2", "--seeds", "1",
         "--jobs", "1", "--policies", "default"]
    )  # fmt: skip
    assert code == 0
    assert "2 x mine: 20 requests" in capsys.readouterr().out
