"""Find out what the brokers have of each partition that is not read.

The high watermark comes with each answer to a fetch. But a client whose queue is full does not fetch, and a throttled
receiver has a full queue: then the brokers are asked for it, and the answer counts at the next look. This module owns
these questions. It must never wait for an answer, or decide what is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracker_store.receivers.source_lag import Place, Unread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from receiver_runtime.receivers.kafka.broker_questions import EndAnswer
    from receiver_runtime.receivers.kafka.partition_key import Key
    from receiver_runtime.receivers.kafka.records import Records

    #: Asks for partitions' ends; see ``BrokerQuestions.ask_ends``.
    AskEnds = Callable[[Iterable[Key]], Mapping[Key, EndAnswer]]


class KafkaUnread:
    """Hold what is known of partitions' ends; see the module. Only the reader's thread uses it."""

    def __init__(self) -> None:
        self._asked: dict[Key, EndAnswer] = {}
        # The time of the newest record that was read, in milliseconds since 1970; None: it has none.
        self._times: dict[Key, int | None] = {}

    def note_read(self, records: Records) -> None:
        """Note the times of the newest records."""
        times = records.batch.column("timestamp")
        for run in records.runs:
            self._times[run.topic, run.partition] = times[run.end - 1].value

    def forget(self, key: Key) -> None:
        """Forget a partition: it is another member's, or another log, by now."""
        self._asked.pop(key, None)
        self._times.pop(key, None)

    def find(self, positions: Mapping[Key, int], fetched: Mapping[Key, int], ask: AskEnds) -> dict[Place, Unread]:
        """Return what is unread of each partition whose end is known.

        Args:
            positions: the next offset to read of each partition.
            fetched: the ends that came with fetched records.
            ask: used for the partitions that have something unread.
        """
        ends = dict(fetched)
        for key, answer in list(self._asked.items()):
            if answer.done():
                del self._asked[key]
                if answer.exception() is None:
                    ends[key] = max(answer.result().offset, ends.get(key, 0))
        behind = [key for key, at in positions.items() if ends.get(key, 0) > at and key not in self._asked]
        if behind:
            self._asked.update(ask(behind))
        found: dict[Place, Unread] = {}
        for key, end in ends.items():
            if key in positions:
                time = self._times.get(key)
                found[key[0], str(key[1])] = Unread(
                    max(0, end - positions[key]),
                    "records",
                    end=end,
                    oldest_at=None if time is None else time / 1000,
                )
        return found
