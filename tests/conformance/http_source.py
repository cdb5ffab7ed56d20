"""HTTP for the conformance suite: senders that retry until they get an answer, over real connections that can be cut.

There is no broker. What was "sent" stays in the senders' outbox, as on a device, until it is answered with 200. The
senders find their receivers as a load balancer would: by every receiver's newest address.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import queue
import threading
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
import zstandard

from forebay.testing.cutting_proxy import CuttingProxy
from forebay.testing.sending import Sending
from receiver_runtime.receivers.http.declaration import Http
from tests.support.polling import eventually
from tracker_store.connection.engine import connect, create_engine

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from forebay.testing.source_rig import SourceRig

# How long a sender waits for an answer, in seconds, before it tries another receiver: one that is paused never answers.
# Not shorter: a request repeated while the receiver was only slow makes the receiver look up keys before it stores,
# so it would store nothing while the driver log is unavailable.
_ANSWER_SECONDS = 5.0
_RECORDS_A_REQUEST = 5
_SENDERS = 12
# After this many requests a sender opens a new connection, as through a load balancer.
_REQUESTS_A_CONNECTION = 20
_MOST_AHEAD = 200
_LINES = "application/x-ndjson"


@dataclass(frozen=True)
class Request:
    """A request that is sent until it is answered."""

    records: tuple[bytes, ...]
    body: bytes
    headers: Mapping[str, str]
    key: str = field(default_factory=lambda: uuid.uuid4().hex)


def lines(records: Sequence[bytes]) -> Request:
    """Build a request from JSON records, one per line."""
    return Request(tuple(records), b"\n".join(records), {"Content-Type": _LINES})


class HttpSenders:
    """An outbox, and the threads that empty it."""

    def __init__(self, database_url: str) -> None:
        self._engine = create_engine(database_url, application_name="tests")
        self._outbox: queue.Queue[Request | None] = queue.Queue()
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

    def source(self, **changes: Any) -> Http:  # noqa: ANN401  fields of the source
        return Http(**{"listen": "127.0.0.1:0", **changes})

    def send(self, records: int) -> None:
        numbered = []
        for _ in range(records):
            numbered.append(b'{"n": %d}' % self._number)
            self._number += 1
        for first in range(0, records, _RECORDS_A_REQUEST):
            self._put(lines(numbered[first : first + _RECORDS_A_REQUEST]))

    def send_odd(self) -> int:
        """Send empty values, bytes of every kind, nearly a megabyte, arrays, compressed bodies, and invalid JSON."""
        large = b'"%s"' % (b"y" * 900_000)
        odd = [
            Request((b"null",), b" null ", {"Content-Type": "application/json"}),
            Request((b'""',), b'""', {"Content-Type": "application/json; charset=utf-8"}),
            Request((bytes(range(256)),), bytes(range(256)), {"Content-Type": "application/octet-stream"}),
            Request((b"a=1&b=%20",), b"a=1&b=%20", {"Content-Type": "application/x-www-form-urlencoded"}),
            Request((large,), large, {"Content-Type": "application/json"}),
            Request((b"[1]", b"{}", b'"\xc3\xbc"'), b'[[1] , {},\n"\xc3\xbc"]', {"Content-Type": "application/json"}),
            Request((b"one", b" two"), b"one\r\n\n two\n", {"Content-Type": "text/plain"}),
            Request((b"{}",), gzip.compress(b"{}\n"), {"Content-Type": _LINES, "Content-Encoding": "gzip"}),
            Request((b"{}",), zstandard.compress(b"{}\n"), {"Content-Type": _LINES, "Content-Encoding": "zstd"}),
            Request((b'{"good": 1}',), b'{"good": 1}\n{"bad": \n', {"Content-Type": _LINES}),
        ]
        for request in odd:
            self._put(request)
        return sum(len(request.records) for request in odd)

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

    def check(self, rig: SourceRig) -> None:
        """Check that each record came once: repeated requests carried a key."""
        assert sorted(row["body"] for row in rig.rows()) == sorted(self.sent)
        assert rig.failed_checks() == []

    def _put(self, request: Request) -> None:
        self.sent += request.records
        self._outbox.put(request)

    # -- a sender ----------------------------------------------------------------------------------------------------

    def _run(self, number: int) -> None:
        turn = number
        requests = 0
        connection: http.client.HTTPConnection | None = None
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

    def _post(self, connection: http.client.HTTPConnection, request: Request) -> bool:
        try:
            headers = {**request.headers, "Idempotency-Key": request.key}
            connection.request("POST", "/v1/s0", request.body, headers)
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException):
            self.failures += 1
            return False
        if response.status == 200:
            counts = json.loads(answer)
            assert counts["records"] + counts["duplicates"] == len(request.records), (counts, request)
            return True
        assert response.status in {429, 503}, (response.status, answer)
        assert int(response.headers["Retry-After"]) > 0
        self.failures += 1
        return False

    def _connect(self, turn: int) -> http.client.HTTPConnection | None:
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
        return http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=_ANSWER_SECONDS)

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
