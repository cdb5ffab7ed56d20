"""Hold a port of this machine for a server that is started later, so that two Forebays never choose the same one.

It owns the choice and the claim. It never listens: until the server does, the port refuses connections.
"""

from __future__ import annotations

import socket
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from forebay.cli.services.child import SupervisorError

if TYPE_CHECKING:
    from collections.abc import Iterator

HOST = "127.0.0.1"
# How often another free port is tried: the kernel may offer one that another Forebay holds.
_TRIES = 5


@contextmanager
def held_port(wanted: int | None, *, else_any: int) -> Iterator[int]:
    """Hold the port `wanted` (0: any free one; None: `else_any` if that is free, else any), and yield its number.

    A server that sets SO_REUSEADDR can listen there, one after another. Raises SupervisorError.
    """
    ports = [else_any] if wanted is None else [wanted]
    if not wanted:
        ports += [0] * _TRIES
    with ExitStack() as holding:
        yield _first_free(ports, holding)


def _first_free(ports: list[int], holding: ExitStack) -> int:
    *before, last = ports
    for port in before:
        try:
            return _hold(port, holding)
        except OSError:
            continue
    try:
        return _hold(last, holding)
    except OSError as error:
        raise SupervisorError(
            f"{HOST}:{last}: {error.strerror}",
            "Name another port with --ui-port, or 0 for any free one: the Dagster UI can't listen there.",
        ) from error


def _hold(port: int, holding: ExitStack) -> int:
    with ExitStack() as trying:
        held = trying.enter_context(socket.socket())
        # So that the server can bind it too, and so that connections that have just ended there do not matter.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((HOST, port))
        number: int = held.getsockname()[1]
        if sys.platform == "linux":
            # With SO_REUSEADDR the kernel lets two sockets bind a port on which none listens. A name without a file
            # has one holder among all accounts that share the machine's ports, and is free when that process ends.
            claim = trying.enter_context(socket.socket(socket.AF_UNIX))
            claim.bind(f"\0forebay/{HOST}:{number}")
        holding.enter_context(trying.pop_all())
        return number
