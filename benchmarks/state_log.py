"""Measure what a batch with a state costs the driver log, with few versions and with many, for `benchmarks.state`."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from benchmarks.report import time_figure
from benchmarks.server import running_server
from tests.support.driver_log.stated_log import batch_time, filled_stated_log, frame
from tracker_store.batches import state_versions
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.report import Report
    from benchmarks.server import Server

# A state's chain has its whole length.
_FEW = 32
_BUCKETS = 16
# The first rounds are not counted: the session plans its statements.
_FIRST = 10
# The aim: with many versions no statement takes longer than 1.2 times as long.
_AIM = 1 / 1.2


def measure_versions(report: Report, directory: Path, versions: int, rounds: int) -> None:
    """Add a figure for each statement of a batch: its time with this number of versions, beside that with few."""
    report.section(f"A batch's statements with {versions:,} versions of a state")
    found = []
    for number in (_FEW, versions):
        (place := directory / f"versions-{number}").mkdir(mode=0o755)
        with running_server(place) as server:
            found.append(_times(server, number, rounds))
    few, many = found
    for name, milliseconds in many.items():
        report.add(
            time_figure(name, milliseconds, few[name], peer_name=f"itself, {_FEW} versions", unit="ms", aim=_AIM)
        )


def _times(server: Server, versions: int, rounds: int) -> dict[str, float]:
    """Return the median milliseconds of each statement."""
    times: dict[str, list[float]] = {}
    with connect(server.engine) as connection:
        connection.exec_driver_sql("SET statement_timeout = 0")
        stated = filled_stated_log(connection, versions)
        for number in range(versions + 1, versions + 1 + _FIRST + rounds):
            at = batch_time(number)
            if number > versions + 1:
                stated.allocate(number)
                stated.claim(at)
            head = stated.to_read(at).head
            assert head is not None
            path = f"state/1/totals/{at:%Y%m%dT%H%M%S}.000Z-1/0123456789abcdef0123456789abcdef.segment"
            # The filled log has one bucket.
            full = [
                bucket == (number - 1) % _FEW or (bucket > 0 and number == versions + 1) for bucket in range(_BUCKETS)
            ]
            frames = [frame(bucket, path, is_full=is_full) for bucket, is_full in enumerate(full)]

            def chain(head: state_versions.VersionKey = head) -> None:
                state_versions.chain(connection, **stated.where, version=head)

            steps: dict[str, Callable[[], object]] = {
                "state_to_read": lambda at=at: stated.to_read(at),  # type: ignore[misc]
                "chain": chain,
                "begin_version": lambda at=at, head=head: stated.begin(at, 1, head),  # type: ignore[misc]
                "note_version": lambda at=at, frames=frames: stated.note(at, 1, frames),  # type: ignore[misc]
                "commit_output": lambda at=at: stated.commit(at, 1),  # type: ignore[misc]
            }
            for name, step in steps.items():
                began = time.perf_counter()
                step()
                times.setdefault(name, []).append((time.perf_counter() - began) * 1000)
            stated.complete(at, 1)
    return {name: statistics.median(each[_FIRST:]) for name, each in times.items()}
