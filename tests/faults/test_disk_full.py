"""Fill the disk of logs and blocks for a while: no thread ends, nothing is lost, and all resumes without help."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from forebay.testing.receiver_processes import eventually
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from receiver_runtime.watching.exit_codes import ExitCode
from tests.integration.receiver_runtime.receiver_rig import NumberedSource, ReceiverRig, exit_code
from tests.support.systems.driver_log_server import MountRefusedError, fill, small_file_system
from tracker_store.batches.pipelines import apply_stream
from tracker_store.connection.engine import connect
from tracker_store.receivers.receivers import placements
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Seconds within which, as operators are promised, data is acknowledged after the disk has space again.
_ACKNOWLEDGED_WITHIN = 60.0
_PAGE = 4096


class Sender:
    """Send numbers over HTTP, one by one, each until it is acknowledged."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.acknowledged = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(90)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._send(self.acknowledged):
                self.acknowledged += 1
            else:
                self._stopping.wait(0.2)

    def _send(self, number: int) -> bool:
        connection = http.client.HTTPConnection(self._address, timeout=60)
        try:
            headers = {"Content-Type": "application/json", "Idempotency-Key": f"number-{number}"}
            connection.request("POST", "/v1/lines", b"%d" % number, headers)
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with ExitStack() as stack:
        try:
            made = stack.enter_context(small_file_system(tmp_path / "disk", "16m"))
        except MountRefusedError as error:
            pytest.skip(str(error))
        yield made


@pytest.fixture
def source() -> Iterator[NumberedSource]:
    made = NumberedSource()
    yield made
    made.close()


def start(rigs: list[ReceiverRig], log: Path) -> subprocess.Popen[bytes]:
    """Start one process for all receivers, as an agent does."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "forebay.cli", "receiver"),
                *(word for rig in rigs for word in ("--receiver", f"{rig.receiver_id}:1")),
            ],
            env={
                **os.environ,
                "FOREBAY_DATABASE_URL": rigs[0].database_url,
                "FOREBAY_BLOCK_STORE": rigs[0].block_store,
            },
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    rigs[0].processes.append(process)
    return process


def test_a_full_disk_ends_no_thread_and_loses_nothing(database_url: str, disk: Path, source: NumberedSource) -> None:
    pushing = ReceiverRig.make(
        database_url,
        disk / "receiver",
        Http(listen="127.0.0.1:0", acknowledgement_timeout=5.0).model_dump(mode="json"),
        block_interval="20ms",
    )
    with ExitStack() as stack:
        stack.callback(pushing.close)
        with connect(pushing.engine) as connection:
            declaration = {
                "source": SocketText(host="127.0.0.1", port=source.port).model_dump(mode="json"),
                "settings": {"block_interval": "20ms"},
            }
            apply_stream(connection, name="more", declaration=declaration, receivers=1)
            [other] = [one for one in placements(connection) if one.receiver_id != pushing.receiver_id]
        reading = ReceiverRig(database_url, pushing.root, pushing.engine, other.receiver_id)
        reading.assign(1)
        log = disk / "receiver.log"
        process = start([pushing, reading], log)
        eventually(lambda: pushing.state()[1].startswith("listening on "), "the listener")
        sender = Sender(pushing.state()[1].removeprefix("listening on "))
        stack.callback(sender.stop)
        eventually(lambda: sender.acknowledged > 20, "numbers that are acknowledged")
        eventually(lambda: reading.records() > 100, "lines that are registered")

        fill(disk / "ballast")
        for rig in (pushing, reading):
            eventually(lambda rig=rig: "No space left on device" in rig.state()[1], "the reason")  # type: ignore[misc]
        # Log lines still fit into the file's last page; once that is full, every line fails.
        eventually(lambda: log.stat().st_size % _PAGE == 0, "a log that takes nothing more")
        failing = sender.acknowledged, reading.records()
        eventually(lambda: "No space left on device" in reading.state()[1], "the reason, still")
        assert process.poll() is None
        assert (sender.acknowledged, reading.records()) == failing

        sent, acknowledged = source.sent, sender.acknowledged
        (disk / "ballast").unlink()
        eventually(lambda: reading.records() >= sent, "every line that was held", seconds=_ACKNOWLEDGED_WITHIN)
        eventually(lambda: sender.acknowledged > acknowledged, "an acknowledgement", seconds=_ACKNOWLEDGED_WITHIN)
        for rig in (pushing, reading):
            eventually(lambda rig=rig: rig.state()[1].startswith(("connected", "listening")), "its old reason")  # type: ignore[misc]
            assert rig.state()[0] == "ACTIVE"
        assert process.poll() is None
        eventually(
            lambda: "log lines could not be written: No space left on device" in log.read_text(), "the count of lines"
        )

        sender.stop()
        source.pause()
        eventually(lambda: reading.records() >= source.sent, "every line")
        process.send_signal(signal.SIGTERM)
        assert exit_code(process) == ExitCode.STOPPED
        assert [int(value) for value in reading.values()] == list(range(source.sent))
        assert [int(value) for value in pushing.values()] == list(range(sender.acknowledged))
        for rig in (pushing, reading):
            assert not {ReceiverEventKind.FAILED, ReceiverEventKind.RESTARTED, ReceiverEventKind.EXITED} & set(
                rig.events()
            )
