"""Find what is wrong in a system's status, worst first, each with the command that leads on.

Owns the rules and their order. It reads nothing, prints nothing, and never names a command that gives up data or
removes something: what may be lost is a person's decision, after a look at the thing itself.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from orchestration.status_page.reasons import causes
from orchestration.status_page.shown import span
from receiver_runtime.sources.fields.units import duration_text
from tracker_store.long_texts import one_line
from tracker_store.receivers.receivers import (
    DEGRADED,
    REFUSALS_SHOWN_SECONDS,
    is_degraded,
    is_not_storing,
    refused_in,
)
from tracker_store.schema.states import DesiredState, ReceiverState, StateReplayState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from datetime import datetime

    from orchestration.status_page.system_status import AgentStatus, LeaderStatus, SystemStatus
    from tracker_store.batches.run_queue import WaitingRuns
    from tracker_store.batches.streams import UnreadStream
    from tracker_store.reports.state_status import OutputState
    from tracker_store.reports.status import PipelineStatus, ReceiverStatus

# A batch may be late for a moment: a pipeline is behind from this number of intervals on, if they take this long.
BEHIND_INTERVALS = 2
BEHIND_FOR = timedelta(seconds=10)
# A receiver may read in pieces, or start: a source is ahead from this age of its oldest unread record on, as the alert
# says it.
SOURCE_AHEAD_FOR = timedelta(minutes=1)
# Sources of a stream are never equally far: one holds the watermark back from this number of intervals on, if they take
# this long, and only by more than the lateness, for which windows wait anyway.
HELD_BACK_INTERVALS = 10
HELD_BACK_FOR = timedelta(minutes=1)
# Clocks differ: a watermark is ahead of its batch, and makes records of the present too late, from here on.
WATERMARK_AHEAD_FOR = timedelta(minutes=1)
# A driver takes a run within milliseconds; one that ends with changed code, or by a kill, has a successor within 4 s.
DRIVER_WITHIN = timedelta(seconds=5)
# Characters of a batch's reason: the command that shows all of it must have room in the same line.
_REASON = 150


@dataclass(frozen=True, slots=True)
class Problem:
    """Say what is wrong, and name the command that shows more of it or fixes it; empty if there is none.

    `about`: equal for two of them that are the same trouble in other words; empty: the words themselves say it.
    `why`: its cause, or when it ends, which may differ while the problem lasts; empty: the words say it, or not known.
    """

    what: str
    command: str = ""
    about: str = ""
    why: str = ""

    @property
    def whole(self) -> str:
        """Return what is wrong, with its cause."""
        return f"{self.what} ({self.why})" if self.why else self.what

    @property
    def line(self) -> str:
        """Return it as one line."""
        return f"{self.whole}: {self.command}" if self.command else self.whole


def problems(found: SystemStatus) -> list[Problem]:
    """Return what is wrong, worst first. A part that did not answer has no problem here: `unreachable` names it."""
    listed = [
        Problem(f"{missing.part} can't be reached: {missing.reason}", about=f"unreachable {missing.part}")
        for missing in found.unreachable
    ]
    if found.leader is not None:
        listed += _of_leader(found.leader)
    if found.agents is not None:
        listed += _of_agents(found.agents, found.receivers or [])
    if found.code.notice:
        listed.append(Problem(found.code.notice))
    pipelines = found.pipelines or []
    for of_one in (_halted, _quarantined, _blocked, _failed):
        listed += [problem for row in pipelines for problem in of_one(row)]
    listed += _of_states(found.states or [])
    listed += _of_watermarks(found.states or [], pipelines)
    listed += _of_receivers(found.receivers or [])
    listed += _refusing(found.receivers or [])
    listed += _held(found)
    listed += _unread(found.unread or [])
    listed += _behind_source(found.receivers or [])
    listed += _waiting_for_a_driver(found.waiting_runs or [])
    late = [problem for row in pipelines for problem in _late(row, found.code.pipelines)]
    return listed + late


def stale_line(row: PipelineStatus) -> str:
    """Return the warning for a pipeline that completes nothing while it holds blocks back, and what to do."""
    held = 0.0 if row.holds_back_for is None else row.holds_back_for.total_seconds()
    if row.running_batches:
        way_out = f"a batch of it runs: forebay batches list --pipeline {row.pipeline}"
    elif row.state == "STOPPED":
        way_out = f"forebay start --pipeline {row.pipeline} lets it go on"
    else:
        way_out = f"does Dagster run it? forebay batches list --pipeline {row.pipeline} shows what it did last"
    # It never advises to remove the pipeline: a runbook says when that is right.
    return (
        f"{row.pipeline} ({row.state}) has completed nothing for {held:.0f} s while blocks wait for it, which clean-up "
        f"must keep: {way_out}"
    )


def _of_leader(leader: LeaderStatus) -> Iterator[Problem]:
    if leader.moves:
        return
    who = "no tracker holds the leadership"
    if leader.holder is not None:
        who = f"{leader.holder} (term {leader.term}) has been silent for {leader.watched:g} s"
    yield Problem(
        f"No tracker leads: {who}. Receivers that run go on; none is placed, replaced or cleaned up after, until an "
        "agent with the role tracker runs",
        "forebay agent, or forebay up MODULE",
        "leader",
    )


def _of_agents(agents: Sequence[AgentStatus], receivers: Sequence[ReceiverStatus]) -> Iterator[Problem]:
    for agent in agents:
        if not agent.moves:
            yield Problem(
                f"Agent {agent.name} on {agent.host} has been silent for {agent.watched:g} s", "forebay agents list"
            )
    wanted = sum(row.desired_state == DesiredState.RUNNING for row in receivers)
    if not agents and wanted:
        yield Problem(
            f"No agent runs, so none of the {wanted:,} receiver(s) that should run does",
            "forebay agent, or forebay up MODULE; where that runs, forebay logs agent says why its agent does not",
        )


def _halted(row: PipelineStatus) -> Iterator[Problem]:
    if row.halted_by is not None:
        time = f"{row.halted_by:%Y-%m-%dT%H:%M:%SZ}"
        yield Problem(
            f'{row.pipeline} is halted (on_failure="halt"): batch {time} is quarantined',
            f"forebay batches show {row.pipeline} {time}",
            why=_why_quarantined(row) if row.halted_by == row.newest_quarantined else "",
        )


def _quarantined(row: PipelineStatus) -> Iterator[Problem]:
    if row.newest_quarantined is None:
        return
    time = f"{row.newest_quarantined:%Y-%m-%dT%H:%M:%SZ}"
    if row.quarantined_batches > 1:
        yield Problem(
            f"{row.pipeline} has {row.quarantined_batches:,} quarantined batches, the newest at {time}",
            f"forebay batches list --pipeline {row.pipeline} --state QUARANTINED",
            f"quarantined {row.pipeline}",
            _why_quarantined(row),
        )
    elif row.newest_quarantined != row.halted_by:
        yield Problem(
            f"{row.pipeline} has a quarantined batch at {time}",
            f"forebay batches show {row.pipeline} {time}",
            f"quarantined {row.pipeline}",
            _why_quarantined(row),
        )


def _why_quarantined(row: PipelineStatus) -> str:
    return one_line(row.quarantine_reason, _REASON)


def _blocked(row: PipelineStatus) -> Iterator[Problem]:
    if row.blocked_batches:
        yield Problem(
            f"{row.pipeline} has {row.blocked_batches:,} blocked batch(es), which wait for a block store, a target, "
            "a secret or a key",
            f"forebay batches list --pipeline {row.pipeline} --state BLOCKED",
            why=one_line(row.retry_reason, _REASON),
        )


def _failed(row: PipelineStatus) -> Iterator[Problem]:
    if row.failed_batches:
        yield Problem(
            f"{row.pipeline} has {row.failed_batches:,} failed batch(es), to be tried again",
            f"forebay batches list --pipeline {row.pipeline} --state FAILED",
            why="" if row.blocked_batches else one_line(row.retry_reason, _REASON),
        )


def _of_states(states: Sequence[OutputState]) -> Iterator[Problem]:
    for row in states:
        what = f"Output {row.output} of {row.pipeline}"
        if row.replay is not None:
            is_undone = row.replay_state == StateReplayState.UNDOING
            dead = "" if row.replay_runs or row.replay_state == StateReplayState.STOPPED else ", but no process runs it"
            go_on = f"forebay state {'undo' if is_undone else 'resume'} {row.pipeline} {row.output}"
            yield Problem(
                f"{what} is in replay {row.replay} of its state, which is {row.replay_state}{dead}: new batches wait",
                "forebay state" if row.replay_runs else go_on,
                f"replay {row.pipeline} {row.output}",
                replayed_line(row),
            )
        elif row.waits_for is not None:
            time = f"{row.waits_for:%Y-%m-%dT%H:%M:%SZ}"
            yield Problem(
                f"{what} waits for batch {time}, which is quarantined: each batch goes on from the state before it",
                f"forebay batches replay {row.pipeline} {time}",
                f"waits {row.pipeline} {row.output}",
            )


def replayed_line(row: OutputState) -> str:
    """Return which results are those of the replay forward that is not finished."""
    if row.replayed_to is None:
        return f"no result is from replay {row.replay} yet"
    up_to = f"up to {row.replayed_to:%Y-%m-%dT%H:%M:%SZ}"
    since = "" if row.replay_from is None else f"from {row.replay_from:%Y-%m-%dT%H:%M:%SZ} "
    ends = "at most, until they are undone" if row.replay_state == StateReplayState.UNDOING else ""
    return f"results {since}{up_to} are from replay {row.replay} {ends}".rstrip()


def _of_watermarks(states: Sequence[OutputState], pipelines: Sequence[PipelineStatus]) -> Iterator[Problem]:
    # A pipeline that is stopped has no new watermark, whatever its sources do.
    intervals = {row.pipeline: row.batch_interval for row in pipelines if row.state == "RUNNING"}
    for row in states:
        if row.pipeline not in intervals:
            continue
        name, about = f"output {row.output} of {row.pipeline}", f"watermark {row.pipeline} {row.output}"
        ahead = -(row.watermark_lag or timedelta(0))
        if ahead > WATERMARK_AHEAD_FOR:
            yield Problem(
                f"The watermark of {name} is {span(ahead)} ahead of its newest batch, because sources sent event "
                "times of the future: records of the present are too late",
                about=about,
            )
        elif (behind := _held_back_by(row, intervals[row.pipeline])) is not None:
            is_at = f"has had no event time since batch {_second(row.slowest_seen)}"
            if row.slowest_event_time is not None:
                is_at = f"is at {_second(row.slowest_event_time)}, {span(behind)} behind the others"
            yield Problem(
                f"The windows of {name} stay open for {slowest_source(row)}, which {is_at}",
                "forebay receivers list",
                about,
                f"its newest record was in batch {_second(row.slowest_seen)}" if row.slowest_event_time else "",
            )


def slowest_source(row: OutputState) -> str:
    """Return the name of the source that the watermark waits for."""
    return f"{row.slowest_stream}" if row.slowest_source is None else f"{row.slowest_stream}/{row.slowest_source}"


def _held_back_by(row: OutputState, interval: timedelta) -> timedelta | None:
    """Return how far the slowest source is behind the others, if it is far; None: it is not."""
    if row.batch_time is None or row.slowest_stream is None:
        return None
    most = max(interval * HELD_BACK_INTERVALS, HELD_BACK_FOR)
    if row.slowest_event_time is None:
        behind = row.batch_time - (row.slowest_seen or row.batch_time)
    else:
        # An event time of the future is no measure of the others.
        behind = min(row.newest_event_time or row.batch_time, row.batch_time) - row.slowest_event_time
        if row.watermark is not None:
            most = max(most, row.slowest_event_time - row.watermark)
    return behind if behind > most else None


def _second(at: datetime | None) -> str:
    return "-" if at is None else f"{at:%Y-%m-%dT%H:%M:%SZ}"


def _of_receivers(receivers: Sequence[ReceiverStatus]) -> Iterator[Problem]:
    failed = [row for row in receivers if row.state == ReceiverState.FAILED]
    degraded = [row for row in receivers if row.state != ReceiverState.FAILED and is_degraded(row.reason)]
    # Of those that store nothing the newest records may be lost with their host.
    degraded.sort(key=lambda row: not is_not_storing(row.reason))
    for adjective, chosen in (("FAILED", failed), (DEGRADED, degraded)):
        # One line for each cause, whatever the number of the receivers and streams that have it.
        for cause in causes(chosen, partial(_reason, adjective)):
            streams = {row.stream for row in cause.rows}
            name = f"{cause.row.stream}/{cause.row.ordinal}"
            what, restart = f"{name} is {adjective}: {cause.line}", name
            if cause.more:
                of = cause.row.stream if len(streams) == 1 else f"{len(streams):,} streams"
                what = f"{len(cause.rows):,} receivers of {of} are {adjective}; {name}: {cause.line}"
                restart = cause.row.stream
            restarts = adjective == ReceiverState.FAILED and len(streams) == 1
            command = f"forebay receivers restart {restart}" if restarts else "forebay receivers list"
            yield Problem(what, command, f"{adjective} {cause.line}")


def _reason(adjective: str, row: ReceiverStatus) -> str:
    """Return why a receiver is so, without the word itself; what it refused has a line of its own."""
    reason = row.reason.partition("\n")[0]
    if (refused := refused_in(reason)) is not None:
        reason = reason.removesuffix(refused).removesuffix("; ")
    return reason.removeprefix(f"{adjective}: ") or "it gives no reason"


def _refusing(receivers: Sequence[ReceiverStatus]) -> Iterator[Problem]:
    for row in receivers:
        if (refused := refused_in(row.reason)) is not None:
            name = f"{row.stream}/{row.ordinal}"
            until = f"shown until there is none for {duration_text(REFUSALS_SHOWN_SECONDS)}"
            yield Problem(f"{name}: {refused}", "forebay events --kind receiver_error", f"refusing {name}", until)


def _held(found: SystemStatus) -> Iterator[Problem]:
    """Yield a line for each stream that a running pipeline reads, and whose receivers a person has stopped or paused.

    They stay so when the stream is renamed, applied again, or the system starts again.
    """
    running = {row.pipeline for row in found.pipelines or [] if row.state == "RUNNING"}
    readers: dict[str, list[str]] = {}
    for lag in found.lag or []:
        if lag.pipeline in running:
            readers.setdefault(lag.stream, []).append(lag.pipeline)
    for wanted in (DesiredState.STOPPED, DesiredState.PAUSED):
        held = Counter(row.stream for row in found.receivers or [] if row.is_held and row.desired_state == wanted)
        for stream in sorted(held.keys() & readers.keys()):
            yield Problem(
                f"{held[stream]:,} receiver(s) of {stream}, which {' and '.join(readers[stream])} read, were {wanted} "
                "by a person",
                f"forebay receivers start {stream}",
                f"held {stream}",
            )


def _unread(streams: Sequence[UnreadStream]) -> Iterator[Problem]:
    for row in streams:
        kept = duration_text(row.retention.total_seconds())
        yield Problem(
            f"Nothing reads {row.stream}: {row.records:,} records of it were in no batch, and are deleted {kept} after "
            "they came, unless a pipeline that reads it is applied",
            "forebay streams",
        )


def _behind_source(receivers: Sequence[ReceiverStatus]) -> Iterator[Problem]:
    """Yield a line for each stream, of the receiver that is furthest behind."""
    seen: set[str] = set()
    for lag, row in sorted(
        (
            (row.source_lag, row)
            for row in receivers
            if row.source_lag is not None and row.source_lag > SOURCE_AHEAD_FOR
        ),
        key=lambda found: found[0],
        reverse=True,
    ):
        if row.stream not in seen:
            seen.add(row.stream)
            yield Problem(
                f"{row.stream}/{row.ordinal} is {lag.total_seconds():,.0f} s behind its source, which has "
                f"{row.unread:,} {row.unread_unit} unread",
                "forebay receivers list",
                f"behind {row.stream}",
            )


def _waiting_for_a_driver(found: Sequence[WaitingRuns]) -> Iterator[Problem]:
    for row in found:
        if row.waited >= DRIVER_WITHIN:
            drivers = f"{row.starting:,} is starting" if row.starting else "none is starting"
            yield Problem(
                f"{row.runs:,} batch run(s) have waited {row.waited.total_seconds():,.0f} s for a batch driver: none "
                f"is ready, {drivers}",
                "forebay logs batch-driver-1",
                f"waiting {row.location}",
            )


def _undecided(row: PipelineStatus, in_code: Collection[str] | None) -> str:
    """Return why nothing moves, if no batch was decided or completed since its oldest batch time came."""
    moves = row.last_completed_at is not None and row.last_completed_at > row.last_batch_time + row.batch_interval
    if not moves and in_code is not None and row.pipeline not in in_code:
        return "it is not in the code that forebay up runs here: unless other code has it, no batch of it runs"
    if moves or row.unfinished_batches:
        return ""
    return (
        f"no batch was decided since {row.last_batch_time:%Y-%m-%dT%H:%M:%SZ}: is it in the code that runs, and does "
        "Dagster run?"
    )


def _late(row: PipelineStatus, in_code: Collection[str] | None) -> Iterator[Problem]:
    if row.halted_by is not None:
        return
    behind = row.intervals_behind
    if behind >= BEHIND_INTERVALS and row.due_for is not None and row.due_for >= BEHIND_FOR:
        yield Problem(
            f"{row.pipeline} is {behind:,} intervals ({row.due_for.total_seconds():,.0f} s) behind its schedule",
            f"forebay batches list --pipeline {row.pipeline}",
            why=_undecided(row, in_code),
        )
    if row.is_stale:
        yield Problem(stale_line(row), about=f"stale {row.pipeline}")
