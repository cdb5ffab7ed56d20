"""Senders that send again until they are acknowledged, over real connections that can be cut.

There is no broker. What was "sent" stays in the senders' outbox, as on a device, until it is acknowledged. The senders
find their receivers as a load balancer would: by every receiver's newest address.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import sqlalchemy as sa

from forebay.testing.cutting_proxy import CuttingProxy
from forebay.testing.sending import Sending
from tests.support.polling import eventually
from tracker_store.connection.engine import connect, create_engine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from forebay.testing.source_rig import SourceRig

#: How long a sender waits for an answer, in seconds, before it tries another receiver: one that is paused never
#: answers. Not shorter: what is sent again while the receiver was only slow makes the receiver look up keys before it
#: stores, so it would store nothing while the driver log is unavailable.
ANSWER_SECONDS = 5.0
_RECORDS_A_REQUEST = 5
_SENDERS = 12
# After this many requests a sender opens a new connection, as through a load balancer.
_REQUESTS_A_CONNECTION = 20
_MOST_AHEAD = 200


class Request(Protocol):
    """What is sent until it is answered."""

    @property
    def records(self) -> Sequence[bytes]: ...


class Connection(Protocol):
    """A connection of one sender."""

    def close(self) -> object: ...


RequestT = TypeVar("RequestT", bound=Request)
ConnectionT = TypeVar("ConnectionT", bound=Connection)


class AcknowledgedSenders(ABC, Generic[RequestT, ConnectionT]):
    """An outbox, and the threads that empty it."""

    def __init__(self, database_url: str) -> None:
        self._engine = create_engine(database_url, application_name="tests")
        self._outbox: queue.Queue[RequestT | None] = queue.Queue()
        self._lock = threading.Lock()
        self._proxies: dict[int, CuttingProxy] = {}
        self._closed = False
        self._number = 0
        self.sent: list[bytes] = []
        self.answered = 0
        self.failures = 0
        self.is_away = False
        self._threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(_SENDERS)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._closed = True
        for _ in self._threads:
            self._outbox.put(None)
        for thread in self._threads:
            thread.join(20)
        for proxy in self._proxies.values():
            proxy.close()
        self._engine.dispose()

    def send(self, records: int) -> None:
        """Send numbered records, a few in each request."""
        numbered = []
        for _ in range(records):
            numbered.append(b'{"n":%d}' % self._number)
            self._number += 1
        for first in range(0, records, _RECORDS_A_REQUEST):
            self._put(self._request(numbered[first : first + _RECORDS_A_REQUEST]))

    @abstractmethod
    def _request(self, records: Sequence[bytes]) -> RequestT:
        """Return a request of these records, which are JSON."""

    @abstractmethod
    def _open(self, port: int) -> ConnectionT | None:
        """Return a connection to a port of this host, or None where none can be had."""

    @abstractmethod
    def _post(self, connection: ConnectionT, request: RequestT) -> bool:
        """Send a request; return whether it was acknowledged. Count it in ``failures`` where it was not."""

    def sending(self) -> Sending:
        """Send all the time, at most `_MOST_AHEAD` records ahead of the answers."""

        def send() -> None:
            if len(self.sent) - self.answered < _MOST_AHEAD:
                self.send(10)

        return Sending(send)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Cut the network between senders and receivers, and wait until the senders have noticed."""
        self.is_away = True
        with self._lock:
            proxies = list(self._proxies.values())
        for proxy in proxies:
            proxy.away = True
            proxy.cut()
        failed = self.failures
        eventually(lambda: self.failures > failed + _SENDERS, "senders that reach no receiver")
        yield
        self.is_away = False
        for proxy in proxies:
            proxy.away = False

    def all_came(self, rig: SourceRig) -> bool:
        return self.answered >= len(self.sent) and rig.registered() >= len(self.sent)

    def _put(self, request: RequestT) -> None:
        self.sent += request.records
        self._outbox.put(request)

    # -- a sender ----------------------------------------------------------------------------------------------------

    def _run(self, number: int) -> None:
        turn = number
        requests = 0
        connection: ConnectionT | None = None
        while (request := self._outbox.get()) is not None and not self._closed:
            if connection is None:
                connection = self._connect(turn)
            if connection is not None and self._post(connection, request):
                with self._lock:
                    self.answered += len(request.records)
                requests += 1
                if requests % _REQUESTS_A_CONNECTION:
                    continue
            else:
                # Let another receiver try: the request goes back to the end of the outbox.
                self._outbox.put(request)
                time.sleep(0.05)
            turn += 1
            if connection is not None:
                connection.close()
                connection = None
        if connection is not None:
            connection.close()

    def _connect(self, turn: int) -> ConnectionT | None:
        if self.is_away:
            self.failures += 1
            return None
        ports = self._ports()
        if not ports:
            return None
        port = ports[turn % len(ports)]
        with self._lock:
            proxy = self._proxies.get(port)
            if proxy is None:
                proxy = self._proxies[port] = CuttingProxy(port)
        return self._open(proxy.port)

    def _ports(self) -> list[int]:
        """Return the port of each receiver, from its newest event that says where it listens."""
        with contextlib.suppress(sa.exc.SQLAlchemyError), connect(self._engine) as connection:
            rows = connection.execute(
                sa.text(
                    "SELECT DISTINCT ON (receiver_id) message FROM forebay.receiver_events "
                    "WHERE message LIKE 'listening on %' ORDER BY receiver_id, id DESC"
                )
            )
            return [int(message.rpartition(":")[2]) for (message,) in rows]
        return []
