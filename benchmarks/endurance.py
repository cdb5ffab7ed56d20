"""An hour at 80 % of the measured ceiling with 16 receivers of four kinds: does anything grow? Then ten times the rate.

Run as ``python -m benchmarks.endurance [--minutes N] [--json] [--rate R]``, or ``make endurance``. Everything is real:
`forebay up` as its users run it, Apache Kafka, senders that record what was taken, and Parquet files that must hold
exactly that. First the rate is doubled until the batches don't keep up (the ceiling). Then 80 % of it is held for
MINUTES, and memory, descriptors, threads, tables and latency of the first and the last sixth are compared. Then ten
times that rate is offered for 60 s: back pressure has to hold, and the waiting records have to drain. The exit code is
1 if a record is missing or doubled; no other figure makes it fail.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow.parquet as pq
import sqlalchemy as sa

from benchmarks.endurance_senders import EACH, TOPIC, Senders
from benchmarks.forebay_process import await_start, start_forebay_up
from benchmarks.report import Figure, Report, machine, time_figure
from tests.support.brokers.kafka import KafkaBroker
from tests.support.machine.held_ports import held_ports
from tracker_store.embedded_postgres import EmbeddedPostgres
from tracker_store.engine import connect, create_engine
from tracker_store.errors import DriverLogError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# A batch of 13 inputs takes some seconds whatever it holds.
_INTERVAL_SECONDS = 5
_START_SECONDS = 300.0
_STOP_SECONDS = 150.0
_WARM_BATCHES = 5
_SAMPLE_SECONDS = 10.0
_FIRST_RATE = 2_000.0
_STEP_SECONDS = 30.0
# Each halves the interval between the highest rate that was kept up with and the lowest that was not.
_HALVINGS = 2
# The system keeps up with a rate if it takes this part of it, and at most this many intervals' records wait.
_TAKEN = 0.95
_MOST_WAITING_INTERVALS = 5
_PART_OF_CEILING = 0.8
_BURST = 10
_BURST_SECONDS = 60.0
_DRAIN_SECONDS = 900.0
# The aim for the ratio of the first sixth's value to the last sixth's: 1 is flat, less is growth.
_FLAT = 0.9
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Sample:
    """The values that the system had at one moment, by name."""

    at: float
    values: Mapping[str, float]


@dataclass(slots=True)
class System:
    """A running system, and its senders."""

    up: psutil.Process
    engine: sa.Engine
    senders: Senders
    output: Path
    samples: list[Sample] = field(default_factory=list)

    def sample(self) -> None:
        """Take one sample."""
        values = {**_of_processes(self.up), **self._of_driver_log()}
        self.samples.append(Sample(time.monotonic(), values))

    def _of_driver_log(self) -> dict[str, float]:
        sizes = self.rows(
            "SELECT c.relname, pg_total_relation_size(c.oid) / 1048576.0 AS mib FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'forebay' AND c.relkind = 'r' "
            "ORDER BY 2 DESC LIMIT 5"
        )
        [whole] = self.rows("SELECT pg_database_size(current_database()) / 1048576.0 AS mib")
        return {
            **{f"table {row.relname}, MiB": float(row.mib) for row in sizes},
            "database, MiB": float(whole.mib),
            "records that wait": float(self.waiting()),
        }

    def waiting(self) -> int:
        """Return how many registered records are in no completed batch."""
        [row] = self.rows(
            "SELECT (SELECT coalesce(sum(waiting_records), 0) FROM forebay.pipeline_status) + "
            "(SELECT coalesce(sum(records), 0) FROM forebay.batches WHERE state <> 'COMPLETED') AS records"
        )
        return int(row.records)

    def unread(self) -> int:
        """Return how many records were sent and are in no block yet: a file, a topic or a socket still has them."""
        [row] = self.rows("SELECT coalesce(sum(records), 0) AS records FROM forebay.receiver_status")
        return max(0, self.senders.count() - int(row.records))

    def latencies(self, seconds: float) -> list[float]:
        """Return the delays from boundary to completion, in seconds, of the batches completed in the last `seconds`."""
        rows = self.rows(
            "SELECT extract(epoch FROM total_delay)::float8 AS seconds FROM forebay.batch_stats "
            "WHERE records > 0 AND completed_at > clock_timestamp() - :seconds * interval '1 s'",
            seconds=seconds,
        )
        return [row.seconds for row in rows]

    def rows(self, statement: str, **values: float) -> Sequence[Any]:
        """Return the rows of one statement."""
        with connect(self.engine) as connection:
            return connection.execute(sa.text(statement), values).all()


def _of_processes(up: psutil.Process) -> dict[str, float]:
    values: dict[str, float] = {}
    for process in [up, *up.children(recursive=True)]:
        with contextlib.suppress(psutil.Error), process.oneshot():
            role = _role(process)
            for what, value in (
                ("memory, MiB", process.memory_info().rss / _MIB),
                ("descriptors", process.num_fds()),
                ("threads", process.num_threads()),
            ):
                for name in (role, "all processes"):
                    values[f"{name}: {what}"] = values.get(f"{name}: {what}", 0.0) + value
    return values


def _role(process: psutil.Process) -> str:
    line = " ".join(process.cmdline())
    if "guard.py" in line:
        return "guards"
    for words, role in (
        ("forebay.cli receiver", "receivers"),
        ("forebay.cli batch-driver", "batch driver"),
        ("forebay.cli", "agent, tracker and up"),
        ("dagster", "Dagster"),
        ("postgres", "Postgres"),
        ("java", "JVM"),
    ):
        if words in line:
            return role
    return "others"


@contextlib.contextmanager
def _running(home: Path, interval: int) -> Iterator[System]:
    broker = KafkaBroker(home / "kafka", heap_mib=384)
    broker.start()
    holder = _Holder()
    http_ports = held_ports(holder, EACH)
    _make_topic(broker.address)
    senders = Senders(home / "files", http_ports, broker.address)
    settings = {
        "ENDURANCE_FILES": str(home / "files"),
        "ENDURANCE_HTTP_PORTS": ",".join(map(str, http_ports)),
        "ENDURANCE_INTERVAL": f"{interval}s",
        "ENDURANCE_KAFKA": broker.address,
        "ENDURANCE_OUTPUT": str(home / "output"),
        "ENDURANCE_SOCKET_PORTS": ",".join(str(sender.port) for sender in senders.sockets),
        "FOREBAY_HOME": str(home / "home"),
        "FOREBAY_SPARK_MASTER": "local[2]",
    }
    log = home / "up.log"
    up = start_forebay_up("benchmarks.endurance_pipeline", log, settings)
    try:
        await_start(up, log, _START_SECONDS)
        engine = create_engine(EmbeddedPostgres(home / "home" / "postgres").url(), application_name="endurance")
        senders.start()
        yield System(psutil.Process(up.pid), engine, senders, home / "output")
        engine.dispose()
    finally:
        senders.stop()
        up.send_signal(signal.SIGINT)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                up.wait(_STOP_SECONDS)
        finally:
            up.kill()
            broker.kill()


class _Holder:
    """The owner of the held ports: they are held for as long as it lives."""


def _make_topic(servers: str) -> None:
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415  an optional client
    from confluent_kafka.cimpl import NewTopic  # noqa: PLC0415

    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(TOPIC, 2 * EACH, 1)])[TOPIC].result(60)


def _warm_up(system: System) -> None:
    """Offer a low rate until Spark has done some batches: the first takes half a minute."""
    system.senders.set_rate(_FIRST_RATE / 4)
    deadline = time.monotonic() + _START_SECONDS
    while len(system.latencies(_START_SECONDS)) < _WARM_BATCHES:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{_WARM_BATCHES} batches were not done within {_START_SECONDS:g} s")
        time.sleep(1)


def _ceiling(system: System, report: Report, step_seconds: float) -> float:
    """Double the rate until the system doesn't keep up, then bisect; return the highest rate that it kept up with."""
    kept, rate = 0.0, _FIRST_RATE
    while _keeps_up(system, report, rate, step_seconds):
        kept, rate = rate, 2 * rate
    if not kept:
        raise SystemExit(f"{_FIRST_RATE:,.0f} records/s are too many for this machine: give a --rate")
    too_many = rate
    for _ in range(_HALVINGS):
        rate = math.sqrt(kept * too_many)
        if _keeps_up(system, report, rate, step_seconds):
            kept = rate
        else:
            too_many = rate
    return kept


def _keeps_up(system: System, report: Report, rate: float, seconds: float) -> bool:
    """Offer a rate; return whether the system keeps up. Back pressure first gets `seconds` to find its limits."""
    system.senders.set_rate(rate)
    time.sleep(seconds)
    before, begun = system.senders.count(), time.monotonic()
    time.sleep(seconds)
    taken = (system.senders.count() - before) / (time.monotonic() - begun)
    waiting = system.waiting() + system.unread()
    keeps_up = taken >= _TAKEN * rate and waiting <= _MOST_WAITING_INTERVALS * _INTERVAL_SECONDS * rate
    report.console.print(
        f"  {rate:,.0f} records/s offered: {taken:,.0f} taken, {waiting:,} wait: "
        f"{'kept up with' if keeps_up else 'too many'}"
    )
    if not keeps_up:
        _drain(system)
    return keeps_up


def _drain(system: System) -> float:
    """Offer nothing; return how long it took until nothing waited. Raises TimeoutError."""
    begun = time.monotonic()
    left = system.senders.pause(_DRAIN_SECONDS)
    # Acknowledged records are in blocks, but those of a socket or a file may still arrive: look for some intervals.
    since: float | None = None
    while since is None or time.monotonic() - since < 3 * _INTERVAL_SECONDS:
        if time.monotonic() - begun > _DRAIN_SECONDS:
            raise TimeoutError(
                f"{system.waiting():,} records wait after {_DRAIN_SECONDS:g} s; senders not done: {left}"
            )
        with contextlib.suppress(DriverLogError):
            since = None if system.waiting() or system.unread() else (since or time.monotonic())
        time.sleep(0.5)
    return since - begun


def _hold(system: System, report: Report, rate: float, seconds: float) -> None:
    """Hold a rate and take samples meanwhile; compare the first sixth with the last."""
    system.senders.set_rate(rate)
    begun = time.monotonic()
    sixth = seconds / 6
    latencies: list[list[float]] = []
    while (passed := time.monotonic() - begun) < seconds:
        time.sleep(min(_SAMPLE_SECONDS, sixth / 3, max(0.0, seconds - passed)))
        with contextlib.suppress(DriverLogError):
            system.sample()
            if not latencies and time.monotonic() - begun >= sixth:
                latencies.append(system.latencies(sixth))
    latencies.append(system.latencies(sixth))
    end = time.monotonic()
    taken = [
        (begun, begun + sixth, [s.values for s in system.samples if begun <= s.at < begun + sixth]),
        (end - sixth, end, [s.values for s in system.samples if s.at >= end - sixth]),
    ]
    (first_since, first_until, first), (last_since, last_until, last) = taken
    for name in sorted(set(first[-1]) & set(last[-1]), key=lambda name: (name.partition(":")[2], name)):
        report.add(_flat(name, [v[name] for v in first if name in v], [v[name] for v in last if name in v], ""))
    answers = [system.senders.answer_seconds(*span) for span in ((first_since, first_until), (last_since, last_until))]
    for name, (one, other) in (("batch: boundary to done", latencies), ("HTTP: request to answer", answers)):
        for which, of in (("median", statistics.median), ("p95", _p95)):
            if one and other:
                report.add(_flat(f"{name}, {which}", [of(one)], [of(other)], "s"))


def _flat(name: str, first: Sequence[float], last: Sequence[float], unit: str) -> Figure:
    one, other = statistics.median(first), statistics.median(last)
    return Figure(name, other, one, "the first sixth", one / other if other else None, _FLAT, unit)


def _p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]


def _burst(system: System, report: Report, rate: float) -> None:
    before, peak = system.senders.count(), [0.0]
    system.senders.set_rate(rate * _BURST)
    begun = time.monotonic()
    while time.monotonic() - begun < _BURST_SECONDS:
        time.sleep(_SAMPLE_SECONDS / 2)
        peak.append(_of_processes(system.up)["all processes: memory, MiB"])
    taken = (system.senders.count() - before) / (time.monotonic() - begun)
    waiting, unread = system.waiting(), system.unread()
    drained = _drain(system)
    report.add(
        Figure(
            f"offered for {_BURST_SECONDS:g} s", rate * _BURST, rate, "80 % of the ceiling", None, None, "records/s"
        ),
        Figure("taken meanwhile", taken, rate, "80 % of the ceiling", None, None, "records/s"),
        time_figure("waiting in blocks at its end", waiting, None, peer_name="", unit="records"),
        time_figure("and not read yet", unread, None, peer_name="", unit="records"),
        time_figure("memory at most", max(peak), None, peer_name="", unit="MiB"),
        time_figure("until nothing waits", drained, None, peer_name="", unit="s"),
    )


def _check(system: System, report: Report) -> bool:
    """Return whether the Parquet files hold exactly what was sent. Kafka's stream has four senders, by name."""
    sums: dict[str, tuple[int, int]] = {}
    for file in sorted(system.output.glob("date=*/hour=*/batch_time=*/*.parquet")):
        with file.open("rb") as data:
            for row in pq.read_table(data).to_pylist():
                count, total = sums.get(row["source"], (0, 0))
                sums[row["source"]] = (count + row["records"], total + row["total"])
    wrong = {name: (sent, sums.get(name)) for name, sent in system.senders.sums().items() if sums.get(name) != sent}
    for name, (sent, came) in wrong.items():
        report.note(f"WRONG: {name}: sent {sent} (records, sum of numbers), came out {came}")
    report.note(f"{sum(count for count, _ in sums.values()):,} records came out, of {system.senders.count():,} sent")
    return not wrong


def main() -> int:
    """Measure, and print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.endurance", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="how many minutes the rate is held")
    parser.add_argument("--rate", type=float, help="hold this rate, and don't look for the ceiling")
    parser.add_argument(
        "--step-seconds", type=float, default=_STEP_SECONDS, help="half the time at each rate on the way up"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    # Exit on SIGTERM by an exception, so that the services are stopped too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="forebay-endurance-", ignore_cleanup_errors=True) as directory:
        home = Path(directory)
        # The embedded server runs as another user, which must be able to enter the directory.
        home.chmod(0o711)
        report = Report("endurance", machine(receivers=4 * EACH))
        with _running(home, _INTERVAL_SECONDS) as system:
            _warm_up(system)
            rate = arguments.rate
            if rate is None:
                report.section("the ceiling")
                ceiling = _ceiling(system, report, arguments.step_seconds)
                report.add(Figure("ceiling", ceiling, None, "", None, None, "records/s"))
                rate = _PART_OF_CEILING * ceiling
            report.section(f"{rate:,.0f} records/s for {arguments.minutes:g} minutes")
            _hold(system, report, rate, arguments.minutes * 60)
            report.section(f"{_BURST} times as many for {_BURST_SECONDS:g} s")
            _burst(system, report, rate)
            right = _check(system, report)
    report.print(as_json=arguments.json)
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
