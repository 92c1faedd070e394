from __future__ import annotations

import io
import os
import threading
import time

from gateway.observability.writer import LineWriter


def dropped(count: int) -> bytes:
    return b"dropped %d\n" % count


def read_all(descriptor: int) -> bytes:
    parts = []
    while part := os.read(descriptor, 65536):
        parts.append(part)
    return b"".join(parts)


def test_lines_arrive_in_order_and_close_writes_the_rest() -> None:
    stream = io.BytesIO()
    writer = LineWriter(stream, dropped)
    expected = [b"line %d\n" % number for number in range(500)]
    for line in expected:
        assert writer.write(line) == len(line)
        writer.flush()
    writer.close()
    assert stream.getvalue() == b"".join(expected)


def test_a_line_arrives_without_a_close() -> None:
    reader, writing = os.pipe()
    with os.fdopen(writing, "wb", buffering=0) as stream:
        writer = LineWriter(stream, dropped)
        writer.write(b"now\n")
        assert os.read(reader, 100) == b"now\n"
        writer.close()
    os.close(reader)


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
