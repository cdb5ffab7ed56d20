"""Ask the brokers about topics and the group. This module owns the client for that; it must never read a record."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import structlog
from confluent_kafka import Consumer, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ListOffsetsResultInfo,
    OffsetSpec,
    TopicMetadata,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from concurrent.futures import Future

    from receiver_runtime.receivers.kafka.declaration import Option
    from receiver_runtime.receivers.kafka.partition_key import Key

    EndAnswer = Future[ListOffsetsResultInfo]

_log = structlog.get_logger(__name__)

BROKER_SECONDS: Final = 10.0  # how long to wait for an answer of the broker
#: Seconds to wait for the regular checks, which interrupt reading.
QUICK_SECONDS: Final = 2.0
# Seconds without further questions after brokers did not answer one about topics at all.
_SILENT_SECONDS = 300.0
_ID_BITS: Final = 2**63 - 1


def metadata_of(consumer: Consumer, topic: str, seconds: float = BROKER_SECONDS) -> TopicMetadata:
    """Return what the brokers say of a topic. Raises KafkaException."""
    found: TopicMetadata = consumer.list_topics(topic, timeout=seconds).topics[topic]
    return found


class BrokerQuestions:
    """Ask what only an administrator's client can. Only the reader's thread uses it.

    Args:
        settings: the consumer's options.
    """

    def __init__(self, settings: Mapping[str, Option]) -> None:
        self._settings = settings
        self._admin: AdminClient | None = None
        self._ask_after = 0.0

    def close(self) -> None:
        """Close the client."""
        self._admin = None

    def topic_ids(self, topics: Collection[str], seconds: float) -> dict[str, int]:
        """Return topics' ids. A topic without one is left out: the broker is too old, or a permission is missing."""
        if not topics or time.monotonic() < self._ask_after:
            return {}
        found: dict[str, int] = {}
        asked = self._asking().describe_topics(TopicCollection(list(topics)), request_timeout=seconds)
        for topic, answer in asked.items():
            try:
                topic_id = answer.result(seconds).topic_id
            except KafkaException as error:
                _log.info("the brokers do not say a topic's id", topic=topic, error=str(error))
                continue
            except TimeoutError:
                # If brokers do not answer at all, do not wait for them at each rebalance.
                _log.info("the brokers do not say a topic's id in time", topic=topic, seconds=seconds)
                self._ask_after = time.monotonic() + _SILENT_SECONDS
                break
            # Cut to as many bits as an offset has; zero means no id.
            if bits := (topic_id.get_least_significant_bits() ^ topic_id.get_most_significant_bits()) & _ID_BITS:
                found[topic] = bits
        return found

    def ask_ends(self, partitions: Iterable[Key]) -> dict[Key, EndAnswer]:
        """Ask for the offset after the newest record of partitions; return at once, with answers that come later."""
        if time.monotonic() < self._ask_after:
            return {}
        newest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = self._asking().list_offsets(
            {TopicPartition(*key): newest for key in partitions}, request_timeout=QUICK_SECONDS
        )
        return {(one.topic, one.partition): answer for one, answer in asked.items()}

    def members(self, group: str) -> set[str]:
        """Return the client ids of a group's members; none if the brokers do not answer."""
        if time.monotonic() < self._ask_after:
            return set()
        try:
            asked = self._asking().describe_consumer_groups([group], request_timeout=QUICK_SECONDS)
            members = asked[group].result(QUICK_SECONDS).members
        except (KafkaException, TimeoutError) as error:
            _log.info("the brokers do not say who is in the group", group=group, error=repr(error))
            return set()
        return {member.client_id for member in members}

    def _asking(self) -> AdminClient:
        if self._admin is None:
            # Log nothing: it would warn of a consumer's options, and the consumer reports the brokers' errors.
            self._admin = AdminClient({**self._settings, "log_level": 0})
        return self._admin
