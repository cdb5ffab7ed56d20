"""Ports that stay reserved for a server while it does not listen: before its start, between two starts, or for ever.

They are bound here but not listened on: connections are refused, a server that sets SO_REUSEADDR can still bind and
listen, and the system gives them to no other process.
"""

from __future__ import annotations

import contextlib
import os
import socket
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """Reserve a port of 127.0.0.1 within the context."""
    with _bound("127.0.0.1") as held:
        yield held.getsockname()[1]


def held_ports(owner: object, count: int, *, address: str = "127.0.0.1") -> list[int]:
    """Reserve `count` ports until `owner` is garbage-collected."""
    found: list[int] = []
    for _ in range(count):
        held = _bound(address)
        found.append(int(held.getsockname()[1]))
        weakref.finalize(owner, os.close, held.detach())
    return found


def _bound(address: str) -> socket.socket:
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((address, 0))
    return held
