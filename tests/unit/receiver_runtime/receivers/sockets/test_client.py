"""Check a receiver that connects, with TLS and with records of bytes; test_text.py has plain text."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from typing import TYPE_CHECKING

import pytest

from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.receivers.sockets import client as socket_client
from receiver_runtime.receivers.sockets.client import NO_MORE_DATA
from receiver_runtime.receivers.sockets.raw_declaration import RawSocket
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from receiver_runtime.sources.fields.tcp import Tls
from tests.unit.receiver_runtime.receivers.certificates import Authority, Certificate
from tests.unit.receiver_runtime.rig import Rig, rig
from tests.unit.receiver_runtime.support import eventually
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(20)
        yield made


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Certificate:
    return authority.issue("server.test")


def server_context(certificate: Certificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate_file, certificate.key_file)
    return context


def accept(listener: socket.socket) -> socket.socket:
    connection, _ = listener.accept()
    connection.settimeout(20)
    return connection


def serve_by_tls(listener: socket.socket, context: ssl.SSLContext, data: bytes) -> None:
    with context.wrap_socket(accept(listener), server_side=True) as connection:
        connection.sendall(data)
        with contextlib.suppress(OSError):
            connection.unwrap()


def framed(*values: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(value)) + value for value in values)


def raw_values(made: Rig) -> list[object]:
    return list(made.values())


def source_of(listener: socket.socket, **fields: object) -> SocketText:
    return SocketText.model_validate({"host": "127.0.0.1", "port": listener.getsockname()[1]} | fields)


def test_x02_records_of_bytes_arrive_and_a_hang_up_is_called_again(listener: socket.socket, tmp_path: Path) -> None:
    receiver = make_receiver(RawSocket(host="127.0.0.1", port=listener.getsockname()[1]))
    with rig(tmp_path, receiver) as made:
        with accept(listener) as connection:
            connection.sendall(framed(b"\x00\xff", b"", b"x" * 100_000) + b"\0\0\0\7part")
        with accept(listener) as connection:
            connection.sendall(framed(b"again"))
            eventually(lambda: raw_values(made) == [b"\x00\xff", b"", b"x" * 100_000, b"again"])
        assert made.dead_letters() == [("truncated", 0, b"\0\0\0\7part")]
        assert (ReceiverEventKind.RESTARTED, NO_MORE_DATA, "") in made.reporter.events


def test_x02_a_server_that_sends_no_lengths_is_left_and_called_again(listener: socket.socket, tmp_path: Path) -> None:
    receiver = make_receiver(RawSocket(host="127.0.0.1", port=listener.getsockname()[1]))
    with rig(tmp_path, receiver) as made:
        with accept(listener) as connection:
            connection.sendall(framed(b"good") + b"HTTP/1.1 400 Bad Request\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                assert connection.recv(1) == b""
        with accept(listener) as connection:
            connection.sendall(framed(b"better"))
            eventually(lambda: raw_values(made) == [b"good", b"better"])
        [(reason, _, data)] = made.dead_letters()
        assert (reason, data[:4]) == ("invalid_length", b"HTTP")
        assert any("does not send records with their length" in m for _, m, _ in made.reporter.events)


def test_lines_over_tls_from_a_verified_server(
    listener: socket.socket, tmp_path: Path, authority: Authority, certificate: Certificate
) -> None:
    source = source_of(listener, tls=Tls(ca_file=authority.ca_file))
    with rig(tmp_path, make_receiver(source)) as made:
        expected = [f"line {n}" for n in range(50_000)]
        serve_by_tls(listener, server_context(certificate), "\n".join(expected).encode())
        # The last line has no newline, but the server ended the stream as TLS requires.
        eventually(lambda: len(made.values()) == 50_000)
        assert made.values() == expected
        assert made.dead_letters() == []


def test_a_tls_connection_that_breaks_off_does_not_complete_a_line(
    listener: socket.socket, tmp_path: Path, authority: Authority, certificate: Certificate
) -> None:
    source = source_of(listener, tls=Tls(ca_file=authority.ca_file))
    with rig(tmp_path, make_receiver(source)) as made:
        with server_context(certificate).wrap_socket(accept(listener), server_side=True) as connection:
            connection.sendall(b"whole\nhalf")
        eventually(lambda: made.values() and made.dead_letters())
        assert (made.values(), made.dead_letters()) == (["whole"], [("truncated", 0, b"half")])
        eventually(lambda: (ReceiverEventKind.RESTARTED, NO_MORE_DATA, "") in made.reporter.events)


@pytest.mark.parametrize(
    ("tls", "message"),
    [
        ({}, "CERTIFICATE_VERIFY_FAILED"),
        ({"ca_file": "CA", "server_hostname": "other.test"}, "Hostname mismatch"),
        ({"ca_file": "/nowhere/ca.pem"}, "OSError: ca_file /nowhere/ca.pem can't be used"),
    ],
)
def test_a_server_that_fails_verification_is_not_read(
    listener: socket.socket,
    tmp_path: Path,
    authority: Authority,
    certificate: Certificate,
    tls: dict[str, str],
    message: str,
) -> None:
    fields = {name: authority.ca_file if value == "CA" else value for name, value in tls.items()}
    with rig(tmp_path, make_receiver(source_of(listener, tls=fields))) as made:
        if "nowhere" not in message:
            with contextlib.suppress(OSError):
                serve_by_tls(listener, server_context(certificate), b"forged\n")
        eventually(lambda: any(message in reason for reason in made.reporter.reasons), message)
        assert made.values() == []


def test_a_server_that_closes_before_tls_begins_leaves_no_socket_open(
    listener: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def go(connection: socket.socket) -> None:
        with accept(listener) as accepted:
            # Close with a reset.
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    monkeypatch.setattr(socket_client, "keep_alive", go)
    with rig(tmp_path, make_receiver(source_of(listener, tls=Tls(verify=False)))) as made:
        # A socket left open would raise a warning, which is an error here.
        eventually(lambda: len(made.reporter.events) >= 3)
        assert all(message.startswith("Error connecting to ") for _, message, _ in made.reporter.events)


@pytest.mark.parametrize("checks", [True, False])
def test_a_server_with_another_name_or_without_verification_is_read(
    listener: socket.socket, tmp_path: Path, authority: Authority, certificate: Certificate, checks: bool
) -> None:
    tls = Tls(ca_file=authority.ca_file, server_hostname="server.test") if checks else Tls(verify=False)
    with rig(tmp_path, make_receiver(source_of(listener, tls=tls))) as made:
        serve_by_tls(listener, server_context(certificate), b"hello\n")
        eventually(lambda: made.values() == ["hello"])


def test_a_server_that_requires_a_certificate_gets_ours(
    listener: socket.socket, tmp_path: Path, authority: Authority, certificate: Certificate
) -> None:
    ours = authority.issue("client.test")
    tls = Tls(ca_file=authority.ca_file, certificate_file=ours.certificate_file, key_file=ours.key_file)
    context = server_context(certificate)
    context.load_verify_locations(authority.ca_file)
    context.verify_mode = ssl.CERT_REQUIRED
    with rig(tmp_path, make_receiver(source_of(listener, tls=tls))) as made:
        serve_by_tls(listener, context, b"for you\n")
        eventually(lambda: made.values() == ["for you"])


def test_a_stop_in_mid_stream_over_tls_stores_no_ciphertext(
    listener: socket.socket, tmp_path: Path, authority: Authority, certificate: Certificate
) -> None:
    source = source_of(listener, tls=Tls(ca_file=authority.ca_file))
    with rig(tmp_path, make_receiver(source)) as made:
        with server_context(certificate).wrap_socket(accept(listener), server_side=True) as connection:
            with contextlib.suppress(OSError):
                for _ in range(200):
                    connection.sendall(b"0123456789\n" * 5000)
                    if made.log.chain(1):
                        break
            assert made.stop().drained
        assert set(made.values()) == {"0123456789"}
        assert all(b"0123456789\n".startswith(data) for _, _, data in made.dead_letters())


def test_another_delimiter_and_encoding(listener: socket.socket, tmp_path: Path) -> None:
    source = source_of(listener, delimiter=b"\x1e\r\n", encoding="cp1252")
    with rig(tmp_path, make_receiver(source)) as made:
        with accept(listener) as connection:
            for byte in "fünf €\x1e\r\na\nb\x1e\r\x1e\r\n".encode("cp1252"):
                connection.sendall(bytes([byte]))
        eventually(lambda: made.values() == ["fünf €", "a\nb\x1e\r"])
