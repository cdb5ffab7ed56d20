"""Accepts a server's connections, and counts each one before its first byte, or its TLS handshake.

Beyond the limits, a few connections more are accepted on trial: they may ask ``GET /health`` and ``GET /ready``, and
are refused otherwise. So a load balancer learns that the server lives, whatever its senders hold. If there are too many
of these too, the oldest one of the peer that has the most is closed.

This module reads and answers nothing: ``connections`` does.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from receiver_runtime.receivers.connection_places import peer_of
from receiver_runtime.receivers.tcp import shut_down

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from receiver_runtime.receivers.connection_places import ConnectionPlaces

_ACCEPTS_AT_ONCE = 64
_MOST_ON_TRIAL = 32
# How long to accept no connection after the system had no descriptor or memory for one more, in seconds.
_EXHAUSTED_PAUSE = 1.0
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class AcceptedProtocol(Protocol):
    """Serve one accepted connection."""

    #: Called once, when the connection has ended.
    on_closed: Callable[[], object] | None
    #: Why it may only ask whether the server lives; None where it may send.
    on_trial: str | None


class Acceptor:
    """Accept connections from ``start`` to ``close``. Its methods belong to the server's loop.

    Args:
        listener: the listening socket; its owner closes it.
        places: counts the connections.
        make_protocol: makes the protocol of one connection.
        context: the server's TLS context, or None.
        handshake_seconds: how long a TLS handshake may take.
        on_exhausted: called when the system has no descriptor or memory for one more connection.
    """

    def __init__(
        self,
        listener: socket.socket,
        places: ConnectionPlaces,
        make_protocol: Callable[[], AcceptedProtocol],
        context: ssl.SSLContext | None,
        *,
        handshake_seconds: float,
        on_exhausted: Callable[[OSError], object],
    ) -> None:
        self._listener = listener
        self._places = places
        self._make_protocol = make_protocol
        self._context = context
        self._handshake_seconds = handshake_seconds
        self._on_exhausted = on_exhausted
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        # The connections on trial, the oldest first, each with its peer.
        self._on_trial: dict[socket.socket, str] = {}
        self._pause: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to accept."""
        self._listener.setblocking(False)  # noqa: FBT003  the standard library's own
        self._loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Accept no more; connections that are open stay open."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                accepted, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    # The connection was gone before it was accepted.
                    continue
                self._on_exhausted(error)
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(_EXHAUSTED_PAUSE, self.start)
                return
            self._admit(accepted, peer_of(address[0]))

    def _admit(self, accepted: socket.socket, peer: str) -> None:
        protocol = self._make_protocol()
        protocol.on_trial = self._places.why_full(peer)
        if protocol.on_trial is None:
            self._places.take(peer)
            protocol.on_closed = partial(self._places.release, peer)
        else:
            if len(self._on_trial) >= _MOST_ON_TRIAL:
                self._end_one_trial()
            self._on_trial[accepted] = peer
            protocol.on_closed = partial(self._on_trial.pop, accepted, None)
        task = self._loop.create_task(self._open(accepted, protocol))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def _end_one_trial(self) -> None:
        [(most, _)] = Counter(self._on_trial.values()).most_common(1)
        oldest = next(accepted for accepted, peer in self._on_trial.items() if peer == most)
        del self._on_trial[oldest]
        # Its protocol, or its handshake, then finds that it has ended.
        shut_down(oldest)

    async def _open(self, accepted: socket.socket, protocol: AcceptedProtocol) -> None:
        """Give the connection to its protocol, after its handshake."""
        try:
            accepted.setblocking(False)  # noqa: FBT003  the standard library's own
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                lambda: cast("asyncio.Protocol", protocol),
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=None if self._context is None else self._handshake_seconds,
            )
        except BaseException as error:
            # The protocol never learns of a connection whose handshake failed.
            if protocol.on_closed is not None:
                on_closed, protocol.on_closed = protocol.on_closed, None
                on_closed()
            accepted.close()
            if not isinstance(error, OSError | TimeoutError):
                raise
