"""Track which packet ids of a session belong to messages held here, and which of these to acknowledge.

It outlives connections, as the broker's session does: a message that the broker sends again after a reconnect, and that
is held here already, is not stored again. Knows no client and no driver log. Safe from any thread.

    arrived -> held -> registered -> acknowledged (at QoS 2: held until released)

An acknowledgement is sent on the connection on which the message arrived last. It may be lost with that connection. At
QoS 1 the broker may then use the same id for another message, so a message that is sent again is stored again: at least
once. At QoS 2 the id stays with the message until the broker releases it.
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
    """Track a message of QoS 1 or 2 that is still held."""

    mid: int
    qos: int
    # A hash of topic and payload: a broker that lost its state may give the same id to another message.
    identity: int
    connection: int
    registered: bool = False


class MqttSession:
    """Track one session's messages; see the module."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, Held] = {}
        self._due: list[Held] = []
        self._connection = 0
        self._was_connected = False

    def note_known(self) -> None:
        """Note that the broker had a session for us, before this process began."""
        with self._lock:
            self._was_connected = True

    def begin(self, *, present: bool) -> bool:
        """Begin a connection; return whether the broker has lost the session that it had for us."""
        with self._lock:
            lost = self._was_connected and not present
            self._was_connected = True
            self._connection += 1
            self._due.clear()
            if not present:
                self._held.clear()
            return lost

    def arrived(self, mid: int, qos: int, identity: int, *, again: bool) -> Held | None:
        """Note that a message arrived; return what to hold for it, or None if it is held already."""
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
        """Note that messages are in registered blocks, or durable dead letters: acknowledge them."""
        with self._lock:
            for held in messages:
                held.registered = True
                if held.connection == self._connection and self._held.get(held.mid) is held:
                    self._due.append(held)

    def dropped(self, messages: Iterable[Held]) -> None:
        """Forget messages that were not stored and will not be: if they are sent again, they count as new."""
        with self._lock:
            for held in messages:
                if self._held.get(held.mid) is held and not held.registered:
                    del self._held[held.mid]

    def due(self) -> list[tuple[int, int]]:
        """Return what to acknowledge now, as (id, QoS), in order; it counts as acknowledged afterwards."""
        with self._lock:
            due, self._due = self._due, []
            for held in due:
                if held.qos != _TWICE and self._held.get(held.mid) is held:
                    del self._held[held.mid]
            return [(held.mid, held.qos) for held in due]

    def is_answering(self) -> bool:
        """Return whether anything registered is not acknowledged yet, or not released by the broker yet."""
        with self._lock:
            return any(held.registered and held.connection == self._connection for held in self._held.values())

    def released(self, mid: int) -> None:
        """Forget a message of QoS 2 that the broker has released."""
        with self._lock:
            self._held.pop(mid, None)
