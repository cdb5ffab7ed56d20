"""Set what clients and listeners on TCP share: options of a connection, and TLS contexts from a declaration."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, NoReturn

from receiver_runtime.sources.fields.secret import SecretError

if TYPE_CHECKING:
    from receiver_runtime.sources.fields.tcp import Tls

#: The most bytes of one read.
READ_BYTES = 2**20
# Seconds, seconds and a count: notice within about two minutes that a peer has vanished without closing.
KEEP_ALIVE_IDLE, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_COUNT = 60, 15, 4
_KEEP_ALIVE = (
    ("TCP_KEEPIDLE", KEEP_ALIVE_IDLE),
    ("TCP_KEEPINTVL", KEEP_ALIVE_INTERVAL),
    ("TCP_KEEPCNT", KEEP_ALIVE_COUNT),
)


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel ask an idle peer whether it is still there."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in _KEEP_ALIVE:
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)


def listening_socket(address: tuple[str, int], *, backlog: int, is_shared: bool = False) -> socket.socket:
    """Return a socket that listens; ``::`` listens on IPv4 too. Others of this user may share it. Raises OSError."""
    host, port = address
    family, _, _, _, found = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
    )[0]
    # It sets SO_REUSEADDR: a restarted receiver gets its port at once.
    return socket.create_server(
        found[:2],
        family=family,
        backlog=backlog,
        reuse_port=is_shared,
        dualstack_ipv6=host == "::" and socket.has_dualstack_ipv6(),
    )


def check_peer(connection: socket.socket) -> None:
    """Check, before TLS, that the peer is connected. Raises OSError if it is gone.

    In that case ssl would leave the socket open, with no way for us to close it.
    """
    connection.getpeername()


def shut_down(connection: socket.socket) -> None:
    """Shut the connection down, which wakes a read in any thread."""
    try:
        # Not SSLSocket's own method: after that one, a read would return the bytes still encrypted.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        # The peer has closed it already.
        return


def client_context(tls: Tls) -> ssl.SSLContext:
    """Return the TLS context to connect with. Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif tls.ca_file is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_authorities(context, tls.ca_file)
    if tls.certificate_file is not None:
        _load_certificate(context, tls.certificate_file, tls)
    return context


def server_context(tls: Tls) -> ssl.SSLContext:
    """Return the TLS context to listen with. Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_certificate(context, tls.certificate_file or "", tls)
    if tls.ca_file is not None:
        _load_authorities(context, tls.ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise OSError(f"ca_file {path} can't be used: {error}. Give a file of certificates, PEM.") from error


def _load_certificate(context: ssl.SSLContext, path: str, tls: Tls) -> None:
    key_path = tls.key_file
    try:
        password = _no_passphrase if tls.key_password is None else tls.key_password.resolve()
    except SecretError as error:
        raise OSError(f"key_password: {error}") from None
    try:
        context.load_cert_chain(path, key_path, password=password)
    except OSError as error:
        files = path if key_path is None else f"{path} with key_file {key_path}"
        raise OSError(
            f"certificate_file {files} can't be used: {error}. Give a certificate and its own key, PEM, readable "
            "by the receiver, and the key's passphrase, if it has one, as key_password."
        ) from error


def _no_passphrase() -> NoReturn:
    """Raise OSError. Without this callback OpenSSL would ask for the passphrase at the terminal, and wait."""
    raise OSError("the key has a passphrase, and there is no one to type it: give key_password")
