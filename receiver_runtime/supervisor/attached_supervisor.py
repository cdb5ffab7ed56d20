"""Give a receiver what it may ask of its supervisor: its lifecycle, its identity, and the path of its records.

Nothing is decided here: requests go to the lifecycle, records to the block path, texts to the status.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from receiver_runtime.supervisor.lifecycle import SupervisorState

if TYPE_CHECKING:
    import threading

    from receiver_runtime.block_path.block_path import BlockPath
    from receiver_runtime.block_path.receiver_context import ReceiverContext
    from receiver_runtime.reporting.source_lag import SourceLag
    from receiver_runtime.supervisor.lifecycle import ReceiverLifecycle
    from receiver_runtime.supervisor.reading_loop import ReadingLoop


class AttachedSupervisor:
    """Stand for the supervisor in a receiver that it is attached to. Every method returns at once; any thread.

    Args:
        source_lag: of the receiver.
        reading_loop: for the receiver's quiet connections, if shared with other receivers.
    """

    def __init__(
        self,
        context: ReceiverContext,
        block_path: BlockPath,
        lifecycle: ReceiverLifecycle,
        *,
        source_lag: SourceLag,
        reading_loop: ReadingLoop | None,
    ) -> None:
        self.stream_id = context.stream_id
        self.stream_name = context.stream_name
        self.receiver_id = context.receiver_id
        self.settings = context.settings
        self.record_schema = context.schema
        self.block_path = block_path
        self.source_lag = source_lag
        self.reading_loop = reading_loop
        self._lifecycle = lifecycle
        self._status = context.status
        self._reporter = context.reporter

    def is_started(self) -> bool:
        """Return whether the state is Started (R04)."""
        return self._lifecycle.state is SupervisorState.STARTED

    def is_stopped(self) -> bool:
        """Return whether the state is Stopped (R04)."""
        return self._lifecycle.state is SupervisorState.STOPPED

    def report_connected(self, where: str) -> None:
        """Report that the receiver is connected to its source."""
        self._status.report_reached(f"connected to {where}")

    def report_listening(self, where: str) -> None:
        """Report that the source's senders can connect."""
        self._status.report_reached(f"listening on {where}")

    def report_error(self, message: str, error: BaseException | None = None) -> None:
        """Report an ERROR event; receiving goes on (R03)."""
        self._reporter.error(message, error)

    def report_degraded(self, what: str, reason: str | None) -> None:
        """Show that something of the source is not received, or no longer (None)."""
        self._status.report_degraded(what, reason)

    def report_note(self, what: str, text: str | None) -> None:
        """Show a text behind the reason, or no longer (None)."""
        self._status.report_note(what, text)

    def is_older_than_start(self, thread: threading.Thread) -> bool:
        """Return whether a thread was there before the receiver was started last."""
        return self._lifecycle.is_older_than_start(thread)

    def restart_receiver(self, message: str, error: BaseException | None, delay: float | None) -> None:
        """Ask for a restart (R03, S05). Ignored unless Started, or if one is requested already."""
        self._lifecycle.request_restart(message, error, delay)

    def stop(self, message: str, error: BaseException | None = None) -> None:
        """Ask for a drained end (S04). The first reason given counts."""
        self._lifecycle.stop(message, error)
