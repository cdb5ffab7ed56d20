"""The load model: how large an installation is, how often each operation runs in it, and what it may cost.

Pure: it measures nothing and prints nothing. `scale_operations` measures, `scale_page` shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SECONDS_PER_DAY = 86_400
#: What the sums for a minute assume: a batch of each pipeline a minute, and a block of each receiver a second.
BATCH_SECONDS = 60
BLOCKS_PER_RECEIVER_SECOND = 1
#: How many receivers the pipeline reads whose allocation has an aim.
WIDE_RECEIVERS = 1_000
MS_PER_MINUTE = 60_000


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of an installation. Streams are spread evenly over pipelines, receivers over streams."""

    receivers: int
    streams: int
    pipelines: int
    days: float
    interval: int  # seconds between two batches of the history
    receivers_per_process: int

    def __post_init__(self) -> None:
        """Check that everything divides evenly. Raises ValueError."""
        if self.receivers % self.streams or self.streams % self.pipelines:
            message = f"{self.receivers} receivers, {self.streams} streams, {self.pipelines} pipelines: not even"
            raise ValueError(message)
        if self.batches < 2:  # noqa: PLR2004  the newest batch's blocks are still there, those before it are deleted
            message = f"{self.days:g} days at {self.interval} s: at least two batches of history are needed"
            raise ValueError(message)

    @classmethod
    def of(cls, receivers: int, *, days: float, interval: int, receivers_per_process: int) -> Shape:
        """Return the usual shape: ten receivers a stream, ten streams a pipeline."""
        return cls(receivers, max(1, receivers // 10), max(1, receivers // 100), days, interval, receivers_per_process)

    @property
    def batches(self) -> int:
        """Return the number of batches of each pipeline in the history."""
        return int(self.days * SECONDS_PER_DAY) // self.interval

    @property
    def processes(self) -> int:
        """Return the number of receiver processes."""
        return -(-self.receivers // self.receivers_per_process)

    @property
    def agents(self) -> int:
        """Return the number of agents: one host for 500 receivers."""
        return -(-self.receivers // 500)

    @property
    def allocations(self) -> int:
        """Return the number of rows of the history in `batch_allocations`."""
        return self.batches * self.receivers

    def __str__(self) -> str:
        """Say what it is, in one line."""
        return (
            f"{self.receivers:,} receivers in {self.processes:,} processes, {self.streams:,} streams, "
            f"{self.pipelines:,} pipelines, {self.days:g} days of a batch per {self.interval:,} s: "
            f"{self.batches * self.pipelines:,} batches, {self.allocations:,} allocations"
        )


class Part(StrEnum):
    """Whose CPU an aim counts."""

    SERVER = "server"
    BOTH = "server + client"


@dataclass(frozen=True, slots=True)
class Aim:
    """The most milliseconds of CPU that one run may take with 10,000 receivers, and how people say it."""

    milliseconds: float
    part: Part
    words: str


@dataclass(frozen=True, slots=True)
class Operation:
    """Something that an installation does again and again. `per_minute`: how often; 0 if another one includes it."""

    key: str
    name: str
    per_minute: Callable[[Shape], float]
    aim: Aim | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """The CPU of one run of an operation in milliseconds: the lowest of `repeats` (0: not known how many)."""

    server_ms: float
    client_ms: float
    repeats: int

    def counted(self, part: Part) -> float:
        """Return the milliseconds that an aim for `part` counts."""
        return self.server_ms if part is Part.SERVER else self.server_ms + self.client_ms


OPERATIONS: tuple[Operation, ...] = (
    Operation("tick", "idle tracker tick", lambda _: 60, Aim(50, Part.BOTH, "5 % of a core")),
    Operation(
        "heartbeat",
        "heartbeat round of all receivers",
        lambda _: 60,
        Aim(100, Part.SERVER, "10 % of a core of the server"),
    ),
    Operation("heartbeat_alone", "the same, one receiver a process", lambda _: 0),
    Operation("clean_up", "clean-up round with nothing to take", lambda _: 2, Aim(5_000, Part.BOTH, "5 s")),
    Operation("status", "forebay status", lambda _: 1, Aim(1_000, Part.BOTH, "1 s")),
    Operation("metrics", "/metrics", lambda _: 4, Aim(500, Part.BOTH, "0.5 s")),
    Operation("allocation", "allocation, an ordinary pipeline", lambda shape: shape.pipelines * 60 / BATCH_SECONDS),
    Operation(
        "allocation_wide",
        f"allocation, a pipeline of {WIDE_RECEIVERS:,} receivers",
        lambda _: 60 / BATCH_SECONDS,
        Aim(20, Part.BOTH, "20 ms"),
    ),
    Operation(
        "add_block",
        "add_block, a block of each receiver of a process",
        lambda shape: shape.processes * 60 * BLOCKS_PER_RECEIVER_SECOND,
    ),
    Operation("contiguity", "db check: one pipeline's contiguity", lambda shape: shape.pipelines / 60),
    Operation("batch_stats", "batch_stats, newest 20", lambda _: 0),
    Operation("driver_log_between", "driver_log_between, one minute", lambda _: 1),
)


@dataclass(frozen=True, slots=True)
class Load:
    """What an operation costs a whole installation in a minute, in milliseconds of CPU."""

    server_ms: float
    client_ms: float

    @property
    def server_share(self) -> float:
        """Return the part of one core of the server."""
        return self.server_ms / MS_PER_MINUTE

    @property
    def client_share(self) -> float:
        """Return the part of one core of all clients together."""
        return self.client_ms / MS_PER_MINUTE


@dataclass(frozen=True, slots=True)
class Measured:
    """The costs that were measured in an installation of one shape, by the operation's key."""

    shape: Shape
    costs: dict[str, Cost]

    def load(self, operation: Operation) -> Load | None:
        """Return what the operation costs in a minute; None if it was not measured."""
        cost = self.costs.get(operation.key)
        if cost is None:
            return None
        times = operation.per_minute(self.shape)
        return Load(cost.server_ms * times, cost.client_ms * times)

    def total(self, operations: Iterable[Operation] = OPERATIONS) -> Load:
        """Return what all of them cost in a minute together."""
        loads = [load for operation in operations if (load := self.load(operation)) is not None]
        return Load(sum(load.server_ms for load in loads), sum(load.client_ms for load in loads))

    def met(self, operation: Operation) -> bool | None:
        """Return whether the operation meets its aim; None without an aim or a figure."""
        cost = self.costs.get(operation.key)
        if cost is None or operation.aim is None:
            return None
        return cost.counted(operation.aim.part) <= operation.aim.milliseconds
