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
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path

from benchmarks.http_processes import running_bare, running_receiver
from benchmarks.report import Report, machine, rate_figure, time_figure
from benchmarks.server import running_server
from receiver_runtime.receivers.http.declaration import Http


class Identity(IntEnum):
    """Name how a repeated request is known, as the sender takes it."""

    NONE = 0
    KEY = 1
    CHANNEL = 2


@dataclass(frozen=True, slots=True)
class Load:
    """Describe the requests of one sender."""

    name: str
    connections: int
    lines: int
    identity: Identity = Identity.NONE


_LOADS = (
    Load("1 record a request, 200 connections", 200, 1),
    Load("1 record a request, with keys", 200, 1, Identity.KEY),
    Load("1,000 lines a request, 64 connections", 64, 1000),
)
_KEYS_AIM = 1.5
# Each beside the same requests that are known in another way, or not at all; and the ratio to reach.
_OF_CHANNELS = (
    (Load("1 record a request, in channels", 200, 1, Identity.CHANNEL), Identity.KEY, _KEYS_AIM),
    (Load("1 record a request, in channels", 200, 1, Identity.CHANNEL), Identity.NONE, None),
    (Load("1,000 lines a request, in 64 channels", 64, 1000, Identity.CHANNEL), Identity.KEY, None),
    (Load("1,000 lines a request, in 64 channels", 64, 1000, Identity.CHANNEL), Identity.NONE, None),
)


def send(port: int, load: Load, seconds: float, *line: str) -> tuple[float, float]:
    """Run the sender, of a line if one is given; return records per second, and the median time to an answer."""
    arguments = [str(value) for value in (port, load.connections, load.lines, int(load.identity), seconds, *line)]
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
            report.section("channels")
            for load, other, aim in _OF_CHANNELS:
                mine, others = [], []
                for _ in range(rounds):
                    others.append(send(ours, replace(load, identity=other), seconds))
                    mine.append(send(ours, load, seconds))
                report.add(
                    rate_figure(
                        load.name,
                        [rate for rate, _ in mine],
                        [rate for rate, _ in others],
                        peer_name="with keys" if other is Identity.KEY else "with neither",
                        unit="records/s",
                        aim=aim,
                    )
                )
            report.note(
                "the sender, the receiver and Postgres share this machine's cores; the bare one has no Postgres"
            )
            report.print(as_json=arguments.json)


if __name__ == "__main__":
    main()
