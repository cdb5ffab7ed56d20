"""Receives syslog messages from any number of senders: a listener for each transport of the source."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, ClassVar

from receiver_runtime.receiver import Receiver
from receiver_runtime.receivers.datagram_listener import DatagramListener
from receiver_runtime.receivers.socket_listener import SocketListener
from receiver_runtime.receivers.syslog_framing import SyslogFraming
from receiver_runtime.sources.syslog import Syslog

if TYPE_CHECKING:
    from receiver_runtime.sources.base import SourceRule

# Parsing one message takes as long as parsing a hundred: what comes in so many seconds is parsed together.
_PAUSE = 0.01


class SyslogReceiver(Receiver):
    """Messages of a ``Syslog`` source. At most once: syslog has no acknowledgement."""

    columns: ClassVar[tuple[tuple[str, str], ...]] = Syslog.columns
    source_rule: ClassVar[SourceRule | None] = Syslog.source_rule

    def __init__(self, source: Syslog) -> None:
        super().__init__()
        self._source = source
        self._framing = SyslogFraming(timezone=source.timezone, max_record_bytes=source.max_record_bytes)
        self._lock = threading.Lock()
        self._running: list[DatagramListener | SocketListener] = []

    def on_start(self) -> None:
        """Start a thread for each transport."""
        running: list[DatagramListener | SocketListener] = []
        if "udp" in self._source.transports:
            running.append(
                DatagramListener(
                    self,
                    self._source.listen_address,
                    self._framing.cut_datagrams,
                    receive_buffer=self._source.receive_buffer,
                )
            )
        if "tcp" in self._source.transports:
            running.append(SocketListener(self, self._source, self._framing, pause=_PAUSE))
        with self._lock:
            # Said before on_stop is called: nobody would end this one.
            if not self.is_stopped():
                self._running = running
                for listener in running:
                    listener.start()

    def on_stop(self) -> None:
        """Stop listening; returns when every whole message that was read is handed on. Safe twice."""
        with self._lock:
            running, self._running = self._running, []
        for listener in running:
            listener.stop()
