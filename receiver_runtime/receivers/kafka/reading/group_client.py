"""Open and close the clients of one start: the group's member, the fetcher of columns, and what asks the brokers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
from confluent_kafka import Consumer

from receiver_runtime.receivers.kafka.broker_reports import BrokerReports, ClientLog
from receiver_runtime.receivers.kafka.group_commits import GroupCommits
from receiver_runtime.receivers.kafka.layout_probe import LibraryError
from receiver_runtime.receivers.kafka.library import ColumnFetcher, Library
from receiver_runtime.receivers.kafka.places import KafkaPlaces

if TYPE_CHECKING:
    from collections.abc import Mapping

    from receiver_runtime.receivers.kafka.declaration import Kafka, Option
    from receiver_runtime.supervisor.receiver import Receiver

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class GroupClient:
    """Hold the clients. If there is a ``fetcher``, it fetches, and the ``consumer`` is only a member of the group."""

    consumer: Consumer
    fetcher: ColumnFetcher | None
    places: KafkaPlaces
    brokers: BrokerReports
    commits: GroupCommits
    #: Whether partitions are assigned incrementally; the opposite is an eager assignment of all at once.
    is_cooperative: bool = True

    @classmethod
    def open(cls, receiver: Receiver, source: Kafka, library: Library | None) -> GroupClient:
        """Make the clients; nothing is subscribed. Raises for an option that is wrong, or a secret that is missing."""
        settings = _settings(source, receiver.supervisor.stream_name)
        fetcher = None if library is None else _make_fetcher(library, settings)
        brokers, commits = BrokerReports(receiver, source), GroupCommits(receiver)
        try:
            consumer = Consumer(
                {**settings, "error_cb": brokers.on_error, "on_commit": commits.on_commit, "logger": ClientLog()}
            )
            places = KafkaPlaces(receiver, source, consumer, settings)
        except BaseException:
            if fetcher is not None:
                fetcher.close()
            raise
        is_cooperative = "cooperative" in str(settings["partition.assignment.strategy"])
        return cls(consumer, fetcher, places, brokers, commits, is_cooperative)

    def close(self) -> None:
        """Leave the group; meanwhile the client calls back that partitions are revoked."""
        try:
            self.consumer.close()
        except Exception as error:  # noqa: BLE001  nothing more can be done; registered blocks stay registered
            _log.warning("the Kafka client could not be closed in order", error=str(error))
        if self.fetcher is not None:
            self.fetcher.close()
        self.places.close()


def _make_fetcher(library: Library, settings: Mapping[str, Option]) -> ColumnFetcher | None:
    try:
        return ColumnFetcher(library, settings)
    except LibraryError as error:
        _log.warning("records are read as objects", error=str(error))
        return None


def _settings(source: Kafka, stream_name: str) -> dict[str, Option]:
    exactly_once = source.exactly_once
    defaults: dict[str, Option] = {
        "client.id": f"forebay-{stream_name}",
        "partition.assignment.strategy": "cooperative-sticky",
        # How soon new topics and partitions are noticed.
        "topic.metadata.refresh.interval.ms": 30_000,
        # By default librdkafka fetches nothing for 1 s when its queue is full. We empty the queue in a tenth of it.
        "fetch.queue.backoff.ms": 10,
        # What a broker's disk or the network has changed is fetched again instead of stored.
        "check.crcs": True,
    }
    return {
        **defaults,
        **source.resolved_options(),
        "bootstrap.servers": source.bootstrap_servers,
        "group.id": source.group,
        "enable.auto.commit": not exactly_once,
        "enable.auto.offset.store": not exactly_once,
        # The client must not choose another position by itself: what that leaves out is reported.
        "auto.offset.reset": "error",
    }
