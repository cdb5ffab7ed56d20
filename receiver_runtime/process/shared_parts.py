"""Hold the parts that the receivers of a process share. The process starts and closes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from receiver_runtime.block_path.load.block_threads import BlockThreads
    from receiver_runtime.block_path.registration.block_log import BlockLog
    from receiver_runtime.block_path.registration.registrar import Registrar
    from receiver_runtime.block_store.frames.encryption import KeyReference
    from receiver_runtime.reporting.status_reporter import StatusReporter
    from receiver_runtime.supervisor.reading_loop import ReadingLoop
    from receiver_runtime.watching.clock import Clock


@dataclass(frozen=True, slots=True)
class SharedParts:
    """Hold one process's parts; see the module."""

    process_id: int
    block_store: str
    #: The key that encrypts blocks; None: they are not encrypted.
    block_key: KeyReference | None
    #: The keys before a rotation: some dead letters need them.
    keys_for_reading: Sequence[KeyReference]
    host: str
    clock: Clock
    block_log: BlockLog
    registrar: Registrar
    reporter: StatusReporter
    block_threads: BlockThreads
    reading_loop: ReadingLoop
    #: Limits how many receivers start at the same time.
    starting: threading.BoundedSemaphore
