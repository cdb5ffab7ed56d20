"""Decide which messages a consumer will never deliver, by what it had reached before and what JetStream says now.

Pure functions. A consumer counts its deliveries, and says at which message of the stream it is. If it went further in
the stream than it delivered messages, the ones between were removed, or someone made it again behind them. This module
must never ask the server.
"""

from __future__ import annotations

from typing import NamedTuple


class Reached(NamedTuple):
    """Hold what a consumer had reached; the driver log keeps it as a mark, and a later one is greater.

    Args:
        stream: when the stream was made, in microseconds since 1970.
        consumer: when the consumer was made, likewise.
        place: no message of the stream up to this one will be delivered as a new one.
        deliveries: how many it had made, again or for the first time.
        acknowledged: all messages up to this one were acknowledged.
        waiting: how many it had not delivered.
        removed: how many messages the stream had removed.
        holes: how many of these are missing ahead of it since before it began, at most: no gap.
    """

    stream: int = 0
    consumer: int = 0
    place: int = 0
    deliveries: int = 0
    acknowledged: int = 0
    waiting: int = 0
    removed: int = 0
    holes: int = 0


class Seen(NamedTuple):
    """Hold what JetStream says of a stream, and then of a consumer of it.

    Args:
        first: the oldest message that the stream has, or will have.
        last: the newest one that it ever had.
        removed: how many it has removed.
        removed_within: how many of these are newer than the oldest one that is there.
        consumer: when the consumer was made, in microseconds since 1970.
        place: the newest message that the consumer delivered or went past.
        begins_after: the message before its first one, if that was declared.
        unacknowledged: how many it has delivered and waits for.
        acknowledged: up to which message all are acknowledged.
        is_filtered: it delivers only messages of some subjects.
        keeps_newest: the stream removes a message if a newer one of its subject comes, as was declared: no gap.
    """

    stream: int
    first: int
    last: int
    removed: int
    removed_within: int
    consumer: int
    place: int
    deliveries: int
    waiting: int
    unacknowledged: int
    acknowledged: int
    begins_after: int | None = None
    is_filtered: bool = False
    keeps_newest: bool = False

    @property
    def reached(self) -> Reached:
        """Return the mark of this moment."""
        return Reached(
            self.stream,
            self.consumer,
            max(self.place, self.first - 1),
            self.deliveries,
            self.acknowledged if self.unacknowledged else max(self.acknowledged, self.place),
            self.waiting,
            self.removed,
        )


def begun(seen: Seen, *, is_latest: bool) -> Reached:
    """Return what a consumer has reached that was just created: a replicated one may say that it is at message 0."""
    start = seen.last if is_latest else seen.first - 1
    place = max(start, seen.place)
    return seen.reached._replace(
        place=place, acknowledged=max(start, seen.acknowledged), holes=seen.removed_within if place < seen.last else 0
    )


def gaps(before: Reached | None, seen: Seen) -> tuple[list[str], Reached]:
    """Return what is missing since the mark, in words, and the new mark."""
    now = seen.reached
    if before is None:
        before = now._replace(place=seen.place, holes=seen.removed_within if seen.place < seen.last else 0)
    found = []
    if before.stream != seen.stream:
        unread = f"; {before.waiting} were not delivered when it was last seen" if before.waiting else ""
        found.append(
            f"the stream was created again: what it had after message {before.acknowledged} and was not read is lost "
            f"(a gap of unknown size{unread})"
        )
        before = Reached(stream=seen.stream, consumer=before.consumer)
    is_same = before.consumer == seen.consumer
    if not is_same:
        begins = seen.place - seen.deliveries if seen.begins_after is None else seen.begins_after
        # What was removed is counted below.
        is_passed = begins > max(before.acknowledged, seen.first - 1)
        if is_passed:
            found.append(_passed(before.acknowledged, begins, is_filtered=seen.is_filtered))
        place = begins if is_passed else before.acknowledged
        before = before._replace(consumer=seen.consumer, place=place, deliveries=0, waiting=0)
    skipped = _skipped(before, seen)
    missing = skipped - min(before.holes, skipped)
    if missing:
        words = f"messages {before.place + 1} up to {now.place}, {missing} of them"
        if seen.is_filtered:
            words = f"at least {missing} messages"
        found.append(f"{words}, were removed from the stream before they were delivered (a gap of {missing} messages)")
    return found, now._replace(
        # A consumer that has delivered nothing may not say yet where it begins.
        place=max(now.place, before.place) if is_same and not seen.deliveries else now.place,
        acknowledged=max(now.acknowledged, before.acknowledged),
        holes=before.holes - (skipped - missing),
    )


def _passed(acknowledged: int, begins: int, *, is_filtered: bool) -> str:
    size = "unknown size" if is_filtered else f"up to {begins - acknowledged} messages"
    return (
        f"someone made the consumer again, and it begins after message {begins}: those after {acknowledged}, which was "
        f"the last one known to be acknowledged, are not delivered (a gap of {size})"
    )


def _skipped(before: Reached, seen: Seen) -> int:
    """Return how many messages were removed before they were delivered, at least; never too many.

    Deliveries that were repeated make it too low. After a crash of the server both positions may go back, and repeated
    deliveries be forgotten: so no more are missing than the stream says that it removed.
    """
    deliveries = seen.deliveries - before.deliveries
    if seen.keeps_newest:
        return 0
    if seen.is_filtered:
        return max(0, min(before.waiting - deliveries - seen.waiting, seen.removed - before.removed))
    place = max(seen.place, seen.first - 1)
    removed = max(0, min(seen.first - 1, place) - before.place) + seen.removed_within
    return max(0, min(place - before.place - deliveries, removed))
