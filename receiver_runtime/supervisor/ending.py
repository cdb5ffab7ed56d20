"""Define how and why a receiver ends, and report it to operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from receiver_runtime.watching.exit_codes import ExitCode
from tracker_store.connection.errors import SequenceGapError
from tracker_store.schema.states import ReceiverEventKind, ReceiverState

if TYPE_CHECKING:
    from receiver_runtime.block_path.block_writer import BlockWriter
    from receiver_runtime.reporting.unfailing_reporter import UnfailingReporter


@dataclass(frozen=True, slots=True)
class Ending:
    """Hold how and why a receiver ended.

    ``drained`` says whether everything that was handed over is in registered blocks. ``again`` says that a receiver
    with FAILED does not stay failed: the agent starts another process. ``moved`` says that a newer assignment ended it,
    and not a refusal.
    """

    exit_code: ExitCode
    reason: str
    drained: bool
    again: bool = False
    moved: bool = False


def report_ending(
    ending: Ending,
    reporter: UnfailingReporter,
    *,
    writer: BlockWriter,
    refusal: BaseException | None,
    stop_hung: bool,
) -> None:
    """Report a receiver's end.

    Args:
        refusal: why the driver log accepts nothing more of the epoch, if it refused.
        stop_hung: whether an ``on_stop`` did not return.
    """
    match ending.exit_code:
        case ExitCode.FENCED if ending.moved and not stop_hung:
            # The driver log has refused nothing.
            reporter.event(ReceiverEventKind.STOPPED, "stopped, everything read is registered", ending.reason)
        case ExitCode.FENCED:
            blocks, records = writer.refused
            held = f"; it held {blocks} blocks with {records} records that are stored and not registered by it"
            reporter.event(
                ReceiverEventKind.FENCED, "another process holds the receiver", ending.reason + (held if blocks else "")
            )
        case ExitCode.FAILED if ending.again:
            # A new process claims the receiver and goes on, so the receiver does not become FAILED.
            what, detail = "this process ends, another one claims the receiver", ending.reason
            if isinstance(refusal, SequenceGapError):
                what = f"the driver log lacks blocks that it had acknowledged: {what}"
                detail += f" It was acknowledged up to sequence {writer.registered_through}."
            reporter.event(ReceiverEventKind.ERROR, what, detail)
        case ExitCode.FAILED:
            reporter.state(ReceiverState.FAILED, ending.reason)
            reporter.event(ReceiverEventKind.FAILED, "the receiver failed", ending.reason)
        case ExitCode.STOPPED:
            what = "handed over" if stop_hung else "read"
            reporter.state(ReceiverState.INACTIVE, ending.reason)
            reporter.event(ReceiverEventKind.STOPPED, f"stopped, everything {what} is registered", ending.reason)
