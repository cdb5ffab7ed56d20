"""Report entries that were trimmed or deleted before they were stored, with their number if Redis knows it.

This module owns what was reported, and when to ask Redis again. It must never read or acknowledge an entry.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from forebay_contrib.redis.records import id_parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import redis

    from forebay_contrib.redis.declaration import RedisStreams
    from receiver_runtime.supervisor.receiver import Receiver

# Between two checks for trimmed entries.
_LOOK_SECONDS = 5.0
# In milliseconds since 1970: no Redis that made ids by its clock is older (2001).
_FIRST_MILLISECOND = 10**12


class TrimmedEntries:
    """Find entries that are lost. Only the reader's thread uses it."""

    def __init__(self, receiver: Receiver, source: RedisStreams) -> None:
        self._receiver = receiver
        self._source = source
        self._look_at = 0.0
        self._reported: dict[str, bytes] = {}

    def report_gone(self, stream: str, gone: Sequence[bytes]) -> None:
        """Report entries that the group had given out and that are no longer there."""
        self._receiver.report_error(
            f"{stream}: {len(gone)} entries were trimmed or deleted after they were given out and before they were "
            f"stored, as {gone[0].decode()}: they are lost"
        )

    def check(self, client: redis.Redis) -> None:
        """Check whether entries that the group has never read were trimmed."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _LOOK_SECONDS
        for stream in self._source.streams:
            about: Any = _by_name(client.xinfo_stream(stream))
            group = group_of(client, stream, self._source.group)
            if group is not None:
                self._compare(stream, about, group)

    def _compare(self, stream: str, about: Mapping[str, Any], group: Mapping[str, Any]) -> None:
        read = group["last-delivered-id"]
        first = about["first-entry"]
        many = ""
        if first is None or id_parts(first[0]) > id_parts(read):
            # All entries ever added, minus those that were read, minus those still there.
            if group.get("entries-read") is not None:
                gone = about["entries-added"] - group["entries-read"] - about["length"]
                many = str(gone) if gone > 0 else ""
        elif id_parts(about.get("max-deleted-entry-id") or b"0-0") > id_parts(read):
            many = "some"
        if many and self._reported.get(stream) != read:
            self._reported[stream] = read
            self._receiver.report_error(
                f"{stream}: {many} entries after {read.decode()} were trimmed or deleted before they were read, and "
                "are lost"
            )


def group_of(client: redis.Redis, stream: str, name: str) -> dict[str, Any] | None:
    """Return what Redis says of a group of a stream; None: it is gone."""
    groups: Any = client.xinfo_groups(stream)
    return next((group for group in map(_by_name, groups) if group["name"] == name.encode()), None)


def time_of(entry_id: bytes) -> float | None:
    """Return when an entry was added, in seconds since 1970; None for an id that its sender made up."""
    milliseconds = id_parts(entry_id)[0]
    return milliseconds / 1000 if milliseconds >= _FIRST_MILLISECOND else None


def _by_name(answer: Mapping[Any, Any] | Iterable[Any]) -> dict[str, Any]:
    """Normalise a reply, a mapping or alternating names and values, to a dict by name."""
    pairs = answer.items() if hasattr(answer, "items") else zip(*[iter(answer)] * 2, strict=True)
    return {name.decode() if isinstance(name, bytes) else str(name): value for name, value in pairs}
