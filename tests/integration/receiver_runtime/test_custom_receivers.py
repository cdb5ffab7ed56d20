"""Test custom receivers in real processes on a real driver log: the guarantees of `store`, and their columns."""

from __future__ import annotations

import json
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from forebay.sources import CustomSource
from forebay.testing.receiver_processes import eventually
from receiver_runtime.watching.exit_codes import ExitCode
from tests.integration.receiver_runtime.receiver_rig import ReceiverRig, exit_code
from tests.support.driver_log.log import claim_anew
from tracker_store.connection.engine import connect
from tracker_store.receivers.receivers import receiver_events
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Stores one item after another on request, and writes down what the driver log has when `store` returns.
MODULE = """
import json
import os
import socket
import threading
from pathlib import Path

import pyarrow as pa
import sqlalchemy as sa

from forebay.receiver import Receiver


class Told(Receiver):
    columns = (("word", "string"), ("count", "int64"))

    def __init__(self, url, directory):
        self.engine = sa.create_engine(url)
        self.directory = Path(directory)
        self.stopping = threading.Event()

    def on_start(self):
        self.thread = threading.Thread(target=self.obey, daemon=True)
        self.thread.start()

    def on_stop(self):
        # Its last answer is written before the process ends.
        self.stopping.set()
        self.thread.join()

    @property
    def preferred_location(self):
        return "near-the-feed"

    def what(self, name):
        rows = [("a", 1), ("b", 2)]
        schema = pa.schema([("word", pa.string()), ("count", pa.int64())])
        batch = pa.record_batch([["a", "b"], [1, 2]], schema=schema)
        if name == "list":
            return rows
        if name == "iterator":
            return iter(rows)
        if name == "batch":
            return batch
        if name == "table":
            return pa.Table.from_batches([batch, batch])
        if name == "reader":
            return pa.RecordBatchReader.from_batches(schema, [batch])
        if name == "record":
            return {"word": "alone"}
        if name == "nothing":
            return []
        if name == "no rows":
            return batch.slice(0, 0)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(batch)
        return sink.getvalue().to_pybytes() if name == "bytes" else sink.getvalue()

    def obey(self):
        done = 0
        while not self.stopping.wait(0.01):
            orders = sorted(self.directory.glob("*.order"))[done:]
            for order in orders:
                try:
                    self.store(self.what(order.read_text()))
                    answer = "stored"
                except Exception as error:
                    answer = type(error).__name__
                    self.report_error("store raised", error)
                with self.engine.connect() as connection:
                    records = connection.execute(sa.text("SELECT sum(records) FROM forebay.blocks")).scalar()
                answer = json.dumps([answer, int(records)])
                done += 1
                order.with_suffix(".new").write_text(answer)
                order.with_suffix(".new").rename(order.with_suffix(".answer"))


class Free(Told):
    is_bound_to_host = False


class Priced(Told):
    columns = (("word", "string"), ("count", "double"))


class Nothing(Told):
    columns = ()


class Unsigned(Told):
    schema = pa.schema([("word", pa.uint64())])


NO_CLASS = 1
"""
# The process learns only from a store that it is fenced: a heartbeat could come first and end it.
NO_HEARTBEATS = """
from receiver_runtime.block_path.registration.registrar import Registrar
Registrar.__init__.__kwdefaults__["heartbeat_interval"] = 300.0
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the working directory of receiver processes, with the module in it."""
    (tmp_path / "told.py").write_text(textwrap.dedent(MODULE), encoding="utf-8")
    (tmp_path / "orders").mkdir()
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield tmp_path
    sys.path[:] = before


def rig_for(name: str, database_url: str, work: Path, **settings: object) -> ReceiverRig:
    source = CustomSource(receiver=f"told:{name}", options={"url": database_url, "directory": "orders"})
    return ReceiverRig.make(database_url, work / "receiver", source.model_dump(mode="json"), **settings)


def order(work: Path, number: int, what: str) -> list[object]:
    """Order the receiver to store something; return the result, and the log's records when `store` returned."""
    path = work / "orders" / f"{number:03}.order"
    path.with_suffix(".told").write_text(what, encoding="utf-8")
    path.with_suffix(".told").rename(path)
    answer = path.with_suffix(".answer")
    eventually(answer.exists, f"an answer to {what}")
    found: list[object] = json.loads(answer.read_text(encoding="utf-8"))
    return found


def test_r02_r05_many_records_are_registered_when_store_returns_and_a_fenced_store_raises(
    database_url: str, work: Path
) -> None:
    # Within the test only `store` itself can cut a block of these.
    rig = rig_for("Told", database_url, work, block_interval="300s")
    try:
        rig.start(first=NO_HEARTBEATS)
        records = 0
        for number, (what, count) in enumerate(
            [("list", 2), ("iterator", 2), ("batch", 2), ("table", 4), ("reader", 2), ("bytes", 2), ("buffer", 2)]
        ):
            records += count
            assert order(work, number, what) == ["stored", records]
        # A single record is asynchronous: it waits in the buffer.
        assert order(work, 7, "record") == ["stored", records]
        # Another process takes the receiver over: what is stored from now on is refused, and `store` raises.
        with connect(rig.engine) as connection:
            claim_anew(connection, rig.receiver_id, assignment=1)
        assert order(work, 8, "list") == ["ReceiverFencedError", records]
        assert exit_code(rig.processes[0]) == ExitCode.FENCED
        [(counted,)] = rig.execute("SELECT count(*) FROM forebay.blocks WHERE segment_id IS NOT NULL")
        assert counted == 7
    finally:
        rig.close()


def test_h05_a_block_without_records_is_refused_by_name_and_receiving_goes_on(database_url: str, work: Path) -> None:
    rig = rig_for("Told", database_url, work)
    try:
        rig.start()
        assert order(work, 0, "nothing") == ["EmptyBlockError", 0]
        assert order(work, 1, "no rows") == ["EmptyBlockError", 0]
        assert rig.execute("SELECT count(*) FROM forebay.blocks WHERE segment_id IS NOT NULL") == [(0,)]
        assert order(work, 2, "list") == ["stored", 2]
        with connect(rig.engine) as connection:
            [detail] = {
                detail
                for kind, _, detail in receiver_events(connection, rig.receiver_id)
                if kind is ReceiverEventKind.ERROR
            }
        assert detail == (
            f"EmptyBlockError: receiver {rig.receiver_id} stored many records as one block, and there were 0. Leave "
            "the call out when there is nothing to store: a block holds at least one record."
        )
    finally:
        rig.close()


@pytest.mark.parametrize(("name", "bound"), [("Told", True), ("Free", False)])
def test_r01_its_row_has_the_host_that_it_asks_for_and_whether_it_is_bound_to_its_host(
    database_url: str, work: Path, name: str, *, bound: bool
) -> None:
    rig = rig_for(name, database_url, work)
    try:
        # As a stream that was declared otherwise before has left it.
        rig.execute("UPDATE forebay.receivers SET bound_to_host = :other", other=not bound)
        rig.start()
        eventually(lambda: rig.state()[0] == "ACTIVE", "ACTIVE")
        assert rig.execute("SELECT preferred_location, bound_to_host FROM forebay.receivers") == [
            ("near-the-feed", bound)
        ]
    finally:
        rig.close()


def test_a_receiver_with_a_changed_type_fails_with_column_and_types_and_changes_nothing(
    database_url: str, work: Path
) -> None:
    rig = rig_for("Told", database_url, work)
    try:
        rig.start()
        assert order(work, 0, "list") == ["stored", 2]
        blocks = rig.execute("SELECT count(*) FROM forebay.blocks")
        rig.execute(
            "UPDATE forebay.streams SET declaration = jsonb_set(declaration, '{source,receiver}', '\"told:Priced\"')"
        )
        rig.assign(2)
        assert exit_code(rig.processes[0]) == ExitCode.FENCED
        assert exit_code(rig.start(assignment=2)) == ExitCode.FAILED
        assert rig.state() == (
            "FAILED",
            (
                'column "count" is double, the stream has "count" as int64 since version 1. Give the column another '
                "name, or declare another stream: a column keeps its type while the stream lives."
            ),
        )
        assert rig.execute("SELECT count(*) FROM forebay.blocks") == blocks
        # An agent starts no process for a receiver in state FAILED.
        assert rig.execute("SELECT agent_id FROM forebay.receivers") == [(None,)]
    finally:
        rig.close()


@pytest.mark.parametrize(
    ("receiver", "reason"),
    [
        ("told:Missing", "receiver: the module 'told' has no 'Missing': correct the name"),
        ("told:NO_CLASS", "receiver: 'told:NO_CLASS' is no class: name a child of forebay.receiver.Receiver"),
        ("pathlib:Path", "receiver: 'pathlib:Path' is no receiver: make it a child of forebay.receiver.Receiver"),
        ("told:Nothing", "receiver told:Nothing: a receiver's schema has no column: declare at least one"),
        ("told:Unsigned", "receiver told:Unsigned: column 'word': the type uint64 can't be read by Spark"),
        ("no_such", "receiver: no package that is installed here has 'no_such' in the entry point group"),
    ],
)
def test_a_receiver_that_can_not_be_created_fails_with_a_fix(
    database_url: str, work: Path, receiver: str, reason: str
) -> None:
    options: dict[str, object] = {"url": database_url, "directory": "orders"} if receiver != "pathlib:Path" else {}
    source = {"kind": "custom", "receiver": receiver, "options": options}
    rig = ReceiverRig.make(database_url, work / "receiver", source)
    try:
        assert exit_code(rig.start()) == ExitCode.FAILED
        state, said = rig.state()
        assert (state, said[: len(reason)]) == ("FAILED", reason)
    finally:
        rig.close()
