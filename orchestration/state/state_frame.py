"""Name the stored frames of a state, and say which of them a bucket's rows are in.

A version of a state has at most one frame for each bucket. A frame has the rows that changed, or, if it is *full*, all
of them. A chain is the frames of several versions, the oldest version first. Owns the form in which the driver log
keeps a frame, and when a bucket is written full. Loads neither Spark nor Arrow; reads no file.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: A bucket is written full once in this many versions: no chain has more.
FULL_EVERY_VERSIONS = 32

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class StateError(Exception):
    """See the message for the column or key: the changes of a state, or what is stored of it, can't be used."""


@dataclass(frozen=True, slots=True)
class StateFrame:
    """Name one stored frame.

    Attributes:
        bucket: whose rows it has.
        path: of the segment in the block store.
        offset: of the frame in the segment, in bytes.
        length: of the frame, in bytes.
        crc32c: the frame's checksum.
        rows: how many there are, those of deleted keys among them.
        is_full: whether it has all rows of the bucket.
        next_expiry: the first time at which a key in it expires; None: none does.
    """

    bucket: int
    path: str
    offset: int
    length: int
    crc32c: int
    rows: int
    is_full: bool
    next_expiry: datetime | None

    def to_row(self) -> list[Any]:
        """Return it as a list of JSON's types."""
        expiry = None if self.next_expiry is None else microseconds(self.next_expiry)
        return [self.bucket, self.path, self.offset, self.length, self.crc32c, self.rows, int(self.is_full), expiry]

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> StateFrame:
        """Return the frame of a list from ``to_row``."""
        bucket, path, offset, length, crc32c, rows, is_full, expiry = row
        return cls(
            bucket, path, offset, length, crc32c, rows, bool(is_full), None if expiry is None else time_of(expiry)
        )


Chain = dict[int, tuple[StateFrame, ...]]


def microseconds(time: datetime) -> int:
    """Return a time as microseconds since 1970."""
    return (time - _EPOCH) // _MICROSECOND


def time_of(microseconds: int) -> datetime:
    """Return the time of microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=microseconds)


def by_bucket(chain: Iterable[Iterable[StateFrame]]) -> Chain:
    """Return the frames that each bucket's rows are in, oldest first: from its newest full frame on."""
    found: dict[int, list[StateFrame]] = {}
    for version in chain:
        for frame in version:
            if frame.is_full:
                found[frame.bucket] = []
            found.setdefault(frame.bucket, []).append(frame)
    return {bucket: tuple(frames) for bucket, frames in found.items()}


def next_expiry(frames: Iterable[StateFrame]) -> datetime | None:
    """Return the first time at which a key in these frames may expire; None: none does.

    A later frame may have moved it: no key expires before, and it is exact for a bucket with one frame.
    """
    return min((frame.next_expiry for frame in frames if frame.next_expiry is not None), default=None)


def may_expire(frames: Iterable[StateFrame], batch_time: datetime) -> bool:
    """Return whether a key in these frames may have expired."""
    first = next_expiry(frames)
    return first is not None and first <= batch_time


def is_full_due(bucket: int, ordinal: int, frames: Sequence[StateFrame], batch_time: datetime) -> bool:
    """Return whether a version writes a bucket full, of which these are the frames so far.

    It does in turn, where there is none yet, and where a key may have expired: its next expiry is then exact.
    """
    in_turn = ordinal % FULL_EVERY_VERSIONS == bucket % FULL_EVERY_VERSIONS
    return in_turn or not frames or may_expire(frames, batch_time)
