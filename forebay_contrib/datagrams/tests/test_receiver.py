"""Check a receiver of datagrams with a real supervisor, files and sockets."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.sources.source_registry import parse_source
from tests.unit.receiver_runtime.rig import Rig, rig
from tests.unit.receiver_runtime.support import eventually, reaches

if TYPE_CHECKING:
    from pathlib import Path

    from receiver_runtime.supervisor.receiver import Receiver


def datagrams(**fields: object) -> Receiver:
    return make_receiver(parse_source({"kind": "datagrams", "listen": "127.0.0.1:0", **fields}))


def sender_to(made: Rig) -> socket.socket:
    eventually(lambda: made.reporter.reasons, "listening")
    connected = socket.socket(type=socket.SOCK_DGRAM)
    connected.connect(("127.0.0.1", int(made.reporter.reasons[-1].rpartition(":")[2])))
    return connected


def rows(made: Rig) -> list[dict[str, Any]]:
    found = []
    for item in made.log.chain(1):
        handle = item.handle
        path = made.rows.paths[handle.segment_id]
        for batch in made.store.read_batches(path, handle.offset, handle.length, handle.crc32c):
            found += batch.to_pylist()
    return found


def count(made: Rig) -> int:
    return sum(block.records for block in made.log.chain(1))


SENT = [b"one", b"two\nthree\r\n", b"", b"\n\n", b"caf\xc3\xa9\n\xff\nlast", b"x" * 65_000]


def test_each_line_of_a_datagram_is_a_row(tmp_path: Path) -> None:
    with rig(tmp_path, datagrams()) as made, sender_to(made) as sender:
        for datagram in SENT:
            sender.send(datagram)
        eventually(reaches(lambda: count(made), 6))
        assert made.stop().drained
        found = rows(made)
        assert made.dead_letters() == [("invalid_encoding", 0, b"\xff")]
    assert [row["value"] for row in found] == ["one", "two", "three", "café", "last", "x" * 65_000]
    assert {row["sender"] for row in found} == {"127.0.0.1"}


def test_each_datagram_is_a_row_as_it_is(tmp_path: Path) -> None:
    with rig(tmp_path, datagrams(cut="whole")) as made, sender_to(made) as sender:
        for datagram in SENT:
            sender.send(datagram)
        eventually(reaches(lambda: count(made), 4))
        assert [row["value"] for row in rows(made)] == ["one", "two\nthree\r\n", "\n\n", "x" * 65_000]
        assert made.dead_letters() == [("invalid_encoding", 0, SENT[4])]


def test_an_address_is_checked_where_it_is_declared() -> None:
    with pytest.raises(ValueError, match="no address to listen on"):
        datagrams(listen="nowhere")
