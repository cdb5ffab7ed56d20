"""An hour of a ParquetSink on an object store whose many batches are one: making it, changing it, clearing up after it.

Its files lie in `batch_time=YYYYMMDDTHH/`, and the `_SUCCESS` there names them, and the batches that they stand for
with their attempts. Putting that one object is the step that readers see: from then on it counts, and what lies there
of those batches counts no more. That goes a while later, for those who had listed the hour before; so does a file that
another has replaced. One process at a time changes an hour. Loads neither Spark nor Dagster nor the driver log.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from orchestration.spark.sinks.directories import LEFT_SECONDS
from orchestration.spark.sinks.parquet_hours import write_as_one
from orchestration.spark.sinks.sink import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from orchestration.spark.sinks.sink import Check
    from receiver_runtime.block_store.objects import Objects

SUCCESS = "_SUCCESS"
_BATCH = "batch_time="
# More than any list of names has.
_WHOLE = 1 << 30


@dataclass(frozen=True, slots=True)
class CompactedHour:
    """What the `_SUCCESS` of an hour says: its files' names, the attempt of each batch, and when it was put."""

    files: tuple[str, ...]
    batches: Mapping[str, int]
    made: datetime


@dataclass(frozen=True, slots=True)
class ObjectHour:
    """The hour of `time` in `objects`, below `date=…/hour=…`."""

    objects: Objects
    time: datetime

    @property
    def directory(self) -> str:
        """Where its batches lie."""
        return f"{self.time.astimezone(UTC):date=%Y-%m-%d/hour=%H}"

    @property
    def target(self) -> str:
        """Where it lies as one."""
        return f"{self.directory}/{_BATCH}{self.time.astimezone(UTC):%Y%m%dT%H}"

    def compacted(self) -> CompactedHour | None:
        """What its `_SUCCESS` says; None while its batches lie by themselves."""
        if f"{self.target}/{SUCCESS}" not in dict(self.objects.sizes(self.target)):
            return None
        said = mark(self.objects, f"{self.target}/{SUCCESS}")
        return CompactedHour(tuple(said["files"]), said["batches"], datetime.fromisoformat(said["made"]))

    def compact(self, *, check: Check, reached: Callable[[Step], None]) -> int | None:
        """Make its batches one, or take away what that has left; its rows, or None where there is nothing to make."""
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
            # Not by `with`: after a failed write a close would complete the object with what it has.
            stream.close()
            names = [name]
        reached(Step.STAGED)
        check()
        said = {"files": names, "batches": dict(sorted(batches.items())), "made": datetime.now(UTC).isoformat()}
        self.objects.put(f"{self.target}/{SUCCESS}", [json.dumps(said).encode()])
        reached(Step.COMMITTED)
        return rows


def mark(objects: Objects, key: str) -> dict[str, Any]:
    """What a `_SUCCESS` says."""
    said: dict[str, Any] = json.loads(objects.get(key, 0, _WHOLE))
    return said


def hours_with_work(keys: Sequence[str]) -> list[datetime]:
    """The hours, of all objects of an output, that are several, or have leftovers; oldest first. By the names alone."""
    hours: dict[str, dict[str, int]] = {}
    for key in keys:
        parts = key.split("/")
        if len(parts) == 4 and key.startswith("date="):  # noqa: PLR2004  date, hour, batch, file
            batches = hours.setdefault("/".join(parts[:2]), {})
            batches[parts[2]] = batches.get(parts[2], 0) + 1
    found = []
    for hour, batches in hours.items():
        time = datetime.strptime(f"{hour} +0000", "date=%Y-%m-%d/hour=%H %z")
        # A compacted hour is its file and what names it.
        if len(batches) > 1 or batches.get(f"{_BATCH}{time:%Y%m%dT%H}", 0) > 2:  # noqa: PLR2004
            found.append(time)
    return sorted(found)


def dead_batches(marks: Mapping[str, Mapping[str, object]]) -> set[str]:
    """Of all `_SUCCESS`, by their directories: the directories whose batch a compacted hour stands for."""
    return {
        f"{directory.rpartition('/')[0]}/{_BATCH}{stamp}"
        for directory, said in marks.items()
        for stamp in _batches(said)
    }


def _batches(said: Mapping[str, object]) -> Sequence[str]:
    batches = said.get("batches")
    return list(batches) if isinstance(batches, dict) else []
