"""Read a consumer group's share of partitions into blocks, on one thread, from one ``on_start`` to its ``on_stop``.

Only the driver log decides how far a partition was read. A position here is the driver log's position, plus what was
handed over since. A block is registered only if the log's position is exactly where the block's records begin. So no
record that is read here can be left out or stored twice, even if another receiver believes that it owns the partition.

- *Assigned*: before a partition is read, its position is read from the driver log, or its origin is recorded there.
- *Revoked or lost*: wait for what was handed over, and drop what was read and not handed over. The next owner continues
  from the driver log. Positions are committed to the broker afterwards, only for monitoring.
- *Conflict*: another receiver has moved a partition's position (this one was thought dead). All blocks in flight are
  dropped, and all positions are read from the driver log again.
- If partitions were assigned or revoked during a call to the client, everything that this call returned is dropped and
  read again: it may have been read before the change.
- *Columns*: if there is a library for it (``library``), the group's consumer is paused and fetches nothing. A fetcher
  that is in no group fetches the assigned partitions, from the positions held here. Then partitions come and go only
  between two fetches, never during one.
- *Out of range*: the next offset is not on the broker. ``places`` decides where to continue. The links that record this
  go in with the next block, and the event is reported at once.
- *Late*: a partition that has used up its rate (``partition_rates``) is not fetched, and what was fetched of it beyond
  that rate is not handed over yet. Its position does not move, and it is read from there again.
- *Waiting*: the broker can't say where to begin in a partition that has no leader, or that we may not read. Such a
  partition stays assigned but is not read; it is tried again regularly, and the others are read meanwhile.
"""

from __future__ import annotations

import math
import re
import threading
import time
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from receiver_runtime.block_path.block_handler import DeadLetter
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.kafka.broker_questions import BROKER_SECONDS
from receiver_runtime.receivers.kafka.broker_reports import BrokerReports, ClientLog
from receiver_runtime.receivers.kafka.group_commits import GroupCommits
from receiver_runtime.receivers.kafka.layout_probe import LibraryError
from receiver_runtime.receivers.kafka.library import ColumnFetcher, Library
from receiver_runtime.receivers.kafka.partition_rates import PartitionRates
from receiver_runtime.receivers.kafka.places import KafkaPlaces, Look, OutOfRangeError, Partition
from receiver_runtime.receivers.kafka.records import BadRecord, RecordRun, Records, records_of
from receiver_runtime.receivers.kafka.unread import KafkaUnread
from receiver_runtime.receivers.linked_hand_over import LinkedHandOver
from tracker_store.blocks.blocks import OffsetLink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from receiver_runtime.receivers.kafka.declaration import Kafka, Option
    from receiver_runtime.receivers.kafka.partition_key import Key
    from receiver_runtime.supervisor.receiver import Receiver
    from tracker_store.receivers.source_lag import Place, Unread

_log = structlog.get_logger(__name__)


# Messages, at most, of one fetch as objects; each takes a few hundred bytes of memory besides its data.
_MOST_MESSAGES = 20_000
# Messages, at most, of one fetch as columns: many, because each block is synced.
_MOST_AT_ONCE = 50_000
_LEAST_MESSAGES = 100
# Seconds, the longest fetch: short, so that the group's coordinator hears from us in time and a stop is quick.
_LONGEST_FETCH = 1.0
_IDS_SECONDS = 30.0  # between two looks at topics' ids and the group's members
# The pause between two attempts to open waiting partitions: at least this many seconds, and at least this many times
# the duration of the last attempt.
_WAIT_SECONDS = 1.0
_WAIT_TIMES = 5
# In librdkafka's message: the offset up to which the broker's log is still the one that was read.
_CUT = re.compile(r"log truncation detected .*broker end offset is (\d+)")
_RESET = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001  librdkafka's own name for it


class KafkaReader:
    """Read partitions; see the module. Call ``start`` and ``stop`` once.

    ``library`` fetches, if it is given. ``on_library_failure`` is called when the library does not behave as expected.
    """

    def __init__(
        self,
        receiver: Receiver,
        source: Kafka,
        library: Library | None = None,
        on_library_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self._receiver = receiver
        self._on_library_failure = on_library_failure
        self._supervisor = receiver.supervisor
        self._source = source
        self._library = library
        # Whether partitions are assigned incrementally; the opposite is an eager assignment of all at once.
        self._cooperative = "cooperative" in str(source.options.get("partition.assignment.strategy", "cooperative"))
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"kafka {source.group}", daemon=True)
        # Only the thread uses everything below; the client calls back on this thread.
        self._consumer: Consumer
        # If there is one, it fetches, and the consumer is only a member of the group.
        self._fetcher: ColumnFetcher | None = None
        self._places: KafkaPlaces
        self._partitions: dict[Key, Partition] = {}
        # Assigned partitions that are not read yet (see the module), each with the offset at which its log was cut, if
        # that is why it waits.
        self._waiting: dict[Key, int | None] = {}
        # Why some of them can't be read.
        self._unreadable: dict[Key, str] = {}
        self._look_at = 0.0
        self._strangers: set[str] = set()
        self._ids_at = time.monotonic() + _IDS_SECONDS
        self._commits = GroupCommits(receiver)
        self._brokers = BrokerReports(receiver, source)
        self._unread = KafkaUnread()
        self._hand_over = LinkedHandOver(receiver, self._commits.note_registered)
        self._rates = PartitionRates(
            source.max_rate_per_partition,
            most_bytes=self._supervisor.settings.max_block_bytes,
            every=self._supervisor.settings.block_interval,
        )
        # Partitions to read from their positions again; until then, their records are dropped.
        self._unsure: set[Key] = set()
        self._moved = False
        self._bytes_each = 1000.0

    def start(self) -> None:
        """Begin to read; return at once."""
        self._thread.start()

    def stop(self) -> None:
        """End; return when what was handed over is registered or refused, and the group is left."""
        self._stopping.set()
        self._thread.join()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            settings = _settings(self._source, self._supervisor.stream_name)
            self._fetcher = None if self._library is None else _make_fetcher(self._library, settings)
            self._consumer = Consumer(
                {
                    **settings,
                    "error_cb": self._brokers.on_error,
                    "on_commit": self._commits.on_commit,
                    "logger": ClientLog(),
                }
            )
            self._places = KafkaPlaces(self._receiver, self._source, self._consumer, settings)
        except Exception as error:  # noqa: BLE001  an option that is wrong, a secret that is missing
            self._receiver.restart("the Kafka client could not be made", error)
            if self._fetcher is not None:
                self._fetcher.close()
            return
        try:
            if self._source.exactly_once:
                self._consumer.subscribe(
                    self._source.subscription,
                    on_assign=self._on_assign,
                    on_revoke=self._on_revoke,
                    on_lost=self._on_lost,
                )
                self._read()
            else:
                self._consumer.subscribe(self._source.subscription, on_assign=self._on_unreliable_assign)
                self._read_unreliably()
        except LibraryError as error:
            self._on_library_failure()
            self._receiver.restart("records are read as objects from now on", error)
        except OutOfRangeError as error:
            self._receiver.stop("what is to be read next is not on the broker", error)
        except BaseException as error:  # noqa: BLE001  reported, and started again
            self._receiver.restart("reading from Kafka failed", error)
        finally:
            self._close()

    def _read(self) -> None:
        while not self._stopping.is_set():
            self._hand_over.collect()
            if self._hand_over.has_conflict:
                self._recover()
            self._pass_waiting()
            if time.monotonic() >= self._look_at:
                self._look_again()
            if time.monotonic() >= self._ids_at:
                self._look_at_ids()
            self._brokers.look_for_topics(self._consumer)
            if self._fetcher is None:
                self._read_objects()
            else:
                self._read_columns(self._fetcher)
            self._commit()
            self._receiver.report_unread(self._find_unread, None if self._fetcher is None else self._count_fetched)

    def _read_objects(self) -> None:
        self._reposition()
        self._moved = False
        messages = self._consumer.consume(self._at_once(), self._pause())
        if self._moved:
            # Read again the messages of partitions that are still assigned.
            self._unsure.update(self._partitions.keys() - self._rates.late)
            return
        good = [message for message in messages if self._is_record(message)]
        if good:
            self._take(*records_of(good))

    def _read_columns(self, fetcher: ColumnFetcher) -> None:
        # Partitions come and go only in this call. Its records, fetched before it was paused, are dropped here: the
        # fetcher reads them.
        for message in self._consumer.consume(_LEAST_MESSAGES, 0):
            self._is_record(message)
        self._reposition()
        fetched = fetcher.fetch(self._at_once(), self._pause())
        for error in fetched.errors:
            self._brokers.on_error(KafkaError(error.code, error.message))
        for fault in fetched.faults:
            self._on_partition_error((fault.topic, fault.partition), KafkaError(fault.code, fault.message))
        if fetched.records or fetched.bad:
            self._take(fetched.records, fetched.bad)

    def _read_unreliably(self) -> None:
        while not self._stopping.is_set():
            self._brokers.look_for_topics(self._consumer)
            messages = self._consumer.consume(self._at_once(), self._pause())
            good = [message for message in messages if self._is_record(message)]
            if good:
                self._brokers.note_answer()
                found, bad = records_of(good)
                _keep_aside(self._receiver, bad)
                for one in found:
                    self._unread.note_read(one)
                    self._supervisor.block_path.push_buffered(one.batch)
            self._receiver.report_unread(self._find_unread)

    def _pause(self) -> float:
        return min(self._supervisor.settings.block_interval, _LONGEST_FETCH, self._rates.pause)

    def _at_once(self) -> int:
        most = int(self._supervisor.settings.max_block_bytes / self._bytes_each)
        bound = _MOST_MESSAGES if self._fetcher is None else _MOST_AT_ONCE
        most = max(_LEAST_MESSAGES, min(bound, most))
        return self._supervisor.block_path.piece(most, 0)

    def _is_record(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            return True
        self._on_partition_error((str(message.topic()), int(message.partition() or 0)), error)
        return False

    def _on_partition_error(self, key: Key, error: KafkaError) -> None:
        if error.code() == _RESET and key in self._partitions:
            self._hand_over.settle()
            cut = _CUT.search(error.str())
            self._wait_for(key, int(cut[1]) if cut else None)
            self._leave([key])
            self._open_waiting()
            opened = self._partitions.get(key)
            if opened is not None and not opened.links:
                # The position exists again, but the log may have been truncated before it and have grown since: the
                # records from there on may be others.
                self._receiver.report_error(
                    "Kafka says an error, reading goes on from the position", KafkaException(error)
                )
        elif error.fatal():
            raise KafkaException(error)
        elif error.code() != _RESET:
            # A reset of a partition that waits, or was revoked, needs no report.
            self._brokers.on_unread_topic(key[0], error)
            self._receiver.report_error("Kafka says an error", KafkaException(error))

    def _take(self, found: Sequence[Records], bad: Sequence[BadRecord]) -> None:
        """Hand over the records that come next in each partition."""
        self._brokers.note_answer()
        next_ones = {key: partition.position for key, partition in self._partitions.items()}
        passing = [one for some in found if (one := self._passing(some, next_ones)) is not None]
        _keep_aside(self._receiver, self._next_bad(bad, passing))
        for records in passing:
            self._push(records)

    def _passing(self, found: Records, next_ones: dict[Key, int]) -> Records | None:
        """Return the records that come next in their partitions, as far as these may pass by their rates."""
        if not found.batch.num_rows:
            return None
        self._bytes_each = max(1.0, found.batch.nbytes / found.batch.num_rows)
        runs = [taken for run in found.runs if (taken := self._next_of(run, found.offsets, next_ones)) is not None]
        if not runs:
            return None
        passing, late = self._rates.divide(found.only(runs))
        if late:
            self._leave(late)
        return passing

    def _pass_waiting(self) -> None:
        """Hand over records that have waited for their partition's rate; fetch late partitions again in time."""
        released = self._rates.release()
        if released is not None:
            self._push(released)
        self._unsure.update(self._rates.returning())

    def _push(self, records: Records) -> None:
        for piece in records.pieces(self._supervisor.settings.max_block_bytes):
            # The links move the positions, which is wrong after a conflict.
            if self._hand_over.has_conflict or not self._hand_over.push(piece.batch, self._links(piece)):
                return
            self._unread.note_read(piece)

    def _next_bad(self, bad: Sequence[BadRecord], passing: Sequence[Records]) -> list[BadRecord]:
        """Return the bad records that come next in their partitions and are not read again."""
        found: list[BadRecord] = []
        for one in bad:
            key = (one.topic, one.partition)
            if key not in self._partitions or key in self._unsure or one.offset < self._partitions[key].position:
                continue
            # A late partition is read again from the last record that passes or waits.
            if key not in self._rates.late or one.offset < max(
                self._rates.waits_until(key), *(_ends(records).get(key, 0) for records in passing), 0
            ):
                found.append(one)
        return found

    def _next_of(self, run: RecordRun, offsets: NDArray[np.int64], next_ones: dict[Key, int]) -> RecordRun | None:
        key = (run.topic, run.partition)
        if key not in next_ones or key in self._unsure or key in self._rates.late:
            return None
        of_run = offsets[run.first : run.end]
        if np.any(np.diff(of_run) <= 0):
            # The client never returns offsets out of order. If it does, drop them and read the partition again.
            self._unsure.add(key)
            return None
        first = run.first + int(np.searchsorted(of_run, next_ones[key]))
        if first == run.end:
            return None
        next_ones[key] = int(offsets[run.end - 1]) + 1
        return RecordRun(run.topic, run.partition, first, run.end)

    def _links(self, piece: Records) -> list[OffsetLink]:
        """Return the links of a piece's partitions, and all links that waited for a block.

        Each link begins exactly at its partition's position, and the position moves to the link's end.
        """
        links: list[OffsetLink] = []
        for partition in self._partitions.values():
            links += partition.links
            partition.links = []
        for (topic, number), end in _ends(piece).items():
            partition = self._partitions[topic, number]
            links.append(OffsetLink(topic, str(number), partition.generation, partition.position, end))
            partition.position = end
        return links

    # -- blocks in flight --------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Recover from a conflict: drop the blocks in flight, and read the positions from the driver log."""
        self._hand_over.recover()
        keys = list(self._partitions)
        self._leave(keys)
        self._open_all(keys)

    # -- partitions that come and go (called back within `consume` and `close`) --------------------------------------

    def _on_assign(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        self._moved = True
        # They are opened after this callback. A consumer that is queried within its callback, with a call that waits,
        # ends the process at the next callback of the same call (`CallState_get`).
        for one in assigned:
            self._wait_for((one.topic, one.partition))
        self._look_at = 0.0
        positions = [self._topic_partition((one.topic, one.partition)) for one in assigned]
        if self._cooperative:
            consumer.incremental_assign(positions)
        else:
            consumer.assign(positions)
        consumer.pause(positions)
        self._brokers.note_assigned({one.topic for one in assigned})
        ours = len(self._partitions) + len(self._waiting)
        self._receiver.report_connected(f"{self._source.address}, {ours} partitions")

    def _on_revoke(self, _: Consumer, revoked: list[TopicPartition]) -> None:
        self._moved = True
        self._hand_over.settle()
        self._commit(now=True)
        self._forget(revoked)

    def _on_lost(self, _: Consumer, lost: list[TopicPartition]) -> None:
        self._moved = True
        self._hand_over.settle()
        self._forget(lost)
        self._receiver.report_error(f"the group gave {len(lost)} partitions to others without asking us")

    def _leave(self, keys: Sequence[Key]) -> None:
        """Stop fetching these partitions until they are read from a position."""
        if self._fetcher is not None:
            self._fetcher.leave(keys)
        else:
            self._consumer.pause([TopicPartition(*key) for key in keys])

    def _forget(self, gone: Sequence[TopicPartition]) -> None:
        if self._fetcher is not None:
            self._fetcher.leave([(one.topic, one.partition) for one in gone])
        for one in gone:
            key = (one.topic, one.partition)
            self._partitions.pop(key, None)
            self._waiting.pop(key, None)
            self._unreadable.pop(key, None)
            self._commits.forget(key)
            self._unsure.discard(key)
            self._rates.forget(key)
            self._unread.forget(key)
        self._show_unreadable()

    def _on_unreliable_assign(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        positions = assigned
        if isinstance(self._source.start, datetime):
            positions = [
                one
                if one.offset >= 0
                else TopicPartition(one.topic, one.partition, self._places.start_unreliably((one.topic, one.partition)))
                for one in consumer.committed(assigned, timeout=BROKER_SECONDS)
            ]
        if self._cooperative:
            consumer.incremental_assign(positions)
        else:
            consumer.assign(positions)
        self._brokers.note_assigned({one.topic for one in assigned})
        self._receiver.report_connected(self._source.address)

    # -- positions ---------------------------------------------------------------------------------------------------

    def _topic_partition(self, key: Key) -> TopicPartition:
        # The position does not matter for a partition that waits: it is paused.
        return TopicPartition(*key, self._partitions[key].position if key in self._partitions else 0)

    def _reposition(self) -> None:
        """Have partitions read from their positions; the client drops the records of them that it holds.

        A seek would not do: after an error a partition is not being fetched, and can't seek.
        """
        if not self._unsure:
            return
        unsure = sorted(self._unsure)
        if self._fetcher is not None:
            self._fetcher.read_from({key: self._partitions[key].position for key in unsure})
        else:
            if self._cooperative:
                self._consumer.incremental_unassign([TopicPartition(*key) for key in unsure])
                self._consumer.incremental_assign([self._topic_partition(key) for key in unsure])
            else:
                self._consumer.assign([self._topic_partition(key) for key in (*self._partitions, *self._waiting)])
                self._consumer.pause([TopicPartition(*key) for key in (*self._waiting, *self._rates.late)])
            # Partitions that waited were paused.
            self._consumer.resume([TopicPartition(*key) for key in unsure])
        self._unsure.clear()

    def _open_all(self, keys: Iterable[Key]) -> None:
        for key in list(keys):
            self._wait_for(key)
        self._open_waiting()

    def _wait_for(self, key: Key, cut_at: int | None = None) -> None:
        self._partitions.pop(key, None)
        self._unsure.discard(key)
        self._rates.forget(key)
        self._unread.forget(key)
        self._waiting[key] = cut_at

    def _look_again(self) -> None:
        """Ask the brokers again for what they could not answer yet."""
        began = time.monotonic()
        begun = self._places.beginning.record()
        if self._waiting:
            self._open_waiting()
        elif begun:
            self._look_at = math.inf
        else:
            self._look_later(began)

    def _look_at_ids(self) -> None:
        """Check regularly for changes that neither the group nor the client reports.

        A topic may be deleted and created again so quickly that neither notices: the client reads on in the new one.
        And another stream may use the same group; then each stream gets only a part of the partitions.
        """
        self._ids_at = time.monotonic() + _IDS_SECONDS
        if self._brokers.are_unreachable:
            return
        if recreated := self._places.made_anew(list(self._partitions)):
            self._hand_over.settle()
            self._leave(recreated)
            self._open_all(recreated)
        strangers = self._places.strangers()
        if strangers - self._strangers:
            self._receiver.report_error(
                f"the group {self._source.group} has members that are not this stream's receivers "
                f"({', '.join(sorted(strangers))}): what they are given does not come here. Give each stream a group "
                "of its own"
            )
        self._strangers = strangers

    def _look_later(self, began: float) -> None:
        now = time.monotonic()
        self._look_at = now + max(_WAIT_SECONDS, _WAIT_TIMES * (now - began))

    def _open_waiting(self) -> None:
        """Open the waiting partitions whose next position the brokers can say now."""
        began = time.monotonic()
        keys = list(self._waiting)
        try:
            look = self._places.look(keys)
        except KafkaException as error:
            look = Look(dict.fromkeys(keys, error.args[0]))
        silent: set[int] = set()
        for key in keys:
            leader = look.leaders[key]
            if isinstance(leader, int):
                if leader in silent or self._stopping.is_set():
                    continue
                try:
                    opened = self._places.open(key, look, self._waiting[key])
                except KafkaException as error:
                    if error.args[0].code() == KafkaError._TIMED_OUT:  # noqa: SLF001  librdkafka's own name for it
                        silent.add(leader)
                    leader = error.args[0]
                else:
                    del self._waiting[key]
                    self._unreadable.pop(key, None)
                    self._partitions[key] = opened
                    self._unsure.add(key)
                    continue
            self._note_waiting(key, leader)
        self._show_unreadable()
        self._look_later(began)

    def _show_unreadable(self) -> None:
        why = None
        if self._unreadable:
            ((topic, number), said), *others = self._unreadable.items()
            why = f"{topic}/{number} can't be read: {said}" + (f"; {len(others)} others too" if others else "")
        self._receiver.report_degraded("partitions", why)

    def _note_waiting(self, key: Key, error: KafkaError) -> None:
        # Move it behind the partitions that have not been tried yet.
        self._waiting[key] = self._waiting.pop(key)
        if key not in self._unreadable:
            self._unreadable[key] = error.str()
            self._receiver.report_error(
                f"{key[0]}/{key[1]} can't be read now, the others are; it is tried again", KafkaException(error)
            )

    # -- the broker's copy of the positions --------------------------------------------------------------------------

    def _commit(self, *, now: bool = False) -> None:
        """Commit to the broker what is registered, if it is time to, or ``now``."""
        if not (now or self._commits.is_due):
            return
        ends = self._commits.take_registered(self._partitions)
        if self._hand_over.is_idle and not self._hand_over.has_conflict:
            # Only markers of transactions lie between: commit past them, so that the group's lag can reach zero.
            ends |= {key: offset for key, offset in self._passed().items() if offset > self._partitions[key].position}
        self._commits.commit(self._consumer, ends)

    def _passed(self) -> dict[Key, int]:
        """Return how far the client has read, if that is known: past transaction markers, which are no records."""
        # The client has read more of a late partition than was handed over.
        keys = [key for key in self._partitions if key not in self._unsure and key not in self._rates.late]
        if self._fetcher is not None:
            return self._fetcher.passed(keys)
        found = self._consumer.position([TopicPartition(*key) for key in keys]) if keys else ()
        return {(one.topic, one.partition): one.offset for one in found if one.error is None and one.offset >= 0}

    # -- what is not read --------------------------------------------------------------------------------------------

    def _find_unread(self) -> Mapping[Place, Unread]:
        if self._source.exactly_once:
            passed = self._passed()
            positions = {key: max(one.position, passed.get(key, 0)) for key, one in self._partitions.items()}
        else:
            there = self._consumer.position(self._consumer.assignment())
            positions = {(one.topic, one.partition): one.offset for one in there if one.offset >= 0}
        ends = self._fetched_ends(positions) if self._fetcher is None else self._fetcher.ends(positions)
        return self._unread.find(positions, ends, self._places.ask_ends)

    def _count_fetched(self) -> int:
        assert self._fetcher is not None
        return self._fetcher.fetched + self._rates.waiting

    def _fetched_ends(self, keys: Iterable[Key]) -> dict[Key, int]:
        found: dict[Key, int] = {}
        for key in keys:
            _, high = self._consumer.get_watermark_offsets(TopicPartition(*key), cached=True)
            if high >= 0:
                found[key] = high
        return found

    def _close(self) -> None:
        """Leave the group; meanwhile the client calls ``_on_revoke``."""
        try:
            self._consumer.close()
        except Exception as error:  # noqa: BLE001  nothing more can be done; registered blocks stay registered
            _log.warning("the Kafka client could not be closed in order", error=str(error))
        if self._fetcher is not None:
            self._fetcher.close()
        self._places.close()


def _ends(records: Records) -> dict[Key, int]:
    """Return the offset after the last record of each partition."""
    return {(run.topic, run.partition): int(records.offsets[run.end - 1]) + 1 for run in records.runs}


def _make_fetcher(library: Library, settings: Mapping[str, Option]) -> ColumnFetcher | None:
    try:
        return ColumnFetcher(library, settings)
    except LibraryError as error:
        _log.warning("records are read as objects", error=str(error))
        return None


def _settings(source: Kafka, stream_name: str) -> dict[str, Option]:
    exactly_once = source.exactly_once
    start = source.start
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
        "auto.offset.reset": "error" if exactly_once else start if isinstance(start, str) else "earliest",
    }


def _keep_aside(receiver: Receiver, bad: Sequence[BadRecord]) -> None:
    """Store bad records as dead letters.

    The link of the records after them moves the position past them. Until then they may be read again.
    """
    if not bad:
        return
    receiver.store_dead_letters(
        [DeadLetter(DeadLetterReason.INVALID_ENCODING, one.data or one.place.encode()) for one in bad]
    )
    for one in bad:
        receiver.report_error(
            "a record went aside: the name of one of its headers is not UTF-8",
            ValueError(
                f"{one.place}: Its value, or its place where it has none, is kept as a dead letter. "
                "Name headers in UTF-8."
            ),
        )
