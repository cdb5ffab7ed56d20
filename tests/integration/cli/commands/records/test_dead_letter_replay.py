"""Test `forebay dead-letters replay`: to a real receiver once its cause is fixed, to a file, and never twice."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
from typing import TYPE_CHECKING, Any, Self

import pytest
from typer.testing import CliRunner

from forebay.cli.main import app
from forebay.testing.receiver_processes import eventually
from forebay_contrib.fluent_forward.declaration import FluentForward
from forebay_contrib.gelf.declaration import Gelf
from orchestration.declarations.settings import Settings
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.framing import LETTER_BYTES
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from receiver_runtime.sources.fields.tcp import Tls
from receiver_runtime.sources.records.json_records import Json
from tests.integration.receiver_runtime.receiver_rig import ReceiverRig
from tests.support.driver_log.declared_records import declare_records
from tests.support.driver_log.log import make_log
from tests.support.driver_log.stored_letters import Letters
from tests.support.machine.held_ports import held_port
from tests.support.polling import joined
from tracker_store.blocks.dead_letters import mark_replayed, read_dead_letter_row
from tracker_store.connection.engine import connect
from tracker_store.receivers.processes import register_process
from tracker_store.schema.states import ProcessKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import sqlalchemy as sa
    from typer.testing import Result

ENCODING = DeadLetterReason.INVALID_ENCODING


@pytest.fixture(autouse=True)
def _environment(database_url: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_HOME", str(home))


def replay(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["dead-letters", "replay", *map(str, arguments)])


def declare(connection: sa.Connection, source: dict[str, Any]) -> None:
    connection.exec_driver_sql(
        "UPDATE forebay.streams SET declaration = jsonb_set(declaration, '{source}', %s::jsonb)", (json.dumps(source),)
    )


class Stream:
    """The letters of one receiver whose source is `SocketText` at a port where the test listens, or no process does."""

    def __init__(self, connection: sa.Connection, port: int) -> None:
        self.connection = connection
        log = make_log(connection)
        self.letters = Letters(connection, Settings().block_store_roots, log.receiver_ids[0])
        process = register_process(connection, kind=ProcessKind.RECEIVER, name="r", host=socket.gethostname(), pid=1)
        connection.exec_driver_sql("UPDATE forebay.receivers SET process_id = %s", (process,))
        self.declare(SocketText(listen=f"127.0.0.1:{port}"))

    def declare(self, source: SocketText) -> None:
        declare(self.connection, source.model_dump(mode="json"))

    def add(self, *records: bytes, reason: DeadLetterReason = ENCODING, left_out: int = 0) -> int:
        return self.letters.add(reason, records, left_out=left_out)

    def replayed_to(self, dead_letter_id: int) -> str | None:
        row = read_dead_letter_row(self.connection, dead_letter_id)
        assert row is not None
        return None if row.replayed_at is None else row.replayed_to


@pytest.fixture
def port() -> Iterator[int]:
    with held_port() as held:
        yield held


@pytest.fixture
def stream(engine: sa.Engine, port: int) -> Iterator[Stream]:
    with connect(engine) as connection:
        made = Stream(connection, port)
        yield made
        made.letters.close()


class Receiving:
    """A receiver that keeps what each connection sent; with `resets`, it breaks them after the first bytes."""

    def __init__(self, port: int, *, resets: bool = False) -> None:
        self.connections: list[bytes] = []
        self._resets = resets
        self._listener = socket.create_server(("127.0.0.1", port))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # A connection wakes the thread, closing does not.
        self._listener.shutdown(socket.SHUT_RDWR)
        joined(self._thread)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                if self._resets:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    self.connections.append(connection.recv(1))
                    continue
                received = b""
                while part := connection.recv(65536):
                    received += part
                self.connections.append(received)


def test_letters_in_the_wrong_encoding_are_records_once_the_declaration_is_right(
    database_url: str, home: Path, port: int
) -> None:
    source = SocketText(listen=f"127.0.0.1:{port}", delimiter=";")
    rig = ReceiverRig.make(database_url, home, source.model_dump(mode="json"), block_interval="20ms")
    try:
        process = rig.start()
        eventually(lambda: _sent(port, b"good;stra\xdfe;gr\xfcn;"), "the receiver")
        eventually(lambda: len(rig.dead_letters()) == 2 and rig.records() == 1, "the letters")
        [(number,)] = rig.execute("SELECT id FROM forebay.dead_letters")
        # Without the right declaration they come back as new letters, and count in no batch.
        assert replay(number).exit_code == 0
        eventually(lambda: len(rig.dead_letters()) == 4, "the letters, again")
        refused = replay(number)
        assert (refused.exit_code, "--again" in refused.stderr) == (1, True)
        rig.assign(2)
        process.wait(60)
        with connect(rig.engine) as connection:
            declare(connection, source.model_copy(update={"encoding": "iso8859-1"}).model_dump(mode="json"))
        rig.start(2)
        eventually(lambda: rig.state()[0] == "ACTIVE" and "listening on" in rig.state()[1], "the receiver")
        newest = max(row.id for row in rig.execute("SELECT id FROM forebay.dead_letters"))
        done = replay(newest, "--json")
        assert done.exit_code == 0, done.output
        [told] = json.loads(done.stdout)["dead_letters"]
        assert (told["records"], told["to"]) == (2, f"127.0.0.1:{port}")
        eventually(lambda: rig.records() == 3, "the records")
        assert rig.values() == ["good", "straße", "grün"]
        assert replay(newest).exit_code == 1
        assert rig.records() == 3
    finally:
        rig.close()


def _sent(port: int, data: bytes) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(data)
    except OSError:
        return False
    return True


def test_a_row_is_sent_once_unless_it_is_asked_for_again(stream: Stream, port: int) -> None:
    first, second = stream.add(b"one", b"two\r"), stream.add(b"three")
    with Receiving(port) as receiver:
        assert replay(first, second, first).exit_code == 0
        for again in ((first,), (second, "--dry-run"), (second, first)):
            refused = replay(*again)
            assert (refused.exit_code, "--again" in refused.stderr) == (1, True)
        assert replay(second, "--again").exit_code == 0
    assert receiver.connections == [b"one\ntwo\r\n", b"three\n", b"three\n"]
    assert stream.replayed_to(first) == f"127.0.0.1:{port}"
    assert "Replayed at" in CliRunner().invoke(app, ["dead-letters", "show", str(first)]).stderr


def test_a_row_that_can_not_be_sent_is_named_and_its_neighbour_is_sent(stream: Stream, port: int) -> None:
    good, bad = stream.add(b"one"), stream.add(b"half", reason=DeadLetterReason.TRUNCATED)
    with Receiving(port) as receiver:
        done = replay(bad, 987654, good, "--json")
    assert (done.exit_code, "no whole record" in done.stderr) == (1, True), done.output
    assert (receiver.connections, stream.replayed_to(good)) == ([b"one\n"], f"127.0.0.1:{port}")
    said = json.loads(done.stdout)
    assert ([one["id"] for one in said["dead_letters"]], [one["id"] for one in said["refused"]]) == (
        [good],
        [bad, 987654],
    )


def test_a_row_of_which_nothing_fits_keeps_no_other_back(stream: Stream) -> None:
    declare_records(stream.connection, Json("item STRING"))
    good, bad = (stream.add(one, reason=DeadLetterReason.DOES_NOT_FIT) for one in (b'{"item": "tea"}', b'{"item": 1}'))
    done = replay(bad, good, "--dry-run")
    assert done.exit_code == 1
    assert f"Dead letter {bad}: none of 1 record(s) fits" in done.stderr
    assert f"Dead letter {good}: 1 of 1 record(s) would go to" in done.stderr


def test_the_beginning_of_a_large_record_is_not_sent_as_a_record(stream: Stream, port: int) -> None:
    part = stream.add(b"x" * LETTER_BYTES, left_out=1)
    with Receiving(port) as receiver:
        refused = replay(part)
    assert (refused.exit_code, "the first 65,536 bytes of a longer record" in refused.stderr) == (1, True)
    assert (receiver.connections, stream.replayed_to(part)) == ([], None)


def test_a_dry_run_sends_nothing_and_shows_each_record(stream: Stream, port: int) -> None:
    number = stream.add(b"stra\xdfe", b"\x1b[2J")
    with Receiving(port) as receiver:
        done = replay(number, "--dry-run")
    assert done.exit_code == 0, done.output
    assert f"2 record(s) of lines would go to 127.0.0.1:{port}" in done.stderr
    assert "1: stra\\xdfe" in done.stderr
    assert "\\u001b[2J" in done.stderr
    assert (receiver.connections, stream.replayed_to(number)) == ([], None)


def test_without_a_connection_the_mark_is_taken_back(stream: Stream, port: int) -> None:
    number = stream.add(b"one")
    refused = replay(number)
    assert (refused.exit_code, "was not sent" in refused.stderr) == (1, True)
    assert stream.replayed_to(number) is None
    with Receiving(port):
        assert replay(number).exit_code == 0
    replay(number, "--again")
    assert stream.replayed_to(number) == f"127.0.0.1:{port}", "what it was before"


def test_after_a_connection_that_broke_the_row_stays_marked(stream: Stream, port: int) -> None:
    number = stream.add(b"x" * 1_000_000)
    with Receiving(port, resets=True):
        unknown = replay(number)
    assert (unknown.exit_code, "unknown which" in unknown.stderr) == (1, True)
    assert stream.replayed_to(number) is not None
    assert replay(number).exit_code == 1


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (SocketText(host="127.0.0.1", port=1), "no SocketText that listens"),
        (
            SocketText(listen="127.0.0.1:1", tls=Tls(certificate_file="/c.pem", key_file="/k.pem")),
            "no SocketText that listens",
        ),
        (SocketText(listen="127.0.0.1:0"), "--address"),
    ],
)
def test_what_can_not_be_sent_is_refused_with_another_way(stream: Stream, source: SocketText, said: str) -> None:
    number = stream.add(b"one")
    stream.declare(source)
    refused = replay(number)
    assert (refused.exit_code, said in refused.stderr) == (1, True), refused.output


def test_a_receiver_that_does_not_run_or_is_on_another_host_is_named(stream: Stream, port: int) -> None:
    number = stream.add(b"one")
    stream.connection.exec_driver_sql("UPDATE forebay.processes SET host = 'elsewhere'")
    assert "of host elsewhere" in replay(number).stderr
    stream.declare(SocketText(listen="0.0.0.0:7"))
    assert "would go to elsewhere:7" in replay(number, "--dry-run").stderr
    stream.connection.exec_driver_sql("UPDATE forebay.processes SET ended_at = clock_timestamp()")
    assert "forebay receivers start lines/1" in replay(number).stderr
    with Receiving(port) as receiver:
        assert replay(number, "--address", f"127.0.0.1:{port}").exit_code == 0
    assert receiver.connections == [b"one\n"]


def saved(path: Path, *arguments: object) -> bytes:
    done = replay(*arguments, "--to", path)
    assert done.exit_code == 0, done.output
    return path.read_bytes()


def test_letters_of_any_source_are_written_to_a_new_file(stream: Stream, tmp_path: Path) -> None:
    def letters(reason: DeadLetterReason, *records: bytes) -> int:
        return stream.add(*records, reason=reason)

    stream.declare(SocketText(listen="127.0.0.1:1", delimiter=";"))
    whole, parts = letters(ENCODING, b"one", b"two"), letters(DeadLetterReason.RECORD_TOO_LARGE, b"part")
    misfits = letters(DeadLetterReason.DOES_NOT_FIT, b"{}", b"[]")
    assert saved(tmp_path / "a", whole, misfits, parts) == b"one;two;{};[];part"
    assert stream.replayed_to(whole) == str(tmp_path / "a")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    # A file that is there is not touched.
    other = letters(ENCODING, b"three")
    refused = replay(other, "--to", tmp_path / "a")
    assert (refused.exit_code, "can't be made" in refused.stderr) == (1, True)
    assert stream.replayed_to(other) is None
    # The receiver was removed meanwhile: nothing says how its records end.
    stream.connection.exec_driver_sql("UPDATE forebay.receivers SET removed_at = clock_timestamp()")
    assert replay(other, "--to", "-").stdout_bytes == b"three\n"


def test_of_a_row_that_was_parsed_again_only_what_was_left_goes(stream: Stream, port: int, tmp_path: Path) -> None:
    number = stream.add(b"one", b"two", b"three")
    stream.connection.exec_driver_sql("UPDATE forebay.dead_letters SET left_records = '{2}'")
    shown = replay(number, "--dry-run").stderr
    assert ("1 record(s)" in shown, "  2: two\n" in shown) == (True, True)
    assert saved(tmp_path / "a", number) == b"two\n"
    with Receiving(port) as receiver:
        assert replay(number, "--again").exit_code == 0
    assert receiver.connections == [b"two\n"]


def test_a_row_that_waits_for_its_receiver_does_not_go_elsewhere(stream: Stream, tmp_path: Path) -> None:
    number = stream.add(b"one")
    stream.connection.exec_driver_sql("UPDATE forebay.dead_letters SET replay_wanted = true")
    for more in ((), ("--again",)):
        refused = replay(number, "--to", tmp_path / "a", *more)
        assert (refused.exit_code, "waits for its receiver lines/1" in refused.stderr) == (1, True)
    assert not (tmp_path / "a").exists()
    # It was asked for after this row was read.
    assert mark_replayed(stream.connection, number, to="a file", again=True) is None
    assert stream.replayed_to(number) is None


def test_a_letter_that_the_parser_of_its_source_refuses_does_not_fit(stream: Stream) -> None:
    declare(stream.connection, Gelf(listen="127.0.0.1:1").model_dump(mode="json"))
    declare_records(stream.connection, Json("host STRING, short_message STRING"))
    number = stream.add(b'{"host":"w"}', reason=DeadLetterReason.DOES_NOT_FIT)
    shown = CliRunner().invoke(app, ["dead-letters", "show", str(number)]).stdout
    assert "the member short_message is missing" in shown
    assert "fits by now" not in shown
    refused = replay(number)
    assert (refused.exit_code, "none of 1 record(s) fits" in refused.stderr) == (1, True), refused.output


def test_a_letter_of_a_stream_that_is_not_typed_has_a_reason_too(stream: Stream) -> None:
    declare(stream.connection, FluentForward(listen="127.0.0.1:0").model_dump(mode="json"))
    number = stream.add(b"GET / HTTP/1.1", reason=DeadLetterReason.UNPARSABLE)
    shown = CliRunner().invoke(app, ["dead-letters", "show", str(number)]).stdout
    assert "it is no message of the Forward protocol" in shown
    assert "fits by now" not in shown


def test_a_stopped_receiver_is_not_asked_to_parse(stream: Stream) -> None:
    declare_records(stream.connection, Json("item STRING"))
    number = stream.add(b'{"item": "tea"}', reason=DeadLetterReason.DOES_NOT_FIT)
    stream.connection.exec_driver_sql("UPDATE forebay.receivers SET desired_state = 'stopped'")
    refused = replay(number)
    assert (refused.exit_code, "forebay receivers start" in refused.stderr) == (1, True), refused.output
    row = read_dead_letter_row(stream.connection, number)
    assert row is not None
    assert not row.replay_wanted


def test_a_file_that_can_not_be_synced_is_told_and_its_rows_stay_marked(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    number = stream.add(b"one")
    monkeypatch.setattr(os, "fsync", full)
    refused = replay(number, "--to", tmp_path / "a")
    assert refused.exit_code == 1
    for said in (str(tmp_path / "a"), "No space left on device", "--again"):
        assert said in refused.stderr
    assert stream.replayed_to(number) == str(tmp_path / "a")


@pytest.mark.parametrize("arguments", [("--to", "x", "--address", "127.0.0.1:1"), ("--to", "-", "--json")])
def test_options_that_exclude_each_other(stream: Stream, arguments: Sequence[str]) -> None:
    assert replay(stream.add(b"one"), *arguments).exit_code == 2


def test_a_row_without_records_or_that_is_not_there_is_refused(stream: Stream) -> None:
    number = stream.letters.add(ENCODING, [], dropped=7)
    refused = replay(number)
    assert (refused.exit_code, "7 were counted" in refused.stderr) == (1, True)
    assert replay(987654).exit_code == 1
