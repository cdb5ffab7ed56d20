"""Test the streaming reader's answers to Spark directly, without a JVM."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles, ReadMaxRows

from orchestration.spark.reading import stream_reader
from orchestration.spark.reading.block_reader import BlockPartition
from orchestration.spark.reading.stream_reader import MAX_BLOCKS, MAX_RECORDS, ForebayStreamReader
from tests.support.driver_log.log import Log, make_log
from tracker_store.batches.pipelines import apply_stream
from tracker_store.batches.readers import attach_reader, list_readers, remove_reader
from tracker_store.connection.errors import DriverLogError, DriverLogUnavailableError
from tracker_store.retention.cleanup import clean_up_receiver

if TYPE_CHECKING:
    from collections.abc import Iterator

ALL = ReadAllAvailable()
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def log(connection: sa.Connection) -> Log:
    """Yield a stream with two receivers, of which the first has three blocks of ten records; no pipeline."""
    made = make_log(connection, receivers=2)
    connection.execute(sa.text("UPDATE forebay.pipelines SET removed_at = clock_timestamp()"))
    made.add_at(made.receiver_ids[0], *[BEGIN + timedelta(seconds=n) for n in range(3)])
    return made


@pytest.fixture
def readers(database_url: str) -> Iterator[list[ForebayStreamReader]]:
    """Yield the list of readers; those made with `reader` are stopped at the end."""
    made: list[ForebayStreamReader] = []
    yield made
    for each in made:
        each.stop()


def reader(url: str, made: list[ForebayStreamReader], **options: str) -> ForebayStreamReader:
    needed = {"database_url": url, "block_store": "file:///nowhere", "stream": "lines", "reader": "r"}
    made.append(ForebayStreamReader({**needed, **options}))
    return made[-1]


def test_offsets_are_the_next_sequence_by_receiver(
    log: Log, database_url: str, readers: list[ForebayStreamReader]
) -> None:
    ours = reader(database_url, readers)
    first, second = log.receiver_ids
    start = ours.initialOffset()
    assert start == {"stream": log.stream_id, "receivers": {str(first): 1, str(second): 1}}
    end = ours.latestOffset(start, ALL)
    assert end == {"stream": log.stream_id, "receivers": {str(first): 5, str(second): 1}}
    assert ours.reportLatestOffset() == {"stream": log.stream_id, "receivers": {str(first): 5}}
    [partition] = ours.partitions(start, end)
    assert isinstance(partition, BlockPartition)
    assert len(partition.blocks) == 3
    assert ours.partitions(end, end) == []
    # Spark compares text: if there is nothing new, the result is the offset that came in, whatever its order.
    turned = {"receivers": {str(second): 1, str(first): 5}, "stream": log.stream_id}
    assert ours.latestOffset(turned, ALL) is turned
    ours.commit(end)
    assert list_readers(log.connection)[0].waiting_records == 0
    assert reader(database_url, readers).initialOffset() == end


def test_limits_are_the_options_and_read_all_means_all(
    log: Log, database_url: str, readers: list[ForebayStreamReader]
) -> None:
    assert reader(database_url, readers).getDefaultReadLimit() == ALL
    assert reader(database_url, readers, **{MAX_BLOCKS: "2"}).getDefaultReadLimit() == ReadMaxFiles(2)
    ours = reader(database_url, readers, **{MAX_RECORDS: "10", MAX_BLOCKS: "9"})
    limit = ours.getDefaultReadLimit()
    assert limit == ReadMaxRows(10)
    first = str(log.receiver_ids[0])
    start = ours.initialOffset()
    assert ours.latestOffset(start, limit)["receivers"][first] == 3
    assert ours.latestOffset(start, ALL)["receivers"][first] == 5
    for wrong in ("0", "-1", "some"):
        with pytest.raises(ValueError, match=MAX_BLOCKS):
            reader(database_url, readers, **{MAX_BLOCKS: wrong})


def test_available_now_never_goes_past_the_blocks_at_its_start(
    log: Log, database_url: str, readers: list[ForebayStreamReader]
) -> None:
    ours = reader(database_url, readers)
    start = ours.initialOffset()
    ours.prepareForTriggerAvailableNow()
    log.add_at(log.receiver_ids[0], BEGIN)
    log.add_at(log.receiver_ids[1], BEGIN)
    end = ours.latestOffset(start, ALL)
    assert end["receivers"][str(log.receiver_ids[0])] == 5
    assert ours.latestOffset(end, ALL) is end


def test_tasks_get_neither_the_password_nor_a_connection(
    log: Log, database_url: str, readers: list[ForebayStreamReader]
) -> None:
    ours = reader(database_url, readers)
    ours.initialOffset()
    travelled = pickle.dumps(ours)
    assert database_url.encode() not in travelled
    assert pickle.loads(travelled)._engine is None


def test_a_briefly_unavailable_driver_log_is_waited_for(
    log: Log, database_url: str, readers: list[ForebayStreamReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = reader(database_url, readers)
    asked: list[int] = []

    def answer(_: sa.Connection) -> int:
        asked.append(1)
        if len(asked) < 3:
            raise DriverLogUnavailableError("away")
        return 7

    assert ours._asked(answer) == 7
    monkeypatch.setattr(stream_reader, "RETRY_SECONDS", -1.0)
    asked.clear()
    with pytest.raises(DriverLogUnavailableError, match="away"):
        ours._asked(answer)
    assert len(asked) == 1


def test_removing_a_reader_ends_its_query_which_resumes_at_the_checkpoint(
    log: Log, database_url: str, readers: list[ForebayStreamReader]
) -> None:
    ours = reader(database_url, readers)
    first = str(log.receiver_ids[0])
    start = ours.initialOffset()
    remove_reader(log.connection, "r")
    for ask in (lambda: ours.latestOffset(start, ALL), lambda: ours.commit(start)):
        with pytest.raises(DriverLogError, match="Start the query again"):
            ask()
    checkpoint = {"stream": log.stream_id, "receivers": {**start["receivers"], first: 3}}
    again = reader(database_url, readers)
    assert again.latestOffset(checkpoint, ALL)["receivers"][first] == 5
    assert attach_reader(log.connection, name="r", stream="lines").positions[log.receiver_ids[0]] == 3


def test_a_checkpoint_whose_blocks_are_gone_is_refused_at_the_restart(
    log: Log, database_url: str, readers: list[ForebayStreamReader]
) -> None:
    ours = reader(database_url, readers)
    start = ours.initialOffset()
    ours.commit(ours.latestOffset(start, ALL))
    cleaned = clean_up_receiver(
        log.connection, receiver_id=log.receiver_ids[0], threshold=datetime.now(UTC), max_rows=100
    )
    assert cleaned.blocks > 0
    again = reader(database_url, readers)
    for ask in (lambda: again.latestOffset(start, ALL), lambda: again.partitions(start, ours.latestOffset(start, ALL))):
        with pytest.raises(DriverLogError, match=r"cleaned up.*new checkpoint location"):
            ask()


def test_a_checkpoint_of_an_earlier_stream_of_the_same_name_is_refused(
    log: Log, database_url: str, readers: list[ForebayStreamReader]
) -> None:
    start = reader(database_url, readers).initialOffset()
    log.connection.execute(sa.text("UPDATE forebay.streams SET removed_at = clock_timestamp()"))
    remove_reader(log.connection, "r")
    apply_stream(log.connection, name="lines", declaration={"source": {}, "settings": {}}, receivers=1)
    with pytest.raises(DriverLogError, match="of another stream than 'lines'"):
        reader(database_url, readers).latestOffset(start, ALL)
