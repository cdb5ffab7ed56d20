"""Check what a receiver reports and logs of its brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ClusterMetadata, TopicMetadata  # type: ignore[attr-defined]
from structlog.testing import capture_logs

from receiver_runtime.receivers.kafka.broker_reports import BrokerReports, ClientLog
from receiver_runtime.receivers.kafka.declaration import Kafka
from receiver_runtime.receivers.kafka.receiver import KafkaReceiver
from tests.unit.receiver_runtime.rig import rig

if TYPE_CHECKING:
    from pathlib import Path


def test_a_topic_whose_partitions_others_have_is_no_longer_missing(tmp_path: Path) -> None:
    source = Kafka(bootstrap_servers="127.0.0.1:1", topics=["t", "u"], group="g")
    receiver = KafkaReceiver(source)
    says: dict[str, KafkaError | None] = {}
    asked: list[str] = []

    class Brokers:
        def list_topics(self, topic: str, timeout: float) -> ClusterMetadata:
            asked.append(topic)
            if topic not in says:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            found = TopicMetadata()
            found.error = says[topic]
            answer = ClusterMetadata()
            answer.topics = {topic: found}
            return answer

    def reason(brokers: BrokerReports) -> str:
        brokers._ask_at = 0.0
        brokers.look_for_topics(Brokers())  # type: ignore[arg-type]
        return made.reporter.reasons[-1]

    with rig(tmp_path, receiver, start=False) as made:
        brokers = BrokerReports(receiver, source)
        brokers.look_for_topics(Brokers())  # type: ignore[arg-type]
        assert asked == []
        missing = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        brokers.on_unread_topic("t", missing)
        assert reason(brokers).startswith("degraded: the topic 't'")
        says["t"] = missing
        assert reason(brokers).startswith("degraded: the topic 't'")
        says["t"] = None
        before = len(asked)
        brokers.look_for_topics(Brokers())  # type: ignore[arg-type]
        assert len(asked) == before, "asked again at once"
        assert "the topic 't'" not in reason(brokers)


def test_repeated_lines_of_the_client_are_logged_once_in_a_while() -> None:
    """The client tries an unavailable broker ten times a second."""
    client_log = ClientLog()
    with capture_logs() as logged:
        for number in range(100):
            client_log.log(3, "Connect to %s failed (after %dms)", "127.0.0.1:9092", number)
        client_log.log(3, "another")
    assert [line["message"] for line in logged] == ["Connect to 127.0.0.1:9092 failed (after 0ms)", "another"]


def test_an_unavailable_broker_is_reported_once_while_others_send_records(tmp_path: Path) -> None:
    source = Kafka(bootstrap_servers="127.0.0.1:1", topics="t", group="g")
    receiver = KafkaReceiver(source)
    with rig(tmp_path, receiver, start=False) as made:
        brokers = BrokerReports(receiver, source)
        for number in range(10):
            refused = f"a.example:9092/2: Connect failed: Connection refused (after {number}ms in state CONNECT)"
            brokers.on_error(KafkaError(KafkaError._TRANSPORT, refused))
            brokers.note_answer()
        brokers.on_error(KafkaError(KafkaError._TRANSPORT, "b.example:9092/3: Connect failed"))
        brokers.on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN, "2/2 brokers are down"))
        brokers.on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN, "2/2 brokers are down"))
        brokers.note_answer()
        # A topic that lost partitions is no broker's fault.
        brokers.on_error(KafkaError(KafkaError._UNKNOWN_PARTITION, "t [3]: partition is unknown"))
        messages = [message for _, message, _ in made.reporter.events]
        assert messages[:3] == [*2 * ["a Kafka broker is unavailable"], "Kafka can't be reached"]
        assert len(messages) == 5
        assert messages[3].startswith("connected to")
        assert messages[4] == "the Kafka client has an error"
