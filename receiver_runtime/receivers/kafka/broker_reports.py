"""Report what the Kafka client says of the brokers, each thing once in a while.

This module owns what was reported: that the brokers can't be reached, and recent messages. It must never decide what is
read. The client calls back on the reader's thread.
"""

from __future__ import annotations

import math
import re
import time
from typing import TYPE_CHECKING

import structlog
from confluent_kafka import KafkaError, KafkaException

from receiver_runtime.receivers.kafka.broker_questions import QUICK_SECONDS, metadata_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from confluent_kafka import Consumer

    from receiver_runtime.receivers.kafka.declaration import Kafka
    from receiver_runtime.supervisor.receiver import Receiver

_log = structlog.get_logger(__name__)

# Seconds until the same line of the client is logged again, and until the same error of one broker is an event again.
_LINE_SECONDS = 30.0
_ERROR_SECONDS = 600.0
# Seconds between two questions for topics that could not be read.
_TOPIC_SECONDS = 30.0
# Kinds of message that are remembered, at most.
_MOST_KINDS = 1000
# Why a topic, or all of them, can't be read.
_NO_TOPIC = frozenset((KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED))
_NO_GROUP = frozenset((KafkaError.GROUP_AUTHORIZATION_FAILED,))
# What the client says of a broker that it can't reach. Its other errors are about topics, partitions and requests.
_UNAVAILABLE = frozenset((KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT))  # noqa: SLF001  its names
_NUMBER = re.compile(r"\d+")


class BrokerReports:
    """Report errors of the brokers, and restart where an error needs a person. Only the reader's thread uses it."""

    def __init__(self, receiver: Receiver, source: Kafka) -> None:
        self._receiver = receiver
        self._source = source
        #: That the brokers can't be reached is reported once, not with each of the client's attempts.
        self.are_unreachable = False
        self._recent_errors = _RecentMessages(_ERROR_SECONDS)
        self._missing: set[str] = set()
        self._ask_at = 0.0

    def note_answer(self) -> None:
        """Note that a broker has answered."""
        if self.are_unreachable:
            self.are_unreachable = False
            self._receiver.report_degraded("brokers", None)
            self._receiver.report_connected(self._source.address)

    def on_unread_topic(self, topic: str, error: KafkaError) -> None:
        """Show that a topic, or each one, is not read because of this error, if it says so."""
        if error.code() in _NO_TOPIC:
            self._missing.add(topic)
            self._receiver.report_degraded(f"topic {topic}", f"the topic {topic!r} can't be read: {error.str()}")
        elif error.code() in _NO_GROUP:
            self._receiver.report_degraded("group", f"the group {self._source.group!r} can't be used: {error.str()}")

    def note_assigned(self, topics: Iterable[str]) -> None:
        """Note that the group has given us partitions of these topics."""
        self._receiver.report_degraded("group", None)
        self._found(topics)

    def look_for_topics(self, consumer: Consumer) -> None:
        """Ask now and then for the topics that could not be read: the group may give their partitions to others alone.

        The client says once that a topic has an error, and never that it has none any more.
        """
        if not self._missing or self.are_unreachable or time.monotonic() < self._ask_at:
            return
        try:
            self._found([one for one in self._missing if metadata_of(consumer, one, QUICK_SECONDS).error is None])
        except KafkaException as error:
            _log.info("the brokers don't say whether a topic exists", topics=sorted(self._missing), error=str(error))
        self._ask_at = time.monotonic() + _TOPIC_SECONDS

    def _found(self, topics: Iterable[str]) -> None:
        for topic in self._missing.intersection(topics):
            self._missing.discard(topic)
            self._receiver.report_degraded(f"topic {topic}", None)

    def on_error(self, error: KafkaError) -> None:
        """Report an error that the client calls back with."""
        options = self._source.options
        if error.fatal():
            self._receiver.restart("the Kafka client failed", KafkaException(error))
        elif error.code() == KafkaError._AUTHENTICATION:  # noqa: SLF001  librdkafka's own name for it
            # A corrected secret is read at the next start.
            self._refuse(
                f"Kafka refuses the user {options.get('sasl.username')!r}: check sasl.username, sasl.mechanism and the "
                f"secret of sasl.password ({options.get('sasl.password')})",
                error,
            )
        elif error.code() == KafkaError._SSL:  # noqa: SLF001  as above
            self._refuse(
                "TLS with Kafka fails: check ssl.ca.location, the names in the broker's certificate, and its port",
                error,
            )
        elif error.code() != KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001  as above
            # One broker may be unavailable for days, and be tried repeatedly, while records come from the others.
            if self._recent_errors.is_new(error.str()):
                what = (
                    "a Kafka broker is unavailable" if error.code() in _UNAVAILABLE else "the Kafka client has an error"
                )
                self._receiver.report_error(what, KafkaException(error))
        elif not self.are_unreachable:
            self.are_unreachable = True
            self._receiver.report_error("Kafka can't be reached", KafkaException(error))
            self._receiver.report_degraded("brokers", f"Kafka can't be reached: {error.str()}")

    def _refuse(self, sentence: str, error: KafkaError) -> None:
        """Restart with this sentence as the reason; the client's own error is reported once, as an event."""
        if not self.are_unreachable:
            self.are_unreachable = True
            self._receiver.report_error("the Kafka client can't log in", KafkaException(error))
        self._receiver.restart(sentence)


class _RecentMessages:
    """Remember recent messages. Messages that differ only in numbers count as the same."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._at: dict[str, float] = {}

    def is_new(self, said: str) -> bool:
        """Return whether the message was not seen for ``seconds``; it counts as seen now."""
        kind = _NUMBER.sub("", said)
        now = time.monotonic()
        if now - self._at.get(kind, -math.inf) < self._seconds:
            return False
        # This many are not different kinds: they differ in something that is not a number.
        if len(self._at) >= _MOST_KINDS:
            self._at.clear()
        self._at[kind] = now
        return True


class ClientLog:
    """Log librdkafka's own lines; a line that it repeats, up to ten times a second, is logged only every 30 s."""

    def __init__(self) -> None:
        self._said = _RecentMessages(_LINE_SECONDS)

    def log(self, level: int, message: str, *arguments: object) -> None:
        """Log a line, as ``logging.Logger.log`` does."""
        said = message % arguments if arguments else message
        if self._said.is_new(said):
            _log.info("the Kafka client says", level=level, message=said)
