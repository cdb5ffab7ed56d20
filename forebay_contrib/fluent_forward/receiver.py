"""Receives what Fluentd, Fluent Bit and Fluent loggers forward, from any number of senders."""

from __future__ import annotations

from typing import ClassVar

from forebay_contrib.fluent_forward.declaration import FluentForward
from forebay_contrib.fluent_forward.listener import ForwardListener
from receiver_runtime.receivers.run_receiver import RunReceiver


class FluentForwardReceiver(RunReceiver):
    """Receives records, and acknowledges chunks when they are registered. See ``FluentForward``."""

    columns: ClassVar[tuple[tuple[str, str], ...]] = FluentForward.columns

    def __init__(self, source: FluentForward) -> None:
        super().__init__()
        self._source = source

    def make_run(self) -> ForwardListener:
        """Return a listener.

        Its ``stop`` returns when each whole message that was read is handed on, and acknowledged or refused.
        """
        return ForwardListener(self, self._source)
