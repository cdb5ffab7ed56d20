"""Open librdkafka's clients on a cluster, and say what their errors mean for a batch. Knows no row and no token."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from orchestration.declarations.sink import SinkError, TargetUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from confluent_kafka.admin import TopicMetadata  # type: ignore[attr-defined]

    from receiver_runtime.receivers.kafka.declaration import Option

#: Seconds to wait for an answer of the brokers.
ANSWER_SECONDS: Final = 10.0
# Seconds until a broker knows a topic that was created.
_CREATED_SECONDS = 10.0
_CREATED_POLL_SECONDS = 0.05
# What may be over later without a change of the batch: the brokers are away, or lack replicas or a coordinator now.
_AWAY = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001  librdkafka's own names
        KafkaError._AUTHENTICATION,  # noqa: SLF001
        KafkaError._MSG_TIMED_OUT,  # noqa: SLF001
        KafkaError._RESOLVE,  # noqa: SLF001
        KafkaError._SSL,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
_REFUSED = frozenset(
    {
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
#: Errors of a producer whose transaction another process, or the broker's time limit, has ended.
FENCED: Final = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.PRODUCER_FENCED,
    }
)


@dataclass(frozen=True, slots=True)
class Right:
    """Name operations on a resource, as `kafka-acls` takes them."""

    resource: str
    operations: tuple[str, ...]

    def command(self, user: str) -> str:
        """Return the command that gives them to a user."""
        given = " ".join(f"--operation {one}" for one in self.operations)
        return f"kafka-acls --add --allow-principal 'User:{user}' {given} {self.resource}"


def topic_right(topic: str, *operations: str) -> Right:
    """Return a right on one topic."""
    return Right(f"--topic {topic}", operations)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Name a cluster, with secrets resolved. `where` begins each message; `place` is its part of a `Place`'s key."""

    servers: str
    options: Mapping[str, Option]
    where: str
    place: tuple[str, ...]
    _said: list[str] = field(default_factory=list)

    def producer(self, transactional_id: str, settings: Mapping[str, Option]) -> Producer:
        """Return a producer of transactions; `settings` are defaults, which the declared options replace."""
        ours = {"transactional.id": transactional_id, "enable.idempotence": True, "delivery.report.only.error": True}
        return Producer({**settings, **self._settings(), **ours})

    def consumer(self, *, committed: bool) -> Consumer:
        """Return a consumer without a group's positions: of committed records, or of all. Close it."""
        ours: dict[str, Option] = {
            "group.id": "forebay",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            # A broker that has no more records says so at once.
            "fetch.wait.max.ms": 10,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "auto.offset.reset": "earliest",
            "allow.auto.create.topics": False,
        }
        return Consumer({**self._settings(), **ours})

    def admin(self) -> AdminClient:
        """Return a client of administrators' requests."""
        return AdminClient(self._settings())

    def topic(self, consumer: Consumer, name: str, right: Right) -> TopicMetadata | None:
        """Return what the brokers say of a topic; None if it does not exist."""
        with self.failures(f"the topic {name}", right):
            found: TopicMetadata = consumer.list_topics(name, timeout=ANSWER_SECONDS).topics[name]
            if found.error is not None:
                if found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    return None
                raise KafkaException(found.error)
        return found

    def created_topic(self, consumer: Consumer, name: str, right: Right) -> TopicMetadata:
        """Return what the brokers say of a topic that was created just now."""
        give_up_at = time.monotonic() + _CREATED_SECONDS
        while (found := self.topic(consumer, name, right)) is None:
            if time.monotonic() > give_up_at:
                raise TargetUnavailableError(f"{self.where}: the brokers don't know the new topic {name} yet")
            time.sleep(_CREATED_POLL_SECONDS)
        return found

    @contextmanager
    def failures(self, doing: str, right: Right | None = None) -> Iterator[None]:
        """Raise the client's errors as those of a sink. `right`: what the user needs for it."""
        try:
            yield
        except KafkaException as error:
            raise self.sink_error(error, doing, right) from error

    def sink_error(self, error: KafkaException, doing: str, right: Right | None = None) -> SinkError:
        """Return the error of a sink that a client's error is."""
        reason: KafkaError = error.args[0]
        code, said = reason.code(), " ".join(reason.str().split())
        begin = f"{self.where}: Kafka at {self.servers}: {doing}: "
        if code in _REFUSED:
            user = str(self.options.get("sasl.username", "NAME"))
            way_out = "" if right is None else f": give the right: {right.command(user)}"
            return TargetUnavailableError(f"{begin}{said}{way_out}")
        if code in _AWAY or reason.retriable():
            # The call itself only says that time is over; the client's own report has the reason.
            because = f" ({self._said[-1]})" if self._said else ""
            return TargetUnavailableError(f"{begin}{said}{because}", unreachable=self.place)
        return SinkError(f"{begin}{said}")

    def _settings(self) -> dict[str, Option]:
        def note(error: KafkaError) -> None:
            if error.code() != KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001  it adds nothing to the others
                self._said.append(" ".join(error.str().split()))
                del self._said[:-1]

        # Its own lines would go to standard error; errors are raised, with what `note` has kept.
        return {**self.options, "bootstrap.servers": self.servers, "log_level": 0, "error_cb": note}  # type: ignore[dict-item]
