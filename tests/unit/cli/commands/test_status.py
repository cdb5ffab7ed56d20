"""Test what `forebay status` prints of small and of large installations."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from forebay.cli.commands.status import _report, _show
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.many_rows import MOST_ROWS, SHORT_ROWS
from forebay.cli.terminal.row_json import to_json
from orchestration.status_page.system_status import SystemStatus
from tracker_store.batches.scaling import ScalingDecision
from tracker_store.receivers.receivers import NOT_STORING
from tracker_store.reports.status import PipelineStatus, ReceiverStatus, StreamLag

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def receiver(number: int, *, per_stream: int = 10) -> ReceiverStatus:
    return ReceiverStatus(
        stream=f"stream_{(number - 1) // per_stream + 1}",
        ordinal=(number - 1) % per_stream + 1,
        receiver_id=number,
        state="ACTIVE",
        desired_state="running",
        reason="",
        agent="a",
        host="h",
        epoch=1,
        newest_sequence=9,
        records=100,
        bytes=1_000,
        last_block_at=NOON,
        dead_letters=0,
        rate_limit=None,
        queued_blocks=2,
    )


def pipeline(number: int) -> PipelineStatus:
    return PipelineStatus(
        f"pipeline_{number}", "RUNNING", NOON, SECOND, NOON, 1, 1, 1, number * SECOND, 0, 0, NOON, NOON, None
    )


def system(
    receivers: list[ReceiverStatus],
    *,
    lag: list[StreamLag] | None = None,
    pipelines: list[PipelineStatus] | None = None,
) -> SystemStatus:
    return SystemStatus(None, [], pipelines or [], receivers, lag or [], [], [], [], [], [])


def shown(found: SystemStatus, *, everything: bool = False) -> list[str]:
    out = io.StringIO()
    _show(Console(file=out, highlight=False, width=120), found, everything=everything)
    return out.getvalue().splitlines()


def test_a_small_installation_sees_each_receiver() -> None:
    lines = shown(system([receiver(number) for number in range(1, MOST_ROWS + 1)]))
    assert sum("ACTIVE" in line for line in lines) == MOST_ROWS
    assert not any("not shown" in line or "sums" in line for line in lines)


def test_what_sources_have_is_shown_of_receivers_that_said_so_and_is_a_problem_where_it_is_old() -> None:
    rows = [
        replace(receiver(1), partitions=3, unread=1_234, unread_unit="records", source_lag=90 * SECOND),
        replace(receiver(2), partitions=2, unread=10, unread_unit="records", source_lag=61 * SECOND),
        replace(receiver(11), partitions=1, unread=0, unread_unit="bytes"),
        receiver(12),
    ]
    lines = shown(system(rows))
    title = next(number for number, line in enumerate(lines) if "Sources: what no receiver has read yet" in line)
    table = [line.split() for line in lines[title + 3 :] if "stream_" in line]
    assert [[cell for cell in row if cell != "│"] for row in table[:3]] == [
        ["stream_1", "1", "3", "1,234", "records", "90.0", "s"],
        ["stream_1", "2", "2", "10", "records", "61.0", "s"],
        ["stream_2", "1", "1", "0", "bytes", "-"],
    ]
    problems = [line.strip() for line in lines if "behind its source" in line]
    assert problems == ["stream_1/1 is 90 s behind its source, which has 1,234 records unread: forebay receivers list"]
    assert "Sources" not in "".join(shown(system([receiver(1)])))


def test_receivers_with_one_reason_are_one_line() -> None:
    rows = [replace(receiver(number), reason=f"degraded: port {number} is in use") for number in range(1, 7)]
    reasons = [line for line in shown(system(rows)) if "in use" in line and "forebay" not in line]
    assert reasons == ["stream_1/1 and 5 more: degraded: port 1 is in use"]


@pytest.mark.parametrize(("newest_batches", "applied", "said"), [(2, False, False), (3, False, True), (1, True, True)])
def test_advice_on_spark_s_size_is_shown_when_some_batches_have_run(
    newest_batches: int, *, applied: bool, said: bool
) -> None:
    advice = "batches take 257% of their interval (mean of 1): 2 executors instead of 1"
    decision = ScalingDecision("words", 2.57, 1, 2, 1, applied, advice, NOON, NOON, SECOND, newest_batches)
    lines = shown(replace(system([]), decisions=[decision]))
    assert (f"words: {advice}." in lines) is said


def test_a_large_installation_sees_sums_and_who_needs_attention() -> None:
    receivers = [receiver(number) for number in range(1, 1_011)]
    receivers[500] = replace(receivers[500], state="FAILED", reason="no such host")
    receivers[700] = replace(receivers[700], reason=f"{NOT_STORING} for 60 s: the disk is full")
    receivers[800] = replace(receivers[800], dead_letters=7)
    lines = shown(system(receivers))
    title = next(number for number, line in enumerate(lines) if "Receivers that need attention: 3 of 1,010" in line)
    rows = [line.split() for line in lines[title + 4 : title + 7]]
    assert [row[:3] for row in rows] == [
        ["stream_51", "1", "FAILED"],
        ["stream_71", "1", "ACTIVE"],
        ["stream_81", "1", "ACTIVE"],
    ]
    sums = [line.split() for line in lines if line.split()[1:3] == ["10", "1"]]
    assert {row[0] for row in sums} == {"stream_51", "stream_71", "stream_81"}
    assert ["stream_51", "10", "1", "9", "ACTIVE,", "1", "FAILED", "1,000", "20", "0"] in sums
    assert "stream_51/1: no such host" in lines
    assert (
        "1,007 receivers are not shown: see forebay status --all, --json, or the view forebay.receiver_status." in lines
    )
    assert "81 streams are not shown: see forebay status --all, --json, or the view forebay.receiver_status." in lines


def test_all_shows_all() -> None:
    lines = shown(system([receiver(number) for number in range(1, 301)]), everything=True)
    assert sum("ACTIVE" in line for line in lines) == 300
    assert not any("not shown" in line for line in lines)


def test_of_many_pipelines_and_lags_the_most_urgent_ones_are_shown_first() -> None:
    pipelines = [pipeline(number) for number in range(1, 201)]
    pipelines[3] = replace(pipelines[3], state="STOPPED")
    lag = [StreamLag("p", f"lines_{number}", 1, 1, 1, number * SECOND) for number in range(1, 301)]
    lines = shown(system([], lag=lag, pipelines=pipelines))
    assert [line.split()[0] for line in lines if line.startswith("  pipeline_")] == [
        "pipeline_4",
        *(f"pipeline_{number}" for number in range(200, 200 - SHORT_ROWS + 1, -1)),
    ]
    assert [line.split()[1] for line in lines if line.startswith("  p ")] == [
        f"lines_{number}" for number in range(300, 300 - SHORT_ROWS, -1)
    ]
    assert sum("not shown" in line for line in lines) == 2


@pytest.mark.parametrize("receivers", [1_010, 10_000])
def test_the_page_does_not_grow_with_the_receivers(receivers: int) -> None:
    lines = shown(system([receiver(number) for number in range(1, receivers + 1)]))
    assert len(lines) < 60


def test_the_json_has_every_receiver_with_plain_values() -> None:
    report = json.loads(to_json(_report(system([receiver(number) for number in range(1, 301)]))))
    assert len(report["receivers"]) == 300
    assert report["receivers"][0]["last_block_at"] == NOON.isoformat()
    assert set(report["receivers"][0]) == set(ReceiverStatus.__slots__)
    lag = _report(system([], lag=[StreamLag("p", "lines", 1, 1, 1, 2 * SECOND)]))
    assert json.loads(to_json(lag))["lag"][0]["lag"] == 2.0
