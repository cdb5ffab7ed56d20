"""Test what records of each kind of source become in a typed stream: from bytes to the columns of registered blocks."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from forebay import Stream
from forebay.cli.checks.findings import Health
from forebay.cli.checks.source_checks import check_declaration
from orchestration.spark.reading.batch_reader import declared_columns
from receiver_runtime.block_store.frames.columns import arrow_schema
from receiver_runtime.process.receiver_preparation import prepare_receiver
from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.receivers.custom.declaration import CustomSource
from receiver_runtime.receivers.files.declaration import FileLines
from receiver_runtime.receivers.files.receiver import FileLinesReceiver
from receiver_runtime.receivers.kafka.declaration import Kafka
from receiver_runtime.receivers.keyed_hand_over import KeyedHandOver
from receiver_runtime.receivers.linked_hand_over import LinkedHandOver
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from receiver_runtime.record_formats.json_reader import JsonReader
from receiver_runtime.record_formats.typed_rows import TypedRows
from receiver_runtime.sources.records.json_records import Json
from receiver_runtime.sources.source import SourceError
from tests.unit.receiver_runtime.memory_positions import MemoryPositions
from tests.unit.receiver_runtime.rig import HandReceiver, Rig, batch, rig, running
from tests.unit.receiver_runtime.support import MemoryBlockLog, eventually
from tracker_store.blocks.blocks import ORIGIN, OffsetLink, Position
from tracker_store.blocks.source_positions import Peer
from tracker_store.schema.states import LinkKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from receiver_runtime.record_formats.record_reader import Parsed
    from receiver_runtime.sources.source import Source

RECORDS = Json("item STRING, pieces BIGINT NOT NULL")


def typed(source: type[Source], *, raw: bool = False) -> TypedRows:
    records = RECORDS.model_copy(update={"raw": raw})
    return TypedRows(records, arrow_schema(source.columns), source.record_column)


def rows(made: Rig) -> list[dict[str, Any]]:
    """Return the rows of the registered blocks."""
    found: list[dict[str, Any]] = []
    for handle in (item.handle for item in made.log.chain(1)):
        path = made.rows.paths[handle.segment_id]
        for one in made.store.read_batches(path, handle.offset, handle.length, handle.crc32c):
            found += one.to_pylist()
    return found


class KafkaRows(HandReceiver):
    columns = Kafka.columns


def test_kafka_records_are_columns_beside_their_places_and_tombstones_are_rows(tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka")
    from confluent_kafka import TIMESTAMP_CREATE_TIME, Message  # noqa: PLC0415  an extra

    from receiver_runtime.receivers.kafka.records import records_of  # noqa: PLC0415  an extra

    values = [b'{"item": "tea", "pieces": 2}', None, b'{"item": "cup"}', b"", b'{"pieces": 3}', None]
    [read], _ = records_of(
        [
            Message(topic="t", partition=1, offset=n, key=b"k%d" % n, value=value, timestamp=(TIMESTAMP_CREATE_TIME, 0))
            for n, value in enumerate(values)
        ]
    )
    receiver = KafkaRows()
    with rig(tmp_path, receiver, row_check=typed(Kafka)) as made:
        registered: list[OffsetLink] = []
        hand_over = LinkedHandOver(receiver, registered.extend)
        origin = OffsetLink("kafka", "t/1", 0, ORIGIN, 0, LinkKind.ORIGIN)
        links = [origin, OffsetLink("kafka", "t/1", 0, 0, len(values))]
        assert hand_over.push(read.batch, links)
        hand_over.settle()
        assert registered == links
        found = rows(made)
        assert set(made.dead_letters()) == {("does_not_fit", 0, b'{"item": "cup"}'), ("unparsable", 0, b"")}
    assert list(found[0]) == ["item", "pieces", "_key", "_topic", "_partition", "_offset", "_timestamp", "_headers"]
    # Offsets 2 and 3 do not fit; a tombstone lacks no required column.
    assert [(row["item"], row["pieces"], row["_key"], row["_offset"]) for row in found] == [
        ("tea", 2, b"k0", 0),
        (None, None, b"k1", 1),
        (None, 3, b"k4", 4),
        (None, None, b"k5", 5),
    ]


def test_lines_of_a_socket_are_columns(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        receiver = make_receiver(SocketText(host="127.0.0.1", port=server.getsockname()[1]))
        with rig(tmp_path, receiver, row_check=typed(SocketText, raw=True)) as made:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b'{"item": "tea", "pieces": 2}\nno json\n{"item": "caf\xc3\xa9", "pieces": 3}\n')
                eventually(lambda: len(rows(made)) == 2 and made.dead_letters(), "the block and the dead letter")
            assert rows(made) == [
                {"item": "tea", "pieces": 2, "_raw": '{"item": "tea", "pieces": 2}'},
                {"item": "café", "pieces": 3, "_raw": '{"item": "café", "pieces": 3}'},
            ]
            assert made.dead_letters() == [("unparsable", 0, b"no json")]


class FilePositions(MemoryPositions):
    """Positions of files that no other receiver shares."""

    def all_of(self, source: str) -> Mapping[str, Position]:
        del source
        found = {partition: Position(0, offset) for partition, offset in self.origins.items()}
        return found | {link.partition: Position(link.generation, link.to_offset) for link in self.links()}

    def peers(self) -> Sequence[Peer]:
        return [Peer(1, 1, "here", 0)]


def test_lines_of_a_file_are_columns_beside_their_places(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    first = '{"item": "tea", "pieces": 2}\n'
    (tmp_path / "in/a.txt").write_text(first + '{"pieces": "x"}\n{"item": "cup", "pieces": 3}\n')
    log = MemoryBlockLog()
    receiver = FileLinesReceiver(FileLines(path=str(tmp_path / "in"), min_age=0))
    with running(
        tmp_path / "store", receiver, row_check=typed(FileLines), log=log, positions=FilePositions(log)
    ) as made:
        eventually(lambda: len(rows(made)) == 2, "the lines")
        found, letters = rows(made), made.dead_letters()
    assert [(row["item"], row["pieces"], row["_offset"]) for row in found] == [
        ("tea", 2, 0),
        ("cup", 3, len(first) + len('{"pieces": "x"}\n')),
    ]
    assert found[0]["_path"] == str(tmp_path / "in/a.txt")
    assert letters == [("does_not_fit", 0, b'{"pieces": "x"}')]


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many records were parsed at once, each time."""
    found: list[int] = []
    read = JsonReader.read

    def noting(reader: JsonReader, values: pa.BinaryArray) -> Parsed:
        found.append(len(values))
        return read(reader, values)

    monkeypatch.setattr(JsonReader, "read", noting)
    return found


def test_small_chunks_of_one_block_are_parsed_together_and_once(tmp_path: Path, parsed: list[int]) -> None:
    receiver = HandReceiver()
    with rig(tmp_path, receiver, row_check=typed(SocketText), block_interval="1h") as made:
        for number in range(300):
            receiver.store_buffered(batch(f'{{"pieces": {number}}}'))
        receiver.store_buffered(batch('{"pieces": "x"}'))
        assert made.stop().drained
        assert [row["pieces"] for row in rows(made)] == list(range(300))
        assert made.dead_letters() == [("does_not_fit", 0, b'{"pieces": "x"}')]
    assert parsed == [301]


def test_small_requests_share_a_parse(tmp_path: Path, parsed: list[int]) -> None:
    receiver = HandReceiver()
    log = MemoryBlockLog()
    with rig(tmp_path, receiver, row_check=typed(SocketText), log=log, block_interval="1s") as made:
        hand_over = KeyedHandOver(receiver.supervisor)
        futures = [hand_over.submit(batch(f'{{"pieces": {number}}}'), None) for number in range(300)]
        assert [future.result(30).added for future in futures] == [1] * 300
        hand_over.close()
        assert [row["pieces"] for row in rows(made)] == list(range(300))
    assert sum(parsed) == 300
    # The first ones are not kept waiting, and a slow machine makes more blocks than the six that are due.
    assert len(parsed) < 100


class OwnRows(HandReceiver):
    """A class of a user's own, which names its record."""

    columns = (("line", "string"), ("host", "string"))
    record_column = "line"


class Counts(HandReceiver):
    columns = (("count", "int64"),)
    record_column = "count"


def test_a_class_of_a_users_own_names_the_column_that_is_parsed(tmp_path: Path) -> None:
    own = CustomSource(receiver=OwnRows)
    assert declared_columns(own, "s", RECORDS) == (*RECORDS.columns, ("_host", "string"))
    receiver = OwnRows()
    check = TypedRows(RECORDS, receiver.record_schema, receiver.record_column)
    with rig(tmp_path, receiver, row_check=check, block_interval="1h") as made:
        receiver.store_buffered(pa.record_batch({"line": ['{"pieces": 1}'], "host": ["a"]}))
        assert made.stop().drained
        assert rows(made) == [{"item": None, "pieces": 1, "_host": "a"}]


@pytest.mark.parametrize(("receiver", "said"), [(HandReceiver, "record_column"), (Counts, "count' is int64")])
def test_a_class_whose_record_can_not_be_parsed_is_refused_before_it_begins(
    receiver: type[HandReceiver], said: str
) -> None:
    with pytest.raises(SourceError, match=said):
        prepare_receiver(
            CustomSource(receiver=receiver), RECORDS, receiver_id=1, stream_id=1, driver_log=cast("Any", None)
        )


def test_a_class_that_names_no_record_is_found_before_it_is_applied() -> None:
    [finding] = check_declaration(Stream("s", CustomSource(receiver=HandReceiver), records=RECORDS))
    assert (finding.health, "names no column to parse" in finding.found) == (Health.FAILED, True)
    assert list(check_declaration(Stream("s", CustomSource(receiver=OwnRows), records=RECORDS))) == []
    with pytest.raises(SourceError, match="record_column"):
        declared_columns(CustomSource(receiver=HandReceiver), "s", RECORDS)
