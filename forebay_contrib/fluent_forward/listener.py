"""Listens for senders of the Forward protocol on one thread, from one ``on_start`` to its ``on_stop``.

At a stop no more connections are taken, and none is read again. Each whole message that was read is handed on, and
acknowledged when it is registered, before the connections are closed. A message whose end has not come is forgotten: a
sender that asks for acknowledgements sends it again.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from forebay_contrib.fluent_forward.connections import Connections
from forebay_contrib.fluent_forward.gathered_messages import GatheredMessages
from receiver_runtime.receivers.sockets.listening_thread import ListeningThread
from receiver_runtime.receivers.tcp import listening_socket
from receiver_runtime.sources.fields.secret import SecretError
from receiver_runtime.sources.fields.tls_context import server_context

if TYPE_CHECKING:
    import ssl

    from forebay_contrib.fluent_forward.declaration import FluentForward
    from receiver_runtime.sources.fields.secret import Secret
    from receiver_runtime.supervisor.receiver import Receiver

_BACKLOG = 1024
_HEARTBEAT = b"\0"


class ForwardListener(ListeningThread):
    """See the module. Call ``start`` and ``stop`` once each; after ``stop`` the port is free."""

    def __init__(self, receiver: Receiver, source: FluentForward) -> None:
        super().__init__(receiver, name=f"fluent forward {source.listen}", where=source.listen)
        self._source = source
        self._shared_keys: list[bytes] = []
        self._passwords: dict[bytes, bytes] = {}
        self._context: ssl.SSLContext | None = None
        self._listening: socket.socket | None = None
        self._heartbeats: socket.socket | None = None

    def _listen(self) -> socket.socket:
        source = self._source
        try:
            self._shared_keys = [key for secret in source.shared_key for key in _keys_of(secret)]
            self._passwords = {name.encode(): secret.resolve().encode() for name, secret in source.users.items()}
        except SecretError as error:
            raise OSError(str(error)) from None
        if source.tls is not None:
            self._context = server_context(source.tls)
        self._listening = listening_socket(source.listen_address, backlog=_BACKLOG)
        self._listening.setblocking(False)  # noqa: FBT003  the standard library's own
        if source.udp_heartbeat:
            self._heartbeats = socket.socket(self._listening.family, socket.SOCK_DGRAM)
            self._heartbeats.setblocking(False)  # noqa: FBT003  the standard library's own
            self._heartbeats.bind(self._listening.getsockname())
        return self._listening

    def _serve(self, listening: socket.socket) -> None:
        asyncio.run(self._serve_until_stopped(listening))

    async def _serve_until_stopped(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        loop.add_reader(self._wake_read, stopping.set)
        gathered = GatheredMessages(self._receiver, has_keys=self._source.key_from is not None)
        connections = Connections(self._receiver, self._source, gathered, self._context)
        connections.accept_from(listening, self._shared_keys, self._passwords)
        if self._heartbeats is not None:
            loop.add_reader(self._heartbeats, _answer_heartbeats, self._heartbeats)
        waiting = loop.create_task(stopping.wait())
        try:
            await asyncio.wait([waiting, gathered.handing_on], return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop.remove_reader(self._wake_read)
            waiting.cancel()
            connections.accept_no_more()
            listening.close()
            await connections.stop_reading()
            await gathered.close()
            await connections.close()
        gathered.raise_failure()

    def _close(self) -> None:
        for opened in (self._listening, self._heartbeats):
            if opened is not None:
                opened.close()


def _keys_of(secret: Secret) -> list[bytes]:
    """Return the keys of one secret: a line each, so that the old one and the new one count during a change.

    Raises SecretError: there is none.
    """
    keys = [line.strip().encode() for line in secret.resolve().splitlines() if line.strip()]
    if not keys:
        raise SecretError(f"there is no key: write one, or several in a line each, into {secret}")
    return keys


def _answer_heartbeats(heartbeats: socket.socket) -> None:
    """Answer what has come, a byte for a byte: no more, because anyone may write any address as the sender's."""
    try:
        data, address = heartbeats.recvfrom(2)
        if data == _HEARTBEAT:
            heartbeats.sendto(_HEARTBEAT, address)
    except OSError:
        # Nothing has come, or the sender is gone.
        return
