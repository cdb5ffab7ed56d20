"""Test a real receiver process whose block store can't be used: it says why, and reads nothing (S11)."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from forebay.testing.receiver_processes import eventually
from receiver_runtime.watching.exit_codes import ExitCode
from tests.integration.receiver_runtime.receiver_rig import NumberedSource, ReceiverRig, exit_code

if TYPE_CHECKING:
    from pathlib import Path


def details(rig: ReceiverRig, message: str) -> list[str]:
    """Return the details of the receiver's events with this message."""
    return [
        row.detail for row in rig.execute("SELECT detail FROM forebay.receiver_events WHERE message = :m", m=message)
    ]


@pytest.mark.parametrize(
    ("roots", "min_replicas", "why"),
    [
        ("gopher://store", 1, "gopher://store"),
        ("s3:///blocks", 1, "names no bucket"),
        ("{}/blocks", 2, "min_replicas is 2, and the block store has 1"),
        ("{0}/blocks,{0}/blocks", 1, "can't be used"),
    ],
)
def test_s11_a_receiver_with_a_wrong_block_store_fails_by_its_name_and_reads_nothing(
    database_url: str, tmp_path: Path, source: NumberedSource, roots: str, min_replicas: int, why: str
) -> None:
    rig = ReceiverRig.on_socket(database_url, tmp_path / "receiver", source.port, min_replicas=min_replicas)
    rig.roots = roots.format(tmp_path)
    try:
        assert exit_code(rig.start()) == ExitCode.FAILED, rig.logs()
        [detail] = details(rig, "the receiver could not start")
        assert why in detail
        assert (source.sent, rig.records(), rig.segments()) == (0, 0, [])
        assert not (tmp_path / "blocks").exists()
    finally:
        rig.close()


@pytest.mark.parametrize("place", ["a file", "below a file"])
def test_s11_a_receiver_whose_block_store_can_not_be_reached_waits_for_it_and_reads_nothing(
    database_url: str, tmp_path: Path, source: NumberedSource, place: str
) -> None:
    rig = ReceiverRig.on_socket(database_url, tmp_path / "receiver", source.port)
    in_the_way = tmp_path / "in-the-way"
    in_the_way.write_text("no directory", encoding="utf-8")
    rig.roots = str(in_the_way if place == "a file" else in_the_way / "blocks")
    try:
        process = rig.start()
        eventually(lambda: details(rig, "the block store is not there, waiting for it"), "the event")
        assert f"{rig.roots} can't be reached" in rig.state()[1]
        assert (source.sent, rig.records(), rig.segments()) == (0, 0, [])
        in_the_way.unlink()
        eventually(lambda: source.sent, "the first line that is read")
        process.send_signal(signal.SIGTERM)
        assert exit_code(process) == ExitCode.STOPPED, rig.logs()
    finally:
        rig.close()
