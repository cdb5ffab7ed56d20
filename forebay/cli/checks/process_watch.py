"""Tell the terminal of `forebay up` of processes that ended unasked, and of leases that expired: one line for each.

Owns when a line is due: the more often a process ends, the longer is the time to its next line. How a process ended is
what its agent has reported in the driver log; it changes nothing. `forebay up` reports its own children itself.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestration.status_page.reasons import causes
from tracker_store.batches.run_queue import crashed_batch_drivers
from tracker_store.reports.listener_events import EventKind, events_after, newest_position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import sqlalchemy as sa

    from tracker_store.reports.listener_events import EventPosition, ListenerEvent

#: Seconds between two looks, each of which costs three statements, and the events since the last one.
LOOK_SECONDS = 5.0
#: Seconds for which nothing is told of a process after its first line; each further line doubles them, up to the most.
QUIET_SECONDS = 60.0
MOST_QUIET_SECONDS = 3600.0
_KINDS = frozenset({EventKind.RECEIVER_EXITED, EventKind.RECEIVER_LEASE_EXPIRED})
# Events per statement, and statements per look: the next look goes on where this one ended.
_PAGE, _PAGES = 1_000, 20


@dataclass(frozen=True, slots=True)
class End:
    """Say whose process ended, how, and which command shows more."""

    name: str
    how: str
    command: str


@dataclass(slots=True)
class _Quiet:
    """Hold until when nothing is told of a process, for how long after its next line, and what it did meanwhile.

    ended: when it ended last. untold: how often since its last line.
    """

    until: float
    ended: float
    seconds: float = QUIET_SECONDS
    untold: int = 0
    is_told: bool = False


class ProcessWatch:
    """Look at what has ended since the look before; see the module.

    Args:
        tell: called with each line.
        location: the code location whose batch drivers are meant.
        clock: seconds, which never go back.
    """

    def __init__(
        self, tell: Callable[[str], None], *, location: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tell = tell
        self._location = location
        self._clock = clock
        self._next = 0.0
        self._position: EventPosition | None = None
        self._drivers: set[int] = set()
        self._quiet: dict[str, _Quiet] = {}

    def look(self, connection: sa.Connection) -> None:
        """Tell of ends, if a look is due; the first only notes what was before. Raises what the driver log raises."""
        if self._clock() < self._next:
            return
        drivers = crashed_batch_drivers(connection, location=self._location)
        if self._position is None:
            self._position = newest_position(connection)
        else:
            events, self._position = _events_after(connection, self._position)
            self.report(
                [
                    *map(_of_receiver, events),
                    *(_of_driver(*how) for process_id, how in drivers.items() if process_id not in self._drivers),
                ]
            )
        self._drivers = set(drivers)
        self._next = self._clock() + LOOK_SECONDS

    def report(self, ends: Iterable[End]) -> None:
        """Tell of those of which a line is due: receivers that ended with the same process are in one."""
        now = self._clock()
        due: list[End] = []
        for end in ends:
            quiet = self._quiet.setdefault(end.name, _Quiet(now, now))
            if now - quiet.ended > MOST_QUIET_SECONDS:
                quiet.seconds = QUIET_SECONDS
            quiet.ended = now
            quiet.untold += 1
            if now >= quiet.until and all(other.name != end.name for other in due):
                due.append(end)
        for cause in causes(due, lambda end: end.how):
            quiets = [self._quiet[row.name] for row in cause.rows]
            times = sum(quiet.untold for quiet in quiets)
            since = " since the last line" if any(quiet.is_told for quiet in quiets) else ""
            again = f" ({times:,} times{since})" if times > len(quiets) else ""
            self._tell(f"{cause.row.name}{cause.and_more}: {cause.line}{again}: {cause.row.command}")
        for end in due:
            quiet = self._quiet[end.name]
            quiet.until, quiet.untold, quiet.is_told = now + quiet.seconds, 0, True
            quiet.seconds = min(2 * quiet.seconds, MOST_QUIET_SECONDS)


def _events_after(connection: sa.Connection, position: EventPosition) -> tuple[list[ListenerEvent], EventPosition]:
    """Return the ends of receivers' processes after a position, and the position to go on from."""
    found: list[ListenerEvent] = []
    for _ in range(_PAGES):
        page = events_after(connection, position, limit=_PAGE)
        found += [event for event in page if event.kind in _KINDS]
        if page:
            position = page[-1].position
        if len(page) < _PAGE:
            break
    return found, position


def _of_receiver(event: ListenerEvent) -> End:
    name = f"{event.stream}/{event.ordinal}"
    return End(name, event.message, f"forebay logs {name}")


def _of_driver(pid: int, how: str) -> End:
    return End("batch driver", f"its process (pid {pid}) {how or 'ended unasked'}", "forebay logs agent")
