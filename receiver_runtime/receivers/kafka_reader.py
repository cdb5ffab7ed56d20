"""Reads a consumer group's share of partitions into blocks, on one thread, from one ``on_start`` to its ``on_stop``.

Who decides how far a partition was read: the driver log alone. Here a position is what the driver log said, moved by
what was handed over since; a block goes in only where the log stands exactly where its records begin, so that nothing
read here can be left out or come twice, whoever else believes to own the partition.

- *Assigned*: the partition's position is asked for, or its origin put down, before it is read.
- *Revoked, or lost*: what was handed over is waited for, what was read and not handed over is dropped; who reads on
  does so from the driver log. The broker is told of positions afterwards, for monitoring alone.
- *Conflict*: another receiver has read a partition on (we were thought dead). Everything that is under way is dropped,
  all positions are asked for anew.
- What a call to the client returns in which partitions came or went is dropped and read again: it may have been read
  before they went.
- *Columns*: where there is a library for it (``kafka_library``), the group's consumer is paused and fetches nothing; a
  fetcher that is in no group brings the partitions that are ours, from our positions. Then partitions come and go
  between two fetches, never within one.
- *Out of range*: the broker has no longer, or not, what is next. What retention took is a lost link, counted; an end
  before our position opens the next generation. Either goes in with the next block, and is told at once.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import structlog
from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition

from receiver_runtime.block_handler import DeadLetter
from receiver_runtime.block_store.frame import DeadLetterReason
from receiver_runtime.receivers.kafka_library import ColumnFetcher, Library, LibraryError
from receiver_runtime.receivers.kafka_records import BadRecord, Records, Run, records_of
from tracker_store.blocks import ORIGIN, NewBlock, OffsetLink
from tracker_store.errors import OffsetConflictError
from tracker_store.schema import LinkKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from receiver_runtime.receivers.kafka import KafkaReceiver
    from receiver_runtime.sources.kafka import Kafka, Option

_log = structlog.get_logger(__name__)

Key = tuple[str, int]

# Messages asked for at once; each takes a few hundred bytes here besides its data.
_MOST_MESSAGES = 20_000
# As columns: many, for each block is synced.
_MOST_AT_ONCE = 50_000
_LEAST_MESSAGES = 100
# A fetch of columns is so short that the group hears of us in time.
_LONGEST_FETCH = 1.0
_BROKER_SECONDS = 10.0
_COMMIT_SECONDS = 1.0
# An end before our position is believed when it was seen so often, so far apart: a new leader may lag for a moment.
_LOOKS = 3
_LOOK_SECONDS = 0.5
_RESET = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001  librdkafka's own name for it


class BadHeaderError(Exception):
    """Its value, or its place where it has none, is kept as a dead letter. Name headers in UTF-8."""


class OutOfRangeError(Exception):
    """A partition's next record is not on the broker, and the source says to stop then.

    Set out_of_range to 'earliest' or 'latest' to go on.
    """


@dataclass(slots=True)
class _Partition:
    """One that is ours. ``position`` is the next offset to hand over; ``links`` go in with the next block."""

    generation: int
    position: int
    links: list[OffsetLink] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _UnderWay:
    future: Future[NewBlock]
    links: Sequence[OffsetLink]


class KafkaReader:
    """See the module. ``start`` and ``stop`` once."""

    def __init__(self, receiver: KafkaReceiver, source: Kafka, library: Library | None = None) -> None:
        self._receiver = receiver
        self._supervisor = receiver.supervisor
        self._source = source
        self._library = library
        self._cooperative = "cooperative" in str(source.options.get("partition.assignment.strategy", "cooperative"))
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"kafka {source.group}", daemon=True)
        # All below is the thread's alone; the client calls back on it.
        self._consumer: Consumer
        # Where there is one, it fetches, and the consumer is in the group and no more.
        self._fetcher: ColumnFetcher | None = None
        self._partitions: dict[Key, _Partition] = {}
        self._under_way: list[_UnderWay] = []
        # To be read from their positions before anything of them is believed.
        self._unsure: set[Key] = set()
        self._moved = False
        self._conflict = False
        self._registered: dict[Key, int] = {}
        self._committed_at = 0.0
        self._known_topics: set[str] = set()
        self._bytes_each = 1000.0
        # The broker's absence is told once, not with each of the client's attempts.
        self._told_away = False

    def start(self) -> None:
        """Begin to read; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """End; returns when what was handed over is registered, or refused, and the group is left."""
        self._stopping.set()
        self._thread.join()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            settings = self._settings()
            self._fetcher = self._make_fetcher(settings)
            self._consumer = Consumer({**settings, "error_cb": self._on_error, "logger": _ClientLog()})
        except Exception as error:  # noqa: BLE001  an option that is wrong, a secret that is missing
            if self._fetcher is not None:
                self._fetcher.close()
            self._receiver.restart("the Kafka client could not be made", error)
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
            self._receiver.read_objects()
            self._receiver.restart("records are read as objects from now on", error)
        except OutOfRangeError as error:
            self._receiver.stop("what is to be read next is not on the broker", error)
        except Exception as error:  # noqa: BLE001  told, and begun anew
            self._receiver.restart("reading from Kafka failed", error)
        finally:
            self._close()

    def _make_fetcher(self, settings: Mapping[str, Option]) -> ColumnFetcher | None:
        if self._library is None:
            return None
        try:
            return ColumnFetcher(self._library, settings)
        except LibraryError as error:
            _log.warning("records are read as objects", error=str(error))
            return None

    def _settings(self) -> dict[str, Option]:
        exactly_once = self._source.exactly_once
        start = self._source.start
        defaults: dict[str, Option] = {
            "client.id": "forebay",
            "partition.assignment.strategy": "cooperative-sticky",
            # Topics and partitions that come while we read.
            "topic.metadata.refresh.interval.ms": 30_000,
            # By default it fetches nothing for a second whenever its queue is full, which we empty in a tenth of that.
            "fetch.queue.backoff.ms": 10,
        }
        return {
            **defaults,
            **self._source.resolved_options(),
            "bootstrap.servers": self._source.bootstrap_servers,
            "group.id": self._source.group,
            "enable.auto.commit": not exactly_once,
            "enable.auto.offset.store": not exactly_once,
            "auto.offset.reset": "error" if exactly_once else start if isinstance(start, str) else "earliest",
        }

    def _read(self) -> None:
        while not self._stopping.is_set():
            self._collect()
            if self._conflict:
                self._recover()
            if self._fetcher is None:
                self._read_objects()
            else:
                self._read_columns(self._fetcher)
            self._commit()

    def _read_objects(self) -> None:
        self._reposition()
        self._moved = False
        messages = self._consumer.consume(self._at_once(), self._supervisor.settings.block_interval)
        if self._moved:
            # What is left of them is read again.
            self._unsure.update(self._partitions)
            return
        good = [message for message in messages if self._is_record(message)]
        if good:
            found, bad = records_of(good)
            self._take([found], bad)

    def _read_columns(self, fetcher: ColumnFetcher) -> None:
        # Partitions come and go in here alone. What it fetched before it was paused is the fetcher's to bring.
        for message in self._consumer.consume(_LEAST_MESSAGES, 0):
            self._is_record(message)
        self._reposition()
        fetched = fetcher.fetch(self._at_once(), min(self._supervisor.settings.block_interval, _LONGEST_FETCH))
        for fault in fetched.faults:
            self._on_partition_error((fault.topic, fault.partition), KafkaError(fault.code, fault.message))
        if fetched.records or fetched.bad:
            self._take(fetched.records, fetched.bad)

    def _read_unreliably(self) -> None:
        while not self._stopping.is_set():
            messages = self._consumer.consume(self._at_once(), self._supervisor.settings.block_interval)
            good = [message for message in messages if self._is_record(message)]
            if good:
                self._note_answer()
                found, bad = records_of(good)
                self._keep_aside(bad)
                if found.batch.num_rows:
                    self._supervisor.push_buffered(found.batch, None)

    def _at_once(self) -> int:
        most = int(self._supervisor.settings.max_block_bytes / self._bytes_each)
        bound = _MOST_MESSAGES if self._fetcher is None else _MOST_AT_ONCE
        most = max(_LEAST_MESSAGES, min(bound, most))
        return self._supervisor.piece(most, 0)

    def _is_record(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            return True
        self._on_partition_error((str(message.topic()), int(message.partition() or 0)), error)
        return False

    def _on_partition_error(self, key: Key, error: KafkaError) -> None:
        if error.code() == _RESET and key in self._partitions:
            self._settle()
            self._partitions[key] = self._open(*key)
            self._unsure.add(key)
            if not self._partitions[key].links:
                # The position is there again, but what is behind it may be another log: one that was cut, and grew.
                self._receiver.report_error(
                    "Kafka says an error, reading goes on from the position", KafkaException(error)
                )
        elif error.fatal():
            raise KafkaException(error)
        else:
            self._receiver.report_error("Kafka says an error", KafkaException(error))

    def _take(self, found: Sequence[Records], bad: Sequence[BadRecord]) -> None:
        """Hand over what is next of each partition."""
        self._note_answer()
        self._keep_aside([one for one in bad if self._is_next(one)])
        for one in found:
            if one.batch.num_rows and not self._conflict:
                self._take_batch(one)

    def _take_batch(self, found: Records) -> None:
        self._bytes_each = max(1.0, found.batch.nbytes / found.batch.num_rows)
        next_ones = {key: partition.position for key, partition in self._partitions.items()}
        runs = [taken for run in found.runs if (taken := self._next_of(run, found.offsets, next_ones)) is not None]
        if not runs:
            return
        for piece in found.only(runs).pieces(self._supervisor.settings.max_block_bytes):
            links = self._links(piece)
            try:
                future = self._supervisor.push_linked(piece.batch, links)
            except OffsetConflictError as error:
                self._note_conflict(error)
                return
            self._under_way.append(_UnderWay(future, links))

    def _is_next(self, bad: BadRecord) -> bool:
        key = (bad.topic, bad.partition)
        return key in self._partitions and key not in self._unsure and bad.offset >= self._partitions[key].position

    def _keep_aside(self, bad: Sequence[BadRecord]) -> None:
        """As dead letters. The link of what comes after them passes over them; until then they may be read again."""
        if not bad:
            return
        self._receiver.store_dead_letters(
            [DeadLetter(DeadLetterReason.INVALID_ENCODING, one.data or one.place.encode()) for one in bad]
        )
        for one in bad:
            self._receiver.report_error(
                "a record went aside: the name of one of its headers is not UTF-8",
                BadHeaderError(f"{one.place}: {BadHeaderError.__doc__}"),
            )

    def _note_answer(self) -> None:
        if self._told_away:
            self._told_away = False
            self._receiver.report_connected(self._source.address)

    def _next_of(self, run: Run, offsets: NDArray[np.int64], next_ones: dict[Key, int]) -> Run | None:
        key = (run.topic, run.partition)
        if key not in next_ones or key in self._unsure:
            return None
        of_run = offsets[run.first : run.end]
        if np.any(np.diff(of_run) <= 0):
            # The client never does this. Should it, nothing of it is believed.
            self._unsure.add(key)
            return None
        first = run.first + int(np.searchsorted(of_run, next_ones[key]))
        if first == run.end:
            return None
        next_ones[key] = int(offsets[run.end - 1]) + 1
        return Run(run.topic, run.partition, first, run.end)

    def _links(self, piece: Records) -> list[OffsetLink]:
        """Of a piece's partitions, from exactly their positions, which move; and what waited for a block."""
        ends: dict[Key, int] = {}
        for run in piece.runs:
            ends[run.topic, run.partition] = int(piece.offsets[run.end - 1]) + 1
        links: list[OffsetLink] = []
        for partition in self._partitions.values():
            links += partition.links
            partition.links = []
        for (topic, number), end in ends.items():
            partition = self._partitions[topic, number]
            links.append(OffsetLink(topic, str(number), partition.generation, partition.position, end))
            partition.position = end
        return links

    # -- what is under way -------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Note what has been registered, in order. Raises what the receiver was refused with, for good."""
        while self._under_way and self._under_way[0].future.done():
            answered = self._under_way.pop(0)
            error = answered.future.exception()
            if isinstance(error, OffsetConflictError):
                self._note_conflict(error)
            elif error is not None:
                raise error
            else:
                for link in answered.links:
                    self._registered[link.source, int(link.partition)] = link.to_offset

    def _note_conflict(self, error: OffsetConflictError) -> None:
        if not self._conflict:
            self._receiver.report_error("another receiver has read on, what was read here is dropped", error)
        self._conflict = True

    def _settle(self) -> None:
        wait([one.future for one in self._under_way])
        self._collect()

    def _recover(self) -> None:
        """After a conflict: nothing is under way, and positions are the driver log's."""
        self._settle()
        self._supervisor.go_on_after_conflict()
        self._conflict = False
        for key in self._partitions:
            self._partitions[key] = self._open(*key)
        self._unsure.update(self._partitions)

    # -- partitions that come and go (called back within `consume` and `close`) --------------------------------------

    def _on_assign(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        self._moved = True
        for one in assigned:
            self._partitions[one.topic, one.partition] = self._open(one.topic, one.partition)
        self._known_topics.update(one.topic for one in assigned)
        positions = [self._at((one.topic, one.partition)) for one in assigned]
        if self._cooperative:
            consumer.incremental_assign(positions)
        else:
            consumer.assign(positions)
        if self._fetcher is not None:
            consumer.pause(positions)
            self._unsure.update((one.topic, one.partition) for one in assigned)
        self._receiver.report_connected(f"{self._source.address}, {len(self._partitions)} partitions")

    def _on_revoke(self, _: Consumer, revoked: list[TopicPartition]) -> None:
        self._moved = True
        self._settle()
        self._commit(now=True)
        self._forget(revoked)

    def _on_lost(self, _: Consumer, lost: list[TopicPartition]) -> None:
        self._moved = True
        self._settle()
        self._forget(lost)
        self._receiver.report_error(f"the group gave {len(lost)} partitions to others without asking us")

    def _forget(self, gone: Sequence[TopicPartition]) -> None:
        if self._fetcher is not None:
            self._fetcher.leave([(one.topic, one.partition) for one in gone])
        for one in gone:
            key = (one.topic, one.partition)
            self._partitions.pop(key, None)
            self._registered.pop(key, None)
            self._unsure.discard(key)

    def _on_unreliable_assign(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        positions = assigned
        if isinstance(self._source.start, datetime):
            positions = [
                one
                if one.offset >= 0
                else TopicPartition(one.topic, one.partition, self._start(one.topic, one.partition))
                for one in consumer.committed(assigned, timeout=_BROKER_SECONDS)
            ]
        if self._cooperative:
            consumer.incremental_assign(positions)
        else:
            consumer.assign(positions)
        self._receiver.report_connected(self._source.address)

    def _on_error(self, error: KafkaError) -> None:
        options = self._source.options
        if error.fatal():
            self._receiver.restart("the Kafka client failed", KafkaException(error))
        elif error.code() == KafkaError._AUTHENTICATION:  # noqa: SLF001  librdkafka's own name for it
            # A secret that is put right is read at the next start.
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
        elif not self._told_away:
            self._told_away = True
            self._receiver.report_error("Kafka can't be reached, or answers by an error", KafkaException(error))

    def _refuse(self, sentence: str, error: KafkaError) -> None:
        """One sentence is the reason; what the client says of it is an event."""
        if not self._told_away:
            self._told_away = True
            self._receiver.report_error("the Kafka client can't log in", KafkaException(error))
        self._receiver.restart(sentence)

    # -- positions ---------------------------------------------------------------------------------------------------

    def _at(self, key: Key) -> TopicPartition:
        return TopicPartition(*key, self._partitions[key].position)

    def _reposition(self) -> None:
        """Have partitions read from their positions; what the client holds of them is dropped by it.

        Not by a seek: after an error a partition is not being read, and has none.
        """
        if not self._unsure:
            return
        if self._fetcher is not None:
            self._fetcher.read_from({key: self._partitions[key].position for key in sorted(self._unsure)})
        elif self._cooperative:
            unsure = sorted(self._unsure)
            self._consumer.incremental_unassign([TopicPartition(*key) for key in unsure])
            self._consumer.incremental_assign([self._at(key) for key in unsure])
        else:
            self._consumer.assign([self._at(key) for key in self._partitions])
        self._unsure.clear()

    def _open(self, topic: str, number: int) -> _Partition:
        """Where the driver log says to read on, put right by what the broker has."""
        low, high = self._range(topic, number)
        at = self._supervisor.open_partition(topic, str(number), self._start(topic, number, low, high))
        for _ in range(_LOOKS):
            if at.offset <= high:
                break
            time.sleep(_LOOK_SECONDS)
            low, high = self._range(topic, number)
        if low <= at.offset <= high:
            return _Partition(at.generation, at.offset)
        went_on = high if self._source.out_of_range == "latest" else low
        where = f"{topic}/{number}: offset {at.offset} is next, the broker has {low} up to {high}"
        if self._source.out_of_range == "stop":
            raise OutOfRangeError(f"{where}. {OutOfRangeError.__doc__}")
        if at.offset < low:
            self._receiver.report_error(
                f"{where}: offsets {at.offset} up to {went_on}, {went_on - at.offset} of them, are gone unread, "
                "and lost"
            )
            lost = OffsetLink(topic, str(number), at.generation, at.offset, went_on, LinkKind.LOST)
            return _Partition(at.generation, went_on, [lost])
        self._receiver.report_error(f"{where}: the topic was made anew, or cut; generation {at.generation + 1} begins")
        origin = OffsetLink(topic, str(number), at.generation + 1, ORIGIN, went_on, LinkKind.ORIGIN)
        return _Partition(at.generation + 1, went_on, [origin])

    def _range(self, topic: str, number: int) -> tuple[int, int]:
        low, high = self._consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_BROKER_SECONDS)
        return low, high

    def _start(self, topic: str, number: int, low: int | None = None, high: int | None = None) -> int:
        """Where to begin, when nothing was read before; a partition that came later is read from its beginning."""
        if low is None or high is None:
            low, high = self._range(topic, number)
        if self._source.start == "earliest" or topic in self._known_topics:
            return low
        if self._source.start == "latest":
            return high
        assert isinstance(self._source.start, datetime)
        asked = TopicPartition(topic, number, int(self._source.start.timestamp() * 1000))
        [found] = self._consumer.offsets_for_times([asked], timeout=_BROKER_SECONDS)
        if found.error is not None:
            raise KafkaException(found.error)
        return high if found.offset in (OFFSET_END, -1) else found.offset

    # -- the broker's copy of the positions --------------------------------------------------------------------------

    def _commit(self, *, now: bool = False) -> None:
        """Tell the broker what is registered; nobody relies on it."""
        if not self._registered or not (now or time.monotonic() - self._committed_at >= _COMMIT_SECONDS):
            return
        self._committed_at = time.monotonic()
        offsets = [TopicPartition(*key, offset) for key, offset in self._registered.items() if key in self._partitions]
        self._registered = {}
        if not offsets:
            return
        try:
            # The stubs have an overload for each.
            if now:
                self._consumer.commit(offsets=offsets, asynchronous=False)
            else:
                self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            _log.info("the broker took no positions, they stand in the driver log", error=str(error))

    def _close(self) -> None:
        """Leave the group; the client calls ``_on_revoke`` in it."""
        try:
            self._consumer.close()
        except Exception as error:  # noqa: BLE001  there is nothing more to do; what is registered is registered
            _log.warning("the Kafka client could not be closed in order", error=str(error))
        if self._fetcher is not None:
            self._fetcher.close()


class _ClientLog:
    """librdkafka's own lines, as ours."""

    def log(self, level: int, message: str, *arguments: object) -> None:
        """As ``logging.Logger.log``."""
        _log.info("the Kafka client says", level=level, message=message % arguments if arguments else message)
