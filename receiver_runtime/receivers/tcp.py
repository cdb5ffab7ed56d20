"""Set what clients and listeners on TCP share: options of a connection."""

from __future__ import annotations

import socket

#: The most bytes of one read.
READ_BYTES = 2**20
# Seconds, seconds and a count: notice within about two minutes that a peer has vanished without closing.
KEEP_ALIVE_IDLE, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_COUNT = 60, 15, 4
_KEEP_ALIVE = (
    ("TCP_KEEPIDLE", KEEP_ALIVE_IDLE),
    ("TCP_KEEPINTVL", KEEP_ALIVE_INTERVAL),
    ("TCP_KEEPCNT", KEEP_ALIVE_COUNT),
)


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel ask an idle peer whether it is still there."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in _KEEP_ALIVE:
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)


def listening_socket(address: tuple[str, int], *, backlog: int, is_shared: bool = False) -> socket.socket:
    """Return a socket that listens; ``::`` listens on IPv4 too. Others of this user may share it. Raises OSError."""
    host, port = address
    family, _, _, _, found = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
    )[0]
    # It sets SO_REUSEADDR: a restarted receiver gets its port at once.
    return socket.create_server(
        found[:2],
        family=family,
        backlog=backlog,
        reuse_port=is_shared,
        dualstack_ipv6=host == "::" and socket.has_dualstack_ipv6(),
    )


def check_peer(connection: socket.socket) -> None:
    """Check, before TLS, that the peer is connected. Raises OSError if it is gone.

    In that case ssl would leave the socket open, with no way for us to close it.
    """
    connection.getpeername()


def shut_down(connection: socket.socket) -> None:
    """Shut the connection down, which wakes a read in any thread."""
    try:
        # Not SSLSocket's own method: after that one, a read would return the bytes still encrypted.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        # The peer has closed it already.
        return
