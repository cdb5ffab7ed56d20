"""Check where the tracker's HTTP server listens, and its tokens: `FOREBAY_TRACKER_HTTP`, `_TOKEN`, `_WRITE_TOKEN`.

Loads no server, so that a command that starts a tracker can refuse a bad address first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from receiver_runtime.sources.fields.loopback import is_written_as_loopback

if TYPE_CHECKING:
    from pydantic import SecretStr

OFF = "off"
_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[^:\[\]\s]+)):(?P<port>\d{1,5})")
_LARGEST_PORT = 65535


class ListenAddressError(ValueError):
    """Correct FOREBAY_TRACKER_HTTP or a token: the tracker's HTTP server can't listen as it was told to."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Hold the address to listen on; port 0: any free port. `token`: what a client must send; None: nothing.

    `write_token`: what a client must send with a request that changes something; None: such requests are refused.
    """

    host: str
    port: int
    token: str | None = None
    write_token: str | None = None

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can reach the address."""
        return is_written_as_loopback(self.host)


def checked_token(variable: str, token: SecretStr | None) -> str | None:
    """Return a token that clients send in a header.

    Raises:
        ListenAddressError: it can't be sent there. The message does not hold it.
    """
    secret = None if token is None else token.get_secret_value()
    if secret is not None and not (secret.isascii() and secret.isprintable() and secret.strip() == secret != ""):
        raise ListenAddressError(
            f"{variable} can't be sent in a header: give printable ASCII characters without spaces around them, such "
            "as the output of: openssl rand -hex 32"
        )
    return secret


def url(host: str, port: int) -> str:
    """Return the address as a URL."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def listen_address(value: str, token: SecretStr | None, write_token: SecretStr | None = None) -> ListenAddress | None:
    """Return the address in `FOREBAY_TRACKER_HTTP`, or None if that is `off`.

    Raises:
        ListenAddressError: the value is no address, a token can't be sent in a header, or other machines could reach
            the address and there is no token.
    """
    if value.strip().lower() == OFF:
        return None
    match = _ADDRESS.fullmatch(value.strip())
    if match is None or int(match["port"]) > _LARGEST_PORT:
        raise ListenAddressError(
            f"FOREBAY_TRACKER_HTTP={value!r} is no address: give HOST:PORT, such as 127.0.0.1:3070 or [::1]:3070; "
            "or off"
        )
    secret = checked_token("FOREBAY_TRACKER_TOKEN", token)
    writing = checked_token("FOREBAY_TRACKER_WRITE_TOKEN", write_token)
    address = ListenAddress(match["v6"] or match["host"], int(match["port"]), secret, writing)
    if not address.is_loopback and secret is None:
        raise ListenAddressError(
            f"FOREBAY_TRACKER_HTTP={value!r} can be reached from other machines: set FOREBAY_TRACKER_TOKEN, which "
            "clients then send as 'Authorization: Bearer TOKEN', or listen on 127.0.0.1"
        )
    return address
