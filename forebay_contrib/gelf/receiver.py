"""Receives GELF messages from any number of senders, by one listener for each transport of the source."""

from __future__ import annotations

from typing import ClassVar

from forebay_contrib.gelf.declaration import Gelf
from forebay_contrib.gelf.framing import GelfFraming
from receiver_runtime.receivers.run_receiver import RunReceiver
from receiver_runtime.receivers.sockets.datagram_listener import DatagramListener
from receiver_runtime.receivers.sockets.listener import SocketListener
from receiver_runtime.receivers.sockets.listening_thread import ListeningThread, ListeningThreads

# Seconds between turns with little data: a batch of one message takes nearly as long as one of a hundred.
_PAUSE = 0.01


class GelfReceiver(RunReceiver):
    """Receive the messages of a ``Gelf`` source. At most once: GELF over UDP and TCP has no acknowledgement."""

    columns: ClassVar[tuple[tuple[str, str], ...]] = Gelf.columns

    def __init__(self, source: Gelf) -> None:
        super().__init__()
        self._source = source

    def make_run(self) -> ListeningThreads:
        """Return the listeners. Their ``stop`` returns when every whole message that was read is handed on."""
        source = self._source
        # Chunks of one start are not those of another.
        framing = GelfFraming(source)
        listeners: list[ListeningThread] = []
        if "udp" in source.transports:
            listeners.append(
                DatagramListener(
                    self,
                    source.listen_address,
                    framing.cut_datagrams,
                    receive_buffer=source.receive_buffer,
                    holding=framing.chunks,
                )
            )
        if "tcp" in source.transports:
            listeners.append(SocketListener(self, source, framing, pause=_PAUSE))
        return ListeningThreads(listeners)
