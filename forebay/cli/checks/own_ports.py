"""Say whether a port of this host is held by a receiver of this installation, or by another program.

It asks the operating system, so it knows nothing of a process that another account runs.
"""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING

import psutil

from forebay.cli.services.supervisor_lock import lock_holder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

_MAPPED = "::ffff:"  # before an IPv4 address that a socket for both IP versions holds, as gRPC's do
_ANY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104  compared, never bound


class Holder(StrEnum):
    """Name who holds a port."""

    OURS = "ours"
    ANOTHER = "another"
    UNKNOWN = "unknown"


def holder_of(host: str, port: int, *, datagrams: bool, ours: Callable[[], Collection[int]]) -> Holder:
    """Return who holds a port that can't be bound.

    host: an address. ours: returns the pids of this installation's receivers.
    """
    try:
        found = psutil.net_connections("udp" if datagrams else "tcp")
    except (psutil.Error, OSError):
        return Holder.UNKNOWN
    pids = {
        one.pid
        for one in found
        if one.laddr
        and one.laddr.port == port
        and _overlap(one.laddr.ip.removeprefix(_MAPPED), host.removeprefix(_MAPPED))
        and (datagrams or one.status == psutil.CONN_LISTEN)
    }
    if pids & {*ours()}:
        return Holder.OURS
    return Holder.ANOTHER if pids and None not in pids else Holder.UNKNOWN


def _overlap(held: str, asked: str) -> bool:
    return held == asked or bool({held, asked} & _ANY_ADDRESS)


def pids_of_home(home: Path) -> set[int]:
    """Return the pids of what the `forebay up` of this home has started; empty where none runs."""
    # A home may be one that this account can't read.
    with suppress(psutil.Error, OSError):
        if (supervisor := lock_holder(home)) is not None:
            return {child.pid for child in psutil.Process(supervisor).children(recursive=True)}
    return set()
