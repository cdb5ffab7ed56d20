"""Authenticate a sender by a shared key, and by a user's password, as the Forward protocol does (HELO, PING, PONG).

Owns the digests and their comparison, in a time that does not depend on them. It never holds a connection, and no
reason that it gives a sender says more than which of the two was wrong.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from forebay_contrib.fluent_forward.scanning import NotMessagePackError, array_of, head, is_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: The largest PING. Two digests of 128 bytes, a salt, and two names.
MOST_PING_BYTES = 2**14
_NONCE_BYTES = 16
_PING_VALUES = 6
_PING = b"PING"
# Fluent Bit has room for 31 bytes of a reason.
_NO_PING, _NO_KEY, _NO_USER = "invalid ping message", "shared_key mismatch", "username/password mismatch"
_ENCODE = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Answer:
    """Hold what a sender is answered; ``refusal`` says why it may not send, or is None."""

    pong: bytes
    refusal: str | None = None
    #: What the sender calls its host, for people; anyone may write anything.
    hostname: str = ""


class Handshake:
    """Authenticate one connection's sender.

    Args:
        shared_keys: those that count.
        passwords: of the users, by name; empty: only the key counts.
        hostname: the receiver's name.
    """

    def __init__(self, shared_keys: Sequence[bytes], passwords: Mapping[bytes, bytes], hostname: str) -> None:
        self._shared_keys = shared_keys
        self._passwords = passwords
        self._hostname = hostname.encode()
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._auth = secrets.token_bytes(_NONCE_BYTES) if passwords else b""

    def helo(self) -> bytes:
        """Return the first message, which asks the sender for a PING."""
        return _ENCODE(["HELO", {"nonce": self._nonce, "auth": self._auth, "keepalive": True}])

    def answer(self, ping: bytes) -> Answer:
        """Return what to answer a whole message that should be a PING."""
        parts = _texts_of(ping)
        if parts is None or len(parts) != _PING_VALUES or parts[0] != _PING:
            return _refused(_NO_PING)
        _, hostname, salt, digest, username, password_digest = parts
        matching = [
            key
            for key in self._shared_keys
            if hmac.compare_digest(_digest_of(salt, hostname, self._nonce, key), digest)
        ]
        if not matching:
            return _refused(_NO_KEY)
        if self._passwords:
            password = self._passwords.get(username, b"")
            is_same = hmac.compare_digest(_digest_of(self._auth, username, password), password_digest)
            if not (is_same and username in self._passwords):
                return _refused(_NO_USER)
        own = _digest_of(salt, self._hostname, self._nonce, matching[0])
        pong = _ENCODE(["PONG", True, "", self._hostname.decode(), own.decode()])
        return Answer(pong, hostname=hostname.decode(errors="replace"))


def _refused(why: str) -> Answer:
    return Answer(_ENCODE(["PONG", False, why, "", ""]), why)


def _digest_of(*parts: bytes) -> bytes:
    return hashlib.sha512(b"".join(parts)).hexdigest().encode()


def _texts_of(message: bytes) -> list[bytes] | None:
    """Return the texts of an array; None if it is none, or has something else. A salt may be no UTF-8."""
    try:
        outer = array_of(message, 0)
    except NotMessagePackError:
        return None
    if outer is None or outer.values != _PING_VALUES:
        return None
    found, at = [], outer.begin
    for _ in range(outer.values):
        one = head(message, at)
        if one is None or not is_text(message[at]):
            return None
        found.append(message[one.begin : one.end])
        at = one.end
    return found
