"""Pass requests between the receivers that share an address: each has one signal, and the kernel spreads connections.

Each receiver also listens at a name of Linux's abstract namespace, which leaves no file behind. The name is of the
user, of the receivers' agent (its pid is their parent's), of the address, of what senders must show there, and of the
signal; both sides check that the other is of the same user. So receivers of another system, or with other tokens or
certificates, are strangers, and can't have the same port. A receiver has its name before its port, and answers there
once it has the port: two that start beside a stranger's port do not take it for each other's.

A request passes as its head; the body follows when the receiver that has the signal asks for it, so that this one
decides first, by tokens and room, whether it takes the request.

Owns the names and the passing. Never parses a request, and never answers for another receiver but to say that it is
missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import json
import os
import socket
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay_contrib.opentelemetry.door.addresses import shared_listener
from forebay_contrib.opentelemetry.door.exchange import Asked, ask, scope_of
from forebay_contrib.opentelemetry.signals import SIGNALS
from receiver_runtime.sources.fields.tcp import parse_listen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.types import ASGIApp, Message, Receive

_BACKLOG = 1024
_CREDENTIALS = struct.Struct("3i")  # the pid, user and group of a peer
_SIZE = struct.Struct(">I")
_CONTINUE = b"continue\n"
_LONGEST_HEAD = 2**20
# Seconds between two attempts to have the name: the receiver that a new one replaces has it for a while.
_NAME_PAUSE = 0.2
# After this many attempts, half a minute, it is reported: no receiver that ends takes as long.
_REPORTED_ATTEMPT = 150
_CONNECT_SECONDS = 5.0
# How long the signal's receiver may take to ask for the body, or to refuse without it.
_DECISION_SECONDS = 10.0


class SiblingGoneError(Exception):
    """Send again: the receiver of the signal does not run here, or has ended before it answered."""


class Siblings:
    """Reach the other receivers at one address, and be reached by them.

    Args:
        listen: the address, as declared: each receiver at it declares the same.
        signal: the own one.
        terms: what else each receiver at it declares alike (``Source.address_terms``).
        agent: the pid of the agent, whose receivers these are.
    """

    def __init__(self, listen: str, signal: str, *, terms: str = "", agent: int | None = None) -> None:
        self._address = parse_listen(listen)
        self._signal = signal
        pid = os.getppid() if agent is None else agent
        self._group = f"{os.geteuid()} {_pid_namespace()} {pid} {listen} {terms}"
        #: Whether there can be others: a port that the system chose is known to no other receiver.
        self.can_share = self._address[1] != 0 and sys.platform == "linux"

    def _name(self, signal: str) -> bytes:
        of_all = f"{self._group} {signal}"
        return b"\0forebay otlp " + hashlib.sha256(of_all.encode()).hexdigest()[:40].encode()

    # -- the address -------------------------------------------------------------------------------------------------

    def open_port(self, *, backlog: int) -> tuple[socket.socket, socket.socket | None]:
        """Return a socket that listens at the address, and one with the own name, for ``taking``.

        The second is None if another receiver still has the name. Raises OSError: something else has the address.
        """
        name = self.open_name()
        try:
            return shared_listener(self._address, backlog=backlog, is_shared=self.is_shared), name
        except OSError:
            if name is not None:
                name.close()
            raise

    def open_name(self) -> socket.socket | None:
        """Return a socket that has the own name, and does not listen yet; None if another receiver still has it."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.bind(self._name(self._signal))
        except OSError as error:
            made.close()
            if error.errno == errno.EADDRINUSE:
                return None
            raise
        return made

    def is_shared(self) -> bool:
        """Return whether a receiver has the address that shares it."""
        for signal in SIGNALS:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
                asked.settimeout(_CONNECT_SECONDS)
                with contextlib.suppress(OSError):
                    asked.connect(self._name(signal.name))
                    if _is_own(asked):
                        return True
        return False

    # -- passing on --------------------------------------------------------------------------------------------------

    async def pass_on(self, signal: str, scope: Any, receive: Receive) -> Asked:  # noqa: ANN401  a scope of ASGI
        """Return the answer of the signal's receiver. Raises SiblingGoneError."""
        # Connected here, because uvloop takes no abstract name.
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)  # noqa: FBT003  the standard library's own
            connection.connect(self._name(signal))
            reader, writer = await asyncio.open_unix_connection(sock=connection, limit=_LONGEST_HEAD)
        except OSError as error:
            connection.close()
            raise SiblingGoneError(str(error)) from error
        pump: asyncio.Task[None] | None = None
        try:
            if not _is_own(writer.get_extra_info("socket")):
                raise SiblingGoneError("another user has its name")
            headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in scope["headers"]]
            _write_head(writer, {"method": scope["method"], "path": scope["path"], "headers": headers})
            async with asyncio.timeout(_DECISION_SECONDS):
                line = await reader.readline()
            if line == _CONTINUE:
                pump = asyncio.ensure_future(_pump(receive, writer))
                line = await reader.readline()
            head = json.loads(line)
            body = await reader.readexactly(head["size"])
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            raise SiblingGoneError(str(error)) from error
        finally:
            if pump is not None:
                pump.cancel()
            writer.close()
        return Asked(
            head["status"],
            [(name.encode("latin-1"), value.encode("latin-1")) for name, value in head["headers"]],
            body,
        )

    @contextlib.asynccontextmanager
    async def taking(
        self, application: ASGIApp, name: socket.socket | None, on_failed: Callable[[str, OSError], object]
    ) -> AsyncIterator[None]:
        """Take what others pass on, from the socket at the own name, or once there is one."""
        answering: set[asyncio.Task[None]] = set()
        missing = "other signals' receivers can't pass requests on to this one"

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            answering.add(task)
            try:
                await _answer(application, reader, writer)
            finally:
                answering.discard(task)
                writer.close()

        async def serve(held: socket.socket | None) -> None:
            try:
                attempts = 0
                while (held := held or self.open_name()) is None:
                    attempts += 1
                    if attempts == _REPORTED_ATTEMPT:
                        on_failed(missing, OSError(errno.EADDRINUSE, "another process has this receiver's name"))
                    await asyncio.sleep(_NAME_PAUSE)
                server = await asyncio.start_unix_server(answer, sock=held, limit=_LONGEST_HEAD, backlog=_BACKLOG)
            except OSError as error:
                on_failed(missing, error)
                return
            try:
                await asyncio.Event().wait()
            finally:
                server.close()

        if name is not None:
            # Before anything says that this receiver listens: what others pass on waits until it is served.
            name.listen(_BACKLOG)
        serving = asyncio.ensure_future(serve(name)) if self.can_share else None
        try:
            yield
        finally:
            if serving is not None:
                serving.cancel()
            for task in answering:
                task.cancel()
            await asyncio.gather(*answering, *([serving] if serving else ()), return_exceptions=True)
            if name is not None:
                name.close()


def _pid_namespace() -> str:
    """Return the namespace in which pids are unique: containers may share the host's network, and its names."""
    with contextlib.suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return ""


def _is_own(peer: socket.socket) -> bool:
    _, user, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(user == os.geteuid())


def _write_head(writer: asyncio.StreamWriter, head: dict[str, object]) -> None:
    writer.write(json.dumps(head).encode() + b"\n")


async def _pump(receive: Receive, writer: asyncio.StreamWriter) -> None:
    """Pass the body on, piece by piece; close the connection when the sender has left."""
    is_over = False
    # The other side may have answered and left, which its answer says.
    with contextlib.suppress(OSError):
        while (message := await receive())["type"] != "http.disconnect":
            piece = message.get("body", b"")
            if piece and not is_over:
                writer.write(_SIZE.pack(len(piece)))
                writer.write(piece)
            if not message.get("more_body", False) and not is_over:
                writer.write(_SIZE.pack(0))
                is_over = True
            await writer.drain()
        writer.close()


async def _answer(application: ASGIApp, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request that another receiver passes on."""
    if not _is_own(writer.get_extra_info("socket")):
        return
    is_asked_for = is_over = False

    async def receive() -> Message:
        nonlocal is_asked_for, is_over
        if not is_asked_for:
            is_asked_for = True
            writer.write(_CONTINUE)
        try:
            if is_over:
                await reader.readexactly(1)
            size = _SIZE.unpack(await reader.readexactly(_SIZE.size))[0]
            is_over = size == 0
            return {"type": "http.request", "body": await reader.readexactly(size), "more_body": not is_over}
        except (OSError, asyncio.IncompleteReadError):
            return {"type": "http.disconnect"}

    with contextlib.suppress(OSError, ValueError):
        line = await reader.readline()
        if not line:
            # Only asked whether there is one.
            return
        head = json.loads(line)
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in head["headers"]]
        asked = await ask(application, scope_of(head["method"], head["path"], headers), receive)
        answered = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in asked.headers]
        _write_head(writer, {"status": asked.status, "headers": answered, "size": len(asked.body)})
        writer.write(asked.body)
        await writer.drain()
