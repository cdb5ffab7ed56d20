"""Run docs/runbooks/dead-letters.md in its order, on a receiver that gets lines in another encoding than declared."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from forebay.testing.receiver_processes import eventually
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from tests.integration.receiver_runtime.receiver_rig import ReceiverRig
from tests.integration.receiver_runtime.typed_rig import Orders
from tests.support.machine.held_ports import held_port
from tests.support.pages.runbook import blocks, page_environment, run_commands, sections
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from pathlib import Path

    import sqlalchemy as sa

_MODULE = """
from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText

lines = Stream("lines", SocketText(listen="127.0.0.1:{port}", encoding="iso8859-1", max_record_bytes=100))
pipeline = Pipeline("words", interval="10s")


@pipeline.output(inputs=[lines], sink=ParquetSink("counts"))
def counts(lines):
    return lines
"""


def test_letters_come_back_as_records_in_the_order_of_the_page(database_url: str, home: Path) -> None:
    parts = sections("dead-letters")
    first, said_by_receivers = blocks(parts["How to see it"], "sql")
    apply, _, send, write = blocks(parts["Cure"], "sh")
    [not_sent_again] = blocks(parts["How to know that it is cured"], "sql")
    with held_port() as port:
        source = SocketText(listen=f"127.0.0.1:{port}", max_record_bytes=10)
        rig = ReceiverRig.make(database_url, home, source.model_dump(mode="json"), block_interval="20ms")
        (home / "declared.py").write_text(_MODULE.format(port=port), encoding="utf-8")
        environment = page_environment(database_url, home)

        def run(commands: str) -> str:
            return run_commands(commands, environment, home)

        def rows(statement: str) -> int:
            with connect(rig.engine) as connection:
                return len(connection.exec_driver_sql(statement.replace("%", "%%")).all())

        def is_listening() -> bool:
            state, reason = rig.state()
            return state == "ACTIVE" and reason.startswith("listening on ")

        try:
            process = rig.start()
            eventually(is_listening, "the receiver")
            assert (rows(first), rows(not_sent_again)) == (0, 0)
            _send(port, b"caf\xe9\nna\xefve\n")
            eventually(lambda: len(rig.dead_letters()) == 2, "the letters of the row 1")
            _send(port, b"longer than declared\n")
            eventually(lambda: len(rig.dead_letters()) == 3, "the letter of the row 2")
            eventually(lambda: rows(said_by_receivers) > 0, "the receiver's event")
            assert (rows(first), rows(not_sent_again)) == (2, 2)
            seen = "".join(run(commands) for commands in blocks(parts["How to see it"], "sh"))
            assert "caf\\xe9" in seen

            applied = run(apply)
            assert "encoding" in applied
            process.wait(60)
            [(assignment,)] = rig.execute("SELECT assignment FROM forebay.receivers")
            rig.assign(assignment)
            rig.start(assignment)
            eventually(is_listening, "the receiver with the new declaration")

            sent = run(send)
            assert "listening on" in sent
            assert f"2 record(s) of lines would go to 127.0.0.1:{port}" in sent
            assert f"2 record(s) of lines went to 127.0.0.1:{port}" in sent
            eventually(lambda: rig.records() == 2, "the records of the row 1")
            assert rows(not_sent_again) == 1
            run(write)
            assert rows(not_sent_again) == 0
            written = (home / "letters.txt").read_bytes()
            assert written == b"longer than declared"
            _send(port, written + b"\n")
            eventually(lambda: rig.records() == 3, "the record of the row 2")
            assert rig.values() == ["café", "naïve", "longer than declared"]
            assert len(rig.dead_letters()) == 3, "no letter is new"
        finally:
            rig.close()


def test_letters_of_a_typed_stream_are_parsed_again_by_the_commands_of_the_page(
    engine: sa.Engine, database_url: str, home: Path
) -> None:
    [commands] = [text for text in blocks(sections("dead-letters")["Cure"], "sh") if "show 3" in text]
    with connect(engine) as connection:
        connection.exec_driver_sql("SELECT setval('forebay.dead_letters_id_seq', 2)")
    rig = Orders.begun(database_url, home)
    try:
        rig.declare("item STRING, pieces BIGINT")
        with rig.tracker():
            said = run_commands(commands, page_environment(database_url, home), home)
        assert "it fits by now" in said
        assert "2 of 3 record(s) would go to lines" in said
        assert "Dead letter 3: 2 record(s) of lines are in a block; 1 still do not fit, and stay." in said
        assert sorted(map(str, rig.values())) == ["None", "None", "tea"]
    finally:
        rig.close()


def _send(port: int, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(data)
