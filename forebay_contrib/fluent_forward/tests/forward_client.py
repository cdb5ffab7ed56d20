"""A small sender of the Forward protocol, in this process: it sends what it is told, and reads what it is answered."""

from __future__ import annotations

import hashlib
import socket
from typing import TYPE_CHECKING, Any, Self

import msgspec

if TYPE_CHECKING:
    import ssl

encode = msgspec.msgpack.Encoder().encode
_HOSTNAME, _SALT = "sender", b"0123456789abcde\xff"


def event_time(seconds: int, nanoseconds: int = 0) -> msgspec.msgpack.Ext:
    """Return Fluentd's own form of a time."""
    return msgspec.msgpack.Ext(0, seconds.to_bytes(4, "big") + nanoseconds.to_bytes(4, "big"))


def entry(number: int) -> list[Any]:
    """Return a numbered entry."""
    return [event_time(1_700_000_000, number), {"n": number}]


def packed(*entries: Any) -> bytes:  # noqa: ANN401  what MessagePack has
    """Return entries one behind the other."""
    return b"".join(map(encode, entries))


class ForwardClient:
    """One connection."""

    def __init__(
        self,
        port: int,
        *,
        context: ssl.SSLContext | None = None,
        seconds: float = 20,
        receive_buffer: int | None = None,
        source: str = "",
    ) -> None:
        self.socket = socket.socket(socket.AF_INET)
        self.socket.bind((source, 0))
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(seconds)
        try:
            self.socket.connect(("127.0.0.1", port))
        except OSError:
            self.socket.close()
            raise
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname="127.0.0.1")
        self._came = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, *messages: Any) -> None:  # noqa: ANN401  what MessagePack has
        """Send messages."""
        self.socket.sendall(b"".join(map(encode, messages)))

    def receive(self) -> Any:  # noqa: ANN401  what MessagePack has
        """Return the next message; None where the connection has ended."""
        while True:
            for end in range(1, len(self._came) + 1):
                try:
                    found = msgspec.msgpack.decode(self._came[:end])
                except msgspec.DecodeError:
                    continue
                self._came = self._came[end:]
                return found
            try:
                more = self.socket.recv(2**16)
            except ConnectionResetError:
                return None
            if not more:
                return None
            self._came += more

    def acks(self, count: int) -> list[str]:
        """Return ``count`` acknowledged chunks."""
        return [self.receive()["ack"] for _ in range(count)]

    def authenticate(self, key: str, user: str = "", password: str = "") -> list[Any]:
        """Answer the receiver's HELO; return its PONG, checked if it is one of success."""
        name, about = self.receive()
        assert name == "HELO"
        nonce, auth = about["nonce"], about["auth"]
        self.send(
            [
                *("PING", _HOSTNAME, _SALT),
                _digest(_SALT, _HOSTNAME.encode(), nonce, key.encode()),
                *(user, _digest(auth, user.encode(), password.encode()) if auth else ""),
            ]
        )
        pong: list[Any] = self.receive()
        if pong[1]:
            assert pong[4] == _digest(_SALT, pong[3].encode(), nonce, key.encode())
        return pong


def _digest(*parts: bytes) -> str:
    return hashlib.sha512(b"".join(parts)).hexdigest()
