"""For your own receivers: base class and errors; see ``docs/how-to/custom-receiver.md``. Loads no Dagster, no Spark."""

from __future__ import annotations

from receiver_runtime.block_generator import GeneratorStateError
from receiver_runtime.block_handler import DeadLetter
from receiver_runtime.block_store.columns import ColumnsError
from receiver_runtime.block_store.frame import DeadLetterReason
from receiver_runtime.receiver import Receiver, ReceiverNotAttachedError
from receiver_runtime.records import RecordTypeError
from receiver_runtime.sources.base import SourceRule
from tracker_store.errors import DriverLogError, ReceiverFencedError

__all__ = [
    "ColumnsError",
    "DeadLetter",
    "DeadLetterReason",
    "DriverLogError",
    "GeneratorStateError",
    "Receiver",
    "ReceiverFencedError",
    "ReceiverNotAttachedError",
    "RecordTypeError",
    "SourceRule",
]
