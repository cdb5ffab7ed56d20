"""Measure the data plane: from a socket to registered blocks, beside Spark's receiver and the disk; and reading back.

Run as ``python -m benchmarks.ingest [--json] [--quick]``; docs/reference/benchmarks.md says what each figure means.
"""

from __future__ import annotations

import argparse
import base64
import os
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.ingest_bare import Bare, bare_loop
from benchmarks.ingest_disk import synced_write_rate
from benchmarks.ingest_read_back import read_back
from benchmarks.ingest_receiver import Ingested, Receiver
from benchmarks.ingest_sender import LINE_BYTES, sender, write_corpus
from benchmarks.ingest_spark import SparkIngested, receive_with_spark
from benchmarks.ingest_text import text_cost
from benchmarks.report import Figure, Report, machine, rate_figure, time_figure
from benchmarks.server import running_server
from receiver_runtime.block_store.encryption import KEY_BYTES
from receiver_runtime.block_store.payload import DEFAULT_COMPRESSION, Compression

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from benchmarks.server import Server

_COMPRESSIONS: Sequence[Compression] = ("lz4", "zstd", "none")
# The default, and none, because Spark's log is not compressed.
_AIMED: Sequence[Compression] = (DEFAULT_COMPRESSION, "none")
_SPARK_AIM = 8.0
_DISK_AIM = 0.8
_READ_BACK_AIM = 0.9
_BLOCK_BYTES = 16 * 2**20
_MIB = 2**20
_PARTS = ("receive", "read")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured; seconds are for one measurement in one round."""

    rounds: int
    warm_up: float
    seconds: float
    spark_warm_up: float
    spark_seconds: float
    disk_seconds: float
    read_records: int
    read_rounds: int


_FULL = Sizes(
    rounds=5,
    warm_up=1.0,
    seconds=4.0,
    spark_warm_up=8.0,
    spark_seconds=6.0,
    disk_seconds=2.0,
    read_records=5_000_000,
    read_rounds=5,
)
_QUICK = Sizes(
    rounds=1,
    warm_up=0.5,
    seconds=2.0,
    spark_warm_up=4.0,
    spark_seconds=5.0,
    disk_seconds=0.5,
    read_records=1_000_000,
    read_rounds=2,
)


@dataclass(frozen=True, slots=True)
class _Peers:
    """The peers' figures of each round."""

    spark: Sequence[SparkIngested]
    counting: Sequence[SparkIngested]
    bare: Sequence[Bare]
    disk: Sequence[float]


def _receive(server: Server, report: Report, sizes: Sizes, directory: Path, port: int, block_key: str | None) -> None:
    """Measure in rounds: the disk, the bare loop, Forebay with each compression, and Spark's two applications.

    With a key, Forebay is also measured with encrypted blocks.
    """
    report.section(f"From a socket to registered blocks, lines of {LINE_BYTES} bytes, one receiver")
    disk: list[float] = []
    ours: dict[Compression, list[Ingested]] = {compression: [] for compression in _COMPRESSIONS}
    encrypted: dict[Compression, list[Ingested]] = {compression: [] for compression in _AIMED if block_key is not None}
    peer: list[SparkIngested] = []
    counting: list[SparkIngested] = []
    bare: list[Bare] = []
    for number in range(sizes.rounds):

        def of_disk() -> None:
            disk.append(synced_write_rate(directory, _BLOCK_BYTES, sizes.disk_seconds))

        def of_ours(compression: Compression, number: int = number) -> None:
            receiver = Receiver(server, directory, port, f"{compression}{number}", compression=compression)
            ours[compression].append(receiver.measure(warm_up=sizes.warm_up, seconds=sizes.seconds))
            shutil.rmtree(receiver.block_store)

        def of_encrypted(compression: Compression, number: int = number) -> None:
            name = f"encrypted-{compression}{number}"
            receiver = Receiver(server, directory, port, name, block_key=block_key, compression=compression)
            encrypted[compression].append(receiver.measure(warm_up=sizes.warm_up, seconds=sizes.seconds))
            shutil.rmtree(receiver.block_store)

        def of_bare_loop() -> None:
            bare.append(bare_loop(directory, port, warm_up=sizes.warm_up, seconds=sizes.seconds))

        def of_spark(found: list[SparkIngested], *, counts: bool, number: int = number) -> None:
            checkpoint = directory / f"checkpoint{number}"
            found.append(
                receive_with_spark(
                    port, checkpoint, warm_up=sizes.spark_warm_up, seconds=sizes.spark_seconds, counts=counts
                )
            )
            shutil.rmtree(checkpoint)

        turns: list[Callable[[], None]] = [
            of_disk,
            of_bare_loop,
            *(partial(of_ours, compression) for compression in _COMPRESSIONS),
            *(partial(of_encrypted, compression) for compression in encrypted),
            partial(of_spark, peer, counts=False),
            partial(of_spark, counting, counts=True),
        ]
        # Rotate the order in each round: a disk may slow down after a burst of the one before.
        first = number * 2 % len(turns)
        for turn in turns[first:] + turns[:first]:
            turn()
            # Unsynced data of one must not be written during the turn of the next.
            os.sync()
        told = ", ".join(f"{name} {ours[name][-1].records_per_second:,.0f}" for name in _COMPRESSIONS)
        report.console.print(
            f"  round {number + 1} of {sizes.rounds}, records/s: {told}, Spark {peer[-1].records_per_second:,.0f}, "
            f"counting {counting[-1].records_per_second:,.0f}; bare loop {bare[-1].records_per_second:,.0f}; "
            f"disk {disk[-1] / 1e6:,.0f} MB/s"
        )
    for compression in _COMPRESSIONS:
        _figures(report, compression, ours[compression], _Peers(peer, counting, bare, disk))
    for compression, measured in encrypted.items():
        report.add(*_cost(compression, measured, ours[compression]))


def _cost(compression: Compression, encrypted: Sequence[Ingested], plain: Sequence[Ingested]) -> tuple[Figure, Figure]:
    """Return what encryption costs: the ratios to the same without it."""
    return (
        rate_figure(
            f"received, {compression}, encrypted",
            [one.records_per_second for one in encrypted],
            [one.records_per_second for one in plain],
            peer_name="the same, not encrypted",
            unit="records/s",
        ),
        time_figure(
            f"CPU, {compression}, encrypted",
            statistics.median(one.cpu_per_million for one in encrypted),
            statistics.median(one.cpu_per_million for one in plain),
            peer_name="the same, not encrypted",
            unit="s/million records",
        ),
    )


def _figures(
    report: Report,
    compression: Compression,
    ours: Sequence[Ingested],
    peers: _Peers,
) -> None:
    rates = [one.records_per_second for one in ours]
    stored = statistics.median(one.stored_bytes_per_record for one in ours)
    report.add(
        rate_figure(
            f"received, {compression}",
            rates,
            [one.records_per_second for one in peers.spark],
            peer_name="Spark with its log, no batch read",
            unit="records/s",
            aim=_SPARK_AIM if compression in _AIMED else None,
        ),
        rate_figure(
            f"received, {compression}",
            rates,
            [one.records_per_second for one in peers.counting],
            peer_name="Spark with its log, batches counted",
            unit="records/s",
        ),
        rate_figure(
            f"received, {compression}",
            rates,
            [one.records_per_second for one in peers.bare],
            peer_name="a bare loop",
            unit="records/s",
        ),
        time_figure(
            f"CPU, {compression}",
            statistics.median(one.cpu_per_million for one in ours),
            statistics.median(one.cpu_per_million for one in peers.spark),
            peer_name="Spark's JVM, no batch read",
            unit="s/million records",
        ),
        time_figure(
            f"CPU, {compression}",
            statistics.median(one.cpu_per_million for one in ours),
            statistics.median(one.cpu_per_million for one in peers.bare),
            peer_name="a bare loop",
            unit="s/million records",
        ),
        rate_figure(
            f"received bytes, {compression}",
            [rate * LINE_BYTES / 1e6 for rate in rates],
            [rate / 1e6 for rate in peers.disk],
            peer_name=f"the disk, {_BLOCK_BYTES // _MIB} MiB appended and synced",
            unit="MB/s",
            aim=_DISK_AIM if compression in _AIMED else None,
        ),
        rate_figure(
            f"stored bytes, {compression}",
            [one.records_per_second * one.stored_bytes_per_record / 1e6 for one in ours],
            [rate / 1e6 for rate in peers.disk],
            peer_name="the disk, the same",
            unit="MB/s",
        ),
        Figure(
            f"memory grown at most, {compression}",
            max(one.grown for one in ours) / _MIB,
            ours[0].bound / _MIB,
            "block_queue_size x max_block_bytes",
            ours[0].bound / max(one.grown for one in ours),
            1.0,
            "MiB",
        ),
    )
    report.note(
        f"{compression}: a line of {LINE_BYTES} bytes is stored in {stored:.0f} ({LINE_BYTES / stored:.2f} to 1), "
        f"{statistics.median(one.block_records for one in ours):,.0f} records a block"
    )


def _read(server: Server, report: Report, sizes: Sizes, directory: Path, port: int, block_key: str | None) -> None:
    report.section("Reading a batch in Spark, warm")
    receiver = Receiver(server, directory, port, "read")
    receiver.receive(sizes.read_records)
    found = read_back(server, receiver, directory, rounds=sizes.read_rounds)
    report.add(
        rate_figure(
            f'read.format("forebay"), {DEFAULT_COMPRESSION}',
            found.ours.rates,
            found.text.rates,
            peer_name="read.text of the same lines",
            unit="rows/s",
            aim=_READ_BACK_AIM,
        ),
        time_figure(
            f'CPU, read.format("forebay"), {DEFAULT_COMPRESSION}',
            statistics.median(found.ours.cpu),
            statistics.median(found.text.cpu),
            peer_name="read.text of the same lines",
            unit="s/million rows",
        ),
    )
    report.note(f"read back: {found.rows:,} rows of one batch into Spark's noop sink, {sizes.read_rounds} rounds")
    if block_key is None:
        return
    receiver = Receiver(server, directory, port, "read-encrypted", block_key=block_key)
    receiver.receive(sizes.read_records)
    encrypted = read_back(server, receiver, directory, rounds=sizes.read_rounds)
    report.add(
        rate_figure(
            f'read.format("forebay"), {DEFAULT_COMPRESSION}, encrypted',
            encrypted.ours.rates,
            found.ours.rates,
            peer_name="the same, not encrypted",
            unit="rows/s",
        ),
        time_figure(
            f'CPU, read.format("forebay"), {DEFAULT_COMPRESSION}, encrypted',
            statistics.median(encrypted.ours.cpu),
            statistics.median(found.ours.cpu),
            peer_name="the same, not encrypted",
            unit="s/million rows",
        ),
    )


def measure(
    report: Report, server: Server, sizes: Sizes, directory: Path, *, parts: Collection[str], encrypted: bool = False
) -> None:
    """Measure the requested parts."""
    block_key = None
    if encrypted:
        key = directory / "block-key"
        key.write_text(base64.b64encode(os.urandom(KEY_BYTES)).decode(), encoding="ascii")
        block_key = f"file:{key.absolute()}"
    corpus = directory / "corpus"
    write_corpus(corpus)
    with sender(corpus) as port:
        if "receive" in parts:
            cost = text_cost(corpus, _BLOCK_BYTES, sizes.read_rounds)
            report.add(
                time_figure(
                    "CPU, text columns checked",
                    cost.check,
                    cost.encode,
                    peer_name="the same blocks encoded, lz4",
                    unit="s/million records",
                )
            )
            _receive(server, report, sizes, directory, port, block_key)
        if "read" in parts:
            _read(server, report, sizes, directory, port, block_key)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ingest", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="one short round: to see that it works, no aim is met")
    parser.add_argument("--only", choices=_PARTS, action="append", help="measure this part alone; may be repeated")
    parser.add_argument("--encrypted", action="store_true", help="measure what encrypted blocks cost, too")
    parser.add_argument("--directory", type=Path, help="where data goes: the disk to measure (default: temporary)")
    arguments = parser.parse_args()
    began = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="forebay-benchmark-", dir=arguments.directory) as name,
        running_server(Path(name)) as server,
    ):
        report = Report("ingest", machine(postgres=server.version()))
        measure(
            report,
            server,
            _QUICK if arguments.quick else _FULL,
            Path(name),
            parts=arguments.only or _PARTS,
            encrypted=arguments.encrypted,
        )
    report.note(f"the whole took {time.perf_counter() - began:.0f} s")
    report.print(as_json=arguments.json)


if __name__ == "__main__":
    main()
