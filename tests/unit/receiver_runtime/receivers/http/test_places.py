"""Check that no peer takes all connections, that each counts from its acceptance, and that /health is answered."""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
from typing import TYPE_CHECKING

import pytest

from receiver_runtime.receivers.connection_places import ConnectionPlaces, peer_of
from receiver_runtime.receivers.http.connections import accepting
from receiver_runtime.receivers.http.connections import connections as http_connections
from receiver_runtime.sources.fields.tcp import Tls, most_per_peer
from tests.unit.receiver_runtime.receivers.certificates import Authority
from tests.unit.receiver_runtime.receivers.http.http_client import SECONDS, Listening, listening
from tests.unit.receiver_runtime.receivers.sockets.test_listener import is_closed
from tests.unit.receiver_runtime.support import eventually
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from pathlib import Path

ASK = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /v1/orders HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nContent-Length: 1\r\n\r\n"


def silent(made: Listening, stack: contextlib.ExitStack, host: str = "127.0.0.1") -> socket.socket:
    """Connect from `host`, an address of this machine, and send nothing."""
    return stack.enter_context(
        socket.create_connection(("127.0.0.1", made.port), timeout=SECONDS, source_address=(host, 0))
    )


def said(made: Listening, words: str) -> bool:
    return any(words in message for kind, message, _ in made.rig.reporter.events if kind is ReceiverEventKind.ERROR)


@pytest.mark.parametrize(
    ("host", "peer"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2::", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("", ""),
    ],
)
def test_a_peer_is_a_host_or_an_ipv6_network(host: str, peer: str) -> None:
    assert peer_of(host) == peer


@pytest.mark.parametrize(("most", "asked", "wanted"), [(500, None, 400), (3, None, 3), (1, None, 1), (500, 7, 7)])
def test_one_peer_has_at_most_four_fifths(most: int, asked: int | None, wanted: int) -> None:
    assert most_per_peer(most, asked) == wanted


def test_places_are_counted_in_all_and_by_peer() -> None:
    places = ConnectionPlaces(most=3, most_per_peer=2)
    for _ in range(2):
        assert places.why_full("a") is None
        places.take("a")
    assert "max_connections_per_peer" in (places.why_full("a") or "")
    assert places.why_full("b") is None
    places.take("b")
    assert places.why_full("c") == "3 are open, which is max_connections"
    for peer in ("a", "a", "b"):
        places.release(peer)
    assert (places.taken, places.why_full("a")) == (0, None)


def test_health_is_answered_whatever_others_hold_and_nothing_else_is(tmp_path: Path) -> None:
    with listening(tmp_path, max_connections=3) as made, contextlib.ExitStack() as stack:
        for _ in range(3):
            silent(made, stack)
        for _ in range(2 * accepting._MOST_ON_TRIAL):
            silent(made, stack)
        assert made.ask("GET", "/health").status == 200
        assert made.ask("GET", "/ready").status == 200
        # What comes behind the question is not answered.
        assert made.raw(ASK + ASK + POST + b"1").count(b"HTTP/1.1 ") == 1
        assert made.raw(POST + b"1").startswith(b"HTTP/1.1 503 ")
        assert made.raw(b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n").startswith(b"HTTP/1.1 503 ")
        eventually(lambda: said(made, "3 are open, which is max_connections"), "the event")
        assert made.bodies() == []


def test_a_connection_beyond_the_limit_that_asks_nothing_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connections, "_TRIAL_SECONDS", 0.2)
    with listening(tmp_path, max_connections=1) as made, contextlib.ExitStack() as stack:
        silent(made, stack)
        assert made.raw(b"").startswith(b"HTTP/1.1 503 ")
        assert made.raw(b"GET /hea").startswith(b"HTTP/1.1 503 ")


def test_one_peer_leaves_places_to_others(tmp_path: Path) -> None:
    with listening(tmp_path, max_connections=10, max_connections_per_peer=2) as made, contextlib.ExitStack() as stack:
        for _ in range(2):
            silent(made, stack)
        assert made.raw(POST + b"1").startswith(b"HTTP/1.1 503 ")
        assert said(made, "2 of this peer are open, which is max_connections_per_peer")
        other = silent(made, stack, "127.0.0.2")
        other.sendall(POST + b"2")
        assert other.recv(65536).startswith(b"HTTP/1.1 200 ")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def test_half_made_handshakes_count_and_end_in_time(tmp_path: Path, authority: Authority) -> None:
    certificate = authority.issue("receiver.test")
    tls = Tls(certificate_file=certificate.certificate_file, key_file=certificate.key_file)
    context = ssl.create_default_context(cafile=authority.ca_file)
    with (
        listening(tmp_path, max_connections=2, tls=tls, head_timeout="2s", context=context) as made,
        contextlib.ExitStack() as stack,
    ):
        held = [silent(made, stack) for _ in range(2)]
        # Both places are taken, by connections that have sent nothing of their handshake.
        with contextlib.suppress(OSError):
            assert made.post(b"1").status == 503
        assert made.ask("GET", "/health").status == 200
        for one in held:
            assert is_closed(one)

        def is_let_in() -> bool:
            with contextlib.suppress(OSError):
                return made.post(b"1").status == 200
            return False

        eventually(is_let_in, "room")


def test_running_out_of_descriptors_is_reported_and_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "_EXHAUSTED_PAUSE", 0.01)
    left = [2]

    class Exhausted(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            if left[0]:
                left[0] -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    def create_server(*args: object, **options: object) -> socket.socket:
        made = real_create_server(*args, **options)  # type: ignore[arg-type]
        return Exhausted(made.family, made.type, made.proto, fileno=made.detach())

    real_create_server = socket.create_server
    monkeypatch.setattr(socket, "create_server", create_server)
    with listening(tmp_path) as made:
        assert made.ask("GET", "/health").status == 200
        eventually(lambda: not left[0])
        details = [detail for kind, _, detail in made.rig.reporter.events if kind is ReceiverEventKind.ERROR]
        assert len(details) == 2
        assert all("this process may have" in detail for detail in details)
