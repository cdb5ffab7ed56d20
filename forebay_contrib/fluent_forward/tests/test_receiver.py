"""Check a Fluent Forward receiver with a real supervisor, files and sockets."""

from __future__ import annotations

import gzip
import socket
import ssl
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from forebay_contrib.fluent_forward.declaration import FluentForward
from forebay_contrib.fluent_forward.records import parse
from forebay_contrib.fluent_forward.tests.forward_client import ForwardClient, encode, entry, packed
from receiver_runtime.block_path.records import schema_of
from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.record_formats.typed_rows import TypedRows
from receiver_runtime.sources.records.json_records import Json
from receiver_runtime.sources.source_registry import parse_source
from receiver_runtime.supervisor.receiver import Receiver
from tests.support import polling
from tests.support.machine.held_ports import held_port
from tests.unit.receiver_runtime.receivers.certificates import Authority
from tests.unit.receiver_runtime.receivers.test_keyed_hand_over import KeyedBlockLog
from tests.unit.receiver_runtime.rig import Rig, rig
from tests.unit.receiver_runtime.support import eventually, reaches
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from forebay_contrib.fluent_forward.messages import Message
    from forebay_contrib.fluent_forward.records import Limits, Origin, Parsed


@contextmanager
def listening(root: Path, *, settings: dict[str, Any] | None = None, **fields: object) -> Iterator[tuple[Rig, int]]:
    """Run a receiver; yield it and its port."""
    source = parse_source({"kind": "fluent_forward", "listen": "127.0.0.1:0", **fields})
    with rig(root, make_receiver(source), log=KeyedBlockLog(), **(settings or {})) as made:
        yield made, port_of(made)


def port_of(made: Rig) -> int:
    eventually(lambda: any(reason.startswith("listening on ") for reason in made.reporter.reasons), "listening")
    return int([r for r in made.reporter.reasons if r.startswith("listening on ")][-1].rpartition(":")[2])


def count(made: Rig) -> int:
    return sum(block.records for block in made.log.chain(1))


def rows(made: Rig) -> list[dict[str, Any]]:
    found = []
    for item in made.log.chain(1):
        handle = item.handle
        for batch in made.store.read_batches(
            made.rows.paths[handle.segment_id], handle.offset, handle.length, handle.crc32c
        ):
            found += batch.to_pylist()
    return found


def errors(made: Rig) -> list[str]:
    return [message for kind, message, _ in made.reporter.events if kind is ReceiverEventKind.ERROR]


def reported(made: Rig, words: str) -> None:
    eventually(lambda: any(words in message for message in errors(made)), words)


def chunk(name: str, *numbers: int) -> list[Any]:
    return ["t", [entry(number) for number in numbers], {"chunk": name, "size": len(numbers)}]


def test_chunks_are_acknowledged_when_registered_and_the_rest_is_stored(tmp_path: Path) -> None:
    with listening(tmp_path) as (made, port), ForwardClient(port) as client:
        client.send(chunk("a", 1, 2), None, ["t", 5, {"n": 3}], ["t", packed(entry(4)), {"chunk": "b"}])
        assert sorted(client.acks(2)) == ["a", "b"]
        eventually(reaches(lambda: count(made), 4))
        assert sorted(row["record"] for row in rows(made)) == [f'{{"n":{number}}}' for number in (1, 2, 3, 4)]
        assert {row["sender"] for row in rows(made)} == {"127.0.0.1"}
        # What is not acknowledged is never sent again: a successor registers it.
        assert set(made.rows.rules.values()) >= {"not_sent_again"}
    assert errors(made) == []


def test_nothing_is_acknowledged_before_it_is_registered(tmp_path: Path) -> None:
    with listening(tmp_path) as (made, port), ForwardClient(port, seconds=1) as client:
        made.log.away = True
        client.send(chunk("a", 1))
        with pytest.raises(TimeoutError):
            client.receive()
        assert count(made) == 0
        # A sender whose time is over sends it again, on another connection.
        with ForwardClient(port) as again:
            again.send(chunk("a", 1))
            made.log.away = False
            assert again.acks(1) == ["a"]
        assert client.acks(1) == ["a"]
        assert count(made) == 1


def test_a_chunk_that_comes_again_is_stored_once(tmp_path: Path) -> None:
    with listening(tmp_path) as (made, port), ForwardClient(port) as client:
        client.send(chunk("a", 1, 2), chunk("a", 1, 2))
        assert client.acks(2) == ["a", "a"]
        client.send(chunk("a", 1, 2))
        assert client.acks(1) == ["a"]
        # Another chunk, whatever its name.
        client.send(chunk("a", 3))
        assert client.acks(1) == ["a"]
        assert sorted(row["record"] for row in rows(made)) == ['{"n":1}', '{"n":2}', '{"n":3}']


def test_without_keys_it_is_stored_again(tmp_path: Path) -> None:
    with listening(tmp_path, key_from=None) as (made, port), ForwardClient(port) as client:
        for _ in range(2):
            client.send(chunk("a", 1), chunk("a", 1))
            assert client.acks(2) == ["a", "a"]
        assert count(made) == 4


def test_a_record_that_is_none_refuses_no_other_and_its_chunk_is_acknowledged(tmp_path: Path) -> None:
    with listening(tmp_path) as (made, port), ForwardClient(port) as client:
        bad = ["t", [entry(1), [1, {"x": b"\xff"}]], {"chunk": "a"}]
        client.send(bad, ["t", b"\xc1", {"chunk": "b"}])
        assert sorted(client.acks(2)) == ["a", "b"]
        # Once, however often it comes.
        client.send(bad)
        assert client.acks(1) == ["a"]
        assert [row["record"] for row in rows(made)] == ['{"n":1}']
        letters = [(reason, data) for reason, _, data in made.dead_letters()]
        assert ("invalid_encoding", encode(["t", [[1, {"x": b"\xff"}]]])) in letters
        assert ("unparsable", b"\xc1") in letters


def test_records_of_a_typed_stream_are_parsed(tmp_path: Path) -> None:
    receiver = make_receiver(parse_source({"kind": "fluent_forward", "listen": "127.0.0.1:0"}))
    typed = TypedRows(Json("n INT", keep=("_tag",)), schema_of(FluentForward.columns), FluentForward.record_column)
    with rig(tmp_path, receiver, log=KeyedBlockLog(), row_check=typed) as made, ForwardClient(port_of(made)) as client:
        client.send(["t", [entry(7), [1, {"n": "no number"}]], {"chunk": "a"}])
        assert client.acks(1) == ["a"]
        assert [(row["n"], row["_tag"]) for row in rows(made)] == [(7, "t")]
        eventually(lambda: [reason for reason, _, _ in made.dead_letters()] == ["does_not_fit"], "the other")


@pytest.mark.parametrize(
    ("key", "user", "password", "reason"),
    [
        ("new key", "ann", "secret", ""),
        ("old key", "ann", "secret", ""),
        ("no key", "ann", "secret", "shared_key mismatch"),
        ("", "ann", "secret", "shared_key mismatch"),
        ("new key", "ann", "wrong", "username/password mismatch"),
        ("new key", "bob", "", "username/password mismatch"),
        ("new key", "", "", "username/password mismatch"),
    ],
)
def test_a_sender_authenticates_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, user: str, password: str, reason: str
) -> None:
    monkeypatch.setenv("ANN", "secret")
    (tmp_path / "keys").write_text("new key\nold key\n", encoding="utf-8")
    secrets: dict[str, Any] = {"shared_key": f"file:{tmp_path}/keys", "users": {"ann": "env:ANN"}}
    with listening(tmp_path / "blocks", hostname="us", **secrets) as (made, port), ForwardClient(port) as client:
        pong = client.authenticate(key, user, password)
        assert pong[:4] == (["PONG", True, "", "us"] if not reason else ["PONG", False, reason, ""])
        client.send(chunk("a", 1))
        assert client.receive() == (None if reason else {"ack": "a"})
        assert errors(made) == (["a sender was refused"] if reason else [])
    assert count(made) == (not reason)


def test_a_sender_that_does_not_authenticate_itself_stores_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "sesame")
    with listening(tmp_path, shared_key="env:KEY", connect_timeout=0.3) as (made, port):
        with ForwardClient(port) as client:
            assert client.receive()[0] == "HELO"
            client.send(chunk("a", 1))
            assert client.receive() == ["PONG", False, "invalid ping message", "", ""]
            assert client.receive() is None
        with ForwardClient(port) as client:
            # Longer than any PING.
            client.socket.sendall(b"\x92\xa1t\xc6\x00\x10\x00\x00")
            reported(made, "a message is too long")
        with ForwardClient(port) as client:
            assert client.receive()[0] == "HELO"
            assert client.receive() is None
            reported(made, "did not authenticate itself in time")
    assert count(made) == 0


def test_a_missing_secret_is_named(tmp_path: Path) -> None:
    receiver = make_receiver(
        parse_source({"kind": "fluent_forward", "listen": "127.0.0.1:0", "shared_key": "env:NOT_SET_ANYWHERE"})
    )
    with rig(tmp_path, receiver, log=KeyedBlockLog()) as made:
        eventually(lambda: any("NOT_SET_ANYWHERE" in reason for reason in made.reporter.reasons), "what is missing")


def test_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    issued = authority.issue("receiver")
    tls = {"certificate_file": issued.certificate_file, "key_file": issued.key_file}
    with listening(tmp_path / "blocks", tls=tls) as (made, port):
        with ForwardClient(port, context=ssl.create_default_context(cafile=authority.ca_file)) as client:
            client.send(chunk("a", *range(2000)))
            assert client.acks(1) == ["a"]
        with ForwardClient(port) as client:
            client.send(chunk("b", 1))
            assert client.receive() is None
        reported(made, "its TLS handshake failed")
    assert count(made) == 2000


def test_a_large_chunk_in_many_reads(tmp_path: Path) -> None:
    content = packed(*(entry(number) for number in range(20_000)))
    with listening(tmp_path) as (made, port), ForwardClient(port) as client:
        client.send(["t", content, {"chunk": "a"}])
        client.send(["t", gzip.compress(content), {"chunk": "b", "compressed": "gzip"}])
        assert client.acks(2) == ["a", "b"]
    assert count(made) == 40_000
    # A chunk's rows have its key in common, so they are in one block.
    assert max(block.records for block in made.log.chain(1)) >= 20_000


def test_others_are_answered_while_what_was_compressed_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others_are_answered = threading.Event()

    def parse_slowly(message: Message, origin: Origin, limits: Limits) -> Parsed:
        if b"compressed" in message.data:
            assert others_are_answered.wait(20)
        return parse(message, origin, limits)

    monkeypatch.setattr("forebay_contrib.fluent_forward.connections.parse", parse_slowly)
    with listening(tmp_path) as (_, port), ForwardClient(port) as client, ForwardClient(port, seconds=5) as other:
        client.send(["t", gzip.compress(packed(entry(1))), {"chunk": "a", "compressed": "gzip"}])
        try:
            for name in "bc":
                other.send(chunk(name, 2))
                assert other.acks(1) == [name]
        finally:
            others_are_answered.set()
        assert client.acks(1) == ["a"]


def test_what_was_compressed_is_not_parsed_while_nothing_is_handed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, may_go_on, parsed = Receiver.store_buffered, threading.Event(), []

    def store_when_allowed(receiver: Receiver, batch: pa.RecordBatch) -> None:
        assert may_go_on.wait(20)
        store(receiver, batch)

    def counted(message: Message, origin: Origin, limits: Limits) -> Parsed:
        parsed.append(origin)
        return parse(message, origin, limits)

    monkeypatch.setattr(Receiver, "store_buffered", store_when_allowed)
    monkeypatch.setattr("forebay_contrib.fluent_forward.connections.parse", counted)
    # 9 MB each: one is handed on, and the next one takes the room.
    content = packed(*([1, {"x": "y" * 900_000}] for _ in range(10)))
    message = ["t", gzip.compress(content, 1), {"compressed": "gzip"}]
    with listening(tmp_path) as (made, port):
        clients = [ForwardClient(port) for _ in range(5)]
        try:
            for client in clients:
                client.send(message)
            eventually(reaches(lambda: len(parsed), 2))
            with pytest.raises(AssertionError):
                polling.eventually(reaches(lambda: len(parsed), 3), "a third one", seconds=0.5)
            may_go_on.set()
            eventually(reaches(lambda: count(made), 50))
        finally:
            may_go_on.set()
            for client in clients:
                client.close()


@pytest.mark.parametrize(
    ("data", "words", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "what came is no message", "unparsable"),
        (encode(chunk("a", 1)) + b"\xc1", "what came is no message", "unparsable"),
        (b"\x92\xa1t\xdb\x7f\xff\xff\xff", "a message is too long", None),
        (b"\x93\xa1t\xc5\xff\xff" + b"x" * 2000, "a message is too long", None),
    ],
)
def test_what_can_not_be_read_closes_its_connection_and_no_other(
    tmp_path: Path, data: bytes, words: str, reason: str | None
) -> None:
    with (
        listening(tmp_path, max_message_bytes=1000, max_record_bytes=1000) as (made, port),
        ForwardClient(port) as other,
        ForwardClient(port) as client,
    ):
        client.socket.sendall(data)
        reported(made, words)
        while client.receive() is not None:
            pass
        if reason:
            eventually(lambda: reason in [found for found, _, _ in made.dead_letters()], "the dead letter")
        other.send(chunk("b", 2))
        assert other.acks(1) == ["b"]


def test_a_message_without_an_end_is_closed(tmp_path: Path) -> None:
    with listening(tmp_path, idle_timeout=0.3) as (made, port):
        with ForwardClient(port) as client:
            client.send(chunk("a", 1))
            client.socket.sendall(encode(chunk("b", 2))[:-1])
            assert client.acks(1) == ["a"]
            assert client.receive() is None
            reported(made, "a message had no end")
        with ForwardClient(port) as client:
            client.socket.sendall(encode(chunk("b", 2))[:-1])
            client.socket.shutdown(socket.SHUT_WR)
            assert client.receive() is None
            reported(made, "a connection ended within a message")
    assert count(made) == 1


def test_a_sender_that_has_ended_its_side_is_still_answered(tmp_path: Path) -> None:
    with listening(tmp_path) as (made, port), ForwardClient(port) as client:
        made.log.away = True
        client.send(chunk("a", 1))
        client.socket.shutdown(socket.SHUT_WR)
        made.log.away = False
        assert client.acks(1) == ["a"]
        assert client.receive() is None


def test_a_sender_that_never_reads_is_read_on(tmp_path: Path) -> None:
    name = "c" * 1000
    with listening(tmp_path) as (made, port), ForwardClient(port, receive_buffer=2**16) as client:
        for first in range(0, 3000, 500):
            client.send(*(chunk(name, number) for number in range(first, first + 500)))
        eventually(reaches(lambda: count(made), 3000))


def refused(port: int) -> bool:
    """Return whether a chunk on a new connection is not acknowledged, because the connection is reset."""
    try:
        with ForwardClient(port) as client:
            client.send(chunk("new", 1))
            return client.receive() is None
    except OSError:
        return True


def test_places_are_limited(tmp_path: Path) -> None:
    with listening(tmp_path, max_connections=2, max_connections_per_peer=1) as (made, port), ForwardClient(port) as one:
        one.send(chunk("a", 1))
        assert one.acks(1) == ["a"]
        assert refused(port)
        reported(made, "a connection was refused: 1 of this peer are open, which is max_connections_per_peer")
        one.send(chunk("b", 2))
        assert one.acks(1) == ["b"]
    assert count(made) == 2


def test_a_silent_connection_gives_its_place(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"max_connections": 2, "max_connections_per_peer": 2, "idle_timeout": 0.5}
    with listening(tmp_path, **limits) as (made, port), ForwardClient(port) as first, ForwardClient(port) as second:
        first.send(chunk("a", 1))
        assert first.acks(1) == ["a"]
        deadline = time.monotonic() + 20
        while refused(port) and time.monotonic() < deadline:
            second.send(chunk("b", 2))
            assert second.acks(1) == ["b"]
        assert first.receive() is None
        reported(made, "it was silent, and a new one needed its place")
        second.send(chunk("b", 2))
        assert second.acks(1) == ["b"]


def test_messages_without_an_end_share_a_limit(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"max_message_bytes": 100_000, "max_waiting_bytes": 100_000, "connect_timeout": 0.3}
    with listening(tmp_path, **limits) as (made, port):
        clients = [ForwardClient(port) for _ in range(3)]
        for client in clients:
            client.socket.sendall(b"\x93\xa1t\xc6\x00\x01\x00\x00" + bytes(60_000))
        reported(made, "there was no room for its message")
        with ForwardClient(port) as other:
            other.send(chunk("a", 1))
            assert other.acks(1) == ["a"]
        for client in clients:
            client.close()


def test_what_was_read_is_acknowledged_at_a_stop(tmp_path: Path) -> None:
    with listening(tmp_path) as (made, port), ForwardClient(port) as client:
        made.log.away = True
        client.send(chunk("a", 1), ["t", 1, {"n": 2}])
        eventually(lambda: made.log.calls, "a block on its way")
        made.log.away = False
        assert made.stop().drained
        assert client.receive() == {"ack": "a"}
        assert client.receive() is None
    assert sorted(row["record"] for row in rows(made)) == ['{"n":1}', '{"n":2}']


def test_a_receiver_that_is_fenced_acknowledges_nothing(tmp_path: Path) -> None:
    with listening(tmp_path) as (made, port), ForwardClient(port) as client:
        made.log.fence.add(1)
        client.send(chunk("a", 1))
        assert client.receive() is None
    assert count(made) == 0


def test_heartbeats_by_udp(tmp_path: Path) -> None:
    with held_port() as port:
        pass
    with (
        listening(tmp_path, udp_heartbeat=True, listen=f"127.0.0.1:{port}"),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking,
    ):
        asking.settimeout(20)
        asking.connect(("127.0.0.1", port))
        # Only a heartbeat has an answer.
        asking.send(b"other")
        asking.send(b"\0")
        assert asking.recv(10) == b"\0"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"listen": "24224"}, "is no address to listen on"),
        ({"users": {"ann": "env:ANN"}}, "give shared_key too"),
        ({"shared_key": "literal"}, "given by reference"),
        ({"tls": True}, "give certificate_file"),
        ({"tls": {"certificate_file": "/c", "verify": False}}, "are a client's"),
        ({"max_waiting_bytes": "1MiB"}, "no room for one message"),
        ({"udp_heartbeat": True, "listen": "127.0.0.1:0"}, "name a port"),
        ({"key_from": "body:/id"}, "key_from"),
    ],
)
def test_a_declaration_is_checked(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as raised:
        parse_source({"kind": "fluent_forward", "listen": "0.0.0.0:24224", **fields})
    assert "literal" not in str(raised.value)
