"""Remember which arriving files were read, as the driver log has it.

A file is identified by its path, its modification time and its size: its partition is ``HOST/PATH@MILLISECONDS-SIZE``,
without the host where all hosts see the same files. A file that was read to its end has its position in generation 1.

A file is remembered while it is there, because its time does not say when it came: a copy may keep an old time. A file
that is gone is forgotten once its time is older than ``max_age`` and it has been missing for an hour (or for
``max_age``, if that is less), as this process measures it. So the driver log does not grow without end where files are
taken away.

This module owns the format of the names. It must never look at a file.
"""

from __future__ import annotations

import math
import re
import time
from typing import TYPE_CHECKING

from tracker_store.blocks.blocks import Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from receiver_runtime.receivers.files.folders import Found
    from receiver_runtime.receivers.files.records import Reading
    from receiver_runtime.receivers.files.sharing import Sharing
    from receiver_runtime.reporting.receiver_driver_log import ReceiverDriverLog

_FORGET_SECONDS = 60.0  # how often to look for files to forget
# How long a file must be missing before it is forgotten: until then it may only be unavailable for a while.
_GONE_SECONDS = 3600.0
_AT_ONCE = 1000  # partitions to forget in one call to the driver log
_NAME = re.compile(r"(.*)@(-?\d+)-(\d+)", re.DOTALL)
_FINISHED = 1  # the generation of a file that was read to its end


class RememberedFiles:
    """Hold what the driver log has, as of the last refresh. Only the reader's thread uses it.

    Args:
        source: the name of the source in the driver log.
        prefix: stands before each name.
        max_age: seconds, as declared.
    """

    def __init__(self, positions: ReceiverDriverLog, *, source: str, prefix: str, max_age: float) -> None:
        self._positions = positions
        self._source = source
        self._prefix = prefix
        self._max_age = max_age
        self._known: dict[str, Position] = {}
        #: The partition of the newest version that was read, or is being read, by path.
        self.versions: dict[str, str] = {}
        # Partitions whose files are missing, and since when.
        self._gone: dict[str, float] = {}
        self._forget_at = 0.0

    def position(self, name: str) -> Position | None:
        """Return how far a file is read, or None."""
        return self._known.get(name)

    def is_finished(self, name: str) -> bool:
        """Return whether a file was read to its end."""
        at = self._known.get(name)
        return at is not None and at.generation >= _FINISHED

    def finish(self, reading: Reading) -> None:
        """Note that a file is read to its end."""
        self._known[reading.name] = Position(reading.generation, reading.logged)

    def name(self, found: Found) -> str:
        """Return the name of a file's partition."""
        path = found.path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        return f"{self._prefix}{path}@{found.modified_ms}-{found.size}"

    def learn(self, known: Mapping[str, Position], waiting: Iterable[str]) -> None:
        """Replace what is known by what the driver log has; ``waiting`` names the files that are being read."""
        self._known = {name: at for name, at in known.items() if name.startswith(self._prefix)}
        self.versions = {}
        for name in [*self._known, *waiting]:
            match = _NAME.fullmatch(name.removeprefix(self._prefix))
            if match is not None:
                before = self.versions.get(match[1])
                if before is None or _time_of(before) <= int(match[2]):
                    self.versions[match[1]] = name

    def refresh(self, waiting: Iterable[str]) -> None:
        """Ask the driver log what it has."""
        self.learn(self._positions.all_of(self._source), waiting)

    def forget(self, now: float, present: Mapping[str, Found], waiting: Iterable[str], sharing: Sharing) -> None:
        """Have the driver log forget old files that have been gone for long; returns at once if it is not time yet.

        It forgets nothing while no file is present at all: then the whole directory may be unavailable.
        """
        if now < self._forget_at or not present:
            return
        self._forget_at = now + _FORGET_SECONDS
        if not sharing.is_ours("@forget"):
            self._gone = {}
            return
        if not sharing.is_alone:
            self.refresh(waiting)
        there = {self.name(found) for found in present.values()}
        # Where a changed file is not read again, the earlier version that was read stays remembered.
        there |= {self.versions[path] for path in present if path in self.versions}
        self._gone = {name: self._gone.get(name, now) for name in self._known if name not in there}
        oldest = (time.time() - self._max_age) * 1000
        old = [
            name
            for name, since in self._gone.items()
            if now - since >= min(_GONE_SECONDS, self._max_age) and _time_of(name) < oldest
        ]
        for first in range(0, len(old), _AT_ONCE):
            self._positions.forget(self._source, old[first : first + _AT_ONCE])
        if old:
            self.refresh(waiting)


def _time_of(name: str) -> float:
    """Return a file's time, from its partition's name; infinity for a name of another form."""
    match = _NAME.fullmatch(name)
    return math.inf if match is None else int(match[2])
