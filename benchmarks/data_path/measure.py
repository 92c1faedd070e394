"""The rounds: in each, every column's rows one after the other, ``wrk`` for some seconds each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.data_path.engines import MODEL, ORDERS
from benchmarks.data_path.plan import Column
from benchmarks.data_path.prompts import Text, chat, encoder, long_sizes, plan, render, sizes
from benchmarks.data_path.rows import DIRECT, Engines, Failed, Row, ask
from benchmarks.data_path.usage import cpu
from gateway.commands.processes import offline

DRIVE = Path(__file__).with_name("drive.lua")
WARM, REST = 0.4, 0.2
"""Seconds of a run that do not count: connections are made at its beginning, streams broken off at its end."""

LEAST, LONGER = 20, 4
"""A run with fewer answers is made once more, so many times as long: on a busy machine 128 KB take their time."""

PATIENCE = 30.0
"""Seconds that wrk may take longer than it was told to, and that an answer may take."""

CALM, UNASKED = 1.5, 3.0
"""Seconds in which nobody is asked, before what rows take then is measured, and while it is: a gateway looks at its
engines' events more often in the second after a request, and scrapes once a second."""

ENCODER = "encoding alone"
"""A row that is no proxy: what the tokenizer itself takes for the same fresh prompts."""


@dataclass(frozen=True)
class Sample:
    """One run. ``cpu``: microseconds for each answer of the row's processes; ``engines`` and ``driver`` likewise, of
    the mock engines and of wrk. ``p50``, ``p99``: milliseconds. ``answers``: that were counted on. Where nobody asks,
    ``cpu`` is in hundredths of a core."""

    round: int
    row: str
    column: str
    cpu: float
    engines: float = 0.0
    driver: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    answers: float = 0.0
    rate: float = 0.0


class Bench:
    """``run`` yields samples as they come. Raises Failed where an answer was wrong: a fast error is no figure."""

    def __init__(self, engines: Engines, rows: Sequence[Row], text: Text, folder: Path, seconds: int) -> None:
        if shutil.which("wrk") is None:
            raise Failed("wrk is not installed: apt-get install wrk")
        self._engines = engines
        self._rows = [Row(DIRECT, engines.urls[0], pids=engines.pids), *rows]
        self._text = text
        self._folder = folder
        self._seconds = seconds
        self._plans: dict[str, Path] = {}
        self._primed: set[tuple[str, int]] = set()

    def run(self, columns: Sequence[Column], rounds: int, more: int) -> Iterator[Sample]:
        """``rounds`` of all, and ``more`` of the key columns."""
        for number in range(rounds + more):
            for column in columns:
                if number >= rounds and not column.key:
                    continue
                if not column.connections:
                    yield from self._unasked(number, column)
                    continue
                # Each round begins with another row, so that nobody always follows the same one.
                rows = [row for row in self._rows if column.latency or row.name != DIRECT]
                for row in rows[number % len(rows) :] + rows[: number % len(rows)]:
                    yield self.one(number, row, column)
                if column.fresh and not column.stream:
                    yield self._encoding(number, column)

    def _unasked(self, number: int, column: Column) -> Iterator[Sample]:
        """What each row takes meanwhile: scrapes, events, health checks. All at the same time."""
        time.sleep(CALM)
        began, before = time.monotonic(), [cpu(row.pids) for row in self._rows]
        time.sleep(UNASKED)
        after, took = [cpu(row.pids) for row in self._rows], time.monotonic() - began
        for row, early, late in zip(self._rows, before, after, strict=True):
            yield Sample(number, row.name, column.name, cpu=(late - early) / took * 100)

    def _prime(self, row: Row, column: Column) -> None:
        """Ask once what is asked again and again from now on: known is what was seen, by engines and by who routes."""
        if column.fresh or (row.name, column.kib) in self._primed:
            return
        self._primed.add((row.name, column.kib))
        asked = chat(self._text, sizes_of(self._text, column.kib), fresh=False)
        messages = [*asked.known, {"role": "user", "content": "Go on."}]
        tokens = len(encoder(self._text).encode(render(messages, ask=True), add_special_tokens=False).ids)
        body = {"model": MODEL, "max_tokens": 1, "messages": messages, ORDERS: f"tokens={tokens}"}
        for each in (row, *row.beside):
            ask(f"{each.url}/v1/chat/completions", body, PATIENCE)

    def one(self, number: int, row: Row, column: Column) -> Sample:
        """A run of ``row`` alone, in this round. Raises Failed."""
        self._prime(row, column)
        sample = self._sample(number, row, column, self._seconds)
        if sample.answers < LEAST:
            sample = self._sample(number, row, column, LONGER * self._seconds)
        if not sample.answers:
            raise Failed(f"{row.name}, {column.name}: no answer within {LONGER * self._seconds} s")
        return sample

    def _sample(self, number: int, row: Row, column: Column, seconds: int) -> Sample:
        rows = (row, *row.beside)
        command = ["wrk", "-t1", f"-c{column.connections // len(rows)}", f"-d{seconds}s", "-s", str(DRIVE)]
        processes = [
            subprocess.Popen(
                [*command, f"--timeout={PATIENCE:.0f}s", each.url],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=offline(os.environ) | {"KVGATE_PLAN": str(self._plan(column))},
            )
            for each in rows
        ]
        try:
            time.sleep(WARM)
            before = self._look(row, processes)
            time.sleep(seconds - WARM - REST)
            after = self._look(row, processes)
            said = [process.communicate(timeout=PATIENCE)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        summary = joined([json.loads(each.splitlines()[-1]) for each in said])
        wrong = {name: summary[name] for name in ("connect", "read", "write", "status", "timeout", "incomplete")}
        if any(wrong.values()):
            raise Failed(f"{row.name}, {column.name}: {json.dumps(summary)}")
        if column.too_early(summary["p50"]):
            raise Failed(f"{row.name}, {column.name}: most answers came before the engines'; does it drop {ORDERS}?")
        answers, spent, engines, driver = (late - early for early, late in zip(before, after, strict=True))
        each = 1e6 / answers if answers else 0.0
        return Sample(
            *(number, row.name, column.name),
            cpu=spent * each,
            engines=engines * each,
            driver=driver * each,
            p50=summary["p50"],
            p99=summary["p99"],
            answers=answers,
            rate=summary["requests"] / summary["seconds"],
        )

    def _look(self, row: Row, drivers: Sequence[subprocess.Popen[str]]) -> tuple[float, float, float, float]:
        """Answers so far, and seconds of CPU of the row, of the engines and of wrk."""
        counts = self._engines.counts()
        # A stream counts as its events, so that those which are half done at both ends are no error.
        answers = counts.get("whole", 0) + counts.get("events", 0) / 64
        return answers, cpu(row.pids), cpu(self._engines.pids), cpu([driver.pid for driver in drivers])

    def _encoding(self, number: int, column: Column) -> Sample:
        """The tokenizer alone, in this process, over fresh prompts of the same size."""
        words = encoder(self._text)
        asked = [
            chat(self._text, sizes_of(self._text, column.kib), fresh=False, seed=number * 100 + each)
            for each in range(8)
        ]
        texts = [render(one.known) for one in asked]
        began = time.process_time()
        for text in texts:
            words.encode_batch_fast([text])
        return Sample(number, ENCODER, column.name, cpu=(time.process_time() - began) / len(texts) * 1e6)

    def _plan(self, column: Column) -> Path:
        orders = f"late={column.late}" if column.late else ""
        name = f"{column.kib}-{column.fresh}-{column.stream}-{column.late}"
        if name not in self._plans:
            asked = chat(self._text, sizes_of(self._text, column.kib), column.fresh)
            self._plans[name] = self._folder / f"{name}.lua"
            self._plans[name].write_text(plan(self._text, asked, stream=column.stream, orders=orders))
        return self._plans[name]


def joined(summaries: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """What several drivers that ran together say, as one: sums; of times, the mean, and of the 99th percentile the
    largest."""
    found = {name: sum(each[name] for each in summaries) for name in summaries[0]}
    for name in ("seconds", "p50"):
        found[name] /= len(summaries)
    found["p99"] = max(each["p99"] for each in summaries)
    return found


def held(text: Text, columns: Sequence[Column]) -> list[list[int]]:
    """Token ids of the prompts that are repeated: the engines say that they hold them."""
    lengths = sorted({column.kib for column in columns if column.connections and not column.fresh})
    return [chat(text, sizes_of(text, kib), fresh=False).prefix(text) for kib in lengths]


def sizes_of(text: Text, kib: int) -> list[int]:
    return sizes(kib) if kib else long_sizes(text)
