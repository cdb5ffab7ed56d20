"""For your own receivers: base classes, errors; see ``docs/how-to/custom-receiver.md``. Loads no Dagster, no Spark."""

from __future__ import annotations

from receiver_runtime.block_path.block_handler import DeadLetter
from receiver_runtime.block_path.generator_state import GeneratorStateError
from receiver_runtime.block_path.records import RecordTypeError
from receiver_runtime.block_store.frames.columns import ColumnsError
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.keyed_hand_over import KeyedHandOver
from receiver_runtime.receivers.linked_hand_over import LinkedHandOver
from receiver_runtime.receivers.position_buffer import PositionError
from receiver_runtime.receivers.positioned_receiver import Fetched, PositionedReceiver
from receiver_runtime.receivers.reading_thread import ReadingThread
from receiver_runtime.receivers.run_receiver import Run, RunReceiver
from receiver_runtime.sources.source import SourceRule
from receiver_runtime.supervisor.receiver import Receiver
from tracker_store.connection.errors import DriverLogError, EmptyBlockError, ReceiverFencedError
from tracker_store.receivers.source_lag import Unread

__all__ = [
    "ColumnsError",
    "DeadLetter",
    "DeadLetterReason",
    "DriverLogError",
    "EmptyBlockError",
    "Fetched",
    "GeneratorStateError",
    "KeyedHandOver",
    "LinkedHandOver",
    "PositionError",
    "PositionedReceiver",
    "ReadingThread",
    "Receiver",
    "ReceiverFencedError",
    "RecordTypeError",
    "Run",
    "RunReceiver",
    "SourceRule",
    "Unread",
]
