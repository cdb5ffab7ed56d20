"""Decide what a consumer group will never read, by what it had reached before and by what Redis says of it now.

Pure functions. Redis counts the entries that were ever added and those that a group read, and a trimmed entry is in the
first count only. What Redis can't count is a gap of unknown size. This module must never ask Redis or the driver log.
"""

from __future__ import annotations

from typing import NamedTuple

_SEQUENCES = 2**64  # ids of one millisecond


class Reached(NamedTuple):
    """Hold what a group had reached; the driver log keeps it as a mark. Ids are numbers (``number_of``).

    Args:
        stream: counts the streams of this name, and the groups: a later one has another.
        through: no entry up to this id is missing, unless it was reported.
        last: the newest id that the stream ever had.
        added: how many entries were ever added; 0 where Redis does not count.
        rank: how many entries were added up to ``through``, with it; -1: unknown.
        dropped: how many entries it will never read and are reported.
        deleted: the newest id of a deleted or trimmed entry that is reported.
        unsized: 1 if a gap of unknown size was reported since ``dropped`` was last known, else 0.
    """

    stream: int = 0
    through: int = 0
    last: int = 0
    added: int = 0
    rank: int = 0
    dropped: int = 0
    deleted: int = 0
    unsized: int = 0


class Seen(NamedTuple):
    """Hold what Redis says of a stream and a group, at one moment. Ids are numbers.

    Args:
        position: the id that the group was given last.
        last: the newest id that the stream ever had.
        first: the oldest id that is there; None: the stream is empty.
        length: how many entries are there.
        added: how many were ever added; None before Redis 7.
        read: how many the group was given, 0 where it is at the beginning; None where Redis does not know it.
        deleted: the newest id that XDEL removed.
    """

    position: int
    last: int
    first: int | None
    length: int
    added: int | None = None
    read: int | None = None
    deleted: int = 0

    @property
    def is_before_all(self) -> bool:
        """Return whether the group was given none of the entries that are there."""
        return self.first is None or self.first > self.position

    @property
    def gone(self) -> int:
        """Return the newest id that is known to be deleted or trimmed, of all that the group was not given."""
        return max(self.deleted, self.last) if self.first is None else self.deleted

    @property
    def rank(self) -> int | None:
        """Return how many entries were added up to the group's position, with it; None: unknown."""
        if self.added is None or not (self.is_before_all or self.position >= self.last):
            return None
        return self.added - (self.length if self.is_before_all else 0)

    @property
    def dropped(self) -> int | None:
        """Return how many of the added entries the group was never given and never will be; None: unknown."""
        return None if self.rank is None or self.read is None else max(0, self.rank - self.read)


class Gap(NamedTuple):
    """Hold what is missing, in words, and how many entries; None: unknown."""

    what: str
    size: int | None = None

    def __str__(self) -> str:
        """Return one sentence."""
        return f"{self.what} (a gap of {'unknown size' if self.size is None else f'{self.size} entries'})"


def number_of(entry_id: bytes) -> int:
    """Return an id as a number, which can be compared."""
    milliseconds, _, sequence = entry_id.partition(b"-")
    return int(milliseconds) * _SEQUENCES + int(sequence or 0)


def id_of(number: int) -> str:
    """Return the id that a number stands for."""
    return "{}-{}".format(*divmod(number, _SEQUENCES))


def first_seen(seen: Seen) -> Reached:
    """Return what a group has reached that the driver log does not know: what it missed earlier is not ours."""
    dropped = 0 if seen.is_before_all and seen.position else seen.dropped or 0
    return advanced(Reached(through=seen.position, dropped=dropped, deleted=seen.gone), seen)


def advanced(before: Reached, seen: Seen) -> Reached:
    """Return what a group has reached of the same stream, if nothing is missing up to its position."""
    now = before._replace(last=seen.last, added=seen.added or 0)
    if seen.position < before.through:
        return now
    counted = -1 if seen.read is None else seen.read + before.dropped
    return now._replace(through=seen.position, rank=counted if seen.rank is None else seen.rank)


def of_another_stream(before: Reached) -> Reached:
    """Return what a group has reached of a stream, or as a group, that was made again: nothing."""
    return Reached(stream=before.stream + 1)


def is_another_stream(before: Reached, seen: Seen) -> bool:
    """Return whether the stream was deleted and made again, or has lost its newest entries."""
    return seen.last < before.last or (seen.added is not None and seen.added < before.added)


def another_stream(before: Reached) -> Gap:
    """Return what is missing if the stream was made again."""
    unread = before.added - before.rank if before.rank >= 0 else 0
    waiting = f", {unread} when it was last seen" if unread > 0 else ""
    return Gap(
        f"the stream was deleted and made again, or lost its newest entries: what it had after "
        f"{id_of(before.through)} and was not read is lost{waiting}"
    )


def gap_of_group(before: Reached, seen: Seen) -> Gap | None:
    """Return what is missing if the group was deleted, and one that begins with the oldest entry follows it."""
    if is_another_stream(before, seen):
        return another_stream(before)
    # If an entry that was read is still there, none behind it was trimmed.
    if seen.first is not None and seen.first <= before.through:
        return None
    if not before.through:
        return Gap("what it had read is not known")
    what = f"entries after {id_of(before.through)} were trimmed or deleted meanwhile"
    if seen.added is None or before.rank < 0:
        return Gap(f"{what}, if there were any")
    missing = seen.added - seen.length - before.rank
    return Gap(what, missing) if missing > 0 else None


def gap_of_trimmed(before: Reached, seen: Seen) -> tuple[Gap | None, Reached]:
    """Return what was trimmed or deleted before it was read and is not reported, and the mark with it."""
    if seen.position < before.through:
        # Someone set it back: what was trimmed since was read before.
        return None, before
    after = id_of(seen.position)
    dropped = seen.dropped
    if dropped is None:
        return _gap_of_unknown_size(before, seen, unsized=1)
    if before.unsized:
        # The count has in it what was reported without one. Only what can be told from that by its id is new.
        return _gap_of_unknown_size(before._replace(dropped=dropped), seen, unsized=0)
    # Newer servers count again behind what was trimmed: then all that is left out now is new. Where that can't be
    # told, fewer are said to be missing, never more.
    is_counted_again = seen.is_before_all and dropped < before.dropped
    missing = dropped if is_counted_again else dropped - before.dropped
    known = before._replace(dropped=dropped, deleted=max(before.deleted, seen.deleted))
    if missing <= 0:
        return None, known
    where = f"after {after}" if seen.is_before_all else f"before {after}"
    return Gap(f"{missing} entries {where} were trimmed or deleted before they were read", missing), known


def _gap_of_unknown_size(before: Reached, seen: Seen, *, unsized: int) -> tuple[Gap | None, Reached]:
    after = id_of(seen.position)
    if seen.deleted > max(seen.position, before.deleted):
        last = id_of(seen.deleted)
        known = before._replace(deleted=seen.deleted, unsized=unsized)
        return Gap(f"entries after {after}, the last one {last}, were deleted before they were read"), known
    # The newest entry that was there. An empty stream still knows its own newest one.
    first, newest = (seen.last + 1, seen.last) if seen.first is None else (seen.first, before.last)
    if max(seen.position, before.deleted) < newest < first:
        known = before._replace(deleted=newest, unsized=unsized)
        return Gap(f"entries after {after} up to {id_of(newest)} were trimmed before they were read"), known
    return None, before if unsized else before._replace(unsized=0)
