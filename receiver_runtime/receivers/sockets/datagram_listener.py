"""Reads datagrams from every sender, on one thread.

What the kernel holds is read in one go and becomes one Arrow batch; after a few datagrams the thread pauses for a
moment, in which the kernel gathers more. While the block generator takes no more, the thread waits in it and reads
nothing: the kernel's buffer fills and then drops what comes, which it counts. The count is reported.

At most once. At a stop what the kernel holds is read once more and handed on.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
from typing import TYPE_CHECKING

from receiver_runtime.block_generator import GeneratorStateError
from receiver_runtime.driver_log import GivenUpError
from receiver_runtime.sources.tcp import address_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from receiver_runtime.receiver import Receiver
    from receiver_runtime.receivers.framing import Cut

_LARGEST_DATAGRAM = 2**16
# What is read before it is handed on, at most.
_READ_BYTES = 2**20
_READ_DATAGRAMS = 4096
_LITTLE_DATAGRAMS = 100
_PAUSE = 0.01
# So often the kernel is asked how many it has dropped.
_LOOK_SECONDS = 1.0
# Linux: SO_MEMINFO, nine numbers, of which the last is how many datagrams were dropped.
_SO_MEMINFO = 55
_MEMORY_INFO = struct.Struct("9I")

DROPPED = "datagrams were dropped by the kernel: its receive buffer was full"


class DatagramsDroppedError(OSError):
    """The kernel had no room for datagrams that came, and they are lost."""


class DatagramListener:
    """One UDP socket's life, from binding to the end.

    Args:
        cut: from datagrams and their senders' hosts to records.
        receive_buffer: bytes to ask the kernel for.
    """

    def __init__(
        self,
        receiver: Receiver,
        listen_address: tuple[str, int],
        cut: Callable[[Sequence[bytes], Sequence[str]], Cut],
        *,
        receive_buffer: int,
    ) -> None:
        self._receiver = receiver
        self._address = listen_address
        self._cut = cut
        self._receive_buffer = receive_buffer
        self._wake_read, self._wake_write = os.pipe()
        self._lock = threading.Lock()
        self._stopping = False
        self._done = False
        self._thread = threading.Thread(target=self._run, name=f"udp {address_of(*listen_address)}", daemon=True)
        self._dropped = 0

    def start(self) -> None:
        """Start the thread; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Wake the thread, and wait until it has handed on what it had and the port is free."""
        with self._lock:
            self._stopping = True
            if not self._done:
                os.write(self._wake_write, b"\0")
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            try:
                listening = self._listen()
            except OSError as error:
                self._restart(f"Error listening on {address_of(*self._address)} (UDP)", error)
                return
            with listening:
                host, port = listening.getsockname()[:2]
                self._receiver.report_listening(address_of(host, port))
                self._serve(listening)
        except (GeneratorStateError, GivenUpError):
            # The supervisor ends without draining: nobody takes records any more.
            return
        except BaseException as error:  # noqa: BLE001  a thread that dies silently would receive nothing for ever
            self._restart("Error receiving data", error)
        finally:
            with self._lock:
                self._done = True
            os.close(self._wake_read)
            os.close(self._wake_write)

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
        return listening

    def _serve(self, listening: socket.socket) -> None:
        # Not select(): that knows no descriptor above 1023.
        both, wake = select.poll(), select.poll()
        both.register(listening.fileno(), select.POLLIN)
        for one in (both, wake):
            one.register(self._wake_read, select.POLLIN)
        while not self._stopping:
            ready = {descriptor for descriptor, _ in both.poll(_LOOK_SECONDS * 1000)}
            if listening.fileno() in ready and self._read(listening) < _LITTLE_DATAGRAMS:
                wake.poll(_PAUSE * 1000)
            self._look_for_drops(listening)
        self._read(listening)
        self._look_for_drops(listening)

    def _read(self, listening: socket.socket) -> int:
        """Hand on what the kernel holds, up to a bound; returns how many datagrams."""
        datagrams: list[bytes] = []
        senders: list[str] = []
        nbytes = 0
        with contextlib.suppress(BlockingIOError, InterruptedError):
            while nbytes < _READ_BYTES and len(datagrams) < _READ_DATAGRAMS:
                datagram, address = listening.recvfrom(_LARGEST_DATAGRAM)
                datagrams.append(datagram)
                senders.append(address[0])
                nbytes += len(datagram)
        if datagrams:
            cut = self._cut(datagrams, senders)
            # Dead letters first: they are durable on return, and the records are not.
            if cut.dead_letters:
                self._receiver.store_dead_letters(cut.dead_letters)
            if cut.records is not None:
                self._receiver.store_buffered(cut.records)
        return len(datagrams)

    def _look_for_drops(self, listening: socket.socket) -> None:
        try:
            info = listening.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMORY_INFO.size)
            dropped = int(_MEMORY_INFO.unpack(info)[-1])
        except (OSError, struct.error):
            # A kernel that does not say.
            return
        if dropped != self._dropped:
            new, self._dropped = dropped - self._dropped, dropped
            name = listening.getsockname()[:2]
            # The kernel counts its own overhead too, and says twice what it was asked for.
            size = listening.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
            self._receiver.report_error(
                DROPPED,
                DatagramsDroppedError(
                    f"{new} more, {dropped} since the socket was opened, at {address_of(*name)}; "
                    f"the buffer has {size} bytes (receive_buffer, net.core.rmem_max)"
                ),
            )

    def _restart(self, message: str, error: BaseException) -> None:
        if not self._stopping:
            self._receiver.restart(message, error)
