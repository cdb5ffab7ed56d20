"""Check a GELF receiver with a real supervisor, files and sockets, and pygelf's handlers as senders."""

from __future__ import annotations

import json
import logging
import socket
import struct
import zlib
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pygelf
import pytest

from forebay_contrib.gelf.declaration import Gelf
from receiver_runtime.block_path.records import schema_of
from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.record_formats.typed_rows import TypedRows
from receiver_runtime.sources.records.json_records import Json
from receiver_runtime.sources.source_registry import parse_source
from tests.support.machine.held_ports import held_port
from tests.unit.receiver_runtime.receivers.certificates import Authority
from tests.unit.receiver_runtime.receivers.http.http_client import listening
from tests.unit.receiver_runtime.rig import Rig, rig
from tests.unit.receiver_runtime.support import eventually, reaches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from receiver_runtime.supervisor.receiver import Receiver

HOST = "127.0.0.1"


def gelf(*transports: str, **fields: object) -> Receiver:
    return make_receiver(parse_source({"kind": "gelf", "listen": f"{HOST}:0", "transports": transports, **fields}))


def port_of(made: Rig) -> int:
    eventually(lambda: any(reason.startswith("listening on ") for reason in made.reporter.reasons), "listening")
    return int([r for r in made.reporter.reasons if r.startswith("listening on ")][-1].rpartition(":")[2])


def records(made: Rig) -> int:
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


@contextmanager
def logger_to(handler: logging.Handler) -> Iterator[logging.Logger]:
    """Return a logger that writes to one handler."""
    made = logging.getLogger(f"{__name__}.{id(handler)}")
    made.setLevel(logging.DEBUG)
    made.propagate = False
    made.addHandler(handler)
    yield made
    made.removeHandler(handler)
    handler.close()


def chunks(payload: bytes, message_id: bytes, size: int) -> list[bytes]:
    parts = [payload[place : place + size] for place in range(0, len(payload), size)]
    return [b"\x1e\x0f" + message_id + bytes((n, len(parts))) + part for n, part in enumerate(parts)]


@pytest.mark.parametrize("compress", [True, False])
def test_pygelf_over_udp_whole_and_in_chunks(tmp_path: Path, compress: bool) -> None:
    long = " ".join(str(n**3) for n in range(3000))
    with rig(tmp_path, gelf("udp")) as made:
        handler = pygelf.GelfUdpHandler(HOST, port_of(made), compress=compress, chunk_size=500, debug=True, _shop="x")
        with logger_to(handler) as logger:
            logger.info("short")
            logger.warning(long)
            logger.error("über", exc_info=ValueError("wrong"))
        eventually(reaches(lambda: records(made), 3))
        found = rows(made)
    texts = [json.loads(row["value"]) for row in found]
    assert [text["short_message"] for text in texts] == ["short", long, "über"]
    assert [text["level"] for text in texts] == [6, 4, 3]
    assert "ValueError: wrong" in texts[2]["full_message"]
    assert {text["_shop"] for text in texts} == {"x"}
    assert {row["sender"] for row in found} == {HOST}


def test_pygelf_over_tcp_and_tls_of_many_senders(tmp_path: Path) -> None:
    with rig(tmp_path / "plain", gelf("tcp")) as made:
        port = port_of(made)
        senders = [pygelf.GelfTcpHandler(HOST, port, _number=number) for number in range(20)]
        with ExitStack() as opened:
            loggers = [opened.enter_context(logger_to(sender)) for sender in senders]
            for n in range(25):
                for logger in loggers:
                    logger.info("message %d\nof two lines", n)
        eventually(reaches(lambda: records(made), 500))
        by_sender: dict[int, list[str]] = {}
        for row in rows(made):
            text = json.loads(row["value"])
            by_sender.setdefault(text["_number"], []).append(text["short_message"])
    assert by_sender == {number: [f"message {n}\nof two lines" for n in range(25)] for number in range(20)}
    certificate = Authority(tmp_path / "authority").issue("receiver.test")
    tls = {"certificate_file": certificate.certificate_file, "key_file": certificate.key_file}
    with rig(tmp_path / "tls", gelf("tcp", tls=tls)) as made:
        handler = pygelf.GelfTlsHandler(host=HOST, port=port_of(made))
        with logger_to(handler) as logger:
            logger.error("secret")
        eventually(reaches(lambda: records(made), 1))
        assert json.loads(rows(made)[0]["value"])["short_message"] == "secret"


# It closes no connection.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("compress", [True, False])
def test_pygelf_over_http(tmp_path: Path, compress: bool) -> None:
    """It names two encodings and uses one. It leaves without the answer, so that any single message may be lost."""
    with listening(tmp_path, protocols="gelf") as made:
        with logger_to(pygelf.GelfHttpHandler(HOST, made.port, compress=compress)) as logger:

            def has_come() -> bool:
                logger.info("a message")
                return len(made.bodies()) > 0

            eventually(has_come, "a message")
        found = made.rows()
    assert {json.loads(row["body"])["short_message"] for row in found} == {"a message"}
    assert {(row["path"], row["content_type"]) for row in found} == {("/gelf", "application/json")}


def test_a_typed_stream_has_the_members_as_columns(tmp_path: Path) -> None:
    declared = Json("host STRING, short_message STRING NOT NULL, level INT, timestamp DOUBLE, _user STRING", raw=True)
    check = TypedRows(declared, schema_of(Gelf.columns), Gelf.record_column)
    with rig(tmp_path, gelf("tcp"), row_check=check) as made:
        with socket.create_connection((HOST, port_of(made)), timeout=20) as sender:
            sender.sendall(
                b'{"version":"1.1","host":"h","short_message":"m","timestamp":1.5,"level":1,"_user":"ann"}\0'
            )
            eventually(reaches(lambda: records(made), 1))
        [row] = rows(made)
    assert (row["host"], row["short_message"], row["level"], row["timestamp"]) == ("h", "m", 1, 1.5)
    assert (row["_user"], row["_sender"]) == ("ann", HOST)


def test_what_is_no_message_is_a_dead_letter_and_refuses_no_neighbour(tmp_path: Path) -> None:
    good = b'{"short_message":"good"}'
    bad = [b"no json", b'{"host":"h"}', b'{"host":1,"short_message":"m"}', b'{"short_message":"m","_a":"\xff"}']
    bad += [b"\xff", b'{"short_message":" "}']
    with held_port() as port, rig(tmp_path, gelf("udp", "tcp", listen=f"{HOST}:{port}")) as made:
        eventually(lambda: made.reporter.reasons.count(f"listening on {HOST}:{port}") == 2, "both")
        with socket.create_connection((HOST, port), timeout=20) as stream, socket.socket(type=socket.SOCK_DGRAM) as one:
            for text in bad:
                one.sendto(text, (HOST, port))
                one.sendto(good, (HOST, port))
            one.sendto(b"", (HOST, port))
            stream.sendall(b"\0".join([*bad, good]) + b'\n\0{"half"')
            stream.shutdown(socket.SHUT_WR)
            eventually(lambda: records(made) == 7 and len(made.dead_letters()) == 13, "all of them")
        found = sorted(made.dead_letters())
    reasons = ["unparsable", "does_not_fit", "does_not_fit", "invalid_encoding", "invalid_encoding", "does_not_fit"]
    expected = [(reason, 0, text) for reason, text in zip(reasons, bad, strict=True)]
    assert found == sorted([*expected, *expected, ("unparsable", 0, b'{"half"')])
    assert sorted(row["value"] for row in rows(made)) == sorted([good.decode()] * 6 + [good.decode() + "\n"])


def test_chunks_that_never_come_are_put_aside_and_a_stop_keeps_what_came(tmp_path: Path) -> None:
    payload = zlib.compress(b'{"short_message":"%b"}' % b"x" * 1000)
    pieces = chunks(payload, b"12345678", 20)
    others = chunks(payload, b"abcdefgh", 20)
    with rig(tmp_path, gelf("udp", chunk_timeout=0.5)) as made, socket.socket(type=socket.SOCK_DGRAM) as sender:
        sender.connect((HOST, port_of(made)))
        for piece in reversed(pieces[1:]):
            sender.send(piece)
        eventually(made.dead_letters, "the chunks that came")
        assert made.dead_letters() == [("truncated", 0, b"".join(pieces[1:]))]
    with (
        rig(tmp_path / "again", gelf("udp", chunk_timeout=60)) as made,
        socket.socket(type=socket.SOCK_DGRAM) as sender,
    ):
        sender.connect((HOST, port_of(made)))
        sender.send(others[0])
        sender.send(b'{"short_message":"a"}')
        eventually(reaches(lambda: records(made), 1))
        assert made.stop().drained
        assert made.dead_letters() == [("truncated", 0, others[0])]


def test_a_bomb_is_a_dead_letter_and_takes_little_memory(tmp_path: Path) -> None:
    bomb = zlib.compress(bytes(2**26), 9)
    assert len(bomb) > 65_000
    with rig(tmp_path, gelf("udp", max_record_bytes="64KiB")) as made, socket.socket(type=socket.SOCK_DGRAM) as sender:
        sender.connect((HOST, port_of(made)))
        for piece in chunks(bomb, b"bombbomb", 1400):
            sender.send(piece)
        eventually(made.dead_letters, "the bomb")
        assert made.dead_letters() == [("record_too_large", 0, bomb)]
        sender.send(b'{"short_message":"and on"}')
        eventually(reaches(lambda: records(made), 1))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"listen": "nowhere"}, "no address to listen on"),
        ({"transports": []}, "give 'udp', 'tcp', or both"),
        ({"transports": "sctp"}, "'udp' or 'tcp'"),
        ({"transports": ["udp", "tcp"]}, "name a port, or one transport"),
        ({"transports": ["udp"], "tls": {"certificate_file": "/c"}}, "datagrams have none"),
        ({"transports": ["tcp"], "tls": True}, "give certificate_file and key_file"),
        ({"chunk_timeout": 0}, "greater than 0"),
    ],
)
def test_invalid_declarations_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_source({"kind": "gelf", "listen": f"{HOST}:0", **fields})


def test_the_head_of_pygelf_is_the_one_that_is_read() -> None:
    payload = b"x" * 30
    [first, *_] = pygelf.gelf.split(payload, 10)
    assert first[:2] == b"\x1e\x0f"
    assert struct.unpack("bb", first[10:12]) == (0, 3)
