"""Hazards for a Kafka reader: leaders that move, refused logins, TLS, headers of any bytes; on real brokers.

``make kafka``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import ElectionType, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from forebay.testing.receiver_processes import eventually
from forebay.testing.sources import stop
from tests.conformance.kafka_raw import send_raw_headers
from tests.conformance.kafka_source import KafkaTopic, links_of
from tests.support.brokers.kafka import PASSWORD, USER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forebay.testing.source_rig import SourceRig
    from tests.support.brokers.kafka import AnyKafka, KafkaBroker, KafkaCluster

# In seconds. Each of a test's waits may take long on a busy machine.
pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

# Code for a process that expects a record's time at another offset than its librdkafka has.
ODD_LIBRARY = """
from receiver_runtime.receivers.kafka import library as kafka_library
odd = kafka_library._Layout(time=11, headers_bytes=15)
kafka_library._PRIVATE_LAYOUTS = dict.fromkeys(kafka_library._PRIVATE_LAYOUTS, odd)
"""
# What the probe at the start does not see is found in the first messages.
ODD_MESSAGES = f"{ODD_LIBRARY}kafka_library.probe_layout = lambda path, *, time_word: None\n"
WRONG = "a-wrong-one-93ab"
# In seconds. The client itself waits up to a minute for a broker's answer to each request.
_STOP_SECONDS = 40.0


@pytest.mark.parametrize("fetch", ["columns", "objects"])
def test_non_text_header_names_become_dead_letters_and_block_nothing(
    any_kafka: AnyKafka, make_rig: Callable[..., SourceRig], fetch: str
) -> None:
    topic = KafkaTopic(any_kafka)
    rig = make_rig(topic.source(fetch=fetch))
    process = rig.start()
    topic.send(10, partition=0)
    for value in (b"odd", b""):
        send_raw_headers(any_kafka.address, topic.name, 0, value, [(b"good", b"1"), (b"\xff\xfe", b"2")])
    topic.send(10, partition=0)
    eventually(lambda: topic.all_came(rig), "all but two")
    stop(process)
    topic.check_each_came_once(rig)
    assert [tuple(row)[2:] for row in links_of(rig) if row.kind == "block"][-1][2] == 22
    letters = rig.execute(
        "SELECT reason, sum(letters), sum(bytes) FROM forebay.dead_letters WHERE receiver_id = :id GROUP BY reason",
        id=rig.receiver_ids[0],
    )
    nbytes = len(b"odd") + len(f"{topic.name}/0, offset 11")
    assert [tuple(letter) for letter in letters] == [("invalid_encoding", 2, nbytes)]
    assert rig.said(f"{topic.name}/0, offset 10")
    assert not rig.said("reading from Kafka failed")
    # The position is past them: a second process reads nothing again.
    second = rig.start()
    topic.send(1, partition=0)
    eventually(lambda: topic.all_came(rig), "one more")
    stop(second)
    assert rig.dead_letters() == 2


@pytest.mark.parametrize("found_by", ["the probe", "messages"])
def test_with_an_unexpected_client_library_records_are_read_as_objects(
    any_kafka: AnyKafka, make_rig: Callable[..., SourceRig], found_by: str
) -> None:
    topic = KafkaTopic(any_kafka)
    topic.send(100)
    rig = make_rig(topic.source())
    process = rig.start(first=ODD_LIBRARY if found_by == "the probe" else ODD_MESSAGES)
    with topic.sending():
        if found_by == "the probe":
            eventually(lambda: "records are read as objects, which is slower" in rig.logs(), "the warning")
        else:
            eventually(lambda: rig.said("records are read as objects from now on"), "the change")
        eventually(lambda: rig.registered() > 200, "200 records")
    eventually(lambda: topic.all_came(rig), "everything")
    assert process.poll() is None
    stop(process)
    topic.check_each_came_once(rig)


@pytest.mark.parametrize("fetch", ["columns", "objects"])
def test_a_stop_does_not_wait_for_an_unavailable_broker(
    kafka_broker: KafkaBroker, make_rig: Callable[..., SourceRig], fetch: str
) -> None:
    topic = KafkaTopic(kafka_broker)
    rig = make_rig(topic.source(fetch=fetch))
    process = rig.start()
    topic.send(300)
    eventually(lambda: topic.all_came(rig), "300 records")
    with topic.away():
        began = time.monotonic()
        stop(process)
        took = time.monotonic() - began
        eventually(lambda: rig.states() == ["INACTIVE"], "the receiver's state")
    assert took < _STOP_SECONDS
    topic.check_each_came_once(rig)


@dataclass(frozen=True, slots=True)
class _Watched:
    """Partition 0 of a topic in a cluster."""

    client: AdminClient
    topic: str

    def leader(self) -> int:
        return int(self._partition().leader)

    def led_by(self, broker: int) -> set[int]:
        """Return the partitions that a broker leads."""
        return {number for number, partition in self._partitions().items() if partition.leader == broker}

    def followers(self) -> list[int]:
        found = self._partition()
        return [int(replica) for replica in found.replicas if replica != found.leader]

    def replicas_in_sync(self) -> int:
        return len(self._partition().isrs)

    def lead_by_preferred(self) -> None:
        """Elect each partition's preferred leader."""
        chosen = [TopicPartition(self.topic, partition) for partition in range(3)]
        self.client.elect_leaders(ElectionType.PREFERRED, chosen).result(30)

    def _partition(self) -> Any:  # noqa: ANN401  of the client
        return self._partitions()[0]

    def _partitions(self) -> dict[int, Any]:
        """Return the partitions, asking until a broker answers: one that has just been killed does not."""
        found: list[dict[int, Any]] = []

        def answered() -> bool:
            try:
                found.append(self.client.list_topics(self.topic, timeout=5).topics[self.topic].partitions)
            except KafkaException:
                return False
            return 0 in found[-1]

        eventually(answered, "an answer by a broker")
        return found[-1]


def test_w01_the_leader_of_a_partition_is_killed_and_moved_back_while_records_flow(
    kafka_cluster: KafkaCluster, make_rig: Callable[..., SourceRig]
) -> None:
    topic = KafkaTopic(kafka_cluster)
    watched = _Watched(AdminClient({"bootstrap.servers": kafka_cluster.address}), topic.name)
    rig = make_rig(topic.source(), receivers=2)
    processes = [rig.start(number) for number in range(2)]
    with topic.sending():
        eventually(lambda: rig.registered() > 500, "500 records")
        first = watched.leader()
        kafka_cluster.nodes[first].kill()
        eventually(lambda: watched.leader() not in (first, -1), "another leader")
        before = rig.registered()
        eventually(lambda: rig.registered() > before + 500, "records by the new leader")
        kafka_cluster.nodes[first].start()
        eventually(lambda: watched.replicas_in_sync() == 3, "the first leader has caught up")
        watched.lead_by_preferred()
        eventually(lambda: watched.leader() == first, "the first leader leads again")
        before = rig.registered()
        eventually(lambda: rig.registered() > before + 500, "records by the first leader again")
    eventually(lambda: topic.all_came(rig), "everything")
    for process in processes:
        stop(process)
    topic.check_each_came_once(rig)
    assert {row.kind for row in links_of(rig)} == {"origin", "block"}


def test_a_missing_topic_degrades_the_receiver_and_blocks_no_other(
    any_kafka: AnyKafka, make_rig: Callable[..., SourceRig]
) -> None:
    topic = KafkaTopic(any_kafka)
    topic.send(10)
    rig = make_rig(topic.source(topics=[topic.name, "no-such-topic"]))
    process = rig.start()
    eventually(lambda: rig.registered() == 10, "the other topic's")
    eventually(lambda: rig.reason().startswith("degraded: the topic 'no-such-topic' can't be read"), "the reason")
    stop(process)


@pytest.mark.parametrize(
    ("guarantee", "fetch"), [("exactly_once", "columns"), ("exactly_once", "objects"), ("at_most_once", "objects")]
)
def test_partitions_without_a_leader_block_no_others_and_are_read_once_it_is_back(
    kafka_cluster: KafkaCluster, make_rig: Callable[..., SourceRig], guarantee: str, fetch: str
) -> None:
    topic = KafkaTopic(kafka_cluster, replicas=1, min_insync_replicas=1)
    watched = _Watched(AdminClient({"bootstrap.servers": kafka_cluster.address}), topic.name)
    topic.send(300)
    leader = watched.leader()
    away = watched.led_by(leader)
    kafka_cluster.nodes[leader].kill()
    rig = make_rig(topic.source(guarantee=guarantee, fetch=fetch))
    process = rig.start()
    others = [place for place in topic.sent if place[1] not in away]
    assert others
    eventually(lambda: rig.registered() == len(others), "the others'")
    eventually(lambda: rig.said(f"{topic.name}/0 can't be read now"), "the event")
    eventually(lambda: rig.reason().startswith(f"degraded: {topic.name}/"), "the receiver's state")
    kafka_cluster.nodes[leader].start()
    eventually(lambda: topic.all_came(rig), "everything")
    eventually(lambda: not rig.reason().startswith("degraded"), "the end of that")
    assert process.poll() is None
    stop(process)
    topic.check_each_came_once(rig)
    assert not rig.said("reading from Kafka failed")


@pytest.mark.parametrize("fetch", ["columns", "objects"])
def test_reading_resumes_where_an_unclean_election_truncated_the_log(
    kafka_cluster: KafkaCluster, make_rig: Callable[..., SourceRig], fetch: str
) -> None:
    """Check this both when the log has grown past the reader's position before it asks again, and when it has not."""
    topic = KafkaTopic(
        kafka_cluster, partitions=1, replicas=2, min_insync_replicas=1, unclean_leader_election_enable="true"
    )
    watched = _Watched(AdminClient({"bootstrap.servers": kafka_cluster.address}), topic.name)
    # The group's coordinator is unavailable for a while too; the partition must not be reassigned meanwhile.
    rig = make_rig(topic.source(fetch=fetch, options={"session.timeout.ms": 60_000}))
    process = rig.start()
    topic.send(100)
    eventually(lambda: rig.registered() == 100, "what both replicas have")
    leader, [follower] = watched.leader(), watched.followers()
    kafka_cluster.nodes[follower].kill()
    eventually(lambda: watched.replicas_in_sync() == 1, "a leader alone")
    topic.send(50)
    eventually(lambda: rig.registered() == 150, "what the leader alone has")
    kafka_cluster.nodes[leader].kill()
    kafka_cluster.nodes[follower].start()
    eventually(lambda: watched.leader() == follower, "an unclean election")
    # Use a new producer: the topic's own would continue after records that the log has lost.
    producer = Producer({"bootstrap.servers": kafka_cluster.address})
    for number in range(200):
        producer.produce(topic.name, b"new %d" % number, partition=0)
    assert producer.flush(60) == 0
    eventually(lambda: rig.registered() >= 350, "what came after it")
    stop(process)
    assert rig.said("offset 150 is next, the broker's log was cut at offset 100")
    origins = [tuple(row)[2:] for row in links_of(rig) if row.kind == "origin"]
    assert origins == [(0, -1, 0, "origin"), (1, -1, 100, "origin")]
    old, new = [b"%d" % number for number in range(150)], [b"new %d" % number for number in range(200)]
    assert [row["value"] for row in rig.rows()] == old + new
    assert rig.failed_checks() == []


def secured(broker: KafkaBroker, mechanism: str, secret: str) -> dict[str, Any]:
    """Return the fields of a source that uses the broker's second listener."""
    assert broker.secure is not None
    return {
        "bootstrap_servers": broker.secure_address,
        "options": {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.username": USER,
            "sasl.password": secret,
            "ssl.ca.location": str(broker.secure.certificate),
        },
    }


def make_scram_user(broker: KafkaBroker) -> None:
    client = AdminClient({"bootstrap.servers": broker.address})
    how = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    client.alter_user_scram_credentials([UserScramCredentialUpsertion(USER, how, PASSWORD.encode())])[USER].result(30)


def reason(rig: SourceRig) -> str:
    [(found,)] = rig.execute("SELECT reason FROM forebay.receivers WHERE id = :id", id=rig.receiver_ids[0])
    return str(found)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password_is_reported_and_retried_until_it_is_right(
    kafka_broker: KafkaBroker, make_rig: Callable[..., SourceRig], tmp_path: Path, mechanism: str
) -> None:
    make_scram_user(kafka_broker)
    secret = tmp_path / "password"
    secret.write_text(WRONG, encoding="utf-8")
    topic = KafkaTopic(kafka_broker)
    topic.send(100)
    rig = make_rig(topic.source(**secured(kafka_broker, mechanism, f"file:{secret}")), receiver_restart_delay="200ms")
    process = rig.start()
    sentence = (
        f"trying again: Kafka refuses the user '{USER}': check sasl.username, sasl.mechanism and the secret of "
        f"sasl.password (file:{secret})"
    )
    eventually(lambda: reason(rig) == sentence, "the reason")
    # Its reports are fewer than its tries.
    eventually(lambda: rig.logs().count("FAIL [forebay-s0#consumer") >= 3, "three tries")
    secret.write_text(PASSWORD, encoding="utf-8")
    eventually(lambda: topic.all_came(rig), "100 records")
    assert process.poll() is None
    stop(process)
    topic.check_each_came_once(rig)
    shown = rig.logs() + repr([rig.events(), rig.execute("SELECT * FROM forebay.receivers")])
    assert WRONG not in shown
    assert PASSWORD not in shown


def test_an_untrusted_certificate_is_reported(
    kafka_broker: KafkaBroker, make_rig: Callable[..., SourceRig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_KAFKA_PASSWORD", PASSWORD)
    fields = secured(kafka_broker, "PLAIN", "env:TEST_KAFKA_PASSWORD")
    del fields["options"]["ssl.ca.location"]
    rig = make_rig(KafkaTopic(kafka_broker).source(**fields))
    process = rig.start()
    eventually(lambda: "trying again: TLS with Kafka fails: check ssl.ca.location" in reason(rig), "the reason")
    stop(process)
    assert PASSWORD not in rig.logs()
