"""Make the records of one request from a spool's frames. Pure."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forebay.client.framing import Framing
    from forebay.client.segment import Frame


@dataclass(frozen=True, slots=True)
class Batch:
    """Hold records of one request: the index of the first, how many, and their bytes as they are sent."""

    first: int
    count: int
    body: bytes

    @property
    def end(self) -> int:
        """Return the index behind the last record."""
        return self.first + self.count


def batch_of(
    frames: Iterable[tuple[Frame, bytes]], framing: Framing, *, index: int, until: int, most_bytes: int
) -> Batch:
    """Return records from an index on and before another, at least one, and as many as fit.

    Args:
        frames: in order; the first one has the record of the index.
        framing: of their records.
        index: of the first record.
        until: the index behind the last one.
        most_bytes: of them; one record may have more.
    """
    parts: list[bytes] = []
    size, at = 0, index
    for frame, records in frames:
        upto = min(until, frame.index + frame.count)
        part = records
        if at > frame.index or upto < frame.index + frame.count:
            begin, end = framing.cut(records, (at - frame.index, upto - frame.index))
            part = records[begin:end]
        if size + len(part) > most_bytes:
            if parts:
                break
            part, upto = fitting(framing, part, at, upto, most_bytes)
        parts.append(part)
        size += len(part)
        at = upto
        if at >= until or size >= most_bytes:
            break
    return Batch(index, at - index, b"".join(parts))


def fitting(framing: Framing, records: bytes, index: int, until: int, most_bytes: int) -> tuple[bytes, int]:
    """Return as many records as fit, at least one, and the index behind them."""
    ends = framing.cut(records, range(1, until - index + 1))
    count = max(1, bisect_right(ends, most_bytes))
    return records[: ends[count - 1]], index + count
