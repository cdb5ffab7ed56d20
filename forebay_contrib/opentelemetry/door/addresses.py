"""Open addresses that the receivers of one agent share, and that nothing else may have."""

from __future__ import annotations

import errno
import time
from typing import TYPE_CHECKING

from receiver_runtime.receivers.tcp import listening_socket

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

# How often, and after how many seconds, to try again for a port that another receiver is just opening.
_ATTEMPTS, _PAUSE = 40, 0.05


def shared_listener(address: tuple[str, int], *, backlog: int, is_shared: Callable[[], bool]) -> socket.socket:
    """Return a socket that listens at an address, beside those of receivers that share it.

    SO_REUSEPORT would let any program of this user share the port. So another one's port is found by opening it without
    that option first. One that is just opened by a receiver is not known as shared yet, which is why this tries again.

    Raises OSError: something else listens there.
    """
    for left in reversed(range(_ATTEMPTS)):
        try:
            _check_port(address, is_shared)
            return listening_socket(address, backlog=backlog, is_shared=True)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not left:
                raise
        time.sleep(_PAUSE)
    raise AssertionError("unreachable")


def _check_port(address: tuple[str, int], is_shared: Callable[[], bool]) -> None:
    try:
        listening_socket(address, backlog=1).close()
    except OSError as error:
        if error.errno != errno.EADDRINUSE or not is_shared():
            raise
