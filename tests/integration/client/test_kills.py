"""Kill senders and their receiver at random moments: each record is registered once, in its channel's order."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc
import pytest

from receiver_runtime.receivers.http.declaration import Http
from tests.integration.receiver_runtime.receiver_rig import ReceiverRig
from tests.support.machine.held_ports import held_port
from tests.support.systems.sending_program import GO_ON, RECORD, RECORD_BYTES

if TYPE_CHECKING:
    from pathlib import Path

_C, _N = RECORD.index(b"%03d"), RECORD.index(b"%08d") + len(b"000") - len(b"%03d")
_POLL_SECONDS = 0.05


class Senders:
    """Hold processes that send channels, each again and again until it ends by itself."""

    def __init__(self, port: int, spools: Path, channels: int, processes: int, records: int, fsync: str) -> None:
        shared = {"url": f"http://127.0.0.1:{port}/v1/lines", "spools": str(spools), "records": records, "fsync": fsync}
        self._arguments = [
            json.dumps({**shared, "channels": list(range(first, channels, processes))}) for first in range(processes)
        ]
        self._processes = [self._start(one) for one in self._arguments]

    @staticmethod
    def _start(arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "tests.support.systems.sending_program", arguments])

    def kill(self, number: int) -> bool:
        """Kill a process and start it again. Return whether it was at work."""
        process = self._processes[number]
        if process.poll() is not None:
            return False
        process.kill()
        process.wait(60)
        self._processes[number] = self._start(self._arguments[number])
        return True

    def are_done(self) -> bool:
        codes = [process.poll() for process in self._processes]
        assert all(code in (None, 0) for code in codes), codes
        return None not in codes

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait(60)


def check_each_once_in_order(rig: ReceiverRig, channels: int, records: int) -> None:
    """Check that the registered blocks have the records of each channel, each once and in order."""
    expected = [0] * channels
    store = rig.store
    for row in rig.execute(
        'SELECT s.path, b."offset", b.length, b.crc32c FROM forebay.blocks b '
        "JOIN forebay.log_segments s ON s.id = b.segment_id ORDER BY b.receiver_id, b.sequence"
    ):
        for batch in store.read_batches(row.path, row.offset, row.length, row.crc32c):
            column = batch.column(0)
            assert pc.unique(pc.binary_length(column)).to_pylist() == [RECORD_BYTES]
            text = np.frombuffer(b"".join(column.to_pylist()), np.uint8).reshape(-1, RECORD_BYTES) - ord("0")
            of = text[:, _C : _C + 3] @ np.array([100, 10, 1])
            numbers = text[:, _N : _N + 8].astype(np.int64) @ (10 ** np.arange(7, -1, -1))
            for channel in np.unique(of):
                found = numbers[of == channel]
                begin = expected[channel]
                assert (found == np.arange(begin, begin + len(found))).all(), (channel, begin, found[:10])
                expected[channel] += len(found)
    assert expected == [records] * channels


def run(
    database_url: str,
    folder: Path,
    *,
    channels: int,
    records: int,
    processes: int,
    kills: int,
    every: float,
    fsync: str,
) -> None:
    """Send records through channels while senders and receiver are killed in turn, and check what is registered."""
    chance = random.Random(channels)
    with held_port() as port:
        source = Http(listen=f"127.0.0.1:{port}").model_dump(mode="json")
        rig = ReceiverRig.make(database_url, folder / "receiver", source, block_interval="20ms")
        assignment = 1
        receiver = rig.start(assignment)
        with closing(rig), closing(Senders(port, folder / "spools", channels, processes, records, fsync)) as senders:
            for killed in range(kills):
                due = time.monotonic() + every * chance.uniform(0.5, 1.5)
                while time.monotonic() < due:
                    time.sleep(_POLL_SECONDS)
                    assert receiver.poll() is None, rig.logs()
                    assert not senders.are_done()
                if killed % 2:
                    receiver.kill()
                    receiver.wait(60)
                    assignment += 1
                    rig.assign(assignment)
                    receiver = rig.start(assignment)
                else:
                    assert senders.kill(chance.randrange(processes))
            (folder / "spools" / GO_ON).touch()
            while not senders.are_done():
                time.sleep(_POLL_SECONDS)
                assert receiver.poll() is None, rig.logs()
            check_each_once_in_order(rig, channels, records)
            [(rows, size, blocks)] = rig.execute(
                "SELECT (SELECT count(*) FROM forebay.channels), pg_total_relation_size('forebay.channels'), "
                "(SELECT count(*) FROM forebay.blocks)"
            )
            print(f"{kills} kills, {rows} channels in {size} bytes, {blocks} blocks of {channels * records} records")  # noqa: T201  shown with -s
            # It grows by channels, and not by records.
            assert rows == channels
            assert size < 2**20 + 10_000 * channels


def test_each_record_of_channels_once_with_kills_on_both_sides(database_url: str, tmp_path: Path) -> None:
    run(database_url, tmp_path, channels=3, records=40_000, processes=2, kills=4, every=0.7, fsync="interval")


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_ten_million_records_of_a_hundred_channels_once_with_kills_on_both_sides(
    database_url: str, tmp_path: Path
) -> None:
    run(database_url, tmp_path, channels=100, records=100_000, processes=4, kills=12, every=1.2, fsync="interval")
