"""A receiver of ZeroMQ, with a real supervisor, files and sockets, and pyzmq as a sender."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import zmq

from forebay_contrib.zeromq import client
from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.sources.source_registry import parse_source
from tests.unit.receiver_runtime.rig import Rig, rig
from tests.unit.receiver_runtime.support import eventually, reaches
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from receiver_runtime.supervisor.receiver import Receiver

ANY = "tcp://127.0.0.1:*"
_SECONDS = 30


class Senders:
    """PUSH sockets that connect; they are open until the test's end."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._made: list[zmq.Socket[bytes]] = []

    def make(self) -> zmq.Socket[bytes]:
        made = self.context.socket(zmq.PUSH)
        made.sndtimeo = _SECONDS * 1000
        made.ipv6 = True
        self._made.append(made)
        return made

    def connect(self, endpoint: str) -> zmq.Socket[bytes]:
        made = self.make()
        made.connect(endpoint)
        return made


@pytest.fixture
def senders() -> Iterator[Senders]:
    made = Senders()
    yield made
    made.context.destroy(linger=0)


@contextmanager
def bound(kind: int, endpoint: str = ANY) -> Iterator[tuple[zmq.Socket[bytes], str]]:
    """Make a sender's socket that listens; at the end all that was sent is with the receivers' kernel."""
    context = zmq.Context()
    made = context.socket(kind)
    made.sndtimeo = _SECONDS * 1000
    made.bind(endpoint)
    try:
        yield made, made.getsockopt_string(zmq.LAST_ENDPOINT)
    finally:
        context.destroy(linger=_SECONDS * 1000)


def zeromq(endpoint: str | list[str], socket: str, **fields: object) -> Receiver:
    return make_receiver(parse_source({"kind": "zeromq", "endpoints": endpoint, "socket": socket, **fields}))


def has_shown(made: Rig, words: str, *, since: int) -> bool:
    return any(words in reason for reason in made.reporter.reasons[since:])


def rows(made: Rig) -> list[tuple[Any, ...]]:
    found = []
    for item in made.log.chain(1):
        handle = item.handle
        for batch in made.store.read_batches(
            made.rows.paths[handle.segment_id], handle.offset, handle.length, handle.crc32c
        ):
            found += [tuple(row.values()) for row in batch.to_pylist()]
    return found


def bodies(made: Rig) -> list[bytes]:
    return [row[1] for row in rows(made)]


def where(made: Rig) -> str:
    """Return the endpoint that it listens at."""
    eventually(lambda: any(reason.startswith("listening on ") for reason in made.reporter.reasons), "listening")
    return [r for r in made.reporter.reasons if r.startswith("listening on ")][-1].removeprefix("listening on ")


def said(made: Rig, kind: ReceiverEventKind, words: str) -> bool:
    return any(found is kind and words in f"{message} {detail}" for found, message, detail in made.reporter.events)


def test_a_subscriber_has_the_messages_of_its_topics(tmp_path: Path) -> None:
    # An XPUB is a PUB that sees who subscribes.
    with bound(zmq.XPUB) as (sender, endpoint), rig(tmp_path, zeromq(endpoint, "sub", topics=["a", "b/"])) as made:
        assert {sender.recv(), sender.recv()} == {b"\x01a", b"\x01b/"}
        for frames in ([b"a", b"1"], [b"c", b"no"], [b"b", b"no"], [b"b/x", b"2", b"3"], [b"a 4"]):
            sender.send_multipart(frames)
        eventually(lambda: len(rows(made)) == 3, "messages")
        assert rows(made) == [(b"a", b"1", []), (b"b/x", b"2", [b"3"]), (None, b"a 4", [])]
        assert said(made, ReceiverEventKind.CONNECTED, f"connected to {endpoint}")


def test_it_listens_for_several_senders_at_several_endpoints(tmp_path: Path, senders: Senders) -> None:
    receiver = zeromq("", "pull", endpoints=[ANY, ANY.replace("127.0.0.1", "[::1]")], bind=True)
    with rig(tmp_path, receiver) as made:
        for endpoint in where(made).split(","):
            for number in (b"1", b"2"):
                senders.connect(endpoint).send_multipart([number, b"\xff", b""])
        eventually(lambda: len(rows(made)) == 4, "messages")
        assert sorted(rows(made)) == sorted(2 * [(None, b"1", [b"\xff", b""]), (None, b"2", [b"\xff", b""])])


def test_what_is_too_large_goes_aside_and_holds_nothing_up(tmp_path: Path) -> None:
    with bound(zmq.PUSH) as (sender, endpoint), rig(tmp_path, zeromq(endpoint, "pull", max_record_bytes=4)) as made:
        for frames in ([b"good"], [b"abc", b"de"], [b"more"]):
            sender.send_multipart(frames)
        eventually(lambda: bodies(made) == [b"good", b"more"], "the others")
        assert made.dead_letters() == [("record_too_large", 0, b"abcde")]


def test_x11_a_stop_hands_on_what_the_library_holds(tmp_path: Path, senders: Senders) -> None:
    receiver = zeromq(ANY, "pull", bind=True, high_water_mark=10_000)
    with rig(tmp_path, receiver, receiver_max_rate=10) as made:
        sender = senders.connect(where(made))
        for number in range(200):
            sender.send(b"%d" % number)
        # From here on the receiver waits for the rate with what it has read, and reads no more.
        eventually(lambda: rows(made), "a first one")
        for number in range(200, 5000):
            sender.send(b"%d" % number)
        # Returns when the kernel has all of it.
        senders.context.destroy(linger=_SECONDS * 1000)
        assert len(rows(made)) < 200
        made.stop()
        assert bodies(made) == [b"%d" % number for number in range(5000)]


def test_a_receiver_that_takes_no_more_stops_its_senders_and_loses_nothing(tmp_path: Path, senders: Senders) -> None:
    receiver = zeromq(ANY, "pull", bind=True, high_water_mark=10)
    with rig(tmp_path, receiver, max_block_bytes="64KiB", block_queue_size=1) as made:
        made.log.away = True
        sender = senders.make()
        sender.sndhwm = 10
        sender.connect(where(made))
        sent = 0
        # Until a buffer of the kernel's has been full for a while.
        while sender.poll(1000, zmq.POLLOUT):
            sender.send(b"%08d" % sent + bytes(2**14))
            sent += 1
        made.log.away = False
        eventually(lambda: len(rows(made)) == sent, "all of them")
        assert [int(body[:8]) for body in bodies(made)] == list(range(sent))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_it_connects_again_by_itself_and_says_so(tmp_path: Path, host: str) -> None:
    with bound(zmq.PUSH) as (_, endpoint):
        port = endpoint.rpartition(":")[2]
    with rig(tmp_path, zeromq(f"tcp://{host}:{port}", "pull")) as made:
        eventually(lambda: said(made, ReceiverEventKind.ERROR, f":{port} can't be reached"), "that it is not there")
        eventually(lambda: made.reporter.reasons[-1].startswith("degraded: "), "the status")
        assert f":{port} can't be reached" in made.reporter.reasons[-1]
        names = (f"connected to {endpoint}", f"connected to tcp://{host}:{port}")
        for number in (1, 2):
            with bound(zmq.PUSH, endpoint) as (sender, _):
                sender.send(b"%d" % number)
                eventually(reaches(lambda: len(rows(made)), number), "a message")
                eventually(lambda: made.reporter.reasons[-1] in names, "the status")
                shown = len(made.reporter.reasons)
            eventually(partial(has_shown, made, "the connection was lost", since=shown), "the status")
            eventually(lambda: said(made, ReceiverEventKind.ERROR, "the connection was lost"), "that it was lost")
        assert bodies(made) == [b"1", b"2"]
        assert made.reporter.kinds().count(ReceiverEventKind.CONNECTED) == 2
        assert ReceiverEventKind.RESTARTED not in made.reporter.kinds()


def test_it_is_degraded_until_all_its_senders_are_connected(tmp_path: Path) -> None:
    with bound(zmq.PUSH) as (_, first), bound(zmq.PUSH) as (_, second):
        pass
    with rig(tmp_path, zeromq([first, second], "pull")) as made:
        for endpoint in (first, second):
            eventually(partial(said, made, ReceiverEventKind.ERROR, f"{endpoint} can't be reached"), "the report")
        with bound(zmq.PUSH, first):
            eventually(lambda: made.reporter.kinds().count(ReceiverEventKind.CONNECTED) == 1, "one of them")
            assert made.reporter.reasons[-1].startswith("degraded: ")
            with bound(zmq.PUSH, second):
                eventually(lambda: made.reporter.reasons[-1] == f"connected to {second}", "the other one")


def test_handshakes_that_fail_again_and_again_are_events_of_one_kind(tmp_path: Path) -> None:
    """A server that does not speak ZeroMQ: the library tries ten times a second, the reporter counts the repeats."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        with rig(tmp_path, zeromq(f"tcp://127.0.0.1:{server.getsockname()[1]}", "pull")) as made:
            for _ in range(8):
                connection, _peer = server.accept()
                with connection:
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
            eventually(lambda: said(made, ReceiverEventKind.ERROR, "handshake failed"), "the report")
            told = [message for kind, message, _ in made.reporter.events if kind is ReceiverEventKind.ERROR]
            assert len({message for message in told if "can't be reached" not in message}) == 1, told


@pytest.mark.parametrize("said_first", [b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"220 mail.example.com ESMTP\r\n"])
def test_a_server_that_is_not_a_sender_is_shown_though_it_keeps_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said_first: bytes
) -> None:
    """The library takes another protocol's first byte for that of a sender of 2011, and then waits without end."""
    monkeypatch.setattr(client, "_HANDSHAKE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server, bound(zmq.PUSH) as (sender, endpoint):
        server.settimeout(20)
        port = server.getsockname()[1]
        with rig(tmp_path, zeromq([f"tcp://127.0.0.1:{port}", endpoint], "pull")) as made:
            connection, _peer = server.accept()
            with connection:
                connection.sendall(said_first)
                eventually(lambda: said(made, ReceiverEventKind.ERROR, f":{port} accepts connections"), "the report")
                eventually(lambda: made.reporter.reasons[-1].startswith("degraded: "), "the status")
                sender.send(b"good")
                eventually(lambda: bodies(made) == [b"good"], "the other sender's message")


def test_an_address_in_use_is_tried_again(tmp_path: Path, senders: Senders) -> None:
    with ExitStack() as stack:
        with bound(zmq.PULL) as (_, endpoint):
            made = stack.enter_context(rig(tmp_path, zeromq(endpoint, "pull", bind=True)))
            eventually(lambda: said(made, ReceiverEventKind.RESTARTED, "Address already in use"), "a restart")
        senders.connect(where(made)).send(b"x")
        eventually(lambda: bodies(made) == [b"x"], "a message")


@pytest.mark.parametrize("taken_by", ["a file", "a listener"])
def test_a_path_that_is_taken_is_refused_and_stays(tmp_path: Path, taken_by: str) -> None:
    """The library would delete what is at the path, without an error."""
    path = tmp_path / "taken"
    with ExitStack() as stack:
        if taken_by == "a file":
            path.write_text("data", encoding="utf-8")
        else:
            listening = stack.enter_context(socket.socket(socket.AF_UNIX))
            listening.bind(str(path))
            listening.listen()
        inode = path.stat().st_ino
        with rig(tmp_path, zeromq(f"ipc://{path}", "pull", bind=True)) as made:
            eventually(lambda: ReceiverEventKind.RESTARTED in made.reporter.kinds(), "a restart")
        assert path.stat().st_ino == inode


def test_a_socket_that_listens_encrypts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, senders: Senders) -> None:
    public, secret = zmq.curve_keypair()
    monkeypatch.setenv("ZEROMQ_KEY", secret.decode())
    with rig(tmp_path, zeromq(ANY, "pull", bind=True, curve_secret_key="env:ZEROMQ_KEY")) as made:
        for server_key, body in ((zmq.curve_keypair()[0], b"no"), (None, b"no"), (public, b"yes")):
            sender = senders.make()
            if server_key is not None:
                sender.curve_publickey, sender.curve_secretkey = zmq.curve_keypair()
                sender.curve_serverkey = server_key
            sender.connect(where(made))
            sender.send(body)
        eventually(lambda: rows(made), "a message")
        eventually(lambda: said(made, ReceiverEventKind.ERROR, "the ZeroMQ handshake failed"), "a refusal")
        assert bodies(made) == [b"yes"]


@pytest.mark.parametrize("own_key", [True, False])
def test_a_socket_that_connects_encrypts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    senders: Senders,
    own_key: bool,
) -> None:
    public, secret = zmq.curve_keypair()
    monkeypatch.setenv("ZEROMQ_KEY", zmq.curve_keypair()[1].decode())
    sender = senders.make()
    sender.curve_publickey, sender.curve_secretkey, sender.curve_server = public, secret, True
    sender.bind(ANY)
    fields = {"curve_secret_key": "env:ZEROMQ_KEY"} if own_key else {}
    endpoint = sender.getsockopt_string(zmq.LAST_ENDPOINT)
    with rig(tmp_path, zeromq(endpoint, "pull", curve_server_key=public.decode(), **fields)) as made:
        sender.send(b"secret")
        eventually(lambda: bodies(made) == [b"secret"], "a message")


@pytest.mark.parametrize(("key", "words"), [("", "ZEROMQ_KEY is not set"), ("hunter2", "holds no key: write 40")])
def test_a_key_that_is_none_is_said_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, words: str
) -> None:
    monkeypatch.setenv("ZEROMQ_KEY", key)
    with rig(tmp_path, zeromq(ANY, "pull", bind=True, curve_secret_key="env:ZEROMQ_KEY")) as made:
        eventually(lambda: said(made, ReceiverEventKind.RESTARTED, words), "a restart")
        assert not [event for event in made.reporter.events if "hunter2" in str(event)]


def test_starts_and_stops_leave_nothing_behind(tmp_path: Path) -> None:
    def threads() -> int:
        return sum(thread.name.startswith("zeromq") for thread in threading.enumerate())

    with bound(zmq.PUSH) as (_, endpoint), rig(tmp_path, zeromq(endpoint, "pull")) as made:
        eventually(lambda: made.reporter.reasons, "a connection")
        for number in range(3):
            made.attached.restart_receiver(f"test {number}", None, None)
            eventually(reaches(lambda: made.reporter.kinds().count(ReceiverEventKind.CONNECTED), number + 2), "it")
        assert threads() == 1
        made.stop()
        assert threads() == 0
