"""Check that processes of the version before continue during an upgrade of the driver log, and after it.

`statements.json` holds the statements that the newest release sends, each once, by role
(`tests/support/postgres/recorded_statements.py` records it at a release), and the commit that sent them.
"""

from __future__ import annotations

import json
import threading
from contextlib import closing
from pathlib import Path
from typing import Self

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from tests.integration.receiver_runtime.receiver_rig import NumberedSource, ReceiverRig
from tests.support.driver_log.log import INTERVAL, NOON, make_log
from tests.support.polling import eventually
from tracker_store.batches.received_block_tracker import ReceivedBlockTracker
from tracker_store.connection.engine import connect, is_outcome_unknown, is_refused
from tracker_store.install import migrate
from tracker_store.reports.checks import check_data, check_schema

HERE = Path(__file__).parent
STATEMENTS: dict[str, list[str]] = json.loads((HERE / "statements.json").read_text(encoding="utf-8"))["statements"]
_FIRST_SEQUENCE = 2


@pytest.mark.parametrize("role", STATEMENTS)
def test_statements_of_the_version_before_have_their_tables_functions_and_rights(engine: sa.Engine, role: str) -> None:
    """Plan the statements in the role without running them: a missing table, column, function or right still fails."""
    refused: dict[str, str] = {}
    with connect(engine) as connection:
        connection.exec_driver_sql(f"SET ROLE {role}")
        for statement in STATEMENTS[role]:
            text = statement if statement.startswith("PREPARE ") else f"EXPLAIN {statement}"
            try:
                connection.exec_driver_sql(text.replace("%", "%%"))
            except DBAPIError as error:
                refused[statement] = str(error.orig).strip()
        connection.exec_driver_sql("RESET ROLE")
    assert len(STATEMENTS[role]) > 20
    assert refused == {}


class ReceiverOfTheVersionBefore:
    """Register one block after the other with the previous version's statements; like it, resend what got no answer."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="receiver of the version before")
        self._failure: BaseException | None = None
        self.acknowledged = 0
        with connect(engine) as connection:
            self._receiver, self._process, self._segment, self._epoch = self._declare_and_claim(connection)

    @staticmethod
    def _declare_and_claim(connection: sa.Connection) -> tuple[int, int, int, int]:
        def scalar(statement: str) -> int:
            found: int = connection.exec_driver_sql(statement).scalar_one()
            return found

        stream = scalar("INSERT INTO forebay.streams (name, declaration) VALUES ('lines', '{}') RETURNING id")
        receiver = scalar(f"INSERT INTO forebay.receivers (stream_id, ordinal) VALUES ({stream}, 1) RETURNING id")
        process = scalar(
            "INSERT INTO forebay.processes (kind, name, host, pid) VALUES ('receiver', 'lines/1', 'h', 1) RETURNING id"
        )
        claimed = connection.exec_driver_sql(
            f"SELECT outcome, epoch, sequence FROM forebay.claim({receiver}, 0, 0)"
        ).one()
        assert (claimed.outcome, claimed.sequence) == ("claimed", _FIRST_SEQUENCE - 1)
        segment = scalar(
            "INSERT INTO forebay.log_segments (receiver_id, epoch, path, source_rule, store, durability) "
            f"VALUES ({receiver}, {claimed.epoch}, 'lines/1', 'not_sent_again', NULL, 'durable') RETURNING id"
        )
        return receiver, process, segment, claimed.epoch

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def has_sent(self, more: int) -> None:
        """Wait until this number of further blocks is acknowledged."""
        goal = self.acknowledged + more
        eventually(lambda: self._failure or self.acknowledged >= goal, f"{more} more blocks")
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._send()
                except DBAPIError as error:
                    if not (is_refused(error) or is_outcome_unknown(error)):
                        raise
        except BaseException as error:  # noqa: BLE001  raised by has_sent
            self._failure = error

    def _send(self) -> None:
        with connect(self._engine) as connection:
            connection.exec_driver_sql("DEALLOCATE ALL")
            connection.exec_driver_sql(
                "PREPARE add (bigint, bigint, bigint, bigint, bigint, bigint, bigint, bigint, bigint) AS "
                "SELECT outcome, detail, rate_limit, desired_state, assignment "
                "FROM forebay.add_one_block($1, $2, $3, $4, $5, $6, $7, $8, $9)"
            )
            while not self._stop.is_set():
                sequence = _FIRST_SEQUENCE + self.acknowledged
                added = connection.exec_driver_sql(
                    f"EXECUTE add({self._receiver}, {self._epoch}, {sequence}, 10, 100, {self._segment}, "
                    f"{sequence * 100}, 100, {sequence})"
                ).one()
                assert added.outcome in ("added", "already added"), added
                self.acknowledged += 1
                if self.acknowledged % 10 == 0:
                    beat = connection.exec_driver_sql(
                        "SELECT alive, ids, rate_limits, desired_states, assignments "
                        f"FROM forebay.heartbeat({self._process}, ARRAY[{self._receiver}]::bigint[], '{{}}', true)"
                    )
                    assert [row.alive for row in beat] == [True]


def failed_checks(connection: sa.Connection) -> set[str]:
    return {check.check for check in [*check_schema(connection), *check_data(connection)] if not check.passed}


def test_a_receiver_of_the_version_before_continues_during_an_upgrade_of_the_driver_log(
    version_after: str, engine: sa.Engine, database_url: str
) -> None:
    with ReceiverOfTheVersionBefore(engine) as receiver:
        receiver.has_sent(20)
        migrate.upgrade(database_url)
        receiver.has_sent(20)
    with connect(engine) as connection:
        assert migrate.current_revision(connection) == version_after
        registered, records = connection.exec_driver_sql(
            "SELECT count(*), max(total_records) FROM forebay.blocks WHERE segment_id IS NOT NULL"
        ).one()
        assert (registered, records) == (receiver.acknowledged, receiver.acknowledged * 10), "nothing lost or doubled"
        assert failed_checks(connection) == {"tables_are_as_declared"}, (
            "it has tables that this version does not declare"
        )


def test_going_to_a_newer_revision_and_back_keeps_the_log(
    engine: sa.Engine, database_url: str, version_after: str
) -> None:
    with connect(engine) as connection:
        before = migrate.current_revision(connection)
        assert before is not None
        log = make_log(connection)
        log.add_at(log.receiver_ids[0], NOON - INTERVAL, NOON + INTERVAL / 2)
        log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
        before = migrate.current_revision(connection)
    assert before is not None
    migrate.upgrade(database_url)
    migrate.downgrade(database_url, before)
    with connect(engine) as connection:
        assert migrate.current_revision(connection) == before
        assert sa.inspect(connection).get_view_names("forebay") == []
    migrate.upgrade(database_url)
    with connect(engine) as connection:
        assert migrate.current_revision(connection) == version_after
        assert failed_checks(connection) == {"tables_are_as_declared"}, (
            "it has tables that this version does not declare"
        )
        tracker = ReceivedBlockTracker(connection, log.pipeline_id)
        assert [block.records for block in tracker.get_blocks_of_batch(NOON + INTERVAL)] == [10, 10]


def test_a_running_receiver_continues_while_functions_and_views_are_replaced(database_url: str, tmp_path: Path) -> None:
    with (
        closing(NumberedSource()) as source,
        closing(ReceiverRig.on_socket(database_url, tmp_path, source.port)) as rig,
    ):
        process = rig.start()
        eventually(lambda: rig.has_records(20), "records before the upgrade")
        for _ in range(5):
            # As if another version had been installed.
            rig.execute("COMMENT ON SCHEMA forebay IS 'functions, views and rights: 0123'")
            migrate.upgrade(database_url)
            goal = rig.records() + 20
            eventually(lambda goal=goal: rig.has_records(goal), "records after the upgrade")  # type: ignore[misc]
        source.pause()
        eventually(lambda: rig.records() == source.sent, "all that was sent")
        assert process.poll() is None, rig.logs()
        assert rig.values() == [str(number) for number in range(source.sent)]
        assert len(rig.epochs()) == 1, "it was one process all the time"


def test_a_receiver_waits_for_the_release_that_changed_a_function(database_url: str, tmp_path: Path) -> None:
    """Check this because a function with other arguments failed a receiver for good within a second."""
    with (
        closing(NumberedSource()) as source,
        closing(ReceiverRig.on_socket(database_url, tmp_path, source.port)) as rig,
    ):
        process = rig.start()
        eventually(lambda: rig.has_records(20), "records before the change")
        for name in ("add_block", "add_one_block", "heartbeat"):
            rig.execute(f"DROP FUNCTION forebay.{name}")
            rig.execute(f"CREATE FUNCTION forebay.{name}(text) RETURNS text LANGUAGE sql AS 'SELECT NULL'")
        eventually(lambda: "`forebay db upgrade`" in rig.state()[1], "the receiver says what to do")
        # As if the release of this process had been installed again.
        rig.execute("COMMENT ON SCHEMA forebay IS 'functions, views and rights: 0123'")
        migrate.upgrade(database_url)
        goal = rig.records() + 20
        eventually(lambda: rig.has_records(goal), "records after the change")
        source.pause()
        eventually(lambda: rig.records() == source.sent, "all that was sent")
        assert process.poll() is None, rig.logs()
        assert rig.values() == [str(number) for number in range(source.sent)]
        assert len(rig.epochs()) == 1, "it was one process all the time"


def test_a_function_is_replaced_in_place_because_it_may_be_running(engine: sa.Engine, database_url: str) -> None:
    def functions(connection: sa.Connection) -> dict[str, int]:
        found = connection.exec_driver_sql(
            "SELECT oid::regprocedure::text, oid::bigint FROM pg_proc WHERE pronamespace = 'forebay'::regnamespace"
        )
        return {signature.removeprefix("forebay."): oid for signature, oid in found}

    with connect(engine) as connection:
        before = functions(connection)
        # From another version: one with another result, one with other parameters, and another text for all.
        connection.exec_driver_sql("DROP FUNCTION forebay.known_keys")
        connection.exec_driver_sql("CREATE FUNCTION forebay.known_keys() RETURNS integer LANGUAGE sql AS 'SELECT 1'")
        connection.exec_driver_sql("DROP FUNCTION forebay.leads")
        connection.exec_driver_sql("CREATE FUNCTION forebay.leads(bigint) RETURNS integer LANGUAGE sql AS 'SELECT 1'")
        connection.exec_driver_sql("COMMENT ON SCHEMA forebay IS 'of another version'")
    migrate.upgrade(database_url)
    with connect(engine) as connection:
        after = functions(connection)
        assert [check for check in check_schema(connection) if not check.passed] == []
    assert set(after) == set(before)
    moved = {signature for signature, oid in before.items() if after[signature] != oid}
    assert {signature.partition("(")[0] for signature in moved} == {"known_keys", "leads"}
