"""Statements on `block_stores`: which block store each host with receivers sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.engine import named_failures
from tracker_store.errors import DriverLogError

if TYPE_CHECKING:
    from collections.abc import Mapping


class UnsharedBlockStoreError(DriverLogError):
    """Hosts that have receivers must share a block store. Name one that all of them see in FOREBAY_BLOCK_STORE.

    That is a directory that all mount, an s3://, gs:// or abfs:// URL, or, as one of several replicas, either of them.
    If the other host will never come back: `forebay agents forget HOST`; what lies in its store alone is lost then.
    """


@dataclass(frozen=True, slots=True)
class HostStore:
    """What a host sees: root by identity, each as people name it there. `lives`: an agent with slots runs on it."""

    host: str
    roots: Mapping[str, str]
    lives: bool


def attach_block_store(connection: sa.Connection, *, host: str, roots: Mapping[str, str]) -> None:
    """Say which roots (name by identity) a host sees, before it gets receivers.

    Locks: the table against other calls of this. Repeating it changes nothing. Raises UnsharedBlockStoreError where
    another host sees none of them, if that one's agent lives or files of its store are still named.
    """
    with named_failures():
        row = connection.execute(
            sa.text(
                "SELECT refused_by, its_roots, it_lives FROM forebay.attach_block_store("
                ":host, CAST(:ids AS text[]), CAST(:names AS text[]))"
            ),
            {"host": host, "ids": list(roots), "names": list(roots.values())},
        ).one_or_none()
    if row is not None:
        theirs = ", ".join(row.its_roots)
        why = "runs receivers with" if row.it_lives else "is not running, and has left blocks in"
        raise UnsharedBlockStoreError(
            f"host {host!r} sees the block store {', '.join(roots.values())}, and host {row.refused_by!r} {why} "
            f"{theirs}, which is not the same one"
        )


def unshared_way_out(host: str) -> str:
    """What to do about a host that sees another block store."""
    return " ".join((UnsharedBlockStoreError.__doc__ or "").replace("HOST", host).split())


def list_block_stores(connection: sa.Connection) -> list[HostStore]:
    """What each host sees, by host. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text(
                "SELECT b.host, b.roots, b.names, EXISTS (SELECT FROM forebay.processes p WHERE p.kind = 'agent' "
                "  AND p.ended_at IS NULL AND p.host = b.host AND p.slots > 0) AS lives "
                "FROM forebay.block_stores b ORDER BY b.host"
            )
        ).all()
    return [HostStore(row.host, dict(zip(row.roots, row.names, strict=True)), row.lives) for row in rows]
