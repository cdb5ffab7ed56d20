"""Reads datagrams from every sender, on one thread.

The thread reads everything that the kernel holds at once, as one Arrow batch. After a read of few datagrams it pauses
for a moment, while the kernel gathers more. While the block generator takes no more records, the thread blocks in it
and reads nothing: the kernel's buffer fills, and the kernel drops and counts further datagrams. The count is reported.

At most once. At a stop the thread reads what the kernel holds once more and hands it on.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from typing import TYPE_CHECKING

from receiver_runtime.receivers.sockets.listening_thread import ListeningThread
from receiver_runtime.sources.fields.tcp import address_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from receiver_runtime.receivers.framing import Cut, Holding
    from receiver_runtime.supervisor.receiver import Receiver

_LARGEST_DATAGRAM = 2**16
# Limits of one batch: read at most this much, then hand it on.
_READ_BYTES = 2**20
_READ_DATAGRAMS = 4096
_LITTLE_DATAGRAMS = 100  # after a read of fewer, pause
_PAUSE = 0.01  # seconds
_HELD_SECONDS = 1.0  # how long datagrams that never end keep what is overdue from being stored
_LOOK_SECONDS = 1.0  # how often to ask the kernel how many datagrams it has dropped
# Linux's SO_MEMINFO: nine numbers; the last one is how many datagrams were dropped.
_SO_MEMINFO = 55
_MEMORY_INFO = struct.Struct("9I")

DROPPED = "datagrams were dropped by the kernel: its receive buffer was full"


class DatagramListener(ListeningThread):
    """Run one UDP socket, from binding to its end.

    Args:
        cut: makes records of datagrams and their senders' hosts, in parts: each part is handed on before the next one
            is made, so that compressed datagrams are never in memory all at once.
        holding: what ``cut`` holds back, for framings whose records may have several datagrams.
        receive_buffer: size to ask the kernel for, in bytes.
    """

    def __init__(
        self,
        receiver: Receiver,
        listen_address: tuple[str, int],
        cut: Callable[[Sequence[bytes], Sequence[str]], Iterable[Cut]],
        *,
        receive_buffer: int,
        holding: Holding | None = None,
    ) -> None:
        where = address_of(*listen_address)
        super().__init__(receiver, name=f"udp {where}", where=f"{where} (UDP)")
        self._address = listen_address
        self._cut = cut
        self._holding = holding
        self._receive_buffer = receive_buffer
        self._dropped = 0
        self._listening: socket.socket | None = None

    def _listen(self) -> socket.socket:
        host, port = self._address
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )[0]
        listening = socket.socket(family, kind, protocol)
        try:
            if host == "::" and socket.has_dualstack_ipv6():
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
            listening.bind(address)
            listening.setblocking(False)  # noqa: FBT003  the standard library's own
        except BaseException:
            listening.close()
            raise
        self._listening = listening
        return listening

    def _serve(self, listening: socket.socket) -> None:
        # Not select(), which can't take descriptors above 1023.
        both, wake = select.poll(), select.poll()
        both.register(listening.fileno(), select.POLLIN)
        for one in (both, wake):
            one.register(self._wake_read, select.POLLIN)
        stored = time.monotonic()
        while not self._is_stopping():
            ready = {descriptor for descriptor, _ in both.poll(self._until_next_look() * 1000)}
            count, is_all = self._read(listening) if listening.fileno() in ready else (0, True)
            if self._holding is not None and (is_all or time.monotonic() - stored >= _HELD_SECONDS):
                # Not at once while more datagrams wait: they may complete what is held.
                self._store(self._holding.overdue())
                stored = time.monotonic()
            if 0 < count < _LITTLE_DATAGRAMS:
                wake.poll(_PAUSE * 1000)
            self._look_for_drops(listening)
        self._read(listening)
        if self._holding is not None:
            self._store(self._holding.end())
        self._look_for_drops(listening)

    def _read(self, listening: socket.socket) -> tuple[int, bool]:
        """Read what the kernel holds, within the limits, and hand it on.

        Return how many datagrams that were, and whether the kernel held no more.
        """
        datagrams: list[bytes] = []
        senders: list[str] = []
        nbytes = 0
        is_all = True
        with contextlib.suppress(BlockingIOError, InterruptedError):
            while nbytes < _READ_BYTES and len(datagrams) < _READ_DATAGRAMS:
                datagram, address = listening.recvfrom(_LARGEST_DATAGRAM)
                datagrams.append(datagram)
                senders.append(address[0])
                nbytes += len(datagram)
            is_all = False
        for cut in self._cut(datagrams, senders) if datagrams else ():
            self._store(cut)
        return len(datagrams), is_all

    def _until_next_look(self) -> float:
        waiting = None if self._holding is None else self._holding.until_overdue()
        return _LOOK_SECONDS if waiting is None else min(_LOOK_SECONDS, waiting + _PAUSE)

    def _store(self, cut: Cut) -> None:
        # Dead letters first: they are durable on return, and the records are not.
        if cut.dead_letters:
            self._receiver.store_dead_letters(cut.dead_letters)
        if cut.records is not None and len(cut.records):
            self._receiver.store_buffered(cut.records)

    def _look_for_drops(self, listening: socket.socket) -> None:
        try:
            info = listening.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMORY_INFO.size)
            dropped = int(_MEMORY_INFO.unpack(info)[-1])
        except (OSError, struct.error):
            # This kernel does not report it.
            return
        if dropped != self._dropped:
            new, self._dropped = dropped - self._dropped, dropped
            name = listening.getsockname()[:2]
            # The kernel includes its own overhead, and reports twice the size that was asked for.
            size = listening.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
            self._receiver.report_error(
                DROPPED,
                OSError(
                    f"{new} more, {dropped} since the socket was opened, at {address_of(*name)}; "
                    f"the buffer has {size} bytes (receive_buffer, net.core.rmem_max)"
                ),
            )

    def _close(self) -> None:
        if self._listening is not None:
            self._listening.close()
