"""Test real receiver processes that encrypt: what they store, what is salvaged, and what happens without the key."""

from __future__ import annotations

import json
import signal
import socket
import threading
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from typer.testing import CliRunner

from forebay.cli.main import app
from forebay.testing.cutting_proxy import CuttingProxy, through
from forebay.testing.receiver_processes import eventually
from receiver_runtime.block_store.frames.frame import FrameKind
from receiver_runtime.block_store.frames.segment import IntactFrame
from receiver_runtime.watching.exit_codes import ExitCode
from tests.integration.receiver_runtime.killed_process import kill_and_take_over
from tests.integration.receiver_runtime.receiver_rig import NumberedSource, ReceiverRig, exit_code
from tests.support.receivers.block_keys import dump, files_with, key_file, key_id, spellings
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PRIVATE = b"has the measles"


@pytest.fixture
def rig(
    database_url: str, tmp_path: Path, source: NumberedSource, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ReceiverRig]:
    made = ReceiverRig.on_socket(database_url, tmp_path / "receiver", source.port, block_queue_size=5)
    made.block_keys = (key_file(tmp_path / "keys" / "one"),)
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_BLOCK_STORE", made.block_store)
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path / "home"))
    yield made
    made.close()


def command(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.stdout


def verified() -> tuple[int, dict[str, Any]]:
    code, said = command("blocks", "verify", "--json")
    return code, json.loads(said)


def test_blocks_and_dead_letters_lie_nowhere_as_they_were_received(database_url: str, tmp_path: Path) -> None:
    lines = [b"patient %05d %b" % (number, PRIVATE) for number in range(5000)]
    bad = [b"pati\xebnt %03d %b" % (number, PRIVATE) for number in range(100)]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        rig = ReceiverRig.on_socket(database_url, tmp_path / "receiver", listener.getsockname()[1], compression="none")
        rig.block_keys = (key_file(tmp_path / "keys" / "one"),)
        sent = threading.Event()

        def send() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"\n".join([*lines, *bad, b""]))
                sent.wait(60)

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        try:
            process = rig.start()
            eventually(lambda: rig.has_records(len(lines)), "all lines")
            eventually(lambda: len(rig.dead_letters()) == len(bad), "all dead letters")
            assert [value.encode() for value in rig.values()] == lines
            assert [data for _, data in rig.dead_letters()] == bad
            sizes = rig.execute("SELECT DISTINCT bytes / letters, bytes % letters FROM forebay.dead_letters")
            assert [tuple(size) for size in sizes] == [(len(bad[0]), 0)]
            key = (tmp_path / "keys" / "one").read_text().strip()
            wanted = [PRIVATE, *spellings(key)]
            assert files_with(rig.root, wanted) == []
            with connect(rig.engine) as connection:
                rows = dump(connection)
            shown = " ".join(psutil.Process(process.pid).cmdline()).encode()
            for text in wanted:
                assert text not in rows
                assert text not in shown
            # The search finds what lies there in the plain.
            (tmp_path / "plain").write_bytes(lines[0])
            assert len(files_with(tmp_path, [PRIVATE])) == 1
        finally:
            sent.set()
            rig.close()
            sender.join(20)


def test_what_a_killed_process_stored_encrypted_is_salvaged_and_comes_out_once(
    rig: ReceiverRig, source: NumberedSource, database_url: str
) -> None:
    between = CuttingProxy(database_url)
    try:
        kill_and_take_over(rig, source, (between, through(database_url, between.port)))
    finally:
        between.close()
    code, report = verified_with(rig)
    assert (code, report["intact"]) == (0, True)
    assert set(report["keys"]) == {key_id(rig.block_keys[0])}


def verified_with(rig: ReceiverRig) -> tuple[int, dict[str, Any]]:
    first, *others = rig.block_keys
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOREBAY_BLOCK_KEY", first)
        patch.setenv("FOREBAY_BLOCK_KEYS_FOR_READING", ",".join(others))
        return verified()


def test_keys_are_rotated_between_two_processes_and_verify_counts_what_still_needs_the_old_one(
    rig: ReceiverRig, source: NumberedSource, tmp_path: Path
) -> None:
    def receive(assignment: int) -> None:
        before = rig.records()
        rig.assign(assignment)
        process = rig.start(assignment)
        eventually(lambda: rig.records() > before + 50, "50 records")
        process.send_signal(signal.SIGTERM)
        assert exit_code(process) == ExitCode.STOPPED

    [old] = rig.block_keys
    rig.block_keys = ()
    receive(1)
    rig.block_keys = (old,)
    receive(2)
    new = key_file(tmp_path / "keys" / "two")
    rig.block_keys = (new, old)
    receive(3)
    numbers = [int(value) for value in rig.values()]
    assert numbers == sorted(set(numbers))
    code, report = verified_with(rig)
    assert (code, report["intact"], report["keys_missing"]) == (0, True, {})
    assert set(report["keys"]) == {key_id(old), key_id(new)}
    assert sum(report["keys"].values()) < report["blocks"], "the first process did not encrypt"
    # Without the old key: its blocks are neither lost nor damaged, a repair changes nothing, and the files are known.
    rig.block_keys = (new,)
    code, report = verified_with(rig)
    assert (code, report["intact"], report["lost"]) == (1, False, [])
    assert list(report["keys_missing"]) == [key_id(old)]
    assert "FOREBAY_BLOCK_KEYS_FOR_READING" in report["keys_missing"][key_id(old)]
    assert command("blocks", "repair", "--json")[0] == 0
    code, said = command("db", "check", "--against-store", "--json")
    assert (code, json.loads(said)["intact"]) == (0, True)


def test_a_receiver_whose_key_can_t_be_read_claims_and_stores_nothing_and_says_why(
    rig: ReceiverRig, tmp_path: Path
) -> None:
    held = (tmp_path / "keys" / "one").rename(tmp_path / "keys" / "away")
    process = rig.start()
    assert exit_code(process) == ExitCode.FAILED
    state, reason = rig.state()
    assert state == "FAILED"
    assert "FOREBAY_BLOCK_KEY: No such file or directory" in reason
    assert reason.endswith(f"into {rig.block_keys[0]}")
    assert (rig.epochs(), rig.segments()) == ([], [])
    held.write_text("hunter2hunter2")
    held.rename(tmp_path / "keys" / "one")
    rig.assign(2)
    assert exit_code(rig.start(2)) == ExitCode.FAILED
    assert "holds no key" in rig.state()[1]
    with connect(rig.engine) as connection:
        assert b"hunter2" not in dump(connection)
    assert "hunter2" not in rig.logs()


def test_records_and_dead_letters_are_printed_with_the_key_only(database_url: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.MonkeyPatch.context() as patch:
        rig = ReceiverRig.on_socket(database_url, tmp_path / "receiver", listener.getsockname()[1])
        key = key_file(tmp_path / "keys" / "one")
        rig.block_keys = (key,)
        patch.setenv("FOREBAY_DATABASE_URL", database_url)
        patch.setenv("FOREBAY_BLOCK_STORE", rig.block_store)
        patch.setenv("FOREBAY_HOME", str(tmp_path / "home"))
        sent = threading.Event()

        def send() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"a line\nstra\xdfe\nna\xefve\n")
                sent.wait(60)

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        try:
            rig.start()
            eventually(lambda: rig.has_records(1), "the line")
            eventually(lambda: len(rig.dead_letters()) == 2, "the dead letters")
            [(sequence,)] = rig.execute("SELECT sequence FROM forebay.blocks WHERE segment_id IS NOT NULL")
            [(letter,)] = rig.execute("SELECT id FROM forebay.dead_letters")
            for words in (["blocks", "records", "lines/1", str(sequence)], ["blocks", "dead-letter", str(letter)]):
                result = CliRunner().invoke(app, words)
                assert result.exit_code == 1
                assert key_id(key) in result.stderr
            patch.setenv("FOREBAY_BLOCK_KEYS_FOR_READING", key)
            assert command("blocks", "records", "lines/1", str(sequence)) == (0, '{"value": "a line"}\n')
            found = CliRunner().invoke(app, ["blocks", "dead-letter", str(letter)])
            assert (found.exit_code, found.stdout_bytes) == (0, b"stra\xdfe\nna\xefve\n")
            one = ["blocks", "dead-letter", str(letter), "--letter", "2"]
            assert CliRunner().invoke(app, one).stdout_bytes == b"na\xefve"
            assert command(*one, "--to", str(tmp_path / "letter"))[0] == 0
            assert (tmp_path / "letter").read_bytes() == b"na\xefve"
            assert command("blocks", "dead-letter", str(letter), "--letter", "3")[0] == 1
            assert command("blocks", "dead-letter", "987654")[0] == 1
        finally:
            sent.set()
            rig.close()
            sender.join(20)


def test_on_replicas_every_copy_is_encrypted_and_repaired_without_the_key(
    rig: ReceiverRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.roots = f"{tmp_path / 'a'},{tmp_path / 'b'}"
    monkeypatch.setenv("FOREBAY_BLOCK_STORE", rig.roots)
    process = rig.start()
    eventually(lambda: rig.records() > 50, "50 records")
    process.send_signal(signal.SIGTERM)
    assert exit_code(process) == ExitCode.STOPPED
    for root in ("a", "b"):
        path, *_ = sorted((tmp_path / root).rglob("*.segment"))
        kinds = [
            (item.header.kind, item.header.encrypted)
            for item in rig.store.scan(path.relative_to(tmp_path / root).as_posix())
            if isinstance(item, IntactFrame)
        ]
        assert {encrypted for kind, encrypted in kinds if kind is not FrameKind.NOTE} == {True}
    content = path.read_bytes()
    flipped = bytearray(content)
    # In the first block: the last frame may be the dead letter of a line that broke off.
    flipped[100] ^= 1
    path.write_bytes(flipped)
    # Without the key the damage is found and repaired.
    code, report = verified()
    assert code == 1
    assert [item["lacking"] != {} for item in report["replicas"]] == [False, True]
    assert command("blocks", "repair", "--json")[0] == 0
    assert path.read_bytes() == content
