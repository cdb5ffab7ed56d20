"""What senders share that forward to listening receivers, one connection for each, and get no acknowledgement.

Owns the queue, and what is known of each connection. A subclass finds receivers, connects, and writes, on the thread.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter, deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from forebay.testing.receiver_processes import eventually
from forebay.testing.sending import Sending
from tracker_store.connection.engine import create_engine

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MessageT = TypeVar("MessageT", bytes, tuple[bytes, ...])


class Connection(Protocol[MessageT]):
    """One connection to one receiver."""

    messages: list[MessageT]
    #: Whether the receiver ended the connection, or another process replaced the receiver.
    lossy: bool


ConnectionT = TypeVar("ConnectionT", bound=Connection)  # type: ignore[type-arg]


class ForwardingSender(ABC, Generic[MessageT, ConnectionT]):
    """See the module. The thread runs from the end of ``__init__`` to ``close``."""

    def __init__(self, database_url: str) -> None:
        self._engine = create_engine(database_url, application_name="tests")
        self._lock = threading.Lock()
        self._queue: deque[MessageT] = deque()
        self._open: dict[int, ConnectionT] = {}
        self._connections: list[ConnectionT] = []
        self._number = 0
        self._is_away = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._done.set()
        self._thread.join(20)
        self._close_sockets()
        self._engine.dispose()

    def send(self, records: int) -> None:
        """Queue this many numbered messages."""
        with self._lock:
            self._queue.extend(map(self._numbered, range(self._number, self._number + records)))
            self._number += records

    @abstractmethod
    def _numbered(self, number: int) -> MessageT:
        """Return the message of this number."""

    @abstractmethod
    def _run(self) -> None:
        """Forward the queue to the receivers that listen, until ``_done``."""

    @abstractmethod
    def _close_sockets(self) -> None:
        """Close what is open after the thread has ended."""

    def _send_all(self, messages: Sequence[MessageT]) -> int:
        with self._lock:
            self._queue.extend(messages)
        return len(messages)

    def sending(self) -> Sending:
        return Sending(lambda: self.send(50))

    @contextmanager
    def away(self) -> Iterator[None]:
        """End the sender, and start it again with its queue: there is no broker between it and the receivers."""
        with self._lock:
            self._is_away = True
        eventually(lambda: not self._open, "no connection")
        yield
        with self._lock:
            self._is_away = False

    def _check_tails(self, received: Iterable[MessageT]) -> None:
        """Check that nothing came twice or was never sent, and that only the tail of lossy connections is lost."""
        came = Counter(received)
        assert max(came.values()) == 1, "messages came twice"
        sent = {message for connection in self._connections for message in connection.messages}
        assert not came.keys() - sent, "messages came that were never sent"
        for connection in self._connections:
            arrived = [message in came for message in connection.messages]
            wanted = sum(arrived) if connection.lossy else len(arrived)
            assert arrived == [True] * wanted + [False] * (len(arrived) - wanted)
