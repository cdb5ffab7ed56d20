"""Check a receiver that listens, with a real supervisor, real files and real sockets."""

from __future__ import annotations

import contextlib
import errno
import random
import resource
import socket
import ssl
import struct
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pytest

from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.receivers.framing import LETTER_BYTES
from receiver_runtime.receivers.sockets import listener as socket_listener
from receiver_runtime.receivers.sockets.raw_declaration import RawSocket
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from receiver_runtime.sources.fields.tcp import Tls
from tests.support.machine.held_ports import held_port
from tests.unit.receiver_runtime.receivers.certificates import Authority
from tests.unit.receiver_runtime.rig import Rig, rig
from tests.unit.receiver_runtime.support import eventually, reaches
from tracker_store.schema.states import DesiredState, ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from receiver_runtime.supervisor.receiver import Receiver


def text_receiver(**fields: object) -> Receiver:
    return make_receiver(SocketText.model_validate({"listen": "127.0.0.1:0"} | fields))


def raw_receiver(**fields: object) -> Receiver:
    return make_receiver(RawSocket.model_validate({"listen": "127.0.0.1:0"} | fields))


def port_of(made: Rig) -> int:
    eventually(lambda: any(reason.startswith("listening on ") for reason in made.reporter.reasons), "listening")
    return int([r for r in made.reporter.reasons if r.startswith("listening on ")][-1].rpartition(":")[2])


def connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def records(made: Rig) -> int:
    return sum(block.records for block in made.log.chain(1))


def framed(*values: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(value)) + value for value in values)


def is_closed(connection: socket.socket) -> bool:
    """Return whether the other side closed it, by end or by reset."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_x01_200_senders_at_once_each_in_order(tmp_path: Path) -> None:
    with rig(tmp_path, text_receiver()) as made, contextlib.ExitStack() as stack:
        port = port_of(made)
        threads = threading.active_count()
        senders = [stack.enter_context(connect(port)) for _ in range(200)]
        for n in range(50):
            for number, sender in enumerate(senders):
                # Records come in pieces, mixed with those of all other senders.
                sender.sendall(b"%d:%d\n%d:" % (number, 2 * n, number))
            for sender in senders:
                sender.sendall(b"%d\n" % (2 * n + 1))
        eventually(reaches(lambda: records(made), 20_000))
        assert threading.active_count() <= threads
        by_sender: dict[str, list[int]] = {}
        for value in made.values():
            sender_number, _, n_of_it = value.partition(":")
            by_sender.setdefault(sender_number, []).append(int(n_of_it))
        assert by_sender == {str(number): list(range(100)) for number in range(200)}
        assert made.dead_letters() == []
        assert ReceiverEventKind.CONNECTED in made.reporter.kinds()


def test_a_flooding_sender_does_not_starve_others(tmp_path: Path) -> None:
    with rig(tmp_path, text_receiver()) as made, contextlib.ExitStack() as stack:
        port = port_of(made)
        flooding = threading.Event()
        flooding.set()
        flooder = stack.enter_context(connect(port))
        flood = (b"f" * 99 + b"\n") * 10_000

        def send_flood() -> None:
            while flooding.is_set():
                flooder.sendall(flood)

        thread = threading.Thread(target=send_flood, daemon=True)
        thread.start()
        eventually(reaches(lambda: records(made), 100_000))
        slow = [stack.enter_context(connect(port)) for _ in range(20)]
        slow_records = SlowRecords(made)
        latest = 0.0
        for n in range(5):
            for number, sender in enumerate(slow):
                sender.sendall(b"slow %d %d\n" % (number, n))
            sent_at = time.monotonic()
            wanted = {f"slow {number} {n}" for number in range(20)}
            before = records(made)
            eventually(lambda wanted=wanted: wanted <= slow_records.found(), "the slow senders' records")  # type: ignore[misc]
            latest = max(latest, time.monotonic() - sent_at)
            # The flooding sender was also read in the meantime.
            eventually(reaches(lambda: records(made), before + 1000))
        flooding.clear()
        thread.join(20)
        # This is for two shared cores, and most of it is the test's own reading from the store.
        assert latest < 15


class SlowRecords:
    """Finds the records of slow senders; reads each block once, because the flood fills many."""

    def __init__(self, made: Rig) -> None:
        self._made = made
        self._polled_at = 0
        self._found: set[str] = set()

    def found(self) -> set[str]:
        """Return the records found so far."""
        chain = self._made.log.chain(1)
        for item in chain[self._polled_at :]:
            handle = item.handle
            path = self._made.rows.paths[handle.segment_id]
            for batch in self._made.store.read_batches(path, handle.offset, handle.length, handle.crc32c):
                values = batch.column(0)
                self._found.update(values.filter(pc.starts_with(values, "slow")).to_pylist())
        self._polled_at = len(chain)
        return self._found


def test_a_turn_reads_a_bounded_amount_of_each_connection(tmp_path: Path) -> None:
    line = b"f" * 99 + b"\n"
    with (
        rig(tmp_path, text_receiver(), block_queue_size=2, max_block_bytes="64KiB") as made,
        contextlib.ExitStack() as stack,
    ):
        made.log.away = True
        port = port_of(made)
        flooder = stack.enter_context(connect(port))
        flooder.settimeout(0.2)
        waiting = send_until_it_stalls(flooder, line, most=50_000_000)
        slow = stack.enter_context(connect(port))
        slow.sendall(b"slow\n")
        made.log.away = False
        # From now on, wait until everything is sent.
        flooder.settimeout(60)
        flooder.sendall(line[waiting % len(line) :] + line * 400_000)
        eventually(lambda: records(made) > 400_000)
        # Six chunks of a turn's size were read but not stored when it came; then it had its turn, in a long flood.
        assert made.values().index("slow") * len(line) < 10 * 2**20


def test_w05_a_receiver_that_can_not_store_stops_reading_and_memory_is_bounded(tmp_path: Path) -> None:
    with (
        rig(tmp_path, text_receiver(), block_queue_size=2, max_block_bytes="64KiB") as made,
        contextlib.ExitStack() as stack,
    ):
        made.log.away = True
        port = port_of(made)
        line = b"x" * 99 + b"\n"
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        sent: dict[socket.socket, int] = {}
        for _ in range(10):
            sender = stack.enter_context(connect(port))
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
            sender.settimeout(0.2)
            sent[sender] = send_until_it_stalls(sender, line, most=50_000_000)
        # Ten kernel buffers and the bounded buffers here were filled, although half a gigabyte was offered.
        assert sum(sent.values()) < 150_000_000
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB
        made.log.away = False
        for sender, count in sent.items():
            sender.settimeout(20)
            missing = -count % len(line)
            sender.sendall(line[len(line) - missing :] if missing else b"")
            sent[sender] += missing
        eventually(lambda: records(made) == sum(sent.values()) // len(line))
        assert made.dead_letters() == []


def send_until_it_stalls(connection: socket.socket, line: bytes, *, most: int) -> int:
    """Send the line repeatedly; return how many bytes were taken before the other side stopped reading."""
    sent = 0
    while sent < most:
        try:
            sent += connection.send((line * 655)[sent % len(line) :])
        except TimeoutError:
            break
    return sent


def test_a_connection_beyond_the_limit_is_refused_and_reported(tmp_path: Path) -> None:
    with rig(tmp_path, text_receiver(max_connections=2)) as made:
        port = port_of(made)
        with connect(port) as first, connect(port) as second:
            first.sendall(b"one\n")
            second.sendall(b"two\n")
            eventually(reaches(lambda: records(made), 2))
            with contextlib.suppress(ConnectionResetError), connect(port) as third:
                assert is_closed(third)
            eventually(
                lambda: any(
                    message == "a connection was refused: 2 are open, which is max_connections"
                    and "ConnectionRefusedError: from 127.0.0.1:" in detail
                    for _, message, detail in made.reporter.events
                )
            )
        eventually(lambda: _said(port, b"four\n") and "four" in made.values())


def _said(port: int, data: bytes) -> bool:
    """Send on a new connection, which may still be refused."""
    with contextlib.suppress(ConnectionError), connect(port) as connection:
        connection.sendall(data)
    return True


def test_x02_a_bad_length_closes_its_connection_and_no_other(tmp_path: Path) -> None:
    with rig(tmp_path, raw_receiver(max_record_bytes=1000)) as made:
        port = port_of(made)
        with connect(port) as good, connect(port) as bad:
            good.sendall(framed(b"one", b"", b"\xff\x00\n") + b"\0\0\0\5ha")
            bad.sendall(framed(b"fine") + b"GET / HTTP/1.1\r\n")
            assert is_closed(bad)
            good.sendall(b"lf!" + framed(b"z" * 1000))
            eventually(reaches(lambda: records(made), 6))
        got: list[object] = list(made.values())
        assert sorted(map(str, got)) == sorted(map(str, [b"one", b"", b"\xff\x00\n", b"half!", b"fine", b"z" * 1000]))
        [(reason, _, data)] = made.dead_letters()
        assert reason == "invalid_length"
        assert b"GET / HTTP/1.1\r\n".startswith(data)
        assert {(kind, message) for kind, message, _ in made.reporter.events if "length" in message} == {
            (ReceiverEventKind.BAD_RECORD, "a record went aside as a dead letter: invalid_length"),
            (ReceiverEventKind.ERROR, "a connection was closed: what came is no length of a record"),
        }


def test_x02_random_garbage_ends_connections_but_not_the_receiver(tmp_path: Path) -> None:
    chance = random.Random(5)
    with rig(tmp_path, raw_receiver(max_record_bytes=1000)) as made:
        port = port_of(made)
        for _ in range(150):
            with connect(port) as bad, contextlib.suppress(ConnectionError):
                bad.sendall(chance.randbytes(chance.randrange(3000)))
        with connect(port) as good:
            good.sendall(framed(b"still here"))
            eventually(lambda: b"still here" in list[object](made.values()))
        assert {reason for reason, _, _ in made.dead_letters()} <= {"invalid_length", "truncated"}
        assert ReceiverEventKind.RESTARTED not in made.reporter.kinds()


def test_a_normal_end_completes_a_last_line_and_a_reset_does_not(tmp_path: Path) -> None:
    with rig(tmp_path, text_receiver()) as made:
        port = port_of(made)
        with connect(port) as ends:
            ends.sendall(b"a\nlast\r")
        eventually(reaches(lambda: records(made), 2))
        breaks = connect(port)
        breaks.sendall(b"b\nbrok")
        eventually(reaches(lambda: records(made), 3))
        breaks.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        breaks.close()
        eventually(made.dead_letters)
        assert made.values() == ["a", "last\r", "b"]
        assert made.dead_letters() == [("truncated", 0, b"brok")]


def test_only_the_beginning_of_a_too_large_record_is_kept(tmp_path: Path) -> None:
    with rig(tmp_path, text_receiver(max_record_bytes=1000)) as made:
        port = port_of(made)
        with connect(port) as large, connect(port) as other:
            for n in range(30):
                large.sendall(b"L" * 100_000)
                other.sendall(b"%d\n" % n)
            large.sendall(b"\nnext\n")
            eventually(reaches(lambda: records(made), 31))
        assert made.values().count("next") == 1
        assert made.dead_letters() == [("record_too_large", 0, b"L" * LETTER_BYTES)]


def test_a_stop_stores_everything_sent_before_and_frees_the_port(tmp_path: Path) -> None:
    with rig(tmp_path, text_receiver(), block_interval="60s") as made, contextlib.ExitStack() as stack:
        port = port_of(made)
        senders = [stack.enter_context(connect(port)) for _ in range(50)]
        for number, sender in enumerate(senders):
            sender.sendall(b"%d\nmid" % number)
        eventually(lambda: made.supervisor.block_path.generator._buffer.records == 50)
        assert made.stop().drained
        assert sorted(made.values(), key=int) == [str(number) for number in range(50)]
        assert made.dead_letters() == [("truncated", 0, b"mid")] * 50
        assert all(is_closed(sender) for sender in senders)
        with pytest.raises(ConnectionRefusedError):
            connect(port)
    eventually(lambda: not [t for t in threading.enumerate() if t.name == "socket 127.0.0.1:0"])


def test_a_pause_refuses_senders_and_a_resume_listens_on_the_same_port(tmp_path: Path) -> None:
    with held_port() as port, rig(tmp_path, text_receiver(listen=f"127.0.0.1:{port}")) as made:
        eventually(lambda: made.reporter.reasons)
        assert made.reporter.reasons[-1] == f"listening on 127.0.0.1:{port}"
        with connect(port) as sender:
            sender.sendall(b"before\n")
            eventually(lambda: made.values() == ["before"])
            # The receiver closes first, so the kernel keeps the old connection of the port for a minute.
            made.log.desired[1] = DesiredState.PAUSED
            assert is_closed(sender)
        made.log.desired[1] = DesiredState.RUNNING
        eventually(lambda: made.reporter.reasons.count(f"listening on 127.0.0.1:{port}") == 2)
        with connect(port) as sender:
            sender.sendall(b"after\n")
            eventually(lambda: made.values() == ["before", "after"])
        assert ReceiverEventKind.RESTARTED not in made.reporter.kinds()


def test_a_taken_port_is_reported_and_tried_again(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with rig(tmp_path, text_receiver(listen=f"127.0.0.1:{port}")) as made:
            eventually(lambda: len(made.reporter.events) >= 3)
            assert f"Error listening on 127.0.0.1:{port} (OSError: " in made.reporter.reasons[-1]
            taken.close()
            assert port_of(made) == port
            with connect(port) as sender:
                sender.sendall(b"here now\n")
                eventually(lambda: made.values() == ["here now"])


def test_running_out_of_descriptors_pauses_and_does_not_end_the_receiver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_listener, "_EXHAUSTED_PAUSE", 0.01)
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
    receiver = text_receiver()
    monkeypatch.setattr(socket, "create_server", create_server)
    with rig(tmp_path, receiver) as made:
        with connect(port_of(made)) as sender:
            sender.sendall(b"let in at last\n")
            eventually(lambda: made.values() == ["let in at last"])
        messages = [message for kind, message, _ in made.reporter.events if kind is ReceiverEventKind.ERROR]
        assert messages == ["no connection can be taken for a second: the system has no room"] * 2


def test_ipv6_and_a_rate_limit(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    with rig(tmp_path, text_receiver(listen="[::1]:0"), receiver_max_rate=20_000) as made:
        port = port_of(made)
        assert made.reporter.reasons[-1] == f"listening on [::1]:{port}"
        with socket.create_connection(("::1", port), timeout=60) as sender:
            sender.sendall(b"x\n" * 5000)
            eventually(reaches(lambda: records(made), 5000))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def tls(authority: Authority) -> Tls:
    certificate = authority.issue("receiver.test")
    return Tls(certificate_file=certificate.certificate_file, key_file=certificate.key_file)


@contextlib.contextmanager
def connect_by_tls(port: int, authority: Authority, client: Tls | None = None) -> Iterator[ssl.SSLSocket]:
    context = ssl.create_default_context(cafile=authority.ca_file)
    if client is not None:
        context.load_cert_chain(client.certificate_file or "", client.key_file)
    with connect(port) as plain, context.wrap_socket(plain, server_hostname="receiver.test") as connection:
        yield connection


def test_tls_senders_beside_one_without_tls(tmp_path: Path, authority: Authority, tls: Tls) -> None:
    with rig(tmp_path, text_receiver(tls=tls)) as made, contextlib.ExitStack() as stack:
        port = port_of(made)
        plain = stack.enter_context(connect(port))
        plain.sendall(b"no TLS at all\n")
        assert is_closed(plain)
        senders = [stack.enter_context(connect_by_tls(port, authority)) for _ in range(10)]
        for number, sender in enumerate(senders):
            # This is more than a TLS record, so some of it waits decrypted.
            sender.sendall(b"".join(b"%d:%d\n" % (number, n) for n in range(20_000)))
        eventually(reaches(lambda: records(made), 200_000))
        assert sorted(made.values()) == sorted(f"{number}:{n}" for number in range(10) for n in range(20_000))
        failed = [detail for _, message, detail in made.reporter.events if "TLS handshake failed" in message]
        assert len(failed) == 1
        assert failed[0].startswith("ConnectionError: from 127.0.0.1:")


def test_a_tls_connection_that_breaks_off_does_not_complete_a_line(
    tmp_path: Path, authority: Authority, tls: Tls
) -> None:
    with rig(tmp_path, text_receiver(tls=tls)) as made:
        port = port_of(made)
        with connect_by_tls(port, authority) as sender:
            sender.sendall(b"whole\nhalf")
        eventually(lambda: made.values() and made.dead_letters())
        assert (made.values(), made.dead_letters()) == (["whole"], [("truncated", 0, b"half")])
        with connect_by_tls(port, authority) as sender:
            sender.sendall(b"last")
            with contextlib.suppress(OSError):
                sender.unwrap()
        eventually(lambda: made.values() == ["whole", "last"])


def test_a_sender_without_the_required_certificate_is_refused(tmp_path: Path, authority: Authority, tls: Tls) -> None:
    sender_certificate = authority.issue("sender.test")
    client = Tls(certificate_file=sender_certificate.certificate_file, key_file=sender_certificate.key_file)
    with rig(tmp_path, text_receiver(tls=tls.model_copy(update={"ca_file": authority.ca_file}))) as made:
        port = port_of(made)
        with contextlib.suppress(ssl.SSLError, ConnectionError), connect_by_tls(port, authority) as nobody:
            nobody.sendall(b"secret\n")
            assert is_closed(nobody)
        with connect_by_tls(port, authority, client) as sender:
            sender.sendall(b"known\n")
            eventually(lambda: made.values() == ["known"])


def test_a_handshake_that_takes_too_long_ends_the_connection(tmp_path: Path, tls: Tls) -> None:
    with rig(tmp_path, text_receiver(tls=tls, connect_timeout="50ms")) as made, connect(port_of(made)) as silent:
        assert is_closed(silent)
        eventually(lambda: any("handshake took too long" in message for _, message, _ in made.reporter.events))


def test_an_unusable_key_is_named(tmp_path: Path, authority: Authority, tls: Tls) -> None:
    wrong = tls.model_copy(update={"key_file": authority.issue("other.test").key_file})
    with rig(tmp_path, text_receiver(tls=wrong)) as made:
        eventually(lambda: made.reporter.reasons)
        assert "OSError: certificate_file " in made.reporter.reasons[-1]
        assert Path(wrong.key_file or "").name in made.reporter.reasons[-1]


def test_300000_bad_lines_of_one_sender_delay_no_other_and_fill_nothing(tmp_path: Path) -> None:
    """Attack: lines of 2 bytes that are not UTF-8. Before, each had a row and a frame."""
    bad = b"\xff\n" * 300_000
    with rig(tmp_path, text_receiver()) as made, contextlib.ExitStack() as stack:
        port = port_of(made)
        attacker, other = stack.enter_context(connect(port)), stack.enter_context(connect(port))
        attacker.settimeout(120)
        attack = threading.Thread(target=attacker.sendall, args=(bad,), daemon=True)
        attack.start()
        eventually(lambda: bool(made.rows.dead_letters), "the first of them")
        other.sendall(b"good\n")
        eventually(lambda: made.values() == ["good"], "the good line of another sender")
        attack.join(60)
        attacker.shutdown(socket.SHUT_WR)
        assert is_closed(attacker), "everything was read"
        made.stop()
        rows = made.rows.dead_letters
        kept = sum(row.letters for row in rows)
        # A slow test may take more than one minute, with a budget each.
        assert kept + sum(row.dropped for row in rows) == 300_000
        assert kept <= 5_000
        assert len(rows) <= 100
        stored = sum(path.stat().st_size for path in tmp_path.rglob("*-d*.segment"))
        assert 0 < stored <= 2**20
