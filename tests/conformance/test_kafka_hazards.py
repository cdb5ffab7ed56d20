"""What may happen to a reader of Kafka: leaders that move, refused logins, TLS, headers of any bytes; on real brokers.

``make kafka``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.conformance.kafka_raw import send_raw_headers
from tests.conformance.kafka_source import KafkaTopic
from tests.conformance.suite import stop
from tests.kafka_broker import PASSWORD, USER
from tests.receiver_processes import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conformance.source_rig import SourceRig
    from tests.kafka_broker import AnyKafka, KafkaBroker, KafkaCluster

pytestmark = pytest.mark.kafka

# A process whose librdkafka keeps a record's time elsewhere than its release does.
ODD_LIBRARY = """
from receiver_runtime.receivers import kafka_library
odd = kafka_library._Layout(time=11, headers_bytes=15)
kafka_library._PRIVATE_LAYOUTS = dict.fromkeys(kafka_library._PRIVATE_LAYOUTS, odd)
"""
WRONG = "a-wrong-one-93ab"


@pytest.mark.parametrize("fetch", ["columns", "objects"])
def test_header_names_that_are_no_text_go_aside_and_hold_nothing_up(
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
    assert [tuple(row)[2:] for row in rig.links() if row.kind == "block"][-1][2] == 22
    letters = rig.execute(
        "SELECT reason, bytes FROM forebay.dead_letters WHERE receiver_id = :id ORDER BY id", id=rig.receiver_ids[0]
    )
    assert [tuple(letter) for letter in letters] == [
        ("invalid_encoding", len(b"odd")),
        ("invalid_encoding", len(f"{topic.name}/0, offset 11")),
    ]
    assert rig.said(f"{topic.name}/0, offset 10")
    assert not rig.said("reading from Kafka failed")
    # Behind them nothing is read again.
    second = rig.start()
    topic.send(1, partition=0)
    eventually(lambda: topic.all_came(rig), "one more")
    stop(second)
    [(letters_now,)] = rig.execute("SELECT count(*) FROM forebay.dead_letters")
    assert letters_now == 2


def test_a_client_library_that_is_not_as_expected_is_left_and_records_are_read_as_objects(
    any_kafka: AnyKafka, make_rig: Callable[..., SourceRig]
) -> None:
    topic = KafkaTopic(any_kafka)
    topic.send(100)
    rig = make_rig(topic.source())
    process = rig.start(first=ODD_LIBRARY)
    with topic.sending():
        eventually(lambda: rig.said("records are read as objects from now on"), "the change")
        eventually(lambda: rig.registered() > 200, "200 records")
    eventually(lambda: topic.all_came(rig), "everything")
    assert process.poll() is None
    stop(process)
    topic.check_each_came_once(rig)


@dataclass(frozen=True, slots=True)
class _Watched:
    """Partition 0 of a topic of a cluster."""

    client: AdminClient
    topic: str

    def leader(self) -> int:
        return int(self._partition().leader)

    def replicas_in_sync(self) -> int:
        return len(self._partition().isrs)

    def lead_by_preferred(self) -> None:
        """Give each partition to the broker that is to lead it."""
        chosen = [TopicPartition(self.topic, partition) for partition in range(3)]
        self.client.elect_leaders(ElectionType.PREFERRED, chosen).result(30)

    def _partition(self) -> Any:  # noqa: ANN401  of the client
        return self.client.list_topics(self.topic, timeout=10).topics[self.topic].partitions[0]


@pytest.mark.timeout(240)
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
    assert {row.kind for row in rig.links()} == {"origin", "block"}


def secured(broker: KafkaBroker, mechanism: str, secret: str) -> dict[str, Any]:
    """Fields of a source that reads by the broker's second listener."""
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
def test_a_password_that_is_wrong_is_said_and_tried_again_and_the_right_one_reads(
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
    eventually(lambda: rig.logs().count("the Kafka client can't log in") >= 3, "three tries")
    secret.write_text(PASSWORD, encoding="utf-8")
    eventually(lambda: topic.all_came(rig), "100 records")
    assert process.poll() is None
    stop(process)
    topic.check_each_came_once(rig)
    shown = rig.logs() + repr([rig.events(), rig.execute("SELECT * FROM forebay.receivers")])
    assert WRONG not in shown
    assert PASSWORD not in shown


def test_a_certificate_that_nobody_vouches_for_is_said(
    kafka_broker: KafkaBroker, make_rig: Callable[..., SourceRig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_KAFKA_PASSWORD", PASSWORD)
    fields = secured(kafka_broker, "PLAIN", "env:TEST_KAFKA_PASSWORD")
    del fields["options"]["ssl.ca.location"]
    rig = make_rig(KafkaTopic(kafka_broker).source(**fields))
    process = rig.start()
    eventually(
        lambda: reason(rig).startswith("trying again: TLS with Kafka fails: check ssl.ca.location"), "the reason"
    )
    stop(process)
    assert PASSWORD not in rig.logs()
