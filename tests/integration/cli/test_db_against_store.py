"""Test `forebay db check --against-store`: every stored block without a row, and what happens to it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from forebay.cli.commands.driver_log.db import app
from receiver_runtime.block_store.stores.local import LocalBlockStore
from receiver_runtime.sources.source import SourceRule
from tests.integration.receiver_runtime.salvage_rig import SalvagedReceiver

if TYPE_CHECKING:
    from pathlib import Path

    import sqlalchemy as sa
    from typer.testing import Result


@pytest.fixture
def receiver(engine: sa.Engine, tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> SalvagedReceiver:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_BLOCK_STORE", str(tmp_path / "blocks"))
    monkeypatch.setenv("COLUMNS", "300")
    return SalvagedReceiver.make(engine, tmp_path / "blocks")


def check(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["check", "--against-store", *arguments], catch_exceptions=False)


def compare() -> tuple[int, dict[str, Any], list[tuple[int, str, bool]]]:
    """Return the exit code, the report, and (sequence, fate, acknowledged) of each block without a row."""
    result = check("--json")
    report = json.loads(result.stdout)
    frames = [(frame["sequence"], frame["fate"], frame["acknowledged"]) for frame in report["unknown_frames"]]
    return result.exit_code, report, frames


def test_registered_salvaged_and_cleaned_up_blocks_are_known(receiver: SalvagedReceiver) -> None:
    killed = receiver.live(max_segment_bytes=1)
    for text in ("a", "b"):
        killed.keep(text)
    killed.register(1)
    killed.keep("c")
    next_one = receiver.live()
    next_one.keep("d")
    next_one.register()
    code, report, frames = compare()
    assert (code, report["intact"], frames) == (0, True, [])
    assert (report["store"]["files"], report["store"]["blocks"]) == (4, 4)
    receiver.execute(
        "DELETE FROM forebay.blocks WHERE receiver_id = :r AND segment_id IS NOT NULL "
        "AND sequence < (SELECT max(sequence) FROM forebay.blocks)"
    )
    receiver.execute("UPDATE forebay.receivers SET low_mark = (SELECT max(sequence) - 1 FROM forebay.blocks)")
    assert compare()[2] == []


def test_waiting_and_resent_blocks_are_listed_and_no_loss(receiver: SalvagedReceiver) -> None:
    life = receiver.live(receiver.claim(), rule=SourceRule.SENT_AGAIN)
    life.keep("a")
    life.register()
    life.keep("b")
    assert compare()[::2] == (0, [(3, "waits", False)])
    life.close()
    receiver.live()
    assert compare()[::2] == (0, [(3, "comes again", False)])
    said = check().stdout
    assert "sequence 3: its sender has no acknowledgement and brings it again" in said
    assert "1 (1 records) comes again, 0 (0 records) unknown" in said


def test_blocks_lost_by_the_driver_log_are_exit_code_1_and_named(receiver: SalvagedReceiver) -> None:
    life = receiver.live()
    for text in ("a", "b"):
        life.keep(text)
        life.register()
    life.close()
    [path] = receiver.paths()
    receiver.execute("DELETE FROM forebay.blocks WHERE receiver_id = :r AND sequence > 2")
    # Its seal is still there, which no failover leaves like that: no process will look at the segment again.
    code, report, frames = compare()
    assert (code, report["intact"], frames) == (1, False, [(3, "unknown", False)])
    [found] = report["unknown_frames"]
    frame = receiver.frames(path)[1]
    assert (found["path"], found["offset"], found["length"]) == (path, frame.offset, frame.length)
    assert report["store"]["unknown"] == {"blocks": 1, "records": 1}
    # Now lose the row of its segment too.
    receiver.execute("DELETE FROM forebay.blocks WHERE receiver_id = :r AND segment_id IS NOT NULL")
    receiver.execute("DELETE FROM forebay.log_segments WHERE path = :p", p=path)
    code, _, frames = compare()
    assert (code, [fate for _, fate, _ in frames]) == (1, ["unknown", "unknown"])
    assert "its segment has no row: start the receiver" in check().stdout


def test_an_unreadable_file_is_named(receiver: SalvagedReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver.live().keep("a")

    def scan(self: LocalBlockStore, path: str) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(LocalBlockStore, "scan", scan)
    code, report, _ = compare()
    assert (code, report["intact"]) == (1, False)
    assert "Input/output error" in report["store"]["unreadable"][0][1]
    assert "can't be read" in check().stdout
