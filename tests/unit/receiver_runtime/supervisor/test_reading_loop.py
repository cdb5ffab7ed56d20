"""Check that one thread reads from quiet connections, and that slow work is given to the connection's own thread."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from receiver_runtime.supervisor.reading_loop import ReadingLoop, ReadingLoopClosedError
from tests.unit.receiver_runtime.rig import in_thread
from tests.unit.receiver_runtime.support import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def loop() -> Iterator[ReadingLoop]:
    made = ReadingLoop()
    made.start()
    try:
        yield made
    finally:
        made.close()


class Reader:
    """Keeps what it reads; returns `!` and the end of the connection to the connection's thread, and raises at `?`."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.read: list[bytes] = []
        self.threads: set[threading.Thread] = set()

    def __call__(self) -> bytes | None:
        data = self._connection.recv(100)
        self.read.append(data)
        self.threads.add(threading.current_thread())
        if data == b"?":
            raise ConnectionResetError("gone")
        return data if data in (b"!", b"") else None


def _wait(made: ReadingLoop, connection: socket.socket, reader: Reader) -> None:
    reader.read.append(made.wait(connection, reader) + b" back")


def test_one_thread_reads_from_all_until_a_connection_needs_its_own() -> None:
    pairs = [socket.socketpair() for _ in range(30)]
    readers = [Reader(mine) for mine, _ in pairs]
    with loop() as made:
        waiting = [
            in_thread(partial(_wait, made, pair[0], reader)) for reader, pair in zip(readers, pairs, strict=True)
        ]
        for _, theirs in pairs:
            theirs.send(b"a")
        eventually(lambda: all(reader.read == [b"a"] for reader in readers))
        assert all(thread.is_alive() for thread, _ in waiting)
        assert len(set().union(*(reader.threads for reader in readers))) == 1
        pairs[0][1].send(b"!")
        waiting[0][0].join(20)
        assert readers[0].read == [b"a", b"!", b"! back"]
        # From now on, the connection's own thread reads what comes.
        pairs[0][1].send(b"b")
        pairs[1][1].send(b"b")
        eventually(lambda: readers[1].read == [b"a", b"b"])
        assert readers[0].read[-1] == b"! back"
        # The end of a connection is given back too.
        for _, theirs in pairs:
            theirs.close()
        for thread, errors in waiting:
            thread.join(20)
            assert not thread.is_alive()
            assert not errors
    for mine, _ in pairs:
        mine.close()


def test_an_error_of_a_read_is_raised_in_the_connections_own_thread() -> None:
    mine, theirs = socket.socketpair()
    with mine, theirs, loop() as made:
        theirs.send(b"?")
        with pytest.raises(ConnectionResetError, match="gone"):
            made.wait(mine, Reader(mine))


def test_closing_the_loop_ends_waits_and_refuses_later_ones() -> None:
    mine, theirs = socket.socketpair()
    with mine, theirs:
        with loop() as made:
            thread, errors = in_thread(lambda: made.wait(mine, Reader(mine)))
            eventually(lambda: len(made._selector.get_map()) == 2)
        thread.join(20)
        assert [type(error) for error in errors] == [ReadingLoopClosedError]
        with pytest.raises(ReadingLoopClosedError):
            made.wait(mine, Reader(mine))


def test_a_wait_that_begins_while_the_loop_closes_gets_only_the_closed_error() -> None:
    """The loop closes the socket that wakes it: writing to it raised BrokenPipeError in the connection's thread."""
    with ExitStack() as stack:
        pairs = [[stack.enter_context(end) for end in socket.socketpair()] for _ in range(4)]
        for _ in range(100):
            made = ReadingLoop()
            made.start()
            come = [in_thread(partial(_wait, made, mine, Reader(mine))) for mine, _ in pairs]
            made.close()
            for thread, errors in come:
                thread.join(20)
                assert [type(error) for error in errors] == [ReadingLoopClosedError]


def test_a_failing_loop_gives_every_connection_back(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = socket.socketpair()
    with mine, theirs, loop() as made:
        thread, errors = in_thread(lambda: made.wait(mine, Reader(mine)))
        eventually(lambda: len(made._selector.get_map()) == 2)
        monkeypatch.setattr(made, "_register_new", _fail)
        with pytest.raises(ReadingLoopClosedError):
            made.wait(theirs, Reader(theirs))
        thread.join(20)
        assert [type(error) for error in errors] == [ReadingLoopClosedError]


def _fail() -> None:
    raise MemoryError
