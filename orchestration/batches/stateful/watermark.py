"""Computes the watermark of an output by event time: how far all of its sources have come.

Pure, and by batch times alone, so that a batch that runs again gets the same. It is Flink's watermark of several
inputs: the least one counts, and a source that is idle holds nothing back.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# An idle source is forgotten after this time: receivers that are gone would be listed for ever.
_FORGOTTEN_AFTER = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class SourceTime:
    """Say how far one source of a stream has come: a receiver, or a partition that receivers read.

    Attributes:
        stream: its stream's name.
        source: names it within the stream; None: the stream has had no record yet.
        latest: the greatest event time of its records; None with `source`.
        seen: the batch that last had a record of it.
        idle: whether it holds the watermark back no more.
    """

    stream: str
    source: str | None
    latest: datetime | None
    seen: datetime
    idle: bool = False

    def to_row(self) -> dict[str, Any]:
        """Return what the driver log keeps."""
        latest = None if self.latest is None else self.latest.isoformat()
        return {
            "stream": self.stream,
            "source": self.source,
            "latest": latest,
            "seen": self.seen.isoformat(),
            "idle": self.idle,
        }

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> SourceTime:
        """Read what `to_row` returned."""
        latest = None if row["latest"] is None else datetime.fromisoformat(row["latest"])
        return cls(row["stream"], row["source"], latest, datetime.fromisoformat(row["seen"]), row["idle"])


@dataclass(frozen=True, slots=True)
class EventProgress:
    """Hold how far the event time of an output is after a batch.

    Attributes:
        watermark: no record before it is waited for; None: it has none yet.
        sources: that the watermark is made of.
        late: how many records of the batch were too late.
        next_idle: the batch time at which all sources that hold the watermark back will be idle; None: none does.
    """

    watermark: datetime | None = None
    sources: tuple[SourceTime, ...] = ()
    late: int = 0
    next_idle: datetime | None = field(default=None, compare=False)

    def rows(self) -> list[dict[str, Any]]:
        """Return the sources as the driver log keeps them."""
        return [source.to_row() for source in self.sources]

    @classmethod
    def of_rows(cls, watermark: datetime | None, rows: Iterable[Mapping[str, Any]] | None) -> EventProgress:
        """Read what the driver log keeps."""
        return cls(watermark, tuple(SourceTime.of_row(row) for row in rows or ()))


@dataclass(frozen=True, slots=True)
class Patience:
    """Say how long a stream is waited for: a late record, and a source without any."""

    lateness: timedelta
    idle: timedelta


def advanced(
    before: EventProgress,
    found: Mapping[tuple[str, str], datetime],
    streams: Mapping[str, Patience],
    *,
    batch_time: datetime,
    late: int = 0,
) -> EventProgress:
    """Return the progress after a batch.

    Args:
        before: the progress after the batch before; the watermark never goes back from it.
        found: the greatest event time in the batch, by stream and source.
        streams: those that the output reads by event time.
        batch_time: of the batch.
        late: how many records of the batch were too late.
    """
    by_key = {(each.stream, each.source): each for each in before.sources if each.stream in streams}
    for (stream, source), latest in found.items():
        known = by_key.get((stream, source))
        newest = latest if known is None or known.latest is None else max(known.latest, latest)
        by_key[stream, source] = SourceTime(stream, source, newest, batch_time)
        by_key.pop((stream, None), None)
    for stream in streams:
        if not any(name == stream for name, _ in by_key):
            # It may begin at any time: the others wait for it as for any source.
            by_key[stream, None] = SourceTime(stream, None, None, batch_time)
    last_seen = {name: max(each.seen for each in by_key.values() if each.stream == name) for name in streams}
    sources = [
        replace(each, idle=each.seen + streams[each.stream].idle <= batch_time)
        for each in by_key.values()
        # One of a stream stays: without any, the others would wait for it again.
        if each.seen == last_seen[each.stream]
        or each.seen + max(streams[each.stream].idle, _FORGOTTEN_AFTER) > batch_time
    ]
    sources.sort(key=lambda each: (each.stream, each.source or ""))
    held = _least([each for each in sources if not each.idle], streams)
    watermark = before.watermark
    if held is not None:
        watermark = held if watermark is None else max(watermark, held)
    return EventProgress(watermark, tuple(sources), late, _next_idle(sources, streams))


def _least(active: Sequence[SourceTime], streams: Mapping[str, Patience]) -> datetime | None:
    """Return up to which time all of these have come; None: not known, or there are none."""
    times = [_reached(each, streams) for each in active]
    known = [time for time in times if time is not None]
    return min(known, default=None) if len(known) == len(times) else None


def _reached(source: SourceTime, streams: Mapping[str, Patience]) -> datetime | None:
    if source.latest is None:
        return None
    try:
        return source.latest - streams[source.stream].lateness
    except OverflowError:
        return datetime.min.replace(tzinfo=source.latest.tzinfo)


def _next_idle(sources: Sequence[SourceTime], streams: Mapping[str, Patience]) -> datetime | None:
    """Return when all that hold the others back will be idle: a batch without records then moves the watermark."""
    active = [each for each in sources if not each.idle]
    if len({_reached(each, streams) for each in active}) <= 1:
        return None
    held = _least(active, streams)
    return max(each.seen + streams[each.stream].idle for each in active if _reached(each, streams) == held)
