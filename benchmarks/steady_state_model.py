"""The load of `steady_state`, its samples, and what they add up to: rates, shares and ratios.

Pure: it measures nothing and prints nothing. `steady_state_load` drives the load, `steady_state` shows the figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: The tables that are sampled: those that clean-up deletes from all the time.
TABLES = ("blocks", "block_offsets", "record_keys", "cleanup_events", "events")
#: Blocks per second of each receiver: the default block interval is 200 ms.
BLOCKS_PER_RECEIVER = 5
SECONDS_PER_MINUTE = 60
# How far the measured pace may be from the one that the server is set to, as a factor.
_PACE_TOLERANCE = 1.6
# Postgres's defaults, for a time that is not compressed, and the limits of each setting.
NAP_SECONDS = 60.0
_COST_LIMIT = 200
_MOST_COST = 10_000
_CHECKPOINT_SECONDS = 300
_LEAST_CHECKPOINT_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Feed:
    """Receivers of one stream: each adds a block every 200 ms, with this many keys and links."""

    name: str
    receivers: int
    keys: int = 0
    links: int = 0

    @classmethod
    def of(cls, name: str, rate: int, *, per_block: int, what: str) -> Feed:
        """Return the feed that comes next to `rate` blocks, keys or links per second (`what`) with whole numbers."""
        receivers = max(1, math.ceil(rate / (BLOCKS_PER_RECEIVER * per_block)))
        each = max(1, round(rate / (BLOCKS_PER_RECEIVER * receivers)))
        return cls(name, receivers, keys=each if what == "keys" else 0, links=each if what == "links" else 0)

    def blocks_in(self, seconds: float) -> int:
        """Return the number of blocks in this many simulated seconds."""
        return round(seconds * BLOCKS_PER_RECEIVER) * self.receivers


@dataclass(frozen=True, slots=True)
class Load:
    """What is simulated. Times are simulated seconds; a batch is allocated and completed every `batch` of them."""

    minutes: int
    keys: Feed
    links: Feed
    blocks: Feed
    key_window: int = 300
    block_retention: int = 60
    history: int = 600
    batch: int = 10
    clean_up: int = 30
    nap: float = NAP_SECONDS  # between two looks of autovacuum

    def __post_init__(self) -> None:
        """Check that every time is a whole number of batches, and that thirds can be compared. Raises ValueError."""
        if self.minutes < 2:  # noqa: PLR2004  a sample in each of the last two thirds
            message = f"{self.minutes} minutes are too few: two at least"
            raise ValueError(message)
        for name in ("key_window", "block_retention", "history", "clean_up"):
            if getattr(self, name) % self.batch:
                message = f"{name} of {getattr(self, name)} s is no multiple of the batch's {self.batch} s"
                raise ValueError(message)
        if SECONDS_PER_MINUTE % self.batch:
            message = f"a minute is no multiple of the batch's {self.batch} s"
            raise ValueError(message)

    @property
    def feeds(self) -> tuple[Feed, Feed, Feed]:
        """Return the three feeds."""
        return self.keys, self.links, self.blocks

    @property
    def cycles(self) -> int:
        """Return the number of batches in the simulated time."""
        return self.minutes * SECONDS_PER_MINUTE // self.batch

    def expected_rows(self) -> dict[str, int]:
        """Return how many rows stay at most: of the window, a round of clean-up, and the batch meanwhile."""
        since = self.clean_up + self.batch
        kept = self.block_retention + since
        return {
            "blocks": sum(feed.blocks_in(kept) for feed in self.feeds),
            "block_offsets": self.links.blocks_in(kept) * self.links.links,
            "record_keys": self.keys.blocks_in(self.key_window + since) * self.keys.keys,
        }


@dataclass(frozen=True, slots=True)
class Pace:
    """The server's settings that depend on the clock, for a simulated time that passes `compression` times as fast."""

    compression: float
    nap: float = NAP_SECONDS

    @property
    def settings(self) -> dict[str, str]:
        """Return settings of postgresql.conf, as text."""
        return {
            "autovacuum_naptime": f"{max(1, round(self.nap / self.compression))}s",
            "autovacuum_vacuum_cost_limit": str(min(_MOST_COST, max(1, round(_COST_LIMIT * self.compression)))),
            "checkpoint_timeout": f"{max(_LEAST_CHECKPOINT_SECONDS, round(_CHECKPOINT_SECONDS / self.compression))}s",
        }

    def is_far_from(self, other: Pace) -> bool:
        """Return whether the server's settings should follow: each time they do, autovacuum's next nap begins again."""
        return not 1 / _PACE_TOLERANCE <= self.compression / other.compression <= _PACE_TOLERANCE


@dataclass(frozen=True, slots=True)
class TableState:
    """One table at one moment: estimated rows, sizes in bytes, and what autovacuum has done so far (in ms)."""

    live: int
    dead: int
    heap: int
    indexes: int
    vacuums: int
    analyzes: int
    vacuum_ms: float
    analyze_ms: float = 0.0

    @property
    def size(self) -> int:
        """Return heap and indexes."""
        return self.heap + self.indexes


@dataclass(frozen=True, slots=True)
class Sample:
    """All tables after `minute` simulated minutes."""

    minute: int
    tables: Mapping[str, TableState]


@dataclass(frozen=True, slots=True)
class Spent:
    """What one activity cost the server: CPU seconds, bytes of write-ahead log, and the rows that it handled."""

    cpu_seconds: float = 0.0
    wal_bytes: int = 0
    rows: int = 0

    @property
    def cpu_microseconds_each(self) -> float:
        """Return the CPU of one row in microseconds; 0 without rows."""
        return self.cpu_seconds * 1e6 / self.rows if self.rows else 0.0

    @property
    def wal_bytes_each(self) -> float:
        """Return the write-ahead log of one row in bytes; 0 without rows."""
        return self.wal_bytes / self.rows if self.rows else 0.0


def largest(samples: Sequence[Sample], table: str, *, first: float, last: float) -> int:
    """Return the largest size of a table in the samples from part `first` to part `last` of the time (0 to 1)."""
    end = samples[-1].minute
    return max(s.tables[table].size for s in samples if first * end <= s.minute <= last * end)


def growth(samples: Sequence[Sample], table: str) -> float:
    """Return the largest size in the last third of the time as a multiple of that in the third before; 1: bounded."""
    return largest(samples, table, first=2 / 3, last=1) / max(1, largest(samples, table, first=1 / 3, last=2 / 3))


def shares(amounts: Mapping[str, float], total: float) -> dict[str, float]:
    """Divide `total` in proportion to `amounts`; all get 0 if there are none."""
    whole = sum(amounts.values())
    return {name: total * amount / whole if whole else 0.0 for name, amount in amounts.items()}


def cleaning_microseconds(cleaned: Spent, vacuumed_seconds: float) -> float:
    """Return the CPU in microseconds of deleting one row of a table and vacuuming it away; 0 if none was deleted."""
    return (cleaned.cpu_seconds + vacuumed_seconds) * 1e6 / cleaned.rows if cleaned.rows else 0.0
