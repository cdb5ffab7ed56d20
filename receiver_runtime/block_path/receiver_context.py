"""Hold what the parts of one receiver, under one claim, need of their process and of each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from receiver_runtime.block_path.registration.registrar import Registrar
    from receiver_runtime.block_path.text_check import RowCheck
    from receiver_runtime.reporting.receiver_driver_log import ReceiverDriverLog
    from receiver_runtime.reporting.receiver_status import ReceiverStatus
    from receiver_runtime.reporting.unfailing_reporter import UnfailingReporter
    from receiver_runtime.sources.receiver_settings import ReceiverSettings
    from receiver_runtime.watching.clock import Clock
    from receiver_runtime.watching.progress import Progress
    from tracker_store.blocks.blocks import Claim


@dataclass(frozen=True, slots=True)
class ReceiverContext:
    """Hold one receiver's identity, and the parts that it shares with the path of its records; nothing changes here."""

    stream_id: int
    #: As senders give it, for receivers whose senders name the stream; empty if it is not known.
    stream_name: str
    #: Already answered; the first block takes the sequence after its marker.
    claim: Claim
    #: The assignment under which the receiver was claimed.
    assignment: int
    settings: ReceiverSettings
    #: Of the rows that the receiver hands over.
    schema: pa.Schema
    #: What becomes of them before they are stored; it has the blocks' schema.
    rows: RowCheck
    #: Started by its owner.
    registrar: Registrar
    driver_log: ReceiverDriverLog
    reporter: UnfailingReporter
    status: ReceiverStatus
    clock: Clock
    #: Others count in it too.
    progress: Progress

    @property
    def receiver_id(self) -> int:
        """Return the receiver's id, which is the same after every restart and on every host."""
        return self.claim.receiver_id
