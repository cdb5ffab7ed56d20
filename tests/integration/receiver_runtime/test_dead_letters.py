"""Test a sender in the wrong encoding and a real receiver process: no loss, few rows for many dead letters."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

from forebay.testing.receiver_processes import eventually
from tests.integration.receiver_runtime.receiver_rig import ReceiverRig

if TYPE_CHECKING:
    from pathlib import Path

LINES = 10_000


def test_10000_lines_in_the_wrong_encoding_are_recorded_in_order_by_few_statements(
    database_url: str, tmp_path: Path
) -> None:
    bad = [b"stra\xdfe %05d" % number for number in range(LINES)]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        rig = ReceiverRig.on_socket(database_url, tmp_path / "receiver", listener.getsockname()[1])
        sent = threading.Event()

        def send() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"\n".join([*bad, b"good", b""]))
                sent.wait(60)

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        try:
            rig.start()
            eventually(lambda: rig.records() == 1, "the good line behind them")
            [(letters, rows)] = rig.execute(
                "SELECT sum(letters)::bigint, count(*) FROM forebay.dead_letters WHERE reason = :reason",
                reason="invalid_encoding",
            )
            # One row for what one read returned, never one for each dead letter. The receiver called this sender, so
            # there is no budget.
            assert (letters, rows <= LINES / 20) == (LINES, True), rows
            assert rig.values() == ["good"]
            assert [data for _, data in rig.dead_letters()] == bad
        finally:
            sent.set()
            rig.close()
            sender.join(20)
