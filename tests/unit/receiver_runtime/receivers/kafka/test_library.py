"""Check that columns read with librdkafka's C interface equal records read as objects, on its in-process mock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("confluent_kafka")

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from structlog.testing import capture_logs

from receiver_runtime.receivers.kafka import library as kafka_library
from receiver_runtime.receivers.kafka import records as kafka_records
from receiver_runtime.receivers.kafka.layout_probe import LibraryError
from receiver_runtime.receivers.kafka.library import ColumnFetcher, Fault, Library, open_library
from receiver_runtime.receivers.kafka.records import BadRecord, records_of
from tests.conformance.kafka_raw import send_raw_headers
from tests.support.brokers.kafka import MockKafka
from tests.support.machine.held_ports import held_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_DEADLINE_SECONDS = 30.0
_PARTITIONS = 4
_BAD = 2
_RECORDS = 500


@pytest.fixture(scope="module")
def mock() -> MockKafka:
    return MockKafka()


@pytest.fixture(scope="module")
def library() -> Library:
    """Open the library. If this fails after an upgrade of the client, see `_PRIVATE_LAYOUTS`."""
    found = open_library()
    assert found is not None
    return found


@pytest.fixture
def make_fetcher(mock: MockKafka, library: Library) -> Iterator[Callable[..., ColumnFetcher]]:
    made: list[ColumnFetcher] = []

    def make(library: Library = library) -> ColumnFetcher:
        made.append(ColumnFetcher(library, settings(mock)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def settings(mock: MockKafka) -> dict[str, str | float | bool]:
    return {
        "bootstrap.servers": mock.address,
        "group.id": "g",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "log_level": 0,
    }


@pytest.fixture(scope="module")
def topics(mock: MockKafka) -> list[str]:
    """Fill topics with every kind of record."""
    names = ["one", "two"]
    for name in names:
        assert mock.make(name) == _PARTITIONS
    producer = Producer({"bootstrap.servers": mock.address, "log_level": 0})
    sizes = [0, 1, 3, 4, 5, 11, 12, 13, 100, 5000]
    for number in range(_RECORDS):
        size = sizes[number % len(sizes)]
        headers: Sequence[tuple[str, str | bytes | None]] = (
            [],
            [("a", b"1")],
            [("a", None), ("a", b""), ("ü", b"\xff\x00" * 20)],
        )[number % 3]
        producer.produce(
            names[number % 2],
            None if number % 7 == 0 else b"%d" % (number % 10) * size,
            key=(None, b"", b"k", b"%030d" % number)[number % 4],
            partition=number // 2 % _PARTITIONS,
            timestamp=1_700_000_000_000 + 1001 * number,
            headers=list(headers),
        )
    assert producer.flush(30) == 0
    for value in (b"bad", b""):
        send_raw_headers(mock.address, "one", 0, value, [(b"\xff", b"1")])
    producer.produce("one", b"after", partition=0)
    assert producer.flush(30) == 0
    return names


def by_columns(fetcher: ColumnFetcher, expected: int, *, most: int = 1000) -> tuple[pa.Table, list[BadRecord]]:
    batches: list[pa.RecordBatch] = []
    bad: list[BadRecord] = []
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while sum(batch.num_rows for batch in batches) + len(bad) < expected:
        assert time.monotonic() < deadline
        fetched = fetcher.fetch(most, 0.1)
        assert not fetched.faults
        bad += fetched.bad
        for records in fetched.records:
            batches.append(records.batch)
            rows = records.batch.to_pylist()
            assert records.offsets.tolist() == [row["offset"] for row in rows]
            assert records.runs[-1].end == len(rows)
            for run in records.runs:
                places = {(row["topic"], row["partition"]) for row in rows[run.first : run.end]}
                assert places == {(run.topic, run.partition)}
    return in_order(batches), bad


def in_order(batches: list[pa.RecordBatch]) -> pa.Table:
    table = pa.Table.from_batches(batches)
    table.validate(full=True)
    return table.sort_by([("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")])


def by_objects(mock: MockKafka, topics: list[str], expected: int) -> tuple[pa.Table, list[BadRecord]]:
    consumer = Consumer(settings(mock))
    consumer.assign([TopicPartition(topic, number, 0) for topic in topics for number in range(_PARTITIONS)])
    messages: list[Message] = []
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while len(messages) < expected:
        assert time.monotonic() < deadline
        messages += consumer.consume(1000, 0.1)
    [found], bad = records_of(messages)
    consumer.close()
    return in_order([found.batch]), list(bad)


def start_of(topics: list[str]) -> dict[tuple[str, int], int]:
    return {(topic, number): 0 for topic in topics for number in range(_PARTITIONS)}


@pytest.mark.parametrize("most", [1000, 7])
def test_columns_equal_objects(
    mock: MockKafka, topics: list[str], make_fetcher: Callable[..., ColumnFetcher], most: int
) -> None:
    expected = _RECORDS + _BAD + 1
    fetcher = make_fetcher()
    fetcher.read_from(start_of(topics))
    columns, bad = by_columns(fetcher, expected, most=most)
    objects, bad_objects = by_objects(mock, topics, expected)
    assert columns.num_rows == _RECORDS + 1
    assert columns.to_pylist() == objects.to_pylist()
    assert columns.equals(objects)
    assert bad == bad_objects == [BadRecord("one", 0, bad[0].offset, b"bad"), BadRecord("one", 0, bad[1].offset, b"")]
    headers = columns["headers"].to_pylist()
    assert {None} < {None if one is None else len(one) for one in headers}


@pytest.mark.parametrize("most", [0, 1000])
def test_no_batch_is_larger_than_a_column_can_hold(
    mock: MockKafka,
    topics: list[str],
    make_fetcher: Callable[..., ColumnFetcher],
    monkeypatch: pytest.MonkeyPatch,
    most: int,
) -> None:
    """Arrow's cast to a column with 32-bit offsets overflows without an error."""
    expected = _RECORDS + _BAD + 1
    objects, _ = by_objects(mock, topics, expected)
    monkeypatch.setattr(kafka_records, "MOST_BYTES", most)
    fetcher = make_fetcher()
    fetcher.read_from(start_of(topics))
    columns, _ = by_columns(fetcher, expected)
    assert columns.equals(objects)
    fetcher.read_from(start_of(topics))
    batches: list[pa.RecordBatch] = []
    while sum(batch.num_rows for batch in batches) < _RECORDS + 1:
        batches += [records.batch for records in fetcher.fetch(1000, 1.0).records]
    for batch in batches:
        large = pc.sum(pc.binary_length(batch["value"])).as_py() or 0
        assert batch.num_rows == 1 or large <= most


def test_a_fetch_with_only_unreadable_records_returns_them_as_bad(
    topics: list[str], make_fetcher: Callable[..., ColumnFetcher]
) -> None:
    fetcher = make_fetcher()
    fetcher.read_from({(topics[0], 0): 0})
    _, [first, _] = by_columns(fetcher, 66)
    fetcher.read_from({(topics[0], 0): first.offset})
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not (fetched := fetcher.fetch(1, 0.1)).bad:
        assert time.monotonic() < deadline
    assert list(fetched.bad) == [first]
    assert not fetched.records


def test_partitions_are_read_from_given_offsets_and_can_be_left(
    topics: list[str], make_fetcher: Callable[..., ColumnFetcher]
) -> None:
    fetcher = make_fetcher()
    fetcher.read_from({(topics[1], 0): 0})
    whole, _ = by_columns(fetcher, 60)
    assert set(whole["partition"].to_pylist()) == {0}
    fetcher.read_from({(topics[1], 0): 50, (topics[1], 1): 60})
    rest, _ = by_columns(fetcher, whole.num_rows - 50)
    assert min(row["offset"] for row in rest.to_pylist() if row["partition"] == 0) == 50
    fetcher.leave([(topics[1], 0), (topics[1], 1), (topics[1], 3)])
    fetcher.read_from({(topics[1], 2): 0})
    other, _ = by_columns(fetcher, 1)
    assert set(other["partition"].to_pylist()) == {2}


def test_a_fetcher_says_where_logs_end_and_how_much_it_holds(
    topics: list[str], make_fetcher: Callable[..., ColumnFetcher]
) -> None:
    fetcher = make_fetcher()
    key, never = (topics[1], 0), (topics[1], 3)
    fetcher.read_from({key: 0})
    read, deadline = 0, time.monotonic() + _DEADLINE_SECONDS
    while not (ends := fetcher.ends([key, never])) or read < ends[key]:
        assert time.monotonic() < deadline
        # One at a time: the others that came with it wait in the client.
        found = fetcher.fetch(1, 0.1)
        read = max(
            [read, *(int(some.offsets[-1]) + 1 for some in found.records), *(bad.offset + 1 for bad in found.bad)]
        )
        assert not found.records or read + fetcher.fetched <= fetcher.ends([key])[key]
    assert ends.keys() == {key}
    assert fetcher.fetched == 0


def test_a_position_out_of_range_is_a_fault(topics: list[str], make_fetcher: Callable[..., ColumnFetcher]) -> None:
    fetcher = make_fetcher()
    fetcher.read_from({(topics[0], 0): 10_000})
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not (faults := fetcher.fetch(10, 0.1).faults):
        assert time.monotonic() < deadline
    # librdkafka's _AUTO_OFFSET_RESET
    assert [(fault.topic, fault.partition, fault.code) for fault in faults] == [(topics[0], 0, -140)]
    assert faults[0].message


def test_unavailable_brokers_are_an_error_of_the_client(library: Library) -> None:
    """Without a callback the library would not report it."""
    with held_port() as port:
        fetcher = ColumnFetcher(
            library, {"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "g", "auto.offset.reset": "error"}
        )
        try:
            fetcher.read_from({("t", 0): 0})
            deadline = time.monotonic() + _DEADLINE_SECONDS
            errors: list[Fault] = []
            while KafkaError._ALL_BROKERS_DOWN not in [error.code for error in errors]:
                assert time.monotonic() < deadline
                errors += fetcher.fetch(10, 0.1).errors
        finally:
            fetcher.close()
    assert f"127.0.0.1:{port}" in "".join(error.message for error in errors)


def test_an_unknown_library_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_library, "_PRIVATE_LAYOUTS", {})
    with capture_logs() as logs:
        assert open_library() is None
    assert [(entry["log_level"], "is not known here" in entry["why"]) for entry in logs] == [("warning", True)]


@pytest.mark.parametrize("time_at", [9, 11, 13])
def test_another_layout_is_detected_before_any_record_is_read(
    monkeypatch: pytest.MonkeyPatch, library: Library, time_at: int
) -> None:
    """The release is known, but its messages are laid out otherwise, as a rebuilt or replaced library's may be."""
    layout = kafka_library._Layout(time=time_at, headers_bytes=15)
    monkeypatch.setattr(kafka_library, "_PRIVATE_LAYOUTS", {library.functions.version(): layout})
    with capture_logs() as logs:
        assert open_library() is None
    assert [(entry["log_level"], entry["why"]) for entry in logs] == [("warning", "a message has its time elsewhere")]


@pytest.mark.parametrize(("time_at", "headers_at"), [(11, 15), (12, 13)])
def test_a_library_with_an_unexpected_layout_is_detected(
    topics: list[str], library: Library, make_fetcher: Callable[..., ColumnFetcher], time_at: int, headers_at: int
) -> None:
    other = Library(library.functions, kafka_library._Layout(time=time_at, headers_bytes=headers_at))
    fetcher = make_fetcher(other)
    fetcher.read_from(start_of(topics))
    deadline = time.monotonic() + _DEADLINE_SECONDS
    with pytest.raises(LibraryError):  # noqa: PT012  the call that returns the first records raises
        while time.monotonic() < deadline:
            fetcher.fetch(1, 0.1)


def test_a_refused_option_is_named_without_its_value(mock: MockKafka, library: Library) -> None:
    with pytest.raises(LibraryError, match=r"option no\.such\.option") as refused:
        ColumnFetcher(library, {**settings(mock), "no.such.option": "hidden"})
    assert "hidden" not in str(refused.value)
