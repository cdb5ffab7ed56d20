"""Read real files step by step, without threads: the driver log's positions are a chain in memory."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from receiver_runtime.receivers.files.declaration import FileLines
from receiver_runtime.receivers.files.reader import FilesReader
from receiver_runtime.reporting.receiver_driver_log import ReceiverDriverLog
from receiver_runtime.reporting.source_lag import SourceLag
from receiver_runtime.sources.receiver_settings import ReceiverSettings
from receiver_runtime.supervisor.receiver import Receiver
from receiver_runtime.watching.clock import Clock
from tests.unit.receiver_runtime.support import ManualClock
from tracker_store.blocks.blocks import ORIGIN, Claim, Position
from tracker_store.connection.errors import OffsetConflictError
from tracker_store.schema.states import LinkKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from receiver_runtime.block_path.block_handler import DeadLetter
    from receiver_runtime.receivers.files.reader import Catalog
    from tracker_store.blocks.blocks import NewBlock, OffsetLink
    from tracker_store.blocks.source_positions import Peer

HOST = "here"


@dataclass
class Log(ReceiverDriverLog):
    """Stands for the driver log: positions, and the records of registered blocks."""

    positions: dict[str, Position] = field(default_factory=dict)
    links: list[OffsetLink] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    claim: Claim = field(default_factory=lambda: Claim(1, 1, 0))

    def open_partition(self, source: str, partition: str, start_offset: int) -> Position:
        del source
        return self.positions.setdefault(partition, Position(0, start_offset))

    def all_of(self, source: str) -> Mapping[str, Position]:
        del source
        return dict(self.positions)

    def forget(self, source: str, partitions: Sequence[str]) -> None:
        del source
        for partition in partitions:
            del self.positions[partition]
        self.forgotten += partitions

    def peers(self) -> Sequence[Peer]:
        raise NotImplementedError

    def add(self, batch: pa.RecordBatch, links: Sequence[OffsetLink]) -> None:
        """Add a block as `add_block` does: only if each link starts at its partition's position, else nothing of it."""
        positions = dict(self.positions)
        for link in links:
            at = positions.get(link.partition)
            if link.kind is LinkKind.ORIGIN:
                good = link.from_offset == ORIGIN and link.generation == (0 if at is None else at.generation + 1)
            else:
                good = at == Position(link.generation, link.from_offset) and link.to_offset > link.from_offset
            if not good:
                raise OffsetConflictError(f"{link}: the log is at {at}")
            positions[link.partition] = Position(link.generation, link.to_offset)
        self.positions = positions
        self.links += links
        self.rows += batch.to_pylist()

    @property
    def values(self) -> list[Any]:
        return [row["value"] for row in self.rows]

    def lost(self) -> int:
        return sum(link.to_offset - link.from_offset for link in self.links if link.kind is LinkKind.LOST)


class Alone:
    """Stands for file sharing when no other receiver shares the files."""

    is_alone = True
    version = 0

    def __init__(self) -> None:
        self.ours: Callable[[str], bool] = lambda _: True

    def is_ours(self, key: str) -> bool:
        return self.ours(key)

    def settled(self) -> bool:
        return True


class _Receiver(Receiver):
    columns: ClassVar[tuple[tuple[str, str], ...]] = FileLines.columns

    def on_start(self) -> None:
        raise NotImplementedError

    def on_stop(self) -> None:
        raise NotImplementedError


class Supervisor:
    """Stands for what a reader uses of its supervisor. Blocks are registered at once, or when the test says so."""

    stream_id = 1

    def __init__(self, log: Log, **settings: Any) -> None:  # noqa: ANN401  settings of the receiver
        self.settings = ReceiverSettings.model_validate(settings)
        self.positions = log
        self.block_path = self.writer = self
        self.letters: list[DeadLetter] = []
        self.errors: list[str] = []
        self.degraded: dict[str, str] = {}
        self.connected = 0
        self.source_lag = SourceLag(1, Clock())
        self.most_lines = 1_000_000_000
        self.blocks = 0
        self.holds = False
        self._held: list[tuple[pa.RecordBatch, tuple[OffsetLink, ...], Future[NewBlock]]] = []

    def is_stopped(self) -> bool:
        return False

    def piece(self, records: int, nbytes: int) -> int:
        del nbytes
        return min(records, self.most_lines)

    def push_linked(self, batch: pa.RecordBatch, links: Sequence[OffsetLink]) -> Future[NewBlock]:
        future: Future[NewBlock] = Future()
        self.blocks += 1
        self._held.append((batch, tuple(links), future))
        if not self.holds:
            self.register()
        return future

    def register(self) -> None:
        while self._held:
            batch, links, future = self._held.pop(0)
            try:
                self.positions.add(batch, links)
            except OffsetConflictError as error:
                future.set_exception(error)
                for _, _, later in self._held:
                    later.set_exception(error)
                self._held.clear()
            else:
                future.set_result(None)  # type: ignore[arg-type]

    def resume_after_refusal(self) -> None:
        assert not self._held

    def store_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        self.letters += letters

    def report_connected(self, where: str) -> None:
        del where
        self.connected += 1

    def report_degraded(self, what: str, reason: str | None) -> None:
        self.degraded.pop(what, None)
        if reason is not None:
            self.degraded[what] = reason

    def report_note(self, what: str, text: str | None) -> None:
        raise NotImplementedError

    def report_error(self, message: str, error: BaseException | None) -> None:
        self.errors.append(f"{message}: {error}")


class Reader:
    """Runs a receiver's reader and its catalog by hand; a new one acts as after a kill."""

    def __init__(
        self,
        log: Log,
        make: Callable[[Receiver, Any, str, ManualClock], Catalog],
        *,
        clock: ManualClock | None = None,
        **settings: Any,  # noqa: ANN401  settings of the receiver
    ) -> None:
        self.clock = clock or ManualClock()
        self.supervisor = Supervisor(log, **settings)
        self.sharing = Alone()
        receiver = _Receiver()
        receiver.attach_supervisor(self.supervisor)  # type: ignore[arg-type]
        # It is public so that a test may look into it.
        self.catalog: Any = make(receiver, self.sharing, HOST, self.clock)
        self.reader = FilesReader(receiver, lambda *_: self.catalog, name="test", per_host=True)
        self.reader._catalog = self.catalog
        self.reader._load()

    def step(self, seconds: float = 1.0) -> bool:
        """Look once and read one round; return whether there is more to read."""
        self.clock.advance(seconds)
        self.reader._hand_over.collect()
        if self.reader._hand_over.has_conflict:
            self.reader._recover()
        self.catalog.look()
        more = self.reader._round()
        self.reader._hand_over.collect()
        return more

    def run(self, looks: int = 3) -> None:
        """Step until there is nothing more to read, `looks` times."""
        for _ in range(looks):
            while self.step():
                pass

    def close(self) -> None:
        self.catalog.close()
