"""Check what becomes of a result on a real Spark: partitions, parts of a record, topics by row, large results."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from forebay.testing.sinks import attempt, run
from forebay_contrib.kafka import staged_records
from forebay_contrib.kafka.tests.kafka_target import KafkaTarget, counted
from orchestration.declarations.sink import SinkError, TargetUnavailableError
from tests.integration.orchestration.frame_without_spark import words

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from tests.support.brokers.kafka import KafkaBroker

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.mark.core
@pytest.mark.parametrize("at_once", [True, False])
def test_each_row_of_a_large_result_is_a_record_once(
    broker: KafkaBroker, session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, at_once: bool
) -> None:
    target = KafkaTarget(broker.address)
    computed = tmp_path / "computed"
    computed.mkdir()

    def note(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        (computed / uuid.uuid4().hex).touch()
        yield from batches

    if not at_once:
        monkeypatch.setattr(staged_records, "_MOST_AT_ONCE", 0)
    frame = (
        session.range(0, 200_000, 1, 12)
        .selectExpr("id AS n", "uuid() AS word")
        .mapInArrow(note, "n BIGINT, word STRING")
    )
    assert run(target.sink(key="word"), frame, attempt()).rows == 200_000
    assert Counter(row["n"] for row in target.values()) == dict.fromkeys(range(200_000), 1)
    assert len(list(computed.iterdir())) == 12, "a part of the result was computed twice"
    assert not session.sparkContext._jsc.getPersistentRDDs()


def test_rows_say_their_topic_key_headers_and_value(broker: KafkaBroker, session: SparkSession) -> None:
    target = KafkaTarget(broker.address)
    other = f"{target.topic}-other"
    target.make(other)
    frame = session.sql(
        f"SELECT '{target.topic}' AS to, X'01' AS k, CAST(X'FF' AS BINARY) AS body, map('a', 'b') AS more "
        f"UNION ALL SELECT '{other}', NULL, NULL, NULL"
    )
    sink = target.sink(topic=None, topic_column="to", key="k", value="body", headers="more")
    assert run(sink, frame, attempt()).rows == 2
    [one] = target.messages()
    assert (one.key(), one.value(), one.headers()) == (b"\x01", b"\xff", [("a", b"b")])
    [last] = target.messages(other)
    assert (last.key(), last.value(), last.headers()) == (None, None, None)


def test_a_topic_that_is_missing_is_named_and_nothing_is_published(broker: KafkaBroker) -> None:
    target = KafkaTarget(broker.address)
    by_row = target.sink(topic=None, topic_column="word")
    with pytest.raises(TargetUnavailableError, match="there is no topic missing"):
        by_row.write(words((target.topic, 1), ("missing", 2)), attempt())
    with pytest.raises(TargetUnavailableError, match="there is no topic missing"):
        target.sink(topic="missing").write(words(("a", 1)), attempt())
    assert counted(target) == {}


def test_a_record_larger_than_the_topic_takes_is_refused_before_anything_is_published(broker: KafkaBroker) -> None:
    target = KafkaTarget(broker.address)
    small = f"{target.topic}-small"
    target.make(small, 1, **{"max.message.bytes": "2000"})
    with pytest.raises(Exception, match=r"has 2020 bytes, and may have 1488"):
        target.sink(topic=small).write(words(("a", 1), ("x" * 2_000, 2)), attempt())
    assert target.messages(small) == []
    # As many as are more than one batch of records of that size.
    run(target.sink(topic=small), words(*(("x" * 1_000, number) for number in range(50))), attempt())
    assert len(target.messages(small)) == 50


def test_what_the_brokers_refuse_later_leaves_nothing(broker: KafkaBroker) -> None:
    target = KafkaTarget(broker.address)
    small = f"{target.topic}-small"
    target.make(small, 1, **{"max.message.bytes": "2000"})
    sink = target.sink(topic=None, topic_column="word")
    rows = [(small, number) for number in range(2_000)]
    with pytest.raises(SinkError, match=r"the records are not taken: .*[Mm]essage.*large"):
        sink.write(words((target.topic, 1), *rows), attempt())
    assert (target.messages(small), target.messages()) == ([], [])
    assert sink.committed(attempt(2)) is None


def test_a_compacted_topic_takes_no_record_without_a_key(broker: KafkaBroker) -> None:
    target = KafkaTarget(broker.address)
    compacted = f"{target.topic}-compacted"
    target.make(compacted, 1, **{"cleanup.policy": "compact"})
    without = target.sink(topic=compacted)
    with pytest.raises(SinkError, match=r"compacted is compacted, .*key="):
        without.write(words(("a", 1)), attempt())
    check = without.check_target()
    assert (check.health, "is compacted" in check.found) == ("failed", True)
    keyed = target.sink(topic=compacted, key="word")
    assert keyed.check_target().health == "ok"
    with pytest.raises(Exception, match=r"column word is null.* needs a key"):
        keyed.write(words(("a", 1), (None, 2)), attempt())
    # What only the brokers know of the topics of rows leaves nothing either.
    by_row = target.sink(topic=None, topic_column="word")
    with pytest.raises(SinkError, match=f"topic {compacted}: .*compacted takes none without a key"):
        by_row.write(words((compacted, 1)), attempt())
    assert target.messages(compacted) == []
