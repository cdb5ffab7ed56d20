"""Test the three roles: each does its whole job with the statements of the product, and nothing more."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import ProgrammingError

from tests.support.driver_log.log import (
    INTERVAL,
    NOON,
    add,
    block,
    claim_anew,
    make_log,
    new_segment,
    oldest_unfinished_batch,
    seal,
)
from tests.support.driver_log.placing import schedule_receiver
from tracker_store.batches.batches import (
    attempts_of_ended_processes,
    claim_attempt,
    complete_batch,
    fail_attempt,
)
from tracker_store.batches.outputs import commit_output, commits_of_batch
from tracker_store.batches.pipelines import apply_pipeline, apply_stream, get_pipeline, list_streams
from tracker_store.blocks.block_stores import attach_block_store
from tracker_store.blocks.blocks import AddOutcome, NewBlock, OffsetLink, known_keys, open_partition
from tracker_store.blocks.dead_letters import StoredDeadLetter, add_dead_letters
from tracker_store.blocks.segments import (
    EpochEnd,
    count_blocks_of_segment,
    end_of_epoch,
    open_segments_before,
    salvage_blocks,
    seal_salvaged,
)
from tracker_store.connection.engine import connect, create_engine
from tracker_store.install import migrate, roles
from tracker_store.install.programs import FUNCTIONS, is_trigger_function
from tracker_store.receivers.agents import forget_host, set_draining
from tracker_store.receivers.hand_overs import (
    begin_hand_over,
    finish_rebalance_requests,
    list_hand_overs,
    list_rebalance_requests,
    predecessor_holds,
    request_rebalance,
    sign_off_receiver,
    take_over,
    withdraw_hand_over,
)
from tracker_store.receivers.leadership import Leadership, raise_counter, read_leadership, resign, take_leadership
from tracker_store.receivers.processes import (
    deregister_process,
    expire_process,
    heartbeat,
    live_processes,
    register_process,
)
from tracker_store.receivers.rates import StreamRate, record_stream_rate, set_rate_limits
from tracker_store.receivers.receivers import (
    add_host_receiver,
    get_receiver,
    placements,
    placements_on_agent,
    release_receivers,
    report_event,
    set_receiver_state,
)
from tracker_store.reports import status
from tracker_store.retention.cleanup import (
    Slice,
    clean_up_keys,
    clean_up_offsets,
    clean_up_receiver,
    forget_segment,
    receivers_to_clean_up,
    segments_to_delete,
    streams_to_clean_up,
)
from tracker_store.retention.history import pipelines_with_history
from tracker_store.schema.states import ProcessKind, ReceiverEventKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.testing.postgres import TestServer

RECEIVER = "forebay_receiver"
DRIVER = "forebay_driver"
OPERATOR = "forebay_operator"
INSUFFICIENT_PRIVILEGE = "42501"
# Functions that Postgres replaces by their one statement; only other functions call them.
PART_OF_STATEMENTS = {"predecessor"}
SECOND = timedelta(seconds=1)


@pytest.fixture
def owner(connection: sa.Connection) -> sa.Connection:
    return connection


@contextmanager
def acting_as(engine: sa.Engine, role: str) -> Iterator[sa.Connection]:
    """Yield a connection that has the rights of `role` alone."""
    with connect(engine) as connection:
        connection.exec_driver_sql(f"SET ROLE {role}")
        try:
            yield connection
        finally:
            connection.exec_driver_sql("RESET ROLE")


def test_a_receiver_process_and_its_agent_do_their_job(engine: sa.Engine, owner: sa.Connection) -> None:
    log = make_log(owner)
    [receiver] = log.receiver_ids
    with acting_as(engine, RECEIVER) as connection:
        agent = register_process(connection, kind=ProcessKind.AGENT, name="here", host="here", pid=1, slots=4)
    schedule_receiver(owner, term=0, receiver_id=receiver, agent_id=agent, why="a test")
    with acting_as(engine, RECEIVER) as connection:
        [placed] = placements_on_agent(connection, agent)
        assert get_receiver(connection, receiver).stream_name == "lines"
        process = register_process(connection, kind=ProcessKind.RECEIVER, name="lines 1", host="here", pid=2)
        assert not take_over(connection, receiver_id=receiver, assignment=placed.assignment + 1)
        assert not predecessor_holds(connection, receiver_id=receiver, assignment=placed.assignment)
        sign_off_receiver(connection, receiver_id=receiver, assignment=0, process_id=process)
        claimed = claim_anew(connection, receiver, placed.assignment)
        assert set_receiver_state(
            connection,
            receiver_id=receiver,
            assignment=placed.assignment,
            state=ReceiverState.ACTIVE,
            process_id=process,
        )
        assert open_segments_before(connection, receiver_id=receiver, epoch=claimed.epoch) == []
        segment = new_segment(connection, claimed, "a/b")
        assert segment == new_segment(connection, claimed, "a/b")
        open_partition(connection, receiver_id=receiver, source="orders", partition="0", start_offset=0)
        plain = block(claimed, 2, segment_id=segment)
        added = add(
            connection,
            NewBlock(
                plain.receiver_id,
                plain.epoch,
                plain.sequence,
                plain.records,
                plain.bytes,
                plain.handle,
                links=(OffsetLink("orders", "0", 0, 0, 10),),
                keys=("one",),
            ),
        )
        assert added.outcome is AddOutcome.ADDED
        assert known_keys(connection, receiver_id=receiver, keys=["one", "two"]) == {"one"}
        add_dead_letters(
            connection,
            [StoredDeadLetter("not UTF-8", 0, 3, block(claimed, 9, segment_id=segment).handle)],
            receiver_id=receiver,
            epoch=claimed.epoch,
        )
        report_event(
            connection, receiver_id=receiver, epoch=claimed.epoch, kind=ReceiverEventKind.ERROR, message="a test"
        )
        assert [response.receiver_id for response in heartbeat(connection, process_id=process, receiver_ids=[receiver])]
        # Its successor salvages a second segment of the first process.
        left = new_segment(connection, claimed, "a/c")
        seal(connection, segment, 2000)
        successor = claim_anew(connection, receiver, placed.assignment)
        [found] = open_segments_before(connection, receiver_id=receiver, epoch=successor.epoch)
        assert found.segment_id == left
        assert end_of_epoch(connection, receiver_id=receiver, epoch=claimed.epoch) == EpochEnd(2, known=True)
        salvaged = block(successor, successor.sequence + 1, segment_id=left)
        assert salvage_blocks(connection, [salvaged], salvaged_to=500) == (AddOutcome.ADDED, None)
        assert salvage_blocks(connection, [salvaged], salvaged_to=500) == (AddOutcome.ALREADY_ADDED, None)
        assert count_blocks_of_segment(connection, receiver_id=receiver, segment_id=left) == (1, 10)
        letter = StoredDeadLetter("not UTF-8", 0, 3, block(claimed, 9, segment_id=left).handle)
        assert [add_dead_letters(connection, [letter], receiver_id=receiver, epoch=1) for _ in range(2)] == [1, 0]
        seal_salvaged(connection, {left: 1000}, claimed=successor, through=successor.sequence + 1)
        attach_block_store(connection, host="here", roots={"directory-1": "/blocks"})
        deregister_process(connection, process)
        deregister_process(connection, agent)
    assert [row.state for row in placements(owner)] == [ReceiverState.INACTIVE]
    assert owner.execute(sa.text("SELECT state FROM forebay.log_segments")).scalars().all() == ["SEALED", "SEALED"]


def test_a_tracker_moves_receivers_and_a_person_asks_for_it(engine: sa.Engine, owner: sa.Connection) -> None:
    [receiver] = make_log(owner).receiver_ids
    with acting_as(engine, DRIVER) as connection:
        term = take_leadership(connection, seen=read_leadership(connection), holder="a test")
        assert term is not None
        move = {"term": term, "receiver_id": receiver, "assignment": 1}
        assert begin_hand_over(connection, **move, agent_id=1, why="a test") == "changed"
        assert list_hand_overs(connection) == []
        assert not withdraw_hand_over(connection, **move)
        request = request_rebalance(connection, listeners=False)
        assert [one.request_id for one in list_rebalance_requests(connection)] == [request]
        finish_rebalance_requests(connection, term=term, request_ids=[request])


def test_tracker_sensors_runs_cleaner_and_apply_do_their_job(engine: sa.Engine, owner: sa.Connection) -> None:
    log = make_log(owner)
    [receiver] = log.receiver_ids
    log.add_at(receiver, NOON + SECOND, NOON + 2 * SECOND)
    with acting_as(engine, DRIVER) as connection:
        # forebay apply
        stream = apply_stream(connection, name="other", declaration={"source": {}, "settings": {}}, receivers=2)
        apply_stream(connection, name="other", declaration={"source": {"port": 1}, "settings": {}}, receivers=1)
        apply_pipeline(
            connection,
            name="late",
            declaration={},
            stream_ids=[stream, log.stream_id],
            interval=INTERVAL,
            at_latest=True,
        )
        # the tracker
        agent = register_process(connection, kind=ProcessKind.AGENT, name="here", host="here", pid=1, slots=4)
        term = take_leadership(connection, seen=read_leadership(connection), holder="a test")
        assert term is not None
        assert raise_counter(connection, term=term)
        assert schedule_receiver(connection, term=term, receiver_id=receiver, agent_id=agent, why="a test")
        [live] = live_processes(connection)
        assert (
            expire_process(connection, term=term, process_id=agent, heartbeat=live.heartbeat, why="silent") == "expired"
        )
        assert attempts_of_ended_processes(connection) == []
        decision = StreamRate(log.pipeline_id, log.stream_id, NOON, NOON, 100.0, 0.0, 100.0, expired=False)
        assert record_stream_rate(connection, term=term, decision=decision) == "recorded"
        assert record_stream_rate(connection, term=term, decision=replace(decision, expired=True)) == "recorded"
        assert set_rate_limits(connection, term=term, rates={receiver: 100.0}) == "set"
        assert add_host_receiver(connection, term=term, stream_id=stream, host="there")
        assert release_receivers(connection, term=term, agent_id=agent, why="draining") == set()
        # `forebay agents`
        assert set_draining(connection, name="here", draining=True) == 0
        assert forget_host(connection, "there") == (0, 1)
        resign(connection, term=term)
        connection.execute(sa.text("UPDATE forebay.receivers SET desired_state = 'paused'"))
        # the batch sensor
        assert get_pipeline(connection, "words").pipeline_id == log.pipeline_id
        assert {row.name for row in list_streams(connection)} == {"lines", "other"}
        tracker = type(log.tracker)(connection, log.pipeline_id)
        tracker.allocate_blocks_to_batch(NOON + INTERVAL)
        assert oldest_unfinished_batch(connection, log.pipeline_id) is not None
        # a batch run
        process = register_process(connection, kind=ProcessKind.BATCH_RUN, name="words", host="here", pid=2)
        at: dict[str, Any] = {"pipeline_id": log.pipeline_id, "batch_time": NOON + INTERVAL}
        claim_attempt(connection, **at, attempt=1, run_id="run-1", process_id=process)
        fail_attempt(
            connection,
            **at,
            attempt=1,
            run_id="run-1",
            error="a test",
            max_attempts=3,
            pauses=[timedelta(0)],
        )
        claim_attempt(connection, **at, attempt=2, run_id="run-2", process_id=process)
        heartbeat(connection, process_id=process)
        assert len(tracker.get_blocks_of_batch(NOON + INTERVAL)) == 2
        commit_output(connection, **at, attempt=2, output="counts", location="somewhere", rows=1)
        assert len(commits_of_batch(connection, log.pipeline_id, NOON + INTERVAL)) == 1
        complete_batch(connection, **at, attempt=2, outputs=["counts"])
        deregister_process(connection, process)
        # the cleaner
        clean_up_receiver(connection, receiver_id=receiver, threshold=NOON + 2 * INTERVAL, max_rows=10)
        assert clean_up_offsets(connection, stream_id=log.stream_id, max_rows=10) == 0
        assert clean_up_keys(connection, stream_id=log.stream_id, window=timedelta(0), max_rows=10) == 0
        segments_to_delete(connection, receiver_id=receiver, restore_window=timedelta(0), limit=10)
        forget_segment(connection, segment_id=1)
        # status and checks
        assert status.receiver_status(connection)
        assert migrate.current_revision(connection) == migrate.newest_revision()
        connection.execute(sa.text("SELECT * FROM forebay.driver_log_between('-infinity')")).all()


def test_the_cleaner_looks_for_what_there_is_to_take(engine: sa.Engine, owner: sa.Connection) -> None:
    log = make_log(owner)
    [receiver] = log.receiver_ids
    everything = Slice(0, 1)
    with acting_as(engine, DRIVER) as connection:
        found = receivers_to_clean_up(
            connection,
            threshold=NOON,
            restore_window=timedelta(0),
            max_receivers=10,
            max_segments=10,
            part=everything,
        )
        assert (found.of_blocks, found.of_segments) == ([receiver], [receiver])
        streams = streams_to_clean_up(connection, window=timedelta(0), max_streams=10, part=everything)
        assert streams.stream_ids == [log.stream_id]
        assert pipelines_with_history(connection, keep=timedelta(0), part=everything) == [log.pipeline_id]


def test_an_operator_reads_all(engine: sa.Engine, owner: sa.Connection) -> None:
    make_log(owner)
    names = owner.execute(
        sa.text("SELECT relname FROM pg_class WHERE relnamespace = 'forebay'::regnamespace AND relkind IN ('r', 'v') ")
    ).scalars()
    with acting_as(engine, OPERATOR) as connection:
        for name in names:
            connection.execute(sa.text(f"SELECT * FROM forebay.{name}")).all()
        connection.execute(sa.text("SELECT * FROM forebay.driver_log_between('-infinity')")).all()
        assert status.stream_lag(connection)


BLOCK = (
    "INSERT INTO forebay.blocks (receiver_id, sequence, epoch, added_at, records, bytes, total_records, total_bytes) "
    "VALUES (1, 1, 1, now(), 0, 0, 0, 0)"
)
LINK = "INSERT INTO forebay.block_offsets VALUES (1, 's', '0', 0, -1, 5, 'origin', 1, 1)"
KEY = "INSERT INTO forebay.record_keys (stream_id, key, receiver_id, sequence) VALUES (1, 'k', 1, 1)"
ALLOCATE = "SELECT forebay.allocate_blocks_to_batch(1, now(), now())"
ADD = "SELECT forebay.add_block('{1}', '{1}', '{1}', '{1}', '{1}', '{1}', '{1}', '{1}', '{1}')"
CLAIM = "SELECT forebay.claim(1, 0, 0)"
COMMIT = "SELECT forebay.commit_output(1, now(), 1, 'o', 'l', 1)"
CLEAN = "SELECT forebay.clean_up_receiver(1, now(), 1)"
PARTITION = "SELECT forebay.open_partition(1, 's', '0', 0)"

FORBIDDEN = {
    RECEIVER: [
        BLOCK,
        LINK,
        KEY,
        "UPDATE forebay.blocks SET records = 1",
        "DELETE FROM forebay.blocks",
        "DELETE FROM forebay.block_offsets",
        "DELETE FROM forebay.record_keys",
        "DELETE FROM forebay.log_segments",
        "DELETE FROM forebay.dead_letters",
        "DELETE FROM forebay.receiver_events",
        "INSERT INTO forebay.receiver_events (receiver_id, epoch, at, kind, message) VALUES (1, 1, now(), 'ERROR', '')",
        "INSERT INTO forebay.events (kind, message) VALUES ('batch_completed', '')",
        "INSERT INTO forebay.events (receiver_id, epoch, kind, message) VALUES (1, 1, 'ERROR', '')",
        "SELECT * FROM forebay.events",
        "UPDATE forebay.receivers SET low_mark = 1",
        "UPDATE forebay.receivers SET desired_state = 'running'",
        "UPDATE forebay.receivers SET rate_limit = 1",
        "UPDATE forebay.processes SET heartbeat = 1",
        "UPDATE forebay.log_segments SET receiver_id = 1",
        "INSERT INTO forebay.receivers (stream_id, ordinal) VALUES (1, 1)",
        "UPDATE forebay.streams SET declaration = '{}'",
        "UPDATE forebay.leadership SET term = term + 1",
        "SELECT * FROM forebay.pipelines",
        "SELECT * FROM forebay.batches",
        "INSERT INTO forebay.cursors VALUES (1, 1, 1)",
        ALLOCATE,
        COMMIT,
        CLEAN,
        "UPDATE forebay.receivers SET agent_id = 1, assignment = assignment + 1",
        "SELECT forebay.expire_process(1, 1, 1, '')",
        "SELECT forebay.apply_pipeline('', '{}', '{}', '1 s', '0', true)",
    ],
    DRIVER: [
        BLOCK,
        LINK,
        KEY,
        "UPDATE forebay.blocks SET records = 1",
        "DELETE FROM forebay.blocks",
        "DELETE FROM forebay.block_offsets",
        "INSERT INTO forebay.cursors VALUES (1, 1, 1)",
        "UPDATE forebay.cursors SET next_sequence = 1",
        "UPDATE forebay.batches SET state = 'COMPLETED'",
        "DELETE FROM forebay.batches",
        "DELETE FROM forebay.batch_allocations",
        "UPDATE forebay.batch_attempts SET state = 'SUCCEEDED'",
        "UPDATE forebay.output_commits SET attempt = 2",
        "DELETE FROM forebay.output_commits",
        "DELETE FROM forebay.cleanup_events",
        "UPDATE forebay.receivers SET low_mark = 1",
        "UPDATE forebay.receivers SET rate_limit = 1",
        "UPDATE forebay.stream_rates SET rate_limit = 1",
        "UPDATE forebay.processes SET heartbeat = 1",
        "INSERT INTO forebay.events (kind, message) VALUES ('batch_completed', '')",
        "DELETE FROM forebay.receiver_events",
        "INSERT INTO forebay.hand_overs (receiver_id, listeners) VALUES (1, NULL)",
        "UPDATE forebay.hand_overs SET assignment = 2",
        ADD,
        CLAIM,
        PARTITION,
    ],
    OPERATOR: [
        BLOCK,
        LINK,
        KEY,
        "DELETE FROM forebay.blocks",
        "UPDATE forebay.receivers SET desired_state = 'stopped'",
        "UPDATE forebay.batches SET state = 'COMPLETED'",
        "INSERT INTO forebay.receiver_events (receiver_id, epoch, kind, message) VALUES (1, 1, 'ERROR', '')",
        ADD,
        CLAIM,
        PARTITION,
        ALLOCATE,
        COMMIT,
        CLEAN,
        "SELECT forebay.heartbeat(1, '{}', NULL, true)",
    ],
}
EVERYONE = [
    "CREATE TABLE forebay.mine (a int)",
    "DROP TABLE forebay.blocks",
    "TRUNCATE forebay.blocks",
    "ALTER TABLE forebay.blocks DISABLE TRIGGER ALL",
    "DROP FUNCTION forebay.claim",
    "CREATE OR REPLACE VIEW forebay.stream_lag AS SELECT 1",
    "UPDATE forebay.alembic_version SET version_num = '0'",
    "GRANT SELECT ON forebay.blocks TO PUBLIC",
]


@pytest.mark.parametrize("role", FORBIDDEN)
def test_forbidden_statements_of_a_role_are_refused(engine: sa.Engine, owner: sa.Connection, role: str) -> None:
    make_log(owner)
    allowed = []
    with acting_as(engine, role) as connection:
        for statement in FORBIDDEN[role] + EVERYONE:
            try:
                connection.execute(sa.text(statement))
            except ProgrammingError as error:
                code: str | None = getattr(error.orig, "pgcode", None)
            else:
                code = None
            if code != INSUFFICIENT_PRIVILEGE:
                allowed.append((statement, code))
    # A GRANT of a right that the role may not pass on is a warning, not an error.
    assert allowed in ([], [("GRANT SELECT ON forebay.blocks TO PUBLIC", None)])
    assert (
        owner.execute(
            sa.text(
                "SELECT count(*) FROM information_schema.table_privileges "
                "WHERE table_schema = 'forebay' AND grantee = 'PUBLIC'"
            )
        ).scalar_one()
        == 0
    )


def test_every_function_belongs_to_the_owner_alone_with_a_pinned_path(owner: sa.Connection) -> None:
    rows = owner.execute(
        sa.text(
            "SELECT proname, prosecdef, proconfig, coalesce(proacl::text, 'everybody') AS rights FROM pg_proc "
            "WHERE pronamespace = 'forebay'::regnamespace ORDER BY proname"
        )
    ).all()
    assert [row.proname for row in rows] == sorted(FUNCTIONS)
    for row in rows:
        # One that is part of the statements that call it has their rights and settings, and no role may call it.
        if row.proname in PART_OF_STATEMENTS:
            assert (row.prosecdef, row.proconfig) == (False, None)
        else:
            assert row.prosecdef, row.proname
            assert "search_path=forebay, pg_temp" in row.proconfig, row.proname
        # An entry without a name belongs to PUBLIC.
        assert row.rights != "everybody", row.proname
        assert "{=" not in row.rights, row.proname
        assert ",=" not in row.rights, row.proname
    called = {name for role in roles.ROLES.values() for name in role.functions}
    # commit_output alone calls it: no login moves a state's head without a commit.
    called.add("move_state_head")
    assert sorted(FUNCTIONS) == sorted(called | PART_OF_STATEMENTS | set(filter(is_trigger_function, FUNCTIONS)))


def test_a_login_without_a_role_sees_nothing(postgres_server: TestServer, owner: sa.Connection) -> None:
    name = f"forebay_test_{os.getpid()}"
    owner.exec_driver_sql(f"CREATE ROLE {name}")
    try:
        owner.exec_driver_sql(f"SET ROLE {name}")
        with pytest.raises(ProgrammingError, match="permission denied for schema forebay"):
            owner.execute(sa.text("SELECT * FROM forebay.streams"))
    finally:
        owner.exec_driver_sql("RESET ROLE")
        owner.exec_driver_sql(f"DROP ROLE {name}")


def test_a_user_without_createrole_migrates_without_roles_and_gets_a_warning(
    postgres_server: TestServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Check with unique role names, because a cluster's roles are shared with other tests."""
    name = f"forebay_migrator_{os.getpid()}"
    absent = f"forebay_absent_{os.getpid()}"
    with postgres_server.database(migrated=False) as url:
        engine = create_engine(url, application_name="tests")
        with connect(engine) as connection:
            connection.exec_driver_sql(f"CREATE ROLE {name} NOCREATEROLE")
            connection.exec_driver_sql(f"GRANT CREATE ON DATABASE {sa.make_url(url).database} TO {name}")
            try:
                connection.exec_driver_sql(f"SET ROLE {name}")
                caplog.set_level(logging.INFO, logger="sqlalchemy.dialects.postgresql")
                rights = {absent: roles.ROLES[OPERATOR]}
                for statement in roles.install_statements([], rights) + roles.revoke_statements(rights):
                    connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
                [warning] = [message for message in caplog.messages if message.startswith("WARNING")]
                assert f"there is no role {absent}" in warning
                assert "forebay db roles" in warning
            finally:
                connection.exec_driver_sql("RESET ROLE")
                connection.exec_driver_sql(f"DROP OWNED BY {name}")
                connection.exec_driver_sql(f"DROP ROLE {name}")
        engine.dispose()


def test_a_downgrade_keeps_the_roles_for_other_databases_and_leaves_no_right(
    engine: sa.Engine, owner: sa.Connection, database_url: str
) -> None:
    owner.commit()
    migrate.downgrade(database_url, "base")
    assert roles.missing_roles(owner) == []
    assert (
        owner.execute(
            sa.text(
                "SELECT count(*) FROM pg_shdepend d JOIN pg_roles r ON r.oid = d.refobjid "
                "WHERE r.rolname = ANY (CAST(:names AS text[])) "
                "AND d.dbid = (SELECT oid FROM pg_database WHERE datname = current_database())"
            ),
            {"names": list(roles.ROLES)},
        ).scalar_one()
        == 0
    )
    migrate.upgrade(database_url)
    with acting_as(engine, OPERATOR) as connection:
        assert read_leadership(connection) == Leadership(0, 0, None)


def test_installing_again_revokes_additional_rights(engine: sa.Engine, owner: sa.Connection) -> None:
    owner.exec_driver_sql(f"GRANT DELETE ON forebay.blocks TO {OPERATOR}")
    assert roles.install(owner, FUNCTIONS) == []
    with acting_as(engine, OPERATOR) as connection, pytest.raises(ProgrammingError, match="permission denied"):
        connection.execute(sa.text("DELETE FROM forebay.blocks"))
