"""Opens the ZeroMQ socket of a source, and puts what its monitor reports into words. Owns no thread.

The library's own threads connect, connect again, and receive. A socket belongs to the thread that opened it.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import Counter
from socket import AF_UNIX
from socket import socket as system_socket
from typing import TYPE_CHECKING

import zmq
from zmq.utils.monitor import recv_monitor_message

from receiver_runtime.receivers.tcp import KEEP_ALIVE_COUNT, KEEP_ALIVE_IDLE, KEEP_ALIVE_INTERVAL
from receiver_runtime.sources.fields.secret import SecretError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay_contrib.zeromq.declaration import ZeroMQ

# The largest frame that is taken from the network at all, in bytes: a sender of more is disconnected by the library.
# As large as ``max_record_bytes`` may be, so that what is larger than that still becomes a dead letter.
_MOST_FRAME_BYTES = 256 * 2**20
_KEEP_ALIVE = {
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: KEEP_ALIVE_IDLE,
    zmq.TCP_KEEPALIVE_INTVL: KEEP_ALIVE_INTERVAL,
    zmq.TCP_KEEPALIVE_CNT: KEEP_ALIVE_COUNT,
}
_REFUSED = zmq.Event.HANDSHAKE_FAILED_NO_DETAIL | zmq.Event.HANDSHAKE_FAILED_PROTOCOL | zmq.Event.HANDSHAKE_FAILED_AUTH
_RETRIES_REPORTED = 2  # which wait to connect again is reported: the first one also follows each lost connection
_CONNECT_MILLISECONDS = 5000  # a host that drops packets is reported after two of these, not after the kernel's minutes
# After this time without a handshake, a connection is reported. The library itself waits 30 s, and without end if the
# other side sends anything but the first byte of a handshake.
_HANDSHAKE_SECONDS = 10.0
_WATCHED = (
    zmq.Event.CONNECTED | zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED | zmq.Event.CONNECT_RETRIED | _REFUSED
)


class ZeroMQClient:
    """Hold one socket and its monitor. Call ``close`` also after ``open`` has raised."""

    def __init__(self, source: ZeroMQ) -> None:
        self._source = source
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.SUB if source.socket == "sub" else zmq.PULL)
        self.monitor: zmq.Socket[bytes] = self.socket.get_monitor_socket(
            # A listener's senders may come and go: events that are not read would fill the monitor's queue, and then
            # block the library's own thread.
            _REFUSED if source.bind else _WATCHED
        )
        # By endpoint, how often the library has waited to connect again since anything last connected.
        self._retries: Counter[str] = Counter()
        # By endpoint, how many connections: two host names may have one address.
        self._connected: Counter[str] = Counter()
        # By endpoint, until when the handshake of a new connection may take.
        self._handshake_until: dict[str, float] = {}

    def open(self) -> str:
        """Connect, or listen; return the endpoints, with the ports that the system chose.

        Connecting goes on in the library's threads.

        Raises:
            zmq.ZMQError: an address can't be used.
            SecretError: the secret key is missing, or is not a key.
        """
        source, socket = self._source, self.socket
        socket.linger = 0
        socket.rcvhwm = source.high_water_mark
        socket.maxmsgsize = _MOST_FRAME_BYTES
        socket.connect_timeout = _CONNECT_MILLISECONDS
        for option, value in _KEEP_ALIVE.items():
            socket.setsockopt(option, value)
        # Not always: with it, host names are looked up as IPv6 addresses.
        socket.ipv6 = any("[" in endpoint for endpoint in source.endpoints)
        self._encrypt()
        if source.socket == "sub":
            for topic in source.topics or ("",):
                socket.subscribe(topic.encode())
        opened = []
        for endpoint in source.endpoints:
            if source.bind:
                _refuse_taken_path(endpoint)
                socket.bind(endpoint)
                opened.append(socket.getsockopt_string(zmq.LAST_ENDPOINT))
            else:
                socket.connect(endpoint)
                opened.append(endpoint)
        return ",".join(opened)

    def close(self) -> None:
        """Close everything; on return the addresses are free. Drop what was not read."""
        # First, for its events would wait for ever in the library's own thread once no thread can read them.
        self.socket.disable_monitor()
        self._context.destroy(linger=0)

    def receive(self) -> list[bytes] | None:
        """Return a message's frames; None where none waits."""
        try:
            frames: list[bytes] = self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return frames

    @property
    def is_connected_to_all(self) -> bool:
        """Return whether as many endpoints are connected as are declared, by the events yielded so far."""
        return self._connected.total() == len(self._source.endpoints)

    @property
    def handshake_milliseconds(self) -> int | None:
        """Return how long until a handshake takes too long, 0 if one does already; None: no connection waits."""
        if not self._handshake_until:
            return None
        return max(0, round(1000 * (min(self._handshake_until.values()) - time.monotonic())))

    def connection_events(self) -> Iterator[tuple[str, str | None]]:
        """Yield the endpoint of each event since the last call, and what went wrong; None: it is connected.

        For a socket that listens, the monitor has only failed handshakes: its senders may come and go.
        """
        while self.monitor.poll(0):
            found = recv_monitor_message(self.monitor)
            event, endpoint = found["event"], found["endpoint"].decode(errors="replace")
            self._handshake_until.pop(endpoint, None)
            if event == zmq.Event.CONNECTED:
                self._handshake_until[endpoint] = time.monotonic() + _HANDSHAKE_SECONDS
            elif event & _REFUSED:
                yield endpoint, f"{endpoint}: the ZeroMQ handshake failed: check the socket types and the CURVE keys"
            elif event == zmq.Event.HANDSHAKE_SUCCEEDED:
                self._retries.clear()
                self._connected[endpoint] += 1
                yield endpoint, None
            elif event == zmq.Event.DISCONNECTED:
                if not self._connected[endpoint]:
                    continue  # a handshake failed, which is reported already
                self._connected[endpoint] -= 1
                yield endpoint, f"{endpoint}: the connection was lost, ZeroMQ connects again"
            else:
                self._retries[endpoint] += 1
                if self._retries[endpoint] == _RETRIES_REPORTED:
                    yield endpoint, f"{endpoint} can't be reached, ZeroMQ keeps trying"
        for endpoint in [one for one, until in self._handshake_until.items() if until <= time.monotonic()]:
            del self._handshake_until[endpoint]
            yield (
                endpoint,
                (
                    f"{endpoint} accepts connections and does not answer as ZeroMQ 4 does: check that a ZeroMQ sender "
                    "listens there, and not another program"
                ),
            )

    def _encrypt(self) -> None:
        source, socket = self._source, self.socket
        if source.curve_secret_key is None and source.curve_server_key is None:
            return
        if source.curve_secret_key is None:
            public, secret = zmq.curve_keypair()
        else:
            resolved = source.curve_secret_key.resolve()
            try:
                secret = resolved.encode()
                public = zmq.curve_public(secret)
            except (ValueError, zmq.ZMQError):
                raise SecretError(
                    "curve_secret_key holds no key: write 40 characters of Z85, as zmq_curve_keypair makes them, into "
                    f"{source.curve_secret_key}"
                ) from None
        socket.curve_secretkey = secret
        socket.curve_publickey = public
        if source.curve_server_key is None:
            socket.curve_server = True
        else:
            socket.curve_serverkey = source.curve_server_key.encode()


def _refuse_taken_path(endpoint: str) -> None:
    """Raise ZMQError where a Unix socket's path is a file, or has a listener: the library would delete it.

    A socket that no process listens at any more is left to the library, which replaces it.
    """
    path = endpoint.removeprefix("ipc://")
    if not endpoint.startswith("ipc:///") or not os.path.lexists(path):
        return
    with system_socket(AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                return
        except OSError:
            pass
    raise zmq.ZMQError(errno.EADDRINUSE, f"{path} is a file, or another process listens there: use another path")
