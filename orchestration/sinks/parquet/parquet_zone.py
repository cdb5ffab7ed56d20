"""Name the folders of a ParquetSink's hours by the wall clock of one time zone, which stays with the path.

The first batch below a path decides the zone: a file `_timezone` there names it; without one it is UTC. So each batch
has one folder, whatever zone its pipeline has later. Two hours that the clock shows twice share a folder, and so
they share the lock and the turn of upkeep. Loads neither Spark nor Dagster nor the driver log.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from orchestration.declarations.sink import SinkError, TargetUnavailableError
from orchestration.sinks.parquet_names import batch_directory
from tracker_store.schema.batch_calendar import first_instant, hour_begin, hour_end, zone_of

if TYPE_CHECKING:
    from datetime import tzinfo

#: The file that names the zone.
TIMEZONE = "_timezone"


@dataclass(frozen=True, slots=True)
class FolderZone:
    """Name folders in a zone."""

    name: str = "UTC"

    @property
    def zone(self) -> tzinfo:
        """Return the zone. Raises TargetUnavailableError if this host does not know it."""
        if self.name == "UTC":
            return UTC
        try:
            return zone_of(self.name)
        except ValueError as error:
            raise TargetUnavailableError(f"{TIMEZONE}: {error}") from error

    def batch(self, batch_time: datetime) -> str:
        """Return the folder of a batch."""
        return batch_directory(batch_time, self.zone)

    def hour(self, time: datetime) -> str:
        """Return the folder of the hour that the clock shows at `time`."""
        return self.batch(time).rpartition("/")[0]

    def stamp(self, time: datetime) -> str:
        """Return the name of that hour in the names of compacted directories."""
        return f"{time.astimezone(self.zone):%Y%m%dT%H}"

    def time_of(self, folder: str) -> datetime:
        """Return the first instant of an hour's folder, `date=…/hour=…`."""
        wall = datetime.strptime(folder, "date=%Y-%m-%d/hour=%H")  # noqa: DTZ007  the wall clock's
        return wall.replace(tzinfo=UTC) if self.name == "UTC" else first_instant(zone_of(self.name), wall)

    def check(self, declared: str | None, path: object, where: str) -> None:
        """Raise TargetUnavailableError if batches of a sink with this zone would lie in folders of another one."""
        if self.name != (declared or "UTC"):
            raise TargetUnavailableError(
                f"{where}: the folders in {path} are named in the time of {self.name}, and batches would be in those "
                f'of {declared or "UTC"}: keep them with ParquetSink(…, timezone="{self.name}"), or give the output '
                "another path"
            )


#: The folders of a path that names no zone.
UTC_FOLDERS = FolderZone()


def span_of_hour(zone: FolderZone, time: datetime) -> tuple[datetime, datetime]:
    """Return the first instant of the folder's hour, and the one from which on no batch is in it."""
    if zone.name == "UTC":
        begin = time.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        return begin, begin + timedelta(hours=1)
    known = zone_of(zone.name)
    return hour_begin(known, time), hour_end(known, time)


def read_zone(content: bytes) -> FolderZone:
    """Return the zone that the file `_timezone` names. Raises SinkError."""
    try:
        return FolderZone(content.decode("ascii").strip() or "UTC")
    except UnicodeDecodeError as error:
        raise SinkError(f"{TIMEZONE} is no name of a time zone: {error}") from error
