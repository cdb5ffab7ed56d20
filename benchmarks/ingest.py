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
from receiver_runtime.block_store.frames.encryption import KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from benchmarks.ingest_read_back import Reads
    from benchmarks.server import Server
    from receiver_runtime.block_path.load.codec_choice import CompressionSetting

_NAMED: Sequence[CompressionSetting] = ("lz4", "zstd", "none")
_COMPRESSIONS: Sequence[CompressionSetting] = ("auto", *_NAMED)
# The default, and none, because Spark's log is not compressed.
_AIMED: Sequence[CompressionSetting] = ("auto", "none")
_ENCRYPTED: Sequence[CompressionSetting] = ("lz4", "none")
# What is read back: what a receiver stores that keeps up, and that one stores at the most that it can.
_READ: Sequence[CompressionSetting] = ("lz4", "none")
_SPARK_AIM = 8.0
_DISK_AIM = 0.8
_READ_BACK_AIM = 0.85
# Of `auto`: its rate beside the better of the two, and its size beside lz4's at half of its rate.
_BETTER_AIM = 0.9
_SIZE_AIM = 1 / 1.05
_BLOCK_BYTES = 16 * 2**20
_MIB = 2**20
_PARTS = ("receive", "read")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Set how much is measured; seconds are for one measurement in one round."""

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
    """Hold the peers' figures of each round."""

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
    ours: dict[CompressionSetting, list[Ingested]] = {compression: [] for compression in _COMPRESSIONS}
    half: list[Ingested] = []
    encrypted: dict[CompressionSetting, list[Ingested]] = {one: [] for one in _ENCRYPTED if block_key is not None}
    peer: list[SparkIngested] = []
    counting: list[SparkIngested] = []
    bare: list[Bare] = []
    for number in range(sizes.rounds):

        def of_disk() -> None:
            disk.append(synced_write_rate(directory, _BLOCK_BYTES, sizes.disk_seconds))

        def of_ours(compression: CompressionSetting, number: int = number) -> None:
            receiver = Receiver(server, directory, port, f"{compression}{number}", compression=compression)
            ours[compression].append(receiver.measure(warm_up=sizes.warm_up, seconds=sizes.seconds))
            shutil.rmtree(receiver.block_store)

        def of_auto(number: int = number) -> None:
            of_ours("auto")
            rate = ours["auto"][-1].records_per_second / 2
            receiver = Receiver(server, directory, port, f"half{number}", receiver_max_rate=rate)
            half.append(receiver.measure(warm_up=sizes.warm_up, seconds=sizes.seconds))
            shutil.rmtree(receiver.block_store)

        def of_encrypted(compression: CompressionSetting, number: int = number) -> None:
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
            of_auto,
            *(partial(of_ours, compression) for compression in _NAMED),
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
    report.add(
        *_choice(ours, half),
        *(figure for name, measured in encrypted.items() for figure in _cost(name, measured, ours[name])),
    )


def _choice(ours: dict[CompressionSetting, list[Ingested]], half: Sequence[Ingested]) -> tuple[Figure, Figure, Figure]:
    """Return what the choice of `auto` costs: its rate at the most, and its size at half of that."""
    better = [
        max(lz4.records_per_second, none.records_per_second)
        for lz4, none in zip(ours["lz4"], ours["none"], strict=True)
    ]
    return (
        rate_figure(
            "received, auto",
            [one.records_per_second for one in ours["auto"]],
            better,
            peer_name="the better of lz4 and none",
            unit="records/s",
            aim=_BETTER_AIM,
        ),
        rate_figure(
            "received, auto, limited to half of its rate",
            [one.records_per_second for one in half],
            [one.records_per_second / 2 for one in ours["auto"]],
            peer_name="the limit",
            unit="records/s",
        ),
        time_figure(
            "stored bytes of a record, auto, at half of its rate",
            statistics.median(one.stored_bytes_per_record for one in half),
            statistics.median(one.stored_bytes_per_record for one in ours["lz4"]),
            peer_name="lz4",
            unit="bytes",
            aim=_SIZE_AIM,
        ),
    )


def _cost(
    compression: CompressionSetting, encrypted: Sequence[Ingested], plain: Sequence[Ingested]
) -> tuple[Figure, Figure]:
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
    compression: CompressionSetting,
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
    for codec in _READ:
        receiver = Receiver(server, directory, port, f"read-{codec}", compression=codec)
        receiver.receive(sizes.read_records)
        found = read_back(server, receiver, directory, rounds=sizes.read_rounds)
        name = f'read.format("forebay"), {codec}'
        report.add(
            *_compared(name, found.ours, found.text, peer_name="read.text of the same lines", aim=_READ_BACK_AIM),
            *_compared(name, found.ours, found.least, peer_name="the least Python source"),
            *_compared("the least Python source", found.least, found.text, peer_name="read.text of the same lines"),
        )
        report.note(f"{codec}: {found.rows:,} rows of one batch into Spark's noop sink, {sizes.read_rounds} rounds")
        if block_key is not None:
            receiver = Receiver(
                server, directory, port, f"read-{codec}-encrypted", block_key=block_key, compression=codec
            )
            receiver.receive(sizes.read_records)
            encrypted = read_back(server, receiver, directory, rounds=sizes.read_rounds)
            report.add(
                *_compared(f"{name}, encrypted", encrypted.ours, found.ours, peer_name="the same, not encrypted")
            )


def _compared(
    name: str, ours: Reads, peer: Reads, *, peer_name: str, aim: float | None = None
) -> tuple[Figure, Figure]:
    """Return how one way of reading compares with another: rows per second, and CPU."""
    return (
        rate_figure(name, ours.rates, peer.rates, peer_name=peer_name, unit="rows/s", aim=aim),
        time_figure(
            f"CPU, {name}",
            statistics.median(ours.cpu),
            statistics.median(peer.cpu),
            peer_name=peer_name,
            unit="s/million rows",
            aim=aim,
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
