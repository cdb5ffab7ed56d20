"""Test which problems `forebay status` names first, and that it never advises what destroys."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from forebay import EnvVar, Secret
from forebay.cli.checks.problem_watch import ProblemWatch
from orchestration.batches.attempt_failure import failure_of
from orchestration.batches.attempt_outputs import FailedOutput, OutputsFailedError
from orchestration.block_checks.bounded_scans import Unreachable
from orchestration.declarations.sink import TargetUnavailableError
from orchestration.sinks.refused_rows import KEEP_WAY_OUT, RefusedRow, RefusedRows, RefusedRowsError
from orchestration.status_page.problems import problems
from orchestration.status_page.system_status import AgentStatus, LeaderStatus, SystemStatus
from receiver_runtime.block_store.frames.encryption import BlockKey, BlockKeys
from receiver_runtime.block_store.frames.errors import BlockKeyError
from receiver_runtime.sources.fields.secret import SecretError
from tracker_store.batches.run_queue import WaitingRuns
from tracker_store.batches.streams import UnreadStream
from tracker_store.host.code_in_force import CodeState
from tracker_store.receivers.receivers import DEGRADED, NOT_STORING, refused_requests
from tracker_store.reports.state_status import OutputState
from tracker_store.reports.status import PipelineStatus, ReceiverStatus, StreamLag

if TYPE_CHECKING:
    from pathlib import Path

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
LEADER = LeaderStatus("t", 1, moves=True, watched=0.1)
AGENT = AgentStatus("a", "h", moves=True, watched=0.1)
HEALTHY = PipelineStatus("words", "RUNNING", NOON, 10 * SECOND, NOON, 0, 0, 0, None, 0, 0, NOON, NOON, None)


def receiver(number: int, state: str = "ACTIVE", reason: str = "", stream: str = "lines") -> ReceiverStatus:
    return ReceiverStatus(
        stream, number, number, state, "running", reason, "a", "h", 1, 9, 100, 1_000, NOON, 0, None, 2
    )


def system(*receivers: ReceiverStatus, pipeline: PipelineStatus = HEALTHY) -> SystemStatus:
    return SystemStatus(LEADER, [AGENT], [pipeline], list(receivers), [], [], [], [], [], [])


def lines(found: SystemStatus) -> list[str]:
    return [problem.line for problem in problems(found)]


def test_a_healthy_system_has_none() -> None:
    assert lines(system(receiver(1))) == []
    assert lines(replace(system(receiver(1)), receivers=None, pipelines=None, agents=None, leader=None)) == []


def test_without_processes() -> None:
    found = replace(system(receiver(1)), leader=LeaderStatus("t", 7, moves=False, watched=2.5), agents=[])
    [leader, agents] = lines(found)
    assert leader.startswith("No tracker leads: t (term 7) has been silent for 2.5 s.")
    assert agents.startswith("No agent runs, so none of the 1 receiver(s) that should run does: forebay agent")
    assert "forebay logs agent says why" in agents
    assert len(lines(replace(found, receivers=[]))) == 1, "nothing should run"
    silent = replace(found, leader=LEADER, agents=[replace(AGENT, moves=False)])
    assert lines(silent) == ["Agent a on h has been silent for 0.1 s: forebay agents list"]


def test_changed_code_that_is_not_in_force_is_told_as_forebay_up_does() -> None:
    said = "shop.py changed and waits for `forebay apply`: stream 'lines' is gone. Until then, code abc runs on."
    assert lines(replace(system(receiver(1)), code=CodeState(said))) == [said]


def test_failed_receivers_are_one_line_for_each_stream_however_many() -> None:
    assert lines(system(receiver(1), receiver(2, "FAILED", "no such host\nat line 3"))) == [
        "lines/2 is FAILED: no such host: forebay receivers restart lines/2"
    ]
    many = [receiver(number, "FAILED", f"why {number}") for number in range(3, 10_003)]
    assert lines(system(*many, receiver(1, "ACTIVE", f"{NOT_STORING} for 60 s: disk full", stream="clicks"))) == [
        "10,000 receivers of lines are FAILED; lines/3: why 3: forebay receivers restart lines",
        "clicks/1 is degraded: nothing stored or registered for 60 s: disk full: forebay receivers list",
    ]


def test_receivers_of_several_streams_with_one_cause_are_one_line() -> None:
    down = [
        receiver(1, "ACTIVE", f"{DEGRADED}: s3://bucket/{number} does not answer", stream=f"s{number}")
        for number in range(6)
    ]
    other = receiver(2, "ACTIVE", f"{DEGRADED}: the login was refused", stream="s1")
    assert lines(system(*down, other)) == [
        "6 receivers of 6 streams are degraded; s0/1: s3://bucket/0 does not answer: forebay receivers list",
        "s1/2 is degraded: the login was refused: forebay receivers list",
    ]
    failed = [replace(row, state="FAILED", reason="no such host") for row in down]
    assert lines(system(*failed, receiver(2, "FAILED", "no such host"), receiver(3, "FAILED", ""))) == [
        "7 receivers of 7 streams are FAILED; s0/1: no such host: forebay receivers list",
        "lines/3 is FAILED: it gives no reason: forebay receivers restart lines/3",
    ]


def test_refused_requests_and_what_is_not_received_have_lines_of_their_own() -> None:
    refused = refused_requests(12_031, "404 /v1/traces", 11_000)
    until = "(shown until there is none for 10m): forebay events --kind receiver_error"
    assert lines(
        system(
            receiver(1, "ACTIVE", f"listening on http://a:1; {refused}"),
            receiver(2, "ACTIVE", f"{DEGRADED}: /in/a.zip is not read; {refused_requests(1, '401 Authorization', 1)}"),
        )
    ) == [
        "lines/2 is degraded: /in/a.zip is not read: forebay receivers list",
        f"lines/1: 12,031 requests refused: 11,000 of them 404 /v1/traces {until}",
        f"lines/2: 1 request refused: 401 Authorization {until}",
    ]


def test_runs_that_no_driver_takes_are_told_after_a_moment() -> None:
    waiting = WaitingRuns("forebay", 2, 12 * SECOND, 1)
    said = "2 batch run(s) have waited 12 s for a batch driver: none is ready, 1 is starting"
    assert lines(replace(system(), waiting_runs=[waiting])) == [f"{said}: forebay logs batch-driver-1"]
    assert "none is starting" in lines(replace(system(), waiting_runs=[replace(waiting, starting=0)]))[0]
    assert lines(replace(system(), waiting_runs=[replace(waiting, waited=SECOND)])) == []


@pytest.mark.parametrize("wanted", ["stopped", "paused"])
def test_receivers_that_a_person_holds_are_told_while_a_running_pipeline_reads_them(wanted: str) -> None:
    held = [replace(receiver(number), desired_state=wanted, is_held=True) for number in (1, 2)]
    lag = [StreamLag("words", "lines", 0, 0, 0, None), StreamLag("words", "others", 0, 0, 0, None)]
    found = replace(system(*held), lag=lag)
    assert lines(found) == [
        f"2 receiver(s) of lines, which words read, were {wanted} by a person: forebay receivers start lines"
    ]
    assert lines(replace(found, pipelines=[replace(HEALTHY, state="STOPPED")])) == []
    assert lines(replace(found, lag=[])) == []
    assert lines(replace(found, receivers=[replace(row, is_held=False) for row in held])) == []


def test_records_that_nothing_reads() -> None:
    [line] = lines(replace(system(), unread=[UnreadStream("clicks", 1_234, timedelta(days=7))]))
    assert line.startswith("Nothing reads clicks: 1,234 records of it were in no batch, and are deleted 7d after they")
    assert line.endswith(": forebay streams")


@pytest.mark.parametrize(
    ("due_for", "interval", "said"),
    [
        (timedelta(seconds=19), 10 * SECOND, False),
        (timedelta(seconds=20), 10 * SECOND, True),
        # Batches of a short interval are late for a moment.
        (timedelta(seconds=9), SECOND, False),
        (timedelta(seconds=10), SECOND, True),
    ],
)
def test_late_batches(due_for: timedelta, interval: timedelta, said: bool) -> None:
    found = lines(system(pipeline=replace(HEALTHY, due_for=due_for, batch_interval=interval)))
    assert [("behind its schedule" in line) for line in found] == [True] * said


@pytest.mark.parametrize(
    ("unfinished", "completed_at", "asked"),
    [(0, NOON + 9 * SECOND, True), (0, None, True), (0, NOON + 11 * SECOND, False), (1, None, False)],
    ids=["long ago", "never", "catches up", "runs"],
)
def test_a_late_pipeline_that_no_code_may_have_is_asked_about(
    unfinished: int, completed_at: datetime | None, asked: bool
) -> None:
    late = replace(
        HEALTHY,
        due_for=timedelta(minutes=1),
        batch_interval=10 * SECOND,
        last_batch_time=NOON,
        unfinished_batches=unfinished,
        last_completed_at=completed_at,
    )
    without_it, with_it = (replace(system(pipeline=late), code=CodeState("", names)) for names in ([], ["words"]))
    is_lost = "(it is not in the code that forebay up runs here: unless other code has it" in lines(without_it)[0]
    assert is_lost is (asked or unfinished > 0), "not if some other code completes its batches"
    assert lines(with_it) == lines(system(pipeline=late))
    [line] = lines(system(pipeline=late))
    assert ("no batch was decided since 2026-01-01T12:00:00Z: is it in the code that runs" in line) is asked


def test_batches_that_are_tried_again_are_told_with_why() -> None:
    waits = replace(HEALTHY, blocked_batches=2, retry_reason="the environment variable MY_TARGET is not set")
    [blocked] = lines(system(pipeline=waits))
    assert "a secret or a key (the environment variable MY_TARGET is not set): forebay batches list" in blocked
    [blocked, failed] = lines(system(pipeline=replace(waits, failed_batches=1)))
    assert ("MY_TARGET" in blocked, "MY_TARGET" in failed) == (True, False), "it is the blocked one's"
    assert (
        "tried again (ValueError: no)"
        in lines(system(pipeline=replace(HEALTHY, failed_batches=1, retry_reason="ValueError: no")))[0]
    )


STATE = OutputState("words", "totals", NOON, 3, 100, None, None, None, None, None, None, None, None)


@pytest.mark.parametrize(
    ("replay_state", "runs", "replayed_to", "said"),
    [
        (
            "STOPPED",
            False,
            NOON + SECOND,
            "results from 2026-01-01T12:00:00Z up to 2026-01-01T12:00:01Z are from replay 7): forebay state resume",
        ),
        (
            "RUNNING",
            False,
            None,
            "RUNNING, but no process runs it: new batches wait (no result is from replay 7 yet): forebay state resume",
        ),
        ("RUNNING", True, None, "which is RUNNING: new batches wait (no result is from replay 7 yet): forebay state"),
        ("UNDOING", False, NOON, "are from replay 7 at most, until they are undone): forebay state undo words totals"),
    ],
)
def test_a_replay_forward_that_is_not_finished_is_told_with_its_progress(
    replay_state: str, replayed_to: datetime | None, said: str, *, runs: bool
) -> None:
    row = replace(
        STATE, replay=7, replay_state=replay_state, replay_from=NOON, replayed_to=replayed_to, replay_runs=runs
    )
    [line] = lines(replace(system(receiver(1)), states=[STATE, row]))
    assert said in line


def test_an_output_that_waits_for_a_quarantined_batch_is_told() -> None:
    [line] = lines(replace(system(receiver(1)), states=[replace(STATE, waits_for=NOON)]))
    assert line.startswith("Output totals of words waits for batch 2026-01-01T12:00:00Z, which is quarantined: ")
    assert line.endswith(": forebay batches replay words 2026-01-01T12:00:00Z")


BY_EVENT_TIME = replace(
    STATE,
    batch_time=NOON + HOUR,
    watermark=NOON + HOUR - 70 * SECOND,
    late=0,
    late_total=5,
    slowest_stream="clicks",
    slowest_source="0:3",
    slowest_event_time=NOON + HOUR - 60 * SECOND,
    slowest_seen=NOON + HOUR,
    newest_event_time=NOON + HOUR,
)


def of_watermark(row: OutputState, *, state: str = "RUNNING") -> list[str]:
    return lines(replace(system(receiver(1), pipeline=replace(HEALTHY, state=state)), states=[row]))


def at(before: timedelta, lateness: timedelta = 10 * SECOND) -> OutputState:
    """Return an output whose slowest source is this far behind the others."""
    slowest = NOON + HOUR - before
    return replace(BY_EVENT_TIME, slowest_event_time=slowest, watermark=slowest - lateness)


def test_a_source_that_holds_the_watermark_back_is_named() -> None:
    [line] = of_watermark(at(40 * 60 * SECOND))
    assert line == (
        "The windows of output totals of words stay open for clicks/0:3, which is at 2026-01-01T12:20:00Z, 40 min "
        "behind the others (its newest record was in batch 2026-01-01T13:00:00Z): forebay receivers list"
    )
    [line] = of_watermark(replace(at(150 * 60 * SECOND), slowest_source=None))
    assert "stay open for clicks, which is at 2026-01-01T10:30:00Z, 2 h 30 min behind the others" in line
    assert of_watermark(at(40 * 60 * SECOND), state="STOPPED") == []


@pytest.mark.parametrize(
    ("before", "lateness", "is_told"),
    [
        (100, 10, False),  # ten intervals
        (101, 10, True),
        (600, 600, False),
        (601, 600, True),
        (599, 600, False),
    ],
)
def test_a_source_holds_the_watermark_back_from_ten_intervals_and_its_lateness_on(
    before: int, lateness: int, is_told: bool
) -> None:
    assert (of_watermark(at(before * SECOND, lateness * SECOND)) != []) == is_told


def test_a_source_with_event_times_of_the_future_does_not_make_the_others_slow() -> None:
    assert of_watermark(replace(BY_EVENT_TIME, newest_event_time=NOON + 24 * HOUR)) == []
    # All records are old: no source waits for another.
    old = NOON - 1000 * HOUR
    assert of_watermark(replace(BY_EVENT_TIME, slowest_event_time=old, newest_event_time=old, watermark=old)) == []


def test_a_watermark_of_the_future_is_told() -> None:
    late = replace(BY_EVENT_TIME, watermark=NOON + 4 * HOUR)
    [line] = of_watermark(late)
    assert line.startswith("The watermark of output totals of words is 3 h ahead of its newest batch, because sources")
    assert of_watermark(replace(late, slowest_stream=None)) == [line], "every source is idle by now"
    assert of_watermark(replace(late, watermark=NOON + HOUR + 60 * SECOND)) == []


def test_a_source_without_an_event_time_holds_the_watermark_back() -> None:
    waits = replace(BY_EVENT_TIME, watermark=None, slowest_event_time=None, slowest_seen=NOON + HOUR)
    assert of_watermark(waits) == []
    [line] = of_watermark(replace(waits, slowest_seen=NOON))
    assert line == (
        "The windows of output totals of words stay open for clicks/0:3, which has had no event time since batch "
        "2026-01-01T12:00:00Z: forebay receivers list"
    )
    assert of_watermark(replace(waits, slowest_seen=None, slowest_stream=None)) == [], "every source is idle"


def test_a_quarantined_batch_is_told_with_its_reason_short_enough_for_the_command() -> None:
    reason = "ValueError: " + "x " * 300 + "the cause"
    wrong = replace(HEALTHY, quarantined_batches=1, newest_quarantined=NOON, quarantine_reason=reason)
    [line] = lines(system(pipeline=wrong))
    assert "(ValueError: x" in line
    assert "the cause): forebay batches show words" in line
    assert len(line) < 300


def test_what_cannot_be_reached_comes_first_and_nothing_advises_what_destroys() -> None:
    wrong = replace(
        HEALTHY,
        halted_by=NOON,
        quarantined_batches=3,
        newest_quarantined=NOON + SECOND,
        unfinished_batches=2,
        blocked_batches=1,
        due_for=timedelta(hours=1),
        holds_back_for=timedelta(hours=1),
    )
    for state in ("RUNNING", "STOPPING", "STOPPED"):
        for halted_by in (None, NOON):
            for running in (0, 1):
                pipeline = replace(wrong, state=state, halted_by=halted_by, running_batches=running)
                found = replace(
                    system(receiver(1, "FAILED", "x"), pipeline=pipeline),
                    unreachable=[Unreachable("block store /b", "it hangs")],
                    leader=LeaderStatus(None, 0, moves=False, watched=0),
                )
                told = lines(found)
                assert told[0] == "block store /b can't be reached: it hangs"
                assert not [line for line in told if "remove" in line or "discard" in line], told


def test_a_trouble_whose_words_change_stays_the_same_one() -> None:
    silent = replace(system(receiver(1)), leader=LeaderStatus("t", 7, moves=False, watched=2.5))
    refusing = [
        receiver(1, reason=refused_requests(total, most, total)) for total, most in ((3, "404 /a"), (9, "413 /b"))
    ]
    stale = replace(HEALTHY, holds_back_for=timedelta(hours=1))
    unreachable = [Unreachable("the block store", reason) for reason in ("no route", "it does not answer")]
    for one, other in (
        (silent, replace(silent, leader=replace(LEADER, holder=None, moves=False))),
        (system(refusing[0]), system(refusing[1])),
        (system(pipeline=stale), system(pipeline=replace(stale, running_batches=1))),
        tuple(replace(system(), unreachable=[part]) for part in unreachable),
    ):
        [first], [second] = problems(one), problems(other)
        assert first.what != second.what
        assert first.about == second.about != ""


# As long as they may be, where a reason begins with them.
_PIPELINE = "orders_of_all_shops_" * 3
_OUTPUT = f"output '{'counts_by_hour_' * 4}' of pipeline '{_PIPELINE}': "
_VARIABLE = "FOREBAY_TEST_A_TARGET_THAT_IS_NOT_SET"
BLOCKED = replace(HEALTHY, blocked_batches=1)
FAILED = replace(HEALTHY, failed_batches=1)


def failed(output: str, error: Exception) -> FailedOutput:
    return FailedOutput(output, error, failure_of(error, lambda: None))


def told(error: Exception, pipeline: PipelineStatus) -> list[str]:
    """Return the lines of `forebay status` and `forebay up` on an output's error, as the driver log has it.

    The output is the only one of its pipeline, or another one failed too and a third did not run.
    """
    one, other = failed("counts_by_hour", error), failed("others", ValueError("no number: " + "x" * 3_000))
    found = []
    for reason in (one.failure.message, OutputsFailedError(3, [other, one], ["the_last_one"]).failure.message):
        wrong = system(pipeline=replace(pipeline, pipeline=_PIPELINE, retry_reason=reason))
        found += lines(wrong)
        ProblemWatch(found.append).compare(problems(wrong))
    assert len(found) == 4
    return found


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "put the secret into file:"),
        (b"", "a secret is empty: write it into file:"),
        (b"\xff", "write the secret as text into file:"),
        (b"hunter2", "-base64 32`) into file:"),
    ],
)
def test_a_shortened_reason_names_the_secret_s_file_and_the_way_out(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    file = tmp_path / ("a_secret_" * 3)
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BlockKeyError) as raised:
        BlockKey.read(Secret(f"file:{file}"))
    # A folder of tests has a long name by itself: a place of 60 characters stands for it.
    place = "/run/secrets/of_the_shop/in_production/target_of_all_orders"
    reason = f"{_OUTPUT}{raised.value}".replace(str(file), place)
    for line in told(TargetUnavailableError(reason), BLOCKED):
        assert f"{said}{place}): forebay batches list" in line
    # A name that is longer than the line is cut within.
    for line in told(TargetUnavailableError(reason.replace(place, "/folder" * 40 + place)), BLOCKED):
        assert f"{place}): forebay batches list" in line


def test_a_shortened_reason_names_the_variable_and_the_way_out() -> None:
    with pytest.raises(SecretError) as raised:
        EnvVar(_VARIABLE).resolve()
    with pytest.raises(BlockKeyError) as of_a_key:
        BlockKey.read(EnvVar(_VARIABLE))
    for error in (TargetUnavailableError(f"{_OUTPUT}{raised.value}"), of_a_key.value):
        for line in told(error, BLOCKED):
            said = f"where `forebay up` starts both, and start that again: {_VARIABLE}"
            assert f"{said}): forebay batches list --pipeline {_PIPELINE} --state BLOCKED" in line


def test_a_shortened_reason_names_the_setting_and_the_key_of_an_encrypted_block() -> None:
    payload = pa.py_buffer(bytes.fromhex("0123456789abcdef") + bytes(60))
    with pytest.raises(BlockKeyError) as raised:
        BlockKeys().decrypt(payload, b"", "s3://bucket/" + "folder/" * 30, 0)
    for line in told(raised.value, BLOCKED):
        assert "name in FOREBAY_BLOCK_KEYS_FOR_READING the key 0123456789abcdef): forebay batches list" in line


def test_a_shortened_reason_of_a_refused_row_keeps_the_way_out() -> None:
    refused = RefusedRows(way_out=KEEP_WAY_OUT)
    said = 'duplicate key value violates unique constraint "orders_item_key" (Key (item)=(item3) already exists.)'
    refused.add(RefusedRow("{}", f"column item is 'item3': {said}"))
    with pytest.raises(RefusedRowsError) as raised:
        refused.end()
    for line in told(raised.value, FAILED):
        assert 'put aside by on_bad_rows="dead_letter"): forebay batches list' in line
