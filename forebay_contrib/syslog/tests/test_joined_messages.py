"""Check that messages whose text goes on are one record, with the columns of the first and every byte of all."""

from __future__ import annotations

import random
import socket
from typing import TYPE_CHECKING, Any

import pytest

from forebay_contrib.syslog.declaration import Syslog
from forebay_contrib.syslog.framing import SyslogFraming
from forebay_contrib.syslog.joined_messages import JoinedSyslogFraming
from forebay_contrib.syslog.tests.test_receiver import connect, port_of, rows, syslog
from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.record_formats.keyed_joins import MOST_OPEN
from receiver_runtime.sources.fields.multiline import Multiline
from receiver_runtime.sources.source import SourceError
from tests.unit.receiver_runtime.rig import rig
from tests.unit.receiver_runtime.support import ManualClock, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from receiver_runtime.receivers.framing import Cut, Piece

LONG = {"start": r"^\S", "timeout": "600s"}
SHORT = {"start": r"^\S", "timeout": "100ms"}


def head(app: str, *, host: str = "h", process: str = "1") -> bytes:
    return f"<13>1 2026-11-30T12:00:00Z {host} {app} {process} - - ".encode()


def joined(**fields: Any) -> JoinedSyslogFraming:  # noqa: ANN401  of Multiline
    multiline = Multiline.model_validate({"start": r"^\S", "timeout": "5s", **fields})
    framing = SyslogFraming(timezone="UTC", max_record_bytes=2**16, now=lambda: 0)
    return JoinedSyslogFraming(framing, multiline, max_record_bytes=2**16, clock=ManualClock())


def piece(data: bytes, peer: str = "192.0.2.1:7") -> Piece:
    splitter = SyslogFraming(timezone="UTC", max_record_bytes=2**16).open()
    found = splitter.take(bytearray(data), len(data)).piece
    assert found is not None
    found.peer = peer
    return found


def messages(cut: Cut) -> list[str]:
    return [] if cut.records is None else cut.records.column("message").to_pylist()


def test_a_record_has_the_columns_of_its_first_message_and_every_byte() -> None:
    framing = joined()
    first, second, third = head("a") + b"failed", head("a") + b" at f", head("a") + b"next"
    cut = framing.cut([piece(first + b"\n" + second + b"\n" + third + b"\n")])
    assert cut.records is not None
    [row] = cut.records.to_pylist()
    assert row["raw"] == first + b"\n" + second
    unjoined = SyslogFraming(timezone="UTC", max_record_bytes=2**16, now=lambda: 0).cut([piece(first + b"\n")])
    assert unjoined.records is not None
    [alone] = unjoined.records.to_pylist()
    assert row == {**alone, "message": "failed\n at f", "raw": row["raw"]}
    assert messages(framing.end()) == ["next"]


def test_each_program_of_a_connection_has_its_own_records() -> None:
    framing = joined()
    lines = [
        head("a") + b"a1",
        head("b") + b"b1",
        head("a", host="other") + b"o1",
        head("a", process="2") + b"p1",
        head("a") + b" a2",
        head("b") + b" b2",
        head("a", process="2") + b" p2",
        head("a", host="other") + b" o2",
    ]
    assert messages(framing.cut([piece(b"\n".join(lines) + b"\n")])) == []
    other = framing.cut([piece(head("a") + b" of another connection\n", peer="192.0.2.1:8")])
    assert messages(other) == []
    assert messages(framing.end(["192.0.2.1:7"])) == ["a1\n a2", "b1\n b2", "o1\n o2", "p1\n p2"]
    assert messages(framing.end()) == [" of another connection"]


@pytest.mark.parametrize("seed", range(6))
def test_lines_without_a_header_belong_to_the_message_before_them_on_their_connection(seed: int) -> None:
    chance = random.Random(seed)
    framing = joined()
    texts: dict[str, list[str]] = {"192.0.2.1:7": [], "192.0.2.1:8": []}
    turns = []
    pieces: list[Piece] = []
    for number in range(40):
        peer = chance.choice(list(texts))
        has_head = chance.random() < 0.4
        if has_head or not texts[peer]:
            # A line without a header at the beginning of a connection belongs to none.
            texts[peer].append(f"m{number}" if has_head else f" {number}")
        else:
            texts[peer][-1] += f"\n {number}"
        app = chance.choice(["a", "b"])
        data = head(app) + b"m%d\n" % number if has_head else b" %d\n" % number
        pieces.append(piece(data, peer))
        if chance.random() < 0.5:
            turns.append(pieces)
            pieces = []
    found: list[str] = []
    for turn in [*turns, *([pieces] if pieces else [])]:
        found += messages(framing.cut(turn))
    found += messages(framing.end())
    assert sorted(found) == sorted(text for connection in texts.values() for text in connection)


def test_a_connection_from_the_same_port_has_a_record_of_its_own() -> None:
    framing = joined()
    framing.cut([piece(head("a") + b"one\n")])
    assert messages(framing.end(["192.0.2.1:7"])) == ["one"]
    framing.cut([piece(b" plain\n")])
    framing.cut([piece(head("a") + b" more\n")])
    assert sorted(messages(framing.end())) == [" more", " plain"]


def test_more_programs_than_may_have_an_open_record_are_stored_all() -> None:
    framing = joined()
    found: list[str] = []
    most = 0
    for begin in range(0, 2 * MOST_OPEN, 1000):
        lines = b"".join(head("a", host=f"h{n}") + b"m%d\n" % n for n in range(begin, begin + 1000))
        found += messages(framing.cut([piece(lines)]))
        most = max(most, begin + 1000 - len(found))
    assert most == MOST_OPEN
    found += messages(framing.end())
    assert found == [f"m{n}" for n in range(2 * MOST_OPEN)]


def test_messages_over_tcp_are_joined(tmp_path: Path) -> None:
    with rig(tmp_path, syslog("tcp", multiline=LONG)) as made:
        port = port_of(made)
        with connect(port) as one, connect(port) as other:
            one.sendall(head("a") + b"failed\n")
            other.sendall(head("a") + b"fine\n")
            one.sendall(b"\tat f\n" + head("a") + b"\tat g\n" + head("a") + b"next\n")
            eventually(lambda: [row["message"] for row in rows(made)] == ["failed\n\tat f\n\tat g"], "a record")
            counted = head("a") + b"\tat h"
            other.sendall(b"%d %s" % (len(counted), counted))
        eventually(lambda: len(rows(made)) == 3, "the records of connections that ended")
        assert sorted(row["message"] for row in rows(made)) == ["failed\n\tat f\n\tat g", "fine\n\tat h", "next"]
        assert made.dead_letters() == []


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_a_record_does_not_wait_longer_than_its_time(tmp_path: Path, transport: str) -> None:
    kind = socket.SOCK_STREAM if transport == "tcp" else socket.SOCK_DGRAM
    with rig(tmp_path, syslog(transport, multiline=SHORT)) as made, socket.socket(type=kind) as sender:
        sender.connect(("127.0.0.1", port_of(made)))
        sender.send(head("a") + b"failed\n")
        sender.send(head("a") + b" at f\n")
        eventually(lambda: [row["message"] for row in rows(made)] == ["failed\n at f"], "the record")
        sender.send(head("a") + b" late\n")
        eventually(lambda: [row["message"] for row in rows(made)] == ["failed\n at f", " late"], "what came later")


def test_a_stop_stores_what_waits(tmp_path: Path) -> None:
    with rig(tmp_path, syslog("udp", multiline=LONG)) as made, socket.socket(type=socket.SOCK_DGRAM) as sender:
        sender.connect(("127.0.0.1", port_of(made)))
        sender.send(head("a") + b"failed")
        sender.send(head("a") + b" at f")
        sender.send(head("b") + b"other")
        sender.send(head("a") + b"next")
        eventually(lambda: len(rows(made)) == 1, "the first record")
        made.stop()
        assert [row["message"] for row in rows(made)] == ["failed\n at f", "other", "next"]


def test_a_pattern_that_only_re2_can_refuse_fails_the_receiver_at_once() -> None:
    with pytest.raises(SourceError, match=r"multiline: .* is no regular expression of RE2"):
        make_receiver(Syslog(listen="127.0.0.1:0", transports=("tcp",), multiline=Multiline(start="(.{900}){900}")))
