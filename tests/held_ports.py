"""Ports that are a server's own while it is not up: before its start, and between a kill and the next."""

from __future__ import annotations

import os
import socket
import weakref


def held_ports(owner: object, count: int, *, address: str = "127.0.0.1") -> list[int]:
    """So many, until `owner` is gone.

    They are bound here, and not listened to: a server that asks for SO_REUSEADDR may do both all the same, and the
    system gives them to nobody else.
    """
    found: list[int] = []
    for _ in range(count):
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((address, 0))
        found.append(int(held.getsockname()[1]))
        weakref.finalize(owner, os.close, held.detach())
    return found
