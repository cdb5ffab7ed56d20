"""Hold the partitions that the group has assigned to this receiver: those that are read, and those that wait.

The broker can't say where to begin in a partition that has no leader, or that we may not read. Such a partition stays
assigned but is not read; the brokers are asked again regularly, and the others are read meanwhile. This module owns
these questions. It must never fetch, or hand anything over.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException

from receiver_runtime.receivers.kafka.places import Look
from receiver_runtime.watching.backoff import Backoff

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable

    from receiver_runtime.receivers.kafka.partition_key import Key
    from receiver_runtime.receivers.kafka.places import KafkaPlaces, Partition
    from receiver_runtime.supervisor.receiver import Receiver

# The pause between two attempts to open waiting partitions: at least this many seconds, and at least this many times
# the duration of the last attempt.
_WAIT_SECONDS = 1.0
_WAIT_TIMES = 5
# Seconds of opening after which the other partitions are read first. Opening one may take longer.
_OPEN_SECONDS = 1.0
# The pause before a partition is opened in which the client was refused at the same offset before, doubled each time:
# this many seconds, up to this many.
_REFUSED_SECONDS = 1.0
_LONGEST_REFUSED_SECONDS = 60.0


@dataclass(slots=True)
class _Refused:
    """Hold the offset at which the client could not read on, and from when it may try that again."""

    at: int | None
    not_before: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(_REFUSED_SECONDS, _LONGEST_REFUSED_SECONDS))


class AssignedPartitions:
    """Hold partitions; see the module. Only the reader's thread uses it.

    ``on_unread`` is called with each partition that is not read from now on. Once ``stopping`` is set, no partition is
    opened. ``open_partition`` opens one, by ``places`` if it is not given.
    """

    def __init__(
        self,
        receiver: Receiver,
        places: KafkaPlaces,
        stopping: threading.Event,
        on_unread: Callable[[Key], None],
        open_partition: Callable[[Key, Look, int | None], Partition] | None = None,
    ) -> None:
        self._receiver = receiver
        self._places = places
        self._open = open_partition or places.open
        self._stopping = stopping
        self._on_unread = on_unread
        #: Those that are read.
        self.read: dict[Key, Partition] = {}
        #: Of these, those to read from their positions again; until then, their records are dropped.
        self.unsure: set[Key] = set()
        #: Those that are not read yet, each with the offset that the client named as it lost its place, for opening it.
        self.waiting: dict[Key, int | None] = {}
        # Why some of them can't be read.
        self._unreadable: dict[Key, str] = {}
        self._refused: dict[Key, _Refused] = {}
        self._ask_at = 0.0

    def __len__(self) -> int:
        """Return how many are assigned."""
        return len(self.read) + len(self.waiting)

    def positions(self) -> dict[Key, int]:
        """Return where each is to be read from; 0 for one that waits, where it does not matter."""
        return {key: one.position for key, one in self.read.items()} | dict.fromkeys(self.waiting, 0)

    def wait_for(self, key: Key, named: int | None = None) -> None:
        """Have a partition wait until the brokers say where to read on."""
        self.read.pop(key, None)
        self.unsure.discard(key)
        self._on_unread(key)
        self.waiting[key] = named

    def lose(self, key: Key, at: int | None, error: KafkaError, named: int | None = None) -> None:
        """Have a partition wait in which the client can't read on at an offset, longer each time at the same one.

        A broker may refuse an offset that it says it has, for as long as it lags behind another one.
        """
        self.wait_for(key, named)
        refused = self._refused.get(key)
        if refused is None or refused.at != at:
            refused = self._refused[key] = _Refused(at)
        else:
            refused.not_before = time.monotonic() + refused.backoff.next_delay()
            self._note_unreadable(key, error)
            self._show_unreadable()
        self._ask_at = min(self._ask_at, refused.not_before)

    def forget(self, keys: Iterable[Key]) -> None:
        """Forget partitions that are another member's now."""
        for key in keys:
            self.read.pop(key, None)
            self.unsure.discard(key)
            self._on_unread(key)
            self.waiting.pop(key, None)
            self._unreadable.pop(key, None)
            self._refused.pop(key, None)
        self._show_unreadable()

    def open_all(self, keys: Iterable[Key]) -> None:
        """Ask the brokers and the driver log again where these are to be read."""
        for key in list(keys):
            self.wait_for(key)
        self.open_waiting()

    def ask_soon(self) -> None:
        """Ask the brokers with the next ``ask_if_due``."""
        self._ask_at = 0.0

    def ask_if_due(self) -> None:
        """Ask the brokers again for what they could not answer yet, if it is time to."""
        began = time.monotonic()
        if began < self._ask_at:
            return
        begun = self._places.beginning.record()
        if self.waiting:
            self.open_waiting()
        elif begun:
            self._ask_at = math.inf
        else:
            self._ask_later(began)

    def open_waiting(self) -> None:
        """Open the waiting partitions whose next position the brokers can say now; some of them, if that takes long."""
        began = time.monotonic()
        keys = [key for key in self.waiting if key not in self._refused or self._refused[key].not_before <= began]
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
                    opened = self._open(key, look, self.waiting[key])
                except KafkaException as error:
                    if error.args[0].code() == KafkaError._TIMED_OUT:  # noqa: SLF001  librdkafka's own name for it
                        silent.add(leader)
                    leader = error.args[0]
                else:
                    del self.waiting[key]
                    self._unreadable.pop(key, None)
                    self.read[key] = opened
                    self.unsure.add(key)
                    if time.monotonic() - began > _OPEN_SECONDS and not silent:
                        self.ask_soon()
                        break
                    continue
            self._note_unreadable(key, leader)
        else:
            self._ask_later(began)
        self._show_unreadable()

    def _ask_later(self, began: float) -> None:
        now = time.monotonic()
        self._ask_at = now + max(_WAIT_SECONDS, _WAIT_TIMES * (now - began))

    def _note_unreadable(self, key: Key, error: KafkaError) -> None:
        # Move it behind the partitions that have not been tried yet.
        self.waiting[key] = self.waiting.pop(key)
        if key not in self._unreadable:
            self._unreadable[key] = error.str()
            self._receiver.report_error(
                f"{key[0]}/{key[1]} can't be read now, the others are; it is tried again", KafkaException(error)
            )

    def _show_unreadable(self) -> None:
        why = None
        if self._unreadable:
            ((topic, number), said), *others = self._unreadable.items()
            why = f"{topic}/{number} can't be read: {said}" + (f"; {len(others)} others too" if others else "")
        self._receiver.report_degraded("partitions", why)
