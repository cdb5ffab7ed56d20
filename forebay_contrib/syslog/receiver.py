"""Receives syslog messages from any number of senders, by one listener for each transport of the source."""

from __future__ import annotations

from typing import ClassVar

from forebay_contrib.syslog.declaration import Syslog
from forebay_contrib.syslog.framing import SyslogFraming
from forebay_contrib.syslog.joined_messages import JoinedSyslogFraming
from receiver_runtime.receivers.run_receiver import RunReceiver
from receiver_runtime.receivers.sockets.datagram_listener import DatagramListener
from receiver_runtime.receivers.sockets.listener import SocketListener
from receiver_runtime.receivers.sockets.listening_thread import ListeningThread, ListeningThreads
from receiver_runtime.sources.source import SourceError

# Seconds between turns with little data: parsing one message takes as long as parsing a hundred, so that messages of
# one pause are parsed together.
_PAUSE = 0.01


class SyslogReceiver(RunReceiver):
    """Receive the messages of a ``Syslog`` source. At most once: syslog has no acknowledgement."""

    columns: ClassVar[tuple[tuple[str, str], ...]] = Syslog.columns

    def __init__(self, source: Syslog) -> None:
        super().__init__()
        self._source = source
        # Found before it begins, as any other fault of the declaration.
        self._make_framing()

    def make_run(self) -> ListeningThreads:
        """Return the listeners. Their ``stop`` returns when every whole message that was read is handed on."""
        listeners: list[ListeningThread] = []
        if "udp" in self._source.transports:
            framing = self._make_framing()
            listeners.append(
                DatagramListener(
                    self,
                    self._source.listen_address,
                    lambda datagrams, senders: [framing.cut_datagrams(datagrams, senders)],
                    receive_buffer=self._source.receive_buffer,
                    holding=framing if isinstance(framing, JoinedSyslogFraming) else None,
                )
            )
        if "tcp" in self._source.transports:
            listeners.append(SocketListener(self, self._source, self._make_framing(), pause=_PAUSE))
        return ListeningThreads(listeners)

    def _make_framing(self) -> SyslogFraming | JoinedSyslogFraming:
        """Return what makes records, for one listener. Raises SourceError: the pattern is not RE2's."""
        source = self._source
        framing = SyslogFraming(timezone=source.timezone, max_record_bytes=source.max_record_bytes)
        if source.multiline is None:
            return framing
        try:
            return JoinedSyslogFraming(framing, source.multiline, max_record_bytes=source.max_record_bytes)
        except ValueError as error:
            raise SourceError(str(error)) from error
