"""Traces as tables: Azure's and BurstGPT's columns."""

from __future__ import annotations

import csv
import io
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli import main
from gateway.commands.replay.sources import read
from gateway.errors import ConfigError

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"


def write(folder: Path, *rows: str, end: str = "\n") -> Path:
    path = folder / "trace.csv"
    path.write_bytes("".join(row + end for row in rows).encode())
    return path


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_azure_s(tmp_path, end) -> None:
    rows = ("2023-11-16 18:15:50.9951690,396,109", "2023-11-16 18:15:46.6805900,374,44", "")
    whole = read(write(tmp_path, AZURE, *rows, end=end))
    assert (whole.block_size, whole.prefixes, whole.failed) == (16, False, 0)
    first, second = whole.lines
    assert second.at - first.at == pytest.approx(4.3145, abs=1e-3)
    assert (first.input_tokens, first.output_tokens, len(first.blocks)) == (374, 44, 24)
    assert not set(first.blocks) & set(second.blocks)


def test_azure_s_of_2024_have_a_zone(tmp_path) -> None:
    rows = ("2024-05-10 02:00:01.5+02:00,10,1", "2024-05-10 00:00:00.009930+00:00,2162,5")
    whole = read(write(tmp_path, AZURE, *rows))
    assert [one.input_tokens for one in whole.lines] == [2162, 10]


def test_burstgpt_s(tmp_path) -> None:
    rows = ("5,ChatGPT,472,18,490,Conversation log", "45,GPT-4,0,0,0,API log", '118.5,"GPT-4",417,276,693,API log')
    whole = read(write(tmp_path, BURST, *rows))
    assert whole.failed == 1
    assert [(one.at, one.input_tokens, one.traffic) for one in whole.lines] == [
        (5.0, 472, "Conversation log"),
        (118.5, 417, "API log"),
    ]


def test_columns_may_be_anywhere_and_sessions_among_them(tmp_path) -> None:
    rows = ("9,3,x,1,2", "9,,y,1,2")
    whole = read(write(tmp_path, "Response tokens,Session ID,Else,Timestamp,Request tokens", *rows))
    assert [(one.output_tokens, one.session, one.at, one.input_tokens) for one in whole.lines] == [
        (9, "3", 1.0, 2),
        (9, None, 1.0, 2),
    ]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("5,1,2", "must have 6 columns, as the header has, found 3"),
        ("-5,m,1,2,3,l", "Timestamp must be seconds in 0..1e+12, found '-5'"),
        ("nan,m,1,2,3,l", "Timestamp must be seconds"),
        ("5,m,1.5,2,3,l", "Request tokens must be a whole number of tokens in 0..16777216, found '1.5'"),
        ("5,m,1,99999999,3,l", "Response tokens must be a whole number"),
        ("5,m,1," + "9" * 5000 + ",3,l", "Response tokens must be a whole number"),
        ('5,"' + "m" * 200_000 + '",1,2,3,l', "field larger than field limit"),
    ],
)
def test_an_error_names_the_line_and_the_culprit(tmp_path, row, said) -> None:
    path = write(tmp_path, "", BURST, "5,ChatGPT,472,18,490,Conversation log", row)
    with pytest.raises(ConfigError) as error:
        read(path)
    assert error.value.message.startswith(f"{path}:4: ")
    assert said in error.value.message


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (
            "time,prompt,answer",
            "not JSON, and no header of a table of Azure's (TIMESTAMP,ContextTokens,GeneratedTokens)",
        ),
        ("Timestamp,Timestamp,Request tokens,Response tokens", "two columns are called 'Timestamp'"),
        ("TIMESTAMP,ContextTokens", "Rename the columns, or write lines such as"),
    ],
)
def test_a_header_that_is_not_known(tmp_path, head, said) -> None:
    with pytest.raises(ConfigError) as error:
        read(write(tmp_path, head, "1,2,3"))
    assert ":1: " in error.value.message
    assert said in error.value.message


def test_a_trace_of_failures_has_no_requests(tmp_path) -> None:
    with pytest.raises(ConfigError, match="has no requests with tokens: all 1 failed"):
        read(write(tmp_path, BURST, "45,GPT-4,0,0,0,API log"))


moments = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1))
zones = st.sampled_from(["", "+00:00", "Z"])
tokens = st.integers(1, 100_000)


@given(st.lists(st.tuples(moments, zones, tokens, tokens), min_size=1, max_size=20))
def test_all_that_is_written_is_read(tmp_path_factory, rows) -> None:
    path = tmp_path_factory.mktemp("any") / "trace.csv"
    path.write_text("\n".join([AZURE, *(f"{at.isoformat(' ')}{zone},{p},{o}" for at, zone, p, o in rows)]))
    whole = read(path)
    expected = sorted(rows, key=lambda row: row[0])
    assert [(one.input_tokens, one.output_tokens) for one in whole.lines] == [row[2:] for row in expected]
    assert all(-(-one.input_tokens // 16) == len(one.blocks) for one in whole.lines)
    begin = whole.lines[0].at
    for one, row in zip(whole.lines, expected, strict=True):
        assert timedelta(seconds=one.at - begin).total_seconds() == pytest.approx(
            (row[0].replace(tzinfo=UTC) - expected[0][0].replace(tzinfo=UTC)).total_seconds(), abs=1e-3
        )
    blocks = [block for one in whole.lines for block in one.blocks]
    assert len(set(blocks)) == len(blocks)


@given(st.lists(st.lists(st.text(max_size=12), max_size=7), max_size=6), st.sampled_from([AZURE, BURST]))
def test_any_cells_are_read_or_refused(tmp_path_factory, rows, head) -> None:
    path = tmp_path_factory.mktemp("any") / "trace.csv"
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    path.write_text(f"{head}\n{text.getvalue()}", encoding="utf-8", errors="surrogateescape")
    with suppress(ConfigError):  # and nothing else
        assert read(path).lines


def test_it_is_replayed_and_what_was_left_out_is_said(tmp_path, capsys) -> None:
    rows = [f"{n},GPT-4,{100 + n},{5 + n},0,API log" for n in range(8)]
    path = write(tmp_path, BURST, *rows, "45,GPT-4,0,0,0,API log")
    code = main(["replay", str(path), "--endpoints", "2", "--seeds", "1", "--jobs", "1", "--policies", "default"])
    assert code == 0
    out, err = capsys.readouterr()
    assert "trace, 2 x 70b-tp4: 8 requests, 1 seed" in out
    assert "1 requests have no tokens and are left out" in err
    assert "each is taken for new, in blocks of 16 tokens" in err
