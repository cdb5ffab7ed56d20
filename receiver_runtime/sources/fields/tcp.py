"""Define what the sources on TCP connections share: where to connect or listen, and TLS.

Only declarations and their checks; ``receiver_runtime.receivers`` opens the connections.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, field_validator, model_validator

from receiver_runtime.sources.fields.secret import Secret, SecretError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Of a host's name: what would be part of a URL, a login or a list, which the clients read in different ways.
_NOT_IN_HOST = re.compile(r"[\s/@,:\[\]?#*\0]")
_SERVER = re.compile(r"(?:\[(?P<ipv6>[^\[\]]+)\]|(?P<host>[^:]*)):(?P<port>\d{1,5})")
_LISTEN = re.compile(r"(?:\[(?P<ipv6>[^\[\]\s/]+)\]|(?P<host>[^:\[\]\s/]+)):(?P<port>\d{1,5})")
_MAX_PORT = 65535
_PEER_FIFTHS = 4  # the part of a listener's connections that one peer may have, in fifths


def check_host(host: str) -> str:
    """Return the name or address of a host.

    Raises:
        ValueError: a URL, a port or several hosts; a SecretError for a login, which is not shown.
    """
    if "@" in host:
        raise SecretError("a host has no login in it: give username and password, the password by reference")
    if not _is_host(host):
        raise ValueError(
            f"{host!r} is no host: give a name or an address alone, as 'broker' or '127.0.0.1', and a port as port"
        )
    return host


def _is_host(text: str) -> bool:
    if not _NOT_IN_HOST.search(text):
        return bool(text)
    try:
        return ipaddress.ip_address(text).version == 6  # noqa: PLR2004
    except ValueError:
        return False


def check_servers(servers: str) -> str:
    """Return ``host:port,host:port`` without blanks. Raises as ``check_host``."""
    if "@" in servers:
        raise SecretError("a server has no login in it: give the login by its own fields, a password by reference")
    checked = [server.strip() for server in servers.split(",")]
    for server in checked:
        match = _SERVER.fullmatch(server)
        if match is None or not _is_host(match["ipv6"] or match["host"]):
            raise ValueError(f"{server!r} is no server: give host:port, as '127.0.0.1:9092', with commas between")
        if int(match["port"]) not in range(1, _MAX_PORT + 1):
            raise ValueError(f"{server!r} is no server: give a port from 1 to {_MAX_PORT}")
    return ",".join(checked)


#: The name or address of one host.
Host = Annotated[str, AfterValidator(check_host)]
#: `host:port` of several servers, with commas between.
Servers = Annotated[str, AfterValidator(check_servers)]


def parse_tls(value: object) -> object:
    """Accept ``True`` for TLS with its defaults, and ``False`` for no TLS."""
    if isinstance(value, bool):
        return {} if value else None
    return value


class Tls(BaseModel):
    """TLS on a source's connections, 1.2 or newer. Files are given by absolute paths; the receiver reads them.

    A client checks the server's certificate and name. A listening source needs ``certificate_file`` and ``key_file``;
    with ``ca_file`` it accepts only senders whose certificate one of its authorities has signed.

    Args:
        ca_file: certificates of the authorities to trust, PEM. A client's default is the system's.
        server_hostname: the name that the server's certificate must have, if it is not ``host``.
        certificate_file: the receiver's own certificate, followed by those between it and the authority, PEM.
        key_file: its key, PEM. By default the key is in ``certificate_file``.
        key_password: the key's passphrase, by reference (``EnvVar("NAME")``, ``"env:NAME"``, ``"file:/PATH"``).
        verify: False trusts any server: for trying out, never for data that matters.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    ca_file: str | None = None
    server_hostname: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    key_password: Secret | None = None
    verify: bool = True

    @field_validator("ca_file", "certificate_file", "key_file")
    @classmethod
    def _check_path(cls, path: str | None) -> str | None:
        if path is not None and not PurePath(path).is_absolute():
            raise ValueError(
                f"{path!r} is no whole path: give one from the root, because the receiver may run in another directory"
            )
        return path

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        if self.key_file is not None and self.certificate_file is None:
            raise ValueError("key_file is of no use without its certificate: give certificate_file too")
        if self.key_password is not None and self.certificate_file is None:
            raise ValueError("key_password is of no use without its certificate: give certificate_file too")
        if not self.verify and (self.ca_file is not None or self.server_hostname is not None):
            raise ValueError("verify=False checks nothing: leave out ca_file and server_hostname, or verify=False")
        return self


def parse_listen(listen: str) -> tuple[str, int]:
    """Return the (host, port) of an address to listen on. Raises ValueError."""
    match = _LISTEN.fullmatch(listen)
    if match is None or not _is_host(match["ipv6"] or match["host"]):
        raise ValueError(f"{listen!r} is no address to listen on: give host:port, as '0.0.0.0:9999' or '[::]:9999'")
    if int(match["port"]) > _MAX_PORT:
        raise ValueError(f"{listen!r} is no address to listen on: give a port up to {_MAX_PORT}, or 0 for any")
    return match["ipv6"] or match["host"], int(match["port"])


def check_listen(listen: str) -> str:
    """Return an address to listen on as it is. Raises ValueError."""
    parse_listen(listen)
    return listen


#: The address that a source listens on.
Listen = Annotated[str, AfterValidator(check_listen)]


def check_server_tls(tls: Tls | None) -> None:
    """Check the TLS of a source that listens. Raises ValueError."""
    if tls is None:
        return
    if tls.certificate_file is None:
        raise ValueError("tls: senders ask for a certificate: give certificate_file and key_file")
    if tls.server_hostname is not None or not tls.verify:
        raise ValueError("tls: server_hostname and verify are a client's: leave them out where you listen")


def most_per_peer(max_connections: int, max_connections_per_peer: int | None) -> int:
    """Return how many connections one peer may have: what the source says, or four fifths of all, rounded up."""
    share = -(-max_connections * _PEER_FIFTHS // 5)
    return share if max_connections_per_peer is None else max_connections_per_peer


def address_of(host: str, port: int) -> str:
    """Return ``host:port``, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_transports(listen: str, transports: Sequence[str], tls: Tls | None) -> None:
    """Check the transports of a source that listens by UDP, TCP or both. Raises ValueError."""
    if not transports or len(set(transports)) < len(transports):
        raise ValueError(f"transports={transports!r}: give 'udp', 'tcp', or both, each once")
    if tls is not None and "udp" in transports:
        raise ValueError("tls: datagrams have none: give transports=('tcp',), and UDP a stream of its own")
    check_server_tls(tls)
    if parse_listen(listen)[1] == 0 and len(transports) > 1:
        raise ValueError(
            f"listen: {listen!r} takes any free port, a different one for each transport: name a port, or one transport"
        )
