"""Run a supervisor with everything real below it except the database: segments, registrar, a chain in memory."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from receiver_runtime.block_path.block_handler import BlockHandler
from receiver_runtime.block_path.generator_state import GeneratorState
from receiver_runtime.block_path.receiver_context import ReceiverContext
from receiver_runtime.block_path.registration.registrar import Registrar
from receiver_runtime.block_path.text_check import TextCheck
from receiver_runtime.block_store.frames.encryption import BlockKeys
from receiver_runtime.block_store.frames.reading import letters_of
from receiver_runtime.block_store.stores.local import LocalBlockStore
from receiver_runtime.reporting.receiver_reporter import ReceiverReporter
from receiver_runtime.reporting.receiver_status import ReceiverStatus
from receiver_runtime.reporting.unfailing_reporter import UnfailingReporter
from receiver_runtime.sources.receiver_settings import ReceiverSettings
from receiver_runtime.supervisor.receiver import Receiver
from receiver_runtime.supervisor.receiver_supervisor import ReceiverSupervisor
from receiver_runtime.watching.clock import Clock
from receiver_runtime.watching.progress import Progress
from tests.unit.receiver_runtime.support import (
    FaultyFiles,
    ManualClock,
    MemoryBlockLog,
    MemoryDriverLog,
    eventually,
    make_log,
)
from tracker_store.blocks.blocks import Claim
from tracker_store.schema.states import DesiredState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from receiver_runtime.block_path.text_check import RowCheck
    from receiver_runtime.reporting.receiver_driver_log import ReceiverDriverLog
    from receiver_runtime.supervisor.attached_supervisor import AttachedSupervisor
    from receiver_runtime.supervisor.ending import Ending
    from tracker_store.schema.states import ReceiverEventKind, ReceiverState

FAST: dict[str, Any] = {
    "block_interval": "5ms",
    "receiver_restart_delay": "1ms",
    "receiver_max_restart_delay": "5ms",
}


class RecordingReporter(ReceiverReporter):
    """Keeps the reports that it gets."""

    def __init__(self) -> None:
        self.states: list[tuple[ReceiverState, str]] = []
        self.reasons: list[str] = []
        self.events: list[tuple[ReceiverEventKind, str, str]] = []

    def state(self, state: ReceiverState, reason: str) -> None:
        self.states.append((state, reason))

    def reason(self, reason: str) -> None:
        self.reasons.append(reason)

    def event(self, kind: ReceiverEventKind, message: str, detail: str = "") -> None:
        self.events.append((kind, message, detail))

    def kinds(self) -> list[ReceiverEventKind]:
        return [kind for kind, _, _ in self.events]


class HandReceiver(Receiver):
    """A receiver that a test controls."""

    columns: ClassVar[Sequence[tuple[str, str]]] = (("value", "string"),)

    def __init__(self) -> None:
        super().__init__()
        self.starts = 0
        self.stops = 0
        self.on_starting: Callable[[], None] = lambda: None
        self.on_stopping: Callable[[], None] = lambda: None

    def on_start(self) -> None:
        self.starts += 1
        self.on_starting()

    def on_stop(self) -> None:
        self.on_stopping()
        self.stops += 1


@dataclass
class Rig:
    receiver: Receiver
    supervisor: ReceiverSupervisor
    registrar: Registrar
    log: MemoryBlockLog
    rows: MemoryDriverLog
    files: FaultyFiles
    store: LocalBlockStore
    reporter: RecordingReporter
    clock: ManualClock | None = None
    endings: list[Ending] = field(default_factory=list)

    @property
    def attached(self) -> AttachedSupervisor:
        """Return the supervisor as the receiver sees it."""
        return self.receiver.supervisor

    def values(self) -> list[str]:
        """Return the values in the registered blocks, read back from the store, in order."""
        found: list[str] = []
        for item in self.log.chain(1):
            handle = item.handle
            batches = list(
                self.store.read_batches(self.rows.paths[handle.segment_id], handle.offset, handle.length, handle.crc32c)
            )
            assert sum(batch.num_rows for batch in batches) == item.records
            found.extend(value for batch in batches for value in batch.column(0).to_pylist())
        return found

    def dead_letters(self) -> list[tuple[str, int, bytes]]:
        """Return the dead letters as (reason, part, raw bytes), read back from the store; of a group, each."""
        found = []
        for row in self.rows.dead_letters:
            path, handle = self.rows.paths[row.handle.segment_id], row.handle
            frame = self.store.read_frame(path, handle.offset, handle.length, handle.crc32c)
            letters = letters_of(frame, path, handle.offset, BlockKeys())
            assert (len(letters), sum(map(len, letters))) == (row.letters, row.bytes)
            found += [(row.reason, row.part, letter) for letter in letters]
        return found

    def start(self) -> None:
        threading.Thread(target=self._run, name="receiver 1 supervisor", daemon=True).start()
        generator = self.supervisor.block_path.generator
        eventually(lambda: generator.state is not GeneratorState.INITIALIZED)

    def _run(self) -> None:
        self.endings.append(self.supervisor.run())

    def end(self) -> Ending:
        eventually(lambda: self.endings, "the end")
        return self.endings[0]

    def stop(self) -> Ending:
        self.supervisor.lifecycle.stop("the test is over")
        return self.end()


@contextmanager
def rig(
    root: Path,
    receiver: Receiver,
    *,
    clock: ManualClock | None = None,
    start: bool = True,
    log: MemoryBlockLog | None = None,
    positions: ReceiverDriverLog | None = None,
    reporter: RecordingReporter | None = None,
    desired_state: DesiredState = DesiredState.RUNNING,
    stream_name: str = "",
    row_check: RowCheck | None = None,
    **settings: object,
) -> Iterator[Rig]:
    files = FaultyFiles()
    store = LocalBlockStore(root, files=files)
    log = MemoryBlockLog() if log is None else log
    rows = MemoryDriverLog(Claim(1, 5, 0), positions=positions, log=log)
    reporter = RecordingReporter() if reporter is None else reporter
    wanted = ReceiverSettings.model_validate(FAST | settings)
    checked = TextCheck(receiver.record_schema) if row_check is None else row_check
    handler = BlockHandler(make_log(store, rows, clock=clock), checked.schema)
    registrar = Registrar(log, heartbeat_interval=0.02)
    unfailing = UnfailingReporter(reporter, receiver_id=1)
    context = ReceiverContext(
        stream_id=3,
        stream_name=stream_name,
        claim=Claim(1, 5, 1, server="7/1"),
        assignment=1,
        settings=wanted,
        schema=receiver.record_schema,
        rows=checked,
        registrar=registrar,
        driver_log=rows,
        reporter=unfailing,
        status=ReceiverStatus(unfailing),
        clock=clock or Clock(),
        progress=Progress(),
    )
    supervisor = ReceiverSupervisor(receiver, context, handler, desired_state=desired_state)
    registrar.start()
    made = Rig(receiver, supervisor, registrar, log, rows, files, store, reporter, clock)
    if start:
        made.start()
    try:
        yield made
    finally:
        log.away = False
        if start:
            supervisor.lifecycle.stop("the test is over")
            eventually(lambda: made.endings, "the end")
        registrar.stop()


@contextmanager
def running(root: Path, receiver: Receiver, **settings: Any) -> Iterator[Rig]:  # noqa: ANN401  of the rig
    """Run the receiver as `rig` does, and yield once it is started."""
    with rig(root, receiver, **settings) as made:
        eventually(receiver.is_started, "the start")
        yield made


def batch(*values: str) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.string())], names=["value"])


def in_thread(action: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    """Run the action on its own thread; return the thread, and a list that collects what the action raises."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:  # noqa: BLE001  the test looks at it
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, errors
