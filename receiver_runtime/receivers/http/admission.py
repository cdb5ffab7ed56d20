"""Admission: whether the receiver takes requests now, and how many bytes more.

Everything that waits in memory counts: bodies that are being read, records that wait for their registration, and
batches on the way to the block generator. This module never reads a request and never answers one.
"""

from __future__ import annotations

import math
import threading
from http import HTTPStatus
from typing import TYPE_CHECKING

from receiver_runtime.receivers.http.requests.refusals import AWAY_RETRY_SECONDS, PAUSED_RETRY_SECONDS, RETRY_SECONDS
from receiver_runtime.receivers.http.requests.route import Refused

if TYPE_CHECKING:
    import asyncio

    from receiver_runtime.receivers.http.acknowledgement import Acknowledgement
    from receiver_runtime.receivers.http.connections.buffering import BufferedHandOver
    from receiver_runtime.receivers.http.declaration import Http
    from receiver_runtime.supervisor.attached_supervisor import AttachedSupervisor

# Seconds for which waiting records may wait for a rate limit's permits: beyond that, senders are told to wait.
_MOST_RATE_SECONDS = 1.0
# Pieces in a second: the rate limiter gives the permits of a tenth of a second.
_PIECES_PER_SECOND = 10


class Admission:
    """Check the receiver's state and its room.

    Its methods belong to the server's loop, except those that say otherwise.

    Args:
        source: the limits.
        supervisor: the receiver's, for its rate limit.
        acknowledgement: counts the records that wait for their registration.
        buffering: counts the batches on the way to the block generator.
        draining: set while the receiver stops.
        is_paused: whether an operator has paused the receiver.
    """

    def __init__(
        self,
        source: Http,
        supervisor: AttachedSupervisor,
        acknowledgement: Acknowledgement,
        buffering: BufferedHandOver,
        draining: asyncio.Event,
        *,
        is_paused: bool = False,
    ) -> None:
        self._is_paused = is_paused
        self._source = source
        self._supervisor = supervisor
        self._acknowledgement = acknowledgement
        self._buffering = buffering
        self._draining = draining
        # Guards the count: threads that decompress change it too.
        self._lock = threading.Lock()
        #: Bytes of the bodies that are being read, decompressed or parsed; the body reader counts them.
        self.body_bytes = 0

    def count_body_bytes(self, nbytes: int) -> None:
        """Add ``nbytes``, which may be negative, to the bytes of bodies. Safe from any thread."""
        with self._lock:
            self.body_bytes += nbytes

    def check_grown(self, own_bytes: int) -> Refused | None:
        """Return why a body that is being decompressed has no room among the others, or None. Safe from any thread.

        Args:
            own_bytes: how many of ``body_bytes`` are the body's own. A body that is alone always has room.
        """
        waits = self._waiting_bytes()
        return self._no_room(waits) if waits > max(own_bytes, self._source.max_waiting_bytes) else None

    def check_ready(self) -> Refused | None:
        """Return why the receiver takes no request now, or None."""
        if self._is_paused:
            detail = "an operator has paused this stream: send again later"
            return Refused(HTTPStatus.SERVICE_UNAVAILABLE, detail, PAUSED_RETRY_SECONDS, [("connection", "close")])
        if self._draining.is_set():
            detail = "the receiver is stopping: send again, to another receiver or in a moment"
            return Refused(HTTPStatus.SERVICE_UNAVAILABLE, detail, RETRY_SECONDS, [("connection", "close")])
        if self._acknowledgement.oldest_seconds() > self._source.acknowledgement_timeout:
            detail = (
                "nothing has been registered for longer than acknowledgement_timeout "
                f"({self._source.acknowledgement_timeout:g} s): send again in a moment"
            )
            return Refused(HTTPStatus.SERVICE_UNAVAILABLE, detail, AWAY_RETRY_SECONDS)
        return None

    def check_room(self, nbytes: int) -> Refused | None:
        """Return why the receiver takes no further ``nbytes`` now, or None."""
        waits = self._waiting_bytes()
        if waits and waits + nbytes > self._source.max_waiting_bytes:
            return self._no_room(waits)
        records = self._acknowledgement.waiting_records
        # A limit in bytes counts as a limit in records of the size that the waiting ones have.
        rate = self._supervisor.block_path.piece(records, self._acknowledgement.waiting_bytes) * _PIECES_PER_SECOND
        if records > rate * _MOST_RATE_SECONDS:
            return Refused(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{records} records wait, at a rate limit of about {rate} a second: send more slowly",
                math.ceil(records / rate),
            )
        return None

    def _waiting_bytes(self) -> int:
        return self._acknowledgement.waiting_bytes + self.body_bytes + self._buffering.waiting_bytes

    def _no_room(self, waits: int) -> Refused:
        return Refused(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"requests with {waits} bytes are not answered yet, max_waiting_bytes is {self._source.max_waiting_bytes}: "
            "send again in a moment",
            RETRY_SECONDS,
        )
