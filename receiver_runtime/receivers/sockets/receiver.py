"""Define the receiver of a TCP source: it makes a client or a listener at each ``on_start``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from receiver_runtime.receivers.run_receiver import RunReceiver
from receiver_runtime.receivers.sockets.client import SocketClient
from receiver_runtime.receivers.sockets.listener import SocketListener

if TYPE_CHECKING:
    from collections.abc import Callable

    from receiver_runtime.receivers.framing import Framing
    from receiver_runtime.receivers.sockets.tcp_source import TcpSource


class SocketReceiver(RunReceiver):
    """Receive the records of a ``TcpSource``, cut by a framing. At most once: see ``TcpSource``.

    A subclass declares ``columns``. Each run has a framing of its own.
    """

    def __init__(self, source: TcpSource, make_framing: Callable[[], Framing]) -> None:
        super().__init__()
        self._source = source
        self._make_framing = make_framing

    def make_run(self) -> SocketClient | SocketListener:
        """Return a client or a listener. Its ``stop`` returns when every whole record that was read is handed on."""
        make = SocketClient if self._source.listen is None else SocketListener
        return make(self, self._source, self._make_framing())
