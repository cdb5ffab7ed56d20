"""`forebay up` as its users run it, with access to its driver log and processes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import psutil
import pyarrow.dataset as ds
import pytest
import sqlalchemy as sa

from orchestration.dagster_instance.browser_token import link_with_token
from receiver_runtime.block_store.stores.stores import open_block_store
from tracker_store.connection.engine import connect, create_engine
from tracker_store.connection.outage import SURVIVED
from tracker_store.receivers.leadership import Leadership, read_leadership
from tracker_store.reports import status
from tracker_store.server.embedded_postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tests.support.systems.numbered_source import NumberedSource

Found = TypeVar("Found")

START_SECONDS = 200.0
POLL_SECONDS = 0.2


class RunningSystem:
    """A system whose every process may be killed. `exit_code`: the one with which `forebay up` must end."""

    def __init__(self, home: Path, source: NumberedSource, engine: sa.Engine, up: psutil.Process, ui_link: str) -> None:
        self.home = home
        # The address of the UI, and the link with the token that opens it.
        self.ui_url, _, self.ui_token = ui_link.partition("/?token=")
        self.ui_link = ui_link
        self.source = source
        self.engine = engine
        self._up = up
        self.exit_code = 0

    def process(self, *words: str) -> psutil.Process | None:
        """Return the process of this system whose command line has all of `words`, except guards."""
        for process in self._up.children(recursive=True):
            try:
                command = process.cmdline()
            except psutil.NoSuchProcess:
                continue
            line = " ".join(command)
            if "guard" not in line and all(word in line for word in words):
                return process
        return None

    def processes(self) -> list[psutil.Process]:
        """Return `forebay up` and every process below it."""
        return [self._up, *self._up.children(recursive=True)]

    def receiver_process(self) -> psutil.Process:
        """Return the process of the one receiver: one started for it, or the previous spare process."""

        def look() -> psutil.Process | None:
            with connect(self.engine) as connection:
                pid = connection.execute(
                    sa.text(
                        "SELECT p.pid FROM forebay.receivers r JOIN forebay.processes p ON p.id = r.process_id "
                        "WHERE p.ended_at IS NULL"
                    )
                ).scalar()
            return psutil.Process(pid) if pid is not None and psutil.pid_exists(pid) else None

        return self.until("the receiver has a process", look)

    def end_reason(self, pid: int) -> str | None:
        """Return how the last process with this pid ended, according to the driver log; None if it has not ended."""
        with connect(self.engine) as connection:
            return connection.execute(
                sa.text("SELECT end_reason FROM forebay.processes WHERE pid = :pid ORDER BY id DESC LIMIT 1"),
                {"pid": pid},
            ).scalar()

    def leadership(self) -> Leadership:
        """Return the leader and its term."""
        with connect(self.engine) as connection:
            return read_leadership(connection)

    def kill(self, process: psutil.Process) -> None:
        """Send `kill -9`, and wait until the process is gone."""
        process.send_signal(signal.SIGKILL)
        psutil.wait_procs([process], timeout=10)
        assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to `forebay up` itself."""
        self._up.send_signal(number)

    def press_ctrl_c(self) -> None:
        """Interrupt all that a terminal would: `forebay up`, and those of its processes that are in its group."""
        os.killpg(self._up.pid, signal.SIGINT)

    def has_ended(self) -> bool:
        """Return whether `forebay up` has ended; its exit code is checked when the context ends."""
        # Do not wait for it: the process that started it needs its exit code.
        return not self._up.is_running() or self._up.status() == psutil.STATUS_ZOMBIE

    def until(self, what: str, look: Callable[[], Found | None], seconds: float = 150.0) -> Found:
        """Poll until `look` finds something (an unavailable driver log counts as nothing); fail at the deadline."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(*SURVIVED):
                found = look()
                if found:
                    return found
            time.sleep(POLL_SECONDS)
        return pytest.fail(f"not within {seconds:g} s: {what}\n{self._report()}")

    def registered(self) -> int:
        """Return the number of records in registered blocks."""
        with connect(self.engine) as connection:
            return sum(row.records for row in status.receiver_status(connection))

    def epoch(self) -> int:
        """Return the newest epoch of the one receiver."""
        with connect(self.engine) as connection:
            return status.receiver_status(connection)[0].epoch or 0

    def batches(self) -> list[status.BatchStats]:
        """Return every batch, newest first."""
        with connect(self.engine) as connection:
            return status.batch_stats(connection, limit=100_000)

    def launchers(self) -> set[str]:
        """Return the names of the processes that have launched runs of batches."""
        with connect(self.engine) as connection:
            rows = connection.execute(
                sa.text("SELECT DISTINCT launched_by FROM forebay.batches WHERE launched_by IS NOT NULL")
            )
            return set(rows.scalars())

    def run_keys_with_several_runs(self) -> list[str]:
        """Return the run keys under which Dagster has more than one run of a pipeline."""
        with connect(self.engine) as connection:
            rows = connection.execute(
                sa.text(
                    "SELECT k.value FROM dagster.run_tags k JOIN dagster.run_tags p ON p.run_id = k.run_id "
                    "AND p.key = 'forebay/pipeline' WHERE k.key = 'dagster/run_key' "
                    "GROUP BY p.value, k.value HAVING count(*) > 1"
                )
            )
            return list(rows.scalars())

    def receive(self, records: int) -> None:
        """Let the source send until `records` more are registered, the newest of which was sent after the call."""
        [before] = self.until("the driver log answers", lambda: [self.registered()])
        last = self.source.last_sent
        self.source.send()
        self.until(
            f"{records} more records registered",
            lambda: self.registered() >= before + records and self._newest_number() > last,
        )

    def settle(self, seconds: float = 240.0) -> None:
        """Pause the source; then check that nothing is left waiting (liveness)."""
        last = self.source.pause()
        # Otherwise records in flight are registered after all else is completed. They arrive: the connection works.
        self.until("the last number is registered", lambda: self._newest_number() == last, seconds)
        self.until("everything registered is completed and nothing waits", self._nothing_waits, seconds)

    def check_every_number_came_out_once(self) -> None:
        """Check that the output has exactly the numbers in registered blocks, each once (safety)."""
        registered = self._numbers_in_blocks()
        table = ds.dataset(self.home / "output", partitioning="hive", format="parquet").to_table(["number"])
        came_out = Counter(table["number"].to_pylist())
        twice = [number for number, times in came_out.items() if times > 1]
        missing = sorted(registered.keys() - came_out.keys())
        unknown = sorted(came_out.keys() - registered.keys())
        assert (twice, missing, unknown) == ([], [], []), (
            f"twice {len(twice)}: {twice[:10]}; missing {len(missing)}: {missing[:10]}; "
            f"unknown {len(unknown)}: {unknown[:10]}"
        )
        assert set(registered.values()) == {1}, "a number that was sent once is in two blocks"
        assert registered

    def _nothing_waits(self) -> bool:
        with connect(self.engine) as connection:
            lag = status.stream_lag(connection)
        unfinished = [row for row in self.batches() if row.state != "COMPLETED"]
        return all(row.waiting_records == 0 for row in lag) and not unfinished

    def _newest_number(self) -> int:
        """Return the last number in the newest block of the one receiver; 0 before the first."""
        with connect(self.engine) as connection:
            blocks = _registered_blocks(connection)
        if not blocks:
            return 0
        store = open_block_store(str(self.home / "blocks"))
        return max(int(batch["value"][-1].as_py()) for batch in store.read_batches(*blocks[-1]) if len(batch))

    def _numbers_in_blocks(self) -> Counter[int]:
        """Count the numbers by reading the segments, not the batches: this is independent of allocation."""
        store = open_block_store(str(self.home / "blocks"))
        numbers: Counter[int] = Counter()
        with connect(self.engine) as connection:
            blocks = _registered_blocks(connection)
        for path, offset, length, crc32c in blocks:
            for batch in store.read_batches(path, offset, length, crc32c):
                numbers.update(int(value) for value in batch["value"].to_pylist())
        return numbers

    def _report(self) -> str:
        with connect(self.engine) as connection:
            lines = [str(row) for row in status.receiver_status(connection)]
            lines += [str(row) for row in status.stream_lag(connection)]
            lines += [str(row) for row in status.batch_stats(connection, limit=5)]
        return "\n".join(lines)


def _registered_blocks(connection: sa.Connection) -> list[tuple[str, int, int, int]]:
    rows = connection.execute(
        sa.text(
            'SELECT g.path, b."offset", b.length, b.crc32c FROM forebay.blocks b '
            "JOIN forebay.log_segments g ON g.id = b.segment_id ORDER BY b.receiver_id, b.sequence"
        )
    )
    return [(row.path, row.offset, row.length, row.crc32c) for row in rows]


def _last_lines(logs: Iterable[Path], count: int = 30) -> str:
    return "\n".join(
        f"{log}:\n" + "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-count:]) for log in logs
    )


@contextmanager
def running_system(
    home: Path,
    source: NumberedSource,
    module: str = "tests.support.systems.numbered_pipeline",
    *,
    arguments: Sequence[str] = (),
    **settings: str,
) -> Iterator[RunningSystem]:
    """Start `forebay up` in `home` on the numbered pipeline; stop it, and check its exit code and that nothing remains.

    `arguments`: further ones of `forebay up`. `settings`: further environment variables.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("FOREBAY_", "DAGSTER_"))}
    environment |= {
        "FOREBAY_HOME": str(home),
        "NUMBERS_OUTPUT": str(home / "output"),
        "NUMBERS_PORT": str(source.port),
        "FOREBAY_SPARK_MASTER": "local[2]",
        **settings,
    }
    log = home / "up.log"
    with log.open("wb") as output:
        up = subprocess.Popen(
            [sys.executable, "-m", "forebay.cli", "up", module, "--ui-port", "0", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # As a shell starts it, so that `press_ctrl_c` does not reach the tests.
            process_group=0,
        )
    supervised = psutil.Process(up.pid)
    try:
        deadline = time.monotonic() + START_SECONDS
        while b"Ctrl-C stops everything" not in log.read_bytes():
            if up.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"forebay up did not start:\n{_last_lines([log, *sorted((home / 'logs').glob('*.log'))])}")
            time.sleep(POLL_SECONDS)
        engine = create_engine(EmbeddedPostgres(home / "postgres").url(), application_name="fault tests")
        [[address, where]] = re.findall(
            r"^Dagster: (http://\S+) \(its token is in (.+)\)$", log.read_text(encoding="utf-8"), re.MULTILINE
        )
        ui_link = link_with_token(address, Path(where).read_text(encoding="ascii"))
        system = RunningSystem(home, source, engine, supervised, ui_link)
        yield system
        engine.dispose()
    finally:
        processes = supervised.children(recursive=True) if supervised.is_running() else []
        up.send_signal(signal.SIGINT)
        try:
            up.wait(150)
        finally:
            up.kill()
    _, left = psutil.wait_procs(processes, timeout=10)
    # wait_procs waits for a pid, which another process may have by now.
    left = [process for process in left if process.is_running()]
    assert left == [], f"processes that outlived `forebay up`: {left}"
    assert up.returncode == system.exit_code, log.read_text(encoding="utf-8")
