"""Test the replay server over real sockets: the lines come once, at the rate, over any number of connections."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from typing import IO, TYPE_CHECKING, Any

import pytest

from forebay.demo import known_answer
from forebay.demo.flights import LineBlock
from forebay.demo.replay_server import ReplayServer, ReplayState
from tests.support.polling import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE = 20.0


def numbered(lines: int, per_block: int = 100) -> Iterator[LineBlock]:
    """Return lines `0`, `1`, … in blocks."""
    for first in range(0, lines, per_block):
        texts = [f"{number}\n".encode() for number in range(first, min(first + per_block, lines))]
        offsets = [0]
        for text in texts:
            offsets.append(offsets[-1] + len(text))
        yield LineBlock(data=memoryview(b"".join(texts)), offsets=tuple(offsets))


def connect(server: ReplayServer) -> socket.socket:
    return socket.create_connection(server.address, timeout=DEADLINE)


def read_to_end(reader: socket.socket) -> bytes:
    received = bytearray()
    while part := reader.recv(1 << 16):
        received += part
    return bytes(received)


def wait_for(server: ReplayServer, state: ReplayState) -> None:
    end = time.monotonic() + DEADLINE
    while server.progress().state is not state:
        assert time.monotonic() < end, f"{server.progress()} never became {state}"
        time.sleep(0.01)


def test_all_lines_come_in_order_and_the_stream_ends() -> None:
    with ReplayServer(numbered(10_000)) as server, connect(server) as reader:
        assert read_to_end(reader).split() == [str(number).encode() for number in range(10_000)]
        wait_for(server, ReplayState.SERVED)
        assert server.progress().lines == 10_000


def test_x01_a_reader_that_reconnects_after_the_end_gets_no_data() -> None:
    with ReplayServer(numbered(500)) as server:
        with connect(server) as reader:
            assert len(read_to_end(reader).split()) == 500
        with connect(server) as again:
            again.settimeout(0.7)
            with pytest.raises(TimeoutError):  # neither data nor an end: the connection stays open
                again.recv(1)
        with connect(server) as third:
            third.settimeout(0.7)
            with pytest.raises(TimeoutError):
                third.recv(1)
            eventually(lambda: server.progress().connections == 3, "the third is taken")
        assert server.progress().lines == 500


def test_x01_the_cursor_is_kept_across_connections() -> None:
    with ReplayServer(numbered(8_000), rate=4_000) as server:
        received: list[bytes] = []
        for _ in range(3):
            with connect(server) as reader:
                part = b""
                while part.count(b"\n") < 200:
                    part += reader.recv(1 << 16)
                # The test reads no more: the other sent lines are lost with the connection, as on any socket.
                received.append(part)
            wait_for(server, ReplayState.WAITING)
        with connect(server) as reader:
            received.append(read_to_end(reader))
        wait_for(server, ReplayState.SERVED)
        assert server.progress().lines == 8_000

    numbers = [int(line) for part in received for line in part.split(b"\n")[:-1]]
    assert numbers == sorted(set(numbers)), "a line came twice, or out of order"
    assert numbers[0] == 0
    assert numbers[-1] == 7_999


def test_the_rate_holds() -> None:
    lines, rate = 2_000, 1_000
    with ReplayServer(numbered(lines), rate=rate) as server:
        start = time.monotonic()
        with connect(server) as reader:
            assert len(read_to_end(reader).split()) == lines
            # The server measures from the connection to the newest line, which is within the time measured here.
            seconds = server.progress().seconds
            measured = time.monotonic() - start
    # It may never be faster than the rate; on a busy machine it may be slower.
    assert lines / rate * 0.95 <= seconds <= measured <= lines / rate * 4


def test_a_second_reader_waits_for_the_first_to_leave() -> None:
    with ReplayServer(numbered(4_000), rate=200) as server:
        first = connect(server)
        assert first.recv(1)
        with connect(server) as second:
            second.settimeout(0.5)
            with pytest.raises(TimeoutError):
                second.recv(1)
            first.close()
            second.settimeout(DEADLINE)
            assert second.recv(1)
        assert server.progress().connections == 2


def test_a_reader_that_reads_nothing_does_not_prevent_a_stop() -> None:
    server = ReplayServer(numbered(2_000_000, per_block=100_000))
    with server, connect(server):
        wait_for(server, ReplayState.SERVING)
        start = time.monotonic()
        server.stop()
        assert time.monotonic() - start < 5
        assert server.progress().state is ReplayState.STOPPED


def test_an_empty_replay_ends_the_stream_at_once() -> None:
    with ReplayServer(numbered(0)) as server, connect(server) as reader:
        assert read_to_end(reader) == b""
        wait_for(server, ReplayState.SERVED)


def read_event(output: IO[bytes]) -> dict[str, Any]:
    line = output.readline()
    assert line, "the replay server ended without a word"
    event: dict[str, Any] = json.loads(line)
    return event


def test_the_process_serves_all_flights_and_ends_with_its_standard_input() -> None:
    command = [sys.executable, "-m", "forebay.demo.replay_server", "--rate", "0", "--port", "0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            listening = read_event(process.stdout)
            assert listening["event"] == "listening"
            with socket.create_connection((listening["host"], listening["port"]), timeout=60) as reader:
                lines = 0
                while part := reader.recv(1 << 20):
                    lines += part.count(b"\n")
                assert lines == known_answer.ROWS
            while (event := read_event(process.stdout)).get("state") != "served":
                assert event["event"] == "progress"
            assert event["lines"] == known_answer.ROWS
            process.stdin.close()
            assert process.wait(timeout=20) == 0
        finally:
            process.kill()


def test_the_process_stops_on_sigterm() -> None:
    command = [sys.executable, "-m", "forebay.demo.replay_server", "--port", "0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert read_event(process.stdout)["event"] == "listening"
            process.terminate()
            assert process.wait(timeout=20) == 0
        finally:
            process.kill()
