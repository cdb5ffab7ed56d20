"""Read and write `block_stores`: which block store each host with receivers sees, and which it must see."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures, with_session
from tracker_store.connection.errors import DriverLogError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


class UnsharedBlockStoreError(DriverLogError):
    """Hosts that have receivers must share a block store. Name one that all of them see in FOREBAY_BLOCK_STORE.

    That is a directory that all mount, an s3://, gs:// or abfs:// URL, or, as one of several replicas, either of them.
    If the other host will never come back: `forebay agents forget HOST`; what lies in its store alone is lost then.
    """


# Key of the session-level advisory lock that agents hold while they attach; nothing else takes it.
_ATTACHING = 0x464F5242


@dataclass(frozen=True, slots=True)
class HostStore:
    """Hold the roots that a host sees: identity to its name there. `lives`: an agent with slots runs on the host."""

    host: str
    roots: Mapping[str, str]
    lives: bool

    def identities_of(self, name: str) -> frozenset[str]:
        """Return the identities of the roots with this name."""
        return frozenset(identity for identity, root in self.roots.items() if root == name)


def expected_identities(
    stores: Sequence[HostStore], names: Sequence[str], *, host: str | None = None
) -> dict[str, list[str]]:
    """Return the identities that the root of each name may have.

    For each name these are the identities that `host` has under the name, or else those that any host has under it, or
    else all that there are. A name that is left out may have any identity: no host has attached a store.
    """
    if not stores:
        return {}
    everything = _union(frozenset(seen.roots) for seen in stores)
    expected: dict[str, list[str]] = {}
    for name in names:
        here = _union(seen.identities_of(name) for seen in stores if seen.host == host)
        anywhere = _union(seen.identities_of(name) for seen in stores)
        expected[name] = sorted(here or anywhere or everything)
    return expected


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*sets)


def attached_identities(
    connection: sa.Connection, names: Sequence[str], *, host: str | None = None
) -> dict[str, list[str]]:
    """Return what the driver log expects at these roots; see ``expected_identities``. No locks."""
    with named_failures():
        rows = connection.execute(sa.text("SELECT host, roots, names FROM forebay.block_stores ORDER BY host")).all()
    stores = [HostStore(row.host, dict(zip(row.roots, row.names, strict=True)), lives=False) for row in rows]
    return expected_identities(stores, names, host=host)


@contextmanager
def one_attaches(connection: sa.Connection) -> Iterator[None]:
    """Let one of the agents that start at the same time ask, create and attach; the others wait for it.

    Locks: an advisory one, which ends with the connection at the latest.
    """
    with with_session(connection, "the lock on attaching a block store") as session:
        with named_failures():
            session.execute(sa.text("SELECT pg_advisory_lock(:key)"), {"key": _ATTACHING})
        try:
            yield
        finally:
            try:
                session.execute(sa.text("SELECT pg_advisory_unlock(:key)"), {"key": _ATTACHING})
            except sa.exc.DBAPIError:
                # The lock ends with the connection, which is not used again.
                session.invalidate()


def attach_block_store(connection: sa.Connection, *, host: str, roots: Mapping[str, str]) -> None:
    """Record which roots (name by identity) a host sees, before it gets receivers.

    Locks: the table against other calls of this. Repeating it changes nothing. Raises UnsharedBlockStoreError where
    another host sees none of these roots and its agent is live, or the log still names files of its store.
    """
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT refused_by, its_roots, it_lives
                FROM forebay.attach_block_store(:host, CAST(:ids AS text[]), CAST(:names AS text[]))
            """),
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
    """Return what to do about a host that sees another block store."""
    return " ".join((UnsharedBlockStoreError.__doc__ or "").replace("HOST", host).split())


def list_block_stores(connection: sa.Connection) -> list[HostStore]:
    """Return what each host sees, ordered by host. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT b.host, b.roots, b.names,
                    EXISTS (
                        SELECT
                        FROM forebay.processes p
                        WHERE p.kind = 'agent' AND p.ended_at IS NULL AND p.host = b.host AND p.slots > 0
                    ) AS lives
                FROM forebay.block_stores b
                ORDER BY b.host
            """)
        ).all()
    return [HostStore(row.host, dict(zip(row.roots, row.names, strict=True)), row.lives) for row in rows]
