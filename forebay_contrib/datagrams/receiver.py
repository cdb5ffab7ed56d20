"""Receives the lines of datagrams from any number of senders."""

from __future__ import annotations

from typing import ClassVar

from forebay_contrib.datagrams.declaration import Datagrams
from forebay_contrib.datagrams.framing import DatagramFraming
from receiver_runtime.receivers.run_receiver import RunReceiver
from receiver_runtime.receivers.sockets.datagram_listener import DatagramListener


class DatagramReceiver(RunReceiver):
    """Receive the lines of a ``Datagrams`` source. At most once: UDP has no acknowledgement."""

    columns: ClassVar[tuple[tuple[str, str], ...]] = Datagrams.columns

    def __init__(self, source: Datagrams) -> None:
        super().__init__()
        self._source = source

    def make_run(self) -> DatagramListener:
        """Return the listener. Its ``stop`` returns when what it read is handed on."""
        return DatagramListener(
            self,
            self._source.listen_address,
            DatagramFraming(whole=self._source.cut == "whole").cut,
            receive_buffer=self._source.receive_buffer,
        )
