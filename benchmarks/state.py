"""Measure a keyed state beside that of Structured Streaming, and the driver log with the versions of 30 days.

Run as ``python -m benchmarks.state [--json] [--quick] [--only PART]``; docs/reference/benchmarks.md says what each
figure means. Both count the occurrences of each key, on the same files, in turn: the peer is stopped meanwhile.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.report import Figure, Report, machine, time_figure
from benchmarks.server import running_server
from benchmarks.state_log import measure_versions
from benchmarks.state_ours import Ours
from benchmarks.state_peer import Peer

if TYPE_CHECKING:
    from collections.abc import Sequence

_LIMIT_SECONDS = 2.0
_PARTS = ("batches", "versions")
_PEER = "Structured Streaming, RocksDB"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Set how much is measured. `first`: batches that are not counted; `statements`: rounds of each of them."""

    keys: int
    touched: int
    first: int
    rounds: int
    versions: int
    statements: int


# After as many batches as a chain is long, a batch costs what it will always cost.
_FULL = Sizes(10_000_000, 100_000, 34, 32, 259_200, 200)
_QUICK = Sizes(20_000, 1_000, 2, 2, 1_000, 10)


def _write_keys(path: Path, numbers: Any) -> Path:  # noqa: ANN401  an array of numpy's
    users = pc.binary_join_element_wise("user-", pa.array(numbers).cast(pa.string()), "")
    pq.write_table(pa.table({"user": users}), path, row_group_size=1_000_000)
    return path


def _batches(report: Report, sizes: Sizes, directory: Path, *, shows: bool) -> None:
    report.section(f"{sizes.keys:,} keys, {sizes.touched:,} touched in a batch")
    random = np.random.default_rng(1)
    whole = _write_keys(directory / "whole.parquet", np.arange(sizes.keys))
    steps: list[dict[str, float]] = []
    others: list[float] = []
    with running_server(directory) as server, Ours(server, directory, whole) as ours, Peer(directory / "peer") as peer:
        for number in range(1 + sizes.first + sizes.rounds):
            path = directory / f"{number:04}.parquet"
            _write_keys(path, random.integers(0, sizes.keys, sizes.touched))
            steps.append(ours.run(path))
            # The peer's first batch has all keys.
            others.append(peer.run(path if number else whole))
            if shows:
                shown = ", ".join(f"{name} {seconds:.2f}" for name, seconds in steps[-1].items())
                report.console.print(f"  {number}: {shown}, peer {others[-1]:.2f}, load {os.getloadavg()[0]:.1f}")
        cold = ours.read_cold()
    seconds = [each["whole"] for each in steps]
    report.add(
        time_figure("first batch, which writes all keys", seconds[0], others[0], peer_name=_PEER, unit="s"),
        time_figure("all keys read from the block store", cold, None, peer_name="", unit="s"),
    )
    seconds, others = seconds[1 + sizes.first :], others[1 + sizes.first :]
    middle, ratio = statistics.median(seconds), statistics.median(b / a for a, b in zip(seconds, others, strict=True))
    report.add(
        Figure("batch", middle, statistics.median(others), _PEER, ratio, 1.0, "s"),
        time_figure("batch", middle, _LIMIT_SECONDS, peer_name="aim", unit="s", aim=1.0),
        time_figure("slowest batch", max(seconds), max(others), peer_name=_PEER, unit="s"),
    )
    names = list(steps[0])
    medians = (statistics.median(each[name] for each in steps[1 + sizes.first :]) for name in names)
    taken = ", ".join(f"{name} {each:.2f}" for name, each in zip(names, medians, strict=True))
    report.note(f"seconds of a batch: {taken}; load of the machine {os.getloadavg()[0]:.1f}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.state", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="small sizes: to see that it works; meets no aim")
    parser.add_argument("--only", choices=_PARTS, action="append", help="measure this part alone; may be repeated")
    parser.add_argument("--show", action="store_true", help="print each batch")
    parser.add_argument("--rounds", type=int, help="how many batches are counted")
    parser.add_argument("--first", type=int, help="how many batches are run before, and not counted")
    parser.add_argument("--directory", type=Path, help="where all data goes (default: the temporary folder)")
    options = parser.parse_args(arguments)
    sizes = _QUICK if options.quick else _FULL
    first = sizes.first if options.first is None else options.first
    sizes = Sizes(sizes.keys, sizes.touched, first, options.rounds or sizes.rounds, sizes.versions, sizes.statements)
    parts, began = options.only or _PARTS, time.perf_counter()
    report = Report("state", machine(keys=sizes.keys, touched=sizes.touched))
    with tempfile.TemporaryDirectory(prefix="forebay-state-", dir=options.directory) as name:
        directory = Path(name)
        # The embedded server runs as another user, which must be able to enter the directory.
        directory.chmod(0o755)
        if "batches" in parts:
            _batches(report, sizes, directory, shows=options.show)
        if "versions" in parts:
            measure_versions(report, directory, sizes.versions, sizes.statements)
    report.note(f"the whole took {time.perf_counter() - began:.0f} s")
    report.print(as_json=options.json)


if __name__ == "__main__":
    main()
