"""Test lost answers and stopped clients: what is resent is in once (W02, W21; notes 4, 12)."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from receiver_runtime.block_path.registration.block_log import BlockLog
from receiver_runtime.block_path.registration.registered_through import RegisteredThrough
from receiver_runtime.block_path.registration.registrar import Registrar
from tests.support.driver_log.log import (
    Log,
    add,
    block,
    claim_anew,
    give_segments,
    make_log,
    new_segment,
    wait_until_blocked,
)
from tests.support.postgres.cutting_proxy import Cut, CuttingProxy, is_call
from tests.support.searches import examples
from tracker_store.blocks.blocks import (
    ORIGIN,
    AddOutcome,
    Claim,
    NewBlock,
    OffsetLink,
    add_blocks,
    claim,
    newest_epoch,
    open_partition,
)
from tracker_store.connection.engine import connect, create_engine
from tracker_store.connection.errors import TRANSIENT, LostCommitsError, OutcomeUnknownError
from tracker_store.receivers.processes import register_process
from tracker_store.schema.states import ProcessKind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CUTS = examples(1_000)
RECEIVERS = 4


@pytest.fixture
def log(connection: sa.Connection) -> Log:
    log = make_log(connection, receivers=RECEIVERS)
    give_segments(connection, *log.receiver_ids)
    return log


class Scissors:
    """Cut `share` of the calls of add_block, until `limit` are cut."""

    def __init__(self, limit: int, *, share: float = 0.7) -> None:
        self._random = random.Random(4)
        self._share = share
        self._left = limit
        self._guard = threading.Lock()

    def __call__(self, request: bytes) -> Cut | None:
        with self._guard:
            if not is_call(request, "add_block") or self._left == 0 or self._random.random() > self._share:
                return None
            self._left -= 1
            return self._random.choice(list(Cut))

    @property
    def left(self) -> int:
        """Return the number of cuts still to be made."""
        with self._guard:
            return self._left


def stored(log: Log, receiver_id: int) -> list[sa.Row[tuple[int, ...]]]:
    return list(
        log.connection.execute(
            sa.text(
                'SELECT sequence, epoch, records, total_records, bytes, total_bytes, segment_id, "offset", length, '
                "crc32c FROM forebay.blocks WHERE receiver_id = :r ORDER BY sequence"
            ),
            {"r": receiver_id},
        )
    )


def assert_exactly(log: Log, claimed: Claim, acknowledged: Sequence[NewBlock]) -> None:
    """Check that the receiver's chain is exactly the claim's marker and the acknowledged blocks, once and in order."""
    marker, *rows = stored(log, claimed.receiver_id)
    assert (marker.sequence, marker.epoch, marker.segment_id) == (claimed.sequence, claimed.epoch, None)
    assert [row.sequence for row in rows] == list(range(marker.sequence + 1, marker.sequence + 1 + len(rows)))
    assert [(r.sequence, r.epoch, r.records, r.segment_id, r.offset, r.length, r.crc32c) for r in rows] == [
        (b.sequence, b.epoch, b.records, b.handle.segment_id, b.handle.offset, b.handle.length, b.handle.crc32c)
        for b in acknowledged
    ]
    for before, after in pairwise([marker, *rows]):
        assert after.total_records == before.total_records + after.records
        assert after.total_bytes == before.total_bytes + after.bytes


@pytest.mark.search
@pytest.mark.timeout(300)
def test_w02_lost_answers_double_nothing_and_lose_nothing(log: Log, database_url: str) -> None:
    scissors = Scissors(CUTS)
    outcomes: Counter[AddOutcome] = Counter()
    guard = threading.Lock()

    def receive(engine: sa.Engine, claimed: Claim) -> list[NewBlock]:
        """Add groups of 1 to 3 blocks with one link each; resolve an unknown outcome by sending the identical group."""
        acknowledged: list[NewBlock] = []
        sequence, position = claimed.sequence + 1, 0
        while scissors.left:
            group = [
                replace(
                    block(claimed, sequence + n, records=1 + n),
                    links=(OffsetLink("orders", str(claimed.receiver_id), 0, position + n, position + n + 1),),
                )
                for n in range(1 + sequence % 3)
            ]
            while True:
                try:
                    with connect(engine) as connection:
                        [result] = add_blocks(connection, group)
                except TRANSIENT:
                    continue
                with guard:
                    outcomes[result.outcome] += 1
                if result.outcome is not AddOutcome.AGAIN:
                    break
            assert result.outcome in (AddOutcome.ADDED, AddOutcome.ALREADY_ADDED), result
            acknowledged += group
            sequence, position = sequence + len(group), position + len(group)
        return acknowledged

    claims = []
    for receiver_id in log.receiver_ids:
        claims.append(claim_anew(log.connection, receiver_id))
        open_partition(
            log.connection, receiver_id=receiver_id, source="orders", partition=str(receiver_id), start_offset=0
        )
    with CuttingProxy(database_url, scissors) as proxy, ThreadPoolExecutor(RECEIVERS) as pool:
        engine = create_engine(proxy.url, application_name="cut", pool_size=RECEIVERS)
        acknowledged = list(pool.map(receive, [engine] * RECEIVERS, claims))
        engine.dispose()
    assert proxy.cuts.total() == CUTS
    # About two of three cuts come after the server has the request, and each needs at least one more call.
    assert outcomes[AddOutcome.ALREADY_ADDED] > CUTS / 10, outcomes
    for claimed, blocks in zip(claims, acknowledged, strict=True):
        assert_exactly(log, claimed, blocks)
        links = log.connection.execute(
            sa.text(
                "SELECT from_offset, to_offset, sequence FROM forebay.block_offsets WHERE partition = :p "
                "AND from_offset <> :origin ORDER BY from_offset"
            ),
            {"p": str(claimed.receiver_id), "origin": ORIGIN},
        ).all()
        assert [tuple(row) for row in links] == [(n, n + 1, b.sequence) for n, b in enumerate(blocks)]


def test_w02_the_registrar_resolves_lost_answers_by_itself(log: Log, database_url: str) -> None:
    scissors = Scissors(12, share=0.6)
    process_id = register_process(log.connection, kind=ProcessKind.RECEIVER, name="r", host="h", pid=1)
    claims = [claim_anew(log.connection, receiver_id) for receiver_id in log.receiver_ids]
    segments = {c.receiver_id: new_segment(log.connection, c, f"{c.receiver_id}/{c.epoch}") for c in claims}
    futures: dict[int, list[Future[NewBlock]]] = {claimed.receiver_id: [] for claimed in claims}
    with CuttingProxy(database_url, scissors) as proxy:
        engine = create_engine(proxy.url, application_name="registrar")
        block_log = BlockLog(engine, process_id=process_id)
        registrar = Registrar(block_log)
        registrar.start()
        lanes = [
            registrar.attach(c.receiver_id, registered_through=RegisteredThrough(c.sequence), limit=8) for c in claims
        ]
        sequence = 1
        while scissors.left or sequence < 100:
            sequence += 1
            for claimed, lane in zip(claims, lanes, strict=True):
                lane.reserve()
                new = block(claimed, sequence, segment_id=segments[claimed.receiver_id])
                futures[claimed.receiver_id].append(lane.submit(new))
        for lane in lanes:
            lane.wait_until_settled()
        registrar.stop()
        block_log.close()
        engine.dispose()
    assert proxy.cuts.total() == 12
    for claimed in claims:
        assert_exactly(log, claimed, [future.result(0) for future in futures[claimed.receiver_id]])


def test_a_claim_whose_answer_was_lost_is_not_owned(log: Log, database_url: str) -> None:
    """Check that the marker is in, no process has its epoch, and the next claim sees it."""
    receiver_id = log.receiver_ids[0]
    lose = [Cut.BEFORE_ANSWER]

    def decide(request: bytes) -> Cut | None:
        return lose.pop() if is_call(request, "forebay.claim") and lose else None

    with CuttingProxy(database_url, decide) as proxy:
        engine = create_engine(proxy.url, application_name="claims")
        with connect(engine) as connection, pytest.raises(OutcomeUnknownError):
            claim(connection, receiver_id=receiver_id, seen_epoch=0, assignment=0)
        lost = newest_epoch(log.connection, receiver_id)
        assert lost > 0
        with connect(engine) as connection:
            claimed = claim_anew(connection, receiver_id)
        engine.dispose()
    assert (claimed.epoch > lost, claimed.sequence) == (True, 2)


# -- a client that stands still ----------------------------------------------------------------------------------------


class AddingProcess:
    """Run ``tests.support.driver_log.adding_process`` and read its output."""

    def __init__(self, url: str, receiver_id: int, root: Path, *, pause_after: int = 0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.driver_log.adding_process", url, str(receiver_id), str(pause_after)],
            cwd=root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.added: list[int] = []
        _, self.epoch, self.sequence = (int(word) if word.isdigit() else 0 for word in self._line().split())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def read_added(self, count: int) -> None:
        """Read this number of acknowledgements."""
        for _ in range(count):
            word, sequence = self._line().split()
            assert word == "added"
            self.added.append(int(sequence))

    def go_on(self) -> None:
        """Let the process out of its pause."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def send(self, what: signal.Signals) -> None:
        """Send a signal to the process."""
        self._process.send_signal(what)

    def end(self) -> str:
        """Read its output up to the refusal, which is returned; the process has exited."""
        while (line := self._line()).startswith("added"):
            self.added.append(int(line.split()[1]))
        self._process.communicate(timeout=20)
        assert self._process.returncode == 0
        return line

    def kill(self) -> None:
        """Kill the process, whatever state it is in."""
        self._process.kill()
        self._process.communicate(timeout=60)


def assert_chain_of_two(log: Log, zombie: AddingProcess, successor: Claim, added: list[int]) -> None:
    rows = stored(log, successor.receiver_id)
    assert [row.sequence for row in rows] == list(range(1, len(rows) + 1))
    by_epoch = {
        epoch: [r.sequence for r in rows if r.epoch == epoch and r.records] for epoch in {r.epoch for r in rows}
    }
    assert by_epoch[zombie.epoch] == zombie.added
    assert by_epoch.get(successor.epoch, []) == added
    assert rows[-1].total_records == sum(row.records for row in rows)


def test_a_client_stopped_in_mid_statement_blocks_no_take_over(
    engine: sa.Engine, log: Log, database_url: str, pytestconfig: pytest.Config
) -> None:
    """Check with a client stopped while its statement waits for a lock: the server ends it without the client."""
    receiver_id = log.receiver_ids[0]
    zombie = AddingProcess(database_url, receiver_id, pytestconfig.rootpath, pause_after=3)
    raw = engine.raw_connection()
    driver = raw.driver_connection
    assert driver is not None
    driver.autocommit = False
    try:
        zombie.read_added(3)
        with driver.cursor() as cursor, ThreadPoolExecutor(1) as pool, connect(engine) as connection:
            cursor.execute(
                "INSERT INTO forebay.blocks (receiver_id, sequence, epoch, added_at, records, bytes, total_records, "
                "total_bytes) VALUES (%s, 5, 1, clock_timestamp(), 0, 0, 0, 0)",
                (receiver_id,),
            )
            zombie.go_on()
            wait_until_blocked(log.connection, 1)
            zombie.send(signal.SIGSTOP)
            taking_over = pool.submit(claim_anew, connection, receiver_id)
            wait_until_blocked(log.connection, 2)
            driver.rollback()
            successor = taking_over.result(10)
            added = [successor.sequence + n for n in (1, 2, 3)]
            for sequence in added:
                assert add(connection, block(successor, sequence)).outcome is AddOutcome.ADDED
        zombie.send(signal.SIGCONT)
        assert zombie.end() == "fenced"
    finally:
        raw.close()
        zombie.kill()
    assert_chain_of_two(log, zombie, successor, added)


@pytest.mark.search
def test_w21_a_client_that_is_stopped_anywhere_is_refused_when_it_goes_on(
    log: Log, database_url: str, pytestconfig: pytest.Config
) -> None:
    """Check several times, each at another moment of its work."""
    receiver_id = log.receiver_ids[0]
    moments = random.Random(12)
    for _ in range(examples(8)):
        zombie = AddingProcess(database_url, receiver_id, pytestconfig.rootpath)
        try:
            zombie.read_added(5)
            time.sleep(moments.random() * 0.02)  # not a wait for a state: a random moment of its work
            zombie.send(signal.SIGSTOP)
            successor = claim_anew(log.connection, receiver_id)
            added = [successor.sequence + n for n in (1, 2)]
            for sequence in added:
                assert add(log.connection, block(successor, sequence)).outcome is AddOutcome.ADDED
            zombie.send(signal.SIGCONT)
            assert zombie.end() == "fenced"
        finally:
            zombie.kill()
        assert_chain_of_two(log, zombie, successor, added)


def test_blocks_whose_segment_was_lost_are_not_added_on_a_new_connection(
    log: Log, engine: sa.Engine, database_url: str
) -> None:
    """Check a server that never had the segment's row, or gave its id to another: nothing could read the blocks."""
    process_id = register_process(log.connection, kind=ProcessKind.RECEIVER, name="r", host="h", pid=1)
    lost, other = (claim_anew(log.connection, receiver_id) for receiver_id in log.receiver_ids[:2])
    segment = new_segment(log.connection, other, "a/b")
    block_log = BlockLog(engine, process_id=process_id)
    with pytest.raises(LostCommitsError) as raised:
        block_log.add_blocks([block(lost, 2, segment_id=segment), block(other, 2, segment_id=segment)])
    assert raised.value.receiver_ids == {lost.receiver_id}
    [result] = block_log.add_blocks([block(other, 2, segment_id=segment)])
    assert result.outcome is AddOutcome.ADDED
    newest = {item.receiver_id: item.newest_sequence for item in block_log.heartbeat(log.receiver_ids)}
    assert (newest[lost.receiver_id], newest[other.receiver_id]) == (1, 2)
    block_log.close()
