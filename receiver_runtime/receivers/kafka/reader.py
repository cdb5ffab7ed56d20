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
- *Columns*: where there is a library for it (``library``), the group's consumer is paused and fetches nothing; a
  fetcher that is in no group brings the partitions that are ours, from our positions. Then partitions come and go
  between two fetches, never within one.
- *Out of range*: the broker has no longer, or not, what is next: ``places`` says where to go on. What it puts
  down of that goes in with the next block, and is told at once.
- *Waiting*: of a partition that has no leader, or that we may not read, the broker can't be asked where to begin. It is
  ours, not read, and asked for again and again; others go on.
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

from receiver_runtime.block_handler import DeadLetter
from receiver_runtime.block_store.frame import DeadLetterReason
from receiver_runtime.receivers.kafka.library import ColumnFetcher, Library, LibraryError
from receiver_runtime.receivers.kafka.places import BROKER_SECONDS, KafkaPlaces, Look, OutOfRangeError, Partition
from receiver_runtime.receivers.kafka.records import BadRecord, Records, Run, records_of
from receiver_runtime.receivers.linked_hand_over import LinkedHandOver
from tracker_store.blocks import OffsetLink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from receiver_runtime.receiver import Receiver
    from receiver_runtime.sources.kafka import Kafka, Option

_log = structlog.get_logger(__name__)

Key = tuple[str, int]

# Messages asked for at once; each takes a few hundred bytes here besides its data.
_MOST_MESSAGES = 20_000
# As columns: many, for each block is synced.
_MOST_AT_ONCE = 50_000
_LEAST_MESSAGES = 100
# A fetch is so short that the group hears of us in time, and a stop is soon done.
_LONGEST_FETCH = 1.0
_COMMIT_SECONDS = 1.0
_IDS_SECONDS = 30.0
# So many refusals of positions in a row are no group that changes just now.
_REFUSALS = 10
# Between two tries to open what waits: so long at least, and so many times what the last try took.
_WAIT_SECONDS = 1.0
_WAIT_TIMES = 5
# The same line of the client's is logged again after so long, and the same error of one broker is an event again.
_LINE_SECONDS = 30.0
_ERROR_SECONDS = 600.0
_MOST_KINDS = 1000
_NUMBER = re.compile(r"\d+")
# Of librdkafka's sentence: where the log that is there now ends to be the one that was read.
_CUT = re.compile(r"log truncation detected .*broker end offset is (\d+)")
_RESET = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001  librdkafka's own name for it


class BadHeaderError(Exception):
    """Its value, or its place where it has none, is kept as a dead letter. Name headers in UTF-8."""


class KafkaReader:
    """See the module. ``start`` and ``stop`` once.

    ``library``, where there is one, fetches; ``on_library_failure`` is called when it did not do what is relied on.
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
        self._cooperative = "cooperative" in str(source.options.get("partition.assignment.strategy", "cooperative"))
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"kafka {source.group}", daemon=True)
        # All below is the thread's alone; the client calls back on it.
        self._consumer: Consumer
        # Where there is one, it fetches, and the consumer is in the group and no more.
        self._fetcher: ColumnFetcher | None = None
        self._places: KafkaPlaces
        self._partitions: dict[Key, Partition] = {}
        # Ours too, and not read yet: see the module. With where their log was cut, if they wait for that.
        self._waiting: dict[Key, int | None] = {}
        self._told_waiting: set[Key] = set()
        self._look_at = 0.0
        self._strangers: set[str] = set()
        self._ids_at = time.monotonic() + _IDS_SECONDS
        self._hand_over = LinkedHandOver(receiver, self._on_registered)
        # To be read from their positions before anything of them is believed.
        self._unsure: set[Key] = set()
        self._moved = False
        self._registered: dict[Key, int] = {}
        self._committed_at = 0.0
        self._told: dict[Key, int] = {}
        self._refusals = 0
        self._bytes_each = 1000.0
        # The broker's absence is told once, not with each of the client's attempts.
        self._told_away = False
        self._broker_errors = _Said(_ERROR_SECONDS)

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
            self._consumer = Consumer(
                {**settings, "error_cb": self._on_error, "on_commit": self._on_commit, "logger": _ClientLog()}
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
        except BaseException as error:  # noqa: BLE001  told, and begun anew
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
            "client.id": f"forebay-{self._supervisor.stream_name}",
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
            self._hand_over.collect()
            if self._hand_over.has_conflict:
                self._recover()
            if time.monotonic() >= self._look_at:
                self._look_again()
            if time.monotonic() >= self._ids_at:
                self._look_at_ids()
            if self._fetcher is None:
                self._read_objects()
            else:
                self._read_columns(self._fetcher)
            self._commit()

    def _read_objects(self) -> None:
        self._reposition()
        self._moved = False
        messages = self._consumer.consume(self._at_once(), self._pause())
        if self._moved:
            # What is left of them is read again.
            self._unsure.update(self._partitions)
            return
        good = [message for message in messages if self._is_record(message)]
        if good:
            self._take(*records_of(good))

    def _read_columns(self, fetcher: ColumnFetcher) -> None:
        # Partitions come and go in here alone. What it fetched before it was paused is the fetcher's to bring.
        for message in self._consumer.consume(_LEAST_MESSAGES, 0):
            self._is_record(message)
        self._reposition()
        fetched = fetcher.fetch(self._at_once(), self._pause())
        for error in fetched.errors:
            self._on_error(KafkaError(error.code, error.message))
        for fault in fetched.faults:
            self._on_partition_error((fault.topic, fault.partition), KafkaError(fault.code, fault.message))
        if fetched.records or fetched.bad:
            self._take(fetched.records, fetched.bad)

    def _read_unreliably(self) -> None:
        while not self._stopping.is_set():
            messages = self._consumer.consume(self._at_once(), self._pause())
            good = [message for message in messages if self._is_record(message)]
            if good:
                self._note_answer()
                found, bad = records_of(good)
                self._keep_aside(bad)
                for one in found:
                    self._supervisor.block_path.push_buffered(one.batch)

    def _pause(self) -> float:
        return min(self._supervisor.settings.block_interval, _LONGEST_FETCH)

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
                # The position is there again, but what is behind it may be another log: one that was cut, and grew.
                self._receiver.report_error(
                    "Kafka says an error, reading goes on from the position", KafkaException(error)
                )
        elif error.fatal():
            raise KafkaException(error)
        elif error.code() != _RESET:
            # That one of a partition which waits, or has gone, concerns nobody.
            self._receiver.report_error("Kafka says an error", KafkaException(error))

    def _take(self, found: Sequence[Records], bad: Sequence[BadRecord]) -> None:
        """Hand over what is next of each partition."""
        self._note_answer()
        self._keep_aside([one for one in bad if self._is_next(one)])
        for one in found:
            if one.batch.num_rows and not self._hand_over.has_conflict:
                self._take_batch(one)

    def _take_batch(self, found: Records) -> None:
        self._bytes_each = max(1.0, found.batch.nbytes / found.batch.num_rows)
        next_ones = {key: partition.position for key, partition in self._partitions.items()}
        runs = [taken for run in found.runs if (taken := self._next_of(run, found.offsets, next_ones)) is not None]
        if not runs:
            return
        for piece in found.only(runs).pieces(self._supervisor.settings.max_block_bytes):
            links = self._links(piece)
            if not self._hand_over.push(piece.batch, links):
                return

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

    def _on_registered(self, links: Sequence[OffsetLink]) -> None:
        for link in links:
            # What is kept of a topic besides is no position.
            if link.partition.isdecimal():
                self._registered[link.source, int(link.partition)] = link.to_offset

    def _recover(self) -> None:
        """After a conflict: nothing is under way, and positions are the driver log's."""
        self._hand_over.recover()
        keys = list(self._partitions)
        self._leave(keys)
        self._open_all(keys)

    # -- partitions that come and go (called back within `consume` and `close`) --------------------------------------

    def _on_assign(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        self._moved = True
        # Opened when we are back: a consumer that is asked within its callback for what waits ends the process with the
        # next callback of the same call (`CallState_get`).
        for one in assigned:
            self._wait_for((one.topic, one.partition))
        self._look_at = 0.0
        positions = [self._at((one.topic, one.partition)) for one in assigned]
        if self._cooperative:
            consumer.incremental_assign(positions)
        else:
            consumer.assign(positions)
        consumer.pause(positions)
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
        """Fetch these no more, until they are read from a position."""
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
            self._told_waiting.discard(key)
            self._told.pop(key, None)
            self._registered.pop(key, None)
            self._unsure.discard(key)

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
        elif error.code() != KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001  as above
            # One may be away for days, and be tried again and again, while records come from the others.
            if self._broker_errors.is_new(error.str()):
                self._receiver.report_error("a Kafka broker is away, or answers by an error", KafkaException(error))
        elif not self._told_away:
            self._told_away = True
            self._receiver.report_error("Kafka can't be reached", KafkaException(error))

    def _refuse(self, sentence: str, error: KafkaError) -> None:
        """One sentence is the reason; what the client says of it is an event."""
        if not self._told_away:
            self._told_away = True
            self._receiver.report_error("the Kafka client can't log in", KafkaException(error))
        self._receiver.restart(sentence)

    # -- positions ---------------------------------------------------------------------------------------------------

    def _at(self, key: Key) -> TopicPartition:
        # One that waits is paused.
        return TopicPartition(*key, self._partitions[key].position if key in self._partitions else 0)

    def _reposition(self) -> None:
        """Have partitions read from their positions; what the client holds of them is dropped by it.

        Not by a seek: after an error a partition is not being read, and has none.
        """
        if not self._unsure:
            return
        unsure = sorted(self._unsure)
        if self._fetcher is not None:
            self._fetcher.read_from({key: self._partitions[key].position for key in unsure})
        else:
            if self._cooperative:
                self._consumer.incremental_unassign([TopicPartition(*key) for key in unsure])
                self._consumer.incremental_assign([self._at(key) for key in unsure])
            else:
                self._consumer.assign([self._at(key) for key in (*self._partitions, *self._waiting)])
                self._consumer.pause([TopicPartition(*key) for key in self._waiting])
            # What waited was paused.
            self._consumer.resume([TopicPartition(*key) for key in unsure])
        self._unsure.clear()

    def _open_all(self, keys: Iterable[Key]) -> None:
        for key in list(keys):
            self._wait_for(key)
        self._open_waiting()

    def _wait_for(self, key: Key, cut_at: int | None = None) -> None:
        self._partitions.pop(key, None)
        self._unsure.discard(key)
        self._waiting[key] = cut_at

    def _look_again(self) -> None:
        """For what the brokers could not be asked yet."""
        began = time.monotonic()
        begun = self._places.begin()
        if self._waiting:
            self._open_waiting()
        elif begun:
            self._look_at = math.inf
        else:
            self._look_later(began)

    def _look_at_ids(self) -> None:
        """Now and then, at what nobody says.

        A topic may be made anew so quickly that neither group nor client notice: the client reads on in it. And
        another stream may have the same group, which gives each a part of the partitions.
        """
        self._ids_at = time.monotonic() + _IDS_SECONDS
        if self._told_away:
            return
        if anew := self._places.made_anew(list(self._partitions)):
            self._hand_over.settle()
            self._leave(anew)
            self._open_all(anew)
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
        """Have what waits read from where it is to be read on, as far as that can be asked now."""
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
                    self._told_waiting.discard(key)
                    self._partitions[key] = opened
                    self._unsure.add(key)
                    continue
            self._note_waiting(key, leader)
        self._look_later(began)

    def _note_waiting(self, key: Key, error: KafkaError) -> None:
        # Behind those that have not been asked for.
        self._waiting[key] = self._waiting.pop(key)
        if key not in self._told_waiting:
            self._told_waiting.add(key)
            self._receiver.report_error(
                f"{key[0]}/{key[1]} can't be read now, the others are; it is tried again", KafkaException(error)
            )

    # -- the broker's copy of the positions --------------------------------------------------------------------------

    def _commit(self, *, now: bool = False) -> None:
        """Tell the broker what is registered; nobody relies on it."""
        if not (now or time.monotonic() - self._committed_at >= _COMMIT_SECONDS):
            return
        self._committed_at = time.monotonic()
        ends = {key: offset for key, offset in self._registered.items() if key in self._partitions}
        self._registered = {}
        if self._hand_over.is_idle and not self._hand_over.has_conflict:
            # No record stands there: who watches the group's lag is to see its end.
            ends |= {key: offset for key, offset in self._passed().items() if offset > self._partitions[key].position}
        offsets = [TopicPartition(*key, offset) for key, offset in ends.items() if offset != self._told.get(key)]
        if not offsets:
            return
        self._told |= ends
        try:
            # Not waited for, since callbacks come here (`_on_assign`). The client waits before it gives partitions up.
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            _log.info("the broker took no positions, they stand in the driver log", error=str(error))

    def _passed(self) -> dict[Key, int]:
        """How far the client is, where that is known: behind the marks of transactions, which are no records."""
        keys = [key for key in self._partitions if key not in self._unsure]
        if self._fetcher is not None:
            return self._fetcher.passed(keys)
        found = self._consumer.position([TopicPartition(*key) for key in keys]) if keys else ()
        return {(one.topic, one.partition): one.offset for one in found if one.error is None and one.offset >= 0}

    def _on_commit(self, error: KafkaError | None, positions: Sequence[TopicPartition]) -> None:
        if error is None:
            self._refusals = 0
            return
        for one in positions:
            # To be told again, where nothing newer is.
            self._told.pop((one.topic, one.partition), None)
            if one.offset >= 0:
                self._registered.setdefault((one.topic, one.partition), one.offset)
        if error.code() != KafkaError._NO_OFFSET:  # noqa: SLF001  librdkafka's own name for it
            self._refusals += 1
            if self._refusals == _REFUSALS:
                self._receiver.report_error("the broker does not take the group's positions", KafkaException(error))

    def _close(self) -> None:
        """Leave the group; the client calls ``_on_revoke`` in it."""
        try:
            self._consumer.close()
        except Exception as error:  # noqa: BLE001  there is nothing more to do; what is registered is registered
            _log.warning("the Kafka client could not be closed in order", error=str(error))
        if self._fetcher is not None:
            self._fetcher.close()
        self._places.close()


class _Said:
    """What was said lately: the same but for numbers is the same."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._at: dict[str, float] = {}

    def is_new(self, said: str) -> bool:
        """Was it not said for so long? Now it is."""
        kind = _NUMBER.sub("", said)
        now = time.monotonic()
        if now - self._at.get(kind, -math.inf) < self._seconds:
            return False
        # So many kinds are none: something that is no number differs.
        if len(self._at) >= _MOST_KINDS:
            self._at.clear()
        self._at[kind] = now
        return True


class _ClientLog:
    """librdkafka's own lines, as ours; what it says again and again, ten times a second, but now and then."""

    def __init__(self) -> None:
        self._said = _Said(_LINE_SECONDS)

    def log(self, level: int, message: str, *arguments: object) -> None:
        """As ``logging.Logger.log``."""
        said = message % arguments if arguments else message
        if self._said.is_new(said):
            _log.info("the Kafka client says", level=level, message=said)
