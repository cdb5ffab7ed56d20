"""Create the consumer groups of a reader, and report what they will never read.

This module owns the groups' marks in the driver log, and when to look at them. An entry before a group's position was
given out: it is pending, or its key is registered. If neither holds, someone moved the position past it, and it is
counted. It must never read or acknowledge an entry.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import redis

from forebay_contrib.redis.group_gaps import (
    Gap,
    Reached,
    Seen,
    advanced,
    another_stream,
    first_seen,
    gap_of_group,
    gap_of_trimmed,
    id_of,
    is_another_stream,
    number_of,
    of_another_stream,
)
from forebay_contrib.redis.records import StreamEntry, sorted_out
from receiver_runtime.reporting.source_marks import SourceMarks

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from forebay_contrib.redis.declaration import RedisStreams
    from receiver_runtime.supervisor.receiver import Receiver

_LOOK_SECONDS = 5.0  # between two looks at the groups
_REPORT_SECONDS = 60.0  # between two reports of entries that were passed over while a receiver reads
# In milliseconds since 1970: no Redis that made ids by its clock is older (2001).
_FIRST_MILLISECOND = 10**12
# Entries that are looked at together, at most. Their size is not known at first, so it begins with few, as the reader.
_MOST_ENTRIES = 1000
_LEAST_ENTRIES = 10
_MORE_EACH_TIME = 4
_MOST_LOOKED_AT = 1000  # how many of a group that was made again are looked at for one that was given out
_MOST_MISSING = 1_000_000  # how many are counted before a gap is "at least" that long
_MOST_PENDING = 100_000  # ids of pending entries in one answer, also of those that were trimmed
# Keys are known for the stream's window. One that is shorter than a mark's age may have forgotten what was registered.
_SHORTEST_WINDOW = 600.0


@dataclass(slots=True)
class _Group:
    marks: SourceMarks
    reached: Reached = field(default_factory=Reached)
    newest: bytes = b""  # the last entry that this receiver was given
    #: What was passed over and is not reported yet, and when the next report may be made.
    passed: _Passed | None = None
    report_at: float = 0.0


class _Passed(NamedTuple):
    """Count the entries that were passed over, from the oldest to the newest of them."""

    entries: int
    oldest: bytes
    newest: bytes
    is_all: bool

    def gap(self) -> Gap:
        at_least = "" if self.is_all else "at least "
        where = f"{self.oldest.decode()} up to {self.newest.decode()}"
        what = f"someone moved it past {at_least}{self.entries} entries that it had not read, {where}"
        return Gap(what, self.entries if self.is_all else None)

    def and_later(self, later: _Passed) -> _Passed:
        return _Passed(self.entries + later.entries, self.oldest, later.newest, self.is_all and later.is_all)


class ConsumerGroups:
    """Hold the reader's groups, one for each stream key. Only the reader's thread uses it."""

    def __init__(
        self,
        receiver: Receiver,
        source: RedisStreams,
        consumer: str,
        held: AbstractSet[str],
        stopping: threading.Event,
    ) -> None:
        self._receiver = receiver
        self._source = source
        self._consumer = consumer
        self._held = held
        self._stopping = stopping
        path = receiver.supervisor.block_path
        self._known_keys = path.known_keys
        settings = receiver.supervisor.settings
        self._most_bytes = settings.max_block_bytes
        self._knows_keys = settings.key_window >= _SHORTEST_WINDOW
        self._groups = {
            stream: _Group(SourceMarks(path.positions, f"{source.group} of {stream}")) for stream in source.streams
        }
        self._look_at = 0.0

    def open(self, client: redis.Redis) -> None:
        """Create the groups that are missing, and report what is missing of those that were there."""
        for stream in self._groups:
            self._open(client, stream)

    def look(self, client: redis.Redis, *, now: bool = False) -> None:
        """Look at the groups, if it is time to; report what they have missed, and note how far they have got."""
        if now or time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_SECONDS
            for stream in self._groups:
                if now or time.monotonic() >= self._groups[stream].report_at:
                    self._report_passed(stream)
                self._look(client, stream)

    def note_given(self, client: redis.Redis, stream: str, first: bytes, last: bytes) -> None:
        """Note new entries that this receiver was given, and report those before them that no consumer was given."""
        group = self._groups[stream]
        passed = self._passed_over(client, stream, number_of(first) - 1)
        group.newest = last
        if passed is None:
            return
        group.reached = group.reached._replace(through=max(group.reached.through, number_of(last)))
        # Where another program reads in the group, each read finds some.
        before = group.passed
        if before is not None:
            passed = before.and_later(passed)
        group.passed = passed
        if time.monotonic() >= group.report_at:
            self._report_passed(stream)

    def _report_passed(self, stream: str) -> None:
        group = self._groups[stream]
        passed, group.passed = group.passed, None
        if passed is not None:
            group.report_at = time.monotonic() + _REPORT_SECONDS
            self._report(stream, passed.gap())

    def report_gone(self, stream: str, gone: Sequence[bytes]) -> None:
        """Report entries that the group had given out and that are no longer there."""
        what = (
            f"{len(gone)} entries were trimmed or deleted after they were given out and before they were stored, as "
            f"{gone[0].decode()}"
        )
        self._report(stream, Gap(what, len(gone)))

    def dropped(self, stream: str) -> int:
        """Return how many of the entries that Redis counts as unread are gone."""
        return self._groups[stream].reached.dropped

    def _open(self, client: redis.Redis, stream: str) -> None:
        group, name = self._groups[stream], self._source.group
        mark = group.marks.read()
        # The driver log remembers a group that existed: if it is missing, it was deleted, alone or with its stream.
        latest = self._source.start == "latest" and mark is None
        is_new = True
        try:
            _create(client, stream, name, latest=latest)
        except redis.ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise
            is_new = False
        seen = _see(client, stream, name)
        if seen is None:
            raise redis.ResponseError(f"the group {name!r} of {stream!r} is gone again")
        if mark is None:
            group.reached = first_seen(seen)
        elif is_new:
            before = Reached(*mark)
            gap = None if self._has_first(client, stream) else gap_of_group(before, seen)
            lost = "no entry is lost" if gap is None else str(gap)
            self._receiver.report_error(
                f"the group {name!r} of {stream} was gone; it is made again, and begins with the oldest entry: {lost}"
            )
            group.reached = advanced(of_another_stream(before)._replace(deleted=seen.gone), seen)
        else:
            group.reached = Reached(*mark)
            self._compare(client, stream, seen, is_ours=self._has_consumers(client, stream))
        group.marks.note(group.reached)
        # Not before the mark: a group with a consumer of ours is known.
        client.xgroup_createconsumer(stream, name, self._consumer)

    def _has_consumers(self, client: redis.Redis, stream: str) -> bool:
        """Return whether a receiver of ours has a consumer in the group, as each has from its start."""
        consumers: Any = client.xinfo_consumers(stream, self._source.group)
        ours = f"{self._source.consumer}-".encode()
        return any(_by_name(one)["name"].startswith(ours) for one in consumers)

    def _has_first(self, client: redis.Redis, stream: str) -> bool:
        """Return whether the oldest entry was given out: then none behind it was trimmed."""
        found: Any = client.xrange(stream, count=1)
        return bool(found) and not self._not_given(client, stream, [StreamEntry(stream, *found[0])])

    def _look(self, client: redis.Redis, stream: str) -> None:
        seen = _see(client, stream, self._source.group)
        # If the group is gone, the next read says so.
        if seen is not None:
            self._compare(client, stream, seen)
            self._groups[stream].marks.note(self._groups[stream].reached)

    def _compare(self, client: redis.Redis, stream: str, seen: Seen, *, is_ours: bool = True) -> None:
        gaps, reached = self._gaps(client, stream, seen, is_ours=is_ours)
        group = self._groups[stream]
        if gaps:
            # Another receiver of the group may have reported them meanwhile. Compare its mark with a later look only:
            # an earlier one is behind it, as if the stream had lost its newest entries.
            mark = group.marks.read()
            if mark is not None and mark > group.reached:
                group.reached = Reached(*mark)
                later = _see(client, stream, self._source.group)
                if later is None:
                    return
                gaps, reached = self._gaps(client, stream, later, is_ours=is_ours)
        for gap in gaps:
            self._report(stream, gap)
        group.reached = reached

    def _gaps(self, client: redis.Redis, stream: str, seen: Seen, *, is_ours: bool) -> tuple[list[Gap], Reached]:
        group = self._groups[stream]
        gaps: list[Gap | None] = []
        if is_another_stream(group.reached, seen):
            gaps.append(another_stream(group.reached))
            group.reached = of_another_stream(group.reached)
        before = group.reached
        if seen.position > before.through and id_of(seen.position).encode() != group.newest:
            passed = self._passed_over(client, stream, seen.position)
            gaps.append(None if passed is None else passed.gap())
        if not is_ours:
            gaps.append(self._gap_of_another_group(client, stream, seen))
        trimmed, before = gap_of_trimmed(before, seen)
        return [gap for gap in [*gaps, trimmed] if gap is not None], advanced(before, seen)

    def _gap_of_another_group(self, client: redis.Redis, stream: str, seen: Seen) -> Gap | None:
        """Return what is missing if someone else made the group again; its receivers had consumers in it."""
        before = self._groups[stream].reached
        if seen.position < before.through:
            return gap_of_group(before, seen)
        if seen.position == before.through:
            return None
        looked_at = 0
        for entries in self._newest_first(client, stream, id_of(seen.position), "-"):
            # If an entry that was given out is still there, those behind it were counted.
            if len(self._not_given(client, stream, entries)) < len(entries):
                return None
            looked_at += len(entries)
            if looked_at >= _MOST_LOOKED_AT:
                break
        return Gap(
            f"someone made it, or its stream, again: what it had after {id_of(before.through)} and was not read is lost"
        )

    def _passed_over(self, client: redis.Redis, stream: str, through: int) -> _Passed | None:
        """Return the entries up to this one, without one between that was given out, that no consumer was given."""
        group = self._groups[stream]
        if not self._knows_keys or through <= group.reached.through:
            return None
        count = 0
        oldest = newest = b""
        is_all = True
        for entries in self._newest_first(client, stream, id_of(through), f"({id_of(group.reached.through)}"):
            missing = self._not_given(client, stream, entries)
            if missing:
                newest, oldest = newest or missing[0].id, missing[-1].id
                count += len(missing)
            if len(missing) < len(entries):
                break
            if count >= _MOST_MISSING or self._stopping.is_set():
                is_all = False
                break
        return _Passed(count, oldest, newest, is_all) if count else None

    def _newest_first(self, client: redis.Redis, stream: str, end: str, begin: str) -> Iterator[list[StreamEntry]]:
        """Yield the entries between two ids in pages of about a block: Redis sends them whole, however large."""
        # Often the newest one was given out, and says enough.
        page = 1
        while True:
            found: Any = client.xrevrange(stream, end, begin, count=page)
            if not found:
                return
            entries = [StreamEntry(stream, entry_id, fields) for entry_id, fields in found]
            yield entries
            size = sum(len(one) for entry in entries for one in entry.fields)
            fitting = self._most_bytes * len(entries) // max(1, size)
            page = max(_LEAST_ENTRIES, min(_MOST_ENTRIES, _MORE_EACH_TIME * page, fitting))
            end = f"({entries[-1].id.decode()}"

    def _not_given(self, client: redis.Redis, stream: str, entries: Sequence[StreamEntry]) -> list[StreamEntry]:
        """Return the entries, newest first, that are newer than any that was given out."""
        if entries[0].id == self._groups[stream].newest:
            return []
        # In this order: one that is acknowledged in between is registered before.
        pending: Any = client.xpending_range(
            stream, self._source.group, entries[-1].id.decode(), entries[0].id.decode(), _MOST_PENDING
        )
        given = {one["message_id"] for one in pending}
        rest = [entry.key for entry in entries if entry.id not in given and entry.key not in self._held]
        known = self._known_keys(rest) if rest else set()
        missing: list[StreamEntry] = []
        for entry in entries:
            # What can be no row was acknowledged as a dead letter, without its key.
            if entry.id in given or entry.key in known or entry.key in self._held or not sorted_out([entry])[0]:
                break
            missing.append(entry)
        return missing

    def _report(self, stream: str, gap: Gap) -> None:
        self._receiver.report_error(f"group {self._source.group!r} of {stream}: {gap}")


def _create(client: redis.Redis, stream: str, name: str, *, latest: bool) -> None:
    """Create a group at the stream's end, or before its oldest entry. Raises redis.ResponseError.

    Set the group's count of read entries. Without it, Redis 7.0 computes the count from the stream when the group reads
    its first entry, and includes the entries that were trimmed before that.
    """
    try:
        whole: Any = client.xinfo_stream(stream)
    except redis.ResponseError as error:
        if "no such key" not in str(error):
            raise
        about: dict[str, Any] = {"length": 0, "last-generated-id": b"0-0", "entries-added": 0}
    else:
        about = _by_name(whole)
    added = about.get("entries-added")
    if added is not None:
        try:
            begin, read = (about["last-generated-id"], added) if latest else (b"0", added - about["length"])
            client.xgroup_create(stream, name, begin, mkstream=True, entries_read=read)
        except redis.ResponseError as error:
            if str(error).startswith("BUSYGROUP"):
                raise
            # Servers before Redis 7 do not know the option, and each refuses it in other words.
        else:
            return
    client.xgroup_create(stream, name, "$" if latest else "0", mkstream=True)


def group_of(client: redis.Redis, stream: str, name: str) -> dict[str, Any] | None:
    """Return what Redis says of a group of a stream; None: it is gone."""
    groups: Any = client.xinfo_groups(stream)
    return next((group for group in map(_by_name, groups) if group["name"] == name.encode()), None)


def time_of(entry_id: bytes) -> float | None:
    """Return when an entry was added, in seconds since 1970; None for an id that its sender made up."""
    milliseconds = int(entry_id.partition(b"-")[0])
    return milliseconds / 1000 if milliseconds >= _FIRST_MILLISECOND else None


def _see(client: redis.Redis, stream: str, name: str) -> Seen | None:
    """Look at a stream and its group at one moment; None: the group is gone."""
    with client.pipeline(transaction=True) as both:
        both.xinfo_stream(stream)
        both.xinfo_groups(stream)
        whole, groups = both.execute()
    about = _by_name(whole)
    group = next((one for one in map(_by_name, groups) if one["name"] == name.encode()), None)
    if group is None:
        return None
    first = about["first-entry"]
    position = number_of(group["last-delivered-id"])
    # Since Redis 7.
    added, read = about.get("entries-added"), group.get("entries-read")
    return Seen(
        position=position,
        last=number_of(about["last-generated-id"]),
        first=None if first is None else number_of(first[0]),
        length=about["length"],
        added=added,
        # A group that was never given an entry has no count.
        read=0 if read is None and not position and added is not None else read,
        deleted=number_of(about.get("max-deleted-entry-id") or b"0-0"),
    )


def _by_name(answer: Mapping[Any, Any] | Iterable[Any]) -> dict[str, Any]:
    """Normalise a reply, a mapping or alternating names and values, to a dict by name."""
    pairs = answer.items() if hasattr(answer, "items") else zip(*[iter(answer)] * 2, strict=True)
    return {name.decode() if isinstance(name, bytes) else str(name): value for name, value in pairs}
