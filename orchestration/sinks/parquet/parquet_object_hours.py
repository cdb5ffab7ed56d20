"""Merge the batches of a ParquetSink's hour on an object store into one, change it later, and delete leftovers.

Its files lie in `batch_time=YYYYMMDDTHH/`. The `_SUCCESS` there names them, and the batches that they contain with
their attempts. Putting that one object is the step that readers see: from then on the merged files count, and the
separate files of those batches no longer do. Those are deleted later, for readers that had listed the hour before; so
are replaced files. Only one process at a time may change an hour. Loads neither Spark nor Dagster nor the driver log.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from orchestration.declarations.sink import Step
from orchestration.sinks.directories import LEFT_SECONDS
from orchestration.sinks.parquet.parquet_hours import write_as_one
from orchestration.sinks.parquet.parquet_zone import UTC_FOLDERS, FolderZone

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from orchestration.declarations.sink import Check
    from receiver_runtime.block_store.stores.objects import Objects

SUCCESS = "_SUCCESS"
_BATCH = "batch_time="
# Bytes to read from a list of names: larger than any such list, so that it is read whole.
_WHOLE = 1 << 30


@dataclass(frozen=True, slots=True)
class CompactedHour:
    """Hold what an hour's `_SUCCESS` says: its files' names, the attempt of each batch, and when it was put."""

    files: tuple[str, ...]
    batches: Mapping[str, int]
    made: datetime


@dataclass(frozen=True, slots=True)
class ObjectHour:
    """Compact the hour of `time` in `objects`, below `date=…/hour=…`, and replace batches in it."""

    objects: Objects
    time: datetime
    zone: FolderZone = UTC_FOLDERS

    @property
    def directory(self) -> str:
        """Return the prefix of its batches."""
        return self.zone.hour(self.time)

    @property
    def target(self) -> str:
        """Return the prefix of the compacted hour."""
        return f"{self.directory}/{_BATCH}{self.zone.stamp(self.time)}"

    def compacted(self) -> CompactedHour | None:
        """Return the contents of its `_SUCCESS`; None while the hour is not compacted."""
        if f"{self.target}/{SUCCESS}" not in dict(self.objects.sizes(self.target)):
            return None
        said = mark(self.objects, f"{self.target}/{SUCCESS}")
        return CompactedHour(tuple(said["files"]), said["batches"], datetime.fromisoformat(said["made"]))

    def compact(self, *, check: Check, reached: Callable[[Step], None]) -> int | None:
        """Merge its batches and return the rows; if there is nothing to merge, delete leftovers and return None."""
        there = [key for key, _ in self.objects.sizes(self.directory)]
        now = self.compacted()
        done = {} if now is None else now.batches
        stamps = [key.split("/")[-2].removeprefix(_BATCH) for key in there if key.endswith(f"/{SUCCESS}")]
        live = [stamp for stamp in stamps if stamp not in done and f"{self.directory}/{_BATCH}{stamp}" != self.target]
        if len(live) > (1 if now is None else 0):
            return self._make_one(now, live, check=check, reached=reached)
        if now is not None and now.made < datetime.now(UTC) - timedelta(seconds=LEFT_SECONDS):
            counts = {f"{self.target}/{name}" for name in (SUCCESS, *now.files)}
            counts |= {key for key in there if key.split("/")[-2].removeprefix(_BATCH) in live}
            for key in there:
                if key not in counts:
                    check()
                    self.objects.remove(key)
        return None

    def _make_one(
        self, now: CompactedHour | None, live: Sequence[str], *, check: Check, reached: Callable[[Step], None]
    ) -> int:
        files = [] if now is None else [f"{self.target}/{name}" for name in now.files]
        batches = {} if now is None else dict(now.batches)
        for stamp in live:
            said = mark(self.objects, f"{self.directory}/{_BATCH}{stamp}/{SUCCESS}")
            files += [f"{self.directory}/{_BATCH}{stamp}/{name}" for name in said["files"]]
            batches[stamp] = said["attempt"]
        return self._put(files, [], None, batches, check=check, reached=reached)

    def replace(
        self,
        now: CompactedHour,
        batch_time: datetime,
        stamp: str,
        attempt: int,
        by: Sequence[str],
        *,
        check: Check,
        reached: Callable[[Step], None],
    ) -> None:
        """Put the files `by` in place of one batch's rows."""
        files = [f"{self.target}/{name}" for name in now.files]
        self._put(files, by, batch_time, {**now.batches, stamp: attempt}, check=check, reached=reached)

    def _put(
        self,
        files: Sequence[str],
        by: Sequence[str],
        replaced: datetime | None,
        batches: Mapping[str, int],
        *,
        check: Check,
        reached: Callable[[Step], None],
    ) -> int:
        name, rows, names = f"part-{secrets.token_hex(8)}.parquet", 0, []
        if files or by:
            filesystem, _ = self.objects.place("")
            stream = self.objects.create(f"{self.target}/{name}")
            rows = write_as_one(
                stream,
                [self.objects.place(file)[1] for file in files],
                [self.objects.place(file)[1] for file in by],
                replaced,
                where=self.directory,
                filesystem=filesystem,
            )
            # Not by `with`: a close after a failed write would complete the object with partial contents.
            stream.close()
            names = [name]
        reached(Step.STAGED)
        check()
        said = {"files": names, "batches": dict(sorted(batches.items())), "made": datetime.now(UTC).isoformat()}
        self.objects.put(f"{self.target}/{SUCCESS}", [json.dumps(said).encode()])
        reached(Step.COMMITTED)
        return rows


def mark(objects: Objects, key: str) -> dict[str, Any]:
    """Return the contents of a `_SUCCESS`."""
    said: dict[str, Any] = json.loads(objects.get(key, 0, _WHOLE))
    return said


def hours_with_work(keys: Sequence[str], zone: FolderZone = UTC_FOLDERS) -> list[datetime]:
    """Return the hours with several batches or leftovers, oldest first, from the names of all objects of an output."""
    hours: dict[str, dict[str, int]] = {}
    for key in keys:
        parts = key.split("/")
        if len(parts) == 4 and key.startswith("date="):  # noqa: PLR2004  date, hour, batch, file
            batches = hours.setdefault("/".join(parts[:2]), {})
            batches[parts[2]] = batches.get(parts[2], 0) + 1
    found = []
    for hour, batches in hours.items():
        time = zone.time_of(hour)
        # A compacted hour has two objects: its file and its `_SUCCESS`.
        if len(batches) > 1 or batches.get(f"{_BATCH}{zone.stamp(time)}", 0) > 2:  # noqa: PLR2004
            found.append(time)
    return sorted(found)


def dead_batches(marks: Mapping[str, Mapping[str, object]]) -> set[str]:
    """Return the directories whose batch is contained in a compacted hour; `marks` are all `_SUCCESS` by directory."""
    return {
        f"{directory.rpartition('/')[0]}/{_BATCH}{stamp}"
        for directory, said in marks.items()
        for stamp in _batches(said)
    }


def _batches(said: Mapping[str, object]) -> Sequence[str]:
    batches = said.get("batches")
    return list(batches) if isinstance(batches, dict) else []
