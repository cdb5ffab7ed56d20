"""Test real receiver processes whose driver log loses the last blocks that it acknowledged, as in a failover."""

from __future__ import annotations

import signal

from forebay.testing.receiver_processes import eventually
from receiver_runtime.watching.exit_codes import ExitCode
from tests.integration.receiver_runtime.receiver_rig import NumberedSource, ReceiverRig, exit_code
from tracker_store.connection.engine import connect
from tracker_store.reports.checks import check_data


def until_idle(rig: ReceiverRig, source: NumberedSource) -> int:
    """Let it receive, then nothing more; return how many lines are registered (all that were sent)."""
    eventually(lambda: rig.records() > 50, "50 records")
    source.pause()
    eventually(lambda: rig.records() == source.sent, "all that was sent is registered")
    return source.sent


def lose_last_blocks(rig: ReceiverRig) -> None:
    """Delete the newest blocks, as on a standby that was promoted without them."""
    rig.execute(
        "DELETE FROM forebay.blocks WHERE receiver_id = :r AND sequence > "
        "  (SELECT max(sequence) - 2 FROM forebay.blocks WHERE receiver_id = :r)",
        r=rig.receiver_id,
    )


def errors(rig: ReceiverRig, what: str) -> list[str]:
    return [
        row.detail
        for row in rig.execute(
            "SELECT detail FROM forebay.receiver_events WHERE kind = 'ERROR' AND message LIKE :what ORDER BY id",
            what=f"%{what}%",
        )
    ]


def check_each_number_once(rig: ReceiverRig, source: NumberedSource) -> None:
    assert [int(value) for value in rig.values()] == list(range(source.sent))
    with connect(rig.engine) as connection:
        assert [result for result in check_data(connection) if not result.passed] == []


def test_an_idle_receiver_detects_lost_blocks_and_its_successor_registers_them_again(
    rig: ReceiverRig, source: NumberedSource
) -> None:
    process = rig.start()
    sent = until_idle(rig, source)
    lose_last_blocks(rig)
    assert exit_code(process) == ExitCode.FAILED
    [said] = errors(rig, "lacks blocks that it had acknowledged: this process ends, another one claims the receiver")
    assert "It was acknowledged up to sequence" in said
    assert rig.state()[0] == "ACTIVE"
    rig.start()
    eventually(lambda: rig.records() == sent, "what was lost is registered again")
    # The source may lose a line that is being sent when the process ends: here there is none.
    check_each_number_once(rig, source)


def test_a_fenced_process_reports_the_blocks_that_its_successor_lacked(
    rig: ReceiverRig, source: NumberedSource
) -> None:
    paused = rig.start()
    sent = until_idle(rig, source)
    paused.send_signal(signal.SIGSTOP)
    lose_last_blocks(rig)
    rig.assign(2)
    rig.start(assignment=2)
    eventually(lambda: rig.records() == sent, "what was lost is registered again")
    eventually(lambda: rig.state()[0] == "ACTIVE", "the successor receives")
    paused.send_signal(signal.SIGCONT)
    assert exit_code(paused) == ExitCode.FENCED
    [said] = errors(rig, "another process has gone on without them")
    assert "2 blocks, " in said
    check_each_number_once(rig, source)
