"""Which of a session's packet ids stand for messages that we hold, and which of those are to be acknowledged.

It outlives connections, as the broker's session does: what the broker sends again after a reconnect, and is here
already, is not stored once more. Knows no client and no driver log. Any thread.

    arrived -> held -> registered -> acknowledged (of QoS 2: until released)

An acknowledgement goes out on the connection on which the message came last. It may be lost with that connection; of
QoS 1 the broker may then mean another message by the same id, so that such a message is stored anew: at least once.
Of QoS 2 the id is ours until the broker releases it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_TWICE = 2


@dataclass(slots=True, eq=False)
class Held:
    """A message of QoS 1 or 2 that is not forgotten yet."""

    mid: int
    qos: int
    # Of topic and payload: an id that was given to another message by a broker that lost its memory is not ours.
    identity: int
    connection: int
    registered: bool = False


class MqttSession:
    """See the module."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, Held] = {}
        self._due: list[Held] = []
        self._connection = 0
        self._was_connected = False

    def begin(self, *, present: bool) -> bool:
        """A connection begins; says whether the broker has lost the session that it had for us."""
        with self._lock:
            lost = self._was_connected and not present
            self._was_connected = True
            self._connection += 1
            self._due.clear()
            if not present:
                self._held.clear()
            return lost

    def arrived(self, mid: int, qos: int, identity: int, *, again: bool) -> Held | None:
        """A message came; returns what to hold for it, None when it is here already."""
        with self._lock:
            found = self._held.get(mid)
            if again and found is not None and found.qos == qos and found.identity == identity:
                found.connection = self._connection
                if found.registered:
                    self._due.append(found)
                return None
            held = self._held[mid] = Held(mid, qos, identity, self._connection)
            return held

    def registered(self, messages: Iterable[Held]) -> None:
        """They are in registered blocks, or went aside for good: acknowledge them."""
        with self._lock:
            for held in messages:
                held.registered = True
                if held.connection == self._connection and self._held.get(held.mid) is held:
                    self._due.append(held)

    def dropped(self, messages: Iterable[Held]) -> None:
        """They were not stored, and nobody will: what comes again counts as new."""
        with self._lock:
            for held in messages:
                if self._held.get(held.mid) is held and not held.registered:
                    del self._held[held.mid]

    def due(self) -> list[tuple[int, int]]:
        """What is to be acknowledged now, as (id, QoS), in order; it counts as done."""
        with self._lock:
            due, self._due = self._due, []
            for held in due:
                if held.qos != _TWICE and self._held.get(held.mid) is held:
                    del self._held[held.mid]
            return [(held.mid, held.qos) for held in due]

    def is_answering(self) -> bool:
        """Is there anything registered that the broker was not told of, or has not released yet?"""
        with self._lock:
            return any(held.registered and held.connection == self._connection for held in self._held.values())

    def released(self, mid: int) -> None:
        """The broker forgot a message of QoS 2."""
        with self._lock:
            self._held.pop(mid, None)
