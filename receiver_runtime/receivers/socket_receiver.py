"""The receiver of a source on TCP: a client or a listener for each ``on_start``."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from receiver_runtime.receiver import Receiver
from receiver_runtime.receivers.socket_client import SocketClient
from receiver_runtime.receivers.socket_listener import SocketListener

if TYPE_CHECKING:
    from receiver_runtime.receivers.framing import Framing
    from receiver_runtime.sources.tcp import TcpSource


class SocketReceiver(Receiver):
    """Records of a ``TcpSource``, cut by a framing. At most once: see ``TcpSource``. A child declares ``columns``."""

    def __init__(self, source: TcpSource, framing: Framing) -> None:
        super().__init__()
        self._source = source
        self._framing = framing
        self._lock = threading.Lock()
        self._run: SocketClient | SocketListener | None = None

    def on_start(self) -> None:
        """Start the reading thread."""
        make = SocketClient if self._source.listen is None else SocketListener
        run = make(self, self._source, self._framing)
        with self._lock:
            # Said before on_stop is called: nobody would end this one.
            if not self.is_stopped():
                self._run = run
                run.start()

    def on_stop(self) -> None:
        """Stop reading; returns when every whole record that was read is handed on. Safe twice."""
        with self._lock:
            run, self._run = self._run, None
        if run is not None:
            run.stop()
