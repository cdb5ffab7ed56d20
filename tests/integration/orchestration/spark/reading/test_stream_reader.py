"""Test `spark.readStream.format("forebay")` on a real local Spark: each record once, by the checkpoint (note 32)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from forebay import Stream
from forebay.sources import SocketText
from orchestration.declarations.settings import Settings
from tests.support.driver_log.stored_lines import LineReceiver
from tests.support.polling import eventually
from tracker_store.batches.pipelines import apply_stream
from tracker_store.batches.readers import attach_reader, list_readers, move_reader, remove_reader
from tracker_store.connection.engine import connect
from tracker_store.receivers.receivers import placements

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import sqlalchemy as sa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# A query takes long to start on a busy machine; on a quiet one all of these take half a minute.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]
_SECONDS = 150

TRIGGER = "500 milliseconds"


@dataclass
class System:
    """A stream `lines` with one receiver, and queries that read it into files, one per batch."""

    connection: sa.Connection
    settings: Settings
    session: SparkSession
    lines: LineReceiver
    directory: Path

    def read(self, **options: object) -> DataFrame:
        reader = self.session.readStream.format("forebay").option("database_url", self.settings.require_database_url())
        reader = reader.option("block_store", self.settings.block_store_roots).option("stream", "lines")
        for name, value in {"reader": "counting", **options}.items():
            if value is not None:
                reader = reader.option(name, str(value))
        return reader.load()

    def start(self, frame: DataFrame, *, checkpoint: str = "checkpoint", available_now: bool = False) -> StreamingQuery:
        output = self.directory / "output"
        output.mkdir(exist_ok=True)

        def keep(batch: DataFrame, number: int) -> None:
            rows = [list(row) for row in batch.collect()]
            written = output / f"{checkpoint}-{number:06}"
            written.write_text(json.dumps(rows), encoding="utf-8")
            # The same file again if a batch is retried.
            written.rename(written.with_suffix(".json"))

        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(self.directory / checkpoint))
        if available_now:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=TRIGGER).start()

    def batches(self) -> list[list[Any]]:
        return [json.loads(path.read_text()) for path in sorted((self.directory / "output").glob("*.json"))]

    def values(self) -> list[str]:
        return [row[0] for rows in self.batches() for row in rows]


@pytest.fixture
def system(engine: sa.Engine, database_url: str, tmp_path: Path, session: SparkSession) -> Iterator[System]:
    settings = Settings(home=tmp_path / "home", database_url=database_url)
    with connect(engine) as connection:
        stream = Stream("lines", SocketText(host="127.0.0.1", port=9999))
        apply_stream(connection, name="lines", declaration=stream.declaration(), receivers=1)
        [placement] = placements(connection)
        lines = LineReceiver(connection, settings.block_store_roots, placement.receiver_id)
        yield System(connection, settings, session, lines, tmp_path)
        lines.close()
        for query in session.streams.active:
            query.stop()


def test_each_record_comes_out_once_over_stops_and_starts(system: System) -> None:
    wanted: list[str] = []

    def receive(count: int) -> None:
        for _ in range(count):
            block = [f"{len(wanted) + n}" for n in range(10)]
            wanted.extend(block)
            system.lines.receive(block)

    receive(3)
    query = system.start(system.read())
    eventually(lambda: len(system.values()) == 30, "the first blocks", seconds=_SECONDS)
    receive(3)
    eventually(lambda: len(system.values()) == 60, "what came meanwhile", seconds=_SECONDS)
    query.stop()
    receive(3)
    query = system.start(system.read())
    eventually(lambda: len(system.values()) >= 90, "what came while it was stopped", seconds=_SECONDS)
    receive(1)
    eventually(lambda: len(system.values()) >= 100, "what came after that", seconds=_SECONDS)
    assert system.values() == wanted
    # The cursor follows one batch behind: blocks that the query may still request stay.
    [lag] = list_readers(system.connection)
    assert (lag.reader, lag.stream) == ("counting", "lines")
    assert lag.waiting_records < 100
    # Nothing waits, so no batch is made.
    number = len(system.batches())

    def triggered() -> str:
        progress = query.lastProgress
        return "" if progress is None else progress.timestamp

    before = triggered()
    eventually(lambda: triggered() != before, "another trigger", seconds=_SECONDS)
    assert len(system.batches()) == number


@pytest.mark.cluster
def test_a_trigger_takes_no_more_than_its_limit(system: System) -> None:
    for n in range(4):
        system.lines.receive([f"{n}a", f"{n}b"])
    query = system.start(system.read(maxBlocksPerTrigger=1), checkpoint="blocks")
    eventually(lambda: len(system.values()) >= 8, "all blocks", seconds=_SECONDS)
    query.stop()
    assert [len(rows) for rows in system.batches()] == [2, 2, 2, 2]


def test_available_now_ends_with_the_blocks_at_its_start(system: System) -> None:
    for n in range(5):
        system.lines.receive([str(n)])
    query = system.start(system.read(maxRecordsPerTrigger=2), available_now=True)
    assert query.awaitTermination(_SECONDS)
    assert system.values() == ["0", "1", "2", "3", "4"]
    assert len(system.batches()) > 1


@pytest.mark.cluster
def test_latest_begins_with_new_records(system: System) -> None:
    system.lines.receive(["before"])
    system.start(system.read(start="latest"))
    eventually(lambda: list_readers(system.connection), "the reader", seconds=_SECONDS)
    system.lines.receive(["after"])
    eventually(lambda: "after" in system.values(), "what came", seconds=_SECONDS)
    assert system.values() == ["after"]


def test_an_old_checkpoint_whose_blocks_are_gone_is_a_clear_error(system: System) -> None:
    for n in range(4):
        system.lines.receive([str(n)])
    query = system.start(system.read(maxBlocksPerTrigger=2), available_now=True)
    assert query.awaitTermination(_SECONDS)
    remove_reader(system.connection, "counting")
    for n in range(4, 8):
        system.lines.receive([str(n)])
    reader = attach_reader(system.connection, name="counting", stream="lines", start="latest")
    from datetime import UTC, datetime  # noqa: PLC0415

    from tracker_store.retention.cleanup import clean_up_receiver  # noqa: PLC0415

    [receiver_id] = reader.positions
    move_reader(system.connection, reader.reader_id, reader.positions)
    cleaned = clean_up_receiver(system.connection, receiver_id=receiver_id, threshold=datetime.now(UTC), max_rows=1000)
    assert cleaned.blocks > 5
    query = system.start(system.read(), available_now=True)
    with pytest.raises(Exception, match=r"cleaned up.*new checkpoint location"):
        query.awaitTermination(_SECONDS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"start": "now"}, "start='now'.*earliest, latest", marks=pytest.mark.cluster),
        pytest.param({"maxRecordsPerTrigger": 0}, "maxrecordspertrigger='0'.*whole number", marks=pytest.mark.cluster),
        ({"reader": None}, r"needs the option\(s\) pipeline, batch_time.*spark.readStream, 'reader'"),
        ({"stream": "nothing"}, "stream 'nothing' is not in the driver log.*forebay apply"),
    ],
)
def test_a_wrong_option_is_named(system: System, options: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):  # noqa: PT012  Spark may report it at either call
        query = system.start(system.read(**options), checkpoint="wrong", available_now=True)
        query.awaitTermination(_SECONDS)
