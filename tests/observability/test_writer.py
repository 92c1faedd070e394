from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial

import orjson

from gateway.observability.writer import LineWriter, whole


def dropped(count: int) -> bytes:
    return b"dropped %d\n" % count


def read_all(descriptor: int) -> bytes:
    parts = []
    while part := os.read(descriptor, 65536):
        parts.append(part)
    return b"".join(parts)


@contextlib.contextmanager
def piped() -> Iterator[tuple[LineWriter, int]]:
    """A writer into a pipe, and the pipe's other end. The writer is closed with it."""
    reader, writing = os.pipe()
    with os.fdopen(writing, "wb", buffering=0) as stream:
        writer = LineWriter(stream, dropped)
        yield writer, reader
        writer.close()
    os.close(reader)


@contextlib.contextmanager
def blocked(**bounds: int) -> Iterator[LineWriter]:
    """A writer whose reader reads only once the context is left."""
    reader, writing = os.pipe()
    stream = os.fdopen(writing, "wb", buffering=0)
    writer = LineWriter(stream, dropped, **bounds)
    writer.write(b"x" * 99_000, now=True)  # a pipe holds 64 KB
    yield writer
    collector = threading.Thread(target=read_all, args=(reader,))
    collector.start()
    writer.close()
    stream.close()
    collector.join()
    os.close(reader)


def test_lines_arrive_in_order_and_close_writes_the_rest() -> None:
    stream = io.BytesIO()
    writer = LineWriter(stream, dropped)
    expected = [b"line %d\n" % number for number in range(500)]
    for line in expected:
        assert writer.write(line) == len(line)
    writer.close()
    assert stream.getvalue() == b"".join(expected)


def test_what_makes_a_line_is_called_where_it_is_written_in_order_with_the_others(capsys) -> None:
    stream, threads = io.BytesIO(), set()

    def make(number: int) -> bytes:
        threads.add(threading.current_thread().name)
        return b"line %d\n" % (number if number != 33 else 1 // 0)

    writer = LineWriter(stream, dropped)
    for number in range(100):
        assert writer.write(partial(make, number) if number % 3 == 0 else b"line %d\n" % number)
    writer.close()
    assert stream.getvalue() == b"".join(b"line %d\n" % number for number in range(100) if number != 33)
    assert threads == {"kvgate-log"}
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert writer._buffered == 0


def test_lines_that_are_not_made_yet_count_too() -> None:
    with blocked(max_buffered=200_000) as writer:
        taken = [writer.write(lambda: b"x\n") for _ in range(1000)]
    assert 0 < sum(taken) <= 200_000 - 99_000
    assert taken[-1] == 0


def test_a_line_arrives_without_a_close() -> None:
    with piped() as (writer, reader):
        writer.write(b"now\n")
        assert os.read(reader, 100) == b"now\n"


def test_a_reader_that_stands_still_stalls_nobody_and_loses_only_what_is_over_the_limit() -> None:
    reader, writing = os.pipe()
    stream = os.fdopen(writing, "wb", buffering=0)
    line = b"x" * 999 + b"\n"
    # A pipe holds 64 KB, the buffer 200 KB: of 2 MB most has to go.
    writer = LineWriter(stream, dropped, max_buffered=200_000)
    for _ in range(2000):
        writer.write(line)
    assert writer._buffered <= 200_000

    received: list[bytes] = []
    collector = threading.Thread(target=lambda: received.append(read_all(reader)))
    collector.start()
    # What had been held back is written, and with it how much was not.
    deadline = time.monotonic() + 10
    while writer._buffered and time.monotonic() < deadline:
        time.sleep(0.005)
    writer.write(b"again\n")
    writer.close()
    stream.close()
    collector.join()
    os.close(reader)

    lines = received[0].splitlines()
    kept = sum(line_ == line[:-1] for line_ in lines)
    told = [int(line_.split()[1]) for line_ in lines if line_.startswith(b"dropped")]
    assert 200 <= kept < 2000
    assert kept + sum(told) == 2000
    assert b"again" in lines


def test_a_reader_that_is_gone_is_survived() -> None:
    reader, writing = os.pipe()
    os.close(reader)
    stream = os.fdopen(writing, "wb", buffering=0)
    writer = LineWriter(stream, dropped)
    writer.write(b"to nobody\n")
    writer.close()
    assert not writer._thread.is_alive()
    stream.close()


def test_a_stalled_reader_does_not_hold_up_the_end() -> None:
    reader, writing = os.pipe()
    stream = os.fdopen(writing, "wb", buffering=0)
    writer = LineWriter(stream, dropped)
    writer.write(b"x" * 1_000_000 + b"\n")
    writer.close(timeout=0.1)
    assert writer._thread.is_alive()
    read = threading.Thread(target=lambda: read_all(reader))
    read.start()
    writer._thread.join()
    stream.close()
    read.join()
    os.close(reader)


def test_a_line_that_is_not_to_wait_takes_those_before_it_along(monkeypatch) -> None:
    monkeypatch.setattr("gateway.observability.writer._GATHER", 3600.0)
    with piped() as (writer, reader):
        writer.write(b"one\n")
        writer.write(b"two\n", now=True)
        assert os.read(reader, 100) == b"one\ntwo\n"
        writer.write(b"three\n", now=True)
        assert os.read(reader, 100) == b"three\n"


def test_many_lines_do_not_wait(monkeypatch) -> None:
    monkeypatch.setattr("gateway.observability.writer._GATHER", 3600.0)
    with piped() as (writer, reader):
        line = b"x" * 999 + b"\n"
        for _ in range(66):
            writer.write(line)
        received = 0
        while received < 65_000:
            received += len(os.read(reader, 100_000))


def woken(writer: LineWriter) -> list[None]:
    """An element for each time that a line wakes the thread from now on."""
    times: list[None] = []
    wake = writer._first.set
    writer._first.set = lambda: times.append(wake())
    return times


def test_lines_that_follow_one_another_wake_the_thread_once(monkeypatch) -> None:
    monkeypatch.setattr("gateway.observability.writer._GATHER", 3600.0)
    stream = io.BytesIO()
    writer = LineWriter(stream, dropped)
    times = woken(writer)
    for _ in range(1000):
        writer.write(b"line\n")
    assert len(times) == 1
    writer.close()
    assert stream.getvalue() == b"line\n" * 1000


def test_a_line_after_a_pause_wakes_the_thread_again() -> None:
    stream = io.BytesIO()
    writer = LineWriter(stream, dropped)
    times = woken(writer)
    for expected in (1, 2):
        writer.write(b"line\n")
        assert len(times) == expected
        deadline = time.monotonic() + 10
        while writer._gathering and time.monotonic() < deadline:
            time.sleep(0.005)
        assert stream.getvalue() == b"line\n" * expected
    writer.close()


ENDS = """
import sys
from gateway.observability.logs import configure
from gateway.observability.settings import LogSettings

logs = configure(LogSettings(format="json"))
for number in range(500):
    logs.logger.info("line", number=number)
raise RuntimeError("nobody closes the log")
"""


def test_nothing_is_lost_where_the_process_ends_without_closing_the_log() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("{")]
    assert [orjson.loads(line)["number"] for line in lines] == list(range(500))


def test_what_is_written_at_once_is_whole_lines_that_a_pipe_takes_whole() -> None:
    """Several workers write to the same pipe: a longer write could be torn by another's."""
    lines = [b"x" * size + b"\n" for size in (1000, 1000, 1000, 1000, 96, 5000, 10, 4095, 1)]
    parts = list(whole(lines))
    assert b"".join(parts) == b"".join(lines)
    assert [len(part) for part in parts] == [4004, 97, 5001, 11, 4096, 2]
    assert list(whole([])) == []
