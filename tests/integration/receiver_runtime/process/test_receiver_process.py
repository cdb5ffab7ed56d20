"""Test receiver processes as the agent starts them, on a real driver log and real files."""

from __future__ import annotations

import random
import resource
import signal
import socket
import time
from pathlib import Path

import pytest

from forebay.testing.cutting_proxy import CuttingProxy, through
from forebay.testing.receiver_processes import eventually
from receiver_runtime.watching.exit_codes import ExitCode
from tests.integration.receiver_runtime.receiver_rig import NumberedSource, ReceiverRig, exit_code
from tracker_store.schema.states import ReceiverEventKind


def numbers(values: list[str]) -> list[int]:
    return [int(value) for value in values]


def assert_each_once_in_order(values: list[str]) -> None:
    got = numbers(values)
    assert got == sorted(set(got)), "a line came twice, or out of order"


def test_s04_lines_are_registered_and_a_stop_drains_the_lines_that_were_read(
    rig: ReceiverRig, source: NumberedSource
) -> None:
    process = rig.start()
    eventually(lambda: rig.records() > 200, "200 records")
    eventually(lambda: rig.state() == ("ACTIVE", f"connected to 127.0.0.1:{source.port}"), "its state")
    source.pause()
    eventually(lambda: rig.records() >= source.sent, "all that was sent")
    process.send_signal(signal.SIGTERM)
    assert exit_code(process) == ExitCode.STOPPED
    assert numbers(rig.values()) == list(range(source.sent))
    assert rig.state() == ("INACTIVE", "SIGTERM")
    assert rig.events() == [ReceiverEventKind.STARTED, ReceiverEventKind.CONNECTED, ReceiverEventKind.STOPPED]
    assert [(row.ended_at is not None, row.end_reason) for row in rig.execute("SELECT * FROM forebay.processes")] == [
        (True, "SIGTERM")
    ]
    segments = rig.segments()
    assert segments
    for path, state, length in segments:
        assert (state, length) == ("SEALED", (rig.root / "blocks" / path).stat().st_size)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="asks Linux what a process has mapped")
def test_a_receiver_that_registers_records_has_not_loaded_pandas(rig: ReceiverRig) -> None:
    process = rig.start()
    eventually(lambda: rig.records() > 200, "200 records")
    mapped = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")
    assert "/pyarrow/" in mapped
    assert "/pandas/" not in mapped


# Runs in a receiver process: it reads the assignment that was in force a moment before.
_READS_AN_OLD_ASSIGNMENT = """
from dataclasses import replace
from receiver_runtime.process import receiver_start
now = receiver_start.get_receiver
receiver_start.get_receiver = lambda connection, receiver_id: replace(now(connection, receiver_id), assignment=4)
"""


def test_s02_a_process_whose_claim_is_refused_reads_nothing(rig: ReceiverRig, source: NumberedSource) -> None:
    rig.assign(5)
    assert exit_code(rig.start(assignment=4)) == ExitCode.FENCED
    assert exit_code(rig.start(assignment=6)) == ExitCode.FENCED
    # The claim itself is refused: the assignment changes after the process has read it.
    assert exit_code(rig.start(assignment=4, first=_READS_AN_OLD_ASSIGNMENT)) == ExitCode.FENCED
    assert (rig.epochs(), source.sent) == ([], 0)
    assert rig.state()[0] == "SCHEDULED"
    rig.start(assignment=5)
    eventually(lambda: source.sent, "lines that are read under the assignment in force")


def test_a_receiver_ends_when_its_parent_has_ended(rig: ReceiverRig, source: NumberedSource) -> None:
    process = rig.start()
    eventually(lambda: rig.records() > 20, "20 records")
    assert process.stdin is not None
    process.stdin.close()
    assert exit_code(process) == ExitCode.STOPPED
    assert rig.state() == ("INACTIVE", "the parent process is gone")


def test_an_operator_pauses_resumes_and_stops_it(rig: ReceiverRig, source: NumberedSource) -> None:
    rig.desire("paused")
    process = rig.start()
    eventually(lambda: rig.state()[0] == "PAUSED", "PAUSED")
    assert source.sent == 0
    heartbeat = "SELECT heartbeat FROM forebay.processes"
    [(before,)] = rig.execute(heartbeat)
    eventually(lambda: rig.execute(heartbeat)[0][0] > before, "a heartbeat while paused")
    rig.desire("running")
    eventually(lambda: rig.records() > 20, "20 records")
    eventually(lambda: rig.state()[0] == "ACTIVE", "ACTIVE")
    rig.desire("stopped")
    assert exit_code(process) == ExitCode.STOPPED
    assert rig.state()[0] == "INACTIVE"


def test_a_receiver_shows_that_it_waits_for_a_missing_source(database_url: str, tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        rig = ReceiverRig.on_socket(database_url, tmp_path / "receiver", port)
        try:
            rig.start()
            eventually(lambda: "trying again: Error connecting to" in rig.state()[1], "the reason")
            assert rig.state()[0] == "ACTIVE"
            # The event is written after the reason. Meanwhile more attempts have failed, each for the same reason.
            eventually(lambda: ReceiverEventKind.RESTARTED in rig.events(), "the event")
            time.sleep(0.5)
            assert rig.events().count(ReceiverEventKind.RESTARTED) == 1
            unused.listen()
            connection, _ = unused.accept()
            with connection:
                connection.sendall(b"at last\n\xff\n")
                eventually(lambda: rig.values() == ["at last"] and rig.dead_letters(), "the line")
            assert rig.dead_letters() == [("invalid_encoding", b"\xff")]
            eventually(lambda: ReceiverEventKind.BAD_RECORD in rig.events(), "the event")
        finally:
            rig.close()


def test_w02_answers_cut_in_mid_word_lose_and_double_nothing(rig: ReceiverRig, source: NumberedSource) -> None:
    proxy = CuttingProxy(rig.database_url)
    try:
        process = rig.start(database_url=through(rig.database_url, proxy.port))
        eventually(lambda: rig.records() > 50, "50 records")
        chance = random.Random(7)
        while proxy.cuts < 20:
            eventually(lambda: proxy.connections, "a connection")
            time.sleep(chance.uniform(0.0, 0.05))
            proxy.cut()
        # Then unavailable for a while: the receiver keeps its data and continues on its own.
        proxy.away = True
        proxy.cut()
        time.sleep(2.0)
        assert process.poll() is None
        proxy.away = False
        source.pause()
        eventually(lambda: rig.records() >= source.sent, "all that was sent")
        process.send_signal(signal.SIGTERM)
        assert exit_code(process) == ExitCode.STOPPED, rig.logs()
        assert numbers(rig.values()) == list(range(source.sent))
        assert len(rig.epochs()) == 1
    finally:
        proxy.close()


def test_a_stop_before_the_driver_log_can_be_reached_ends_it(rig: ReceiverRig) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        process = rig.start(database_url=through(rig.database_url, port))
        eventually(lambda: "the driver log is unavailable" in rig.logs(), "the warning")
        process.send_signal(signal.SIGTERM)
        assert exit_code(process) == ExitCode.STOPPED


def test_a_second_signal_ends_a_receiver_at_once(rig: ReceiverRig, source: NumberedSource) -> None:
    proxy = CuttingProxy(rig.database_url)
    try:
        process = rig.start(database_url=through(rig.database_url, proxy.port))
        eventually(lambda: rig.records() > 20, "20 records")
        proxy.away = True
        proxy.cut()
        sent = source.sent
        eventually(lambda: source.sent > sent + 20, "lines that can't be registered")
        process.send_signal(signal.SIGTERM)
        # Two pending signals would be delivered as one.
        eventually(lambda: "receiver ends" in rig.logs(), "the first is heard")
        with pytest.raises(Exception, match="timed out"):
            process.wait(1.0)
        process.send_signal(signal.SIGTERM)
        assert exit_code(process) == ExitCode.FAILED
    finally:
        proxy.close()
    assert_each_once_in_order(rig.values())


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="asks Linux for another process's limit")
def test_a_process_may_have_as_many_descriptors_as_the_system_allows(rig: ReceiverRig) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1000, soft), hard))
    try:
        process = rig.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    eventually(lambda: rig.state()[0] == "ACTIVE", "its state")
    raised, _ = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    assert raised == (2**20 if hard == resource.RLIM_INFINITY else hard)
