"""Attack a receiver from the login of another host: it has the same role, and may change none of the other's rows."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from tests.support.driver_log.log import add, block, claim_anew, make_log, new_segment, seal
from tests.support.driver_log.placing import schedule_receiver
from tracker_store.blocks.segments import open_segment, open_segments_before, seal_salvaged, seal_segment
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import DriverLogError
from tracker_store.receivers.hand_overs import begin_hand_over, sign_off_receiver, take_over
from tracker_store.receivers.processes import (
    deregister_process,
    end_processes_of_pid,
    heartbeat,
    register_process,
)
from tracker_store.receivers.receivers import (
    get_receiver,
    set_preferred_location,
    set_receiver_state,
)
from tracker_store.receivers.source_lag import LagReport, Unread, report_source_lag
from tracker_store.schema.states import ProcessKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracker_store.blocks.blocks import Claim

_STATE = """
SELECT (SELECT json_agg(r ORDER BY r.id) FROM forebay.receivers r)::text AS receivers,
    (SELECT json_agg(g ORDER BY g.id) FROM forebay.log_segments g)::text AS segments,
    (SELECT json_agg(p ORDER BY p.id) FROM forebay.processes p)::text AS processes,
    (SELECT json_agg(l) FROM forebay.source_lag l)::text AS source_lag,
    (SELECT max(b.sequence) FROM forebay.blocks b) AS newest
"""


@pytest.fixture
def owner(connection: sa.Connection) -> sa.Connection:
    return connection


@pytest.fixture
def logins(owner: sa.Connection) -> Iterator[tuple[str, str]]:
    """Make two logins of the receivers' role; roles belong to the whole cluster, so their names are this process's."""
    names = (f"forebay_one_{os.getpid()}", f"forebay_two_{os.getpid()}")
    for name in names:
        owner.exec_driver_sql(f"CREATE ROLE {name} LOGIN IN ROLE forebay_receiver")
    try:
        yield names
    finally:
        for name in names:
            owner.exec_driver_sql(f"DROP OWNED BY {name}")
            owner.exec_driver_sql(f"DROP ROLE {name}")


@contextmanager
def logged_in(engine: sa.Engine, login: str) -> Iterator[sa.Connection]:
    """Yield a connection that is this login's, as if it had connected."""
    with connect(engine) as connection:
        connection.exec_driver_sql(f"SET SESSION AUTHORIZATION {login}")
        try:
            yield connection
        finally:
            connection.exec_driver_sql("RESET SESSION AUTHORIZATION")


@dataclass
class Victim:
    """A receiver that runs on the agent of the first login, with an open segment."""

    agent: int
    process: int
    receiver: int
    assignment: int
    claimed: Claim
    segment: int

    def may(self) -> dict[str, Callable[[sa.Connection], Any]]:
        """Return what the receiver's own processes do, each of which changes a row."""
        at: dict[str, Any] = {"receiver_id": self.receiver, "assignment": self.assignment}
        path = f"receiver-{self.receiver}/{self.claimed.epoch}-2.segment"
        of_epoch: dict[str, Any] = {"receiver_id": self.receiver, "epoch": self.claimed.epoch}
        return {
            "beat": lambda c: heartbeat(c, process_id=self.process),
            "report": lambda c: report_source_lag(c, process_id=self.process, reports=[self._unread()]),
            "prefer": lambda c: set_preferred_location(c, receiver_id=self.receiver, host="elsewhere"),
            "pause": lambda c: set_receiver_state(c, **at, state=ReceiverState.PAUSED, process_id=self.process),
            "open": lambda c: open_segment(c, **of_epoch, path=path, source_rule="not_sent_again"),
            "seal": lambda c: seal(c, self.segment, 7),
            "salvage": self._salvage,
            "fail": lambda c: set_receiver_state(c, **at, state=ReceiverState.FAILED, reason="because"),
            "end": lambda c: deregister_process(c, self.process),
        }

    def _unread(self) -> LagReport:
        return LagReport(self.receiver, whole=True, unread={("orders", "0"): Unread(7, "records")})

    def _salvage(self, connection: sa.Connection) -> None:
        claimed = claim_anew(connection, self.receiver, self.assignment)
        left = [segment.segment_id for segment in open_segments_before(connection, **self._before(claimed))]
        seal_salvaged(connection, dict.fromkeys(left, 0), claimed=claimed, through=claimed.sequence)

    @staticmethod
    def _before(claimed: Claim) -> dict[str, int]:
        return {"receiver_id": claimed.receiver_id, "epoch": claimed.epoch}


@pytest.fixture
def victim(engine: sa.Engine, owner: sa.Connection, logins: tuple[str, str]) -> Victim:
    [receiver] = make_log(owner).receiver_ids
    with logged_in(engine, logins[0]) as connection:
        agent = register_process(connection, kind=ProcessKind.AGENT, name="one", host="one", pid=1, slots=4)
        process = register_process(connection, kind=ProcessKind.RECEIVER, name="lines/1", host="one", pid=2)
    assert schedule_receiver(owner, term=0, receiver_id=receiver, agent_id=agent, why="a test")
    assignment = get_receiver(owner, receiver).assignment
    with logged_in(engine, logins[0]) as connection:
        claimed = claim_anew(connection, receiver, assignment)
        assert set_receiver_state(
            connection,
            receiver_id=receiver,
            assignment=assignment,
            state=ReceiverState.ACTIVE,
            process_id=process,
        )
        path = f"receiver-{receiver}/{claimed.epoch}-1.segment"
        segment = new_segment(connection, claimed, path)
        add(connection, block(claimed, 2, segment_id=segment))
    return Victim(agent, process, receiver, assignment, claimed, segment)


def _execute(statement: str, connection: sa.Connection) -> None:
    connection.exec_driver_sql(statement)


def attacks(victim: Victim) -> dict[str, Callable[[sa.Connection], Any]]:
    """Return what another host's login may try: the functions, and the statements behind them."""
    at: dict[str, Any] = {"receiver_id": victim.receiver, "assignment": victim.assignment}
    statements = (
        "UPDATE forebay.log_segments SET path = 'receiver-1/../../etc/passwd'",
        "UPDATE forebay.log_segments SET state = 'SEALED', length = 0, sealed_at = now()",
        (
            "UPDATE forebay.processes SET ended_at = now(), end_reason = 'attacked' "
            f"WHERE id IN ({victim.agent}, {victim.process})"
        ),
        "UPDATE forebay.receivers SET state = 'FAILED', reason = 'attacked', agent_id = NULL",
        "UPDATE forebay.receivers SET assignment = assignment + 1",
        (
            "INSERT INTO forebay.log_segments (receiver_id, epoch, path, source_rule) "
            f"VALUES ({victim.receiver}, 1, 'x', 'not_sent_again')"
        ),
    )
    return {
        **{name: act for name, act in victim.may().items() if name != "salvage"},
        **{text: partial(_execute, text) for text in statements},
        "claim": lambda c: claim_anew(c, victim.receiver, victim.assignment),
        "seal what is salvaged": lambda c: seal_salvaged(
            c, {victim.segment: 0}, claimed=victim.claimed, through=victim.claimed.sequence
        ),
        "take over": lambda c: take_over(c, receiver_id=victim.receiver, assignment=victim.assignment),
        "end by pid": lambda c: end_processes_of_pid(c, hosts=["one"], pid=2, why="attacked"),
        "end the agent": lambda c: deregister_process(c, victim.agent, "attacked"),
        "sign off": lambda c: sign_off_receiver(
            c, receiver_id=victim.receiver, assignment=victim.assignment - 1, process_id=victim.process
        ),
        "give up": lambda c: set_receiver_state(c, **at, state=ReceiverState.SCHEDULED, held_by=victim.process),
    }


def test_another_login_changes_no_row(
    engine: sa.Engine, owner: sa.Connection, logins: tuple[str, str], victim: Victim
) -> None:
    with logged_in(engine, logins[1]) as connection:
        # With an agent of its own, which has the same name and host.
        register_process(connection, kind=ProcessKind.AGENT, name="one", host="one", pid=1, slots=4)
        before = owner.execute(sa.text(_STATE)).one()
        changed = []
        for name, attack in attacks(victim).items():
            with suppress(DriverLogError, DBAPIError):
                attack(connection)
            after = owner.execute(sa.text(_STATE)).one()
            if after != before:
                changed.append(name)
                before = after
    assert changed == []


def test_the_receivers_own_login_changes_its_rows(
    engine: sa.Engine, owner: sa.Connection, logins: tuple[str, str], victim: Victim
) -> None:
    with logged_in(engine, logins[0]) as connection:
        for name, act in victim.may().items():
            before = owner.execute(sa.text(_STATE)).one()
            act(connection)
            assert owner.execute(sa.text(_STATE)).one() != before, name


def test_a_login_can_not_be_forged(engine: sa.Engine, owner: sa.Connection, logins: tuple[str, str]) -> None:
    with logged_in(engine, logins[1]) as connection:
        for statement in (
            (
                "INSERT INTO forebay.processes (kind, name, host, pid, login) "
                f"VALUES ('agent', 'a', 'h', 1, '{logins[0]}')"
            ),
            "UPDATE forebay.processes SET login = NULL",
        ):
            with pytest.raises(DBAPIError, match="permission denied"):
                connection.exec_driver_sql(statement)
        process = register_process(connection, kind=ProcessKind.AGENT, name="two", host="two", pid=3)
    login = owner.execute(sa.text("SELECT login FROM forebay.processes WHERE id = :id"), {"id": process}).scalar_one()
    assert login == logins[1]


def test_a_hand_over_is_taken_only_by_the_login_to_which_it_is_offered(
    engine: sa.Engine, owner: sa.Connection, logins: tuple[str, str], victim: Victim
) -> None:
    with logged_in(engine, logins[1]) as connection:
        agent = register_process(connection, kind=ProcessKind.AGENT, name="two", host="two", pid=3, slots=4)
    offered = begin_hand_over(
        owner, term=0, receiver_id=victim.receiver, assignment=victim.assignment, agent_id=agent, why="a test"
    )
    assert offered == "begun"
    assignment = get_receiver(owner, victim.receiver).offered_assignment
    assert assignment is not None
    with logged_in(engine, logins[0]) as connection:
        assert not take_over(connection, receiver_id=victim.receiver, assignment=assignment)
    with logged_in(engine, logins[1]) as connection:
        set_preferred_location(connection, receiver_id=victim.receiver, host="two")
        assert take_over(connection, receiver_id=victim.receiver, assignment=assignment)
        assert take_over(connection, receiver_id=victim.receiver, assignment=assignment)
        assert claim_anew(connection, victim.receiver, assignment).epoch > victim.claimed.epoch
    # The process before drains: it still holds the receiver, and seals what it has.
    with logged_in(engine, logins[0]) as connection:
        for epoch in (victim.claimed.epoch + 1, victim.claimed.epoch):
            # A segment of an earlier epoch is salvage's.
            lengths = owner.execute(sa.text("SELECT length FROM forebay.log_segments")).scalars().all()
            assert lengths == [None]
            owner.rollback()
            seal_segment(connection, segment_id=victim.segment, length=7, owner=(victim.receiver, epoch))
            connection.commit()
        sign_off_receiver(
            connection, receiver_id=victim.receiver, assignment=victim.assignment, process_id=victim.process
        )
    assert owner.execute(sa.text("SELECT state FROM forebay.log_segments")).scalar_one() == "SEALED"
    assert owner.execute(sa.text("SELECT process_id FROM forebay.receivers")).scalar_one() is None


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "receiver-999/1-1.segment", "./a"])
def test_a_segment_has_a_path_within_the_store(owner: sa.Connection, path: str) -> None:
    [receiver] = make_log(owner).receiver_ids
    with pytest.raises(DBAPIError, match="is no path of a segment"):
        open_segment(owner, receiver_id=receiver, epoch=1, path=path, source_rule="not_sent_again")
