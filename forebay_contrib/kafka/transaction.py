"""Produce records in one transaction, with bounded memory, and commit it or leave nothing. Knows no Spark and no batch.

A transactional id has one transaction at a time: a process that begins ends what an earlier one left open, which can't
commit any more (`FENCED`).
"""

from __future__ import annotations

import time
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException

from forebay_contrib.kafka.cluster import FENCED, Right, topic_right
from orchestration.declarations.sink import SinkError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa
    from confluent_kafka import Message, Producer

    from forebay_contrib.kafka.cluster import Cluster
    from receiver_runtime.receivers.kafka.declaration import Option

#: Milliseconds until the brokers end a transaction whose process has died, and that no other one has ended before.
TIMEOUT_MS: Final = 300_000
#: The client's settings, unless others are declared. Keys are spread as Java's clients do.
SETTINGS: Final[Mapping[str, Option]] = {
    "partitioner": "murmur2_random",
    "queue.buffering.max.kbytes": 65_536,
    "transaction.timeout.ms": TIMEOUT_MS,
}
_BEGIN_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.01
# Records between two turns of the client's callbacks.
_TURN: Final = 10_000

Header = tuple[str, str | bytes | None]


class FencedError(SinkError):
    """This transaction was ended by another process with its transactional id, or by the brokers' time limit."""


class Transaction:
    """Hold one transaction. `begin`, then `send`, `flush`, and `commit` or `abort`."""

    def __init__(self, cluster: Cluster, transactional_id: str, settings: Mapping[str, Option]) -> None:
        self._cluster, self._id = cluster, transactional_id
        with cluster.failures("its options"):
            made = {**SETTINGS, **settings, "on_delivery": self._note}
            self._producer: Producer = cluster.producer(transactional_id, made)  # type: ignore[arg-type]
        self._seconds = int(cluster.options.get("transaction.timeout.ms", TIMEOUT_MS)) / 1000
        self._error: KafkaError | None = None
        self._failed = "TOPIC"
        # All ids of the output begin alike.
        ids = f"--transactional-id '{transactional_id.rpartition('/')[0]}/' --resource-pattern-type prefixed"
        self._right = Right(ids, ("Describe", "Write"))

    def fence(self) -> None:
        """End the transaction that an earlier process with this id has left open, and keep it from committing."""
        with self._cluster.failures(f"the transactional id {self._id!r}", self._right):
            self._retry(self._producer.init_transactions, _BEGIN_SECONDS)

    def begin(self) -> None:
        """Begin, after `fence`."""
        with self._cluster.failures("a transaction can't begin"):
            self._producer.begin_transaction()

    def send(self, records: pa.RecordBatch, topic: str, headers: Sequence[Header] = ()) -> None:
        """Send the columns `topic` (null: `topic`), `key`, `value`, `headers`; wait while the queue is full."""
        to, keys, values, own = (records[name] for name in ("topic", "key", "value", "headers"))
        of_all = [*headers]
        named: Iterable[list[Header]] = repeat(of_all, len(own))
        if own.null_count < len(own):
            named = (
                of_all if some is None else [*((one["key"], one["value"]) for one in some), *headers]
                for some in own.to_pylist()
            )
        rows = zip(to.to_pylist(), values.to_pylist(), keys.to_pylist(), named, strict=True)
        produce, poll = self._producer.produce, self._producer.poll
        # No call of our own for a record: there may be a million.
        for number, (name, value, key, with_headers) in enumerate(rows):
            while True:
                try:
                    produce(name or topic, value, key, headers=with_headers)
                except BufferError:
                    poll(_POLL_SECONDS)
                    self._check()
                except KafkaException as error:
                    raise self._failure(error) from error
                else:
                    break
            if not number % _TURN:
                poll(0)
                self._check()

    def send_token(self, topic: str, key: bytes, value: bytes, time_ms: int) -> None:
        """Send a record to partition 0, with this time."""
        try:
            self._producer.produce(topic, value, key, partition=0, timestamp=time_ms)
        except KafkaException as error:
            raise self._failure(error) from error

    def flush(self) -> None:
        """Wait until the brokers have all records. Raises the error of the first one that was refused."""
        give_up_at = time.monotonic() + self._seconds
        while self._producer.flush(1.0) and self._error is None and time.monotonic() < give_up_at:
            continue
        self._check()

    def commit(self) -> None:
        """Commit. If its outcome is not known, a later process that begins with this id finds what it was."""
        try:
            self._retry(self._producer.commit_transaction, self._seconds)
        except KafkaException as error:
            raise self._failure(error) from error

    def abort(self) -> None:
        """Leave nothing, if the brokers answer; else they end it themselves."""
        try:
            self._producer.purge()
            self._producer.abort_transaction(_BEGIN_SECONDS)
        except KafkaException:
            return

    def _check(self) -> None:
        """Raise the error of the first record that the brokers have refused."""
        if self._error is not None:
            raise self._failure(KafkaException(self._error))

    def _failure(self, error: KafkaException) -> SinkError:
        """Return the error that a failed record or commit is; the first record's own error says the most."""
        first = self._error or error.args[0]
        if error.args[0].code() in FENCED or first.code() in FENCED:
            return FencedError(
                f"{self._cluster.where}: the transaction {self._id!r} was ended by another process that began with "
                f"this id, or because it took more than {self._seconds:g} s: nothing of it is committed. "
                "options={'transaction.timeout.ms': …} may be as much as the brokers' transaction.max.timeout.ms"
            )
        doing = f"the topic {self._failed}: the records are not taken"
        if first.code() == KafkaError.INVALID_RECORD:
            doing += " (one that is compacted takes none without a key)"
        return self._cluster.sink_error(KafkaException(first), doing, topic_right(self._failed, "Describe", "Write"))

    def _retry(self, call: Any, seconds: float) -> None:  # noqa: ANN401
        """Call again while the client says that it may work."""
        give_up_at = time.monotonic() + seconds
        while True:
            try:
                call(max(1.0, give_up_at - time.monotonic()))
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > give_up_at:
                    raise
            else:
                return

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._error is None:
            self._error, self._failed = error, str(message.topic())
