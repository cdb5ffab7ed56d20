"""Check that lines of a connection that belong together are one record, over real sockets too."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.receivers.framing import Piece
from receiver_runtime.receivers.lines import LineFraming
from receiver_runtime.receivers.sockets.gathered_records import GatheredRecords
from receiver_runtime.receivers.sockets.joined_text import JoinedTextFraming
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from receiver_runtime.sources.fields.multiline import Multiline
from receiver_runtime.sources.source import SourceError
from tests.support.searches import examples
from tests.unit.receiver_runtime.receivers.sockets.test_client import accept
from tests.unit.receiver_runtime.receivers.sockets.test_listener import connect, port_of
from tests.unit.receiver_runtime.rig import rig
from tests.unit.receiver_runtime.support import ManualClock, eventually

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from receiver_runtime.block_path.block_handler import DeadLetter

MOST = 12
START = Multiline(start="^b", max_lines=3, timeout="5s")
LONG = Multiline(start="^b", timeout="600s")
SHORT = Multiline(start="^b", timeout="100ms")


class Kept:
    """Stands for a receiver: keeps what is stored."""

    def __init__(self) -> None:
        self.values: list[str] = []
        self.letters: list[bytes] = []

    def store_buffered(self, records: pa.RecordBatch) -> None:
        assert records.num_rows
        self.values += records.column(0).to_pylist()

    def store_dead_letters(self, letters: list[DeadLetter]) -> None:
        self.letters += [letter.data for letter in letters]


def model(data: bytes) -> list[str]:
    """Return the records of one connection that its sender ended."""
    records: list[str] = []
    lines = 0
    for raw in data.removesuffix(b"\n").split(b"\n") if data else []:
        text = raw.decode("utf-8", "replace")
        if "\N{REPLACEMENT CHARACTER}" in text or len(raw) > MOST:
            lines = 0
            continue
        joined = f"{records[-1]}\n{text}" if records else ""
        if lines and not re.search("^b", text) and lines < 3 and len(joined.encode()) <= MOST:
            records[-1] = joined
            lines += 1
        else:
            records.append(text)
            lines = 1
    return records


_LINE = st.sampled_from([b"b", b" a", b"", b"bb", b" \xff", b"b" * (MOST + 1), b"c" * (MOST + 30), b" a\xcc\x81"])


@settings(max_examples=examples(100))
@given(
    streams=st.lists(st.tuples(st.lists(_LINE, max_size=8), st.booleans()), min_size=1, max_size=3),
    reads=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 20), st.booleans()), max_size=30),
)
def test_each_connection_has_its_records_however_it_is_read(
    streams: list[tuple[list[bytes], bool]], reads: list[tuple[int, int, bool]]
) -> None:
    kept = Kept()
    framing = JoinedTextFraming(
        LineFraming(max_record_bytes=MOST), START, max_record_bytes=MOST, most_connections=5, clock=ManualClock()
    )
    gathered = GatheredRecords(kept, framing)  # type: ignore[arg-type]
    found: list[list[str]] = []
    data = [b"\n".join([b"b%d" % number, *lines]) + b"\n" * ends for number, (lines, ends) in enumerate(streams)]
    left = [bytearray(stream) for stream in data]
    splitters = [framing.open() for _ in data]
    # A connection is read once in a turn.
    turn: set[int] = set()
    for at, size, is_turn in reads:
        if is_turn or at in turn:
            gathered.hand_on()
            turn.clear()
        if at < len(data) and left[at]:
            piece = left[at][:size]
            del left[at][:size]
            gathered.add(splitters[at].take(piece, len(piece)), f"p:{at}", "p")
            turn.add(at)
    gathered.hand_on()
    for at, rest in enumerate(left):
        if rest:
            gathered.add(splitters[at].take(rest, len(rest)), f"p:{at}", "p")
        gathered.end(splitters[at].finish(clean=True), f"p:{at}", "p")
    gathered.hand_on()
    assert framing.until_overdue() is None
    found = [model(stream) for stream in data]
    assert sorted(kept.values) == sorted(value for values in found for value in values)


def test_what_is_put_aside_ends_only_the_record_of_its_connection() -> None:
    framing = JoinedTextFraming(LineFraming(max_record_bytes=MOST), START, max_record_bytes=MOST, most_connections=5)
    cut = framing.cut([Piece(b"b1\n\xff\n", peer="x"), Piece(b"b2\n", peer="y")])
    assert cut.records is not None
    assert cut.records.column(0).to_pylist() == ["b1"]
    cut = framing.cut([Piece(b" m\n", peer="x"), Piece(b" m\n\xff\n m\n", peer="y")])
    assert cut.records is not None
    assert cut.records.column(0).to_pylist() == ["b2\n m"]
    assert len(cut.dead_letters) == 1


def test_what_is_put_aside_also_ends_the_record_before_a_last_line_without_an_end() -> None:
    framing = JoinedTextFraming(LineFraming(max_record_bytes=MOST), START, max_record_bytes=MOST, most_connections=5)
    cut = framing.cut([Piece(b"b1\n\xff\n", peer="x"), Piece(b"b2\n", peer="y"), Piece(b" m", peer="x", is_last=True)])
    ended = framing.end()
    assert cut.records is not None
    assert ended.records is not None
    assert cut.records.column(0).to_pylist() == ["b1", " m"]
    assert ended.records.column(0).to_pylist() == ["b2"]


def test_lines_of_a_connection_that_listens_are_joined_and_end_with_it(tmp_path: Path) -> None:
    receiver = make_receiver(SocketText(listen="127.0.0.1:0", multiline=LONG))
    with rig(tmp_path, receiver) as made:
        port = port_of(made)
        with connect(port) as one, connect(port) as other:
            one.sendall(b"b one\n mo")
            other.sendall(b"b other\n")
            one.sendall(b"re\nb two\n")
            eventually(lambda: made.values() == ["b one\n more"], "the first record")
            other.sendall(b" of other\n")
        eventually(lambda: sorted(made.values()) == ["b one\n more", "b other\n of other", "b two"], "all records")
        assert made.dead_letters() == []


def test_a_record_does_not_wait_longer_than_its_time(tmp_path: Path) -> None:
    receiver = make_receiver(SocketText(listen="127.0.0.1:0", multiline=SHORT))
    with rig(tmp_path, receiver) as made, connect(port_of(made)) as sender:
        sender.sendall(b"b one\n more\n")
        eventually(lambda: made.values() == ["b one\n more"], "the record, while its connection is open")
        sender.sendall(b" late\n")
        eventually(lambda: made.values() == ["b one\n more", " late"], "a line that came later")


def test_a_stop_stores_what_waits(tmp_path: Path) -> None:
    receiver = make_receiver(SocketText(listen="127.0.0.1:0", multiline=LONG))
    with rig(tmp_path, receiver) as made, connect(port_of(made)) as sender:
        sender.sendall(b"b one\n more\nb two\n more\n")
        eventually(lambda: made.values() == ["b one\n more"], "the first record")
        made.stop()
        assert made.values() == ["b one\n more", "b two\n more"]


@pytest.mark.parametrize("multiline", [LONG, SHORT])
def test_a_connection_to_a_server_has_its_records(tmp_path: Path, multiline: Multiline) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        source = SocketText(host="127.0.0.1", port=server.getsockname()[1], multiline=multiline)
        with rig(tmp_path, make_receiver(source)) as made, accept(server) as connection:
            connection.sendall(b"b one\n more\n")
            if multiline is SHORT:
                eventually(lambda: made.values() == ["b one\n more"], "the record, while its connection is open")
            connection.sendall(b"b two\n")
            connection.shutdown(socket.SHUT_WR)
            eventually(lambda: made.values() == ["b one\n more", "b two"], "both records")


def test_a_pattern_that_only_re2_can_refuse_fails_the_receiver_at_once() -> None:
    source = SocketText(listen="127.0.0.1:0", multiline=Multiline(start="(.{900}){900}"))
    with pytest.raises(SourceError, match=r"multiline: .* is no regular expression of RE2"):
        make_receiver(source)
