"""Kafka's own behaviour: partitions that move between receivers, lost positions, transactions; on a real broker.

``make kafka``.
"""

from __future__ import annotations

import os
import signal
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from forebay.testing.receiver_processes import DEADLINE_SECONDS, eventually
from forebay.testing.sources import hold_unregistered, proxied, stop
from receiver_runtime.sources.records.json_records import Json
from receiver_runtime.watching.exit_codes import ExitCode
from tests.conformance.kafka_source import KafkaTopic, check_dense, check_places, links_of
from tests.support.brokers.kafka_load import KafkaLoad
from tests.support.polling import eventually as soon

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from forebay.testing.source_rig import SourceRig
    from tests.support.brokers.kafka import AnyKafka, KafkaBroker

# In seconds. Each of a test's waits may take long on a busy machine.
pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

# Seconds between two changes; then, set by FOREBAY_STORM, seconds in all and records per second.
STORM_PACE = 2.0
STORM_SECONDS, STORM_RATE = (int(one) for one in os.environ.get("FOREBAY_STORM", "12:20000").split(":"))

# Code for a process that never commits to the broker, like one that is killed before it does.
NEVER_COMMITS = """
from receiver_runtime.receivers.kafka.reading.positioned_reading import PositionedReading
PositionedReading._commit = lambda self, *, now=False: None
"""

# Code for a process that looks up its topics' ids every 0.2 s instead of every half minute.
LOOKS_AT_IDS_OFTEN = """
from receiver_runtime.receivers.kafka.reading import positioned_reading
positioned_reading._IDS_SECONDS = 0.2
"""

# Code for a process that looks at its topics every 0.2 s instead of every half minute, at most once.
LOOKS_OFTEN = """
from receiver_runtime.receivers.kafka.reading import at_most_once_reading
at_most_once_reading._LOOK_SECONDS = 0.2
"""

# Code for a process whose disk refuses a few blocks.
DISK_FAILS = """
from receiver_runtime.block_path.write_ahead_log import WriteAheadLog, WriteAheadLogError
_write, _calls = WriteAheadLog.write, []
def _fail(self, *arguments, **more):
    _calls.append(1)
    if 3 < len(_calls) < 8:
        raise WriteAheadLogError("the disk takes nothing")
    return _write(self, *arguments, **more)
WriteAheadLog.write = _fail
"""


@pytest.fixture
def topic(any_kafka: AnyKafka) -> KafkaTopic:
    return KafkaTopic(any_kafka)


@pytest.fixture
def real_topic(kafka_broker: KafkaBroker) -> KafkaTopic:
    """Return a topic on Apache Kafka, for what the mock cluster can't do."""
    return KafkaTopic(kafka_broker)


def reading(strategy: str, fetch: str) -> dict[str, Any]:
    """Return the fields of a source."""
    return {"fetch": fetch, "options": {"partition.assignment.strategy": strategy}}


def committed(topic: KafkaTopic, partition: int) -> int:
    """Return the offset that was committed to the broker."""
    consumer = Consumer({"bootstrap.servers": topic.broker.address, "group.id": f"g-{topic.name}"})
    try:
        [found] = consumer.committed([TopicPartition(topic.name, partition)], timeout=60)
        return found.offset
    finally:
        consumer.close()


def test_w01_killed_between_registering_and_telling_the_broker(
    topic: KafkaTopic, make_rig: Callable[..., SourceRig]
) -> None:
    rig = make_rig(topic.source())
    process = rig.start(first=NEVER_COMMITS)
    with topic.sending():
        eventually(lambda: rig.registered() > 500, "500 records")
        process.kill()
        process.wait(60)
    assert committed(topic, 0) < 0
    second = rig.start()
    eventually(lambda: topic.all_came(rig), "the rest")
    stop(second)
    topic.check_each_came_once(rig)
    ends = {row.partition: row.to_offset for row in links_of(rig)}
    assert {int(p): committed(topic, int(p)) for p in ends} == {int(p): end for p, end in ends.items()}


def test_parsed_records_come_once_and_bad_ones_hold_no_position_up(
    topic: KafkaTopic, make_rig: Callable[..., SourceRig]
) -> None:
    rig = make_rig(topic.source(), records=Json("number BIGINT NOT NULL"))
    values = [b'{"number": "%d"}' % n if n % 10 == 5 else b'{"number": %d}' % n for n in range(200)]
    process = rig.start(first=NEVER_COMMITS)
    topic.send_values([*values, None], partition=0)
    eventually(lambda: rig.registered() == 181, "the records that fit, and the tombstone")
    process.kill()
    process.wait(60)
    second = rig.start()
    topic.send_values([b'{"number": 200}'], partition=0)
    eventually(lambda: rig.registered() == 182, "one more")
    stop(second)
    found = sorted((row["_offset"], row["number"]) for row in rig.rows() if row["_offset"] != 200)
    assert found == [*((n, n) for n in range(200) if n % 10 != 5), (201, 200)]
    [tombstone] = [row for row in rig.rows() if row["_offset"] == 200]
    assert (tombstone["number"], tombstone["_key"]) == (None, b"k")
    assert rig.dead_letters() == 20
    assert rig.failed_checks() == []


def test_x10_what_could_not_be_stored_is_not_passed_over_but_read_again(
    topic: KafkaTopic, make_rig: Callable[..., SourceRig]
) -> None:
    rig = make_rig(topic.source())
    process = rig.start(first=DISK_FAILS)
    with topic.sending():
        eventually(lambda: rig.said("reading from Kafka failed"), "a block that could not be stored")
        before = rig.registered()
        eventually(lambda: rig.registered() > before + 200, "records after it")
    eventually(lambda: topic.all_came(rig), "everything")
    assert process.poll() is None
    stop(process)
    topic.check_each_came_once(rig)


def test_x05_the_broker_is_told_the_next_offset_and_nothing_is_read_again(
    topic: KafkaTopic, make_rig: Callable[..., SourceRig]
) -> None:
    """Use the original's own figures: 30 records sent, and 29 committed."""
    rig = make_rig(topic.source())
    process = rig.start()
    topic.send(30, partition=0)
    eventually(lambda: topic.all_came(rig), "30 records")
    stop(process)
    assert committed(topic, 0) == 30
    second = rig.start()
    topic.send(1, partition=0)
    eventually(lambda: topic.all_came(rig), "one more")
    stop(second)
    topic.check_each_came_once(rig)


@pytest.mark.timeout(300 + 3 * STORM_SECONDS)
@pytest.mark.parametrize(("strategy", "fetch"), [("cooperative-sticky", "columns"), ("range", "objects")])
def test_w01_a_storm_of_rebalances(
    topic: KafkaTopic, make_rig: Callable[..., SourceRig], strategy: str, fetch: str
) -> None:
    """Start a receiver, or stop or kill one, every two seconds, while a process sends all the time.

    For two minutes of it at 50,000 records a second: FOREBAY_STORM=120:50000 make kafka ARGS="-k storm".
    """
    rig = make_rig(topic.source(**reading(strategy, fetch)), receivers=3)
    processes: dict[int, subprocess.Popen[bytes]] = {number: rig.start(number) for number in range(3)}
    eventually(lambda: rig.said("connected"), "a connection")
    changes = 0
    with KafkaLoad(topic.broker.address, topic.name, partitions=3, rate=STORM_RATE) as load:
        began = time.monotonic()
        while (step := changes * STORM_PACE) < STORM_SECONDS:
            soon(lambda until=began + step: time.monotonic() >= until, "the pace", seconds=STORM_PACE + 1)  # type: ignore[misc]
            number = changes // 2 % 3
            if number in processes:
                # It may be too young to handle SIGTERM in order.
                going = processes.pop(number)
                going.send_signal(signal.SIGKILL if changes % 4 else signal.SIGTERM)
                going.wait(DEADLINE_SECONDS)
            else:
                processes[number] = rig.start(number)
            changes += 1
    for number in set(range(3)) - set(processes):
        processes[number] = rig.start(number)
    eventually(lambda: rig.registered() >= load.sent.records, "everything", seconds=STORM_SECONDS + 120)
    eventually(lambda: rig.states() == ["ACTIVE"] * 3, "three receivers that have begun")
    for process in processes.values():
        stop(process)
    print(f"{changes} changes, {load.sent.records:,} records sent at {load.sent.records_per_second:,.0f} a second")  # noqa: T201  shown by -rP
    assert changes >= 5
    check_dense(rig, {(topic.name, 0), (topic.name, 1), (topic.name, 2)}, load.sent.records)


@pytest.mark.parametrize(("strategy", "fetch"), [("cooperative-sticky", "objects"), ("range", "columns")])
def test_a_zombies_blocks_are_refused_by_their_offsets_and_it_reads_on(
    topic: KafkaTopic, make_rig: Callable[..., SourceRig], database_url: str, strategy: str, fetch: str
) -> None:
    """Pause the first receiver with stored blocks; the group gives its partitions to the second; resume the first."""
    rig = make_rig(topic.source(**reading(strategy, fetch)), receivers=2)
    with proxied(database_url) as (proxy, url):
        zombie = rig.start(0, database_url=url)
        with topic.sending():
            eventually(lambda: rig.registered_of(0) > 200, "200 records")
            hold_unregistered(rig, proxy)
            zombie.send_signal(signal.SIGSTOP)
            other = rig.start(1)
            eventually(lambda: rig.registered_of(1) > 1000, "the second has read on")
            proxy.away = False
            zombie.send_signal(signal.SIGCONT)
            eventually(lambda: rig.said("another receiver has read on"), "the conflict")
            stop(other)
            before = rig.registered_of(0)
            eventually(lambda: rig.registered_of(0) > before + 200, "the first reads on, in the same process")
        eventually(lambda: topic.all_came(rig), "everything")
        assert zombie.poll() is None
        stop(zombie)
    topic.check_each_came_once(rig)


def test_two_streams_read_one_topic_independently(topic: KafkaTopic, make_rig: Callable[..., SourceRig]) -> None:
    topic.send(100)
    rigs = [make_rig(topic.source(group=f"{topic.name}-{number}")) for number in range(2)]
    processes = [rig.start() for rig in rigs]
    eventually(lambda: all(topic.all_came(rig) for rig in rigs), "all records, in both")
    for process, rig in zip(processes, rigs, strict=True):
        stop(process)
        topic.check_each_came_once(rig)


def test_two_streams_of_one_group_report_that_each_gets_only_a_part(
    real_topic: KafkaTopic, make_rig: Callable[..., SourceRig]
) -> None:
    rigs = [make_rig(real_topic.source()) for _ in range(2)]
    processes = [rig.start(first=LOOKS_AT_IDS_OFTEN) for rig in rigs]
    eventually(lambda: rigs[0].said("not this stream's receivers (forebay-s1)"), "the second, at the first")
    eventually(lambda: rigs[1].said("not this stream's receivers (forebay-s0)"), "the first, at the second")
    for process in processes:
        stop(process)


def test_latest_records_its_origin_first_and_reads_new_partitions_from_the_beginning(
    real_topic: KafkaTopic, make_rig: Callable[..., SourceRig]
) -> None:
    topic = real_topic
    topic.send(90)
    before = dict(topic.sent)
    rig = make_rig(topic.source(start="latest"))
    process = rig.start()
    eventually(lambda: len(links_of(rig)) == 3, "three origins")
    assert {row.kind for row in links_of(rig)} == {"origin"}
    assert sum(row.to_offset for row in links_of(rig)) == 90
    topic.add_partitions(5)
    # The producer discovers them by itself; no receiver knows them yet.
    topic.send(40, partition=4)
    topic.send(30)
    after = {place: value for place, value in topic.sent.items() if place not in before}
    eventually(lambda: rig.registered() >= len(after), "all that came later")
    stop(process)
    check_places(rig.rows(), after)


def test_latest_reads_partitions_and_topics_added_while_stopped_from_the_beginning(
    real_topic: KafkaTopic, make_rig: Callable[..., SourceRig]
) -> None:
    """Check that records sent before a reader first sees a partition are read: they came after the stream began."""
    topic = real_topic
    topic.send(90)
    before = dict(topic.sent)
    rig = make_rig(topic.source(start="latest", pattern=f"{topic.name}(-.*)?"))
    process = rig.start()
    eventually(lambda: len(links_of(rig)) == 3, "three origins")
    stop(process)
    topic.add_partitions(4)
    topic.send(40, partition=3)
    later = KafkaTopic(topic.broker, name=f"{topic.name}-later")
    later.send(20)
    second = rig.start()
    eventually(lambda: rig.registered() >= 60, "what came while no receiver ran")
    topic.send(30)
    sent = {**topic.sent, **later.sent}
    after = {place: value for place, value in sent.items() if place not in before}
    eventually(lambda: rig.registered() >= len(after), "all that came later")
    stop(second)
    check_places(rig.rows(), after)


def test_latest_reads_a_topic_created_later_from_the_beginning(
    real_topic: KafkaTopic, make_rig: Callable[..., SourceRig]
) -> None:
    topic = real_topic
    topic.delete()
    rig = make_rig(topic.source(start="latest"))
    process = rig.start()
    eventually(lambda: [row.to_offset for row in rig.links()] == [0], "a topic of no partitions")
    stop(process)
    create_again(topic)
    topic.send(30)
    second = rig.start()
    eventually(lambda: topic.all_came(rig), "30 records")
    stop(second)
    topic.check_each_came_once(rig)


def test_a_start_by_time(real_topic: KafkaTopic, make_rig: Callable[..., SourceRig]) -> None:
    topic = real_topic
    # Use today's times: the broker deletes records older than its retention at once.
    began = int(time.time()) - 1000
    for second in range(10):
        topic.send(3, timestamp=1000 * (began + second))
    start = datetime.fromtimestamp(began + 5, UTC)
    rig = make_rig(topic.source(start=start))
    process = rig.start()
    eventually(lambda: rig.registered() >= 15, "five seconds' records")
    stop(process)
    rows = rig.rows()
    assert len(rows) == 15
    assert min(row["timestamp"] for row in rows) == start


def test_a_pattern_also_matches_topics_created_later(
    kafka_broker: KafkaBroker, topic: KafkaTopic, make_rig: Callable[..., SourceRig]
) -> None:
    topic.send(30)
    rig = make_rig(topic.source(pattern=f"{topic.name}(-.*)?"))
    process = rig.start()
    eventually(lambda: rig.registered() == 30, "the first topic's")
    later = KafkaTopic(kafka_broker, name=f"{topic.name}-later")
    KafkaTopic(kafka_broker, name=f"x{topic.name}").send(10)
    later.send(20)
    eventually(lambda: rig.registered() == 50, "the second topic's")
    stop(process)
    check_places(rig.rows(), {**topic.sent, **later.sent})


def test_unread_records_removed_by_retention_are_a_lost_link_and_reported_in_numbers(
    real_topic: KafkaTopic, make_rig: Callable[..., SourceRig]
) -> None:
    topic = real_topic
    topic.send(100, partition=0)
    rig = make_rig(topic.source())
    process = rig.start()
    eventually(lambda: topic.all_came(rig), "100 records")
    stop(process)
    topic.send(50, partition=0)
    topic.delete_records(0, 130)
    second = rig.start()
    eventually(lambda: rig.said("offsets 100 up to 130, 30 of them"), "the loss, in numbers")
    eventually(lambda: rig.registered() == 120, "what is there yet")
    stop(second)
    assert [tuple(row)[3:] for row in links_of(rig) if row.kind == "lost"] == [(100, 130, "lost")]
    check_places(rig.rows(), {place: value for place, value in topic.sent.items() if not 100 <= place[2] < 130})
    assert rig.failed_checks() == []


def test_records_removed_while_reading_are_counted_as_lost(
    real_topic: KafkaTopic, make_rig: Callable[..., SourceRig], database_url: str
) -> None:
    """Remove them while the receiver runs, but can't read on because the driver log is unavailable."""
    topic = real_topic
    options = {"queued.max.messages.kbytes": 1, "fetch.message.max.bytes": 1000}
    # Small limits, so that few of them fit in memory until the driver log is back.
    rig = make_rig(topic.source(options=options), block_queue_size=2)
    with proxied(database_url) as (proxy, url):
        process = rig.start(database_url=url)
        topic.send(300, partition=0)
        eventually(lambda: topic.all_came(rig), "300 records")
        proxy.away = True
        proxy.cut()
        topic.send(20_000, partition=0)
        topic.delete_records(0, 20_200)
        proxy.away = False
        eventually(lambda: any(row.kind == "lost" for row in links_of(rig)), "the loss")
        topic.send(100, partition=0)
        eventually(lambda: max(row.to_offset for row in links_of(rig)) == 20_400, "all that is there")
        stop(process)
    lost = sum(row.to_offset - row.from_offset for row in links_of(rig) if row.kind == "lost")
    assert lost > 0
    rows = rig.rows()
    assert len(rows) + lost == 20_400
    assert len({row["offset"] for row in rows}) == len(rows)


def test_out_of_range_may_stop_the_receiver(real_topic: KafkaTopic, make_rig: Callable[..., SourceRig]) -> None:
    topic = real_topic
    topic.send(100, partition=0)
    rig = make_rig(topic.source(out_of_range="stop"))
    process = rig.start()
    eventually(lambda: topic.all_came(rig), "100 records")
    stop(process)
    topic.send(50, partition=0)
    topic.delete_records(0, 130)
    second = rig.start()
    assert second.wait(DEADLINE_SECONDS) == ExitCode.FAILED
    assert rig.said("offset 100 is next, the broker has 130 up to 150")


def create_again(topic: KafkaTopic, partitions: int = 3) -> None:
    """Create the topic again, retrying while the broker is still deleting it."""
    again: list[bool] = []

    def made_again() -> bool:
        if not again:
            try:
                topic.create(partitions)
            except Exception:  # noqa: BLE001  still being deleted
                return False
            again.append(True)
        return True

    soon(made_again, "the new topic", seconds=DEADLINE_SECONDS, step=0.2)


def read_then_recreated(topic: KafkaTopic, make_rig: Callable[..., SourceRig], *, records: int) -> SourceRig:
    """Return a stopped stream that has read `records` records of a partition whose topic was recreated since."""
    topic.send(records, partition=0)
    rig = make_rig(topic.source())
    process = rig.start()
    eventually(lambda: topic.all_came(rig), f"{records} records")
    stop(process)
    topic.delete()
    create_again(topic)
    return rig


def test_a_recreated_topic_begins_the_next_generation(
    real_topic: KafkaTopic, make_rig: Callable[..., SourceRig]
) -> None:
    topic = real_topic
    rig = read_then_recreated(topic, make_rig, records=100)
    topic.send(7, partition=0)
    second = rig.start()
    eventually(lambda: rig.said("generation 1 begins"), "the event")
    eventually(lambda: rig.registered() == 107, "the new topic's records")
    stop(second)
    of_first = [tuple(row)[2:] for row in links_of(rig) if row.partition == "0"]
    assert of_first[-2:] == [(1, -1, 0, "origin"), (1, 0, 7, "block")]


def test_partitions_that_a_recreated_topic_lacks_are_gaps(
    real_topic: KafkaTopic, make_rig: Callable[..., SourceRig]
) -> None:
    topic = real_topic
    for partition in range(3):
        topic.send(10 + partition, partition=partition)
    rig = make_rig(topic.source())
    process = rig.start()
    eventually(lambda: topic.all_came(rig), "33 records")
    stop(process)
    topic.delete()
    create_again(topic, 1)
    topic.send(7, partition=0)
    second = rig.start()
    eventually(lambda: rig.registered() == 40, "the new topic's records")
    stop(second)
    for partition in (1, 2):
        assert rig.said(
            f"{topic.name}/{partition}: offset {10 + partition} is next, the topic was created again with 1 partitions"
        )
    # Once: the next start finds the new topic.
    reported = len(rig.events())
    third = rig.start()
    topic.send(1, partition=0)
    eventually(lambda: rig.registered() == 41, "one more")
    stop(third)
    assert not [message for _, message, _ in rig.events()[reported:] if "created again" in message]


def test_a_recreated_topic_grown_past_the_position_is_read_from_its_beginning(
    real_topic: KafkaTopic, make_rig: Callable[..., SourceRig]
) -> None:
    """Check the case in which the offsets look as if nothing had happened; only the topic's id shows it."""
    topic = real_topic
    rig = read_then_recreated(topic, make_rig, records=10)
    topic.send(30, partition=0)
    second = rig.start()
    eventually(lambda: rig.said("offset 10 is next, the topic was created again"), "the event")
    eventually(lambda: rig.registered() == 40, "all of the new topic's records")
    stop(second)
    third = rig.start()
    topic.send(1, partition=0)
    eventually(lambda: rig.registered() == 41, "one more")
    stop(third)
    of_first = [tuple(row)[2:] for row in links_of(rig) if row.partition == "0"]
    assert [link[:3] for link in of_first if link[3] == "origin"] == [(0, -1, 0), (1, -1, 0)]
    assert of_first[-1][2] == 31
    assert [row["value"] for row in rig.rows()] == [b"%d" % number for number in range(41)]
    assert not rig.said("reading from Kafka failed")
    assert rig.failed_checks() == []


@pytest.mark.parametrize("fetch", ["columns", "objects"])
def test_a_topic_recreated_while_reading_is_read_from_its_beginning(
    real_topic: KafkaTopic, make_rig: Callable[..., SourceRig], fetch: str
) -> None:
    """Check that what the client read in the new topic before noticing is read again, so that nothing is lost."""
    topic = real_topic
    topic.send(10, partition=0)
    # So that the group does not notice the change.
    rig = make_rig(topic.source(fetch=fetch, options={"topic.metadata.refresh.interval.ms": 300_000}))
    process = rig.start(first=LOOKS_AT_IDS_OFTEN)
    eventually(lambda: topic.all_came(rig), "10 records")
    topic.delete()
    create_again(topic)
    topic.send(30, partition=0)
    eventually(lambda: rig.said("is next, the topic was created again"), "the event")
    eventually(lambda: rig.registered() >= 40, "all of the new topic's records")
    eventually(lambda: (1, 30) in [(row.generation, row.to_offset) for row in links_of(rig)], "up to its end")
    stop(process)
    values = [row["value"] for row in rig.rows()]
    assert values[:10] == [b"%d" % number for number in range(10)]
    assert values[-30:] == [b"%d" % number for number in range(10, 40)]
    assert not rig.said("reading from Kafka failed")
    assert rig.failed_checks() == []


@pytest.mark.parametrize("fetch", ["columns", "objects"])
def test_group_lag_reaches_zero_past_transaction_markers(
    kafka_broker: KafkaBroker, topic: KafkaTopic, make_rig: Callable[..., SourceRig], fetch: str
) -> None:
    """Transaction markers take offsets, but are no records."""
    producer = Producer({"bootstrap.servers": kafka_broker.address, "transactional.id": topic.name})
    producer.init_transactions(30)
    for partition, commits in ((0, True), (0, False), (1, False)):
        producer.begin_transaction()
        for number in range(10):
            producer.produce(topic.name, b"%d" % number, partition=partition)
        producer.flush(30)
        if commits:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    rig = make_rig(topic.source(fetch=fetch))
    process = rig.start()
    eventually(lambda: [committed(topic, partition) for partition in (0, 1)] == [22, 11], "no lag")
    stop(process)
    assert [row["offset"] for row in rig.rows()] == list(range(10))
    assert [row.to_offset for row in links_of(rig) if row.partition in "01"] == [0, 10, 0]


def test_one_that_could_not_ask_its_group_for_too_long_comes_back_and_nothing_is_lost_or_comes_twice(
    real_topic: KafkaTopic, make_rig: Callable[..., SourceRig], database_url: str
) -> None:
    """Cut the driver log off for longer than max.poll.interval.ms: the group gives its partitions to the second."""
    topic = real_topic
    options = {"max.poll.interval.ms": 2500}
    rig = make_rig(topic.source(options=options), receivers=2, block_queue_size=2)
    with proxied(database_url) as (proxy, url):
        first = rig.start(0, database_url=url)
        with topic.sending():
            eventually(lambda: rig.registered_of(0) > 200, "200 records")
            proxy.away = True
            proxy.cut()
            second = rig.start(1)
            eventually(lambda: rig.registered_of(1) > 2000, "the second has read on, all partitions")
            eventually(lambda: {row.receiver_id for row in newest_links(rig)} == {rig.receiver_ids[1]}, "all of them")
            proxy.away = False
            before = rig.registered_of(0)
            eventually(lambda: rig.registered_of(0) > before + 200, "the first reads on, in the same process")
        eventually(lambda: topic.all_came(rig), "everything")
        assert first.poll() is None
        stop(first)
        stop(second)
    topic.check_each_came_once(rig)


def newest_links(rig: SourceRig) -> list[Any]:
    """Return the receiver of each partition's newest link."""
    return rig.execute(
        "SELECT DISTINCT ON (source, partition) receiver_id FROM forebay.block_offsets "
        "WHERE partition ~ '^[0-9]+$' AND stream_id = (SELECT stream_id FROM forebay.receivers WHERE id = :id) "
        "ORDER BY source, partition, generation DESC, from_offset DESC",
        id=rig.receiver_ids[0],
    )


def test_only_committed_transactions_are_read(
    kafka_broker: KafkaBroker, topic: KafkaTopic, make_rig: Callable[..., SourceRig]
) -> None:
    producer = Producer({"bootstrap.servers": kafka_broker.address, "transactional.id": topic.name})
    producer.init_transactions(30)
    for name, commits in (("a", True), ("b", False), ("c", True)):
        producer.begin_transaction()
        for number in range(10):
            producer.produce(topic.name, f"{name}{number}".encode(), partition=0)
        producer.flush(30)
        if commits:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    rig = make_rig(topic.source())
    process = rig.start()
    eventually(lambda: rig.registered() >= 20, "two transactions")
    stop(process)
    assert [row["value"] for row in rig.rows()] == [f"{name}{n}".encode() for name in "ac" for n in range(10)]


@pytest.mark.parametrize(
    ("codec", "fetch"), [("gzip", "columns"), ("lz4", "columns"), ("snappy", "objects"), ("zstd", "objects")]
)
def test_columns(
    kafka_broker: KafkaBroker, topic: KafkaTopic, make_rig: Callable[..., SourceRig], codec: str, fetch: str
) -> None:
    producer = Producer({"bootstrap.servers": kafka_broker.address, "compression.type": codec})
    headers: list[tuple[str, str | bytes | None]] = [("a", b"1"), ("a", None), ("empty", b""), ("ü", b"\xff\x00")]
    at = int(time.time()) * 1000 + 123
    producer.produce(topic.name, b"v" * 1000, key=b"k", partition=1, headers=headers, timestamp=at)
    producer.produce(topic.name, None, key=b"gone", partition=1, timestamp=at + 1)
    producer.flush(30)
    rig = make_rig(topic.source(fetch=fetch))
    process = rig.start()
    eventually(lambda: rig.registered() == 2, "two records")
    stop(process)
    second = datetime.fromtimestamp(at // 1000, UTC)
    assert rig.rows() == [
        {
            "key": b"k",
            "value": b"v" * 1000,
            "topic": topic.name,
            "partition": 1,
            "offset": 0,
            "timestamp": second.replace(microsecond=123_000),
            "headers": [{"key": key, "value": value} for key, value in headers],
        },
        {
            "key": b"gone",
            "value": None,
            "topic": topic.name,
            "partition": 1,
            "offset": 1,
            "timestamp": second.replace(microsecond=124_000),
            "headers": None,
        },
    ]


def test_x03_at_most_once_is_the_client_s_own_commit(topic: KafkaTopic, make_rig: Callable[..., SourceRig]) -> None:
    rig = make_rig(topic.source(guarantee="at_most_once", options={"auto.commit.interval.ms": 100}))
    process = rig.start()
    topic.send(300)
    eventually(lambda: topic.all_came(rig), "300 records")
    assert links_of(rig) == []
    stop(process)
    partitions = {partition for _, partition, _ in topic.sent}
    assert sum(committed(topic, partition) for partition in partitions) == 300
    second = rig.start()
    topic.send(30)
    eventually(lambda: topic.all_came(rig), "30 more")
    stop(second)
    topic.check_each_came_once(rig)


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
def test_what_is_left_out_at_most_once_is_reported(
    real_topic: KafkaTopic, make_rig: Callable[..., SourceRig], strategy: str
) -> None:
    topic = real_topic
    options = {"auto.commit.interval.ms": 100, "partition.assignment.strategy": strategy}
    rig = make_rig(topic.source(guarantee="at_most_once", start="latest", options=options))

    def has_opened_all() -> bool:
        return {row.partition for row in rig.links()} >= {f"read by the group: {number}" for number in range(3)}

    process = rig.start()
    eventually(has_opened_all, "the partitions")
    # A restart before the first record begins where the first start would have.
    stop(process)
    topic.send(10, partition=0)
    second = rig.start(first=LOOKS_OFTEN)
    eventually(lambda: rig.registered() == 10, "10 records")
    stop(second)
    assert not rig.said("gap of unknown size")
    topic.send(10, partition=0)
    topic.delete_records(0, 16)
    third = rig.start(first=LOOKS_OFTEN)
    # As out_of_range says, "earliest" by default, and not start.
    eventually(lambda: rig.registered() == 14, "what is there")
    assert rig.said(
        f"{topic.name}/0: offset 10 is next, the broker has 16 up to 20: offsets 10 up to 16, 6 of them, are"
    )
    assert sorted(row["offset"] for row in rig.rows()) == [*range(10), *range(16, 20)]
    topic.delete()
    create_again(topic)
    eventually(lambda: rig.said(f"{topic.name}: the topic was created again"), "the new topic")
    stop(third)
    # With a topic that is deleted, Kafka forgets the group's positions.
    topic.delete()
    create_again(topic)
    before = len(rig.events())
    fourth = rig.start()
    lost = f"{topic.name}/0: the group 'g-{topic.name}' has no position"
    eventually(lambda: any(said.startswith(lost) for _, said, _ in rig.events()[before:]), "no position")
    stop(fourth)
    assert not rig.said("reading from Kafka failed")
