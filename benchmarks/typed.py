"""Measure typed streams: what receivers pay to parse records, and what a batch no longer pays.

Run as ``python -m benchmarks.typed [--json] [--quick]``. A receiver of a typed stream is compared with one of an
untyped stream, in turn, with the same sender; and the reader of JSON alone with Spark's ``from_json`` over the same
records.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from benchmarks.http import Load, send
from benchmarks.http_processes import running_receiver
from benchmarks.report import Report, machine, rate_figure, time_figure
from benchmarks.server import running_server
from benchmarks.typed_spark import DDL, spark_costs
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.record_formats.json_reader import JsonReader
from receiver_runtime.sources.records.json_records import Json

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psutil

    from benchmarks.server import Server

_LOADS = (Load("1,000 lines a request, 64 connections", 64, 1000), Load("1 record a request, 200 connections", 200, 1))
_LINE = '{"item": "kettle%03d", "pieces": %d, "price": %.2f, "paid": true, "at": "2026-01-02T03:04:05.678Z"}'
_RECEIVED_AT_LEAST = 0.75  # of what an untyped stream receives
_FASTER_THAN_SPARK = 5.0  # per CPU
_ROUNDS_OF_READING = 5


@dataclass
class _Receiver:
    """Hold one receiver, and what was measured of it."""

    server: Server
    port: int
    process: psutil.Process
    rates: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def receive(self, load: Load, seconds: float) -> None:
        records, used = self._records(), self._cpu()
        self.rates.append(send(self.port, load, seconds, _LINE % (7, 17, 42.25))[0])
        self.cpu.append((self._cpu() - used) / (self._records() - records) * 1e6)

    def _cpu(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def _records(self) -> int:
        [(records,)] = self.server.execute("SELECT coalesce(max(total_records), 0) FROM forebay.blocks")
        return int(str(records))


def _receiving(report: Report, directory: Path, rounds: int, seconds: float) -> None:
    source = Http(listen="127.0.0.1:0")
    with (
        running_server(directory / "typed") as one,
        running_server(directory / "untyped") as other,
        running_receiver(one, directory / "typed", source, Json(DDL)) as typed,
        running_receiver(other, directory / "untyped", source) as untyped,
    ):
        for load in _LOADS:
            report.section(load.name)
            ours, peer = _Receiver(one, *typed), _Receiver(other, *untyped)
            for _ in range(rounds):
                peer.receive(load, seconds)
                ours.receive(load, seconds)
            report.add(
                rate_figure(
                    load.name,
                    ours.rates,
                    peer.rates,
                    peer_name="the same, untyped",
                    unit="records/s",
                    aim=_RECEIVED_AT_LEAST,
                ),
                time_figure(
                    f"{load.name}: CPU of the receiver",
                    min(ours.cpu),
                    min(peer.cpu),
                    peer_name="the same, untyped",
                    unit="us a record",
                ),
            )


def _cost(reader: JsonReader, lines: Sequence[bytes]) -> float:
    """Return the CPU nanoseconds of one record; the fastest round counts."""
    values = pa.array(lines, pa.binary())
    costs = []
    for _ in range(_ROUNDS_OF_READING):
        began = time.process_time()
        reader.read(values)
        costs.append((time.process_time() - began) / len(lines) * 1e9)
    return min(costs)


def _reading(report: Report, directory: Path, count: int) -> None:
    report.section("reading JSON into columns")
    draw = random.Random(1)  # noqa: S311  a benchmark's data
    lines = [(_LINE % (draw.randrange(1000), draw.randrange(100), 100 * draw.random())).encode() for _ in range(count)]
    quoted = [line.replace(b'"pieces": ', b'"pieces": "').replace(b', "price"', b'", "price"') for line in lines]
    ours = _cost(JsonReader(Json(DDL)), lines)
    spark = spark_costs(lines, directory)
    for name, cost in spark.items():
        report.add(
            time_figure("JsonReader", ours, cost, peer_name=name, unit="ns CPU a record", aim=_FASTER_THAN_SPARK)
        )
    mixed = [bad if row % 100 == 0 else line for row, (line, bad) in enumerate(zip(lines, quoted, strict=True))]
    tagged = [line.replace(b"}", b', "tags": {"a": "b", "c": "d"}}') for line in lines]
    for name, reader, records in (
        ("one record in 100 does not fit", Json(DDL), mixed),
        ("no record fits", Json(DDL), quoted),
        ("one record in 100 is coerced", Json(DDL, coerce=["numbers"]), mixed),
        ("each record is coerced", Json(DDL, coerce=["numbers"]), quoted),
        ("with a MAP of two", Json(f"{DDL}, tags MAP<STRING, STRING>"), tagged),
    ):
        cost = _cost(JsonReader(reader), records)
        report.add(time_figure(name, cost, ours, peer_name="all records fit", unit="ns CPU a record"))


def main() -> None:
    """Measure, in turn, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="one short round")
    arguments = parser.parse_args()
    rounds, seconds, count = (1, 2.0, 50_000) if arguments.quick else (3, 5.0, 200_000)
    with tempfile.TemporaryDirectory(prefix="forebay-benchmark-") as folder:
        directory = Path(folder)
        for name in ("typed", "untyped"):
            (directory / name).mkdir()
        report = Report("typed", machine(pyarrow=pa.__version__))
        _receiving(report, directory, rounds, seconds)
        _reading(report, directory, count)
        report.note("the sender, the receiver and Postgres share this machine's cores")
        report.print(as_json=arguments.json)


if __name__ == "__main__":
    main()
