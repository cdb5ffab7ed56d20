"""List what the processes of a running system listen on, from the kernel's tables: TCP, UDP and Unix sockets."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable

# __SO_ACCEPTCON in the flags of /proc/net/unix: the socket takes connections.
_LISTENS = 0x10000
_UNIX_TABLE = Path("/proc/net/unix")
_COLUMNS_BEFORE_PATH = 7


class Protocol(StrEnum):
    """How a socket is reached, in the words of docs/security.md."""

    TCP = "TCP"
    UDP = "UDP"
    UNIX = "Unix"


@dataclass(frozen=True, slots=True, order=True)
class OpenSocket:
    """One address at which a process takes connections or datagrams.

    `address`: an IP address, or the path of a Unix socket, which begins with `@` if it is in no file system.
    `command`: the command line of the process. The port is left out, because it is another one in each run.
    """

    protocol: Protocol
    address: str
    command: str


def open_sockets(processes: Iterable[psutil.Process]) -> set[OpenSocket]:
    """Return what the processes listen on; those that have ended have none."""
    listening = _listening_unix_sockets()
    found = set()
    for process in processes:
        try:
            command = " ".join(process.cmdline()).strip()
            directory = process.cwd()
            connections = process.net_connections("all")
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        for one in connections:
            if one.family == socket.AF_UNIX:
                if one.laddr in listening:
                    path = one.laddr if one.laddr.startswith("@") else os.path.normpath(Path(directory) / one.laddr)
                    found.add(OpenSocket(Protocol.UNIX, path, command))
            elif one.type == socket.SOCK_DGRAM:
                # One that is connected takes datagrams from its peer alone: a question to a name server.
                if not one.raddr:
                    found.add(OpenSocket(Protocol.UDP, one.laddr.ip, command))
            elif one.status == psutil.CONN_LISTEN:
                found.add(OpenSocket(Protocol.TCP, one.laddr.ip, command))
    return found


def _listening_unix_sockets() -> set[str]:
    """Return the paths, as they were bound, of Unix sockets that take connections or datagrams."""
    paths = set()
    for line in _UNIX_TABLE.read_text(encoding="utf-8", errors="surrogateescape").splitlines()[1:]:
        _number, _references, _protocol, flags, kind, _state, _inode, *path = line.split(maxsplit=_COLUMNS_BEFORE_PATH)
        if path and (int(flags, 16) & _LISTENS or int(kind, 16) == socket.SOCK_DGRAM):
            paths.add(path[0])
    return paths
