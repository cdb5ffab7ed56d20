"""Measure records by HTTP to registered blocks, beside a bare uvicorn application that reads the body and answers 200.

Run as ``python -m benchmarks.http [--json] [--quick]``. Everything is real: a receiver process as the agent starts it,
synced segments, the durable embedded server, and a sender in a separate process. All of it shares this machine. The
bare application stores nothing: its rate is the limit of HTTP itself.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.http_processes import running_bare, running_receiver
from benchmarks.report import Report, machine, rate_figure, time_figure
from benchmarks.server import running_server
from receiver_runtime.receivers.http.declaration import Http


@dataclass(frozen=True, slots=True)
class Load:
    """Describe the requests of one sender."""

    name: str
    connections: int
    lines: int
    keys: bool = False


_LOADS = (
    Load("1 record a request, 200 connections", 200, 1),
    Load("1 record a request, with keys", 200, 1, keys=True),
    Load("1,000 lines a request, 64 connections", 64, 1000),
)


def send(port: int, load: Load, seconds: float, *line: str) -> tuple[float, float]:
    """Run the sender, of a line if one is given; return records per second, and the median time to an answer."""
    arguments = [str(value) for value in (port, load.connections, load.lines, int(load.keys), seconds, *line)]
    answer = subprocess.run(  # noqa: S603  our own command
        [sys.executable, "-m", "benchmarks.http_sender", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    rate, median = map(float, answer.stdout.split())
    return rate * load.lines, median


def main() -> None:
    """Measure, in turn, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="one short round")
    arguments = parser.parse_args()
    rounds, seconds = (1, 2.0) if arguments.quick else (3, 5.0)
    with tempfile.TemporaryDirectory(prefix="forebay-benchmark-") as folder:
        directory = Path(folder)
        with (
            running_server(directory) as server,
            running_receiver(server, directory, Http(listen="127.0.0.1:0")) as (ours, _),
            running_bare() as (bare, _),
        ):
            report = Report("http", machine(postgres=server.version()))
            for load in _LOADS:
                report.section(load.name)
                mine, others = [], []
                for _ in range(rounds):
                    others.append(send(bare, load, seconds))
                    mine.append(send(ours, load, seconds))
                report.add(
                    rate_figure(
                        load.name,
                        [rate for rate, _ in mine],
                        [rate for rate, _ in others],
                        peer_name="bare uvicorn, stores nothing",
                        unit="records/s",
                    ),
                    time_figure(
                        f"{load.name}: median answer",
                        sorted(median for _, median in mine)[rounds // 2] * 1e3,
                        sorted(median for _, median in others)[rounds // 2] * 1e3,
                        peer_name="bare uvicorn, stores nothing",
                        unit="ms",
                    ),
                )
            report.note(
                "the sender, the receiver and Postgres share this machine's cores; the bare one has no Postgres"
            )
            report.print(as_json=arguments.json)


if __name__ == "__main__":
    main()
