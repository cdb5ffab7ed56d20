"""Run real receiver processes on a real driver log, with a source that numbers its lines."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forebay.testing.receiver_processes import DEADLINE_SECONDS
from receiver_runtime.block_store.frames.encryption import BlockKeys
from receiver_runtime.block_store.frames.reading import letters_of
from receiver_runtime.block_store.stores.stores import open_block_store
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from receiver_runtime.sources.fields.secret import Secret
from tests.support.receivers.forked_receiver import ForkedReceivers
from tracker_store.batches.pipelines import apply_stream
from tracker_store.connection.engine import connect, create_engine
from tracker_store.receivers.receivers import placements, receiver_events

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from receiver_runtime.block_store.stores.interface import BlockStore
    from tracker_store.schema.states import ReceiverEventKind


class NumberedSource:
    """Send numbered lines at a steady rate to any client; each number is sent once, whichever client is connected.

    A line that was sent into a connection that then broke is not sent again, because a TCP sender does not notice.
    """

    def __init__(self, *, pause: float = 0.001) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.sent = 0
        self.sending = threading.Event()
        self.sending.set()
        # Held while a line is sent.
        self._turn = threading.Lock()
        self._pause = pause
        self._closed = False
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def pause(self) -> None:
        """Keep the connection and send nothing: after the return `sent` does not change until `sending` is set."""
        with self._turn:
            self.sending.clear()

    def close(self) -> None:
        self._closed = True
        self.sending.set()
        # A connection wakes a listener that another thread waits on; closing the listener does not.
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        self._thread.join(20)
        self._listener.close()

    def _serve(self) -> None:
        while not self._closed:
            connection, _ = self._listener.accept()
            with connection, contextlib.suppress(OSError):
                while not self._closed:
                    self.sending.wait(60)
                    self._send(connection)
                    time.sleep(self._pause)

    def _send(self, connection: socket.socket) -> None:
        with self._turn:
            if self.sending.is_set():
                connection.sendall(b"%d\n" % self.sent)
                self.sent += 1


@dataclass
class ReceiverRig(ForkedReceivers):
    """One declared receiver, the blocks it registered, and the processes started for it."""

    receiver_id: int
    #: The value of FOREBAY_BLOCK_STORE; empty: a directory below the root.
    roots: str = ""
    #: References to the keys of encrypted blocks; the first one encrypts.
    block_keys: tuple[str, ...] = ()

    @property
    def keys(self) -> BlockKeys:
        return BlockKeys([Secret(text) for text in self.block_keys])

    @property
    def block_store(self) -> str:
        return self.roots or str(self.root / "blocks")

    @property
    def store(self) -> BlockStore:
        return open_block_store(self.block_store, keys=self.keys)

    @classmethod
    def make(cls, database_url: str, root: Path, source: dict[str, Any], **settings: object) -> ReceiverRig:
        engine = create_engine(database_url, application_name="tests")
        with connect(engine) as connection:
            apply_stream(connection, name="lines", declaration={"source": source, "settings": settings}, receivers=1)
            [placement] = placements(connection)
        made = cls(database_url, root, engine, placement.receiver_id)
        made.assign(1)
        return made

    @classmethod
    def on_socket(cls, database_url: str, root: Path, port: int, **settings: object) -> ReceiverRig:
        source = SocketText(host="127.0.0.1", port=port).model_dump(mode="json")
        return cls.make(database_url, root, source, block_interval="20ms", receiver_restart_delay="50ms", **settings)

    def assign(self, assignment: int) -> None:
        self.place(self.receiver_id, assignment)

    def desire(self, state: str) -> None:
        self.execute("UPDATE forebay.receivers SET desired_state = :s WHERE id = :r", s=state, r=self.receiver_id)

    def start(
        self, assignment: int = 1, *, database_url: str | None = None, first: str = ""
    ) -> subprocess.Popen[bytes]:
        """Start a process; `first` is code that its interpreter runs before (a seam for tests)."""
        return self.spawn(
            self.receiver_id,
            assignment,
            block_store=self.block_store,
            database_url=database_url,
            first=first,
            block_keys=self.block_keys,
        )

    def state(self) -> tuple[str, str]:
        [(state, reason)] = self.execute(
            "SELECT state, reason FROM forebay.receivers WHERE id = :r", r=self.receiver_id
        )
        return state, reason

    def events(self) -> list[ReceiverEventKind]:
        with connect(self.engine) as connection:
            return [kind for kind, _, _ in receiver_events(connection, self.receiver_id)]

    def records(self) -> int:
        [(records,)] = self.execute(
            "SELECT coalesce(max(total_records), 0) FROM forebay.blocks WHERE receiver_id = :r", r=self.receiver_id
        )
        return int(records)

    def has_records(self, least: int) -> bool:
        return self.records() >= least

    def epochs(self) -> list[int]:
        return [
            epoch
            for (epoch,) in self.execute(
                "SELECT epoch FROM forebay.blocks WHERE receiver_id = :r AND segment_id IS NULL ORDER BY sequence",
                r=self.receiver_id,
            )
        ]

    def values(self) -> list[str]:
        """Return the values of all registered blocks in order of sequence; check each block against its row."""
        store = self.store
        rows = self.execute(
            'SELECT b.sequence, b.records, s.path, b."offset", b.length, b.crc32c, b.segment_id FROM forebay.blocks b '
            "LEFT JOIN forebay.log_segments s ON s.id = b.segment_id WHERE b.receiver_id = :r ORDER BY b.sequence",
            r=self.receiver_id,
        )
        assert [row.sequence for row in rows] == list(range(1, len(rows) + 1)), "the sequence has gaps"
        found: list[str] = []
        for row in rows:
            if row.segment_id is None:
                continue
            before = len(found)
            for batch in store.read_batches(row.path, row.offset, row.length, row.crc32c):
                found.extend(batch.column(0).to_pylist())
            assert len(found) - before == row.records
        return found

    def dead_letters(self) -> list[tuple[str, bytes]]:
        store, keys = self.store, self.keys

        def contents(path: str, offset: int, length: int, crc32c: int) -> list[bytes]:
            return letters_of(store.read_frame(path, offset, length, crc32c), path, offset, keys)

        return [
            (row.reason, content)
            for row in self.execute(
                'SELECT d.reason, s.path, d."offset", d.length, d.crc32c FROM forebay.dead_letters d '
                "JOIN forebay.log_segments s ON s.id = d.segment_id ORDER BY d.id"
            )
            for content in contents(row.path, row.offset, row.length, row.crc32c)
        ]

    def segments(self) -> list[tuple[str, str, int | None]]:
        return [tuple(row) for row in self.execute("SELECT path, state, length FROM forebay.log_segments ORDER BY id")]


def exit_code(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process to end and return its exit code."""
    return process.wait(DEADLINE_SECONDS)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
