"""Check a syslog receiver with a real supervisor, files and sockets, and util-linux's ``logger`` as a sender."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import ssl
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import pytest

from forebay_contrib.syslog.declaration import Syslog
from receiver_runtime.block_path.records import schema_of
from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.receivers.sockets.datagram_listener import DROPPED
from receiver_runtime.record_formats.typed_rows import TypedRows
from receiver_runtime.sources.records.json_records import Json
from receiver_runtime.sources.source_registry import parse_source
from tests.support.machine.held_ports import held_port
from tests.unit.receiver_runtime.receivers.certificates import Authority
from tests.unit.receiver_runtime.rig import Rig, rig
from tests.unit.receiver_runtime.support import eventually, reaches
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from pathlib import Path

    from receiver_runtime.supervisor.receiver import Receiver

LOGGER = shutil.which("logger")


def syslog(*transports: str, **fields: object) -> Receiver:
    declared = {"kind": "syslog", "listen": "127.0.0.1:0", "transports": list(transports), **fields}
    return make_receiver(parse_source(declared))


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


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


@pytest.mark.skipif(LOGGER is None, reason="util-linux's logger is not here")
@pytest.mark.parametrize("transport", ["udp", "tcp"])
@pytest.mark.parametrize("form", ["--rfc5424", "--rfc3164"])
def test_messages_of_logger(tmp_path: Path, transport: str, form: str) -> None:
    assert LOGGER is not None
    with rig(tmp_path, syslog(transport)) as made:
        port = port_of(made)
        framings = [[], ["--octet-count"]] if transport == "tcp" else [[]]
        for framing in framings:
            subprocess.run(
                [
                    *(LOGGER, "--server", "127.0.0.1", "--port", str(port), f"--{transport}", form, *framing),
                    *("--priority", "local3.warning", "--tag", "my-app", "--id=4711"),
                ],
                input="the first: line\nüber [2]\n",
                text=True,
                check=True,
                timeout=120,
            )
        eventually(reaches(lambda: records(made), 2 * len(framings)))
        found = rows(made)
    assert [row["message"] for row in found] == ["the first: line", "über [2]"] * len(framings)
    host = socket.gethostname()
    for row in found:
        assert row["parse_error"] is None
        assert row["sender"] == "127.0.0.1"
        assert (row["priority"], row["facility"], row["severity"]) == (19 * 8 + 4, 19, 4)
        assert row["hostname"] in {host, host.partition(".")[0]}
        assert (row["app_name"], row["proc_id"]) == ("my-app", "4711")
        assert row["version"] == (1 if form == "--rfc5424" else None)
        assert row["raw"].endswith(row["message"].encode())
        if form == "--rfc5424":
            assert abs((row["received_at"] - row["timestamp"]).total_seconds()) < 60
            assert row["structured_data"].startswith("[timeQuality ")


def test_messages_of_a_typed_stream_are_parsed_and_kept_whole_beside(tmp_path: Path) -> None:
    check = TypedRows(Json("item STRING NOT NULL"), schema_of(Syslog.columns), Syslog.record_column)
    sent = [b'<13>Oct 11 22:14:15 host app: {"item": "tea"}', b"<13>1 - host app - - -", b"<13>app: no json"]
    with rig(tmp_path, syslog("tcp"), row_check=check) as made:
        with connect(port_of(made)) as stream:
            stream.sendall(b"".join(one + b"\n" for one in sent))
            eventually(lambda: records(made) == 2 and made.dead_letters(), "two rows and a dead letter")
        parsed, empty = rows(made)
        assert made.dead_letters() == [("unparsable", 0, b"no json")]
    assert (parsed["item"], parsed["_app_name"], parsed["_raw"]) == ("tea", "app", sent[0])
    # It has no message that could lack an item.
    assert (empty["item"], empty["_hostname"], empty["_raw"]) == (None, "host", sent[1])


def test_udp_and_tcp_on_one_port_and_a_stop_that_drains(tmp_path: Path) -> None:
    with held_port() as port, rig(tmp_path, syslog("udp", "tcp", listen=f"127.0.0.1:{port}")) as made:
        eventually(lambda: made.reporter.reasons.count(f"listening on 127.0.0.1:{port}") == 2, "both")
        with connect(port) as stream, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
            for number in range(100):
                datagrams.sendto(b"<13>udp %d" % number, ("127.0.0.1", port))
            stream.sendall(b"".join(b"<13>tcp %d\n" % number for number in range(100)) + b"<13>half")
            eventually(reaches(lambda: records(made), 200))
            assert made.stop().drained
        wanted = {f"{transport} {number}" for transport in ("udp", "tcp") for number in range(100)}
        assert {row["message"] for row in rows(made)} == wanted
        assert records(made) == 200
        assert made.dead_letters() == [("truncated", 0, b"<13>half")]
        # The port is free again for both.
        with socket.socket(type=socket.SOCK_DGRAM) as again, socket.create_server(("127.0.0.1", port)):
            again.bind(("127.0.0.1", port))


@pytest.mark.parametrize("transport", ["udp", "tcp"])
def test_it_works_in_a_process_with_thousands_of_open_files(tmp_path: Path, transport: str) -> None:
    """select() can't use descriptors above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else max(soft, 4096), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with rig(tmp_path, syslog(transport)) as made:
            port = port_of(made)
            kind = socket.SOCK_DGRAM if transport == "udp" else socket.SOCK_STREAM
            with socket.socket(type=kind) as sender:
                sender.connect(("127.0.0.1", port))
                for number in range(3):
                    sender.sendall(b"<13>%d\n" % number)
                    eventually(reaches(lambda: records(made), number + 1))
            assert [reason for reason in made.reporter.reasons if "Error" in reason] == []
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_many_connections_of_both_framings_each_in_order(tmp_path: Path) -> None:
    with rig(tmp_path, syslog("tcp")) as made:
        port = port_of(made)
        senders = [connect(port) for _ in range(40)]
        for n in range(50):
            for number, sender in enumerate(senders):
                message = b"<13>1 - - %d - - - %d" % (number, n)
                sender.sendall(b"%d %b" % (len(message), message) if (n + number) % 3 else message + b"\n")
        for sender in senders:
            sender.close()
        eventually(reaches(lambda: records(made), 2000))
        found = rows(made)
    by_sender: dict[str, list[int]] = {}
    for row in found:
        by_sender.setdefault(row["app_name"], []).append(int(row["message"]))
    assert by_sender == {str(number): list(range(50)) for number in range(40)}


def test_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    certificate = authority.issue("receiver.test")
    tls = {"certificate_file": certificate.certificate_file, "key_file": certificate.key_file}
    context = ssl.create_default_context(cafile=authority.ca_file)
    with rig(tmp_path / "rig", syslog("tcp", tls=tls)) as made:
        port = port_of(made)
        with connect(port) as plain, context.wrap_socket(plain, server_hostname="receiver.test") as sender:
            # RFC 5425 counts bytes; other senders end their lines.
            sender.sendall(b"19 <13>1 - - - - - - a<14>1 - - - - - - b\n")
            eventually(reaches(lambda: records(made), 2))
        assert [(row["priority"], row["message"]) for row in rows(made)] == [(13, "a"), (14, "b")]


def test_datagrams_that_the_kernel_drops_are_counted_and_reported(tmp_path: Path) -> None:
    """The buffer is small and not read: the block generator takes nothing for a while."""
    receiver = syslog("udp", receive_buffer=4096)
    is_held, held = threading.Event(), threading.Event()
    real = type(receiver).store_buffered

    def store_buffered(records: object) -> None:
        is_held.set()
        held.wait(20)
        real(receiver, records)

    receiver.store_buffered = store_buffered  # type: ignore[method-assign]
    with rig(tmp_path, receiver) as made, socket.socket(type=socket.SOCK_DGRAM) as sender:
        port = port_of(made)
        sender.sendto(b"<13>first", ("127.0.0.1", port))
        assert is_held.wait(20)
        for number in range(300):
            sender.sendto(b"<13>%d %b" % (number, b"x" * 1000), ("127.0.0.1", port))
        held.set()

        def dropped() -> int:
            details = [detail for kind, message, detail in made.reporter.events if message == DROPPED]
            return sum(int(detail.split(": ")[1].partition(" more")[0]) for detail in details)

        eventually(lambda: dropped() + records(made) == 301, "all of them, stored or counted")
        assert dropped() > 200
        assert ReceiverEventKind.RESTARTED not in made.reporter.kinds()
        sender.sendto(b"<13>and on", ("127.0.0.1", port))
        eventually(lambda: rows(made)[-1]["message"] == "and on")


def test_a_taken_udp_port_is_reported_and_tried_again(tmp_path: Path) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with rig(tmp_path, syslog("udp", listen=f"127.0.0.1:{port}")) as made:
            eventually(lambda: len(made.reporter.events) >= 3)
            assert f"Error listening on 127.0.0.1:{port} (UDP) (OSError: " in made.reporter.reasons[-1]
            taken.close()
            assert port_of(made) == port


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"listen": "nowhere"}, "no address to listen on"),
        ({"transports": []}, "give 'udp', 'tcp', or both"),
        ({"transports": ["udp", "udp"]}, "each once"),
        ({"transports": ["udp", "tcp"]}, "name a port, or one transport"),
        ({"transports": ["udp"], "tls": {"certificate_file": "/c"}}, "datagrams have none"),
        ({"transports": ["tcp"], "tls": True}, "give certificate_file and key_file"),
        ({"transports": ["tcp"], "timezone": "Mars"}, "no time zone"),
    ],
)
def test_invalid_declarations_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_source({"kind": "syslog", "listen": "127.0.0.1:0", **fields})
