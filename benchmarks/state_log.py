"""Measure what a batch with a state costs the driver log, with few versions and with many, for `benchmarks.state`."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from benchmarks.report import Figure
from benchmarks.server import running_server
from tests.support.driver_log.stated_log import batch_time, filled_stated_log, frame
from tracker_store.batches import state_versions
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import sqlalchemy as sa

    from benchmarks.report import Report

# A state's chain has its whole length.
_FEW = 32
_BUCKETS = 16
# The first rounds are not counted: the session plans its statements.
_FIRST = 10
# The aim: with many versions no statement takes longer than 1.2 times as long.
_AIM = 1 / 1.2


def measure_versions(report: Report, directory: Path, versions: int, rounds: int) -> None:
    """Add a figure for each statement of a batch: its time with this number of versions, beside that with few.

    The two driver logs are on servers of their own, and take turns.
    """
    report.section(f"A batch's statements with {versions:,} versions of a state")
    with ExitStack() as stack:
        logs = []
        for number in (_FEW, versions):
            (place := directory / f"versions-{number}").mkdir(mode=0o755)
            server = stack.enter_context(running_server(place))
            logs.append(_Batches(stack.enter_context(connect(server.engine)), number))
        taken = [[log.run() for log in logs] for _ in range(_FIRST + rounds)][_FIRST:]
    for name in taken[0][0]:
        few, many = ([each[at][name] for each in taken] for at in (0, 1))
        ratio = statistics.median(a / b for a, b in zip(few, many, strict=True))
        middles = statistics.median(many), statistics.median(few)
        report.add(Figure(name, *middles, f"itself, {_FEW} versions", ratio, _AIM, "ms"))


class _Batches:
    """Run batches on a driver log with this number of versions."""

    def __init__(self, connection: sa.Connection, versions: int) -> None:
        connection.exec_driver_sql("SET statement_timeout = 0")
        self._connection = connection
        self._stated = filled_stated_log(connection, versions)
        self._first = self._number = versions + 1

    def run(self) -> dict[str, float]:
        """Run one batch; return the milliseconds of each statement."""
        stated, number, at = self._stated, self._number, batch_time(self._number)
        if number > self._first:
            stated.allocate(number)
            stated.claim(at)
        head = stated.to_read(at).head
        assert head is not None
        path = f"state/1/totals/{at:%Y%m%dT%H%M%S}.000Z-1/0123456789abcdef0123456789abcdef.segment"
        # The filled log has one bucket.
        full = [bucket == (number - 1) % _FEW or (bucket > 0 and number == self._first) for bucket in range(_BUCKETS)]
        frames = [frame(bucket, path, is_full=is_full) for bucket, is_full in enumerate(full)]
        steps: dict[str, Callable[[], object]] = {
            "state_to_read": lambda: stated.to_read(at),
            "chain": lambda: state_versions.chain(self._connection, **stated.where, version=head),
            "begin_version": lambda: stated.begin(at, 1, head),
            "note_version": lambda: stated.note(at, 1, frames),
            "commit_output": lambda: stated.commit(at, 1),
        }
        times = {}
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            times[name] = (time.perf_counter() - began) * 1000
        stated.complete(at, 1)
        self._number += 1
        return times
